"""Binlog event types, and what viewtail does with those that carry no rows (MySQL source, binlog_event.h)."""

from __future__ import annotations

QUERY = 2
STOP = 3
ROTATE = 4
INTVAR = 5
RAND = 13
USER_VAR = 14
FORMAT_DESCRIPTION = 15
XID = 16
TABLE_MAP = 19
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

IGNORABLE_FLAG = 0x80
CHECKSUM_RESIDUE = 0x2144DF1C  # CRC-32 of anything followed by its own CRC-32, low byte first

# Events without rows that change nothing for a view: read over. INTVAR, RAND and USER_VAR hold values for the
# statement in the query event behind them, which is judged.
SILENT = frozenset(
    {
        STOP,
        INTVAR,
        RAND,
        USER_VAR,
        HEARTBEAT,
        HEARTBEAT_V2,
        IGNORABLE,
        ROWS_QUERY,
        PREVIOUS_GTIDS,
        TRANSACTION_CONTEXT,
        VIEW_CHANGE,
    }
)

NAMES = {
    value: name
    for name, value in list(globals().items())
    if name.isupper() and isinstance(value, int) and not name.endswith(("_FLAG", "_RESIDUE"))
}
