"""Brings archived events back into their table, the newest of an entity first: the table never has a gap.

An event that is in the table already is left there if it is the same; if not, nothing of its step is brought back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from projectors import failpoints
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, StoreError
from viewtail.entities import archive_files
from viewtail.entities.archive_files import FiledEvent
from viewtail.entities.archive_steps import (
    BYTES_AT_ONCE,
    COLUMNS,
    EVENTS_AT_ONCE,
    ArchiveSteps,
    Listed,
    first_of,
    slices,
)
from viewtail.entities.archives import IN_FILE, WHOLE, WRITTEN, file_of
from viewtail.servers.sessions import quote


@dataclass(eq=False, kw_only=True)
class Restoring(ArchiveSteps):
    """Restores the archived events of one entity, of all entities, or of one file."""

    def archived(self, entity: str | None) -> int:
        """The number of archived events, of one entity or of all."""
        where, values = _of(entity)
        rows = self.step(partial(self.rows, f"SELECT COUNT(*) FROM {self.archive.quoted} WHERE {where}", *values))
        return int(rows[0][0])

    def archived_in(self, path: Path) -> int:
        """The number of events that are archived in a file."""
        where = f"SELECT COUNT(*) FROM {self.archive.quoted} WHERE {IN_FILE} = %s"
        return int(self.step(partial(self.rows, where, self._number_of(path)))[0][0])

    def restore(self, entity: str | None) -> None:
        """Bring back the events of one entity, or of all."""
        where, values = _of(entity)
        rows = self.step(
            partial(
                self.rows,
                f"SELECT DISTINCT {IN_FILE} FROM {self.archive.quoted} WHERE {IN_FILE} IS NOT NULL AND {where}",
                *values,
            )
        )
        self._restore_files(sorted((number for (number,) in rows), reverse=True), entity)
        while self.paced(partial(self._restored, entity)):
            failpoints.reach("after restore")
        if left := self.archived(entity):
            raise StoreError(
                f"{counted(left, 'events', 'are')} not in the files that {self.archive.name} names for them"
            )

    def restore_file(self, path: Path) -> None:
        """Bring back the events of one file. Raises MisuseError while newer events of its entities are elsewhere."""
        number = self._number_of(path)
        later = self.step(
            partial(
                self.rows,
                f"SELECT b.{IN_FILE} FROM {self.archive.quoted} a JOIN {self.archive.quoted} b "
                f"ON b.entity_id = a.entity_id AND b.version > a.version WHERE a.{IN_FILE} = %s AND "
                f"b.{IN_FILE} <> %s LIMIT 1",
                *(number, number),
            )
        )
        if later:
            other, _ = file_of(self.connection, self.table, later[0][0])
            raise MisuseError(
                f"newer events of the same entities are in {other}: restore that file first, or say --entity or --all"
            )
        self._restore_files([number], None)

    def _number_of(self, path: Path) -> int:
        for number, place in self.files(WRITTEN, WHOLE):
            if place == path.absolute():
                return number
        raise MisuseError(f"{path} is no file that events of {self.table.name} were archived into")

    # --- Out of files ---

    def _restore_files(self, numbers: Sequence[int], entity: str | None) -> None:
        for number in numbers:  # the checksums of all, before anything is brought back
            archive_files.read(*file_of(self.connection, self.table, number))
        for number in numbers:
            events = archive_files.read(*file_of(self.connection, self.table, number))
            wanted = [event for event in events if entity in (None, event.entity_id)]
            wanted.sort(key=lambda event: event.version, reverse=True)
            for now in slices(wanted):
                self.paced(partial(self._restored_filed, now, number))
                failpoints.reach("after restore")

    def _restored_filed(self, events: Sequence[FiledEvent], number: int) -> int:
        rows = self.rows(
            f"SELECT event_id FROM {self.archive.quoted} WHERE {IN_FILE} = %s AND event_id IN %s FOR UPDATE",
            *(number, [event.event_id for event in events]),
        )
        archived = {event_id for (event_id,) in rows}
        if not archived:
            return 0
        there = self.texts(self.table, archived)
        self._refuse([event.event_id for event in events if there.get(event.event_id, event) != event])
        missing = [event for event in events if event.event_id in archived - there.keys()]
        if missing:
            columns, marks = ", ".join(map(quote, COLUMNS)), ", ".join(["%s"] * len(COLUMNS))
            ids = [event.event_id for event in missing]
            with self.naming_duplicates(self.table, ids), self.connection.cursor() as cursor:
                cursor.executemany(f"INSERT INTO {self.table.quoted} ({columns}) VALUES ({marks})", missing)
        failpoints.reach("in restore")
        self.delete(self.archive, sorted(archived))
        return len(archived)

    # --- Out of the archive table ---

    def _restored(self, entity: str | None) -> int:
        ids = self._newest_archived(entity)
        if not ids:
            return 0
        equal = " AND ".join(f"l.{quote(column)} <=> a.{quote(column)}" for column in self.columns)
        is_equal: dict[int, int] = dict(
            self.rows(
                f"SELECT a.event_id, {equal} FROM {self.archive.quoted} a JOIN {self.table.quoted} l "
                "ON l.event_id = a.event_id WHERE a.event_id IN %s",
                ids,
            )
        )
        self._refuse([event_id for event_id, equals in is_equal.items() if not equals])
        if missing := [event_id for event_id in ids if event_id not in is_equal]:
            columns = ", ".join(map(quote, self.columns))
            with self.naming_duplicates(self.table, missing):
                self.execute(
                    f"INSERT INTO {self.table.quoted} ({columns}) SELECT {columns} FROM {self.archive.quoted} "
                    "WHERE event_id IN %s",
                    missing,
                )
        failpoints.reach("in restore")
        self.delete(self.archive, ids)
        return len(ids)

    def _newest_archived(self, entity: str | None) -> list[int]:
        """The events of the next transaction."""
        where, values = _of(entity)
        rows = self.rows(
            "SELECT event_id, entity_id, version, LENGTH(request) + LENGTH(response) + LENGTH(state) "
            f"FROM {self.archive.quoted} WHERE {IN_FILE} IS NULL AND {where} "
            f"ORDER BY entity_id DESC, version DESC LIMIT {EVENTS_AT_ONCE} FOR UPDATE",
            *values,
        )
        return [event.event_id for event in first_of([Listed(*row) for row in rows], EVENTS_AT_ONCE, BYTES_AT_ONCE)]

    def _refuse(self, differing: Sequence[int]) -> None:
        if differing:
            raise StoreError(
                f"event {differing[0]} is in {self.table.name} already, and is another one than the archived one. "
                "Nothing of this step was brought back. Look at both, and delete the wrong one"
            )


def _of(entity: str | None) -> tuple[str, tuple[str, ...]]:
    """Return a condition, and its values."""
    return ("TRUE", ()) if entity is None else ("entity_id = %s", (entity,))
