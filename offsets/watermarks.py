"""Watermark rows on the source's primary, and which of them pipelines have passed, in viewtail's own database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from offsets.mysql import Session, transaction
from viewtail.servers.sessions import Connection, quote, value_of

WATERMARK = "watermark"  # the table
PASSED_KEPT_MINUTES = 10


def table_in(schema: str) -> str:
    """The table of watermarks, quoted, with its database."""
    return quote(schema, WATERMARK)


def write(cursor: Any, schema: str, name: str, token: str) -> None:
    """Let a row of that name have the token."""
    # Not INSERT at once: InnoDB spends a number of the key on each, whether a row comes of it or not.
    if not cursor.execute(f"UPDATE {table_in(schema)} SET token = %s WHERE name = %s", (token, name)):
        cursor.execute(
            f"INSERT INTO {table_in(schema)} (name, token) VALUES (%s, %s) ON DUPLICATE KEY UPDATE token = %s",
            (name, token, token),
        )


def token_of(cursor: Any, schema: str, name: str) -> str | None:
    """Return the token of that name in the cursor's snapshot; None where there is none."""
    cursor.execute(f"SELECT token FROM {table_in(schema)} WHERE name = %s", (name,))
    row = cursor.fetchone()
    return None if row is None else str(row[0])


def is_there(connection: Connection, schema: str, name: str) -> bool:
    """Return whether a row of that name is there."""
    return bool(value_of(connection, f"SELECT COUNT(*) FROM {table_in(schema)} WHERE name = %s", name))


def tokens_in(schema: str) -> str:
    """The SELECT of every row's name and token, for who polls them with other tables."""
    return f"SELECT name, token FROM {table_in(schema)}"


def note_passed(session: Session, database: str, pipeline_id: int, passed: Sequence[tuple[str, int]]) -> None:
    """Note that a pipeline passed these tokens, each with its version."""
    with transaction(session, "noting that a watermark was passed") as cursor:
        cursor.executemany(
            f"INSERT IGNORE INTO {quote(database, 'watermark_passed')} (token, pipeline_id, version) "
            "VALUES (%s, %s, %s)",
            [(token, pipeline_id, version) for token, version in passed],
        )


def forget_passed(session: Session, database: str) -> None:
    """Remove what nobody waits for any more."""
    with transaction(session, "forgetting passed watermarks") as cursor:
        cursor.execute(
            f"DELETE FROM {quote(database, 'watermark_passed')} "
            "WHERE passed_at < CURRENT_TIMESTAMP(6) - INTERVAL %s MINUTE ORDER BY passed_at LIMIT 10000",
            (PASSED_KEPT_MINUTES,),
        )


def passed(session: Session, database: str, tokens: Sequence[str]) -> dict[str, dict[int, int]]:
    """The versions by which pipelines passed these, by token and pipeline."""
    found: dict[str, dict[int, int]] = {token: {} for token in tokens}
    with transaction(session, "looking for watermarks that were passed") as cursor:
        cursor.execute(
            f"SELECT token, pipeline_id, version FROM {quote(database, 'watermark_passed')} WHERE token IN %s",
            (list(tokens),),
        )
        for token, pipeline_id, version in cursor.fetchall():
            found[token][pipeline_id] = version
    return found
