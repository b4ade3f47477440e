"""`viewtail replay`: canonical rows are projected again, in place, while readers go on reading.

This is its simplest form: whole views. It marks them in viewtail's own tables; the process that runs their pipeline
sees the mark and fills them under a new watermark, a halted view too. With `--new-history` the epoch rises first, for
a source that no longer continues what the offsets say.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from changes.errors import MisuseError, ViewtailError
from offsets.lease import Lease
from offsets.mysql import OwnSession
from operations.reading import choose
from operations.status import PipelineStatus, read
from projectors.view_states import Event, State, ViewStates
from projectors.views import View
from viewtail import declarations, settings
from viewtail.composition import Deployment, begin_new_history, deploy

LEASE_WAIT_S = 3  # a halted pipeline holds its lease for a moment at each attempt, a running one all the time


def replay(config: Path | None, names: Sequence[str], *, all_views: bool) -> int:
    """Have views filled again from their canonical rows; returns the exit code."""
    if bool(names) == all_views:
        raise MisuseError("name the views to replay (`viewtail replay VIEW ...`), or all of them with --all")
    loaded, views = _declared(config)
    chosen = views if all_views else [choose(views, name) for name in names]
    chosen = list(
        {view.id: view for view in chosen}.values()
    )  # by id: a mapping in a declaration has no hash
    deployment = Deployment(settings=loaded, views=[])
    with closing(deployment.open_store()) as connection:
        pipelines = {one.name: one for one in read(connection, deployment.database)}
    known = {view.name for one in pipelines.values() for view in one.views}
    halted = {view.name for one in pipelines.values() for view in one.views if view.state == State.HALTED}
    misfits = {view.id: deployment.misfit(view) for view in chosen if view.id in halted}
    refused = {name: why for name, why in misfits.items() if why is not None}
    chosen = [view for view in chosen if view.id not in refused]
    session = OwnSession(deployment.open_store)
    try:
        for store in dict.fromkeys(view.store for view in chosen):
            marked = [view.id for view in chosen if view.store == store and view.id in known]
            ViewStates(session, deployment.database, store).move(Event.REPLAYED, marked)
    finally:
        session.close()
    for view in chosen:
        print(f"{view.id}: {_what_next(pipelines.get(view.store), is_known=view.id in known)}")
    for name, why in refused.items():
        print(f"{name}: not marked, it stays halted: {why}. Mend that first", file=sys.stderr)
    return 1 if refused else 0


def replay_new_history(config: Path | None) -> int:
    """Take the source as it is now for a new history, and have every view filled again; returns the exit code."""
    loaded, views = _declared(config)
    loaded.check_stores(views)
    deployment = deploy(loaded, views)
    deployment.create_tables()
    with _all_leases(deployment):
        epoch = begin_new_history(deployment)
    print(f"The source as it is now begins epoch {epoch}. Every view is filled again, in place, under it:")
    for view in views:
        print(f"  {view.id}")
    print(
        "A running `viewtail run` begins within a few seconds; otherwise start one. Watch it: viewtail status"
    )
    return 0


def _declared(config: Path | None) -> tuple[settings.Settings, list[View]]:
    loaded = settings.load(config, os.environ)
    return loaded, list(declarations.load(loaded.views))


def _what_next(pipeline: PipelineStatus | None, *, is_known: bool) -> str:
    if not is_known:
        return "has not been filled yet, so there is nothing to mark. `viewtail run` fills it first of all"
    if pipeline is None or pipeline.state == "down":
        return "marked. Nothing runs its pipeline now: it is filled when `viewtail run` starts"
    return "marked. The running viewtail begins to fill it within a few seconds; watch it: viewtail status"


@contextmanager
def _all_leases(deployment: Deployment) -> Iterator[None]:
    """Own every pipeline for a moment, so that none goes on in the old epoch. Refused while one is running."""
    with closing(deployment.open_store()) as connection:
        ran_before = [one.name for one in read(connection, deployment.database)]
    held: list[Lease] = []
    try:
        for name in sorted({*ran_before, *deployment.stores()}):
            lease = Lease(deployment.open_store, deployment.database, name)
            held.append(lease)
            if not lease.acquire(LEASE_WAIT_S):
                raise ViewtailError(
                    f"pipeline {name} is running, so it follows the history that the offsets are of. Nothing was "
                    "changed. To begin a new one all the same, stop `viewtail run` first, then repeat this command"
                )
        yield
    finally:
        for lease in held:
            lease.release()
