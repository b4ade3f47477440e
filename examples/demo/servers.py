"""The demo's servers, in a folder of their own below .stack/, so that nobody else's data is touched."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import stack
from stack.places import stack_directory
from stack.server import Server, running_in

KEPT = "demo-kept"
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
        chosen = stack_directory() / KEPT
    else:
        chosen = stack_directory() / f"demo-{time.strftime('%H%M%S')}-{time.time_ns() % 10**6:06}"
    chosen.mkdir(parents=True)
    return chosen


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
        if not is_over.is_set():
            begun.append(server)
            if stopping is not None:
                stopping.callback(server.stop)
            server.start(stays=stopping is None)
    except stack.StackError as error:
        return Started(name=name, server=None, reason=str(error), seconds=time.monotonic() - began_at)
    return Started(name=name, server=server, reason=None, seconds=time.monotonic() - began_at)


def stop_kept() -> bool:
    """Stop what an earlier KEEP=1 left running, and remove its data; False when there was nothing."""
    kept = stack_directory() / KEPT
    if not kept.exists():
        return False
    for name in PREPARE:
        server = running_in(kept / name)
        if server is not None:
            server.stop()
    shutil.rmtree(kept)
    return True
