"""Keeps who owned each pipeline, and since when, for `status` alone: a row each time that one is taken.

What makes ownership safe is the fence (mysql.py). An owner that is killed, hangs or is cut off cannot note that it gave
a pipeline up: so a row without that, of a fence that was raised since, is of one that may believe to own it still.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from offsets import Owner
from offsets.mysql import Session, transaction
from viewtail.servers.sessions import quote

KEPT = 5  # rows of a pipeline


def this_process() -> str:
    """Name this process, for the others."""
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True, slots=True)
class Owned:
    """One time that a process took a pipeline."""

    pipeline: str
    fence: int
    present_fence: int  # of the pipeline now
    process: str
    taken_at: str  # UTC
    taken_s_ago: float
    gave_up_s_ago: float | None  # None: it has not, or could not say so

    @property
    def is_fenced(self) -> bool:
        """Return whether somebody else has taken it, and this one did not notice, as far as is known."""
        return self.gave_up_s_ago is None and self.fence < self.present_fence


def took(session: Session, database: str, owner: Owner) -> str | None:
    """Note that this process has taken a pipeline.

    Returns the process that it was taken over from: one that had not given it up. None where it was free.
    """
    table, name = quote(database, "pipeline_owner"), this_process()
    with transaction(session, "noting who owns a pipeline") as cursor:
        own = "pipeline_id = %s AND name = %s AND given_up_at IS NULL"
        cursor.execute(f"UPDATE {table} SET given_up_at = CURRENT_TIMESTAMP(6) WHERE {own}", (owner.id, name))
        before = "pipeline_id = %s AND fence < %s ORDER BY fence DESC LIMIT 1"
        cursor.execute(f"SELECT name, given_up_at FROM {table} WHERE {before}", (owner.id, owner.fence))
        last = cursor.fetchone()
        values = (owner.id, owner.fence, name)
        cursor.execute(f"INSERT INTO {table} (pipeline_id, fence, name) VALUES (%s, %s, %s)", values)
        cursor.execute(f"DELETE FROM {table} WHERE pipeline_id = %s AND fence + {KEPT} <= %s", (owner.id, owner.fence))
    return None if last is None or last[1] is not None else str(last[0])


def gave_up(session: Session, database: str, owner: Owner) -> bool:
    """Note that this process owns a pipeline no more, and knows it; whether another one has taken it already."""
    with transaction(session, "noting that a pipeline was given up") as cursor:
        cursor.execute(
            f"UPDATE {quote(database, 'pipeline_owner')} SET given_up_at = CURRENT_TIMESTAMP(6) "
            "WHERE pipeline_id = %s AND fence = %s AND given_up_at IS NULL",
            (owner.id, owner.fence),
        )
        cursor.execute(f"SELECT fence FROM {owner.table} WHERE id = %s", (owner.id,))
        row = cursor.fetchone()
    return row is not None and row[0] > owner.fence


def read(cursor: Any, database: str) -> list[Owned]:
    """Read the last owners of every pipeline, the present one last."""
    cursor.execute(
        "SELECT p.name, o.fence, p.fence, o.name, DATE_FORMAT(o.taken_at, '%Y-%m-%d %H:%i:%s'), "
        "TIMESTAMPDIFF(MICROSECOND, o.taken_at, CURRENT_TIMESTAMP(6)) / 1e6, "
        "TIMESTAMPDIFF(MICROSECOND, o.given_up_at, CURRENT_TIMESTAMP(6)) / 1e6 "
        f"FROM {quote(database, 'pipeline_owner')} o JOIN {quote(database, 'pipeline')} p ON p.id = o.pipeline_id "
        "ORDER BY p.name, o.fence",
        (),
    )
    return [Owned(*row) for row in cursor.fetchall()]
