"""Takes over a table that another tool made under an index table's name: one ALTER TABLE adds what viewtail needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymysql

from projectors.stores import Adoption
from projectors.stores.index_tables.table import (
    IndexTableShape,
    PresentTable,
    RowsDoNotFitError,
    present_tables,
    table_name,
)
from projectors.views import BoundView
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import SQL_MODE, TEMPORARY_NUMBERS, Connection, mend_of_denial, number_of, value_of

WAIT_S = 10  # for readers' transactions; those that begin meanwhile wait for it
_NOT_INSTANT = frozenset({1845, 1846, 4092})


class TableAdoption(Adoption):
    """Adopts one view's table, on a session of its own."""

    def __init__(self, open_: Callable[[], Connection], database: str, view: BoundView) -> None:
        self._database, self._view = database, view
        self._session = open_()
        self._session.autocommit(True)

    def refusal(self) -> str | None:
        present, shape = self._looked()
        why = "there is no such table" if present is None else None if present.is_own else self._why_not(present, shape)
        return None if why is None else f"{self._view.id}: {shape.table}: {why}"

    def _why_not(self, present: PresentTable, shape: IndexTableShape) -> str | None:
        """The reason why one ALTER TABLE does not make it the view's."""
        return self._of_columns(present, shape) or self._of_keys(present, shape)

    @staticmethod
    def _of_columns(present: PresentTable, shape: IndexTableShape) -> str | None:
        wanted = [definition.name for definition in shape.columns]
        if missing := [name for name in wanted if name not in present.columns and name != shape.version_name]:
            return f"it has no column {', '.join(missing)}. Declare the columns that it has"
        if others := [name for name in present.columns if name not in wanted]:
            return (
                f"it has columns that the view has not: {', '.join(others)}. viewtail drops no column of another "
                "tool's. Name them in value=[...], or drop them where nobody reads them"
            )
        return None

    def _of_keys(self, present: PresentTable, shape: IndexTableShape) -> str | None:
        if present.indexes.get("PRIMARY") != shape.primary:
            return f"its primary key is not ({', '.join(shape.primary)}), the entity's key. Change it first"
        if unique := sorted(present.unique - {"PRIMARY"}):
            return (
                f"it has a unique index {', '.join(unique)}, by which a write of one row could change another one. "
                f"ALTER TABLE ... DROP INDEX {unique[0]}"
            )
        if self._asked("engine") != "InnoDB":
            return "its engine is not InnoDB. ALTER TABLE ... ENGINE=InnoDB"
        return None

    def _asked(self, column: str) -> Any:
        return value_of(
            self._session,
            f"SELECT {column} FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            self._database,
            table_name(self._view),
        )

    def steps(self) -> list[str]:
        present, shape = self._looked()
        return [] if present is None or present.is_own else [shape.adopting(present)]

    def take(self) -> None:
        """At once where the server can; values that do not fit are cut, since what is wrong is written again."""
        present, shape = self._looked()
        if present is None or present.is_own:
            return
        statement = shape.adopting(present)
        try:
            self._session.query(f"SET SESSION lock_wait_timeout = {WAIT_S}")
            self._altered(shape, statement)
        except RowsDoNotFitError:
            self._session.query("SET SESSION sql_mode = ''")
            self._altered(shape, statement)
            self._session.query(f"SET SESSION sql_mode = '{SQL_MODE}'")

    def _altered(self, shape: IndexTableShape, statement: str) -> None:
        for algorithm in (", ALGORITHM = INSTANT", ""):
            try:
                self._session.query(f"{statement}{algorithm}")
                return
            except pymysql.err.MySQLError as error:
                if not algorithm or number_of(error) not in _NOT_INSTANT:
                    raise shape.failure(error) or self._failure(error) from None

    def _looked(self) -> tuple[PresentTable | None, IndexTableShape]:
        name = table_name(self._view)
        try:
            facts = facts_of(self._session)
            present = present_tables(self._session, facts, self._database, [name]).get(name)
        except pymysql.err.MySQLError as error:
            raise self._failure(error) from None
        return present, IndexTableShape(self._database, self._view, facts.binary_collation, present)

    def _failure(self, error: pymysql.err.MySQLError) -> StoreError | StoreUnavailableError:
        said = f"{self._view.id}: adopting its table failed with MySQL error {number_of(error)}"
        if number_of(error) in TEMPORARY_NUMBERS:
            return StoreUnavailableError(f"{said}: a session uses the table, or the server does not answer. Try again")
        mend = mend_of_denial(error)
        return StoreError(f"{said} {error.args[-1]}{f'. {mend}' if mend else ''}")

    def close(self) -> None:
        self._session.close()
