"""The seam to rows that are made of more than the changed row: which keys changed, and what their rows are now.

README.md says what an implementation provides. registry.py finds the one of a declaration, and nothing else knows which
it is. Backfills, verify and replays read the same rows in chunks by key (ingest/canonical/chunks.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from ingest.canonical.rows import ReadableRows
from viewtail.changes.batches import Refused, RowChanges
from viewtail.changes.tables import Column, Table
from viewtail.changes.writes import Key
from viewtail.servers.sessions import Connection

LookUp: TypeAlias = Callable[[Connection], Mapping[Key, int]]
InSnapshot: TypeAlias = Callable[[LookUp], Mapping[Key, int]]  # calls it in a snapshot that shows the events
KEYS_A_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Part:
    """A table that derived rows are made of."""

    table: Table  # as it was described
    columns: tuple[str, ...]  # those that the rows depend on, in its order
    keys: tuple[tuple[str, ...], ...]  # the unique keys beside the primary one that they rely on


@dataclass(frozen=True, slots=True)
class LookedUp:
    """Rows that are found by values of some columns, at each change: they need an index over those."""

    table: Table  # as it was described
    columns: tuple[Column, ...]
    is_upward: bool  # from changed rows to rows that depend on them, however many
    limit: int | None = None  # the most rows of one value that may be


@dataclass(frozen=True, slots=True)
class Dependents:
    """The rows that depend on some changed rows of another table, of which only the tables tell which they are."""

    what: str  # names the changed rows; only the implementation reads more out of it
    version: int  # of the last change of them


@dataclass(frozen=True, slots=True)
class KeyPage:
    """Some keys of dependent rows; some may be there twice."""

    keys: Sequence[Key]
    cursor: str | None  # where to go on; None: there are no more


@dataclass(frozen=True, slots=True)
class Touched:
    """The keys whose rows some events may have changed, and the version that each row gets.

    A version is not below the last event that touches the key, and not above the last of all events.
    """

    versions: Mapping[Key, int]  # of the keys that the events themselves tell
    dependents: Sequence[Dependents] = ()

    def __bool__(self) -> bool:
        return bool(self.versions) or bool(self.dependents)


class DerivedRows(ReadableRows, Protocol):
    """Rows of one view. `table` is the one that they would be of; its primary key is the view's key.

    Whatever is read shows one snapshot: all SELECTs of `fetch` are in the transaction of the connection.
    """

    @property
    def parts(self) -> Sequence[Part]:
        """The tables whose changes touch the rows; the first is the entity's."""

    @property
    def looked_up(self) -> Sequence[LookedUp]:
        """By which columns the rows of `parts` are found, beside the entity's by its key."""
        return ()

    @property
    def bodies(self) -> tuple[str, ...]:
        """The columns whose values the entity's codec decodes."""

    def problems(self) -> Iterator[str]:
        """Why the declaration cannot work with its tables. Nothing else is asked where there are some."""

    def touched(self, events: Sequence[RowChanges | Refused]) -> Touched:
        """The keys whose rows may be others now, from both images of each row.

        `events` are those of a batch that concern a table of `parts`, in order.
        """

    def dependents(self, connection: Connection, what: str, cursor: str | None, limit: int) -> KeyPage:
        """About `limit` keys of the rows that depend on changed rows, from `cursor` on, None from the beginning.

        A page may be empty and not the last. What comes and goes between two pages touches its keys by itself.
        """

    def each(self, what: str) -> Sequence[str]:
        """The same changed rows one by one."""
        return [what]

    def about(self, connection: Connection, what: str) -> int | None:
        """About how many rows depend on changed rows; None where nobody knows without counting them."""
        return None

    def described(self, what: str) -> str:
        """Name changed rows to people, without their values but for their keys: 'shop.product 7'."""


def touched_keys(rows: DerivedRows, touched: Touched, in_snapshot: InSnapshot) -> Mapping[Key, int]:
    """All keys that were touched, those of dependents too, each with its version."""
    if not touched.dependents:
        return touched.versions
    others = in_snapshot(partial(_dependent_keys, rows, touched.dependents))
    return {**others, **{key: max(at, others.get(key, 0)) for key, at in touched.versions.items()}}


def version_of(
    rows: DerivedRows, touched: Touched, key: Key, in_snapshot: InSnapshot, before_page: Callable[[], None]
) -> int | None:
    """The version under which one key was touched; None where it was not.

    Of dependents, no page is read behind the one that has it. `before_page` may raise.
    """
    version = touched.versions.get(key)
    newer = [of for of in touched.dependents if version is None or of.version > version]
    newer.sort(key=lambda of: of.version, reverse=True)

    def look_up(connection: Connection) -> Mapping[Key, int]:
        for dependents in newer:
            for keys in _pages(rows, dependents.what, connection, before_page):
                if key in keys:
                    return {key: dependents.version}
        return {}

    return in_snapshot(look_up).get(key, version) if newer else version


def _dependent_keys(rows: DerivedRows, of: Sequence[Dependents], connection: Connection) -> dict[Key, int]:
    versions: dict[Key, int] = {}
    for dependents in of:
        for keys in _pages(rows, dependents.what, connection):
            for key in keys:
                versions[key] = max(dependents.version, versions.get(key, 0))
    return versions


def _pages(
    rows: DerivedRows, what: str, connection: Connection, before_page: Callable[[], None] = lambda: None
) -> Iterator[Sequence[Key]]:
    cursor, is_more = None, True
    while is_more:
        before_page()
        page = rows.dependents(connection, what, cursor, KEYS_A_PAGE)
        yield page.keys
        cursor, is_more = page.cursor, page.cursor is not None
