"""The demo's servers, in a folder of their own below .stack/, so that nobody else's data is touched."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import stack
from stack.places import stack_directory
from stack.server import Server, running_in

KEPT = "demo-kept"
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


def start_all(names: Sequence[str], into: Path, is_kept: bool) -> list[Started]:
    """These servers, all at once. One that this machine lacks is told, not raised."""
    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(lambda name: _start(name, into, is_kept), names))


def _start(name: str, into: Path, is_kept: bool) -> Started:
    began_at = time.monotonic()
    try:
        server = PREPARE[name](into / name)
        server.start(stays=is_kept)
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
