"""Whether a MariaDB server's history continues what was read, and how a dump by GTIDs is asked of it.

The server looks for the transaction by itself when a dump begins, and in strict mode refuses what it does not find.
What is asked before that says in words what is wrong.
"""

from __future__ import annotations

import struct
from typing import Any

import pymysql

from ingest.binlog.gtids import GTID_BYTES, gtid_text
from ingest.binlog.mariadb_gtids import GtidPosition, parsed

_COM_BINLOG_DUMP = 0x12
_DUMP = struct.Struct("<BIHI")  # command, position, flags, server id; no file's name behind them


class MariaDBGtidsRead:
    """What a reader has seen of each domain; `base`, grown by the last GTID (gtid_sets.grown), is the same."""

    def __init__(self, base: str) -> None:
        self._position = GtidPosition(base)
        self._growing: bytes | None = None  # the only domain of which something was added since `base`
        self.base = base

    def add(self, gtids: bytearray) -> None:
        """Take in what is kept of transactions' GTID events, one behind the other as in the binlog."""
        count = len(gtids) // GTID_BYTES
        domain = bytes(gtids[1:5])
        if all(gtids[at::GTID_BYTES].count(gtids[at]) == count for at in range(1, 5)):
            self._position.add(gtid_text(gtids[-GTID_BYTES:]))
            if self._growing in (None, domain):
                self._growing = domain
                return
        else:
            for at in range(0, len(gtids), GTID_BYTES):
                self._position.add(gtid_text(gtids[at : at + GTID_BYTES]))
        self.base, self._growing = self.exact(), None

    def exact(self) -> str:
        """The whole place."""
        return str(self._position)


def lacked_and_purged(connection: pymysql.Connection[Any], seen: str) -> tuple[str, str]:
    """What was read and the server never had, and what it purged and was not read; each '' when there is nothing.

    The place at which the oldest binlog begins shows what was purged.
    """
    with connection.cursor() as cursor:
        state = _first(cursor, "SELECT @@GLOBAL.gtid_binlog_state")
        oldest = _first(cursor, "SHOW BINARY LOGS")
        begin = _first(cursor, "SELECT BINLOG_GTID_POS(%s, 4)", oldest)
    has = {parsed(gtid)[:2]: parsed(gtid)[2] for gtid in filter(None, state.split(","))}
    read, oldest_kept = GtidPosition(seen).last, GtidPosition(begin).last
    lacked = {(domain, *last) for domain, last in read.items() if has.get((domain, last[0]), -1) < last[1]}
    purged = {
        (domain, *last) for domain, last in oldest_kept.items() if read.get(domain, (0, 0))[1] < last[1]
    }
    return _text(lacked), _text(purged)


def _first(cursor: pymysql.cursors.Cursor, sql: str, *arguments: str) -> str:
    """The first value of the first row; '' where there is none."""
    cursor.execute(sql, arguments)
    found = cursor.fetchall()
    return found[0][0] or "" if found else ""


def _text(gtids: set[tuple[int, int, int]]) -> str:
    return ",".join(f"{domain}-{server}-{number}" for domain, server, number in sorted(gtids))


def dump_from(connection: pymysql.Connection[Any], server_id: int, seen: str) -> bytes:
    """Tell the session where a dump is to begin; returns the packet that asks for it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SET @slave_connect_state = %s, @slave_gtid_strict_mode = 1, @slave_gtid_ignore_duplicates = 0",
            (seen,),
        )
    body = _DUMP.pack(_COM_BINLOG_DUMP, 4, 0, server_id)
    return struct.pack("<I", len(body)) + body
