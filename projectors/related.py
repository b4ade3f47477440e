"""Declarations of what an entity's row has from other tables: a row, rows, a number over rows.

Pure data, checked as far as no table is needed; `projectors/derived/tree.py` decides whether they fit their tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import full_name, is_pattern, names_of

DEFAULT_LIMIT = 10_000  # rows of a Many
DEFAULT_MAX_BYTES = 16 << 20  # of all related rows of one entity
MOST_CHARACTERS = 64  # of a name, as of a column's


@dataclass(frozen=True, slots=True, init=False)
class Related:
    """What every kind has: the table that it is of."""

    kind: ClassVar[str]
    table: str

    def _put(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def schema_and_table(self) -> tuple[str, str]:
        """'shop.user' -> ('shop', 'user')"""
        names = names_of(self.table)
        assert names is not None
        return names

    @property
    def tables(self) -> Iterator[tuple[str, str]]:
        """Schema and name of each table that it needs."""
        yield self.schema_and_table

    @property
    def particulars(self) -> list[Any]:
        """All that the rows depend on; a part of the fingerprint of each view of the entity."""
        raise NotImplementedError

    def named(self, asked: Uses | None) -> Iterator[Named]:
        """Each table that it needs, with columns that it names: what conditions and keys name, only tables tell.

        Args:
            asked: what is asked of its rows; None: anything.
        """
        raise NotImplementedError


Relations = tuple[tuple[str, Related], ...]
Uses: TypeAlias = Mapping[str, "Uses | None"]  # the names that are asked for, each with what is asked of its value
Named: TypeAlias = tuple[tuple[str, str], frozenset[str]]  # schema and name of a table, and columns


@dataclass(frozen=True, slots=True, init=False)
class One(Related):
    """The row of another table that this row refers to; None where there is none.

    Args:
        table: 'schema.table', on the same server.
        on: the columns of this row that hold the other row's key. NULL refers to nothing.
        to: the columns of that key: a unique key of the other table, by default its primary key.
        columns: those that the row has; by default those that the view's functions ask for.
        related: what that row has from further tables.
    """

    kind = "One"
    on: tuple[str, ...]
    to: tuple[str, ...]  # empty: the primary key
    columns: tuple[str, ...]  # empty: all that can be read
    related: Relations

    def __init__(
        self,
        table: str,
        *,
        on: str | Sequence[str],
        to: str | Sequence[str] = (),
        columns: str | Sequence[str] = (),
        related: Mapping[str, Related] | None = None,
    ) -> None:
        where = f"One({table!r})"
        self._put(
            table=_table(table, where),
            on=_names(on, f"{where}: on", is_needed=True),
            to=_names(to, f"{where}: to"),
            columns=_names(columns, f"{where}: columns"),
            related=relations(related, where),
        )

    @property
    def tables(self) -> Iterator[tuple[str, str]]:
        yield self.schema_and_table
        yield from _tables(self.related)

    def named(self, asked: Uses | None) -> Iterator[Named]:
        yield self.schema_and_table, frozenset([*self.to, *_shown(self, asked)])
        yield from columns_named(self.related, asked)

    @property
    def particulars(self) -> list[Any]:
        return [self.kind, self.table, self.on, self.to, self.columns, related_particulars(self.related)]


@dataclass(frozen=True, slots=True, init=False)
class Many(Related):
    """The rows of another table that refer to this row, as a list.

    Args:
        table: 'schema.table', on the same server.
        by: the columns, of `table` or of `through`, that hold this row's key.
        order_by: columns of the rows, `-name` descends. Ties, and by default all, are in the order of the primary key.
        through: a table between: each of its rows refers to this row by `by`, and to one of `table` by `to`.
        to: the columns of `through` that hold the other row's primary key.
        limit: the most rows; where a row has more, its entity is parked with that reason.
        columns: those that the rows have; by default those that the view's functions ask for.
        related: what those rows have from further tables.
    """

    kind = "Many"
    by: tuple[str, ...]
    order_by: tuple[str, ...]
    through: str | None
    to: tuple[str, ...]
    limit: int
    columns: tuple[str, ...]
    related: Relations

    def __init__(  # noqa: PLR0913 - what users write, each argument by name
        self,
        table: str,
        *,
        by: str | Sequence[str],
        order_by: str | Sequence[str] = (),
        through: str | None = None,
        to: str | Sequence[str] = (),
        limit: int = DEFAULT_LIMIT,
        columns: str | Sequence[str] = (),
        related: Mapping[str, Related] | None = None,
    ) -> None:
        where = f"Many({table!r})"
        if (through is None) is bool(to):
            raise DeclarationError(f"{where}: through= is a table between, and to= its columns: give both, or neither")
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise DeclarationError(f"{where}: limit is a number of rows, 1 or more, not {limit!r}")
        self._put(
            table=_table(table, where),
            by=_names(by, f"{where}: by", is_needed=True),
            order_by=_names(order_by, f"{where}: order_by"),
            through=None if through is None else _table(through, f"{where}: through"),
            to=_names(to, f"{where}: to"),
            limit=limit,
            columns=_names(columns, f"{where}: columns"),
            related=relations(related, where),
        )

    @property
    def between(self) -> tuple[str, str] | None:
        """Schema and name of `through`."""
        return None if self.through is None else names_of(self.through)

    @property
    def tables(self) -> Iterator[tuple[str, str]]:
        yield self.schema_and_table
        if self.between is not None:
            yield self.between
        yield from _tables(self.related)

    def named(self, asked: Uses | None) -> Iterator[Named]:
        order = (name.removeprefix("-") for name in self.order_by)
        by = () if self.between is not None else self.by
        yield self.schema_and_table, frozenset([*by, *order, *_shown(self, asked)])
        if self.between is not None:
            yield self.between, frozenset([*self.by, *self.to])
        yield from columns_named(self.related, asked)

    @property
    def particulars(self) -> list[Any]:
        through = [self.through, self.to]
        related = related_particulars(self.related)
        return [self.kind, self.table, self.by, self.order_by, *through, self.limit, self.columns, related]


@dataclass(frozen=True, slots=True, init=False)
class Aggregate(Related):
    """A number over the rows of another table that refer to this row; in a Group, over the rows of the group.

    Args:
        table: 'schema.table', on the same server; a Group's own table is not named.
        column: what is counted, added or compared.
        by: the columns of `table` that hold this row's key.
        where: SQL over the columns of `table`: comparisons with constants, AND, OR, NOT, IN, IS NULL. '' of all rows.
    """

    table: str  # '': the table of the group
    column: str | None
    by: tuple[str, ...]
    where: str

    def __init__(self, *of: str, by: str | Sequence[str] = (), where: str = "") -> None:
        name = self.kind
        table, column = self._operands(of)
        label = f"{name}({', '.join(map(repr, of))})"
        if not isinstance(where, str):
            raise DeclarationError(f"{label}: where is SQL over the table's columns, e.g. \"status = 'paid'\"")
        self._put(
            table=_table(table, label) if table else "",
            column=column,
            by=_names(by, f"{label}: by", is_needed=bool(table)),
            where=where,
        )
        if by and not table:
            raise DeclarationError(f"{label}: by= goes with a table; say {name}('schema.table', ..., by=...)")

    def _operands(self, of: Sequence[Any]) -> tuple[str, str | None]:
        """Table and column; the table is '' in a group."""
        if not 1 <= len(of) <= 2 or not all(isinstance(part, str) and part for part in of):
            raise DeclarationError(
                f"{self.kind} is of a column, {self.kind}('schema.table', 'column', by=...), or in a Group "
                f"{self.kind}('column')"
            )
        return (of[0], of[1]) if len(of) == 2 else ("", of[0])

    def named(self, asked: Uses | None) -> Iterator[Named]:
        yield self.schema_and_table, frozenset([*self.by, *([] if self.column is None else [self.column])])

    @property
    def particulars(self) -> list[Any]:
        return [self.kind, self.table, self.column, self.by, self.where]


class Count(Aggregate):
    """How many rows there are: Count('schema.table', by=...), in a Group Count()."""

    __slots__ = ()
    kind = "Count"

    def _operands(self, of: Sequence[Any]) -> tuple[str, str | None]:
        if len(of) > 1 or not all(isinstance(part, str) and part for part in of):
            raise DeclarationError("Count is of rows: Count('schema.table', by=...), or in a Group Count()")
        return (of[0], None) if of else ("", None)


class Sum(Aggregate):
    """The sum of a column of integers or DECIMALs, exact; NULL where no row has a value, as in SQL."""

    __slots__ = ()
    kind = "Sum"


class Min(Aggregate):
    """The least value of a column; NULL where no row has a value."""

    __slots__ = ()
    kind = "Min"


class Max(Aggregate):
    """The largest value of a column; NULL where no row has a value."""

    __slots__ = ()
    kind = "Max"


def relations(given: Mapping[str, Related] | None, where: str) -> Relations:
    """What was declared by name. Raises DeclarationError, with `where`, for what is no relation."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise DeclarationError(f"{where}: related is a dict of names and One, Many, Count, Sum, Min or Max")
    taken: dict[str, str] = {}
    for name, related in given.items():
        if not isinstance(name, str) or not 0 < len(name) <= MOST_CHARACTERS:
            raise DeclarationError(
                f"{where}: related has names that are texts of 1 to {MOST_CHARACTERS} characters, not {name!r}"
            )
        if name.casefold() in taken:
            other = taken[name.casefold()]
            raise DeclarationError(
                f"{where}: related has {other!r} and {name!r}, which differ in case alone; rename one"
            )
        taken[name.casefold()] = name
        if not isinstance(related, Related):
            raise DeclarationError(
                f"{where}: related[{name!r}] is One, Many, Count, Sum, Min or Max, not {type(related).__name__}"
            )
        if isinstance(related, Aggregate) and not related.table:
            raise DeclarationError(
                f"{where}: related[{name!r}] needs its table: {related.kind}('schema.table', ..., by=...)"
            )
    return tuple(given.items())


