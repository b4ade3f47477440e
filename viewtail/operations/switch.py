"""The way in is switched: tables whose binlog was tailed are polled from now on, or the other way round.

No view is backfilled. What both ways give is given twice, and versions, which are the rows' own, make that harmless. So
the new offset must only not be too late:

- Pipelines that run are brought to a moment. Polling begins behind the ids that nobody could bring any more before it;
  the binlog is read from before it, from where it was when transactions were open that have ended since.
- Where the binlog can be read no more, polling begins at the first rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, cast

from ingest import History, Settling
from offsets import epochs
from offsets.copies import Copies
from offsets.keepers import known_views
from offsets.lease import Lease, is_held
from offsets.mysql import transaction
from offsets.pipelines import replace_position
from offsets.views import GETS_NOTHING, State
from projectors.catalog import Catalog
from projectors.projection import followed_tables
from projectors.read_and_written import where_live
from projectors.stores.registry import store_named
from projectors.views import View
from viewtail.changes.errors import MisuseError, ViewtailError
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.operations import replay
from viewtail.operations.status import positions_now
from viewtail.operations.waiting import passed_now

FIRST_STEP_S = 5.0  # of a wait, then it is looked whether pipelines still run; the next step is twice as long
_STILL_RUNS = (
    "pipeline {name} still runs after {s:.0f} s. Nothing was changed: repeat the command, and stop `viewtail run` when "
    "it says so"
)
_FINISHED = (
    "the source is read in this way already, and pipeline {name} runs. There is nothing to do, unless `viewtail "
    "status` names this command: then stop `viewtail run`, and repeat it"
)
FINISH_WITHIN_S = 3.0  # a halted pipeline holds its lease for a moment at each attempt


def check_views(views: Iterable[View]) -> None:
    """Raises MisuseError for views that need the binlog: it names them."""
    wrong = [view.id for view in views if view.entity.order is None]
    if wrong:
        raise MisuseError(
            f"{', '.join(wrong)}: the entity is not append_only with order=, so the binlog alone says what changes. "
            "Take those views out of views.py, or give them a deployment of their own. Nothing was changed"
        )


def to_polling(catalog: Catalog, polled: History, within_s: float, say: Callable[[str], None]) -> bool:
    """Have the pipelines polled from now on; returns whether all rows are read again."""
    followed = followed_tables([view for name in catalog.pipelines() for view in catalog.views_of(name.store)])
    settling = cast(Settling, polled)
    with _Switch(catalog, polled, within_s) as switch:
        if not switch.is_run:
            say(
                "No pipeline runs: polling begins at the first row of each table. Views go on showing what they have. "
                "(Switched while `viewtail run` runs, no row is read again.)"
            )
            switch.write(settling.from_first_rows(followed.values()))
            return True
        say("Waiting until the transactions that are open now have ended.")
        begin = settling.settled(followed.values(), within_s)
        switch.bring_up(say)
        switch.write(begin)
        return False


def to_binlog(catalog: Catalog, tailed: History, polled: History, within_s: float, say: Callable[[str], None]) -> None:
    """Have the binlog tailed from now on."""
    followed = followed_tables([view for name in catalog.pipelines() for view in catalog.views_of(name.store)])
    with _Switch(catalog, tailed, within_s) as switch:
        if not switch.is_run:
            raise MisuseError(
                "no pipeline runs, and polling does not know where the binlog was when it stopped. Start `viewtail "
                "run` as before, repeat this command while it runs, and stop it when this says so"
            )
        begin = tailed.reader({}, {}).now()
        say("Waiting until the transactions that are open now have ended.")
        # A transaction is in the binlog a moment before its rows can be seen: now they can.
        cast(Settling, polled).settled(followed.values(), within_s)
        switch.bring_up(say)
        switch.write(begin)


class _Switch:
    """Switches all pipelines of a deployment.

    Args:
        target: the history that is read from then on.
    """

    def __init__(self, catalog: Catalog, target: History, within_s: float) -> None:
        self._catalog, self._target, self._within_s = catalog, target, within_s
        self._pipelines = catalog.pipelines()
        self._session = catalog.session()
        self.is_run = False

    def __enter__(self) -> _Switch:
        database = self._catalog.database
        known = known_views(self._session, database)
        unfinished = sorted(
            name
            for (pipeline, name), record in known.items()
            if record.state not in {State.FILLED, *GETS_NOTHING} and pipeline in {each.name for each in self._pipelines}
        )
        if unfinished:
            raise MisuseError(
                f"{', '.join(unfinished)}: not filled yet. Repeat the command when `viewtail status` says so"
            )
        missing = {pipeline.name for pipeline in self._pipelines} - positions_now(self._catalog).keys()
        if missing:
            raise MisuseError(
                f"{', '.join(sorted(missing))} never ran: there is nothing to switch. Set the mode, and run"
            )
        with transaction(self._session, "looking whether pipelines run") as cursor:
            self.is_run = self._is_any_held(cursor)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def bring_up(self, say: Callable[[str], None]) -> None:
        """Let the pipelines come to this moment, and then end."""
        deadline, step_s = time.monotonic() + self._within_s, FIRST_STEP_S
        while True:
            self._check_is_run()
            left_s = deadline - time.monotonic()
            try:
                names = [pipeline.name for pipeline in self._pipelines]
                passed_now(self._catalog, names, max(0.1, min(step_s, left_s)))
                break
            except ViewtailError:
                if left_s < step_s:
                    raise
                step_s *= 2
        say("Every view has what was committed before. Stop `viewtail run` now: this waits for it.")

    def _check_is_run(self) -> None:
        with transaction(self._session, "looking whether pipelines run") as cursor:
            if not self._is_any_held(cursor):
                raise MisuseError(
                    "`viewtail run` ended before every view had what was committed: start it as before, repeat this "
                    "command, and stop it when this says so. Nothing was changed"
                )

    def _is_any_held(self, cursor: Any) -> bool:
        return any(is_held(cursor, self._catalog.database, pipeline.name) for pipeline in self._pipelines)

    def write(self, begin: Position) -> None:
        """Have every pipeline go on behind a place of the target, under a new epoch, once nobody runs it."""
        catalog = self._catalog
        with self.leases():
            above = max(replay.kept_epoch(catalog, pipeline) for pipeline in self._pipelines)
            with transaction(self._session, "switching the way in") as cursor:
                positions = {}
                for source in sorted({pipeline.source for pipeline in self._pipelines}):
                    of_source = [pipeline for pipeline in self._pipelines if pipeline.source == source]
                    epoch = epochs.begin_new_history(cursor, catalog.database, source, str(self._target), above)
                    for pipeline in of_source:
                        positions[pipeline] = replace(cast(Any, begin), epoch=epoch)
                        replace_position(cursor, catalog.database, pipeline.name, positions[pipeline])
            for pipeline, position in positions.items():
                _tell_store(catalog, pipeline, position)

    @contextmanager
    def leases(self, still: str = _STILL_RUNS) -> Iterator[None]:
        held: list[Lease] = []
        try:
            for pipeline in self._pipelines:
                lease = Lease(self._catalog.servers.open_own, self._catalog.database, pipeline.name)
                held.append(lease)
                if not lease.acquire(max(1, int(self._within_s))):
                    raise ViewtailError(still.format(name=pipeline.name, s=self._within_s))
            yield
        finally:
            for lease in held:
                lease.release()


def finish(catalog: Catalog, target: History) -> None:
    """After a switch that was cut off: the offsets are right, and the stores may not know yet.

    Raises ViewtailError while a pipeline runs.
    """
    with _Switch(catalog, target, FINISH_WITHIN_S) as switch, switch.leases(_FINISHED):
        for name, position in positions_now(catalog).items():
            _tell_store(catalog, PipelineId.parse(name), position)


def _tell_store(catalog: Catalog, pipeline: PipelineId, position: Position) -> None:
    """Let a store's witness be where the offset is, if it is of the other way in: all read there is in the store."""
    store = store_named(pipeline.store)
    with closing(catalog.session()) as session:
        views = where_live(Copies(session, catalog.database, pipeline.name), catalog.views_of(store.name))
    with closing(store.sink(catalog.access(store), views, pipeline.name)) as sink:
        sink.prepare()
        if not is_there([sink.witness(position) or position], position):
            sink.write([], position)


def is_there(positions: Sequence[Position], before_all: Position) -> bool:
    """Return whether all offsets are of the kind of source that this position is of."""
    return bool(positions) and all(isinstance(position, type(before_all)) for position in positions)
