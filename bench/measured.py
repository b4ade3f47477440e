"""A pipeline of the real program in a process of its own, timed from inside.

`python -m bench.measured drain STORE ROWS FILE POSITION` starts at a binlog place and stops when ROWS rows are applied;
`poll STORE ROWS TABLE` does so from the first row of a polled table; `fill STORE` fills the store's view. It is put
together by viewtail/composition.py as the worker does it; Python's start and the imports are not counted. Prints one
line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from pathlib import Path

from ingest.binlog.coordinates import BinlogPosition
from ingest.poll.position import PollPosition
from offsets.lease import Lease
from projectors.fills.opening import open_filling
from projectors.pipeline_run import PipelineRun, open_run
from viewtail import declarations, settings
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.composition import deploy
from viewtail.interpreter import tune_worker


def main() -> None:
    what, store, *rest = sys.argv[1:]
    tune_worker()
    config = settings.load(None, os.environ)
    catalog = deploy(config, declarations.load(config.views))
    catalog.create_tables()
    lease = Lease(catalog.servers.open_own, catalog.database, store)
    while not lease.acquire(1):
        pass
    stop = threading.Event()
    own = open_run(catalog, PipelineId.of(store), lease, stop)
    if what == "drain":
        seconds = _drain(own, int(rest[0]), BinlogPosition(epoch=1, file=rest[1], end=int(rest[2]), start=int(rest[2])))
    elif what == "poll":
        seconds = _drain(own, int(rest[0]), PollPosition(1, 0, {rest[1]: (0, ())}))
    else:
        seconds = _fill(own)
    own.close()
    lease.release()
    print(json.dumps({"seconds": seconds, "memory_mib": peak_memory_mib()}), flush=True)


def _drain(own: PipelineRun, rows: int, start: Position) -> float:
    began = ended = 0.0

    def watch() -> None:
        nonlocal began, ended
        while own.pipeline.vitals.state != "running":
            time.sleep(0.0005)
        began = time.perf_counter()
        while own.pipeline.vitals.row_count < rows:
            time.sleep(0.002)
        ended = time.perf_counter()
        own.stop.set()
        own.source.interrupt()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    own.pipeline.run(start)
    watcher.join()
    own.pipeline.offsets.close()
    return ended - began


def _fill(own: PipelineRun) -> float:
    pipeline = threading.Thread(target=own.pipeline.run, args=(own.offset,))
    pipeline.start()
    while own.pipeline.vitals.state != "running":
        time.sleep(0.01)
    session = own.catalog.session()
    (view,) = own.life.on(session).to_backfill()
    began = time.perf_counter()
    open_filling(own, view, session).run()
    seconds = time.perf_counter() - began
    own.stop.set()
    own.source.interrupt()
    pipeline.join()
    return seconds


def peak_memory_mib(pid: str = "self") -> float:
    """The largest resident memory a process ever had, of /proc."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def processor_s(pid: int) -> float:
    """Processor time of a process so far, of /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
