"""The history that versions come from: which server, and its epoch.

An epoch rises when positions stop being comparable: when another server turns out to continue what was read
(`current`), or because an operator says so (`begin_new_history`). A server that does not continue it is divergence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymysql
import structlog

from changes.errors import RETRIES, HistoryGoneError, SourceUnavailableError
from offsets.mysql import committed
from servers.sessions import quote

_log = structlog.get_logger("viewtail.source")


def current(
    connection: pymysql.Connection[Any],
    database: str,
    source: str,
    description: str,
    check_continues: Callable[[], None],
) -> int:
    """The epoch of a source, 1 when there is none yet.

    `description` is what the source says of itself. When it is another than before, `check_continues` says whether the
    source continues what was read (it raises HistoryGoneError when not); then a new epoch begins: its positions cannot
    be compared with those of before. Of several pipelines that come here one raises it.
    """
    table = quote(database, "source")
    stored = _stored(connection, table, source)
    if stored is None:
        sql = f"INSERT IGNORE INTO {table} (name, description, epoch) VALUES (%s, %s, 1)"
        _execute(connection, sql, (source, description))
        stored = _stored(connection, table, source)
        assert stored is not None
    before, epoch = stored
    if before == description:
        return epoch
    try:
        check_continues()
    except HistoryGoneError as error:
        raise HistoryGoneError(
            f"the source is another server than before: it was {before}, it is {description}. {error}"
        ) from None
    raising = "description = %s, epoch = epoch + 1 WHERE name = %s AND description = %s AND epoch = %s"
    _execute(connection, f"UPDATE {table} SET {raising}", (description, source, before, epoch))
    raised = _stored(connection, table, source)
    assert raised is not None
    if raised[0] != description:
        raise SourceUnavailableError(
            f"two pipelines see two servers behind the source's address ({raised[0]} and {description}); {RETRIES}"
        )
    _log.warning(
        "the source is another server, whose history continues what was read: a new epoch begins",
        server=description,
        before=before,
        epoch=raised[1],
    )
    return raised[1]


def _stored(connection: pymysql.Connection[Any], table: str, source: str) -> tuple[str, int] | None:
    """What the source last said of itself, and its epoch."""
    with committed(connection, "reading the source's history") as cursor:
        cursor.execute(f"SELECT description, epoch FROM {table} WHERE name = %s", (source,))
        row: tuple[str, int] | None = cursor.fetchone()
    return row


def _execute(connection: pymysql.Connection[Any], sql: str, arguments: tuple[object, ...]) -> None:
    with committed(connection, "writing the source's history") as cursor:
        cursor.execute(sql, arguments)


def raise_above(connection: pymysql.Connection[Any], database: str, source: str, epoch: int) -> int:
    """Let the source's epoch be above this one, as a store has it from another server; returns what it is then."""
    table = quote(database, "source")
    sql = f"UPDATE {table} SET epoch = %s WHERE name = %s AND epoch <= %s"
    _execute(connection, sql, (epoch + 1, source, epoch))
    stored = _stored(connection, table, source)
    assert stored is not None
    return stored[1]


def begin_new_history(
    connection: pymysql.Connection[Any], database: str, source: str, description: str, above: int
) -> int:
    """Raise the epoch, at least to above + 1, and take the server as it is now. Not committed.

    `above` is the largest epoch that any store's witness shows; the caller has every view backfilled again.
    """
    table = quote(database, "source")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (name, description, epoch) VALUES (%s, %s, %s) "
            "ON DUPLICATE KEY UPDATE epoch = GREATEST(epoch, %s) + 1, description = %s",
            (source, description, above + 1, above, description),
        )
        cursor.execute(f"SELECT epoch FROM {table} WHERE name = %s", (source,))
        row = cursor.fetchone()
    assert row is not None
    return int(row[0])
