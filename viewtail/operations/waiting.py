"""Waits until a view has what was committed before: read your own write.

By default that is everything committed by now. A watermark is committed on the source's primary, and each pipeline of
the view notes when all before it is durable in its store. A place in the source's stream lies before such a watermark
as soon as the source has it. A view that is being backfilled has everything once that is done, too. Where versions come
from a column, one entity can be waited for by its version.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import pymysql

from ingest import TimedSource
from offsets import migrations
from offsets.keepers import Keeper
from offsets.keepers import read as read_keepers
from offsets.mysql import OwnSession, transaction
from offsets.views import State
from projectors.asked_watermarks import AskedWatermarks
from projectors.catalog import Catalog
from projectors.proving.view_access import ViewAccess
from projectors.stores.registry import store_of
from projectors.views import BoundView
from projectors.watermarks import MAYBE
from viewtail.changes.errors import HistoryGoneError, MisuseError, ViewtailError, WaitedTooLongError
from viewtail.changes.writes import Key
from viewtail.servers.facts import MARIADB, facts_of
from viewtail.servers.sessions import value_of

_LOOK_EVERY_S = (0.002, 0.1)  # first, and at most
_SEE = "See: viewtail status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the view must have; nothing: all that is committed by now."""

    version: int | None = None  # of the version column, or as `get` shows it where there is none
    position: str | None = None  # as `status` shows it
    gtid: str | None = None

    def check(self, *, has_key: bool) -> None:
        """Raises MisuseError."""
        named = {"a version": self.version, "a position": self.position, "a GTID": self.gtid}
        given = [name for name, value in named.items() if value is not None]
        if len(given) > 1:
            raise MisuseError(f"{' and '.join(given)}: wait for one of them")
        if self.version is not None and not has_key:
            raise MisuseError("a version is that of one entity: name its key")


def wait_until_begun(catalog: Catalog, view: BoundView, within_s: float) -> float:
    """Wait until a viewtail knows the view, as one does soon after its start; returns what is left of the time.

    Raises WaitedTooLongError.
    """
    store, deadline = store_of(view.view), time.monotonic() + within_s
    if store.keeps_every_change:
        return within_s  # it cannot be waited for at all
    names = [one.name for one in catalog.pipelines() if one.store == store.name]
    with closing(catalog.session()) as session:
        while not _is_known(session, catalog.database, view, names):
            if time.monotonic() > deadline:
                raise WaitedTooLongError(
                    f"view {view.id} is not backfilled yet: no viewtail has begun with it. Start one: viewtail run"
                )
            time.sleep(_LOOK_EVERY_S[1])
    return max(0.0, deadline - time.monotonic())


def _is_known(session: OwnSession, database: str, view: BoundView, pipelines: Sequence[str]) -> bool:
    with transaction(session, "looking for viewtail's tables") as cursor:
        return migrations.are_there(cursor, database) and bool(
            read_keepers(cursor, database, names=[view.id], of=pipelines)
        )


def wait(
    beside: ViewAccess, source: Callable[[], TimedSource], key: Key | None, wanted: Wanted, within_s: float
) -> float:
    """How long it took, seconds. Raises WaitedTooLongError; ViewtailError where waiting does not help."""
    began = time.monotonic()
    deadline = began + within_s
    _check(beside, beside.first)
    if wanted.version is not None:
        assert key is not None
        _wait_for_version(beside, key, wanted.version, deadline)
    else:
        if (place := wanted.position) is not None:
            late = f"the source has no place {place}: it has not come there, or that is none of its binlogs"
            _wait_until(beside, lambda: _has_position(source(), place), lambda: late, deadline)
        if (gtid := wanted.gtid) is not None:
            late = f"the source has not executed the GTID {gtid}; is it one of this source?"
            _wait_until(beside, lambda: _has_gtid(beside, gtid), lambda: late, deadline)
        _wait_for_now(beside, deadline)
        wait_until_whole(beside, deadline)
    if key is not None:
        _check_parked(beside, key)
    return time.monotonic() - began


def wait_until_whole(beside: ViewAccess, deadline: float) -> None:
    """Until no row is missing, for want of a backfill. Raises as `wait` does; `deadline` is monotonic."""
    unfilled = f"view {beside.view.id} is not backfilled yet"
    _wait_until(beside, lambda: _is_whole(beside), lambda: f"{unfilled}: {_trouble(beside, _SEE)}", deadline)


