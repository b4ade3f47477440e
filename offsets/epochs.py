"""The history that versions come from: which server, and its epoch.

An epoch rises when coordinates stop being comparable. This module only ever raises it on purpose
(`begin_new_history`); a server that is not the one that was read before is divergence until an operator says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pymysql

from changes.errors import HistoryGoneError
from offsets.mysql import unavailable
from offsets.session import quote


@dataclass(frozen=True, slots=True)
class History:
    """What the offsets of one source are coordinates of."""

    server_identity: str
    binlog_base: str
    epoch: int


def current(
    connection: pymysql.Connection[Any], database: str, source: str, server_identity: str, binlog_base: str
) -> History:
    """The stored history of a source, begun with epoch 1 when there is none.

    Raises HistoryGoneError when the server, or the name of its binlogs, is another than before.
    """
    table = quote(database, "source")
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT server_identity, binlog_base, epoch FROM {table} WHERE name = %s", (source,)
            )
            row = cursor.fetchone()
            if row is None:
                row = (server_identity, binlog_base, 1)
                cursor.execute(
                    f"INSERT IGNORE INTO {table} (name, server_identity, binlog_base, epoch) VALUES (%s, %s, %s, %s)",
                    (source, *row),
                )
        connection.commit()
    except pymysql.err.MySQLError as error:
        raise unavailable(error, "reading the source's history") from None
    stored = History(*row)
    if (stored.server_identity, stored.binlog_base) != (server_identity, binlog_base):
        raise HistoryGoneError(
            f"the source is another server than before: it was {stored.server_identity} with binlogs "
            f"{stored.binlog_base}.*, it is {server_identity} with {binlog_base}.*; its coordinates say nothing about "
            "the saved offsets. Point viewtail back at the server it read, or, to fill every view again from this "
            "one, run: viewtail replay --new-history"
        )
    return stored


def begin_new_history(
    connection: pymysql.Connection[Any],
    database: str,
    source: str,
    server_identity: str,
    binlog_base: str,
    above: int,
) -> int:
    """Raise the epoch, at least to above + 1, and take the server as it is now. Not committed.

    `above` is the largest epoch that any store's witness shows; the caller has every view filled again.
    """
    table = quote(database, "source")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (name, server_identity, binlog_base, epoch) VALUES (%s, %s, %s, %s) "
            "ON DUPLICATE KEY UPDATE epoch = GREATEST(epoch, %s) + 1, server_identity = %s, binlog_base = %s",
            (source, server_identity, binlog_base, above + 1, above, server_identity, binlog_base),
        )
        cursor.execute(f"SELECT epoch FROM {table} WHERE name = %s", (source,))
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])
