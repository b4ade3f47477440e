"""Tables and columns as the source declares them; no values, no servers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from viewtail.changes.patterns import Part, Pattern


class Kind(Enum):
    """The form of a column's values in viewtail; docs/types.md is this list with its renderings."""

    INTEGER = "integer"  # TINYINT .. BIGINT, YEAR, BIT: int
    DECIMAL = "decimal"  # decimal.Decimal with the column's scale
    FLOAT = "float"  # the 4-byte value, as a Python float
    DOUBLE = "double"  # float
    TEXT = "text"  # CHAR, VARCHAR, TEXT in a character set other than binary: str
    ENUM = "enum"  # the label: str ('' for the invalid value)
    SET = "set"  # the labels joined by ',': str ('' for none)
    BYTES = "bytes"  # BINARY, VARBINARY, BLOB: bytes, BINARY padded to its full length
    DATE = "date"  # 'YYYY-MM-DD': str, zero dates as they are
    TIME = "time"  # '[-]HH[H]:MM:SS[.f]': str
    DATETIME = "datetime"  # 'YYYY-MM-DD HH:MM:SS[.f]': str
    TIMESTAMP = "timestamp"  # as DATETIME, in UTC
    JSON = "json"  # the server's own text of it: str
    GEOMETRY = "geometry"  # SRID and WKB as the server stores it: bytes
    VECTOR = "vector"  # little-endian 4-byte floats: bytes
    UNSUPPORTED = "unsupported"  # refused by name when a view uses it


# MariaDB's types that are kept as bytes and shown as text, by their declared name: characters of the longest text.
# They are Kind.TEXT in the character set ascii. An INET6 may end as an IPv4 address.
TEXTS_IN_BINARY = {"uuid": 36, "inet4": 15, "inet6": 45}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a canonical table."""

    name: str
    kind: Kind
    declared: str  # COLUMN_TYPE as information_schema prints it, e.g. "varchar(64)", "bigint unsigned"
    is_nullable: bool
    charset: str | None = None  # of TEXT, ENUM, SET; None for the others
    collation: str | None = None  # as the server calls it: by which texts are compared and put in order
    is_unsigned: bool = False
    length: int = 0  # characters of TEXT, bytes of BYTES, bits of BIT, else 0
    precision: int = 0  # digits of DECIMAL
    scale: int = 0  # digits after the point: DECIMAL, or of the seconds of TIME/DATETIME/TIMESTAMP
    labels: tuple[str, ...] = ()  # of ENUM and SET, in order
    fields: tuple[Column, ...] = ()  # of a JSON text that holds a row, or a list of rows: their columns
    is_generated: bool = False  # computed from other columns
    made_from: frozenset[str] | None = field(default=None, compare=False)  # which those are; None: it is not known
    # As information_schema prints it; None where there is none, or NULL. It says nothing about stored values.
    default: str | None = field(default=None, compare=False)
    tags: tuple[str, ...] = ()  # the words behind a # in its comment, in capitals and in order
    mask: Mask | None = None  # what readers of rows do to each value; the column describes what that makes
    # Of a key: the value that it has in each row here, which rendered keys leave out. None: rows differ in it.
    constant: str | None = field(default=None, compare=False)

    @property
    def stored(self) -> Column:
        """The column as the table has it."""
        return self if self.mask is None else self.mask.of

    @property
    def in_store(self) -> Column:
        """The column where its values are masked already: in a view's store."""
        return self if self.mask is None else replace(self, mask=None)

    @property
    def type_name(self) -> str:
        """The declared type in capitals, as in a statement; labels stay as they are."""
        name, bracket, labels = self.declared.partition("(")
        if name.lower() in ("enum", "set"):
            return name.upper() + bracket + labels
        return self.declared.upper()


