"""The MySQL sink: index tables and whole tables, written with guarded multi-row upserts.

`write` leaves its transaction open; the offset store, on the same connection, commits rows and offset together.
The guard is in the upsert itself: each value is taken over only from a newer version, and the version is assigned
last, because the assignments of ON DUPLICATE KEY UPDATE are evaluated from left to right and see each other. A delete
is a row with NULL values and its version. This module does not decide when to commit, and does not backfill views.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import SERVER_STATUS

from offsets.lease import lock_name
from offsets.mysql import MySQLOffsets
from projectors.stores import (
    GuardedSink,
    Held,
    Item,
    Meanwhile,
    OnMissing,
    PlaceRefusedError,
    ignored,
    lives_elsewhere,
    nothing,
    parked,
)
from projectors.stores.index_tables import places
from projectors.stores.index_tables.offsets import SharedOffsets
from projectors.stores.index_tables.reading import end_of_page, stale_keys
from projectors.stores.index_tables.single_rows import MOST_VIEWS, SingleRows
from projectors.stores.index_tables.table import present_tables
from projectors.stores.index_tables.unchanged import ChangedMeanwhileError, Unchanged
from projectors.stores.index_tables.unique import owners
from projectors.stores.index_tables.upserts import Upsert
from projectors.views import BoundView
from viewtail.changes.errors import RETRIES, DeclarationError, StoreError, StoreUnavailableError, ViewtailError
from viewtail.changes.positions import Position, ReadPosition
from viewtail.changes.writes import Key, Parked, ViewWrites
from viewtail.servers.facts import ServerFacts, facts_of
from viewtail.servers.literals import equals
from viewtail.servers.pipelined import Flight
from viewtail.servers.sessions import (
    TEMPORARY_NUMBERS,
    Connection,
    create_database,
    mend_of_denial,
    number_of,
    read_only_error,
    value_of,
)

_Block: TypeAlias = tuple[Upsert, list[Item]]
_Refused: TypeAlias = tuple[Item, pymysql.err.MySQLError]

BYTES_A_STATEMENT = 1 << 20  # longer statements were not faster; a single larger row is sent alone
DEADLOCK_ATTEMPTS = 4
TURN_WAIT_S = 5  # for another source that changes tables
DDL_WAIT_S = 10  # for readers that hold the table's metadata lock

_DEADLOCK = 1213
_BROKEN_TABLE = frozenset({1054, 1146})  # a column, or the table, is missing: `missing` then says of which view
_KEEPS_CONNECTION = frozenset({1205, _DEADLOCK})

# Errors that one row causes and that every later attempt would meet again; what a person reads about them.
_ROW_ERRORS = {
    1048: "it is NULL where the column may not be",
    1062: "another row has its place in a unique index that somebody added",
    1264: "the number is outside the column's range",
    1265: "the value is not one of the column's",
    1292: "the value is not valid for the column's type",
    1300: "the text is not valid utf8mb4",
    1366: "the value is not valid for the column's type or character set",
    1367: "the value is not valid for the column's type",
    1406: "the value is longer than the column",
    1411: "the value is not valid for the column's type",
    1416: "the value is not a geometry",
    1451: "a foreign key of another table, which somebody added, keeps the row",
    1452: "a foreign key that somebody added refuses it",
    1690: "the number is outside the column's range",
    3140: "the value is not valid JSON",
    3819: "a CHECK constraint that somebody added refuses it",
}
_BY_OTHERS = frozenset({1048, 1062})  # of a view that is unique over sources: another one has the key, see unique.py
_COLUMN = re.compile(r"column '([^']{1,64})'")
_BY_VIEW = attrgetter("view")


class MySQLSink(GuardedSink):
    """Index tables of one pipeline, in one database. Raises as the Sink protocol says."""

    def __init__(self, connection_factory: Callable[[], Connection], database: str, views: Sequence[BoundView]) -> None:
        self._open = connection_factory
        self._database = database
        self._views = {view.id: view for view in views}
        self._connection: Connection | None = None
        self._upserts: dict[str, Upsert] = {}
        self._unchanged: dict[str, Unchanged] = {}  # of views whose row is all that they have of an entity
        self._offset: MySQLOffsets | None = None
        self.committed_upto: Position | None = None  # the last write was committed by itself, the offset left behind
        self._moved: tuple[Position, int] | None = None  # in the open transaction, and rows that its UPDATE found
        self._single_rows = SingleRows(connection_factory)
        self._max_packet = self._max_statement = BYTES_A_STATEMENT

    def offsets(self, pipeline: str, read_position: ReadPosition) -> SharedOffsets:
        """The offset store of this sink's pipeline; the offset's statement is sent behind each batch's rows."""
        self._offset = MySQLOffsets(lambda: self.connection, self._database, pipeline, read_position=read_position)
        return SharedOffsets(self._offset, self)

    def take_moved(self, position: Position) -> int | None:
        """The number of rows that the offset's UPDATE to a position found; None if the transaction has none."""
        moved, self._moved = self._moved, None
        # One position may be that of several batches, while an XA transaction holds it back.
        return moved[1] if moved is not None and moved[0] is position else None

    @property
    def connection(self) -> Connection:
        """The session on which the rows are written; saving the offset commits it.

        Never opens one: an offset saved on a new session would say that rows are durable which the old one lost.
        """
        if self._connection is None or not self._connection.open:
            raise StoreUnavailableError("MySQL index tables: the connection broke; viewtail reconnects by itself")
        return self._connection

    def connect(self) -> Connection:
        """A living connection with no transaction open."""
        self._moved = None
        if self._connection is not None:
            try:
                self._connection.rollback()
                return self._connection
            except pymysql.err.MySQLError:
                self.close()
        self._connection = self._open()
        return self._connection

    def is_gone(self, view: str) -> bool:
        """Return whether its index table does not exist, or lacks columns that it had."""
        with self._committed("looking at the index tables") as connection:
            shapes, _ = self._shapes(connection, facts_of(connection))
        return any(shape.view.id == view and not shape.is_whole for shape in shapes)

    def prepare(self, on_missing: OnMissing = ignored) -> dict[str, str]:
        """Connect if there is no living connection, and bring the tables of all views into shape.

        A view is missing if its index table does not exist, or lacks columns that it had.
        """
        with self._committed("preparing the index tables") as connection, self._in_turn(connection):
            for upsert in self._upserts.values():
                upsert.forget()
            facts = facts_of(connection)
            shapes, refused = self._shapes(connection, facts)
            self._learn_limits(connection)
            connection.commit()
            if missing := frozenset(shape.view.id for shape in shapes if not shape.is_whole):
                on_missing(missing)
            refused |= self._make_ready(connection, shapes)
        self._upserts = self._writers([shape for shape in shapes if shape.view.id not in refused], facts)
        self._unchanged = {
            name: Unchanged(self._database, upsert.view)
            for name, upsert in self._upserts.items()
            if upsert.is_row_whole
        }
        return refused

    @contextmanager
    def _in_turn(self, connection: Connection) -> Iterator[None]:
        """One source looks at the tables that it shares with others and changes them, then the next one looks.

        Where the tables are of one source, there is no other to wait for."""
        if not any(view.source for view in self._views.values()):
            yield
            return
        lock = lock_name(self._database, "index tables of several sources")
        if value_of(connection, "SELECT GET_LOCK(%s, %s)", lock, TURN_WAIT_S) != 1:
            raise StoreUnavailableError(
                f"MySQL index tables: another source is making or changing its tables in {self._database}; {RETRIES}"
            )
        try:
            yield
        finally:
            if connection.open:
                value_of(connection, "SELECT RELEASE_LOCK(%s)", lock)

    def _make_ready(self, connection: Connection, shapes: Sequence[places.AnyShape]) -> dict[str, str]:
        """Create tables or bring them into shape; by view, why others cannot be."""
        refused: dict[str, str] = {}
        if not all(shape.is_there for shape in shapes):
            create_database(connection, self._database)
        connection.query(f"SET SESSION lock_wait_timeout = {DDL_WAIT_S}")
        for shape in shapes:
            try:
                shape.make_ready(connection)
            except (PlaceRefusedError, DeclarationError) as error:
                refused[shape.view.id] = str(error)
        return refused

    def attach(self) -> frozenset[str]:
        with self._committed("looking at the index tables") as connection:
            facts = facts_of(connection)
            shapes, _ = self._shapes(connection, facts)
            self._learn_limits(connection)
        self._upserts = self._writers([shape for shape in shapes if shape.is_whole], facts)
        return frozenset(self._upserts)

    def _writers(self, shapes: Sequence[places.AnyShape], facts: ServerFacts) -> dict[str, Upsert]:
        return {shape.view.id: places.writer_of(shape, facts, self._max_statement) for shape in shapes}

    def _learn_limits(self, connection: Connection) -> None:
        # The packet has the command's byte too; a little room.
        self._max_packet = int(value_of(connection, "SELECT @@max_allowed_packet")) - 16
        self._max_statement = min(BYTES_A_STATEMENT, self._max_packet)

    def fit(self, view: BoundView) -> bool:
        """Alter one index table for a view whose table changed. The DDL would commit an open transaction."""
        with self._committed(f"widening the index table of {view.id}") as connection, self._in_turn(connection):
            facts = facts_of(connection)
            present = present_tables(connection, facts, self._database, places.table_names(view))
            shape = places.shape_of(self._database, view, facts.name, present)
            connection.query(f"SET SESSION lock_wait_timeout = {DDL_WAIT_S}")
            shape.ensure(connection)
        self._views[view.id] = view  # if that failed, the table is still as the view was before
        return True

    def leave_alone(self, views: Collection[str]) -> None:
        """Leave the tables of these halted views as they are."""
        self._views = {name: view for name, view in self._views.items() if name not in views}

    @contextmanager
    def _committed(self, doing: str) -> Iterator[Connection]:
        """A living connection, committed at the end."""
        connection = self.connect()
        try:
            yield connection
            connection.commit()
        except pymysql.err.MySQLError as error:
            raise self._failure(error, doing) from None

    def _shapes(self, connection: Connection, facts: ServerFacts) -> tuple[list[places.AnyShape], dict[str, str]]:
        """The shapes of the views that can have a table; by view, why others cannot."""
        names = [name for view in self._views.values() for name in places.table_names(view)]
        present = present_tables(connection, facts, self._database, names)
        shapes: list[places.AnyShape] = []
        refused = {}
        for view in self._views.values():
            try:
                shapes.append(places.shape_of(self._database, view, facts.name, present))
            except DeclarationError as error:
                refused[view.id] = str(error)
        return shapes, refused

    def write(
        self, writes: Sequence[ViewWrites], upto: Position | None, meanwhile: Meanwhile = nothing
    ) -> list[Parked]:
        """Apply what is newer and leave the transaction open; returns the keys that MySQL refuses for good.

        A row that comes alone, in each of its views, may be committed by itself; then the sink tells the offset store.
        """
        connection = self.connection
        if upto is not None and self._went_ahead(connection, writes, upto):
            return []
        # A deadlock rolls everything back. What this call wrote can be written again here; what earlier calls wrote
        # (pieces of a large transaction) only the caller has.
        attempts = 1 if _is_in_transaction(connection) else DEADLOCK_ATTEMPTS
        for attempt in range(1, attempts + 1):
            try:
                return self._apply(connection, writes, upto, meanwhile)
            except pymysql.err.MySQLError as error:
                if number_of(error) != _DEADLOCK or attempt == attempts:
                    raise self._failure(error, "writing rows") from None
            self._roll_back()  # what flew behind the failed statement began a transaction of its own
            time.sleep(random.uniform(0, 0.02 * attempt))
        raise AssertionError("unreachable")

    def push(self, writes: Sequence[ViewWrites]) -> None:
        """Send all in one flight, with its COMMIT. In a deadlock, the other writer writes the same rows."""
        connection = self.connection
        try:
            for of_view in writes:
                self._upserts[of_view.view].make_ready(connection, len(of_view.writes))
            flight = Flight(connection)
            self._sent(flight, writes)
            flight.send(b"COMMIT")
            _landed(flight)
        except pymysql.err.MySQLError as error:
            if number_of(error) != _DEADLOCK:
                raise self._failure(error, "pushing rows") from None
            self._roll_back()

    def write_again(self, writes: Sequence[ViewWrites]) -> list[Parked]:
        """Set the version of blocks of rows that are stored as they would be written, and upsert the other blocks.

        The upserts come last, so not in the order of keys: a missing row that another writer brings at the same time
        may end in a deadlock. A writer that is rolled back writes in the usual way.
        """
        connection = self.connection
        if not _is_in_transaction(connection):  # what cannot be finished is rolled back as a whole
            try:
                return self._apply_again(connection, writes)
            except (ViewtailError, pymysql.err.MySQLError, ChangedMeanwhileError):
                self._roll_back()  # the usual way meets again whatever is wrong, and tells it
        return self.write(writes, None)

    def _apply_again(self, connection: Connection, writes: Sequence[ViewWrites]) -> list[Parked]:
        letters: list[Parked] = []
        for of_view in sorted(writes, key=_BY_VIEW):
            unchanged, items = self._unchanged.get(of_view.view), sorted(of_view.writes.items())
            left = items if unchanged is None else unchanged.left(connection, items)
            letters += self._apply(connection, [ViewWrites(of_view.view, dict(left))], None) if left else []
        return letters

    def witness(self, offset: Position) -> Position | None:
        """The offset as the server has it: its row is on the rows' own server, committed with or after them.

        A server that lost transactions (it came back from a crash with relaxed flushing, or a replica was promoted
        in its place) shows it by an offset that is behind the one that this process has.
        """
        return offset if self._offset is None else self._offset.saved()

    def keys_below(self, view: str, version: int, since: int | None = None) -> Iterator[list[tuple[Key, int]]]:
        """A page of (key, version) below `version` for each ROWS_A_PAGE rows of the table, in key order.

        Rows whose values are all NULL are left out: they are tombstones, or entities that no value leads to, and a
        table that shows neither needs no sweep of them. The server reads ROWS_A_PAGE rows by primary key at a time and
        sends those that are older: no single query reads a large table for longer than the connection waits.
        """
        return self.keys_of_part(view, (), version)

    def keys_of_part(self, view: str, values: Key, version: int) -> Iterator[list[tuple[Key, int]]]:
        bound = places.rows_of(self._views[view])
        after: Key | None = None
        while True:
            rows = self._read(stale_keys(self._database, bound, after, version, values))
            yield [(row[:-1], row[-1]) for row in rows]
            last = self._read(end_of_page(self._database, bound, after, values))
            if not last:
                return
            after = last[0]

    def take_away(self, view: str, held: Mapping[Key, Held]) -> None:
        """Delete rows in the open transaction, which `save` commits with the rows that are written next."""
        bound, connection = self._views[view], self.connection
        try:
            with connection.cursor() as cursor:
                for key, seen in held.items():
                    if seen.mark is None:  # nothing is there, and MySQL remembers nothing
                        continue
                    for statement in places.removals(self._database, bound, equals(bound.key, key), seen.mark):
                        cursor.execute(statement)
        except pymysql.err.MySQLError as error:
            raise self._failure(error, "taking rows away") from None

    def close(self) -> None:
        """Give the connection up; the server rolls an open transaction back."""
        self._single_rows.close()
        connection, self._connection = self._connection, None
        if connection is not None and connection.open:
            connection.close()

    def _went_ahead(self, connection: Connection, writes: Sequence[ViewWrites], upto: Position) -> bool:
        """Return whether the writes were one row of each of a few views, and are durable now."""
        if self._offset is None or not 0 < len(writes) <= MOST_VIEWS or _is_in_transaction(connection):
            return False
        rows = [(self._upserts[of_view.view], item) for of_view in writes for item in of_view.writes.items()]
        if len(rows) != len(writes) or not all(upsert.is_alone for upsert, _ in rows):
            return False
        is_durable = self._single_rows.write(rows, self._offset.owner)
        if is_durable:
            self.committed_upto = upto
        return is_durable

    def _apply(
        self,
        connection: Connection,
        writes: Sequence[ViewWrites],
        upto: Position | None,
        meanwhile: Meanwhile = nothing,
    ) -> list[Parked]:
        """Send all statements in one flight; each is packed while the server executes those before it."""
        # Preparing waits for an answer, so it comes before the flight.
        update = None if self._offset is None or upto is None else self._offset.update(connection, upto)
        for of_view in writes:
            self._upserts[of_view.view].make_ready(connection, len(of_view.writes))
        flight = Flight(connection)
        flown, apart = self._sent(flight, writes)
        if update is not None:
            flight.execute(update)
        flight.flush()
        meanwhile()
        answers = _landed(flight)
        apart += [block for block, answer in zip(flown, answers, strict=False) if not isinstance(answer, int)]
        letters: list[Parked] = []
        for upsert, items in apart:
            letters += self._one_by_one(connection, upsert, items)
        if update is not None:
            self._note_moved(upto, answers[-1])
        return letters

    def _note_moved(self, upto: Position | None, changed: int | pymysql.err.MySQLError) -> None:
        assert upto is not None
        assert isinstance(changed, int), "no row error is about an offset"
        self.committed_upto, self._moved = None, (upto, changed)

    def _sent(self, flight: Flight, writes: Sequence[ViewWrites]) -> tuple[list[_Block], list[_Block]]:
        """Send the blocks of rows; returns them in their order, and blocks that no statement can hold as they are."""
        flown, apart = [], []
        # One order of views and keys for every writer, so that two of them wait instead of deadlocking.
        for of_view in sorted(writes, key=_BY_VIEW):
            upsert = self._upserts[of_view.view]
            for items, execution in upsert.executions(sorted(of_view.writes.items())):
                if execution is None or len(execution) > self._max_statement:
                    apart.append((upsert, items))
                else:
                    flight.execute(execution)
                    flown.append((upsert, items))
        return flown, apart

    def _one_by_one(self, connection: Connection, upsert: Upsert, items: list[Item]) -> Iterator[Parked]:
        """Write the rows of a statement that was too long or failed one by one; yields those that MySQL refuses.

        InnoDB takes a failed statement back as a whole and keeps the transaction, so no savepoint is needed.
        """
        upsert.make_ready(connection, 1)
        flight, flown = Flight(connection), []
        for item in items:
            for _, execution in upsert.executions([item]):
                if execution is None:
                    yield parked(upsert.view, item, upsert.why_unfit(item))
                elif len(execution) > self._max_packet:
                    limit = f"the server's max_allowed_packet, {self._max_packet}"
                    yield parked(upsert.view, item, f"its row of {len(execution)} bytes is above {limit}")
                else:
                    flight.execute(execution)
                    flown.append(item)
        answers = zip(flown, _landed(flight), strict=True)
        refused = [(item, answer) for item, answer in answers if not isinstance(answer, int)]
        yield from self._refused(connection, upsert.view, refused)

    def _refused(self, connection: Connection, view: BoundView, refused: list[_Refused]) -> Iterator[Parked]:
        """The dead letters of rows that MySQL refused, each with its error."""
        elsewhere: Mapping[Key, str] = {}
        by_others = [item[0] for item, error in refused if number_of(error) in _BY_OTHERS]
        if view.is_unique_over_sources and by_others:
            elsewhere = owners(connection, self._database, view, by_others)
        for item, error in refused:
            number = number_of(error)
            if view.is_unique_over_sources and number in _BY_OTHERS:
                yield lives_elsewhere(view, item, elsewhere.get(item[0]))
            else:
                yield parked(view, item, f"MySQL refused it with error {number}{_what(error)}: {_ROW_ERRORS[number]}")

    def _read(self, query: str) -> list[tuple[Any, ...]]:
        connection = self.connection
        was_in_transaction = _is_in_transaction(connection)
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                rows = list(cursor.fetchall())
            if not was_in_transaction:
                connection.commit()  # a reader's open transaction would hold up the next ALTER TABLE
            return rows
        except pymysql.err.MySQLError as error:
            raise self._failure(error, "reading an index table") from None

    def _failure(self, error: pymysql.err.MySQLError, doing: str) -> ViewtailError:
        """Roll back; returns the error of viewtail's tree. The server's text stays out: it may hold values."""
        number = number_of(error)
        said = f"MySQL index tables: {doing} failed with error {number}"
        if number in _KEEPS_CONNECTION:
            self._roll_back()
        else:
            self.close()
        if number in _BROKEN_TABLE:
            return StoreUnavailableError(
                f"{said}{_what(error)}: somebody dropped or changed an index table; viewtail creates it again and "
                "backfills its view"
            )
        if (takes_none := read_only_error(error, f"{said}: its server")) is not None:
            return takes_none
        if number in TEMPORARY_NUMBERS or number == 0:
            why = _TEMPORARY_WORDS.get(number, "")
            return StoreUnavailableError(f"{said}{why}; nothing of it was kept, {RETRIES}")
        if (mend := mend_of_denial(error)) is not None:
            return StoreError(f"{said} {error.args[-1]}. {mend}")
        remedy = "Look the number up in the MySQL manual, fix the cause, and start viewtail again"
        return StoreError(f"{said} ({type(error).__name__}){_what(error)}. {remedy}")

    def _roll_back(self) -> None:
        try:
            self.connection.rollback()
        except (pymysql.err.MySQLError, StoreUnavailableError):
            self.close()


def _landed(flight: Flight) -> list[int | pymysql.err.MySQLError]:
    """The answers of a flight, errors of single rows among them; raises the first error of another kind."""
    answers = flight.land()
    for answer in answers:
        # Taken to the end first: what came behind it was executed too, and is rolled back with it.
        if isinstance(answer, pymysql.err.MySQLError) and number_of(answer) not in _ROW_ERRORS:
            raise answer
    return answers


def _is_in_transaction(connection: Connection) -> bool:
    # PyMySQL keeps the flags of the last answer; its type stubs do not know them.
    return bool(connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)  # type: ignore[attr-defined]


def _what(error: pymysql.err.MySQLError) -> str:
    """The column that the server names; the rest of its text may quote the value."""
    match = _COLUMN.search(str(error.args[1])) if len(error.args) > 1 else None
    return f", column {match[1]}" if match else ""


_TEMPORARY_WORDS = {
    0: " (the connection broke)",
    1205: " (waited too long for a lock of another session: docs/incidents.md says how to find and end it)",
    1213: " (deadlock with another session, several times)",
    2006: " (the connection broke)",
    2013: " (the connection broke, or the server did not answer in time)",
}
