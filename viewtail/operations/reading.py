"""Reading views: by key, by indexed value, by query.

`find` never trusts an index alone: it reads keys from the index table, fetches the canonical rows of those keys, and
keeps the rows that have the values now, so a view that lags can miss a row for a moment but never return a wrong one.
A remark beside the answer says when the view is half backfilled, halted or paused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pymysql

from offsets import keepers, migrations
from offsets.keepers import Keeper
from offsets.views import State
from projectors.read_and_written import as_live
from projectors.stores import SearchPage, ViewReader
from projectors.stores.registry import STORES, store_of
from projectors.views import BoundView, View
from viewtail.changes.batches import Unreadable
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, UnknownNameError, nearest
from viewtail.changes.rendering import row_value
from viewtail.changes.tables import Kind, Table
from viewtail.changes.writes import Key
from viewtail.operations.given import in_hexadecimal, indexed_value, key_of
from viewtail.servers.sessions import Connection, MySQLAddress, session_error

if TYPE_CHECKING:
    from projectors.projection import RowByRow

Open = Callable[[], Connection]


class Rows(list[dict[str, Any]]):
    """Canonical rows: every column that viewtail can read, as docs/types.md says."""

    def __init__(self, rows: Iterable[dict[str, Any]], *, has_more: bool, remark: str | None) -> None:
        super().__init__(rows)
        self.has_more = has_more  # the index has more keys than the limit
        self.remark = remark  # why rows may be missing: the view is half backfilled, or a value may mean another


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One entity as a view has it."""

    view: str  # store:name
    key: Key
    version: int
    content: dict[str, Any]  # index table: value columns; Redis hash: fields as bytes; else the document


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One view, ready to be read.

    Every method raises MisuseError, SourceUnavailableError, StoreUnavailableError, StoreError.
    """

    view: BoundView
    remark: str | None  # why it may be incomplete or old
    open_source: Open
    open_reader: Callable[[], ViewReader]

    def find(self, values: Sequence[Any], limit: int) -> Rows:
        """The canonical rows of the entities that have these values of the first value columns, in key order."""
        from projectors.projection import RowByRow

        view = self.view
        _require_index(view)
        wanted = _wanted(view, values)
        if limit < 1:
            raise MisuseError(f"limit is {limit}; it must be at least 1")
        with closing(self.open_reader()) as reader:
            keys = reader.keys_with(wanted, limit + 1)
        with closing(self.open_source()) as connection:
            rows = canonical_rows(connection, view, keys[:limit])
        projected = RowByRow(view, view.needed)
        matching = [_shown(row, view.table) for row in rows if _matches(row, projected, view, wanted)]
        remarks = [self.remark, *([] if matching else _other_readings(view, values))]
        return Rows(matching, has_more=len(keys) > limit, remark=". ".join(filter(None, remarks)) or None)

    def get(self, key: Any) -> Record | None:
        """Return what the view has under a key, as of the last acknowledged write; None when it shows nothing."""
        return self.get_key(key_of(key, self.view))

    def get_key(self, key: Key) -> Record | None:
        """The same of a key in viewtail's form."""
        with closing(self.open_reader()) as reader:
            for row in reader.rows([key]):
                version = of_entity(row.version, self.view.view)
                return Record(view=self.view.id, key=row.key, version=version, content=row.content)
        return None

    def search(self, query: str, *, fields: Sequence[str] | None = None, page: int = 1, size: int = 10) -> SearchPage:
        """One page of the documents that match a simple query string, best first."""
        if not is_searched(self.view.view):
            kinds = _kinds([kind for store in STORES if store.has_search for kind in store.view_classes])
            raise MisuseError(f"view {self.view.id} cannot be searched; search reads {kinds} views, get reads by key")
        with closing(self.open_reader()) as reader:
            result = reader.search(query, fields=fields, page=page, size=size)
        hits = [replace(hit, version=of_entity(hit.version, self.view.view)) for hit in result.hits]
        return replace(result, hits=hits)