def _check(beside: ViewAccess, keepers: Sequence[Keeper]) -> None:
    """Raises ViewtailError where waiting does not help."""
    for _, one in keepers:
        if one.state == State.HALTED:
            raise ViewtailError(f"view {beside.view.id} is halted and gets no more changes: {one.reason}")
        if one.state == State.PAUSED:
            raise ViewtailError(f"view {beside.view.id} is paused. To go on: viewtail resume {beside.view.id}")


def _is_whole(beside: ViewAccess) -> bool:
    """Or rows are missing, whatever its pipelines have passed."""
    keepers = beside.keepers()
    _check(beside, keepers)
    return all(row.state is State.FILLED for _, row in keepers)


def _wait_for_now(beside: ViewAccess, deadline: float) -> None:
    catalog = beside.catalog
    watermarks = AskedWatermarks(
        catalog.marks,
        open_store=catalog.servers.open_own,
        database=catalog.database,
        pipelines=lambda: [pipeline.id for pipeline, _ in beside.keepers()],
        trouble=lambda: None,
        say=lambda _: None,
        is_visible_needed=False,
    )
    with closing(watermarks):
        if watermarks.now_within(beside.stop, deadline - time.monotonic()) is None:
            what = f"view {beside.view.id} does not have everything that is committed by now"
            raise WaitedTooLongError(
                f"{what}: {_trouble(beside, f'its pipeline has not come to this moment. {MAYBE}')}"
            )


def _trouble(beside: ViewAccess, otherwise: str) -> str:
    """Of its pipelines."""
    return next((row.trouble_and_mend for row, _ in beside.keepers() if row.trouble_and_mend is not None), otherwise)


def _wait_for_version(beside: ViewAccess, key: Key, version: int, deadline: float) -> None:
    least = version if beside.view.view.entity.version is None else 2 * version
    view = beside.view.id

    def is_there() -> bool:
        held = beside.reader.held([key]).get(key)
        return held is not None and held.version is not None and held.version >= least

    def late() -> str:
        name = beside.comparison().name_of(key)
        other = f"its pipeline is behind, or the row has no such version. See: viewtail why {view} {shlex.quote(name)}"
        return f"view {view} has no version {version} of {name}: {_trouble(beside, other)}"

    _wait_until(beside, is_there, late, deadline)


def _wait_until(beside: ViewAccess, is_so: Callable[[], bool], late: Callable[[], str], deadline: float) -> None:
    """Raises WaitedTooLongError, which says what is `late`."""
    pause_s = _LOOK_EVERY_S[0]
    while not is_so():
        if time.monotonic() > deadline or beside.stop.is_set():
            raise WaitedTooLongError(late())
        beside.stop.wait(pause_s)
        pause_s = min(_LOOK_EVERY_S[1], 1.5 * pause_s)


def _has_position(source: TimedSource, position: str) -> bool:
    try:
        source.place(position)
    except ValueError as error:
        raise MisuseError(str(error)) from None
    except HistoryGoneError:
        return False
    return True


def _has_gtid(beside: ViewAccess, gtid: str) -> bool:
    """On the primary: what it has executed is before a watermark that is committed next."""
    with closing(beside.catalog.servers.open_primary()) as connection:
        try:
            if facts_of(connection).name == MARIADB:
                return _is_in_mariadb(str(value_of(connection, "SELECT @@GLOBAL.gtid_binlog_pos")), gtid)
            return bool(value_of(connection, "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", gtid) == 1)
        except pymysql.err.MySQLError as error:
            said = error.args[1] if len(error.args) > 1 else type(error).__name__
            raise MisuseError(f"{gtid!r} is no GTID that the source understands: {said}") from None


def _is_in_mariadb(executed: str, gtid: str) -> bool:
    try:
        domain, _, number = (int(part) for part in gtid.split("-"))
        newest = {int(one.split("-")[0]): int(one.split("-")[2]) for one in executed.split(",") if one}
    except ValueError:
        raise MisuseError(f"{gtid!r} is no GTID; MariaDB writes DOMAIN-SERVER-NUMBER") from None
    return newest.get(domain, -1) >= number


def _check_parked(beside: ViewAccess, key: Key) -> None:
    """Raises ViewtailError where the view does not have the entity as it is, since it cannot."""
    name = beside.comparison().name_of(key)
    letter = beside.letter_of(name)
    if letter is not None:
        raise ViewtailError(f"view {beside.view.id} cannot have {name} as it is now, it is parked: {letter.cause}")
