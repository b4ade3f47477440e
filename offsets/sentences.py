"""Texts of own tables that may name a key of an entity: read, and replaced where a key is erased.

All are read and replaced in the caller's transaction; one that changed meanwhile is left as it is by then.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from offsets.copies import NOTES
from offsets.pauses import MOST_REASON
from offsets.runs import MOST_TEXT
from viewtail.servers.sessions import quote


class Sentence(NamedTuple):
    """A column of sentences, and the column that tells the rows apart."""

    table: str
    column: str
    id_column: str
    length: int


SENTENCES = (
    Sentence(*NOTES),
    Sentence("pipeline_status", "error", "pipeline_id", MOST_TEXT),
    Sentence("pipeline", "pause_reason", "id", MOST_REASON),
)


def sentences(cursor: Any, database: str, of: Sentence) -> list[tuple[Any, str]]:
    """Read the texts of a column, each with what tells its row apart."""
    cursor.execute(f"SELECT {of.id_column}, {of.column} FROM {quote(database, of.table)} WHERE {of.column} IS NOT NULL")
    return list(cursor.fetchall())


def replace_sentence(cursor: Any, database: str, of: Sentence, number: Any, before: str, now: str | None) -> None:
    """Replace a text, unless it changed meanwhile."""
    cursor.execute(
        f"UPDATE {quote(database, of.table)} SET {of.column} = %s WHERE {of.id_column} = %s AND {of.column} = %s",
        (now, number, before),
    )


class RunTexts(NamedTuple):
    """The texts of a run, in words and as JSON."""

    id: int
    kind: str
    view: str
    state: str
    what: str
    progress: str
    result: str


def run_texts(cursor: Any, database: str) -> list[RunTexts]:
    """Read the texts of every run."""
    cursor.execute(f"SELECT {', '.join(RunTexts._fields)} FROM {quote(database, 'operator_run')}")
    return [RunTexts(*row) for row in cursor.fetchall()]


def lock_run_texts(cursor: Any, database: str, number: int) -> RunTexts | None:
    """Lock a run and read its texts as they are by now; None where it is gone."""
    table = quote(database, "operator_run")
    cursor.execute(f"SELECT {', '.join(RunTexts._fields)} FROM {table} WHERE id = %s FOR UPDATE", (number,))
    row = cursor.fetchone()
    return None if row is None else RunTexts(*row)


def replace_run_texts(cursor: Any, database: str, number: int, texts: tuple[str, str, str | None]) -> None:
    """Replace a run's texts: what, progress, result. Without a fingerprint no other run goes on with it."""
    cursor.execute(
        f"UPDATE {quote(database, 'operator_run')} SET what = %s, progress = %s, result = %s, fingerprint = '' "
        "WHERE id = %s",
        (*texts, number),
    )


class ViewTexts(NamedTuple):
    """Why a view is halted or paused, and the last row that its backfill read."""

    id: int
    name: str
    state: str
    reason: str | None
    fill_key: str | None


def view_texts(cursor: Any, database: str) -> list[ViewTexts]:
    """Read the texts of every view."""
    cursor.execute(f"SELECT {', '.join(ViewTexts._fields)} FROM {quote(database, 'view')}")
    return [ViewTexts(*row) for row in cursor.fetchall()]


def replace_view_texts(
    cursor: Any, database: str, before: ViewTexts, reason: str | None, *, with_fill_key: bool
) -> None:
    """Replace them where state and reason are the same still; `with_fill_key` forgets the view's last row, too."""
    cursor.execute(
        f"UPDATE {quote(database, 'view')} SET reason = %s, fill_key = IF(%s, NULL, fill_key) "
        "WHERE id = %s AND state = %s AND reason <=> %s",
        (reason, with_fill_key, before.id, before.state, before.reason),
    )


class FanOutTexts(NamedTuple):
    """Changed rows that are a fan-out of a view, as the view names them."""

    view: str
    table: str
    what: str


def fan_out_texts(cursor: Any, database: str) -> list[FanOutTexts]:
    """Read the texts of every fan-out, written ones too."""
    cursor.execute(
        f"SELECT v.name, f.changed_table, f.what FROM {quote(database, 'fan_out')} f "
        f"JOIN {quote(database, 'view')} v ON v.id = f.view_id"
    )
    return [FanOutTexts(*row) for row in cursor.fetchall()]
