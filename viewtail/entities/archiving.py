"""Moves old events of an event table to its archive.

An entity's oldest events go first and its newest never, so the events that are left have no gap: that is how a worker
knows which entities have archived events (`batches.py`). Into a table, events are copied and deleted in one
transaction. Into files, the file is durable and its checksum recorded first; then each transaction puts what answers
commands into the archive table and deletes the events. An event is archived if the archive table has a row of it: a
file may have more events, which were never taken out of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from projectors import failpoints
from viewtail.changes.errors import MisuseError, StoreUnavailableError
from viewtail.changes.tables import full_name
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
from viewtail.entities.archives import FILE, IN_FILE, TABLE, WHOLE, WRITING, WRITTEN, file_of, places_ddl, places_of
from viewtail.entities.event_table import EventTable
from viewtail.servers.facts import MYSQL, facts_of
from viewtail.servers.sessions import quote, value_of

_NO_FILE_NAME = re.compile(r"[^\w.-]")

SCANNED_AT_ONCE = 2_000
EVENTS_A_FILE = 10_000
BYTES_A_FILE = 64 << 20


class _Old(NamedTuple):
    """An event that is old enough."""

    event: Listed
    is_exact: bool  # text can hold its state


class _Range(NamedTuple):
    """A range of the table, as one transaction saw it."""

    old: list[_Old]  # by entity and version
    bounds: dict[str, tuple[int, int]]  # by entity, the versions of its oldest and its newest event in the table


@dataclass(eq=False, kw_only=True)
class Archiving(ArchiveSteps):
    """Args:
    held: counts old events that stay, since an older one of their entity does, or no file can hold them.
    """

    held: int = 0

    def cutoff(self, seconds: int) -> str:
        """Return the time that is so long ago, by the server's clock, in UTC."""
        with self.asking():
            moment = value_of(
                self.connection, "SELECT CAST(CURRENT_TIMESTAMP(6) - INTERVAL %s SECOND AS CHAR)", seconds
            )
            self.connection.rollback()
        return str(moment)

    def prepare(self, into: str | None) -> None:
        """Make the archive table, and the table that says where it is. `into`: 'schema.table'."""
        known = self.known_archive()
        self.archive = self._archive_for(into, known)
        with self.asking():
            self.execute("SET SESSION foreign_key_checks = 0")  # no cascade into a table that this user cannot see
            self.execute(places_ddl(self.table))
            self.execute(f"CREATE TABLE IF NOT EXISTS {self.archive.quoted} LIKE {self.table.quoted}")
            self._add_file_column()
            if known is None:
                self.execute(
                    f"INSERT INTO {places_of(self.table)} (kind, place, state) VALUES ('{TABLE}', %s, '{WHOLE}')",
                    self.archive.name,
                )
            self.connection.commit()

    def _archive_for(self, into: str | None, known: EventTable | None) -> EventTable:
        """Return the archive table that was asked for, else the `known` one, else TABLE_archive. Raises MisuseError."""
        schema, name = self.table.schema_and_table
        archive = EventTable(into or (known.name if known else full_name(schema, f"{name}_archive")))
        if known is not None and known != archive:
            raise MisuseError(
                f"{self.table.name} is archived into {known.name}, which running workers remember: leave --into out"
            )
        if archive == self.table:
            raise MisuseError(f"--into {into}: that is the table itself")
        return archive

    def _add_file_column(self) -> None:
        """Add the column that names a row's file. Raises MisuseError where other columns differ from the table's."""
        present = {name for name, is_kept in self.described(self.archive) if is_kept}
        if IN_FILE not in present and not self.rows(f"SELECT 1 FROM {self.archive.quoted} LIMIT 1"):
            self.execute(
                f"ALTER TABLE {self.archive.quoted} ADD COLUMN {IN_FILE} INT UNSIGNED NULL COMMENT %s, "
                f"ADD KEY ({IN_FILE})",
                f"id of the file that has the state, of {self.table.name}_archived_in",
            )
            present.add(IN_FILE)
        if differing := present ^ {*self.columns, IN_FILE}:
            raise MisuseError(
                f"{self.archive.name} has other columns than {self.table.name}: {', '.join(sorted(differing))}. "
                "Alter it as the table was, or name another one with --into"
            )

    def about(self, cutoff: str) -> int:
        """Estimate how many events are older and not the newest of their entity. A few of them may have to stay."""
        count = 0
        for begin, end in self._id_ranges():
            with self.asking():
                count += value_of(
                    self.connection,
                    f"SELECT COUNT(*) FROM {self.table.quoted} e WHERE event_id > %s AND event_id <= %s AND "
                    f"committed_at < %s AND EXISTS (SELECT 1 FROM {self.table.quoted} n "
                    "WHERE n.entity_id = e.entity_id AND n.version > e.version)",
                    *(begin, end, cutoff),
                )
        return count

    # --- Into a table ---

    def into_table(self, cutoff: str) -> None:
        """Move older events into the archive table."""
        self._refuse_other_way(f"{IN_FILE} IS NOT NULL", "into files: go on with --into-files FOLDER")
        if self.files(WRITING, WRITTEN):
            raise MisuseError(
                "archiving into files was stopped: finish that first, with the same command and --into-files FOLDER"
            )
        for begin, end in self._id_ranges():
            while self.paced(partial(self._move, begin, end, cutoff)):
                failpoints.reach("after archive")

    def _move(self, begin: int, end: int, cutoff: str) -> int:
        chunk = self._read(begin, end, cutoff, "TRUE")
        chosen = _movable(chunk, {})
        ids = [listed.event_id for listed in first_of(chosen, EVENTS_AT_ONCE, BYTES_AT_ONCE)]
        if not ids:
            self.held += _stays(chunk)
            return 0
        self._lock(ids)
        columns = ", ".join(map(quote, self.columns))
        self._take_out(ids, f"({columns}) SELECT {columns}")
        return len(ids)

    def _take_out(self, ids: Sequence[int], columns_and_values: str, *values: object) -> None:
        """Put these events into the archive table, and delete them from their own."""
        with self.naming_duplicates(self.archive, ids):
            self.execute(
                f"INSERT INTO {self.archive.quoted} {columns_and_values} FROM {self.table.quoted} WHERE event_id IN %s",
                *(*values, ids),
            )
        failpoints.reach("in archive")
        self.delete(self.table, ids)

    def _read(self, begin: int, end: int, cutoff: str, is_exact: str) -> _Range:
        rows = self.rows(
            "SELECT event_id, entity_id, version, LENGTH(request) + LENGTH(response) + LENGTH(state), "
            f"{is_exact} FROM {self.table.quoted} WHERE event_id > %s AND event_id <= %s AND committed_at < %s "
            "ORDER BY entity_id, version",
            *(begin, end, cutoff),
        )
        old = [_Old(Listed(*row[:4]), bool(row[4])) for row in rows]
        return self._range_of(old)

    def _range_of(self, old: list[_Old]) -> _Range:
        return _Range(old, self._bounds({old_row.event.entity_id for old_row in old}))

    def _bounds(self, entities: Iterable[str]) -> dict[str, tuple[int, int]]:
        if not (named := list(entities)):
            return {}
        rows = self.rows(
            f"SELECT entity_id, MIN(version), MAX(version) FROM {self.table.quoted} WHERE entity_id IN %s "
            "GROUP BY entity_id",
            named,
        )
        return {entity: (first, newest) for entity, first, newest in rows}

    def _lock(self, ids: Sequence[int]) -> None:
        """Lock the rows, so that the events that are copied are those that are deleted."""
        locked = self.rows(f"SELECT event_id FROM {self.table.quoted} WHERE event_id IN %s FOR UPDATE", ids)
        if len(locked) != len(ids):
            raise StoreUnavailableError(
                f"{self.table.name}: somebody else deletes events. Nothing was moved; try again"
            )

    def _id_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ids of the whole table, a range at a time, each (after, upto]."""
        after = 0
        while True:
            self.check_stop()
            self.throttle.begin()
            with self.asking():
                ((end, count),) = self.rows(
                    f"SELECT MAX(event_id), COUNT(*) FROM (SELECT event_id FROM {self.table.quoted} "
                    f"WHERE event_id > %s ORDER BY event_id LIMIT {SCANNED_AT_ONCE}) one",
                    after,
                )
                self.connection.rollback()
            if end is None:
                return
            yield after, end
            self.throttle.after(count)
            after = end

    # --- Into files ---

    def into_files(self, cutoff: str, folder: Path) -> None:
        """Write older events into files, and then move them. The work of a killed command is finished first."""
        if more := {*self.columns} - {*COLUMNS}:
            raise MisuseError(
                f"{self.table.name} has columns of your own ({', '.join(sorted(more))}), which files do not hold. "
                "Archive it into a table: leave --into-files out"
            )
        self._refuse_other_way(f"{IN_FILE} IS NULL", f"into {self.archive.name}: leave --into-files out")
        for number, path in self.files(WRITING):
            archive_files.remove(path)
            self._forget_file(number)
        for number, path in self.files(WRITTEN):
            if not path.exists() and not self._has_taken(number):
                self._forget_file(number)
            else:
                self._move_file(number, cutoff)
        for events in self._for_files(cutoff):
            self._move_file(self._written(folder, events), cutoff)

    def _has_taken(self, number: int) -> bool:
        """Return whether an event is in a file alone."""
        where = f"SELECT 1 FROM {self.archive.quoted} WHERE {IN_FILE} = %s LIMIT 1"
        return bool(self.step(partial(self.rows, where, number)))

    def _forget_file(self, number: int) -> None:
        self.step(partial(self.execute, f"DELETE FROM {places_of(self.table)} WHERE id = %s", number))

    def _for_files(self, cutoff: str) -> Iterator[list[FiledEvent]]:
        """Yield the events of each file. The caller moves those of a file before it asks for the next."""
        events: list[FiledEvent] = []
        coming: dict[str, int] = {}
        size = 0
        is_exact = self._is_exact()
        for begin, end in self._id_ranges():
            chunk = self.step(partial(self._read, begin, end, cutoff, is_exact))
            chosen = _movable(chunk, coming)
            self.held += _stays(chunk) - len(chosen)
            while chosen:
                now = first_of(chosen, EVENTS_AT_ONCE, BYTES_AT_ONCE)
                chosen = chosen[len(now) :]
                events += self.step(partial(self._texts_of, now))
                size += sum(event.size for event in now)
                if len(events) >= EVENTS_A_FILE or size >= BYTES_A_FILE:
                    yield events
                    events, size = [], 0
                    # What was moved is told by the table itself: `coming` stays as small as a file.
                    coming = {event.entity_id: coming[event.entity_id] for event in chosen}
        if events:
            yield events

    def _texts_of(self, listed: Sequence[Listed]) -> list[FiledEvent]:
        by_id = self.texts(self.table, [event.event_id for event in listed])
        return [by_id[event.event_id] for event in listed if event.event_id in by_id]

    def _is_exact(self) -> str:
        """Return the condition that text can hold the state. MySQL's JSON reads some numbers as their neighbours."""
        if facts_of(self.connection).name != MYSQL:
            return "TRUE"
        text = "CAST(state AS CHAR CHARACTER SET utf8mb4)"
        return f"CAST(CAST({text} AS JSON) AS CHAR CHARACTER SET utf8mb4) = {text} COLLATE utf8mb4_0900_bin"

    def _written(self, folder: Path, events: Sequence[FiledEvent]) -> int:
        """Write a new file of these events, durable and recorded; return its id."""
        path = folder.absolute() / f"{_NO_FILE_NAME.sub('_', self.table.name)}.{uuid4().hex}{archive_files.ENDING}"

        def announce() -> int:
            with self.connection.cursor() as cursor:
                cursor.execute(
                    f"INSERT INTO {places_of(self.table)} (kind, place, state) VALUES ('{FILE}', %s, '{WRITING}')",
                    (str(path),),
                )
                return int(cursor.lastrowid)

        number = self.step(announce)
        failpoints.reach("before archive file")
        digest = archive_files.write(path, self.table.name, events, failpoints.reach)
        failpoints.reach("after archive file")
        recorded = self.step(
            partial(
                self.execute,
                f"UPDATE {places_of(self.table)} SET state = '{WRITTEN}', sha256 = %s, event_count = %s "
                f"WHERE id = %s AND state = '{WRITING}'",
                *(digest, len(events), number),
            )
        )
        if recorded != 1:
            archive_files.remove(path)
            raise StoreUnavailableError(f"{self.table.name}: another viewtail archives it, too. Try again")
        failpoints.reach("after archive record")
        return number

    def _move_file(self, number: int, cutoff: str) -> None:
        """Take a file's events out of the table, those that still are as the file has them."""
        for now in slices(archive_files.read(*file_of(self.connection, self.table, number))):
            self.paced(partial(self._move_filed, now, number, cutoff))
            failpoints.reach("after archive")
        self.step(partial(self.execute, f"UPDATE {places_of(self.table)} SET state = '{WHOLE}' WHERE id = %s", number))

    def _move_filed(self, events: Sequence[FiledEvent], number: int, cutoff: str) -> int:
        ids = [event.event_id for event in events]
        self.rows(f"SELECT event_id FROM {self.table.quoted} WHERE event_id IN %s FOR UPDATE", ids)
        present = self.texts(self.table, ids)
        same = [event for event in events if present.get(event.event_id) == event and event.committed_at < cutoff]
        old = [_Old(Listed(*event[:3], event.size), is_exact=True) for event in same]
        moved = [event.event_id for event in _movable(self._range_of(old), {})]
        if moved:
            kept = ", ".join(quote(column) for column in COLUMNS if column != "state")
            self._take_out(moved, f"({kept}, state, {IN_FILE}) SELECT {kept}, 'null', %s", number)
        return len(moved)

    def _refuse_other_way(self, condition: str, how: str) -> None:
        """Events come back newest first, so one table is archived in one way at a time."""
        if self.step(partial(self.rows, f"SELECT 1 FROM {self.archive.quoted} WHERE {condition} LIMIT 1")):
            raise MisuseError(f"events of {self.table.name} are archived {how}. Or restore them all first")


def _movable(chunk: _Range, coming: dict[str, int]) -> list[Listed]:
    """The events to move: each entity's oldest ones, up to one that is too recent, and never its newest.

    `coming` has, by entity, the next version to move after the events that are about to be moved; it is updated."""
    chosen = []
    for event, is_exact in chunk.old:
        first, newest = chunk.bounds[event.entity_id]
        expected = coming.get(event.entity_id, first)
        if event.version == expected and event.version < newest and is_exact:
            chosen.append(event)
            coming[event.entity_id] = event.version + 1
    return chosen


def _stays(chunk: _Range) -> int:
    """Count the old events that are not the newest of their entity."""
    return sum(event.version < chunk.bounds[event.entity_id][1] for event, _ in chunk.old)
