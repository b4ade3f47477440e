"""The steps that archiving and restoring share, and the checks which tables they work for.

Each step is a small transaction. It locks the row that names the archive table, so that no two commands move events at
once, whoever runs them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pymysql

from offsets.lease import lock_name
from projectors.throttle import Throttle
from viewtail.changes.errors import MisuseError, StopRequested, StoreError, StoreUnavailableError, ViewtailError
from viewtail.entities.archive_files import FiledEvent
from viewtail.entities.archives import FILE, TABLE, Archive, places_of
from viewtail.entities.event_table import EventTable
from viewtail.servers.privileges import Privileges
from viewtail.servers.sessions import Connection, mend_of_denial, number_of, quote, value_of

T = TypeVar("T")

EVENTS_AT_ONCE = 500  # in one transaction
BYTES_AT_ONCE = 16 << 20
COLUMNS = FiledEvent._fields
_TRIES = 10
_LOCKED = frozenset({1205, 1213})
_DUPLICATE = 1062


@dataclass(frozen=True, slots=True)
class Listed:
    """An event, as steps choose among them."""

    event_id: int
    entity_id: str
    version: int
    size: int  # bytes of its JSON


@dataclass(eq=False, kw_only=True)
class ArchiveSteps:
    """Moves events over one session on the table's server.

    Args:
        connection: READ COMMITTED, autocommit off.
        throttle: limits the rate of moved events.
        say: reports how many events were moved so far."""

    connection: Connection
    table: EventTable
    throttle: Throttle
    stop: threading.Event
    say: Callable[[int], None] = lambda _: None
    moved: int = 0
    columns: list[str] = field(default_factory=list, init=False)
    archive: EventTable = field(init=False)

    def check(self) -> None:
        """Raises MisuseError for a table that cannot be archived, StoreError where rights are missing."""
        schema, name = self.table.schema_and_table
        with self.asking():
            engine = value_of(
                self.connection,
                "SELECT engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s "
                "AND table_type = 'BASE TABLE'",
                *(schema, name),
            )
            kept = [column for column, is_kept in self.described(self.table) if is_kept]
            keys = self.rows(
                "SELECT index_name, GROUP_CONCAT(column_name ORDER BY seq_in_index) FROM information_schema.statistics "
                "WHERE table_schema = %s AND table_name = %s AND non_unique = 0 GROUP BY index_name",
                *(schema, name),
            )
            if engine is None:
                raise MisuseError(f"there is no table {self.table.name}, or its user may not read it")
            wanted = {
                ("PRIMARY", "event_id"),
                ("entity_version", "entity_id,version"),
                ("entity_command", "entity_id,command_id"),
            }
            if engine != "InnoDB" or not {*COLUMNS} <= {*kept} or not wanted <= {*keys}:
                raise MisuseError(
                    f"{self.table.name} is no table of event-sourced entities as viewtail makes it (docs/entities.md): "
                    "its columns, its keys event_id, entity_version and entity_command, or its engine differ. viewtail "
                    "archives no other tables"
                )
            self.columns = kept
            self._check_dependents(schema, name)

    def _check_dependents(self, schema: str, name: str) -> None:
        """Refuse a table with triggers or foreign keys, which moving a row would set off."""
        if Privileges.of(self.connection).missing(["TRIGGER"], schema, name):
            raise StoreError(
                f"whether {self.table.name} has triggers cannot be seen, and they would fire for each event that is "
                f"moved. GRANT TRIGGER ON {self.table.quoted} to the user of this command"
            )
        triggers = self.rows(
            "SELECT trigger_name FROM information_schema.triggers WHERE event_object_schema = %s "
            "AND event_object_table = %s AND event_manipulation IN ('INSERT', 'DELETE')",
            *(schema, name),
        )
        if triggers:
            raise MisuseError(
                f"{self.table.name} has the trigger {triggers[0][0]}, which would fire for each event that is moved. "
                "Drop it first"
            )
        children = self.rows(
            "SELECT table_schema, table_name, constraint_name FROM information_schema.key_column_usage "
            "WHERE referenced_table_schema = %s AND referenced_table_name = %s",
            *(schema, name),
        )
        if children:
            raise MisuseError(
                f"{'.'.join(children[0][:2])} refers to {self.table.name} by the foreign key {children[0][2]}: its "
                "rows would lose their events. Drop the key first"
            )

    def described(self, table: EventTable) -> list[tuple[str, bool]]:
        """Return the names of its columns, and whether each is stored as given, not generated."""
        rows = self.rows(
            "SELECT column_name, extra NOT LIKE '%GENERATED%' OR extra LIKE 'DEFAULT_GENERATED%' "
            "FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
            *table.schema_and_table,
        )
        return [(name, bool(is_kept)) for name, is_kept in rows]

    def known_archive(self) -> EventTable | None:
        """The archive table, where the table was archived before."""
        with self.asking():
            archive = Archive(self.table).events(self.connection)
            self.connection.rollback()
        return archive

    def open_archive(self) -> None:
        """Find the archive to restore events from. Raises MisuseError if nothing was archived."""
        if (known := self.known_archive()) is None:
            raise MisuseError(f"{self.table.name} was never archived")
        self.archive = known

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raises MisuseError while another command archives or restores the table."""
        name = lock_name(self.table.name, "archive")
        with self.asking():
            if value_of(self.connection, "SELECT GET_LOCK(%s, 0)", name) != 1:
                raise MisuseError(f"another viewtail archives or restores {self.table.name} now")
        try:
            yield
        finally:
            with suppress(pymysql.err.MySQLError):
                value_of(self.connection, "SELECT RELEASE_LOCK(%s)", name)

    # --- Steps ---

    def step(self, work: Callable[[], T]) -> T:
        """Run `work` in a transaction of its own, alone among the commands that move the table's events; retry on lock
        waits."""
        for left in reversed(range(_TRIES)):
            with self.asking():
                try:
                    self.rows(f"SELECT id FROM {places_of(self.table)} WHERE kind = '{TABLE}' FOR UPDATE")
                    result = work()
                    self.connection.commit()
                    return result
                except pymysql.err.MySQLError as error:
                    if number_of(error) not in _LOCKED or not left:
                        raise
                    self.connection.rollback()
            time.sleep(random.uniform(0.01, 0.2))
        raise AssertionError

    def paced(self, work: Callable[[], int]) -> int:
        """Run a step that moves events; return how many it moved. Raises StopRequested."""
        self.check_stop()
        self.throttle.begin()
        count = self.step(work)
        self.moved += count
        self.say(self.moved)
        self.throttle.after(count)
        return count

    def check_stop(self) -> None:
        """Raise StopRequested if the command is to stop; called between two steps."""
        if self.stop.is_set():
            raise StopRequested

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Turn an error of the server into one of viewtail's; the transaction is rolled back."""
        try:
            yield
        except pymysql.err.MySQLError as error:
            with suppress(pymysql.err.MySQLError):
                self.connection.rollback()
            raise self._error(error) from None
        except BaseException:
            with suppress(pymysql.err.MySQLError):
                self.connection.rollback()
            raise

    def _error(self, error: pymysql.err.MySQLError) -> ViewtailError:
        said = " ".join(map(str, error.args))
        if mend_of_denial(error) is not None:
            places = places_of(self.table)
            return StoreError(
                f"{said}. This command's user needs: GRANT SELECT, DELETE, TRIGGER ON {self.table.quoted} (to restore, "
                f"INSERT too); GRANT CREATE, ALTER, INDEX, SELECT, INSERT, UPDATE, DELETE on the archive table and on "
                f"{places}. Whoever handles commands needs SELECT on both"
            )
        return StoreUnavailableError(f"{self.table.name}: {said}. Nothing is lost; repeat the command")

    # --- Statements ---

    def files(self, *states: str) -> list[tuple[int, Path]]:
        """Ids and paths of the files in these states, the oldest first."""
        rows = self.step(
            lambda: self.rows(
                f"SELECT id, place FROM {places_of(self.table)} WHERE kind = '{FILE}' AND state IN %s ORDER BY id",
                list(states),
            )
        )
        return [(number, Path(place)) for number, place in rows]

    def texts(self, table: EventTable, ids: Iterable[int]) -> dict[int, FiledEvent]:
        """Events as files have them, by id."""
        columns = ", ".join(
            "CAST(committed_at AS CHAR)" if column == "committed_at" else quote(column) for column in COLUMNS
        )
        rows = self.rows(f"SELECT {columns} FROM {table.quoted} WHERE event_id IN %s", list(ids))
        return {row[0]: FiledEvent(*row) for row in rows}

    def delete(self, table: EventTable, ids: Sequence[int]) -> None:
        """Delete all these events; raises StoreUnavailableError if some are gone."""
        if self.execute(f"DELETE FROM {table.quoted} WHERE event_id IN %s", ids) != len(ids):
            raise StoreUnavailableError(f"{table.name}: somebody else deletes events. Nothing was moved; try again")

    @contextmanager
    def naming_duplicates(self, table: EventTable, ids: Collection[int]) -> Iterator[None]:
        """Name the duplicates in errors while these events are written into a table."""
        try:
            yield
        except pymysql.err.IntegrityError as error:
            if number_of(error) != _DUPLICATE:
                raise
            raise StoreError(
                f"{table.name} has one of the events {min(ids)} to {max(ids)} already, by its id, its version or its "
                "command. Nothing of this step was moved. Compare both tables, and delete the wrong one"
            ) from None

    def rows(self, statement: str, *values: object) -> list[Any]:
        """The rows of a query."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def execute(self, statement: str, *values: object) -> int:
        """Run a statement and return the number of affected rows."""
        with self.connection.cursor() as cursor:
            return int(cursor.execute(statement, values))


def first_of(events: Sequence[Listed], most: int, most_bytes: int) -> list[Listed]:
    """Return the first events: as many as one transaction may move, and at least one."""
    cut: list[Listed] = []
    size = 0
    for event in events[:most]:
        size += event.size
        if cut and size > most_bytes:
            break
        cut.append(event)
    return cut


def slices(events: Sequence[FiledEvent]) -> Iterator[list[FiledEvent]]:
    """Split events into lists that one transaction each may move."""
    now: list[FiledEvent] = []
    size = 0
    for event in events:
        size += event.size
        if now and (len(now) == EVENTS_AT_ONCE or size > BYTES_AT_ONCE):
            yield now
            now, size = [], event.size
        now.append(event)
    if now:
        yield now