def of_entity(version: int, view: View) -> int:
    """Return what a row's version column says, as `viewtail serve` does, and not what stores guard by."""
    return version if view.entity.version is None else version // 2


def _kinds(kinds: Sequence[type[View]]) -> str:
    return " and ".join(kind.__name__ for kind in kinds)


def named(views: Iterable[View], name: str, can_answer: Callable[[View], bool] = lambda _: True) -> list[View]:
    """The views of that name, or of that 'store:name'; of several the ones that can answer, if any can."""
    meant = [view for view in views if name in (view.name, view.id)]
    return list(filter(can_answer, meant)) or meant


def is_found_in(view: View) -> bool:
    """Whether `find` reads such views."""
    return view.has_index


def is_searched(view: View) -> bool:
    """Whether `search` reads such views."""
    return store_of(view).has_search


def choose(views: Sequence[View], name: str, can_answer: Callable[[View], bool] = lambda _: True) -> View:
    """The view of that name, or of that 'store:name'; where several have the name, the one that can answer.

    Raises UnknownNameError with the nearest one, MisuseError where several can.
    """
    meant = named(views, name, can_answer)
    if len(meant) == 1:
        return meant[0]
    if meant:
        which = ", ".join(view.id for view in meant)
        raise MisuseError(f"{name!r} is the name of {len(meant)} views; say which: {which}")
    near = nearest(name, [view.name for view in views] + [view.id for view in views])
    raise UnknownNameError(f"no view is called {name!r}{near or '; there are ' + ', '.join(view.id for view in views)}")


# --- The state of a view ---


def found(
    open_store: Open, address: MySQLAddress, database: str, view: BoundView, *, of_all: bool = False
) -> tuple[BoundView, str | None]:
    """The view where it is now, and what a reader must know about its state, one sentence; None when it is complete
    and follows its table. `of_all`: as all sources keep it that it draws on, a sentence each."""
    try:
        with closing(open_store()) as connection, connection.cursor() as cursor:
            known = _keepers_of(cursor, database, view)
            to_begin = partial(_to_begin, cursor, database)
            if of_all:
                remark = _of_sources(known, view.view, to_begin)
            else:
                remark = _remark(known.get(view.source), view.view, partial(to_begin, *view.source))
            return as_live(cursor, database, view), remark
    except pymysql.err.MySQLError as error:
        raise session_error(error, address, "store") from None


def _to_begin(cursor: Any, database: str, source: str = "") -> str:
    return keepers.to_begin(keepers.processes_now(cursor, database, source))


def _remark(keeper: Keeper | None, view: View, to_begin: Callable[[], str]) -> str | None:
    if keeper is None:
        return f"view {view.id} was never backfilled. {to_begin()}"
    pipeline, row = keeper
    rows = counted(max(row.row_count, row.row_estimate), "rows")
    remarks = {
        State.HALTED: f"is halted and gets no more changes: {row.reason}",
        State.PAUSED: f"is paused and gets no changes, {row.pause}",
        State.RELEASED: f"was {row.reason}: read its table with SELECT",
        State.BACKFILLING: f"is only half backfilled ({row.row_count:,} of about {rows}): some are missing",
        State.NEW: "is not backfilled yet: most rows are missing",
    }
    if row.state not in remarks and pipeline.pause is not None:
        return f"view {view.id} gets no changes, since its pipeline is paused, {pipeline.pause}"
    return f"view {view.id} {remarks[row.state]}" if row.state in remarks else None


def _of_sources(known: Mapping[Key, Keeper], view: View, to_begin: Callable[..., str]) -> str | None:
    """Return the remarks of all sources that one place has the rows of."""
    if not view.entity.sources:
        return _remark(known.get(()), view, to_begin)
    written = {(name,) for name in view.entity.sources if "*" not in name}
    drawn_on = sorted(written | {source for source in known if view.entity.draws_on(source[0])})
    remarks = ((name, _remark(known.get((name,)), view, partial(to_begin, name))) for (name,) in drawn_on)
    return ". ".join(f"source {name}: {remark}" for name, remark in remarks if remark) or None


