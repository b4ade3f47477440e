"""Numbers over the rows of a table that have the same values in some columns: `Group`.

A group is read from its rows again at each change of one of them. Texts are the same by their bytes, while the table's
indexes know them by their collation: rows are found and put in order by it, and told apart behind that. So what comes
for a key may be several groups, and a chunk ends where the collation sees a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, ClassVar

from ingest.canonical.rows import check_numbers, fetch_rows, select_list
from ingest.charsets import ONE_TO_ONE
from projectors.binding import Describe, unknown_column
from projectors.derived import DerivedRows, KeyPage, LookedUp, Part, Touched
from projectors.derived.conditions import Condition, condition_of
from projectors.derived.tree import Columns, number_of
from projectors.masking import not_plain
from projectors.related import Aggregate
from projectors.views import View
from viewtail.changes.batches import Refused, Row, RowChanges, pairs, unreadable_in
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import TEXTS_IN_BINARY, Column, Kind, Table
from viewtail.changes.writes import Key
from viewtail.servers.literals import beyond, within
from viewtail.servers.sessions import quote

_MOMENTS = frozenset({Kind.DATE, Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})
_KEYS = _MOMENTS | {Kind.INTEGER, Kind.DECIMAL, Kind.BYTES, Kind.TEXT, Kind.ENUM}
_LARGE = ("tinytext", "text", "mediumtext", "longtext", "tinyblob", "blob", "mediumblob", "longblob")
_NUMBER_BYTES = 70  # of one in a row
_MOST_CHARACTERS = 255  # of a text: the server sorts, where it sorts, by the first kilobyte
_COUNT = Column(name="(rows)", kind=Kind.INTEGER, declared="bigint", is_nullable=False)
ROWS_AT_ONCE = 200_000  # of the table, that one SELECT aggregates


@dataclass(frozen=True, slots=True)
class Value:
    """A number over the rows of a group."""

    column: Column
    sql: str
    over: Columns  # of the table, on which it depends
    is_used: bool


def rows_of(view: View, table: Table, _: Describe, names: frozenset[str] | None) -> GroupRows:
    """As `registry.derived_rows`."""
    problems: list[str] = []
    key = []
    for name in view.entity.key:
        column = table.column(name)
        problems += [unknown_column(table, name, "column")] if column is None else _key_problems(table, column)
        if column is not None:
            key.append(column)
    values = []
    for name, of in view.entity.values:
        try:
            values.append(_value(name, of, table, is_used=names is None or name in names))
        except DeclarationError as error:
            problems.append(f"values[{name!r}]: {error}")
    return GroupRows(table, tuple(key), tuple(values), tuple(problems))


def _key_problems(table: Table, column: Column) -> list[str]:
    if column.mask is not None:
        return [not_plain(column, table, "rows are grouped by it")]
    what = f"by: column {column.name} of {table.full_name} is {column.type_name}"
    if column.kind is Kind.UNSUPPORTED:
        return [f"{what}, which viewtail cannot read exactly; convert it, or group by another column"]
    if column.kind not in _KEYS:
        return [f"{what}, whose values have no exact equality and order to go by; group by another column"]
    if column.declared.lower() in _LARGE or (column.kind is not Kind.ENUM and column.length > _MOST_CHARACTERS):
        return [f"{what}, whose values are too large to go by; group by one of {_MOST_CHARACTERS} characters at most"]
    if column.charset is None or column.charset in ONE_TO_ONE:
        return []
    two_codes = "where some characters have two codes, so that two groups could look the same"
    return [
        f"{what} in the character set {column.charset}, {two_codes}; convert it to utf8mb4, or group by another column"
    ]


def _value(name: str, of: Aggregate, table: Table, *, is_used: bool) -> Value:
    """Raises DeclarationError."""
    _, column = number_of(name, of, table)
    operand = None if of.column is None else table.column(of.column)
    condition = condition_of(of.where, table) if of.where else None
    over = (*(() if operand is None else (operand,)), *(() if condition is None else condition.columns))
    return Value(column, f"{of.kind.upper()}({_operand(operand, condition)})", over, is_used)


def _operand(column: Column | None, condition: Condition | None) -> str:
    if condition is None:
        return "*" if column is None else quote(column.name)
    return f"CASE WHEN {condition.sql} THEN {'1' if column is None else quote(column.name)} END"


@dataclass(frozen=True, slots=True)
class GroupRows(DerivedRows):
    """The groups of a table's rows.

    Args:
        canonical: the table.
        key: the columns that make a group.
        values: the numbers of a group.
        misfits: problems of the declaration.
    """

    needs_snapshot: ClassVar[bool] = True
    canonical: Table
    key: Columns
    values: tuple[Value, ...]
    misfits: tuple[str, ...]

    @property
    def table(self) -> Table:
        """The table that the groups would be of."""
        columns = (*self._key, *(value.column for value in self.values))
        names = tuple(column.name for column in self.key)
        return Table(schema=self.canonical.schema, name=self.canonical.name, columns=columns, primary_key=names)

    @property
    def parts(self) -> Sequence[Part]:
        used = {*self.key, *(column for value in self.values if value.is_used for column in value.over)}
        return [Part(self.canonical, tuple(column.name for column in self.canonical.columns if column in used), ())]

    @property
    def looked_up(self) -> Sequence[LookedUp]:
        return [LookedUp(self.canonical, self.key, is_upward=False)]

    @property
    def bodies(self) -> tuple[str, ...]:
        return ()

    def problems(self) -> Iterator[str]:
        yield from self.misfits

    def touched(self, events: Sequence[RowChanges | Refused]) -> Touched:
        """The group of each image of a row that is another one in what is used, under the version of the last one."""
        versions: dict[Key, int] = {}
        used = self.parts[0].columns
        for event in events:
            columns = event.followed.columns
            key_at = [columns.index(column.name) for column in self.key]
            used_at = [columns.index(name) for name in used]
            for image in _changed(event, used_at):
                group = tuple([image[at] for at in key_at])
                if None not in group and unreadable_in(group) is None:
                    versions[group] = max(event.version, versions.get(group, 0))
        return Touched(versions)

    def dependents(self, connection: Any, what: str, cursor: str | None, limit: int) -> KeyPage:
        """None: each row names its group."""
        return KeyPage((), None)

    def described(self, what: str) -> str:
        return what

    def fetch(
        self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "", max_bytes: float = inf
    ) -> list[Row]:
        """In one SELECT, where no order and limit come behind and the groups have no more than ROWS_AT_ONCE rows.

        Else some groups at a time: which come next is read first, and then their rows, from one key to another.
        """
        if not behind and self._has_few(connection, where):
            return self._groups(connection, columns, where, max_bytes)
        rows: list[Row] = []
        rest, is_more = where, True
        while is_more:
            keys, is_more = self._next(connection, rest, behind, max_bytes, _NUMBER_BYTES * len(columns))
            if not keys:
                break
            between = _and(rest, within(self._key, keys[0], keys[-1]))
            rows += self._groups(connection, columns, between, inf, f" ORDER BY {self._order}, {self._exact}")
            if is_more and max_bytes < inf:
                connection.close()  # says that there are more
            if behind or not connection.open:
                break
            rest = _and(where, beyond(self._key, keys[-1]))
        return rows

    def _next(
        self, connection: Any, where: str, behind: str, max_bytes: float, more_bytes: int
    ) -> tuple[Sequence[Row], bool]:
        """The keys that come next, and whether there are more beyond what is read at once.

        One key of each that the collation takes for equal: nothing ends between these.
        """
        of_rows = f"SELECT {self._selected} FROM {self._name}{self._whole(where)} ORDER BY {self._order}"
        counted = f"SELECT {self._order}, COUNT(*) AS {quote(_COUNT.name)} FROM ({of_rows} LIMIT {ROWS_AT_ONCE}) r"
        counted += f" GROUP BY {self._order}{behind or f' ORDER BY {self._order}'}"
        columns = (*self._key, _COUNT)
        counts = fetch_rows(
            connection, f"SELECT {select_list(columns)} FROM ({counted}) c ORDER BY {self._order}", columns
        )
        is_cut = sum(row[-1] for row in counts) >= ROWS_AT_ONCE
        keys = [row[:-1] for row in (counts[:-1] if is_cut and len(counts) > 1 else counts)]
        some = _first_of(keys, max_bytes, more_bytes)
        return some, is_cut or len(some) < len(keys)

    def keys(self, connection: Any, columns: Sequence[Column], where: str = "", behind: str = "") -> list[Row]:
        """With order and limit one key of each that the collation takes for equal."""
        if not behind:
            return self._groups(connection, columns, where, inf)
        keys = f"SELECT DISTINCT {self._selected} FROM {self._name}{self._whole(where)}{behind}"
        return fetch_rows(connection, f"SELECT {select_list(columns)} FROM ({keys}) r ORDER BY {self._order}", columns)

    def _has_few(self, connection: Any, where: str) -> bool:
        """Whether so many rows are aggregated in a time that a server may take for an answer."""
        some = f"SELECT 1 FROM {self._name}{self._whole(where)} LIMIT {ROWS_AT_ONCE + 1}"
        ((count,),) = fetch_rows(connection, f"SELECT COUNT(*) FROM ({some}) r", [_COUNT])
        return bool(count <= ROWS_AT_ONCE)

    def _groups(
        self, connection: Any, columns: Sequence[Column], where: str, max_bytes: float, order: str = ""
    ) -> list[Row]:
        names = {column.name for column in columns}
        values = [value for value in self.values if value.column.name in names]
        numbers = "".join(f", {value.sql} AS {quote(value.column.name)}" for value in values)
        # The texts of one group are the same, so any row's may be selected: a session's SQL mode allows it.
        groups = f"SELECT {self._selected}{numbers} FROM {self._name}{self._whole(where)} GROUP BY {self._exact}"
        statement = f"SELECT {select_list(columns)} FROM ({groups}) r{order}"
        return fetch_rows(connection, statement, columns, max_bytes, partial(check_numbers, columns))

    def _whole(self, where: str) -> str:
        """Without the rows that are in no group."""
        for column in self.key:
            where = _and(where, f"{quote(column.name)} IS NOT NULL") if column.is_nullable else where
        return where

    @property
    def _key(self) -> Columns:
        return tuple(map(_as_key, self.key))

    @property
    def _selected(self) -> str:
        return ", ".join(map(_selected, self.key))

    @property
    def _order(self) -> str:
        return ", ".join(quote(column.name) for column in self.key)

    @property
    def _exact(self) -> str:
        return ", ".join(map(_exact, self.key))

    @property
    def _name(self) -> str:
        return quote(self.canonical.schema, self.canonical.name)


def _changed(event: RowChanges | Refused, used_at: Sequence[int]) -> Iterator[Row]:
    """Both images of each row that is another one in these columns."""
    for before, after in pairs(event.kind, event.rows):
        if before is None or after is None or any(before[at] != after[at] for at in used_at):
            yield from (image for image in (before, after) if image is not None)


def _and(where: str, condition: str) -> str:
    return f"{where or ' WHERE TRUE'} AND ({condition})"


def _as_key(column: Column) -> Column:
    """A column of the groups. An ENUM is put in order by its numbers, and compared as a text: there it is a text."""
    column = replace(column, is_nullable=False, default=None, is_generated=False)
    if column.kind is not Kind.ENUM:
        return column
    length = max(map(len, column.labels))
    return replace(column, kind=Kind.TEXT, declared=f"varchar({length})", length=length, labels=())


def _selected(column: Column) -> str:
    name = quote(column.name)
    return f"CONCAT({name}) AS {name}" if column.kind is Kind.ENUM else name


def _exact(column: Column) -> str:
    """What is equal where the values are: a collation takes more for equal."""
    name = quote(column.name)
    is_collated = column.kind is Kind.TEXT and column.declared.lower() not in TEXTS_IN_BINARY
    return f"CAST({name} AS BINARY)" if is_collated else name


def _first_of(keys: Sequence[Row], max_bytes: float, more_bytes: int) -> Sequence[Row]:
    """The first keys, at least one, whose rows have about that many bytes; each has some more than its key."""
    size = 0.0
    for number, key in enumerate(keys):
        if size >= max_bytes:
            return keys[:number]
        size += more_bytes + sum([len(value) for value in key if isinstance(value, str | bytes)])
    return keys
