"""A worker that notes what its cleaner does, and when. What that costs is less than two runs of anything differ by.

`python -m bench.cleaned STORE FD` is `viewtail.process`, and
- with `--steps FILE` it writes when each step of the cleaner began and ended (time.monotonic, which processes share);
- with `--rows ROWS` it ends when so many rows were applied, and prints one line of JSON: `seconds` that they took, and
  `cleaner_s`, which of these are the cleaner's.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from changes.pipelines import PipelineId
from changes.writes import ViewWrites
from operations.cleaner import Cleaner, Share
from projectors.ownership import Ownership
from projectors.proving.recent import RecentKeys
from viewtail import settings
from viewtail.composition import Deployment
from viewtail.interpreter import tune_worker
from viewtail.presence import Presence
from viewtail.signals import on_stop
from viewtail.worker import Worker

Step = tuple[float, float]  # when it began and ended, servers' answers and all


@dataclass(eq=False)
class _Share(Share):
    """Notes its steps."""

    steps: list[Step] = field(default_factory=list)

    def after(self, rows: int) -> None:
        if rows:
            self.steps.append((self._step_at, time.monotonic()))
        super().after(rows)


@dataclass(eq=False, kw_only=True)
class _Cleaner(Cleaner):
    """Notes the steps of all its threads."""

    steps: list[Step] = field(default_factory=list)

    def _pace(self) -> Share:
        return _Share(0, self.own.stop, share=self.share, is_busy=self.is_busy, steps=self.steps)


class _Recent(RecentKeys):
    """Notes what the pipeline's own thread does for the cleaner."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def saw(self, writes: Sequence[ViewWrites]) -> None:
        began = time.perf_counter()
        super().saw(writes)
        self.seconds += time.perf_counter() - began


class NotingWorker(Worker):
    """`steps` are those of its cleaner so far, `recent` is its pipeline's, `own` what it runs."""

    own: Ownership | None = None

    def _cleaner(self, deployment: Deployment, own: Ownership) -> Cleaner:
        plain = super()._cleaner(deployment, own)
        self.steps: list[Step] = []
        self.recent = own.pipeline.recent = _Recent()
        self.own = own
        return _Cleaner(
            deployment=deployment,
            own=own,
            share=plain.share,
            rest_s=plain.rest_s,
            is_busy=plain.is_busy,
            steps=self.steps,
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("report_to", type=int)
    parser.add_argument("--steps", type=Path)
    parser.add_argument("--rows", type=int)
    arguments = parser.parse_args()
    tune_worker()
    config = settings.load(None, os.environ)
    deployment = Deployment(settings=config)
    presence = Presence(arguments.store, deployment.database, deployment.open_store, is_in_group=False)
    worker = NotingWorker(PipelineId.of(arguments.store), config, arguments.report_to, presence, presence.told)
    on_stop(worker.stop.set)
    presence.begin()
    if arguments.rows is None:
        worker.run()
        arguments.steps.write_text(json.dumps(worker.steps))
    else:
        found: dict[str, float] = {}
        watcher = threading.Thread(target=_watch, args=(worker, arguments.rows, found))
        watcher.start()
        worker.run()
        watcher.join()
        print(json.dumps(found), flush=True)
    presence.end()


def _watch(worker: NotingWorker, rows: int, found: dict[str, float]) -> None:
    while worker.own is None or not (at_first := worker.own.pipeline.vitals.row_count):
        time.sleep(0.0005)
    began, noting_s = time.monotonic(), worker.recent.seconds
    while worker.own.pipeline.vitals.row_count < rows:
        time.sleep(0.002)
    ended = time.monotonic()
    noting_s = worker.recent.seconds - noting_s
    cleaning_s = sum(max(0.0, min(upto, ended) - max(at, began)) for at, upto in worker.steps)
    worker.stop.set()
    found.update(seconds=ended - began, cleaner_s=noting_s + cleaning_s, rows=rows - at_first)


if __name__ == "__main__":
    main()
