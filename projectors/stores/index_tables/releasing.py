"""Hands the table of a MySQLTable view over to the application, which writes it from then on.

One ALTER TABLE does all: the invisible column goes, the comment says no more that the table is viewtail's, and new rows
get numbers above all that were given out. Until it is done nothing has changed; afterwards viewtail leaves the table
alone, whatever it is asked to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

import pymysql

from projectors.stores import Release
from projectors.stores.index_tables.table import PresentTable, present_tables, second_name, table_name
from projectors.stores.index_tables.views import INVISIBLE_VERSION, MySQLTable
from projectors.stores.index_tables.whole import key_collations
from projectors.views import BoundView
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import TEMPORARY_NUMBERS, Connection, mend_of_denial, number_of, quote, value_of

COMMENT = "released by viewtail on "  # begins the comment of a released table
WAIT_S = 2  # for readers' transactions; those that begin meanwhile wait for it
_NOT_INSTANT = frozenset({1845, 1846, 4092})


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
        remarks = [*self._of_defaults(present), *self._of_unique_indexes(present), *self._of_collations(present)]
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

    def _of_unique_indexes(self, present: PresentTable) -> Iterator[str]:
        if unique := sorted(present.unique - {"PRIMARY"}):
            yield (
                f"{', '.join(unique)}: a unique index of {self._rows} that viewtail did not make. Until the release a "
                "write of one row could change another one by it, and viewtail run halts the view when it starts "
                f"again. DROP INDEX {unique[0]} ON {self._rows}; add it when the table is released"
            )

    def release(self, next_number: int) -> None:
        parts = [f"DROP COLUMN {INVISIBLE_VERSION}", f"COMMENT = '{COMMENT}{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC'"]
        try:
            self._session.query(f"SET SESSION lock_wait_timeout = {WAIT_S}")
            if self._number is not None:
                largest = value_of(self._session, f"SELECT MAX({quote(self._number)}) FROM {self._rows}")
                least = max(next_number, (largest or 0) + 1, 1)
                self._session.query(f"ALTER TABLE {self._rows} AUTO_INCREMENT = {least:d}")
            self._alter(parts)
        except pymysql.err.MySQLError as error:
            raise self._failure(error, "releasing its table") from None

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
