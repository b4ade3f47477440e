"""Hands the table of a MySQLTable view over to the application, which writes it from then on.

One ALTER TABLE does all: the invisible column goes, the comment says no more that the table is viewtail's, and new rows
get numbers above all that were given out. Until it is done nothing has changed; afterwards viewtail leaves the table
alone, whatever it is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import pymysql

from ingest.canonical.tables import next_number
from projectors.stores import Release
from projectors.stores.index_tables.table import IndexTableShape, PresentTable, present_tables, second_name, table_name
from projectors.stores.index_tables.views import INVISIBLE_VERSION, MySQLTable
from projectors.stores.index_tables.whole import WholeShape, key_collations
from projectors.views import BoundView
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.changes.tables import Table
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import TEMPORARY_NUMBERS, Connection, mend_of_denial, number_of, quote, value_of

COMMENT = "released by viewtail on "  # begins the comment of a released table
WAIT_S = 2  # for readers' transactions; those that begin meanwhile wait for it
_NOT_INSTANT = frozenset({1845, 1846, 4092})


def constraints_of(connection: Connection, database: str, table: str) -> list[tuple[str, str]]:
    """The name and kind (UNIQUE, CHECK, FOREIGN KEY) of each constraint of a table, without the primary key."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT constraint_name, constraint_type FROM information_schema.table_constraints WHERE table_schema = %s "
            "AND table_name = %s AND constraint_type <> 'PRIMARY KEY' ORDER BY 1, 2",
            (database, table),
        )
        return [(name, kind) for name, kind in cursor.fetchall()]


