"""Servers that the demo starts itself, of what stack/ fetches, in a folder of their own: nobody else's data is touched.

stack/ is a package of the checkout, and in the wheel it is viewtail/demo/stack/ (pyproject.toml, force-include): a
package `stack` among those of a user would be found in its place.
"""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import stack
    from stack import places
    from stack import server as one_server
    from stack.server import Server
else:
    _NAME = "viewtail.demo.stack" if find_spec("viewtail.demo.stack") else "stack"
    stack, places, one_server = (import_module(_NAME + inner) for inner in ("", ".places", ".server"))
    Server = stack.Server

KEPT = "demo-kept"
GUARD = Path(one_server.__file__).with_name("guard.py")
STOP_AGAIN_S = 0.3
PREPARE: dict[str, Callable[[Path], Server]] = {
    "mysql": stack.mysql.prepare,
    "redis": stack.redis.prepare,
    "elasticsearch": stack.elasticsearch.prepare,
    "kafka": stack.kafka.prepare,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """One server that answers, or why there is none."""

    name: str
    server: Server | None
    reason: str | None
    seconds: float


def directory(is_kept: bool) -> Path:
    """An empty folder for this demo's data and logs; what an earlier demo left in it is stopped and removed."""
    if is_kept:
        stop_kept()
        chosen = kept()
    else:
        chosen = places.stack_directory() / f"demo-{time.strftime('%H%M%S')}-{time.time_ns() % 10**6:06}"
    chosen.mkdir(parents=True, mode=0o700)
    return chosen


def kept() -> Path:
    """The folder of what `--keep` leaves running."""
    return places.stack_directory() / KEPT


def cache() -> Path:
    """Where servers are kept that were fetched once."""
    return places.cache_directory()


def start_all(wanted: Mapping[str, str], into: Path, stopping: ExitStack | None) -> list[Started]:
    """Start servers, all at once: kinds by names. One that this machine lacks is reported, not raised.

    `stopping` stops them. Without it they outlive the demo. An interruption stops those that are starting at once.
    """
    begun: list[Server] = []
    is_over = threading.Event()
    with ThreadPoolExecutor(len(wanted)) as pool:
        tasks: list[Future[Started]] = []
        try:
            for name, kind in wanted.items():
                tasks.append(pool.submit(_start, name, kind, into, stopping, begun, is_over))
            return [task.result() for task in tasks]
        except BaseException:
            is_over.set()
            while wait(tasks, STOP_AGAIN_S).not_done:
                for server in [*begun]:  # its process may have begun since the last time
                    server.stop()
            raise


def _start(
    name: str, kind: str, into: Path, stopping: ExitStack | None, begun: list[Server], is_over: threading.Event
) -> Started:
    began_at = time.monotonic()
    try:
        server = PREPARE[kind](into / name)
        if is_over.is_set():
            # A signal that comes as this thread starts leaves nobody who waits for it: the folder may be gone already.
            shutil.rmtree(into / name, ignore_errors=True)
            with suppress(OSError):
                into.rmdir()
        else:
            begun.append(server)
            if stopping is not None:
                stopping.callback(server.stop)
            server.start(stays=stopping is None)
    except stack.StackError as error:
        return Started(name=name, server=None, reason=str(error), seconds=time.monotonic() - began_at)
    return Started(name=name, server=server, reason=None, seconds=time.monotonic() - began_at)


def stop_kept() -> bool:
    """Stop what an earlier `--keep` left running, and remove its data; False when there was nothing."""
    if not kept().exists():
        return False
    for name in PREPARE:
        server = one_server.running_in(kept() / name)
        if server is not None:
            server.stop()
    shutil.rmtree(kept())
    return True


def compose_file() -> Path:
    """The docker-compose.yml of the checkout, or of the wheel."""
    return places.CHECKOUT / "docker-compose.yml"


def port_near(port: int) -> int:
    """That port, or a free one where somebody listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return one_server.free_port()
    return port
