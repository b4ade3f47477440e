"""The history that versions come from: which server, and its epoch.

An epoch rises when coordinates stop being comparable: when another server turns out to continue what was read
(`current`), or because an operator says so (`begin_new_history`). A server that does not continue it is divergence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pymysql
import structlog

from changes.errors import RETRIES, HistoryGoneError, SourceUnavailableError
from offsets.mysql import unavailable
from servers.sessions import quote

_log = structlog.get_logger("viewtail.source")


@dataclass(frozen=True, slots=True)
class History:
    """What the offsets of one source are coordinates of."""

    server_identity: str
    binlog_base: str
    epoch: int


def current(
    connection: pymysql.Connection[Any],
    database: str,
    source: str,
    server_identity: str,
    binlog_base: str,
    check_continues: Callable[[], None],
) -> History:
    """The stored history of a source, begun with epoch 1 when there is none.

    When the server, or the name of its binlogs, is another than before, `check_continues` says whether it continues
    what was read (it raises HistoryGoneError when not); then a new epoch begins: its coordinates are not those of
    before. Of several pipelines that come here one raises it.
    """
    table = quote(database, "source")
    stored = _stored(connection, table, source)
    if stored is None:
        _execute(
            connection,
            f"INSERT IGNORE INTO {table} (name, server_identity, binlog_base, epoch) VALUES (%s, %s, %s, 1)",
            (source, server_identity, binlog_base),
        )
        stored = _stored(connection, table, source)
        assert stored is not None
    if (stored.server_identity, stored.binlog_base) == (server_identity, binlog_base):
        return stored
    try:
        check_continues()
    except HistoryGoneError as error:
        raise HistoryGoneError(
            f"the source is another server than before: it was {stored.server_identity} with binlogs "
            f"{stored.binlog_base}.*, it is {server_identity} with {binlog_base}.*. {error}"
        ) from None
    _execute(
        connection,
        f"UPDATE {table} SET server_identity = %s, binlog_base = %s, epoch = epoch + 1 "
        "WHERE name = %s AND server_identity = %s AND binlog_base = %s AND epoch = %s",
        (server_identity, binlog_base, source, stored.server_identity, stored.binlog_base, stored.epoch),
    )
    raised = _stored(connection, table, source)
    assert raised is not None
    if (raised.server_identity, raised.binlog_base) != (server_identity, binlog_base):
        raise SourceUnavailableError(
            f"two pipelines see two servers behind the source's address ({raised.server_identity} and "
            f"{server_identity}); {RETRIES}"
        )
    _log.warning(
        "the source is another server, whose history continues what was read: a new epoch begins",
        server=server_identity,
        before=stored.server_identity,
        epoch=raised.epoch,
    )
    return raised


def _stored(connection: pymysql.Connection[Any], table: str, source: str) -> History | None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT server_identity, binlog_base, epoch FROM {table} WHERE name = %s", (source,)
            )
            row = cursor.fetchone()
        connection.commit()
    except pymysql.err.MySQLError as error:
        raise unavailable(error, "reading the source's history") from None
    return None if row is None else History(*row)


def _execute(connection: pymysql.Connection[Any], sql: str, arguments: tuple[object, ...]) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql, arguments)
        connection.commit()
    except pymysql.err.MySQLError as error:
        raise unavailable(error, "writing the source's history") from None


def raise_above(connection: pymysql.Connection[Any], database: str, source: str, epoch: int) -> int:
    """Let the source's epoch be above this one, as a store has it from another server; returns what it is then."""
    table = quote(database, "source")
    _execute(
        connection,
        f"UPDATE {table} SET epoch = %s WHERE name = %s AND epoch <= %s",
        (epoch + 1, source, epoch),
    )
    stored = _stored(connection, table, source)
    assert stored is not None
    return stored.epoch


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
