"""Waits until pipelines have passed this moment, or a view has what was committed before: read your own write.

By default that is everything committed by now. A watermark is committed on the source's primary, and each pipeline of
the view notes when all before it is durable in its store. A place in the source's stream lies before such a watermark
as soon as the source has it. A view that is being backfilled has everything once that is done, too. Where versions come
from a column, one entity can be waited for by its version.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import pymysql

from ingest import TimedSource
from offsets import fan_outs, migrations
from offsets.fan_outs import FanOut
from offsets.keepers import Keeper
from offsets.keepers import read as read_keepers
from offsets.mysql import OwnSession, reading, transaction
from offsets.pipelines import ids
from offsets.pipelines import read as read_pipelines
from offsets.views import State
from projectors.catalog import Catalog
from projectors.proving.view_access import ViewAccess
from projectors.stores.registry import store_of
from projectors.views import BoundView
from projectors.watermark_rows import remote_writer
from projectors.watermarks import WHY_LATE, RemoteWaiter, Watermarks
from viewtail.changes.errors import HistoryGoneError, MisuseError, ViewtailError, WaitedTooLongError
from viewtail.changes.repeating import looks
from viewtail.changes.writes import Key
from viewtail.operations.status import pipelines_now
from viewtail.servers.facts import MARIADB, facts_of
from viewtail.servers.sessions import value_of

_FANS_OUT = "It goes on by itself, and takes longer than this command waits; `viewtail status` shows how far it is"
_SEE = "See: viewtail status"
_GOES_ON = "its backfill takes longer than this command waits (--within). See: viewtail status"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The change that the view must have; nothing: all that is committed by now."""

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


def wait_until_passed(
    catalog: Catalog, pipelines: Callable[[], Collection[int]], stop: threading.Event, within_s: float
) -> int | None:
    """The version of this moment, once each of these pipelines has passed it; None where one has not in time.

    Raises WatermarkMissingError where one cannot; StopRequested.
    """
    with closing(catalog.session()) as session:
        waiter = RemoteWaiter(session, catalog.database, pipelines)
        with closing(Watermarks(remote_writer(catalog.marks, catalog.database), waiter)) as watermarks:
            return watermarks.now_within(stop, within_s)


def passed_now(catalog: Catalog, pipelines: Collection[str], within_s: float) -> int:
    """Wait as `wait_until_passed` does; return 0 where there are no pipelines.

    Raises ViewtailError, with what keeps them from it, where one has not passed it in time.
    """
    if not pipelines:
        return 0
    deadline = time.monotonic() + within_s
    with closing(catalog.session()) as session:
        numbers = ids(session, catalog.database, pipelines)
        version = wait_until_passed(catalog, numbers.values, threading.Event(), within_s)
        if version is not None:
            _wait_for_fan_outs(catalog, session, numbers, version, deadline)
            return version
    now = pipelines_now(catalog)
    known = [now[name] for name in sorted(pipelines) if name in now]
    why = "; ".join(f"{row.name} is {row.state}" + (f": {row.error}" if row.error else "") for row in known)
    raise ViewtailError(
        f"{', '.join(sorted(pipelines))} did not come to this moment of the source in {within_s:.0f} s "
        f"({why or 'not known'}). Nothing was looked at. Repeat the command when `viewtail status` says that they are "
        "well"
    )


def troubles(catalog: Catalog, pipelines: Collection[str]) -> list[str]:
    """Which of these pipelines pass nothing now, and what to do, a sentence each."""
    with closing(catalog.session()) as session:
        return _troubles(session, catalog.database, pipelines)


def _troubles(session: OwnSession, database: str, pipelines: Collection[str]) -> list[str]:
    with reading(session, "looking whether pipelines run") as cursor:
        rows = read_pipelines(cursor, database, pipelines) if pipelines else []
    return [row.trouble_and_mend for row in rows if row.trouble_and_mend is not None]


def _wait_for_fan_outs(
    catalog: Catalog, session: OwnSession, pipelines: Mapping[str, int], version: int, deadline: float
) -> None:
    def under_way() -> list[FanOut]:
        return fan_outs.up_to(session, catalog.database, pipelines.values(), version)

    def late() -> str:
        found = [f"view {fan_out.view} is behind: {fan_out}" for fan_out in under_way()]
        why = _troubles(session, catalog.database, pipelines) or [_FANS_OUT]
        what = "; ".join(found) or "a fan-out was under way"
        return f"{what}. {'. '.join(why)}. Nothing was looked at. Repeat the command when that is over"

    _wait_until(lambda: not under_way(), late, threading.Event(), deadline)


