"""The tables that an entity's rows are made of, as a tree: how the rows of each are found from those above it.

A hop leads from a table to the next: two lists of columns that have equal values. Where equal values are equal in
Python, too (integers, bytes, moments), rows are asked for by value. Texts are equal by their collation, so there the
server joins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from projectors.binding import Describe, paging_problems, unknown_column
from projectors.derived.conditions import Condition, condition_of
from projectors.masking import check_plain
from projectors.related import Aggregate, Many, One, Related, Relations, Uses
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table

Columns = tuple[Column, ...]

_BY_VALUE = frozenset({Kind.INTEGER, Kind.BYTES, Kind.DECIMAL, Kind.DATE, Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})
_MOMENTS = frozenset({Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})
_ADDED = frozenset({Kind.INTEGER, Kind.DECIMAL})
_COMPARED = _ADDED | _MOMENTS | {Kind.DATE, Kind.FLOAT, Kind.DOUBLE}


@dataclass(frozen=True, slots=True)
class Hop:
    """From the rows of a table to rows of another one."""

    near: Table
    near_on: Columns
    far: Table
    far_on: Columns

    @property
    def is_by_value(self) -> bool:
        """Whether values that the server takes for equal are equal in Python."""
        return all(column.kind in _BY_VALUE for column in self.far_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Related rows of one name, and what they have from further tables."""

    name: str
    path: str  # the names from the root, joined by '.'
    hops: tuple[Hop, ...]  # two where a table is between
    is_many: bool
    columns: Columns  # of the last table, that a row has
    order: tuple[tuple[Column, bool], ...]  # each with whether it descends
    limit: int
    children: tuple[Node | Numbers, ...]

    @property
    def table(self) -> Table:
        return self.hops[-1].far

    @property
    def key(self) -> Columns:
        return primary_key(self.table)

    @property
    def fields(self) -> Columns:
        """What a row has, in order."""
        return (*self.columns, *(column for child in self.children for column in child.shown))

    @property
    def shown(self) -> Columns:
        """The column that the row above has."""
        types = ", ".join(f"{field.name} {field.declared}" for field in self.fields)
        kind = "rows" if self.is_many else "row"
        declared = f"{kind} of {self.table.full_name} ({types})"
        return (
            Column(
                name=self.name,
                kind=Kind.JSON,
                declared=declared,
                is_nullable=not self.is_many,
                fields=self.fields,
            ),
        )

    @property
    def read(self) -> Columns:
        """The columns of the last table that are read: shown, or needed to find further rows."""
        further = (column for child in self.children for column in group_columns(child.hops[0]))
        return tuple(dict.fromkeys((*self.columns, *further)))

    @property
    def depends_on(self) -> Columns:
        """The columns of the last table on which the rows and their order depend."""
        return (*self.read, *(column for column, _ in self.order), *referring(self.children))


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers over the rows of a table that refer to the row above; those of one condition are read together."""

    path: str
    hops: tuple[Hop, ...]
    condition: Condition | None
    numbers: tuple[tuple[str, Column], ...]  # SQL of each, with the column that the row above has
    over: Columns  # of the table, that are counted, added or compared

    @property
    def shown(self) -> Columns:
        return tuple(column for _, column in self.numbers)

    @property
    def table(self) -> Table:
        return self.hops[-1].far

    @property
    def depends_on(self) -> Columns:
        """The columns of the table on which the numbers depend."""
        return (*self.over, *(() if self.condition is None else self.condition.columns))


def group_columns(hop: Hop) -> Columns:
    """The columns of the rows above whose values find the rows of a hop: where texts are compared, their key."""
    return hop.near_on if hop.is_by_value else primary_key(hop.near)


def referring(children: Sequence[Node | Numbers]) -> Columns:
    """The columns of the row above that refer to what belongs to it, read or not: where one changes, so does that."""
    return tuple(column for child in children for column in child.hops[0].near_on)


def primary_key(table: Table) -> Columns:
    """The columns of a table's primary key."""
    return tuple(column for name in table.primary_key if (column := table.column(name)) is not None)


def below(children: Sequence[Node | Numbers]) -> Iterator[tuple[tuple[Node, ...], Node | Numbers]]:
    """Every node of a tree, with those above it, from the top."""
    for child in children:
        yield (), child
        if isinstance(child, Node):
            for above, node in below(child.children):
                yield (child, *above), node


