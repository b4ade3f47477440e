"""`viewtail run`: a process per pipeline, watched; what they report, shown and served as metrics.

A pipeline that dies is started again with back-off while the others go on. SIGTERM and Ctrl-C are passed on: each
pipeline finishes its batch, saves its offset and ends; what does not end in time is killed, which costs nothing but a
few changes applied again.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import structlog

from viewtail import own_packages
from viewtail.changes.pipelines import PipelineState
from viewtail.changes.retrying import PROCESS_ENDED
from viewtail.shards import Target

_log = structlog.get_logger("viewtail.supervisor")

STOP_WITHIN_S = 9.0
READ_WITHIN_S = 1.0  # what a process that has ended said before


class _Child:
    """One pipeline's process; `pipeline` is its name among those of all deployments."""

    def __init__(self, target: Target, pipeline: str, config: Path | None) -> None:
        self.pipeline = target.names(pipeline)
        self._target, self._argument = target, pipeline
        self._config = config
        self.process: subprocess.Popen[bytes] | None = None
        self._reading: threading.Thread | None = None
        # By pipeline: where the source is shared out, one of each part that this process has.
        self.reports: dict[str, Mapping[str, Any]] = {
            self.pipeline: {"pipeline": self.pipeline, "state": PipelineState.STARTING}
        }
        self.has_run = False  # a pipeline of it, since the supervisor began
        self.failures = 0
        self.death_count = 0
        self.start_at = 0.0  # monotonic; not started before

    def start(self) -> None:
        read_end, write_end = os.pipe()
        command = own_packages.command("viewtail.process", self._argument, str(write_end))
        if self._config is not None:
            command += ["--config", str(self._config)]
        if self._target.shard is not None:
            command += ["--shard", self._target.shard]
        if self.has_run:
            command.append("--again")
        self.process = subprocess.Popen(command, pass_fds=[write_end], stdin=subprocess.DEVNULL)
        os.close(write_end)
        self._reading = threading.Thread(target=self._read, args=(read_end,), daemon=True)
        self._reading.start()

    def ended(self, error: str) -> None:
        """Note that its process ended: its last report does not hold any more."""
        if self._reading is not None:
            self._reading.join(READ_WITHIN_S)
        self.process = None
        last = {**self.reports[self.pipeline], "views": [], "backfills": []}
        last.pop("heard_at", None)  # nobody is expected to say anything
        self.reports = {self.pipeline: {**last, "state": PROCESS_ENDED.state, "error": error}}

    def _read(self, read_end: int) -> None:
        with open(read_end, "rb") as lines:
            for line in lines:
                try:
                    report = orjson.loads(line)
                except orjson.JSONDecodeError:
                    continue  # cut short by a kill
                report["pipeline"] = self._target.names(report["pipeline"])
                # Another thread goes through them.
                others = {name: other for name, other in self.reports.items() if name != report["pipeline"]}
                is_ours = report["state"] != PipelineState.GIVEN_UP
                self.has_run |= "views" in report
                report["heard_at"] = time.monotonic()
                self.reports = {**self.reports, report["pipeline"]: report} if is_ours else others
                self.failures = 0


class Supervisor:
    """Runs pipelines until told to stop.

    Args:
        config: the settings file to hand on, as given on the command line.
        show: called about twice a second with the newest report of each pipeline.
    """

    def __init__(self, config: Path | None, show: Callable[[Sequence[Mapping[str, Any]]], None]) -> None:
        self._config = config
        self._children: Sequence[_Child] = ()
        self._show = show
        self._stop = threading.Event()
        self._turned_at: float | None = None  # monotonic

    def reports(self) -> dict[str, Mapping[str, Any]]:
        """The newest of each pipeline, with `heard_at`, a monotonic time, once its process has said something.

        Of a process also how often it died (`deaths`).
        """
        found: dict[str, Mapping[str, Any]] = {}
        for child in self._children:
            reports = child.reports
            found |= {**reports, child.pipeline: {**reports[child.pipeline], "deaths": child.death_count}}
        return found

    def silent_s(self) -> float | None:
        """Seconds since the loop last turned; None before it began, while servers are waited for."""
        return None if self._turned_at is None else time.monotonic() - self._turned_at

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        """Begin to end; from any thread."""
        self._stop.set()

    def run(self, pipelines: Sequence[tuple[Target, str]]) -> int:
        """Run the pipelines of these names, each of its deployment.

        Returns the exit code: 0 after a stop, 2 when a pipeline found something that the user must change.
        """
        code = 0
        self._children = [_Child(target, pipeline, self._config) for target, pipeline in pipelines]
        try:
            while not self._stop.is_set():
                self._turned_at = time.monotonic()
                for child in self._children:
                    code = max(code, self._look_after(child))
                self._show(list(self.reports().values()))
                self._stop.wait(0.5)
        finally:
            self._end()
        return code

    def _look_after(self, child: _Child) -> int:
        """Start it, or start it again; a misuse ends everything, since no restart can mend it."""
        if child.process is None:
            if time.monotonic() >= child.start_at:
                child.start()
            return 0
        code = child.process.poll()
        if code is None or self._stop.is_set():
            return 0
        child.ended(f"its process ended with code {code}")
        if code == 2:
            self._stop.set()
            return 2
        child.failures += 1
        child.death_count += 1
        pause_s = PROCESS_ENDED.pause_s(child.failures - 1)
        child.start_at = time.monotonic() + pause_s
        _log.error("pipeline process ended, starting it again", pipeline=child.pipeline, code=code, pause_s=pause_s)
        return 0

    def _end(self) -> None:
        running = [(child.pipeline, child.process) for child in self._children if child.process is not None]
        for _, process in running:
            process.terminate()
        deadline = time.monotonic() + STOP_WITHIN_S
        for pipeline, process in running:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                _log.warning("pipeline did not end in time, killed; it resumes at its offset", pipeline=pipeline)
                process.kill()
                process.wait()
        self._show(list(self.reports().values()))
