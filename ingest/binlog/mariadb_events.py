"""What only MariaDB's binlog has: its GTIDs, which begin transactions, row events of the first version, compressed
events, and tables that keep their history.

A compressed event is turned into the plain one that it holds, at its own position, and walked as that. Of a
system-versioned table the rows that are history now are left out: a row that becomes history was deleted or replaced.

Source of the forms: Gtid_log_event and binlog_buf_uncompress (sql/log_event.h, sql/log_event.cc) of MariaDB 10.11.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from changes.batches import DELETE, INSERT, UPDATE, Followed, Row
from changes.errors import SourceError, TableUnreadableError
from changes.tables import Column, Kind
from ingest.binlog import gtids, statements
from ingest.binlog import table_map as types
from ingest.binlog.compression import MalformedCompressionError, inflated
from ingest.binlog.control_events import RareEvents
from ingest.binlog.events import (
    COMPRESSED,
    DELETE_ROWS,
    DELETE_ROWS_V1,
    FORMAT_DESCRIPTION,
    MARIADB_GTID,
    MARIADB_QUERY_COMPRESSED,
    UPDATE_ROWS,
    UPDATE_ROWS_V1,
    WRITE_ROWS,
    WRITE_ROWS_V1,
)
from ingest.binlog.open_transaction import PACKET_HEAD_BYTES, Plan
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.query_event import Query
from ingest.binlog.row_decoder import compile_decoder
from ingest.binlog.stream_errors import name_of, rows_without_map, unpaired

_GTID = struct.Struct("<QIB").unpack_from  # number, domain, flags
_GTID_BYTES = 13
_STANDALONE, _GROUP_COMMIT, _XA = 0x01, 0x02, 0x40 | 0x80
_START_ALTER, _ROLLBACK_ALTER = 0x02, 0x08  # extra flags: the statement that decides is another event's
_HEADER = struct.Struct("<IBI").unpack_from  # time, type, server id
_HEADER_BYTES = 19
_TABLE_ID = struct.Struct("<IH").unpack_from
_EVENT_TYPES_AT = 57  # in a format description: behind version, server, time and header length
_ROWS_V1 = frozenset({WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1})
_ROWS_V2 = frozenset({WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS})
_V2_LESS_V1 = WRITE_ROWS - WRITE_ROWS_V1
_NO_EXTRA_DATA = b"\x02\x00"
_NEVER_PLAIN = b"\xff\xff"  # in its place: no event's rows pass for those of such a table unseen
_FOR_ONE_STATEMENT = re.compile(
    r"SET\s+STATEMENT\s(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|[^'\"`])*?\sFOR\s+", re.IGNORECASE
)
# The last moment that a TIMESTAMP can hold, in UTC, before and since MariaDB 11.5.
_STILL_CURRENT = frozenset({"2038-01-19 03:14:07.999999", "2106-02-07 06:28:15.999999"})
_OLD_TEMPORAL = re.compile(r"(time|datetime|timestamp) /\* mariadb-5\.3 \*/", re.IGNORECASE)


@dataclass(slots=True, eq=False, kw_only=True)
class VersionedPlan(Plan):
    """A plan of a system-versioned table."""

    row_end_at: int  # where a decoded row has the end of its validity
    is_row_end_added: bool  # whether it is the last value, which no view asked for


class MariaDBEvents(RareEvents):
    """What each of these events does to a walk."""

    _is_mariadb = False
    _is_void = False  # of an ALTER TABLE in two steps: the one that changes nothing

    def _unusual(
        self,
        kind: int,
        flags: int,
        buffer: Buffer,
        b: int,
        rows_end: int,
        log_pos: int,
        size: int,
    ) -> None:
        if kind == FORMAT_DESCRIPTION:
            # MySQL knows some forty types of events.
            self._is_mariadb = rows_end - b - _EVENT_TYPES_AT > MARIADB_GTID
        elif self._verifying is None and kind in COMPRESSED:
            self._compressed_kind(kind, flags, buffer, b, rows_end, log_pos)
            return
        elif self._verifying is None and (kind in _ROWS_V1 or kind in _ROWS_V2):
            self._last_pos = log_pos
            self._row_event(kind, buffer, b, rows_end, log_pos, size)
            return
        super()._unusual(kind, flags, buffer, b, rows_end, log_pos, size)

    # -- transactions -------------------------------------------------------------------------------------------

    def _begin(self, kind: int, buffer: Buffer, b: int, rows_end: int, log_pos: int, size: int) -> None:
        if (kind == MARIADB_GTID) != self._is_mariadb:
            self._unknown(kind, log_pos)
        if not self._is_mariadb:
            super()._begin(kind, buffer, b, rows_end, log_pos, size)
            return
        number, domain, flags = _GTID(buffer, b)
        committed_at_s, _, server = _HEADER(buffer, b - _HEADER_BYTES)
        self._gtid = gtids.mariadb(domain, server, number, committed_at_s)
        self._txn_start = (self._wraps << 32) + log_pos - size
        if not flags & _STANDALONE:  # what follows is a transaction; no BEGIN says so
            self._begun_at = self._txn_start
        if flags & _XA:  # nor XA START
            self._branch_at = self._txn_start
        self._is_void = bool(_extra_flags(buffer, b, rows_end, flags) & (_START_ALTER | _ROLLBACK_ALTER))

    def _judge(self, statement: str, query: Query, log_pos: int) -> None:
        if self._is_void:
            return
        if found := _FOR_ONE_STATEMENT.match(statement):
            statement = statement[found.end() :]
        super()._judge(statement, query, log_pos)

    def _reached(self, statement: str, query: Query) -> list[Followed]:
        """MariaDB tells of no databases: they are taken to be the session's and those that the statement names."""
        if not self._is_mariadb:
            return super()._reached(statement, query)
        return statements.of_schemas(statement, query.database, self._followed.values())

    # -- rows ---------------------------------------------------------------------------------------------------

    def _row_event(self, kind: int, buffer: Buffer, b: int, rows_end: int, log_pos: int, size: int) -> None:
        low, high = _TABLE_ID(buffer, b)
        if (table := low | high << 32) not in self._tables:
            rows_without_map(kind, self.place)
        plan = self._tables[table]
        if not plan:
            return
        self._held_bytes += size
        if self._held_bytes > self._most_held:
            self._held_bytes = self._spill(self._committed, self._held_bytes, size)
        if kind in _ROWS_V1:
            version = self._version(log_pos)
            self._rows_at(plan, kind + _V2_LESS_V1, version, buffer, b + 8, rows_end)
        else:
            self._other_image(plan, kind, self._version(log_pos), buffer, b, rows_end)

    def _compressed_kind(
        self, kind: int, flags: int, buffer: Buffer, b: int, rows_end: int, log_pos: int
    ) -> None:
        """An event whose end is compressed: walked as the plain one that it holds."""
        try:
            at = _compressed_at(kind, buffer, b)
            length, start = _uncompressed_bytes(buffer, at, rows_end)
            if length > self.max_event_bytes:
                self.halt_too_large(bytes(buffer[b - _HEADER_BYTES : at]), length)
                return
            content = inflated(buffer[start:rows_end], length, wbits=zlib.MAX_WBITS)
        except (MalformedCompressionError, IndexError) as error:
            raise SourceError(
                f"event {name_of(kind)} at {self._file}:{log_pos} cannot be decompressed: {error}. Nothing is skipped, "
                "so the pipeline stops before it. Look at it with mariadb-binlog; to go on behind it: viewtail replay "
                "--new-history"
            ) from None
        plain = bytearray(buffer[b - PACKET_HEAD_BYTES : at]) + content
        size = len(plain) - PACKET_HEAD_BYTES + _HEADER_BYTES + self._checksum_bytes
        head = PACKET_HEAD_BYTES - _HEADER_BYTES
        plain[:3] = min(size + 1, 0xFFFFFF).to_bytes(3, "little")
        plain[head + 4] = COMPRESSED[kind]
        plain[head + 9 : head + 13] = size.to_bytes(4, "little")
        plain_end = len(plain)
        if self._checksum_bytes:
            plain += zlib.crc32(memoryview(plain)[head:]).to_bytes(4, "little")
        self._unusual(COMPRESSED[kind], flags, plain, PACKET_HEAD_BYTES, plain_end, log_pos, size)

    # -- tables -------------------------------------------------------------------------------------------------

    def _compiled(self, body: bytes, followed: Followed) -> Plan:
        if not self._is_mariadb:
            return super()._compiled(body, followed)
        table_map = types.parse(body, types.MARIADB_CHARACTER)
        _refuse_old_temporals(table_map, followed)
        row_end = followed.table.row_end
        if row_end is None:
            _refuse_new_versioning(table_map, followed)
            wide = followed
        else:
            wide = _with_row_end(table_map, followed, row_end)
        decoder = compile_decoder(table_map, wide)
        count = len(table_map.columns)
        bitmap = ((1 << count) - 1).to_bytes((count + 7) // 8, "little")  # unused bits are zeros here [M]
        image = decoder.write_image[: -len(bitmap)] + bitmap
        prefix = _NO_EXTRA_DATA if row_end is None else _NEVER_PLAIN
        plan = Plan(followed, decoder, decoder.decode, prefix + image, prefix + image + bitmap, table_map)
        if row_end is None:
            return plan
        return VersionedPlan(
            followed,
            decoder,
            decoder.decode,
            plan.write_image,
            plan.update_image,
            table_map,
            row_end_at=wide.columns.index(row_end),
            is_row_end_added=wide is not followed,
        )

    def _image_rows(self, plan: Plan, kind: int, version: int, buffer: Buffer, r: int, rows_end: int) -> None:
        if not isinstance(plan, VersionedPlan):
            super()._image_rows(plan, kind, version, buffer, r, rows_end)
            return
        try:
            rows = plan.decoder.decode_carefully(buffer, r, rows_end)
            if kind == UPDATE_ROWS and len(rows) & 1:
                unpaired(plan.followed)
        except TableUnreadableError as error:
            self._halt(plan.followed, version, str(error))
            return
        for change, some in _current(plan, kind - WRITE_ROWS, rows):
            self._sort_out(plan, change + WRITE_ROWS, version, some)


def _extra_flags(buffer: Buffer, b: int, rows_end: int, flags: int) -> int:
    """What stands behind the group's commit number and the XA name, where the server wrote it."""
    at = b + _GTID_BYTES
    if flags & _GROUP_COMMIT:
        at += 8
    if flags & _XA:
        at += 6 + buffer[at + 4] + buffer[at + 5]
    return buffer[at] if at < rows_end else 0


# -- system-versioned tables --------------------------------------------------------------------------------------


def _with_row_end(table_map: types.TableMap, followed: Followed, row_end: str) -> Followed:
    """The same table with the column that ends a row's validity, which may be hidden."""
    if row_end in followed.columns:
        return followed
    if table_map.column(row_end) is None:
        raise TableUnreadableError(
            f"{table_map.full_name}: it is no longer system-versioned. Start viewtail again so that it looks at the "
            "table anew, and fill the views of this table again: viewtail replay VIEW"
        )
    column = Column(name=row_end, kind=Kind.TIMESTAMP, declared="timestamp(6)", is_nullable=False, scale=6)
    others = tuple(one for one in followed.table.columns if one.name != row_end)
    table = replace(followed.table, columns=(*others, column))
    return Followed(table, (*followed.columns, row_end))


def _current(plan: VersionedPlan, kind: int, rows: list[Row]) -> Iterator[tuple[int, list[Row]]]:
    """What a change was to somebody who sees current rows only."""
    at = plan.row_end_at
    if kind != UPDATE:
        if current := [_shown(plan, row) for row in rows if row[at] in _STILL_CURRENT]:
            yield kind, current
        return
    for before, after in zip(rows[::2], rows[1::2], strict=True):
        was, is_ = before[at] in _STILL_CURRENT, after[at] in _STILL_CURRENT
        if was and is_:
            yield UPDATE, [_shown(plan, before), _shown(plan, after)]
        elif was:
            yield DELETE, [_shown(plan, before)]
        elif is_:
            yield INSERT, [_shown(plan, after)]


def _shown(plan: VersionedPlan, row: Row) -> Row:
    return row[:-1] if plan.is_row_end_added else row


def _refuse_new_versioning(table_map: types.TableMap, followed: Followed) -> None:
    column = table_map.column("row_end")
    if (
        column is not None
        and column.type == types.TIMESTAMP2
        and column.metadata == 6
        and followed.table.column("row_end") is None
    ):
        raise TableUnreadableError(
            f"{table_map.full_name}: it has a column row_end that it had not when its views were set up; it may have "
            "become system-versioned. Start viewtail again so that it looks at the table anew, and fill the views of "
            "this table again: viewtail replay VIEW"
        )


# -- old temporal columns -----------------------------------------------------------------------------------------


def _refuse_old_temporals(table_map: types.TableMap, followed: Followed) -> None:
    """The format of before MariaDB 10.1: with a fraction its size stands nowhere in the binlog."""
    for column in table_map.columns:
        described = followed.table.column(column.name)
        if column.type in (types.TIME, types.DATETIME, types.TIMESTAMP) and (
            described is None or not _OLD_TEMPORAL.fullmatch(described.declared)
        ):
            raise TableUnreadableError(
                f"{table_map.full_name}, column {column.name}: its format is that of before MariaDB 10.1, in which the "
                "binlog does not say how long a value is. SET GLOBAL mysql56_temporal_format = ON; ALTER TABLE ... "
                "FORCE renews it; then fill the views of this table again: viewtail replay VIEW"
            )


# -- compression --------------------------------------------------------------------------------------------------


def _compressed_at(kind: int, buffer: Buffer, b: int) -> int:
    """Where in an event's body the compressed part begins."""
    if kind == MARIADB_QUERY_COMPRESSED:
        return b + 13 + (buffer[b + 11] | buffer[b + 12] << 8) + buffer[b + 8] + 1
    plain = COMPRESSED[kind]
    at = b + 8
    if plain in _ROWS_V2:
        at += buffer[at] | buffer[at + 1] << 8
    count, at = (buffer[at], at + 1) if buffer[at] < 251 else (buffer[at + 1] | buffer[at + 2] << 8, at + 3)
    bitmaps = 2 if plain in (UPDATE_ROWS, UPDATE_ROWS_V1) else 1
    return at + (count + 7) // 8 * bitmaps


def _uncompressed_bytes(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """(how long it is decompressed, where the stream begins)."""
    first = buffer[at]
    start = at + 1 + (first & 0x07)
    if first & 0xF0 != 0x80 or not first & 0x07 or start > end:
        raise MalformedCompressionError(f"its first byte is {first:#x}")
    return int.from_bytes(buffer[at + 1 : start], "big"), start
