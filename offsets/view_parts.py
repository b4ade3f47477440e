"""The table `view_part`: parts of views, each one table of an entity of many, that an operator paused or resumed.

A paused part gets no changes in its view. `resumed` asks the owner of the pipeline to make it right again, and the
owner deletes the row then. Without a row a part is as any other.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from offsets import Owner
from offsets.mysql import Session, check_fence, reading, transaction
from viewtail.changes.copy_ids import view_of
from viewtail.servers.sessions import quote


class PartState(StrEnum):
    """What becomes of one part of a view."""

    PAUSED = "paused"
    RESUMED = "resumed"  # it is to get changes again, and the owner makes its rows right first


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """One part of a view that one pipeline keeps."""

    view_id: int
    view: str  # id of the view; of a copy, too
    part: str  # the values of the braces, rendered as a key is
    given: str  # as --part takes them
    table: str  # schema.table
    state: PartState
    reason: str | None
    by: str
    since: str  # UTC, with microseconds

    @property
    def to_go_on(self) -> str:
        """The command that ends the pause."""
        return f"viewtail resume {view_of(self.view)} --part {shlex.quote(self.given)}"

    def __str__(self) -> str:
        since = f"since {self.since[:19]} UTC by {self.by}{f': {self.reason}' if self.reason else ''}"
        if self.state is PartState.RESUMED:
            return f"{self.table} was paused {since}, and was resumed: its pipeline reads its rows again"
        return f"{self.table} is paused {since}"


def read(
    cursor: Any, database: str, *, views: Collection[str] | None = None, pipeline: str | None = None
) -> list[PartRecord]:
    """The parts of these views, or copies, as this pipeline has them; None: of all."""
    if views is not None and not views:
        return []
    conditions = ["TRUE" if views is None else "v.name IN %(views)s", "TRUE" if pipeline is None else "p.name = %(of)s"]
    cursor.execute(
        "SELECT w.view_id, v.name, w.part, w.given, w.table_name, w.state, w.reason, w.paused_by, "
        f"DATE_FORMAT(w.paused_at, '%Y-%m-%d %H:%i:%s.%f') FROM {quote(database, 'view_part')} w "
        f"JOIN {quote(database, 'view')} v ON v.id = w.view_id "
        f"JOIN {quote(database, 'pipeline')} p ON p.id = v.pipeline_id "
        f"WHERE {' AND '.join(conditions)} ORDER BY v.name, w.table_name",
        {"views": sorted(views or ()), "of": pipeline},
    )
    return [
        PartRecord(
            view_id=view_id, view=view, part=part, given=given, table=table, state=PartState(state), reason=reason,
            by=by, since=since,
        )
        for view_id, view, part, given, table, state, reason, by, since in cursor.fetchall()
    ]  # fmt: skip


def pause(cursor: Any, database: str, record: PartRecord) -> None:
    """Pause a part, from now on, in the caller's transaction; one that is paused stays as it is."""
    changed = ", ".join(
        f"{name} = IF(state = '{PartState.PAUSED}', {name}, {new})"
        for name, new in (
            ("reason", "VALUES(reason)"),
            ("paused_by", "VALUES(paused_by)"),
            ("paused_at", "CURRENT_TIMESTAMP(6)"),
            ("state", "VALUES(state)"),  # last: the others look at it
        )
    )
    cursor.execute(
        f"INSERT INTO {quote(database, 'view_part')} (view_id, part, given, table_name, state, reason, paused_by) "
        f"VALUES (%s, %s, %s, %s, '{PartState.PAUSED}', %s, %s) ON DUPLICATE KEY UPDATE {changed}",
        (record.view_id, record.part, record.given, record.table, record.reason, record.by),
    )


def forget(cursor: Any, database: str, view_ids: Collection[int]) -> None:
    """Delete the rows of views that are forgotten, in the caller's transaction."""
    cursor.execute(f"DELETE FROM {quote(database, 'view_part')} WHERE view_id IN %s", (sorted(view_ids),))


@dataclass(frozen=True, slots=True)
class ViewParts:
    """Reads and moves them. Raises StoreUnavailableError where MySQL does not answer."""

    session: Session
    database: str

    def of_pipeline(self, pipeline: str) -> list[PartRecord]:
        with reading(self.session, "reading which parts are paused") as cursor:
            return read(cursor, self.database, pipeline=pipeline)

    def of(self, view: str) -> list[PartRecord]:
        """Those of a view, and of its copies' view."""
        with reading(self.session, "reading which parts are paused") as cursor:
            return read(cursor, self.database, views=[view_of(view)])

    def resume(self, record: PartRecord) -> None:
        """Ask the pipeline's owner to let its changes through again."""
        with transaction(self.session, "resuming a part") as cursor:
            cursor.execute(f"UPDATE {self._table} SET state = '{PartState.RESUMED}' {_SAME}", _same(record))

    def end(self, record: PartRecord, owner: Owner | None = None) -> bool:
        """The part is as any other; False where it was paused again meanwhile. Raises FencedError for a stale owner."""
        with transaction(self.session, "ending the pause of a part") as cursor:
            if owner is not None:
                check_fence(cursor, owner)
            return bool(cursor.execute(f"DELETE FROM {self._table} {_SAME}", _same(record)))

    @property
    def _table(self) -> str:
        return quote(self.database, "view_part")


_SAME = "WHERE view_id = %s AND part = %s AND state = %s AND paused_at = %s"


def _same(record: PartRecord) -> Sequence[object]:
    return record.view_id, record.part, record.state.value, record.since
