"""The real command line in a process of its own, for tests that kill it."""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import pytest

from stack import Server
from tests.support import forked
from tests.support.forked import CLEANING, PATIENCE_S, Forked, clean_environment

__all__ = ["CLEANING", "DIED", "IN_COMMIT", "Run", "addresses", "clean_environment", "death_at", "running", "wait_for"]
DIED = "ended with code -9"  # in the log of a run, once for each worker that was killed
IN_COMMIT = "in commit"  # of a store's own transaction, while the answer is waited for
T = TypeVar("T")


def wait_for(what: str, condition: Callable[[], T], timeout_s: float = PATIENCE_S) -> T:
    """Poll until the condition holds; the exception of the last attempt, or its value, tells what was missing."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while True:
        began = time.monotonic()
        try:
            found = condition()
            if found:
                return found
            last = found
        except Exception as error:  # servers come and go in these tests
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {timeout_s:.0f} s; last: {last!r}")
        # One that starts a process or reads whole views leaves most of the time to what it waits for.
        time.sleep(min(0.5, max(0.05, 3 * (time.monotonic() - began))))


def in_this_process(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this process act as a command of that run: its folder, its settings, and its views.py alone."""
    monkeypatch.chdir(run.folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "views", ModuleType("views"))  # what the test loads goes with it
    del sys.modules["views"]
    for name, value in run.environment().items():
        monkeypatch.setenv(name, value)
    importlib.invalidate_caches()


def death_at(step: str, chance: random.Random, earliest: int = 1, latest: int = 20) -> str:
    """For VIEWTAIL_FAILPOINT: killed at a step, or in a commit, at one of those times that it comes there."""
    often = chance.randint(earliest, latest)
    if step == IN_COMMIT:  # it takes some milliseconds
        return f"before commit:{often}:SIGKILL:{chance.uniform(0, 4):.1f}"
    return f"{step}:{often}"


class Run:
    """A `viewtail run` in a folder with views.py; its log is kept in run.log."""

    def __init__(self, folder: Path, views: str, environment: dict[str, str]) -> None:
        self.folder = folder
        (folder / "views.py").write_text(views)
        self._environment = environment
        self.process: subprocess.Popen[bytes] | Forked | forked.Background | None = None

    def start(self, *arguments: str, **environment: str) -> None:
        with (self.folder / "run.log").open("ab") as log:
            at = {**self.environment(), **environment}
            self.process = forked.begun(("run", *arguments), self.folder, at, log.fileno(), log.fileno())

    def command(self, *arguments: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Another viewtail command, in the same folder with the same settings."""
        return forked.command(arguments, self.folder, self.environment(), timeout_s)

    def environment(self) -> dict[str, str]:
        """Of all that is started here."""
        return {**clean_environment(), **self._environment}

    def background(self, *arguments: str, **environment: str) -> forked.Background:
        """A command that goes on beside."""
        return forked.Background(arguments, self.folder, {**self.environment(), **environment})

    def is_well(self) -> bool:
        """Whether `viewtail status` says so; fails with what it says instead."""
        done = self.command("status")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return True

    def is_filled(self) -> bool:
        """Whether all is well, and every view of every pipeline is filled: one that is being filled is well, too."""
        self.is_well()
        pipelines = json.loads(self.command("status", "--json").stdout)["pipelines"]
        return bool(pipelines) and {view["state"] for one in pipelines for view in one["views"]} == {"filled"}

    def workers(self) -> dict[str, int]:
        """Process ids of the pipelines, by store."""
        assert self.process is not None
        found: dict[str, int] = {}
        for name in os.listdir("/proc"):  # tests wait for what this finds: it must be quick
            if not name.isdigit():
                continue
            try:
                if int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1]) != self.process.pid:
                    continue
                words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue
            if b"viewtail.process" in words:
                found[words[words.index(b"viewtail.process") + 1].decode()] = int(name)
        return found

    def kill_worker(self, store: str) -> bool:
        pid = self.workers().get(store)
        if pid is None:
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def pause_worker(self, store: str, for_s: float) -> None:
        """Stop it, and let it go on."""
        pid = self.workers().get(store)
        if pid is None:
            return
        try:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(for_s)
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        code = self.process.wait(timeout_s)
        self.process = None
        return code

    def kill(self) -> None:
        """End whatever is left, workers first: they would outlive a killed supervisor for a second."""
        if self.process is None:
            return
        for pid in self.workers().values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.kill()
        self.process.wait()
        self.process = None

    @property
    def log(self) -> str:
        return (self.folder / "run.log").read_text(errors="replace")


def addresses(mysql: Server, redis: Server | None = None, elasticsearch: Server | None = None) -> dict[str, str]:
    """The settings that point at these servers; no metrics."""
    found = {"VIEWTAIL_SOURCE__URL": mysql.url, "VIEWTAIL_METRICS__PORT": "0"}
    if redis is not None:
        found["VIEWTAIL_REDIS__URL"] = redis.url
    if elasticsearch is not None:
        found["VIEWTAIL_ELASTICSEARCH__URL"] = elasticsearch.url
    return found


@contextmanager
def running(folder: Path, views: str, environment: dict[str, str]) -> Iterator[Run]:
    """A started run, killed at the end if it is still there; on failure its log is shown."""
    run = Run(folder, views, environment)
    run.start()
    try:
        yield run
    except BaseException:
        print(run.log[-6000:])
        raise
    finally:
        run.kill()
