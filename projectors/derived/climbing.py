"""From a changed row of a related table up to the rows that depend on it, in pages.

Each level is a table whose rows refer to those below. Its rows are read in pages by primary key, and each page's level
above is read whole before the next one, so a cursor is a place in each level. What is added between two pages touches
its rows by itself, and what goes away, too: a page needs to have only what was there all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from ingest.canonical.rows import fetch_rows, select_list
from offsets.fill_keys import tagged, untagged
from projectors.derived import KeyPage
from projectors.derived.tree import Columns, Hop, primary_key
from viewtail.changes.batches import Row
from viewtail.changes.rendering import in_a_line, render_key
from viewtail.changes.tables import Table
from viewtail.changes.writes import Key
from viewtail.servers.literals import beyond, rows_with, up_to, where_all
from viewtail.servers.sessions import Connection, quote


@dataclass(frozen=True, slots=True)
class Level:
    """Rows that refer to rows of the level below."""

    table: Table
    on: Columns  # hold the values of the level below
    out: Columns  # what the level above is looked up by; of the last, the entity's key


@dataclass(frozen=True, slots=True)
class Way:
    """From a table up to the entity's."""

    table: Table
    on: Columns  # of a changed row, by which others refer to it
    levels: tuple[Level, ...]  # none: `on` holds the entity's key

    @classmethod
    def along(cls, hops: Sequence[Hop], key: Columns) -> Way:
        """From the last of these hops, which begin at the entity's table."""
        ups = list(reversed(hops))
        outs = [hop.far_on for hop in ups[1:]]
        levels = [Level(hop.near, hop.near_on, out) for hop, out in zip(ups, (*outs, key), strict=True)]
        if hops[0].is_by_value and hops[0].near_on == key:
            levels.pop()  # the rows below hold the entity's key
        return cls(ups[0].far, ups[0].far_on, tuple(levels))

    def page(self, connection: Connection, values: Sequence[Key], cursor: str | None, limit: int) -> KeyPage:
        """Some keys of the entities that depend on rows with these values."""
        place = None if cursor is None else _loaded(cursor)
        keys, place = self._climb(connection, 0, values, place, limit)
        return KeyPage(list(dict.fromkeys(keys)), None if place is None else _dumped(place))

    def about(self, connection: Connection, values: Sequence[Key]) -> int | None:
        """About how many entities depend on such rows, by the server's estimate; None with tables between."""
        if len(self.levels) != 1:
            return None
        (level,) = self.levels
        table, where = quote(level.table.schema, level.table.name), where_all(rows_with(level.on, values))
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN FORMAT=TRADITIONAL SELECT 1 FROM {table}{where}")
            at = [column[0].lower() for column in cursor.description].index("rows")
            plan = cursor.fetchone()
        return None if plan is None or plan[at] is None else int(plan[at])

    def _climb(
        self, connection: Connection, number: int, values: Sequence[Key], place: Any, limit: int
    ) -> tuple[list[Key], Any]:
        """Keys, and the place behind them; None where there are no more."""
        after, upto, inner = (None, None, None) if place is None else place
        keys: list[Key] = []
        while True:
            rows = _rows(connection, self.levels[number], values, after, upto, limit)
            is_end = upto is None and len(rows) < limit
            if rows:
                upto = upto or rows[-1][0]
                some, inner = self._above(connection, number, rows, inner, max(1, limit - len(keys)))
                keys += some
                if inner is not None:
                    return keys, [after, upto, inner]
            if is_end:
                return keys, None
            after, upto = upto, None
            if len(keys) >= limit:
                return keys, [after, None, None]

    def _above(
        self, connection: Connection, number: int, rows: Sequence[tuple[Key, Key]], place: Any, limit: int
    ) -> tuple[list[Key], Any]:
        """What a level's rows lead to: as `_climb`."""
        outs = [out for out in dict.fromkeys(out for _, out in rows) if None not in out]
        if number == len(self.levels) - 1 or not outs:
            return outs, None
        return self._climb(connection, number + 1, outs, place, limit)


def _rows(
    connection: Connection, level: Level, values: Sequence[Key], after: Any, upto: Any, limit: int
) -> list[tuple[Key, Key]]:
    """Primary key and what is looked up by it of rows behind a place; up to another, however many they are."""
    key = primary_key(level.table)
    columns = (*key, *level.out)
    where = where_all(
        rows_with(level.on, values),
        "" if after is None else beyond(key, after),
        "" if upto is None else up_to(key, upto),
    )
    order = ", ".join(quote(column.name) for column in key)
    behind = f" ORDER BY {order}" + (f" LIMIT {limit}" if upto is None else "")
    statement = f"SELECT {select_list(columns)} FROM {quote(level.table.schema, level.table.name)}{where}{behind}"
    rows: list[Row] = fetch_rows(connection, statement, columns)
    width = len(key)
    return [(row[:width], row[width:]) for row in rows]


def what_text(way: str, values: Sequence[Key]) -> str:
    """Name changed rows: the way up from them, and their values."""
    return _dumped([way, values])


def what_of(text: str) -> tuple[str, list[Key]]:
    """The inverse of `what_text`."""
    way, values = _loaded(text)
    return way, [tuple(value) for value in values]


def described(way: Way, values: Sequence[Key]) -> str:
    """Name changed rows to people."""
    first = in_a_line(render_key(values[0], way.on))
    others = f" and {len(values) - 1:,} more" if len(values) > 1 else ""
    return f"{way.table.full_name} {first}{others}"


def _dumped(value: Any) -> str:
    return orjson.dumps(value, default=tagged).decode()


def _loaded(text: str) -> Any:
    return untagged(orjson.loads(text))