def related_particulars(related: Relations) -> list[Any]:
    """The same for the fingerprint."""
    return [[name, of.particulars] for name, of in related]


def columns_named(related: Relations, asked: Uses | None) -> Iterator[Named]:
    """As `Related.named`, of those that are asked for."""
    for name, of in related:
        if asked is None or name in asked:
            yield from of.named(None if asked is None else asked[name])


def referring_columns(related: Relations, asked: Uses | None) -> set[str]:
    """The columns of a row that refer to what is asked for."""
    used = [of for name, of in related if isinstance(of, One) and (asked is None or name in asked)]
    return {column for of in used for column in of.on}


def _shown(of: One | Many, asked: Uses | None) -> set[str]:
    """The columns that are named of its rows, and those that refer to further ones."""
    names = {*(of.columns or asked or ())}
    return names.difference(dict(of.related)) | referring_columns(of.related, asked)


def _tables(related: Relations) -> Iterator[tuple[str, str]]:
    for _, of in related:
        yield from of.tables


def _table(given: Any, where: str) -> str:
    names = names_of(given) if isinstance(given, str) else None
    if names is None:
        raise DeclarationError(f"{where}: the table is written 'schema.table', e.g. 'shop.order_line'")
    if any(map(is_pattern, names)):
        raise DeclarationError(f"{where}: # and braces stand for many tables, and related rows are of one; name that")
    return full_name(*names)


def _names(given: Any, where: str, *, is_needed: bool = False) -> tuple[str, ...]:
    if not isinstance(given, str | list | tuple):
        raise DeclarationError(f"{where} is a column's name, or a list of them, not {type(given).__name__}")
    names: tuple[Any, ...] = (given,) if isinstance(given, str) else tuple(given)
    if is_needed and not names:
        raise DeclarationError(f"{where} names one column or several")
    _check_names(names, where)
    return names


def _check_names(names: tuple[Any, ...], where: str) -> None:
    for name in names:
        if not isinstance(name, str) or not name.removeprefix("-"):
            raise DeclarationError(f"{where}: column names are non-empty strings, not {name!r}")
    for name, count in Counter(name.removeprefix("-") for name in names).items():
        if count > 1:
            raise DeclarationError(f"{where}: {name} is named twice; once is enough")
