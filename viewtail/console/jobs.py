"""Commands of viewtail that operators began from the console: each is a process of its own, as from a shell.

So the console knows no second way to do anything, a command that hangs or dies is its own affair, and the record
(`viewtail replays`) names the operator who signed in. What a job printed is kept while the console lives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from viewtail import own_packages
from viewtail.changes.errors import MisuseError
from viewtail.declarations import SHARD_VARIABLE
from viewtail.signals import EXIT_STOPPED

MOST_RUNNING = 4
MOST_QUESTIONS = 2  # under way at once, each a process
MOST_KEPT = 50
MOST_LINES = 2000  # of one job that are kept
MOST_LINE = 4000  # characters
STOP_WITHIN_S = 5.0


@dataclass(eq=False)
class Job:
    """One command, under way or over."""

    id: int
    words: Sequence[str]  # without `viewtail`
    operator: str
    shard: str | None
    began_at: float  # seconds of the epoch
    process: subprocess.Popen[bytes]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_LINES))
    ended_at: float | None = None
    code: int | None = None
    is_stopped: bool = False  # an operator stopped it

    @property
    def is_running(self) -> bool:
        return self.code is None

    @property
    def outcome(self) -> str:
        """How it ended, in words."""
        if self.code is None:
            return "running"
        if self.code == 0:
            return "done"
        was_stopped = self.is_stopped or self.code in (EXIT_STOPPED, -signal.SIGINT, -signal.SIGTERM)
        return "stopped" if was_stopped else f"ended with code {self.code}"


class Commands:
    """Starts commands of viewtail with the settings of the console.

    Args:
        config: the settings file, as given on the command line.
    """

    def __init__(self, config: Path | None) -> None:
        self._config = config
        self._jobs: OrderedDict[int, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(MOST_QUESTIONS)
        self._asked: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False
        self._last = 0

    def begin(self, words: Sequence[str], *, operator: str, shard: str | None) -> Job:
        """Start a command. Raises MisuseError while too many run."""
        with self._lock:
            if sum(job.is_running for job in self._jobs.values()) >= MOST_RUNNING:
                raise MisuseError(f"{MOST_RUNNING} commands of the console run already. Wait for one, or stop one")
            self._last += 1
            process = self._process(words, operator, shard, subprocess.STDOUT)
            job = Job(self._last, words, operator, shard, time.time(), process)
            self._jobs[job.id] = job
            over = [each.id for each in self._jobs.values() if not each.is_running]
            for old in over[: max(0, len(self._jobs) - MOST_KEPT)]:
                del self._jobs[old]
        threading.Thread(target=_read, args=(job,), name=f"job {job.id}", daemon=True).start()
        return job

    def answer(self, words: Sequence[str], *, shard: str | None, within_s: float) -> tuple[int, str, str]:
        """Run a command that only reads; return its exit code, and what it printed, on stdout and on stderr."""
        if not self._turns.acquire(timeout=within_s):
            return 1, "", "other questions are still being answered. Ask again"
        try:
            with self._lock:
                if self._is_closed:
                    return 1, "", "the console ends"
                process = self._process(words, "", shard, subprocess.PIPE)
                self._asked.add(process)
            try:
                out, error = process.communicate(timeout=within_s)
            except subprocess.TimeoutExpired:
                _kill(process)
                process.communicate()
                return 1, "", f"no answer within {within_s:.0f} s. Run it in a terminal"
            finally:
                self._asked.discard(process)
        finally:
            self._turns.release()
        return process.returncode, out.decode(errors="replace"), error.decode(errors="replace")

    def job(self, number: int) -> Job | None:
        return self._jobs.get(number)

    def newest(self) -> list[Job]:
        with self._lock:
            return list(reversed(self._jobs.values()))

    def stop(self, job: Job) -> None:
        """End it as Ctrl-C does, at a second call whatever it does; the same command goes on where it ended."""
        if job.is_running:
            job.process.send_signal(signal.SIGTERM if job.is_stopped else signal.SIGINT)
            job.is_stopped = True

    def close(self) -> None:
        """Stop all of them, and wait a while; a question, which changes nothing, is given up at once."""
        with self._lock:
            self._is_closed = True
            for process in self._asked:
                _kill(process)
        running = [job for job in self.newest() if job.is_running]
        for job in running:
            self.stop(job)
        deadline = time.monotonic() + STOP_WITHIN_S
        for job in running:
            try:
                job.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _kill(job.process)
                job.process.wait()

    def _process(self, words: Sequence[str], operator: str, shard: str | None, stderr: int) -> subprocess.Popen[bytes]:
        config = [] if self._config is None else ["--config", str(self._config)]
        return subprocess.Popen(
            own_packages.command("viewtail.main", *config, *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(os.environ, operator, shard),
            start_new_session=True,  # Ctrl-C at the console is passed on in `close`
        )


def environment(given: Mapping[str, str], operator: str, shard: str | None) -> dict[str, str]:
    """That of the console; the record takes the operator's name from it, as it does from a shell's."""
    environment = {**given, "COLUMNS": "160", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
    if operator:
        environment["LOGNAME"] = operator
    if shard is not None:
        environment[SHARD_VARIABLE] = shard
    return environment


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With what it began, which would hold its output open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _read(job: Job) -> None:
    """Keep what it prints; a thread of its own waits for its end."""
    assert job.process.stdout is not None
    with job.process.stdout as output:
        for line in output:
            job.lines.append(line.decode(errors="replace").rstrip("\r\n")[:MOST_LINE])
    code = job.process.wait()
    job.ended_at, job.code = time.time(), code