@dataclass(frozen=True, slots=True)
class Mask:
    """What takes a column's value as it is read; masks.py makes the function of it."""

    how: str  # one of masks.HOW
    of: Column  # as the table has it
    secret: bytes = field(default=b"", repr=False)  # of a hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A canonical table as it was when it was described, or several that are read as one, by a pattern.

    The columns of a pattern are those of its braces, and then those that all of its tables have.
    """

    schema: str
    name: str  # schema and name of a pattern are as it is written
    columns: tuple[Column, ...]  # in ordinal order, generated and invisible ones included
    primary_key: tuple[str, ...]  # column names in key order; empty if the table has none
    unique_keys: tuple[tuple[str, ...], ...] = ()  # other unique keys over NOT NULL columns, no prefixes
    unique_names: tuple[str, ...] = ()  # of these keys, in their order
    pattern: Pattern | None = field(default=None, compare=False)
    parts: tuple[Part, ...] = field(default=(), compare=False)  # of a pattern: its tables then, in order
    part: Part | None = field(default=None, compare=False)  # which of a pattern's tables this is
    lacking: Mapping[str, str] = field(default_factory=dict, compare=False)  # columns of some parts alone, and why
    row_end: str | None = None  # of a system-versioned table: the column, maybe hidden, that ends a row's validity
    # All indexes by name, the primary key first, with the columns that rows can be found by: none behind an expression,
    # and none at all where the optimizer does not use the index.
    indexes: Mapping[str, tuple[str, ...]] = field(default_factory=dict, compare=False)

    @property
    def full_name(self) -> str:
        return full_name(self.schema, self.name)

    @property
    def names(self) -> tuple[str, str]:
        """Schema and name, as the server has them where it is one table."""
        only = None if self.pattern is None else self.pattern.only
        return (self.schema, self.name) if only is None else only[:2]

    @property
    def title(self) -> str:
        """Its full name, the same for what each source has of that name."""
        if self.pattern is None or not self.pattern.source:
            return self.full_name
        return self.full_name.replace(f"={self.pattern.source[0]}}}", "}", 1)

    @property
    def paging_key(self) -> tuple[str, ...]:
        """The columns by which a backfill reads the table in pages: its primary key, without one a unique key."""
        return self.primary_key or next(iter(self.unique_keys), ())

    @property
    def of_braces(self) -> tuple[str, ...]:
        """The columns whose values are in the names of a pattern's tables; the primary key begins with them."""
        return () if self.pattern is None else self.pattern.names

    def without_braces(self) -> Table:
        """What each of a pattern's tables is like."""
        count = len(self.of_braces)
        return replace(
            self,
            columns=self.columns[count:],
            primary_key=self.primary_key[count:],
            unique_keys=tuple(key[count:] for key in self.unique_keys),
            indexes={name: columns[count:] for name, columns in self.indexes.items()},
            pattern=None,
            parts=(),
        )

    def at(self, part: Part) -> Table:
        """One table of a pattern."""
        return replace(self, schema=part.schema, name=part.name, parts=(), part=part)

    @property
    def each(self) -> Iterator[Table]:
        """The tables that have its rows: itself, or those that a pattern had when it was described."""
        return map(self.at, self.parts) if self.pattern is not None and self.part is None else iter((self,))

    def index_of(self, columns: Iterable[str]) -> str | None:
        """The index that finds rows by values of these columns: it begins with them, in any order."""
        wanted = {*columns}
        return next((name for name, parts in self.indexes.items() if {*parts[: len(wanted)]} == wanted), None)

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name == name), None)

    @property
    def stored(self) -> Table:
        """The table as the server has it, without masks."""
        if all(column.mask is None for column in self.columns):
            return self
        return replace(self, columns=tuple(column.stored for column in self.columns))


def united(tables: Sequence[Table]) -> Table:
    """One table as several see it, with the columns that any of them sees, and of a row or rows the fields."""
    first, *others = tables
    if all(table == first for table in others):
        return first
    return replace(first, columns=_united(column for table in tables for column in table.columns))


def _united(columns: Iterable[Column]) -> tuple[Column, ...]:
    by_name: dict[str, Column] = {}
    for column in columns:
        seen = by_name.setdefault(column.name, column)
        if seen.fields != column.fields:
            by_name[column.name] = replace(seen, fields=_united((*seen.fields, *column.fields)))
    return tuple(by_name.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKey:
    """A foreign key that deletes or changes its table's rows when those that they refer to go or change."""

    name: str
    table: tuple[str, str]  # schema and name
    columns: tuple[str, ...]
    parent: tuple[str, str]  # the table that it refers to
    referenced: tuple[str, ...]  # its columns, in the order of `columns`
    on_delete: str  # CASCADE, SET NULL, or one that changes nothing
    on_update: str


class NamePattern(str):
    """A schema's or table's name that stands for several, as an entity writes it: 'org{account_id:int}_invoice'."""

    __slots__ = ()


def full_name(schema: str, table: str) -> str:
    """'schema.table', as `names_of` reads it: a name that is not plain is in backticks, as in SQL."""
    return ".".join(name if is_pattern(name) or _is_plain(name) else _quoted(name) for name in (schema, table))


def _is_plain(name: str) -> bool:
    return "." not in name and name[:1] != "`" and not _MARKS.search(name)


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def names_of(text: str) -> tuple[str, str] | None:
    """Schema and table of 'schema.table', where each may be in backticks; None where the text is not in that form.

    A name without backticks that has braces, or a #, is a `NamePattern`.
    """
    match = _FULL_NAME.fullmatch(text)
    if match is None:
        return None
    schema, table = map(_name, match.groups())
    return (schema, table) if schema and table else None


def _name(written: str) -> str:
    if written[0] == "`":
        return written[1:-1].replace("``", "`")
    return NamePattern(written) if _MARKS.search(written) else written


# A name without a dot that does not begin with a backtick is plain.
_NAME = "(`(?:[^`]|``)*`|[^`.][^.]*)"
_FULL_NAME = re.compile(rf"{_NAME}\.{_NAME}", re.DOTALL)
_MARKS = re.compile(r"#|\{[^{}]*\}")


def is_pattern(name: str) -> bool:
    """Return whether a schema's or table's name stands for several."""
    return isinstance(name, NamePattern)


def unlike(before: Column, now: Column) -> str | None:
    """Why a column's values are not as they were described; None if they mean the same.

    A wider integer or text, a label added at the end, or another supported character set is no difference."""
    if now.kind is not before.kind:
        return f"it was {before.declared} and is now {now.declared}"
    if now.kind is Kind.INTEGER and now.is_unsigned != before.is_unsigned:
        return "it is now unsigned" if now.is_unsigned else "it is now signed"
    if now.scale != before.scale:
        return f"it has now {now.scale} digits after the point"
    if _is_padded_otherwise(before, now):
        return f"it is now {now.declared}, padded to another length"
    if now.labels[: len(before.labels)] != before.labels:
        return "it has other labels now"
    if now.is_generated != before.is_generated:
        return "it is now computed from others" if now.is_generated else "it is no longer computed"
    return None


def _is_padded_otherwise(before: Column, now: Column) -> bool:
    """A BINARY fills each value up to its length with zero bytes."""
    return before.declared.startswith("binary(") and (now.declared, now.length) != (before.declared, before.length)