class TableRelease(Release):
    """Releases one view's table, on a session of its own."""

    def __init__(self, open_: Callable[[], Connection], database: str, view: BoundView) -> None:
        assert isinstance(view.view, MySQLTable)
        self._database, self._view, self._number = database, view, view.view.auto_increment
        self._rows, self._tombstones = (quote(database, name) for name in (table_name(view), second_name(view)))
        self._session = open_()
        self._session.autocommit(True)

    @property
    def place(self) -> str:
        return f"table {self._rows}"

    def released_at(self) -> str | None:
        present = self._present()
        if present is None or not present.comment.startswith(COMMENT):
            return None
        return present.comment.removeprefix(COMMENT)

    def _present(self) -> PresentTable | None:
        name = table_name(self._view)
        try:
            return present_tables(self._session, facts_of(self._session), self._database, [name]).get(name)
        except pymysql.err.MySQLError as error:
            raise self._failure(error, "looking at its table") from None

    def content(self) -> str:
        numbers = f"CONCAT_WS(',', COUNT(*), MAX({INVISIBLE_VERSION}), SUM({INVISIBLE_VERSION}))"
        return " ".join(self._asked(f"SELECT {numbers} FROM {table}") for table in (self._rows, self._tombstones))

    def remarks(self) -> Sequence[str]:
        present = self._present() or PresentTable("")
        remarks = [*self._of_defaults(present), *self._of_collations(present)]
        remarks += [
            f"{name}: keys are compared by their bytes in {self._rows}, not by {collation}. If the application needs "
            f"that, ALTER TABLE ... MODIFY {name} when the table is released"
            for name, collation in key_collations(self._view)
        ]
        if self._number is None:
            remarks.append(f"{self._rows} gives out no numbers (auto_increment= names the column that shall)")
        return remarks

    def _of_defaults(self, present: PresentTable) -> Iterator[str]:
        view = self._view
        shown = {column.name for column in (*view.key, *view.values)} - present.with_default
        lacking = [c.name for c in view.table.columns if c.default is not None and c.name in shown]
        if lacking and not view.view.computed:
            yield (
                f"{', '.join(lacking)}: columns of {view.table.full_name} have a DEFAULT, and those of {self._rows} "
                "have none. Set what the application needs right before the release, or right after it: ALTER TABLE "
                "... ALTER COLUMN ... SET DEFAULT"
            )

    def _of_collations(self, present: PresentTable) -> Iterator[str]:
        """A server of another kind may not have the one of the entity's table."""
        for column in self._view.values:
            here = present.columns.get(column.name)
            if here is not None and here.collation and column.collation and here.collation != column.collation:
                yield (
                    f"{column.name}: texts are compared by {here.collation} in {self._rows}, which this server has, "
                    f"and by {column.collation} in {self._view.table.full_name}"
                )

    def obstacles(self) -> Sequence[str]:
        present = self._present()
        if present is None:
            return []
        try:
            shape = WholeShape(
                self._database, self._view, facts_of(self._session).name, {table_name(self._view): present}
            )
            constraints = constraints_of(self._session, self._database, table_name(self._view))
        except pymysql.err.MySQLError as error:
            raise self._failure(error, "looking at its table") from None
        obstacles = [
            f"{name}: a constraint ({kind}) of {self._rows} that viewtail did not make. It refuses rows that "
            f"{self._view.table.full_name} may have, and by a unique index a write of one row could change another "
            f"one. ALTER TABLE {self._rows} {_without(name, kind, shape.rows)}; add it when the table is released, "
            "before the application writes there"
            for name, kind in constraints
        ]
        if not shape.rows.is_as_declared:
            obstacles.append(
                f"{self._rows} is not as the view is declared: its columns or indexes differ. viewtail run alters it "
                "when it starts again"
            )
        return obstacles

    def release(self, at_least: int) -> None:
        parts = [f"DROP COLUMN {INVISIBLE_VERSION}", f"COMMENT = '{COMMENT}{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC'"]
        try:
            self._session.query(f"SET SESSION lock_wait_timeout = {WAIT_S}")
            if self._number is not None:
                largest = value_of(self._session, f"SELECT MAX({quote(self._number)}) FROM {self._rows}")
                least = max(at_least, self._next_number(), (largest or 0) + 1, 1)
                self._session.query(f"ALTER TABLE {self._rows} AUTO_INCREMENT = {least:d}")
            self._alter(parts)
        except pymysql.err.MySQLError as error:
            raise self._failure(error, "releasing its table") from None

    def _next_number(self) -> int:
        """The table's own counter: it knows the rows that were deleted, and an ALTER TABLE may lower it."""
        table = Table(schema=self._database, name=table_name(self._view), columns=(), primary_key=())
        return next_number(self._session, table)

    def clear(self) -> None:
        name = second_name(self._view)
        try:
            present = present_tables(self._session, facts_of(self._session), self._database, [name]).get(name)
            if present is not None and present.is_second:
                self._session.query(f"DROP TABLE IF EXISTS {self._tombstones}")
        except pymysql.err.MySQLError as error:
            raise self._failure(error, "dropping its tombstones") from None

    def close(self) -> None:
        self._session.close()

    def _alter(self, parts: Sequence[str]) -> None:
        """At once where the server can; a server that cannot makes the table anew."""
        statement = f"ALTER TABLE {self._rows} {', '.join(parts)}"
        try:
            self._session.query(f"{statement}, ALGORITHM = INSTANT")
        except pymysql.err.MySQLError as error:
            if number_of(error) not in _NOT_INSTANT:
                raise
            self._session.query(statement)

    def _asked(self, query: str) -> str:
        try:
            return str(value_of(self._session, query))
        except pymysql.err.MySQLError as error:
            raise self._failure(error, "reading its table") from None

    def _failure(self, error: pymysql.err.MySQLError, doing: str) -> StoreError | StoreUnavailableError:
        said = f"view {self._view.id}: {doing} failed with MySQL error {number_of(error)}"
        if number_of(error) in TEMPORARY_NUMBERS:
            return StoreUnavailableError(f"{said}: a session uses the table, or the server does not answer. Try again")
        mend = mend_of_denial(error)
        return StoreError(f"{said} {error.args[-1]}{f'. {mend}' if mend else ''}")


def _without(name: str, kind: str, shape: IndexTableShape) -> str:
    """How a constraint goes. MariaDB has a column's own CHECK under the column's name, and drops it by no name."""
    of_column = next((each for each in shape.layout if kind == "CHECK" and each.name == name), None)
    return f"DROP CONSTRAINT {quote(name)}" if of_column is None else f"MODIFY {of_column.ddl}"
