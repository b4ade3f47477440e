"""The batches that a source hands to a pipeline: whole committed transactions, in order.

Rows are plain tuples from here on downstream, and nowhere else: the values of `Followed.columns`, in that order, in the
forms that docs/types.md lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import repeat
from typing import Any, NamedTuple

from viewtail.changes.patterns import Part
from viewtail.changes.positions import Position
from viewtail.changes.tables import Column, Table

Row = tuple[Any, ...]

INSERT = 0
UPDATE = 1
DELETE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """The other form that rows may have: the table's form when they changed, if it differs from the present one."""

    fixed: frozenset[str]  # columns that must be as they are described
    former: tuple[Column, ...] = ()  # as an earlier description had them: rows from before may have these too


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """A table that some view of a pipeline needs, and which of its columns."""

    table: Table
    columns: tuple[str, ...]  # in the table's ordinal order; the entity keys are always among them
    keys: tuple[tuple[str, ...], ...] = ()  # beside the primary one: those on whose uniqueness views rely
    order: str | None = None  # the column of the ids by which its rows were added, where an entity says it
    forms: Forms | None = None  # None: rows must have every column as it is described
    of: Followed | None = None  # this is a form that rows of that one had: what is followed, as it was described then

    @property
    def described(self) -> Followed:
        """The table as it is described now, whatever form the rows have."""
        return self if self.of is None else self.of


class Origin(NamedTuple):
    """The place of a change, as its source reports it, for people and other systems; no decision depends on it."""

    committed_us: int = 0  # when its transaction was committed, microseconds since 1970; 0: not known
    gtid: str | None = None
    file: str = ""  # of a binlog
    start: int = 0  # of the row event, bytes from the file's start
    server_id: int = 0  # of the server whose binlog it is


UNKNOWN = Origin()


class RowChanges(NamedTuple):
    """The rows of one row event, which share one version."""

    followed: Followed
    kind: int  # INSERT, UPDATE or DELETE
    version: int
    rows: list[Row]  # UPDATE: before, after, before, after, ...
    # What a source keeps of where they come from; `Batch.origin_of` reads it.
    transaction: bytes | bytearray = b""
    start: int = 0


class Refused(NamedTuple):
    """A row that cannot be read exactly (bytes invalid in their character set, what another writer lost): it parks."""

    followed: Followed
    kind: int
    version: int
    rows: list[Row]  # as in RowChanges, unreadable values replaced by `Unreadable`
    reason: str  # names the column, never the value
    transaction: bytes | bytearray = b""  # as in RowChanges
    start: int = 0


class Unreadable:
    """Stands in a row for a value that could not be read."""

    __slots__ = ("cause", "column")

    made = 0  # in this process: while it is 0, nobody needs to look for one

    def __init__(self, column: str, cause: str = "holds bytes that are invalid in its character set") -> None:
        self.column, self.cause = column, cause
        Unreadable.made += 1

    @property
    def reason(self) -> str:
        return f"column {self.column} {self.cause}"


def unreadable_in(values: Iterable[Any]) -> Unreadable | None:
    """The first value that could not be read."""
    return next((value for value in values if isinstance(value, Unreadable)), None)


def bytes_of(values: Iterable[Any]) -> int:
    """How many bytes the texts and byte strings among some values have."""
    size = 0
    for value in values:
        if value.__class__ is str:
            size += len(value) if value.isascii() else len(value.encode())
        elif value.__class__ is bytes:
            size += len(value)
    return size


def pairs(kind: int, rows: list[Row]) -> Iterable[tuple[Row | None, Row | None]]:
    """(before, after) of each row of an event; None where the event has no such row."""
    if kind == UPDATE:
        each = iter(rows)
        return zip(each, each, strict=True)
    return zip(repeat(None), rows) if kind == INSERT else zip(rows, repeat(None))


class Halt(NamedTuple):
    """A table that cannot be read exactly from here on: those of its views halt that need one of the columns.

    The source stops reading the table. Views that do not halt need a reader that follows it without these columns."""

    followed: Followed
    version: int
    reason: str  # what was seen, where, and what to do
    columns: frozenset[str] | None = None  # None: the table as a whole

    def concerns(self, columns: Iterable[str]) -> bool:
        """Return whether a view that needs these columns halts."""
        return self.columns is None or not self.columns.isdisjoint(columns)


class TableChangeKind(Enum):
    """The effect on a table's rows of a statement that has no row events."""

    EMPTIED = "emptied"  # all are gone
    LEFT = "left"  # all are gone with their table, which is one of many; `TableChange.part` says which
    THINNED = "thinned"  # some are gone; the statement does not say which
    REPLACED = "replaced"  # others may have come in their place: another table has the name, or a partition changed
    WIDENED = "widened"  # they are as they were, but a column that views use takes larger values from here on
    EXTENDED = "extended"  # they are as they were, and have a column more
    REDEFINED = "redefined"  # they are as they were, but may be read, or put in order, in another way from here on

    @property
    def keeps_rows(self) -> bool:
        """Return whether the table has the rows that it had."""
        return self in (TableChangeKind.WIDENED, TableChangeKind.EXTENDED, TableChangeKind.REDEFINED)


class TableChange(NamedTuple):
    """A statement took rows of a table away, or put others in their place; it holds from `version` on."""

    followed: Followed
    version: int
    kind: TableChangeKind
    reason: str  # the statement, and its place in the stream
    part: Part | None = None  # of a pattern, the table that it was about; '' for a name: all of its schema

    @property
    def values(self) -> Row:
        """What the keys begin with that it is about; (): with anything."""
        return () if self.part is None else self.part.values


STREAM_END = "end of the stream"  # the token that a source without watermarks gives at what was its end


class Watermark(NamedTuple):
    """A watermark row seen in the stream."""

    token: str
    version: int


@dataclass(slots=True, kw_only=True)
class Batch:
    """Committed transactions, or a piece of one that is too large for a single batch."""

    changes: list[RowChanges]
    end: Position | None  # None: a piece of a large transaction, more follows; no offset may be saved
    row_count: int
    byte_count: int  # of the events as they stood in the binlog
    oldest_commit_us: int  # commit time of the first transaction that tells anything, else of the first; us since 1970
    refused: list[Refused] = field(default_factory=list)
    halts: list[Halt] = field(default_factory=list)
    table_changes: list[TableChange] = field(default_factory=list)
    watermarks: list[Watermark] = field(default_factory=list)
    is_quiet: bool = False  # nothing but viewtail's own tables changed
    origin_of: Callable[[RowChanges | Refused], Origin] = lambda _: UNKNOWN
    is_milestone: bool = False  # the offset must move here, quiet or not: the source drops what lies before, one day

    @property
    def is_telling(self) -> bool:
        """Return whether anything in it concerns a view or a backfill."""
        return bool(self.changes or self.refused or self.halts or self.table_changes or self.watermarks)
