"""Keeps the history that versions come from: which server, and its epoch.

An epoch rises when positions stop being comparable: when another server turns out to continue what was read
(`current`), or because an operator says so (`begin_new_history`). A server that does not continue it is divergence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from offsets.mysql import Session, transaction
from viewtail.changes.errors import RETRIES, SourceUnavailableError
from viewtail.servers.sessions import quote

_log = structlog.get_logger("viewtail.source")


def current(
    session: Session, database: str, source: str, description: str, check_continues: Callable[[str], None]
) -> int:
    """Return the epoch of a source, 1 when there is none yet.

    `description` is what the source says of itself. When it is another than before, `check_continues` is given that of
    before, and says whether the source continues what was read (it raises HistoryGoneError when not); then a new epoch
    begins: its positions cannot be compared with those of before. Of several pipelines that come here one raises it.
    """
    table = quote(database, "source")
    inserting = f"INSERT IGNORE INTO {table} (name, description, epoch) VALUES (%s, %s, 1)"
    before, epoch = known(session, database, source) or _written(
        session, database, source, inserting, source, description
    )
    if before == description:
        return epoch
    check_continues(before)
    raising = "description = %s, epoch = epoch + 1 WHERE name = %s AND description = %s AND epoch = %s"
    update = f"UPDATE {table} SET {raising}"
    now, raised = _written(session, database, source, update, description, source, before, epoch)
    if now != description:
        raise SourceUnavailableError(
            f"two pipelines see two servers behind the source's address ({now} and {description}); {RETRIES}"
        )
    _log.warning(
        "the source is another server, whose history continues what was read: a new epoch begins",
        server=description,
        before=before,
        epoch=raised,
    )
    return raised


def known(session: Session, database: str, source: str) -> tuple[str, int] | None:
    """Read what the source last said of itself, and its epoch; None where nothing was read of it yet."""
    with transaction(session, "reading the source's history") as cursor:
        cursor.execute(f"SELECT description, epoch FROM {quote(database, 'source')} WHERE name = %s", (source,))
        row: tuple[str, int] | None = cursor.fetchone()
    return row


def _written(session: Session, database: str, source: str, sql: str, *arguments: object) -> tuple[str, int]:
    """Execute a statement; return what is stored of the source behind it."""
    with transaction(session, "writing the source's history") as cursor:
        cursor.execute(sql, arguments)
    stored = known(session, database, source)
    assert stored is not None
    return stored


def raise_above(session: Session, database: str, source: str, epoch: int) -> int:
    """Let the source's epoch be above this one, which a store has from another server; return it."""
    table = quote(database, "source")
    sql = f"UPDATE {table} SET epoch = %s WHERE name = %s AND epoch <= %s"
    return _written(session, database, source, sql, epoch + 1, source, epoch)[1]


def begin_new_history(cursor: Any, database: str, source: str, description: str, above: int) -> int:
    """Raise the epoch, at least to above + 1, and take the server as it is now, in the cursor's transaction.

    `above` is the largest epoch that any store's witness shows; the caller has every view backfilled again.
    """
    table = quote(database, "source")
    cursor.execute(
        f"INSERT INTO {table} (name, description, epoch) VALUES (%s, %s, %s) "
        "ON DUPLICATE KEY UPDATE epoch = GREATEST(epoch, %s) + 1, description = %s",
        (source, description, above + 1, above, description),
    )
    cursor.execute(f"SELECT epoch FROM {table} WHERE name = %s", (source,))
    return int(cursor.fetchone()[0])
