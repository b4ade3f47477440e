"""Table maps of MariaDB: system-versioned tables, and columns in the format of before 10.1.

Of a system-versioned table the rows that are history now are left out: a row that becomes history was deleted or
replaced.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ingest.binlog import column_types as types
from ingest.binlog import mariadb_types
from ingest.binlog.own_forms import form_of
from ingest.binlog.row_decoder import compile_decoder
from ingest.binlog.stream_errors import BACKFILL_TABLE
from ingest.binlog.table_map import TableMap, parse
from ingest.binlog.table_readers import NO_EXTRA_DATA, CurrentRows, TableReader
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Followed, Row
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.patterns import Part
from viewtail.changes.tables import Column, Kind

_NEVER_PLAIN = b"\xff\xff"  # in its place: no event's rows pass for those of such a table unseen
# The last moment that a TIMESTAMP can hold, in UTC, before and since MariaDB 11.5.
_STILL_CURRENT = frozenset({"2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999"})
_RESTART = f"Restart viewtail, so that it reads the table's definition again, and {BACKFILL_TABLE}"
_OLD_TEMPORAL = re.compile(r"(time|datetime|timestamp) /\* mariadb-5\.3 \*/", re.IGNORECASE)


def compile_mariadb_reader(body: bytes, followed: Followed, part: Part | None = None) -> TableReader:
    """The reader for a table map of MariaDB; raises TableUnreadableError."""
    table_map = parse(body, types.MARIADB_CHARACTER)
    _refuse_old_temporals(table_map, followed)
    row_end = followed.table.row_end
    if row_end is None:
        _refuse_new_versioning(table_map, followed)
    followed = form_of(table_map, followed, mariadb_types.SIZES.values())
    if row_end is None:
        decoded, current, prefix = followed, None, NO_EXTRA_DATA
    else:
        decoded = _with_row_end(table_map, followed, row_end)
        current, prefix = current_rows(decoded.columns.index(row_end), decoded is not followed), _NEVER_PLAIN
    decoder = compile_decoder(table_map, decoded, part=part)
    count = len(table_map.columns)
    bitmap = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")  # unused bits are zeros here [M]
    image = prefix + decoder.write_image[: -len(bitmap)] + bitmap
    return TableReader(followed, decoder, decoder.decode, image, image + bitmap, table_map, current, part)


def current_rows(row_end_at: int, is_added: bool) -> CurrentRows:
    """The changes, by kind, that a change of rows is to a reader of current rows only.

    A decoded row has the end of its validity at `row_end_at`; `is_added`: the last value, which no view asked for.
    """
    shown = slice(None, -1) if is_added else slice(None)

    def current(change: int, rows: list[Row]) -> Iterator[tuple[int, list[Row]]]:
        is_current = [row[row_end_at] in _STILL_CURRENT for row in rows]
        if change != UPDATE:
            yield change, [row[shown] for row, is_ in zip(rows, is_current, strict=True) if is_]
            return
        for before, after, was, is_ in zip(rows[::2], rows[1::2], is_current[::2], is_current[1::2], strict=True):
            if was and is_:
                yield UPDATE, [before[shown], after[shown]]
            elif was:
                yield DELETE, [before[shown]]
            elif is_:
                yield INSERT, [after[shown]]

    return current


def _with_row_end(table_map: TableMap, followed: Followed, row_end: str) -> Followed:
    """The same table with the column that ends a row's validity, which may be hidden."""
    if row_end in followed.columns:
        return followed
    if table_map.column(row_end) is None:
        raise TableUnreadableError(f"{table_map.full_name}: it is no longer system-versioned. {_RESTART}")
    column = Column(name=row_end, kind=Kind.TIMESTAMP, declared="timestamp(6)", is_nullable=False, scale=6)
    others = tuple(other for other in followed.table.columns if other.name != row_end)
    table = replace(followed.table, columns=(*others, column))
    return Followed(table, (*followed.columns, row_end))


def _refuse_new_versioning(table_map: TableMap, followed: Followed) -> None:
    column = table_map.column("row_end")
    has_period = column is not None and (column.type, column.metadata) == (types.TIMESTAMP2, 6)
    if has_period and followed.table.column("row_end") is None:
        raise TableUnreadableError(
            f"{table_map.full_name}: it has a new column row_end, added after its views were set up; it may have "
            f"become system-versioned. {_RESTART}"
        )


def _refuse_old_temporals(table_map: TableMap, followed: Followed) -> None:
    """The format of before MariaDB 10.1: the binlog does not say how long a value with a fraction is."""
    for column in table_map.columns:
        described = followed.table.column(column.name)
        if column.type in (types.TIME, types.DATETIME, types.TIMESTAMP) and (
            described is None or not _OLD_TEMPORAL.fullmatch(described.stored.declared)
        ):
            raise TableUnreadableError(
                f"{table_map.full_name}, column {column.name}: its format is that of before MariaDB 10.1, in which the "
                "binlog does not say how long a value is. SET GLOBAL mysql56_temporal_format = ON; ALTER TABLE ... "
                f"FORCE renews it; then {BACKFILL_TABLE}"
            )
