"""The table `view_part`: parts of views that are set aside, each one table of an entity of many. Statements by name.

A part is set aside because an operator paused it, or because a statement left its table unfit for the view. It gets no
changes then. `resumed` asks the owner of the pipeline to let them through again; it answers with `filling`, and from
there on the part's rows are read again, until which the view may show old ones. Without a row a part is as any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pymysql

from offsets import migrations
from offsets.mysql import Session, reading, transaction
from viewtail.changes.copy_ids import view_of
from viewtail.servers.sessions import quote

MOST_ASIDE = 20  # of one view: each is told to operators, and the tables of all tenants may be altered one by one
MOST_REASON = 2000  # characters


class PartState(StrEnum):
    """What becomes of one part of a view."""

    PAUSED = "paused"
    MISFIT = "misfit"  # its table does not fit the view
    RESUMED = "resumed"  # it is to get changes again, and does not yet
    FILLING = "filling"  # it gets changes, and its rows are to be read again


ASIDE = frozenset({PartState.PAUSED, PartState.MISFIT})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRecord:
    """One part of a view."""

    pipeline: str
    view: str  # as it is declared; its copies are meant, too
    part: str  # the values of the braces, rendered as a key is
    table: str  # for people: schema.table
    entity: str  # the name with braces, schema.table
    given: str  # as `--part` takes it: account_id=123
    state: PartState
    reason: str
    by: str | None  # who paused it
    since: str  # UTC, with microseconds

    @property
    def to_go_on(self) -> str:
        """What ends that."""
        mended = "When that is mended" if self.state is PartState.MISFIT else "To go on"
        return f"{mended}: viewtail replay {self.view} --part {self.given}"

    @property
    def is_aside(self) -> bool:
        """Return whether it gets no changes."""
        return self.state in ASIDE

    def __str__(self) -> str:
        since = f"since {self.since[:19]} UTC"
        if self.state is PartState.PAUSED:
            return f"{self.table} is paused, {since} by {self.by}{f': {self.reason}' if self.reason else ''}"
        if self.state is PartState.MISFIT:
            return f"{self.table} is set aside, {since}: {self.reason}"
        return f"{self.table} was set aside, and its rows are to be read again"


def read(cursor: Any, database: str) -> list[PartRecord]:
    """Every part that is set aside, or is read again; none where viewtail never ran with this database."""
    try:
        cursor.execute(
            "SELECT pi.name, p.view_name, p.part, p.table_name, p.entity_table, p.given, p.state, p.reason, "
            "p.paused_by, "
            f"DATE_FORMAT(p.aside_at, '%Y-%m-%d %H:%i:%s.%f') FROM {quote(database, 'view_part')} p "
            f"JOIN {quote(database, 'pipeline')} pi ON pi.id = p.pipeline_id ORDER BY p.view_name, p.table_name"
        )
    except pymysql.err.MySQLError as error:
        if not migrations.is_missing(error):
            raise
        return []
    return [
        PartRecord(
            pipeline=pipeline,
            view=view,
            part=part,
            table=table,
            entity=entity,
            given=given,
            state=PartState(state),
            reason=reason,
            by=by,
            since=since,
        )
        for pipeline, view, part, table, entity, given, state, reason, by, since in cursor.fetchall()
    ]


def forget(cursor: Any, database: str, pipeline_id: int, view: str) -> None:
    """Delete the rows of a view that is forgotten, in the caller's transaction."""
    cursor.execute(
        f"DELETE FROM {quote(database, 'view_part')} WHERE pipeline_id = %s AND view_name = %s",
        (pipeline_id, view_of(view)),
    )


@dataclass(frozen=True, slots=True)
class ViewParts:
    """The parts of views that are set aside. Raises StoreUnavailableError where MySQL does not answer."""

    session: Session
    database: str

    @property
    def _table(self) -> str:
        return quote(self.database, "view_part")

    def all(self) -> list[PartRecord]:
        """Every one of them."""
        with reading(self.session, "reading which parts are set aside") as cursor:
            return read(cursor, self.database)

    def of(self, view: str) -> list[PartRecord]:
        """Those of a view or copy."""
        return [record for record in self.all() if record.view == view_of(view)]

    def set_aside(self, records: Collection[PartRecord]) -> None:
        """Set these aside, from now on; one that is so already stays as it is, with its reason."""
        values = [
            (record.pipeline, record.view, record.part, record.table, record.entity, record.given, record.state.value,
             record.reason[:MOST_REASON], record.by)
            for record in records
        ]  # fmt: skip
        aside = ", ".join(f"'{state}'" for state in sorted(ASIDE))
        changed = ", ".join(
            f"{name} = IF(state IN ({aside}), {name}, {new})"
            for name, new in (
                ("reason", "VALUES(reason)"),
                ("paused_by", "VALUES(paused_by)"),
                ("aside_at", "CURRENT_TIMESTAMP(6)"),
                ("state", "VALUES(state)"),  # last: the others look at it
            )
        )
        with transaction(self.session, "setting parts aside") as cursor:
            cursor.executemany(
                f"INSERT INTO {self._table} "
                "(pipeline_id, view_name, part, table_name, entity_table, given, state, reason, paused_by) "
                f"VALUES ((SELECT id FROM {quote(self.database, 'pipeline')} WHERE name = %s), "
                "%s, %s, %s, %s, %s, %s, %s, %s) "
                f"ON DUPLICATE KEY UPDATE {changed}",
                values,
            )

    def move(self, records: Iterable[PartRecord], now: PartState) -> None:
        """Move these to another state, unless they were moved since they were read."""
        with transaction(self.session, "moving parts that are set aside") as cursor:
            for record in records:
                cursor.execute(f"UPDATE {self._table} SET state = %s {_SAME}", (now.value, *_same(record)))

    def end(self, record: PartRecord) -> bool:
        """The part is as any other; False where it was set aside again meanwhile."""
        with transaction(self.session, "ending that a part is set aside") as cursor:
            cursor.execute(f"DELETE FROM {self._table} {_SAME}", _same(record))
            return bool(cursor.rowcount)


_SAME = "WHERE view_name = %s AND part = %s AND state = %s AND aside_at = %s"


def _same(record: PartRecord) -> Sequence[str]:
    return record.view, record.part, record.state.value, record.since
