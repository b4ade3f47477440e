"""How many rows of a table have one value: on average by the server's statistics, and the most in a sample.

A value that many rows have is in a sample of few. The rows of the values that are in it most often are counted by an
index, up to a bound. It opens no session; that a SELECT ends in time is the caller's to set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ingest.canonical.rows import source_errors
from ingest.canonical.sampling import sampled
from ingest.canonical.tables import row_estimates
from viewtail.changes.batches import Row, unreadable_in
from viewtail.changes.errors import TookTooLongError
from viewtail.changes.tables import Column, Table
from viewtail.servers.literals import rows_with, where_all
from viewtail.servers.sessions import Connection, quote, value_of

SAMPLE_ROWS = 300  # a value of a hundredth of all rows is in it, as good as always
COUNTED = 3  # values
MOST_ROWS = 1_000_000  # that are counted
_CARDINALITY = (
    "SELECT cardinality FROM information_schema.statistics "
    "WHERE table_schema = %s AND table_name = %s AND index_name = %s AND seq_in_index = %s"
)


@dataclass(frozen=True, slots=True)
class GroupSizes:
    """How many rows have one value; all numbers are about right."""

    average: float | None  # None: the server has no statistics
    largest: int  # of the values of a sample; 0 for an empty table
    values: Row  # of the largest
    is_more: bool  # there may be more than `largest`


def group_sizes(connection: Connection, table: Table, columns: Sequence[Column], index: str) -> GroupSizes:
    """The sizes by some columns, which `index` begins with. Raises source errors."""
    names = [column.name for column in columns]
    filled = " AND ".join(f"{quote(column.name)} IS NOT NULL" for column in columns if column.is_nullable)
    wanted = list(dict.fromkeys((*table.primary_key, *names)))
    rows = sampled(connection, table, wanted, SAMPLE_ROWS, filled)
    at = [wanted.index(name) for name in names]
    values = Counter(value for row in rows if unreadable_in(value := tuple(row[place] for place in at)) is None)
    estimate = row_estimates(connection, [(table.schema, table.name)]).get((table.schema, table.name), 0)
    largest: tuple[int, Row, bool] = (0, (), False)
    for value, often in values.most_common(COUNTED):
        size, is_more = _counted(connection, table, columns, value)
        if is_more:
            size = max(size, estimate * often // len(rows))
        largest = max(largest, (size, value, is_more), key=lambda each: each[0])
    average = _average(connection, table, index, len(columns), estimate)
    return GroupSizes(average, *largest)


def _counted(connection: Connection, table: Table, columns: Sequence[Column], value: Row) -> tuple[int, bool]:
    """How many rows have a value, and whether there may be more: it was not counted to the end."""
    where = where_all(rows_with(columns, [value]))
    some = f"SELECT 1 FROM {quote(table.schema, table.name)}{where} LIMIT {MOST_ROWS + 1}"
    try:
        with source_errors(connection):
            size = int(value_of(connection, f"SELECT COUNT(*) FROM ({some}) g"))
    except TookTooLongError:
        return 0, True
    return min(size, MOST_ROWS), size > MOST_ROWS


def _average(connection: Connection, table: Table, index: str, width: int, estimate: int) -> float | None:
    with source_errors(connection):
        different = value_of(connection, _CARDINALITY, table.schema, table.name, index, width)
    return estimate / different if different and estimate else None
