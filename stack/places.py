"""Where stack/ keeps things: one cache of downloads and unpacked servers, and one folder of running ones.

It promises that an installation is either complete or absent, also when two processes ask at once or one is
killed half-way. It does not know what a server is.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent  # where it is installed instead, the package that has stack/


def stack_directory() -> Path:
    """`.stack/` of this checkout, which git ignores; of an installed viewtail the user's cache. Made if need be."""
    directory = CHECKOUT / ".stack" if (CHECKOUT / "pyproject.toml").exists() else _users_cache() / "viewtail"
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _users_cache() -> Path:
    # XDG Base Directory Specification: a relative path is as if none were given.
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return chosen if chosen.is_absolute() else Path.home() / ".cache"


def cache_directory() -> Path:
    """Where archives and unpacked servers are kept: $VIEWTAIL_STACK_CACHE if set, else `stack_directory`."""
    chosen = os.environ.get("VIEWTAIL_STACK_CACHE")
    if not chosen:
        return stack_directory()
    directory = Path(chosen).expanduser().absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def run_directory() -> Path:
    """Where `python3 -m stack up` keeps data, logs and pid files, one folder a server."""
    directory = stack_directory() / "run"
    directory.mkdir(exist_ok=True)
    return directory


def install_once(name: str, build: Callable[[Path], None]) -> Path:
    """Return the cache's folder `name`, filled by `build` if it is not there yet.

    `build` gets an empty folder beside it, which takes the name only when `build` returns.
    """
    target = cache_directory() / name
    if target.is_dir():
        return target
    with locked(target.with_name(f".{name}.lock")):
        if not target.is_dir():
            _build_beside(target, build)
    return target


def progress(message: str) -> None:
    """Tell whoever waits what is being done."""
    print(message, file=sys.stderr, flush=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this file, against other processes too."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_beside(target: Path, build: Callable[[Path], None]) -> None:
    for leftover in target.parent.glob(f".{target.name}.unfinished.*"):  # of one who was killed; we hold the lock
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{target.name}.unfinished.", dir=target.parent))
    try:
        build(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(target)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
