"""One projector process, timed from inside: pipelines of some partitions of a topic, from its first messages on.

`python -m bench.projecting STORE ROWS PARTITION,...` takes the pipelines as viewtail/worker.py does, prints a line,
waits for one on its standard input, and stops when ROWS messages are applied. `--fake` writes to a store that takes a
millisecond a batch instead. Prints one line of JSON with times of time.perf_counter, which processes share.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from bench.measured import peak_memory_mib
from ingest.kafka.position import own as of_topic
from offsets.lease import Lease
from projectors.catalog import Catalog
from projectors.pipeline_run import PipelineRun, open_run
from projectors.stores import Meanwhile, OnMissing, Sink, ignored, nothing
from viewtail import declarations, settings
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.changes.writes import Parked, ViewWrites
from viewtail.composition import deploy
from viewtail.interpreter import tune_worker

FAKE_BATCH_S = 0.001


class FakeSink(Sink):
    """A store that is not the bottleneck: it takes a millisecond for whatever it gets, and keeps nothing."""

    def prepare(self, on_missing: OnMissing = ignored) -> dict[str, str]:
        return {}

    def write(
        self, writes: Sequence[ViewWrites], upto: Position | None, meanwhile: Meanwhile = nothing
    ) -> list[Parked]:
        time.sleep(FAKE_BATCH_S)
        return []

    def close(self) -> None:
        """There is nothing to close."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("rows", type=int)
    parser.add_argument("partitions")
    parser.add_argument("--fake", action="store_true")
    arguments = parser.parse_args()
    tune_worker()
    config = settings.load(None, os.environ)
    views = [view for view in declarations.load(config.views) if view.store == arguments.store]
    catalog = deploy(config, views)
    catalog.create_tables()
    numbers = set(map(int, arguments.partitions.split(",")))
    identities = [one for one in catalog.pipelines() if one.partition in numbers]
    taken = [_taken(catalog, one) for one in identities]
    for owned, _ in taken:
        if arguments.fake:
            owned.pipeline.sink = FakeSink()
    print("ready", flush=True)
    input()
    began, ended = _run([owned for owned, _ in taken], arguments.rows)
    for owned, lease in taken:
        owned.close()
        lease.release()
    print(json.dumps({"began": began, "ended": ended, "memory_mib": peak_memory_mib()}), flush=True)


def _taken(catalog: Catalog, identity: PipelineId) -> tuple[PipelineRun, Lease]:
    lease = Lease(catalog.servers.open_own, catalog.database, identity.name)
    while not lease.acquire(1):
        pass
    return open_run(catalog, identity, lease, threading.Event()), lease


def _run(owned: Sequence[PipelineRun], rows: int) -> tuple[float, float]:
    """Every pipeline in a thread, as a member of the group runs it; when they began and when all was applied."""
    threads = [threading.Thread(target=_from_the_first, args=(one,)) for one in owned]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    while sum(one.pipeline.vitals.row_count for one in owned) < rows:
        if not all(thread.is_alive() for thread in threads):
            raise RuntimeError("a pipeline ended before all was applied")
        time.sleep(0.002)
    ended = time.perf_counter()
    for one in owned:
        one.stop.set()
        one.source.interrupt()
    for one, thread in zip(owned, threads, strict=True):
        thread.join()
        one.pipeline.offsets.close()
    return began, ended


def _from_the_first(owned: PipelineRun) -> None:
    begin = replace(of_topic(owned.offset), offset=0, version=0)
    sink = owned.pipeline.sink  # a store without its witness would be filled from the table
    sink.prepare()
    sink.write([], begin)
    owned.pipeline.run(begin)


if __name__ == "__main__":
    main()
