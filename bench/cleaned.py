"""A worker that notes what its cleaner does, and when.

`python -m bench.cleaned STORE FD live FILE` is `viewtail.process`. At its end it writes when each step of the cleaner
began and ended (time.perf_counter, which the processes of a machine share). `drain ROWS` ends when so many rows were
applied, and prints one line of JSON: how many `rows` took how many `seconds`, and how many of these the cleaner took.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from projectors.catalog import Catalog
from projectors.pipeline_run import PipelineRun
from projectors.proving.recent import RecentKeys
from projectors.throttle import MOST_BESIDE, CpuShareThrottle
from viewtail import logs, settings
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.writes import ViewWrites
from viewtail.interpreter import tune_worker
from viewtail.operations.cleaner import Cleaner
from viewtail.presence import Presence
from viewtail.signals import on_stop
from viewtail.worker import Worker

LEAST_S = 0.0001  # what takes less is a look at a clock
Step = tuple[float, float]  # when it began and ended, servers' answers and all


@dataclass(eq=False, kw_only=True)
class _Share(CpuShareThrottle):
    """Notes its steps."""

    steps: list[Step] = field(default_factory=list)
    _noted_at: float = field(default_factory=time.perf_counter)
    _worked_s: float = field(default_factory=time.thread_time)

    def begin(self) -> None:
        self._note(is_step=False)
        super().begin()

    def waited(self, seconds: float) -> None:
        self.steps.append((self._noted_at, time.perf_counter() - seconds))
        self._go_on()
        super().waited(seconds)

    def after(self, rows: int) -> None:
        self._note(is_step=rows > 0)
        super().after(rows)
        self._go_on()

    def _go_on(self) -> None:
        self._noted_at, self._worked_s = time.perf_counter(), time.thread_time()

    def _note(self, *, is_step: bool) -> None:
        """What was done until now; of what was waiting, too, only as much as the throttle would count."""
        now, worked_s = time.perf_counter(), time.thread_time() - self._worked_s
        took_s = now - self._noted_at
        if not is_step:
            took_s = min(took_s, MOST_BESIDE * worked_s)
        if took_s > LEAST_S:
            self.steps.append((now - took_s, now))
        self._go_on()


@dataclass(eq=False, kw_only=True)
class _Cleaner(Cleaner):
    """Notes the steps of all its threads."""

    steps: list[Step]

    def _throttle(
        self, is_busy: Callable[[], bool], is_live: Callable[[], bool] = lambda: False, owing_s: float = 0.0
    ) -> CpuShareThrottle:
        plain = super()._throttle(is_busy, is_live, owing_s)
        return _Share(**_given(plain), steps=self.steps)


class _Recent(RecentKeys):
    """Notes what the pipeline's own thread does for the cleaner."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def on_written(self, writes: Sequence[ViewWrites]) -> None:
        began = time.perf_counter()
        super().on_written(writes)
        self.seconds += time.perf_counter() - began


class NotingWorker(Worker):
    """Keeps the steps of its cleaner. Raises RuntimeError when it runs its pipeline again: counts begin anew then."""

    steps: list[Step]
    own: PipelineRun
    recent: _Recent

    def _cleaner(self, catalog: Catalog, own: PipelineRun) -> Cleaner:
        if hasattr(self, "own"):
            raise RuntimeError("the pipeline ended and was taken again, so nothing was measured")
        plain = super()._cleaner(catalog, own)
        self.steps, self.recent = [], _Recent()
        own.recent, own.pipeline.observers, self.own = self.recent, [self.recent, own.cascades], own
        return _Cleaner(**_given(plain), steps=self.steps)


def _given(plain: Any) -> dict[str, Any]:
    """What a dataclass was made with."""
    return {one.name: getattr(plain, one.name) for one in fields(plain) if one.init}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("report_to", type=int)
    parser.add_argument("what", choices=("live", "drain"))
    parser.add_argument("value", help="of live: a file; of drain: how many rows")
    arguments = parser.parse_args()
    tune_worker()
    config = settings.load(None, os.environ)
    logs.configure(config.logs)
    catalog = Catalog(servers=config.servers())
    presence = Presence(arguments.store, catalog.database, catalog.servers.open_own, is_in_group=False)
    worker = NotingWorker(PipelineId.of(arguments.store), config, arguments.report_to, presence, presence.told)
    on_stop(worker.stop.set)
    presence.begin()
    found: dict[str, float] = {}
    if arguments.what == "drain":
        threading.Thread(target=_watch, args=(worker, int(arguments.value), found), daemon=True).start()
    worker.run()
    presence.end()
    if arguments.what == "live":
        Path(arguments.value).write_text(json.dumps(worker.steps))
        return
    if "noting_s" not in found:
        raise RuntimeError("the pipeline noted no key for the cleaner, so its cost was not measured")
    began, ended = found["began"], found["ended"]
    cleaning_s = sum(max(0.0, min(upto, ended) - max(at, began)) for at, upto in worker.steps)
    print(json.dumps({"rows": found["rows"], "seconds": ended - began, "cleaner_s": found["noting_s"] + cleaning_s}))


def _watch(worker: NotingWorker, rows: int, found: dict[str, float]) -> None:
    """Stop it when so many rows were applied; `found` gets when that was, and what is known then."""
    while not hasattr(worker, "own") or not (first := worker.own.pipeline.vitals.row_count):
        time.sleep(0.0005)
    found["began"], noted_s = time.perf_counter(), worker.recent.seconds
    while worker.own.pipeline.vitals.row_count < rows:
        time.sleep(0.002)
    found["ended"] = time.perf_counter()
    if (noting_s := worker.recent.seconds - noted_s) > 0:
        found.update(rows=rows - first, noting_s=noting_s)
    worker.stop.set()


if __name__ == "__main__":
    main()
