"""The program of one store's process, as the supervisor runs it: `python -m viewtail.process STORE FD`.

It is the worker of one pipeline; or, where the source is shared out, a member with a worker for each part that it gets.
"""

from __future__ import annotations

import argparse
import faulthandler
import signal
import sys
from pathlib import Path

import viewtail.imported_light  # noqa: F401  before all that it is about
from projectors.catalog import Catalog
from viewtail import logs, shards
from viewtail.changes.errors import ViewtailError
from viewtail.changes.pipelines import PipelineId
from viewtail.interpreter import tune_worker
from viewtail.member import Member
from viewtail.presence import Presence
from viewtail.signals import on_stop
from viewtail.worker import Worker


def main() -> int:
    """Exit 0 after a stop, 2 for what the user must change, 1 for the rest."""
    parser = argparse.ArgumentParser(prog="viewtail.process", description=__doc__)
    parser.add_argument("pipeline", type=PipelineId.parse)
    parser.add_argument("report_to", type=int)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--shard")
    parser.add_argument("--again", action="store_true", help="it has run before, in a process that has ended")
    arguments = parser.parse_args()
    tune_worker()
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 shows on stderr what every thread is doing
    try:
        config = shards.one(arguments.config, arguments.shard)
        logs.configure(config.logs)
        logs.bind(pipeline=arguments.pipeline.name)
        is_shared = config.source_kind.is_shared_out
        catalog = Catalog(servers=config.servers())
        presence = Presence(arguments.pipeline.store, catalog.database, catalog.servers.open_own, is_in_group=is_shared)
        worker: Member | Worker
        if is_shared:
            worker = Member(arguments.pipeline, config, arguments.report_to, presence)
        else:
            worker = Worker(arguments.pipeline, config, arguments.report_to, presence, presence.told)
        worker.has_fitted = arguments.again
        on_stop(worker.stop.set)
        presence.begin()
        try:
            worker.run()
        finally:
            presence.end()
    except ViewtailError as error:
        print(f"viewtail: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
