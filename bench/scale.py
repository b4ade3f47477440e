"""`python -m bench.scale`: what a fleet of projectors costs, by partitions and by processes, and docs/scale.md from it.

The real program runs: a tailer, a topic, and `viewtail run --role project` once, twice, four and eight times. What
grows is counted where it is: sessions and statements in MySQL, connections to the broker, memory and threads in /proc.
Exit 0 when everything was measured, 1 when something did not come about.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

import stack.mysql
from bench import kafka
from bench.peers.usage import members, recorded
from bench.scale_page import page
from bench.setting import Setting, prepare, say, start_broker, until, writable, write_bulk_rows
from stack import StackError

_VIEWS = (
    "from viewtail import Entity, IndexTable, Topic\n\nnarrow = Entity('bench.narrow')\n"
    "views = [IndexTable('index_name', narrow, value='name'), Topic('bench.narrow', narrow, partitions={})]\n"
)
_WITHIN_S = 180.0
_OWNERS = (
    "SELECT s.owner, COUNT(*) FROM viewtail.pipeline_status s JOIN viewtail.pipeline p ON p.id = s.pipeline_id "
    "WHERE p.store = 'mysql' AND s.state = 'running' GROUP BY 1"
)
_OPEN = "SELECT COUNT(*) FROM viewtail.view v JOIN viewtail.pipeline p ON p.id = v.pipeline_id WHERE p.store = 'mysql'"
_FILLED = f"{_OPEN} AND v.state = 'filled'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    partitions: Sequence[int] = (1, 4, 16, 64)
    processes: Sequence[int] = (1, 2, 4, 8)
    shared: int = 16  # partitions that the processes share out
    rows: int = 400_000
    quiet_s: float = 10.0


SMALL = Sizes(partitions=(1, 4), processes=(1, 2), shared=4, rows=20_000, quiet_s=3.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """One process with so many partitions that nothing happens in."""

    partitions: int
    start_s: float  # until it runs them all
    memory_mib: float
    threads: int
    sessions: int  # in MySQL
    connections: int  # to the broker
    statements: float  # a second, in MySQL
    processor: float  # seconds a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """So many processes that share out one topic."""

    processes: int
    memory_mib: float  # of each
    sessions: int  # of all
    joined_s: float | None  # until the last one had its share
    killed_s: float | None  # until the others had the share of one that was killed
    rows_per_s: float  # of all, from the tables' commit on
    processor_us: float  # of all projectors, for one row
    statements_per_row: float


class Fleet:
    """The servers, a tailer, and projectors that come and go."""

    def __init__(self, setting: Setting, partitions: int) -> None:
        self.setting = setting
        self.partitions = partitions
        self.running: list[subprocess.Popen[bytes]] = []
        self._connection = setting.connect()

    def ask(self, sql: str) -> Sequence[Sequence[Any]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            found: Sequence[Sequence[Any]] = cursor.fetchall()
            return found

    def begin(self, role: str) -> subprocess.Popen[bytes]:
        setting = self.setting if role == "tail" else self.setting.through_kafka()
        command = [str(Path(sys.executable).with_name("viewtail")), "run", "--role", role]
        process = subprocess.Popen(command, cwd=setting.folder, env=setting.environment, start_new_session=True)
        self.running.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        self.running.remove(process)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    def end_all(self) -> None:
        for process in list(self.running):
            self.end(process)

    def wait_shared(self, processes: int) -> float:
        """The time at which every partition was owned, each process having its share."""
        share = self.partitions // processes

        def is_shared() -> bool:
            counts = [int(count) for owner, count in self.ask(_OWNERS) if _is_alive(owner)]
            return len(counts) == processes and sum(counts) == self.partitions and min(counts) >= share

        return self.wait(f"{processes} processes share {self.partitions} partitions", is_shared)

    def wait_filled(self) -> None:
        self.wait("the view is filled", lambda: self.ask(_FILLED)[0][0] == self.partitions)

    @staticmethod
    def wait(what: str, is_so: Callable[[], bool]) -> float:
        def is_so_by_now() -> bool:
            try:
                return is_so()
            except (pymysql.err.ProgrammingError, pymysql.err.OperationalError):
                return False  # viewtail has not made its tables yet

        return until(what, is_so_by_now, _WITHIN_S)

    def sessions(self) -> int:
        """In MySQL, besides the one that asks."""
        return int(self.ask("SELECT COUNT(*) - 1 FROM information_schema.PROCESSLIST WHERE user = 'root'")[0][0])

    def statements(self) -> int:
        return int(self.ask("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


@contextmanager
def fleet(setting: Setting, partitions: int) -> Iterator[Fleet]:
    """A new topic of so many partitions, with its tailer; everything that was begun is stopped at the end."""
    prepare(setting)
    kafka.forget(setting)
    (setting.folder / "views.py").write_text(_VIEWS.format(partitions))
    write_bulk_rows(setting, 0, 1000)
    made = Fleet(setting, partitions)
    with ExitStack() as stack_:
        stack_.callback(made.end_all)
        made.begin("tail")
        ready = "SELECT COUNT(*) FROM viewtail.view v JOIN viewtail.pipeline p ON p.id = v.pipeline_id "
        made.wait(
            "the topic is filled",
            lambda: made.ask(ready + "WHERE p.store = 'kafka' AND v.state = 'filled'")[0][0] == 1,
        )
        yield made


def idle(setting: Setting, partitions: int, quiet_s: float) -> Idle:
    """One projector, and nothing to do."""
    say(f"one process, {partitions} partitions")
    with fleet(setting, partitions) as made:
        others = made.sessions()
        began = time.monotonic()
        process = made.begin("project")
        start_s = made.wait_shared(1) - began
        made.wait_filled()
        with recorded(process.pid) as timeline:
            before, at = made.statements(), time.time()
            time.sleep(quiet_s)  # what is measured
            statements, until = made.statements() - before, time.time()
        found = Idle(
            partitions=partitions,
            start_s=start_s,
            memory_mib=_resident_mib(process.pid),
            threads=_threads(process.pid),
            sessions=made.sessions() - others,
            connections=_connections(process.pid, setting.kafka.port),
            statements=statements / (until - at),
            processor=timeline.between(at, until) / (until - at),
        )
        made.end(process)
    return found


def shared(setting: Setting, sizes: Sizes) -> list[Shared]:
    """Processes that join one after the other; with each number of them the same number of rows."""
    found, first = [], 1_000_000
    with fleet(setting, sizes.shared) as made:
        others, projectors = made.sessions(), list[subprocess.Popen[bytes]]()
        for count in sizes.processes:
            say(f"{count} processes, {sizes.shared} partitions")
            joined_s = None
            while len(projectors) < count:
                began = time.monotonic()
                projectors.append(made.begin("project"))
                joined_s = made.wait_shared(len(projectors)) - began
            made.wait_filled()
            memory_mib = statistics.mean(_resident_mib(process.pid) for process in projectors)
            sessions = made.sessions() - others
            drained = _drain(made, projectors, first, sizes.rows)
            first += sizes.rows
            killed_s = _kill_one(made, projectors) if count > 1 else None
            found.append(
                Shared(
                    processes=count,
                    memory_mib=memory_mib,
                    sessions=sessions,
                    joined_s=joined_s if count > 1 else None,
                    killed_s=killed_s,
                    rows_per_s=drained[0],
                    processor_us=drained[1],
                    statements_per_row=drained[2],
                )
            )
    return found


def _drain(made: Fleet, projectors: Sequence[subprocess.Popen[bytes]], first: int, rows: int) -> tuple[float, ...]:
    """Rows a second through the topic, processor microseconds of all projectors a row, their statements a row."""
    with ExitStack() as stack_:
        timelines = [stack_.enter_context(recorded(process.pid)) for process in projectors]
        before, began = made.statements(), time.time()
        write_bulk_rows(made.setting, first, rows)
        last = f"SELECT COUNT(*) FROM viewtail.index_name WHERE id >= {first}"
        made.wait("the rows arrive", lambda: made.ask(last)[0][0] == rows)
        ended = time.time()
        asked = made.statements() - before
        time.sleep(0.3)  # until the samples of processor time reach this far
    used_s = sum(timeline.between(began, ended) for timeline in timelines)
    return rows / (ended - began), used_s / rows * 1e6, asked / rows


def _kill_one(made: Fleet, projectors: list[subprocess.Popen[bytes]]) -> float:
    """Seconds from SIGKILL to a whole process until the others run its partitions; then it is begun again."""
    victim = projectors.pop()
    began = time.monotonic()
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait(10)
    made.running.remove(victim)
    seconds = made.wait_shared(len(projectors)) - began
    projectors.append(made.begin("project"))
    made.wait_shared(len(projectors))
    return seconds


def _is_alive(owner: str) -> bool:
    """HOST:PID, and it is this host."""
    return Path("/proc", owner.rpartition(":")[2]).exists()


# -- what /proc says --------------------------------------------------------------------------------------------


def _resident_mib(group: int) -> float:
    """Proportional, so that what processes share counts once."""
    return sum(_field(pid, "smaps_rollup", r"^Pss:\s+(\d+) kB") for pid in members(group)) / 1024


def _threads(group: int) -> int:
    return sum(_field(pid, "status", r"^Threads:\s+(\d+)") for pid in members(group))


def _connections(group: int, port: int) -> int:
    """TCP connections of the group to a port of this machine."""
    sockets = set[str]()
    for pid in members(group):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(str(link.readlink()))
            except OSError:
                continue  # closed meanwhile
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:] + Path("/proc/net/tcp6").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(one[2].endswith(f":{port:04X}") and f"socket:[{one[9]}]" in sockets for one in fields)


def _field(pid: int, file: str, pattern: str) -> int:
    found = re.search(pattern, Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--small", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--out", type=writable, help="write the page here too")
    arguments = parser.parse_args()
    sizes = SMALL if arguments.small else Sizes()
    with tempfile.TemporaryDirectory(prefix="viewtail-scale-") as folder:
        setting = Setting(servers={}, folder=Path(folder) / "app")
        setting.folder.mkdir()
        try:
            setting.servers["mysql"] = stack.mysql.start(Path(folder) / "mysql", options=["--max-connections=4000"])
            setting.servers["kafka"] = start_broker(Path(folder) / "kafka")
            idles = [idle(setting, count, sizes.quiet_s) for count in sizes.partitions]
            text = page(setting.machine(), idles, shared(setting, sizes), sizes.shared)
        except (RuntimeError, StackError) as error:
            say(f"failed: {error}")
            return 1
        finally:
            for server in setting.servers.values():
                server.stop()
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