def wait_until_begun(catalog: Catalog, view: BoundView, deadline: float) -> None:
    """Wait until a viewtail knows the view, as one does soon after its start. `deadline` is monotonic.

    Raises WaitedTooLongError.
    """
    store = store_of(view.view)
    if store.keeps_every_change:
        return  # it cannot be waited for at all
    names = [pipeline.name for pipeline in catalog.pipelines() if pipeline.store == store.name]
    late = f"view {view.id} is not backfilled yet: no viewtail has begun with it"
    with closing(catalog.session()) as session:
        _wait_until(
            lambda: _is_known(session, catalog.database, view, names),
            lambda: f"{late}. {catalog.to_begin(session)}",
            threading.Event(),
            deadline,
        )


def _is_known(session: OwnSession, database: str, view: BoundView, pipelines: Sequence[str]) -> bool:
    with transaction(session, "looking for viewtail's tables") as cursor:
        return migrations.are_there(cursor, database) and bool(
            read_keepers(cursor, database, names=[view.id], of=pipelines)
        )


def wait(
    beside: ViewAccess, source: Callable[[], TimedSource], key: Key | None, wanted: Wanted, deadline: float
) -> None:
    """Raises WaitedTooLongError; ViewtailError where waiting does not help. `deadline` is monotonic."""
    _check(beside, beside.first)
    if key is not None:
        beside.require_not_paused(key)
    if wanted.version is not None:
        assert key is not None
        _wait_for_version(beside, key, wanted.version, deadline)
    else:
        if (place := wanted.position) is not None:
            late = f"the source has no place {place}: it has not come there, or that is none of its binlogs"
            _wait_until(lambda: _has_position(source(), place), lambda: late, beside.stop, deadline)
        if (gtid := wanted.gtid) is not None:
            late = f"the source has not executed the GTID {gtid}; is it one of this source?"
            _wait_until(lambda: _has_gtid(beside, gtid), lambda: late, beside.stop, deadline)
        _wait_for_now(beside, deadline)
        wait_until_whole(beside, deadline)
    if key is not None:
        _check_parked(beside, key)


def wait_until_whole(beside: ViewAccess, deadline: float) -> None:
    """Wait until no row is missing for want of a backfill. Raises as `wait` does."""
    unfilled = f"view {beside.view.id} is not backfilled yet"
    _wait_until(lambda: _is_whole(beside), lambda: f"{unfilled}: {_trouble(beside, _GOES_ON)}", beside.stop, deadline)


def _check(beside: ViewAccess, keepers: Sequence[Keeper]) -> None:
    """Raises ViewtailError where waiting does not help."""
    for _, record in keepers:
        if record.state == State.HALTED:
            raise ViewtailError(f"view {beside.view.id} is halted and gets no more changes: {record.reason}")
        if record.state == State.RELEASED:
            raise ViewtailError(f"view {beside.view.id} was {record.reason}: it gets no more changes")
        if record.state == State.PAUSED:
            raise ViewtailError(f"view {beside.view.id} is paused. To go on: viewtail resume {beside.view.id}")


def _is_whole(beside: ViewAccess) -> bool:
    """Or rows are missing, whatever its pipelines have passed."""
    keepers = beside.keepers()
    _check(beside, keepers)
    return all(row.state is State.FILLED for _, row in keepers)


def _wait_for_now(beside: ViewAccess, deadline: float) -> None:
    what = f"view {beside.view.id} does not have everything that is committed by now"
    version = wait_until_passed(beside.catalog, beside.pipeline_ids, beside.stop, deadline - time.monotonic())
    if version is None:
        why = _trouble(beside, f"its pipeline has not come to this moment. {WHY_LATE}")
        raise WaitedTooLongError(f"{what}: {why}")
    if beside.view.derived is not None:
        _wait_until(
            lambda: not beside.fan_outs(version),
            lambda: f"{what}: {_trouble(beside, next(map(str, beside.fan_outs(version)), _SEE))}",
            beside.stop,
            deadline,
        )


def _trouble(beside: ViewAccess, otherwise: str) -> str:
    """Return the trouble of its pipelines."""
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

    _wait_until(is_there, late, beside.stop, deadline)


def _wait_until(is_so: Callable[[], bool], late: Callable[[], str], stop: threading.Event, deadline: float) -> None:
    """Raises WaitedTooLongError, which says what is `late`."""
    if not any(is_so() for _ in looks(stop, deadline - time.monotonic())):
        raise WaitedTooLongError(late())


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
        newest = {int(each.split("-")[0]): int(each.split("-")[2]) for each in executed.split(",") if each}
    except ValueError:
        raise MisuseError(f"{gtid!r} is no GTID; MariaDB writes DOMAIN-SERVER-NUMBER") from None
    return newest.get(domain, -1) >= number


def _check_parked(beside: ViewAccess, key: Key) -> None:
    """Raises ViewtailError where the view does not have the entity as it is, since it cannot."""
    name = beside.comparison().name_of(key)
    letter = beside.letter_of(name)
    if letter is not None:
        raise ViewtailError(f"view {beside.view.id} cannot have {name} as it is now, it is parked: {letter.cause}")