def _keepers_of(cursor: Any, database: str, view: BoundView) -> dict[Key, Keeper]:
    """Each source's keeper, as `view.source` has its name; of a view that is of one server the first one."""
    if not migrations.are_there(cursor, database):
        return {}
    known = reversed(keepers.read(cursor, database, names=[view.view.id]))
    return {(keeper.pipeline.identity.source,) if view.source else (): keeper for keeper in known}


# --- find ---


def _require_index(view: BoundView) -> None:
    if not is_found_in(view.view) or not store_of(view.view).indexed(view):
        kinds = _kinds([kind for store in STORES for kind in store.view_classes if kind.has_index])
        raise MisuseError(f"view {view.id} has no index to find by; find reads {kinds} views, get reads by key")


def _wanted(view: BoundView, values: Sequence[Any]) -> tuple[Any, ...]:
    columns = store_of(view.view).indexed(view)
    names = ", ".join(column.name for column in columns)
    least = len(columns) if view.view.needs_all_values else 1
    if not least <= len(values) <= len(columns):
        count = f"{least} to {len(columns)}" if least < len(columns) else f"{least}"
        most = f"{count} value{'s' * (len(columns) > 1)}"
        raise MisuseError(f"view {view.id} is indexed by {names}: give {most}, not {len(values)}")
    of_table = {column.name: column for column in view.table.columns if view.is_masked(column.name)}
    given = zip(values, columns, strict=False)
    wanted = tuple(indexed_value(value, of_table.get(column.name, column)) for value, column in given)
    if all(value is None for value in wanted):
        raise MisuseError(f"view {view.id}: NULL alone is not indexed; give a value of {names}")
    return wanted


def _other_readings(view: BoundView, values: Sequence[Any]) -> list[str | None]:
    columns = store_of(view.view).indexed(view)
    return [in_hexadecimal(value, column) for value, column in zip(values, columns, strict=False)]


_Values = dict[str, Any]  # by column name, in viewtail's forms


def canonical_rows(connection: Connection, view: BoundView, keys: Sequence[Key]) -> list[_Values]:
    """The present canonical row of each key that has one, in the keys' order; every column that can be read.

    With a version column it is the row with the largest version.
    """
    if not keys:
        return []
    columns = [column for column in view.table.columns if column.kind is not Kind.UNSUPPORTED]
    rows = view.rows.having(connection, columns, view.key, keys, view.condition)
    names = [column.name for column in columns]
    newest = _newest(view, [dict(zip(names, row, strict=True)) for row in rows])
    # The source may find more than asked for, where its collation takes two keys for one.
    return [newest[key] for key in keys if key in newest]


def _newest(view: BoundView, rows: list[_Values]) -> dict[Key, _Values]:
    version = view.view.entity.version
    if version is not None:
        rows.sort(key=lambda row: row[version])
    return {tuple(row[column.name] for column in view.key): row for row in rows}  # the last one stays


def _matches(row: _Values, projected: RowByRow, view: BoundView, wanted: Sequence[Any]) -> bool:
    """Return whether the view shows the row as it is now, under these values."""
    from projectors.projection import RowRefusedError

    try:
        values = projected.values(tuple([_readable(row[name]) for name in view.needed]), 0)
    except RowRefusedError:  # parked: it is not in the view
        return False
    if not isinstance(values, tuple):
        return False
    named = {column.name: row[column.name] for column in view.key}
    named |= {column.name: value for column, value in zip(view.values, values, strict=True)}
    return store_of(view.view).leads_to(view, named, wanted)


def _readable(value: Any) -> Any:
    return None if isinstance(value, Unreadable) else value


def _shown(row: _Values, table: Table) -> dict[str, Any]:
    """Return a row as a user's function sees it: JSON parsed; None for a text that cannot be read."""
    shown = {}
    for column in table.columns:
        if column.name not in row:
            continue
        value, convert = _readable(row[column.name]), row_value(column)
        shown[column.name] = value if convert is None or value is None else convert(value)
    return shown
