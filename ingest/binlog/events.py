"""Binlog event types, and which of them viewtail reads over (MySQL: binlog_event.h; MariaDB: log_event.h)."""

from __future__ import annotations

from typing import NamedTuple

from ingest.binlog.packed_integers import Buffer

QUERY, STOP, ROTATE, INTVAR = range(2, 6)
APPEND_BLOCK, DELETE_FILE = 9, 11
RAND, USER_VAR, FORMAT_DESCRIPTION, XID, BEGIN_LOAD_QUERY, EXECUTE_LOAD_QUERY, TABLE_MAP = range(13, 20)
WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1, INCIDENT, HEARTBEAT, IGNORABLE, ROWS_QUERY = range(23, 30)
WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS, GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS = range(30, 36)
TRANSACTION_CONTEXT, VIEW_CHANGE, XA_PREPARE, PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD = range(36, 41)
HEARTBEAT_V2, GTID_TAGGED = 41, 42
MARIADB_ANNOTATE_ROWS, MARIADB_BINLOG_CHECKPOINT, MARIADB_GTID, MARIADB_GTID_LIST = range(160, 164)
MARIADB_START_ENCRYPTION, MARIADB_QUERY_COMPRESSED, MARIADB_WRITE_ROWS_COMPRESSED_V1 = range(164, 167)
MARIADB_UPDATE_ROWS_COMPRESSED_V1, MARIADB_DELETE_ROWS_COMPRESSED_V1 = 167, 168
MARIADB_WRITE_ROWS_COMPRESSED, MARIADB_UPDATE_ROWS_COMPRESSED, MARIADB_DELETE_ROWS_COMPRESSED = 169, 170, 171

IGNORABLE_FLAG = 0x80
CHECKSUM_RESIDUE = 0x2144DF1C  # CRC-32 of anything followed by its own CRC-32, low byte first

# Events without rows that change nothing for a view: read over. INTVAR, RAND and USER_VAR hold values for the
# statement in the query event behind them, BEGIN_LOAD_QUERY and APPEND_BLOCK a file for it; the statement is judged.
# START_ENCRYPTION is sent as it is in the file; what is behind it comes decrypted [M, 10.11].
SILENT = frozenset((
    STOP, INTVAR, APPEND_BLOCK, DELETE_FILE, BEGIN_LOAD_QUERY, RAND, USER_VAR, HEARTBEAT, HEARTBEAT_V2, IGNORABLE,
    ROWS_QUERY, PREVIOUS_GTIDS, TRANSACTION_CONTEXT, VIEW_CHANGE, MARIADB_ANNOTATE_ROWS, MARIADB_BINLOG_CHECKPOINT,
    MARIADB_GTID_LIST, MARIADB_START_ENCRYPTION,
))  # fmt: skip

ARTIFICIAL = frozenset({ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2})  # their positions mean nothing

ROWS_V1 = (WRITE_ROWS_V1, UPDATE_ROWS_V1, DELETE_ROWS_V1)
ROWS = (WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS, PARTIAL_UPDATE_ROWS)
# MariaDB's compressed forms, and what each holds.
COMPRESSED = dict(zip(range(MARIADB_QUERY_COMPRESSED, 172), (QUERY, *ROWS_V1, *ROWS[:3]), strict=True))
ROW_EVENTS = frozenset((*ROWS, *ROWS_V1, *COMPRESSED)) - {MARIADB_QUERY_COMPRESSED}

NAMES = {
    value: name
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, int) and not name.endswith(("_FLAG", "_RESIDUE"))
}


class Event(NamedTuple):
    """One event in a buffer. A tuple is made in a third of a frozen dataclass's time; MariaDB needs one an event."""

    kind: int
    flags: int
    buffer: Buffer
    start: int  # of its body, behind the header
    end: int  # of its body, before the checksum
    log_pos: int  # the header's end position, 32 bits
    size: int  # in bytes, with header and checksum
