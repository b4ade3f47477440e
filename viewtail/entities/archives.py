"""Finds the archived events of a table, so that workers still find the answers of their commands.

An archived table has two tables beside it. TABLE_archived_in names the archive table, for good, since workers remember
it; and the files, each with its checksum. The archive table has a row for every archived event, so that its command
keeps its answer. If events went into files, their states are only there, and the row names the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pymysql

from viewtail.changes.errors import StoreError
from viewtail.changes.tables import Table
from viewtail.entities import archive_files
from viewtail.entities.commands import Command
from viewtail.entities.event_table import NO_TABLE, EventTable, Newest, Recorded
from viewtail.operations.erase import Archived
from viewtail.servers.sessions import Connection, MySQLAddress, asking, lacks_rights, number_of, quote, value_of

TABLE, FILE = "table", "file"  # kinds of places
WRITING, WRITTEN, WHOLE = "writing", "written", "whole"  # states of a file
IN_FILE = "archived_in"  # column of the archive table: the id of a file, NULL where the row itself is all


def places_of(table: EventTable) -> str:
    """The table that says where archived events are, quoted."""
    schema, name = table.schema_and_table
    return quote(schema, f"{name}_archived_in")


def places_ddl(table: EventTable) -> str:
    """Return the statement that creates that table where it is missing."""
    return (
        f"CREATE TABLE IF NOT EXISTS {places_of(table)} (\n"
        "  id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'Compact key',\n"
        "  kind VARCHAR(8) NOT NULL COMMENT 'Either table: the one archive table; or file',\n"
        "  place VARCHAR(4096) NOT NULL COMMENT 'Name of the table, or the path of a file',\n"
        "  state VARCHAR(8) NOT NULL COMMENT 'Of a file: writing; written: its events are moved; whole',\n"
        "  sha256 CHAR(64) NULL COMMENT 'Of the file, in hexadecimal',\n"
        "  event_count BIGINT UNSIGNED NULL COMMENT 'Lines of the file',\n"
        "  created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it was begun'\n"
        ") ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='viewtail: Where archived events are'"
    )


@dataclass(eq=False)
class Archive:
    """Finds archived events of a table for readers, over any session on the table's server."""

    table: EventTable
    _events: EventTable | None = None

    def events(self, connection: Connection) -> EventTable | None:
        """The archive table; None where the table was never archived."""
        if self._events is None:
            try:
                name = value_of(connection, f"SELECT place FROM {places_of(self.table)} WHERE kind = '{TABLE}'")
            except pymysql.err.MySQLError as error:
                if number_of(error) != NO_TABLE:
                    raise
                return None
            self._events = None if name is None else EventTable(name)
        return self._events

    @property
    def is_known(self) -> bool:
        """Return whether there is an archive, as far as was asked."""
        return self._events is not None

    @property
    def question(self) -> bytes:
        """Return a statement without a result, for `has_none`."""
        return f"SELECT 1 FROM {places_of(self.table)} LIMIT 1 INTO @viewtail_archived".encode()

    @staticmethod
    def has_none(error: pymysql.err.MySQLError | None) -> bool:
        """Return whether no event of the table was archived before the question met this error."""
        return error is not None and number_of(error) == NO_TABLE

    def may_have_some(self, connection: Connection) -> bool:
        """Return whether any event may be archived; True too for a user who may not ask."""
        try:
            return self.events(connection) is not None
        except pymysql.err.MySQLError as error:
            if not lacks_rights(error):  # also where the table is not there
                raise
            return True

    def recorded(self, connection: Connection, commands: Sequence[Command]) -> dict[tuple[str, str], Recorded]:
        """The commands whose events are archived, by entity and command id."""
        if not commands or (events := self.events(connection)) is None:
            return {}
        return events.recorded(connection, commands)

    def at(self, connection: Connection, entity_id: str, version: int) -> Newest | None:
        """The state that an entity had at an archived version. Raises StoreError where its file cannot be read."""
        if (events := self.events(connection)) is None:
            return None
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT event_id, state, {IN_FILE} FROM {events.quoted} WHERE entity_id = %s AND version = %s",
                (entity_id, version),
            )
            row = cursor.fetchone()
        if row is None:
            return None
        event_id, state, number = row
        if number is not None:
            state = self._filed(connection, event_id, number)
        return version, state.encode(), version

    def files(self, connection: Connection) -> list[str]:
        """Return the paths of all files that hold events, or held them before they were restored."""
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT place FROM {places_of(self.table)} WHERE kind = '{FILE}' ORDER BY id")
            return [place for (place,) in cursor.fetchall()]

    def _filed(self, connection: Connection, event_id: int, number: int) -> str:
        path, digest = file_of(connection, self.table, number)
        state = archive_files.state_in(path, digest, event_id)
        if state is None:
            raise StoreError(f"{path}: event {event_id} is not in it, though {places_of(self.table)} says so")
        return state


def file_of(connection: Connection, table: EventTable, number: int) -> tuple[Path, str]:
    """The path of a file, and its checksum."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT place, sha256 FROM {places_of(table)} WHERE id = %s", (number,))
        row: Any = cursor.fetchone()
    if row is None or row[1] is None:
        raise StoreError(f"{places_of(table)} does not know file {number}, in which archived events are")
    return Path(row[0]), row[1]


def archived_rows(primary: MySQLAddress, table: Table) -> Archived | None:
    """Return where a table's archived events are; None if it has none, or is no table of event-sourced entities."""
    if not {"event_id", "entity_id", "command_id"} <= {column.name for column in table.columns}:
        return None
    archive = Archive(EventTable(table.full_name))
    with asking(replace(primary, database=None), role="source") as connection:
        events = archive.events(connection)
        return None if events is None else Archived(table=events.quoted, files=archive.files(connection))
