"""Keeps the pauses of pipelines: since when, by whom and why, in the pipeline's own row.

A paused pipeline reads and writes nothing. Its owner keeps the lease, so that no other process runs it, and the offset
stays where it is.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from offsets.mysql import Session, reading, transaction
from viewtail.servers.sessions import quote

MOST_REASON = 1000  # characters that are kept of a reason

# What `pause_of` reads, from `pipeline p` and `view v`.
_SINCE = "DATE_FORMAT({0}.paused_at, '%Y-%m-%d %H:%i:%s'), {0}.paused_by, {0}.{1}"
_AGO = "TIMESTAMPDIFF(MICROSECOND, {0}.paused_at, CURRENT_TIMESTAMP(6)) / 1e6"
OF_PIPELINE = f"{_SINCE.format('p', 'pause_reason')}, {_AGO.format('p')}, COALESCE(p.paused_lag_ms, 0) / 1e3"
OF_VIEW = f"{_SINCE.format('v', 'reason')}, {_AGO.format('v')}, 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """An operator's pause of a pipeline or a view."""

    since: str  # UTC
    by: str  # user and host
    reason: str | None  # if one was given
    lag_s: float  # since then, and how far it was behind then: the age of the oldest change that may wait

    def __str__(self) -> str:
        return f"since {self.since} UTC by {self.by}{f': {self.reason}' if self.reason else ''}"


def this_person() -> str:
    """Name the user that runs this command, and the host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def pause_of(columns: Sequence[Any]) -> Pause | None:
    """Make a pause of what OF_PIPELINE or OF_VIEW selected."""
    since, by, reason, ago_s, before_s = columns
    return None if since is None else Pause(since=since, by=by, reason=reason, lag_s=float(ago_s) + float(before_s))


def of(session: Session, database: str, pipeline: str) -> Pause | None:
    """Read the pause of a pipeline; None while it is not paused."""
    with reading(session, "asking whether the pipeline is paused") as cursor:
        cursor.execute(f"SELECT {OF_PIPELINE} FROM {quote(database, 'pipeline')} p WHERE p.name = %s", (pipeline,))
        row = cursor.fetchone()
    return None if row is None else pause_of(row)


def pause(session: Session, database: str, pipelines: Collection[str], by: str, reason: str | None) -> None:
    """Pause those of these pipelines that are not paused, at one time; each lag goes on from what it said last."""
    status = quote(database, "pipeline_status")
    with transaction(session, "pausing pipelines") as cursor:
        cursor.execute(
            f"UPDATE {quote(database, 'pipeline')} p SET paused_at = CURRENT_TIMESTAMP(6), paused_by = %(by)s, "
            f"pause_reason = %(reason)s, paused_lag_ms = (SELECT s.lag_ms FROM {status} s WHERE s.pipeline_id = p.id) "
            "WHERE p.name IN %(names)s AND p.paused_at IS NULL",
            {"by": by, "reason": reason and reason[:MOST_REASON], "names": sorted(pipelines)},
        )


def resume(session: Session, database: str, pipelines: Collection[str]) -> None:
    """Resume those of these pipelines that are paused."""
    with transaction(session, "resuming pipelines") as cursor:
        cursor.execute(
            f"UPDATE {quote(database, 'pipeline')} SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, "
            "paused_lag_ms = NULL WHERE name IN %(names)s",
            {"names": sorted(pipelines)},
        )