class Growing:
    """Builds the tree of a declaration with the tables as they are now; what is wrong is in `problems`."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self.problems: list[str] = []

    def key(self, table: Table, names: Sequence[str]) -> Columns:
        """The entity's key: by default the primary key."""
        try:
            return self._unique(table, names)
        except DeclarationError as error:
            self.problems.append(f"key: {error}")
            return primary_key(table)

    def children(
        self, table: Table, key: Columns, related: Relations, uses: Uses | None, path: str = ""
    ) -> tuple[Node | Numbers, ...]:
        """Those of the relations that are used.

        Args:
            key: of `table`, by which rows refer to it.
            uses: the names that are asked for, with what is asked of each; None: all.
        """
        if not key:
            return ()  # which is a problem already
        children: list[Node | Numbers] = []
        numbers: dict[tuple[Any, ...], list[tuple[str, Aggregate]]] = {}
        for name, of in related:
            self._check_is_free(table, name, path)
            if uses is not None and name not in uses:
                continue
            if isinstance(of, Aggregate):
                numbers.setdefault((of.table, of.by, of.where), []).append((name, of))
                continue
            try:
                children.append(self._node(table, key, name, of, None if uses is None else uses[name], path))
            except DeclarationError as error:
                self._note(f"{path}{name}", error)
        for some in numbers.values():
            try:
                children.append(self._numbers(table, key, some, path))
            except DeclarationError as error:
                self._note(f"{path}{some[0][0]}", error)
        return tuple(children)

    def _check_is_free(self, table: Table, name: str, path: str) -> None:
        if any(column.name.casefold() == name.casefold() for column in table.columns):
            self._note(f"{path}{name}", f"{table.full_name} has a column of that name; choose another")

    def _note(self, path: str, error: DeclarationError | str) -> None:
        if str(error):  # a table that is missing is named once
            self.problems.append(f"related {path!r}: {error}")

    def _node(self, table: Table, key: Columns, name: str, of: Related, uses: Uses | None, path: str) -> Node:
        far = self._table(of.schema_and_table)
        if isinstance(of, One):
            on = self._plain_columns(table, of.on)
            hops: tuple[Hop, ...] = (
                self._hop(table, on, far, self._unique(far, of.to, "to ", "say Many where it means all of them")),
            )
            order: tuple[tuple[Column, bool], ...] = ()
            limit = 1
        else:
            assert isinstance(of, Many)
            hops = self._many(table, key, of, far)
            order, limit = self._order(far, of.order_by), of.limit
        path = f"{path}{name}"
        children = self.children(far, primary_key(far), of.related, uses, f"{path}.")
        return Node(
            name=name,
            path=path,
            hops=hops,
            is_many=isinstance(of, Many),
            columns=self._shown(far, of.columns, uses),
            order=order,
            limit=limit,
            children=children,
        )

    def _many(self, table: Table, key: Columns, of: Many, far: Table) -> tuple[Hop, ...]:
        if of.between is None:
            return (self._hop(table, key, far, self._plain_columns(far, of.by)),)
        between = self._table(of.between)
        first = self._hop(table, key, between, self._plain_columns(between, of.by))
        return first, self._hop(between, self._plain_columns(between, of.to), far, primary_key(far))

    def _numbers(self, table: Table, key: Columns, some: Sequence[tuple[str, Aggregate]], path: str) -> Numbers:
        of = some[0][1]
        far = self._table(of.schema_and_table)
        numbers = [(aggregate, number) for each in some for aggregate, number in self._number(*each, far, path)]
        return Numbers(
            path=f"{path}{some[0][0]}",
            hops=(self._hop(table, key, far, self._plain_columns(far, of.by)),),
            condition=condition_of(of.where, far) if of.where else None,
            numbers=tuple(number for _, number in numbers),
            over=self._plain_columns(
                far, [aggregate.column for aggregate, _ in numbers if aggregate.column is not None]
            ),
        )

    def _number(
        self, name: str, of: Aggregate, far: Table, path: str
    ) -> Iterator[tuple[Aggregate, tuple[str, Column]]]:
        """The number; none where it is a problem, which is noted under its own name."""
        try:
            yield of, number_of(name, of, far)
        except DeclarationError as error:
            self._note(f"{path}{name}", error)

    def _table(self, name: tuple[str, str]) -> Table:
        table = self._describe(*name)
        if not table.primary_key:
            raise DeclarationError(_no_key(table))
        for column in primary_key(table):
            check_plain(column, table, "its rows are told apart by it")
        return table

    def _plain_columns(self, table: Table, names: Sequence[str]) -> Columns:
        """Columns whose values find or order rows, or are added up."""
        columns = self._columns(table, names)
        for column in columns:
            check_plain(column, table, "rows are found, put in order or added up by it")
        return columns

    def _columns(self, table: Table, names: Sequence[str]) -> Columns:
        columns = []
        for name in names:
            column = table.column(name)
            if column is None:
                raise DeclarationError(unknown_column(table, name, "column"))
            if column.kind is Kind.UNSUPPORTED:
                raise DeclarationError(
                    f"column {name} of {table.full_name} is {column.type_name}, which viewtail cannot read exactly; "
                    "convert it (text: to utf8mb4), or name another column"
                )
            columns.append(column)
        return tuple(columns)

    def _unique(self, table: Table, names: Sequence[str], what: str = "", or_else: str = "name another") -> Columns:
        if not names and not table.primary_key:
            raise DeclarationError(_no_key(table))
        if (
            names
            and set(names) != set(table.primary_key)
            and not any(set(names) == set(key) for key in table.unique_keys)
        ):
            raise DeclarationError(
                f"{what}({', '.join(names)}) is no primary key and no unique key over NOT NULL columns of "
                f"{table.full_name}, so two rows may share it; make it one, or {or_else}"
            )
        return self._plain_columns(table, names or table.primary_key)

    def _hop(self, near: Table, near_on: Columns, far: Table, far_on: Columns) -> Hop:
        if len(near_on) != len(far_on):
            names = [", ".join(column.name for column in on) for on in (near_on, far_on)]
            raise DeclarationError(
                f"({names[0]}) of {near.full_name} and ({names[1]}) of {far.full_name} are not equally many columns; "
                "name one for each"
            )
        for problem in paging_problems(near):
            raise DeclarationError(problem)
        for ours, theirs in zip(near_on, far_on, strict=True):
            if (why := _unequal(ours, theirs)) is not None:
                raise DeclarationError(
                    f"column {ours.name} of {near.full_name} is {ours.type_name} and column {theirs.name} of "
                    f"{far.full_name} {theirs.type_name}{why}"
                )
        return Hop(near, near_on, far, far_on)

    def _order(self, table: Table, names: Sequence[str]) -> tuple[tuple[Column, bool], ...]:
        columns = self._plain_columns(table, [name.removeprefix("-") for name in names])
        named = [(column, name.startswith("-")) for column, name in zip(columns, names, strict=True)]
        return (*named, *((column, False) for column in primary_key(table) if column not in columns))

    def _shown(self, table: Table, names: Sequence[str], uses: Uses | None) -> Columns:
        if names:
            return self._columns(table, names)
        return tuple(
            column
            for column in table.columns
            if column.kind is not Kind.UNSUPPORTED and (uses is None or column.name in uses)
        )


