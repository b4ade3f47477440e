"""Binlog event types, and what viewtail does with those that carry no rows (MySQL source, binlog_event.h; MariaDB
source, log_event.h)."""

from __future__ import annotations

from typing import NamedTuple

from ingest.binlog.packed_integers import Buffer

QUERY = 2
STOP = 3
ROTATE = 4
INTVAR = 5
APPEND_BLOCK = 9
DELETE_FILE = 11
RAND = 13
USER_VAR = 14
FORMAT_DESCRIPTION = 15
XID = 16
BEGIN_LOAD_QUERY = 17
EXECUTE_LOAD_QUERY = 18
TABLE_MAP = 19
WRITE_ROWS_V1 = 23
UPDATE_ROWS_V1 = 24
DELETE_ROWS_V1 = 25
INCIDENT = 26
HEARTBEAT = 27
IGNORABLE = 28
ROWS_QUERY = 29
WRITE_ROWS = 30
UPDATE_ROWS = 31
DELETE_ROWS = 32
GTID = 33
ANONYMOUS_GTID = 34
PREVIOUS_GTIDS = 35
TRANSACTION_CONTEXT = 36
VIEW_CHANGE = 37
XA_PREPARE = 38
PARTIAL_UPDATE_ROWS = 39
TRANSACTION_PAYLOAD = 40
HEARTBEAT_V2 = 41
GTID_TAGGED = 42
MARIADB_ANNOTATE_ROWS = 160
MARIADB_BINLOG_CHECKPOINT = 161
MARIADB_GTID = 162
MARIADB_GTID_LIST = 163
MARIADB_START_ENCRYPTION = 164
MARIADB_QUERY_COMPRESSED = 165
MARIADB_WRITE_ROWS_COMPRESSED_V1 = 166
MARIADB_UPDATE_ROWS_COMPRESSED_V1 = 167
MARIADB_DELETE_ROWS_COMPRESSED_V1 = 168
MARIADB_WRITE_ROWS_COMPRESSED = 169
MARIADB_UPDATE_ROWS_COMPRESSED = 170
MARIADB_DELETE_ROWS_COMPRESSED = 171

IGNORABLE_FLAG = 0x80
CHECKSUM_RESIDUE = 0x2144DF1C  # CRC-32 of anything followed by its own CRC-32, low byte first

# Events without rows that change nothing for a view: read over. INTVAR, RAND and USER_VAR hold values for the
# statement in the query event behind them, BEGIN_LOAD_QUERY and APPEND_BLOCK a file for it; the statement is judged.
SILENT = frozenset(
    {
        STOP,
        INTVAR,
        APPEND_BLOCK,
        DELETE_FILE,
        BEGIN_LOAD_QUERY,
        RAND,
        USER_VAR,
        HEARTBEAT,
        HEARTBEAT_V2,
        IGNORABLE,
        ROWS_QUERY,
        PREVIOUS_GTIDS,
        TRANSACTION_CONTEXT,
        VIEW_CHANGE,
        MARIADB_ANNOTATE_ROWS,
        MARIADB_BINLOG_CHECKPOINT,
        MARIADB_GTID_LIST,
        MARIADB_START_ENCRYPTION,  # sent as it stands in the file; what is behind it comes decrypted [M, 10.11]
    }
)

ARTIFICIAL = frozenset({ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2})  # their positions mean nothing

# MariaDB's compressed forms, and what each holds.
COMPRESSED = {
    MARIADB_QUERY_COMPRESSED: QUERY,
    MARIADB_WRITE_ROWS_COMPRESSED_V1: WRITE_ROWS_V1,
    MARIADB_UPDATE_ROWS_COMPRESSED_V1: UPDATE_ROWS_V1,
    MARIADB_DELETE_ROWS_COMPRESSED_V1: DELETE_ROWS_V1,
    MARIADB_WRITE_ROWS_COMPRESSED: WRITE_ROWS,
    MARIADB_UPDATE_ROWS_COMPRESSED: UPDATE_ROWS,
    MARIADB_DELETE_ROWS_COMPRESSED: DELETE_ROWS,
}
ROW_EVENTS = frozenset(
    {
        WRITE_ROWS,
        UPDATE_ROWS,
        DELETE_ROWS,
        PARTIAL_UPDATE_ROWS,
        WRITE_ROWS_V1,
        UPDATE_ROWS_V1,
        DELETE_ROWS_V1,
        *(kind for kind in COMPRESSED if kind != MARIADB_QUERY_COMPRESSED),
    }
)

NAMES = {
    value: name
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, int) and not name.endswith(("_FLAG", "_RESIDUE"))
}


class Event(
    NamedTuple
):  # a tuple is made in a third of a frozen dataclass's time; MariaDB needs one for each event
    """One event in a buffer."""

    kind: int
    flags: int
    buffer: Buffer
    start: int  # of its body, behind the header
    end: int  # of its body, before the checksum
    log_pos: int  # the header's end position, 32 bits
    size: int  # in bytes, with header and checksum
