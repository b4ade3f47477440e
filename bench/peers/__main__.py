"""`python -m bench.peers`: viewtail's tailer, with both ways to deliver, beside Debezium on a MySQL and Maxwell on a
MariaDB.

Exit 0 when everything was measured, 1 when a server or a reader failed. `--out docs/performance.md` rewrites the
section of that page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import stack.mariadb
import stack.mysql
from bench.page import PEERS, page
from bench.peers import readers
from bench.peers.course import QUICK, Course, Sizes
from bench.peers.page import Source, section
from bench.peers.readers import Reader
from bench.setting import Setting, prepare, say, start_broker, writable
from stack import Server, StackError, maxwell

# By source server: how it is started, and who is measured beside viewtail.
_PEERS: dict[str, tuple[Callable[[Path], Server], Callable[[Setting], Reader]]] = {
    "mysql": (stack.mysql.start, readers.debezium),
    "mariadb": (lambda folder: stack.mariadb.start(folder, options=maxwell.SOURCE_OPTIONS), readers.maxwell_),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes and one round, to see that it works")
    parser.add_argument("--only", nargs="+", choices=_PEERS, default=list(_PEERS), help="the source servers")
    parser.add_argument("--rounds", type=int, help="5 by default")
    parser.add_argument("--single", type=int, help="single-row transactions")
    parser.add_argument("--bulk", type=int, help="rows in transactions of 500")
    parser.add_argument("--killed", type=int, help="rows in the middle of which a reader is killed")
    parser.add_argument("--live-s", type=float, help="seconds of 300 transactions each")
    parser.add_argument("--out", type=writable, help="the page whose section about the peers is written")
    arguments = parser.parse_args()
    sizes = _sizes(arguments)
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    began = time.monotonic()
    try:
        sources = [_measured(name, sizes, rounds) for name in arguments.only]
    except (RuntimeError, StackError) as error:
        say(f"failed: {error}")
        return 1
    command = " ".join(["python -m bench.peers", *sys.argv[1:]])
    text = section(sources, sizes, rounds, command)
    print(text)
    say(f"took {time.monotonic() - began:.0f} s")
    if arguments.out is not None:
        arguments.out.write_text(page(arguments.out.read_text(), {PEERS: text}))
    return 0


def _sizes(arguments: argparse.Namespace) -> Sizes:
    usual = QUICK if arguments.quick else Sizes()
    return Sizes(
        single=arguments.single or usual.single,
        bulk=arguments.bulk or usual.bulk,
        killed=arguments.killed or usual.killed,
        live_s=arguments.live_s or usual.live_s,
    )


def _measured(source: str, sizes: Sizes, rounds: int) -> Source:
    """All rounds on one source server, with a broker of its own."""
    start, peer = _PEERS[source]
    with tempfile.TemporaryDirectory(prefix="viewtail-peers-") as name:
        folder, servers = Path(name), dict[str, Server]()
        try:
            say(f"starting {source} and kafka")
            servers["mysql"] = start(folder / source)
            servers["kafka"] = start_broker(folder / "kafka")
            setting = Setting(servers=servers, folder=folder)
            prepare(setting)
            ours = [readers.viewtail(setting, delivery) for delivery in readers.DELIVERIES]
            course = Course(setting, [*ours, peer(setting)], sizes)
            course.begin()
            for number in range(rounds):
                say(f"{source}: round {number + 1} of {rounds}")
                course.round(number)
            return Source(machine=setting.machine(), figures=course.figures)
        finally:
            for server in servers.values():
                server.stop()


if __name__ == "__main__":
    sys.exit(main())