def _no_key(table: Table) -> str:
    return f"{table.full_name} has no primary key, so its rows cannot be told apart; add one"


def _unequal(ours: Column, theirs: Column) -> str | None:
    """Why the values of two columns cannot be looked for in each other; None where they can."""
    if ours.kind is not theirs.kind or (ours.kind not in _BY_VALUE and ours.kind is not Kind.TEXT):
        return ": values of these types are not looked for in each other; give both columns one type"
    of, why = _MUST_AGREE.get(ours.kind, (None, ""))
    return None if of is None or of(ours) == of(theirs) else why.format(ours=ours, theirs=theirs)


def _padded(column: Column) -> int:
    """To how many bytes zeros are added to a value."""
    return column.length if column.declared.startswith("binary(") else 0


# By kind, what decides beside the value whether two are equal, and what is said where it differs.
_MUST_AGREE: Mapping[Kind, tuple[Callable[[Column], object], str]] = {
    **dict.fromkeys(
        _MOMENTS,
        (lambda column: column.scale, ": they keep other fractions of a second; give both columns one type"),
    ),
    Kind.DECIMAL: (
        lambda column: column.scale,
        ": they keep other digits after the point; give both columns one type",
    ),
    Kind.BYTES: (_padded, ": zeros are added to the values of one of them; give both columns one type"),
    Kind.TEXT: (
        lambda column: column.collation,
        (
            ": the collations {ours.collation} and {theirs.collation} differ in which texts are equal, and no index "
            "serves both; give both columns one collation"
        ),
    ),
}


def number_of(name: str, of: Aggregate, table: Table) -> tuple[str, Column]:
    """The SQL of a number over rows of a table, and the column that it makes. Raises DeclarationError."""
    if of.column is None:
        return "COUNT(*)", Column(name=name, kind=Kind.INTEGER, declared="bigint", is_nullable=False)
    column = table.column(of.column)
    if column is None:
        raise DeclarationError(unknown_column(table, of.column, "column"))
    check_plain(column, table, f"{of.kind} is made of it")
    is_exact = column.kind in _ADDED and not column.declared.startswith(("bit", "year"))
    if of.kind == "Sum" and not is_exact:
        raise DeclarationError(
            f"Sum of column {column.name} of {table.full_name}, which is {column.type_name}: only sums of integers and "
            "DECIMALs are exact; make it a DECIMAL, or add up in the view's function"
        )
    if column.kind not in _COMPARED or column.declared.startswith("bit"):
        raise DeclarationError(
            f"{of.kind} of column {column.name} of {table.full_name}, which is {column.type_name}: numbers, dates and "
            "times are compared; name such a column"
        )
    sql = f"{of.kind.upper()}(`{column.name.replace('`', '``')}`)"
    if of.kind == "Sum":
        scale = column.scale if column.kind is Kind.DECIMAL else 0
        declared = f"decimal(65,{scale})"
        return sql, Column(name=name, kind=Kind.DECIMAL, declared=declared, is_nullable=True, precision=65, scale=scale)
    return sql, Column(
        name=name,
        kind=column.kind,
        declared=column.declared,
        is_nullable=True,
        is_unsigned=column.is_unsigned,
        length=column.length,
        precision=column.precision,
        scale=column.scale,
    )
