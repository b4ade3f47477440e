"""Cells of one table: written once, read by row, column and ref key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import pymysql

from viewtail.changes import bodies
from viewtail.changes.errors import MisuseError, StoreError, ViewtailError
from viewtail.entities.cells.cell_table import MOST_KEY, MOST_NAME, MOST_REF, Cell, CellTable
from viewtail.entities.stored_texts import NotJsonError, as_json, is_key
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import (
    Connection,
    asking,
    create_database,
    may_pass,
    number_of,
    open_session,
    session_error,
)

if TYPE_CHECKING:
    from viewtail.servers.sessions import MySQLAddress
    from viewtail.settings import Settings

_IS_THERE = 1062
_TOO_DEEP = frozenset({3157, 3819, 4025})  # its own error, or the table's CHECK (JSON_VALID(body))
_read = bodies.decoder("json")  # as views read it


class OtherBodyError(MisuseError):
    """The cell is there with another body. Cells never change: a new body gets a larger ref key."""


class Cells:
    """Cells of one table; thread-safe, on one session.

        cells = Cells("jog.cell")
        cells.create()
        cells.put_cell("ada", "users", 1, {"email": "ada@example.org"})
        cells.get_cell_latest("ada", "users").body

    Each method raises StoreUnavailableError where the server does not answer. A `put_cell` may have come through then:
    put it again, which is harmless.

    Args:
        table: with its database; on the source's primary, as the settings have it.
        settings: by default the environment's and viewtail.toml's.
    """

    def __init__(self, table: str, *, settings: Settings | None = None) -> None:
        self.table = CellTable(table)
        self._settings = settings
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create(self) -> None:
        """Make the table where it is missing, its database, and the table in which triggers keep their place."""
        with asking(self.address, role="store") as connection:
            create_database(connection, self.table.schema_and_table[0])
            with connection.cursor() as cursor:
                facts = facts_of(connection)
                cursor.execute(self.table.ddl(facts))
                cursor.execute(self.table.trigger_ddl(facts))

    def put_cell(self, row: str, column: str, ref: int, body: Any) -> bool:
        """Write a cell; False where it is there already, with the same body.

        Raises OtherBodyError where it is there with another one, MisuseError for what no table could hold, or no view
        could show: a cell stays as it is for good.
        """
        _check(row, column, ref)
        text = _text(column, body)
        present = None
        with self._session() as connection:
            while present is None:  # it may be deleted between the two
                try:
                    self.table.insert(connection, row, column, ref, text)
                    return True
                except pymysql.err.MySQLError as error:
                    if number_of(error) in _TOO_DEEP:
                        raise MisuseError(
                            f"the body of cell {column} is nested deeper than the server's JSON can be (MySQL 100 "
                            "levels, MariaDB 32): flatten it"
                        ) from None
                    if number_of(error) != _IS_THERE:
                        raise
                present = self.table.at(connection, row, column, ref)
        if as_json(present.body) == text:
            return False
        raise OtherBodyError(
            f"{self.table.name} has the cell ({row}, {column}, {ref}) with another body, and cells never change: "
            "write a new body under a larger ref key"
        )

    def get_cell(self, row: str, column: str, ref: int | None = None) -> Cell | None:
        """The cell of that ref key; without one the newest of the row and column. None: there is none."""
        _check(row, column, 0 if ref is None else ref)
        with self._session() as connection:
            return self.table.at(connection, row, column, ref)

    def get_cell_latest(self, row: str, column: str) -> Cell | None:
        """The cell with the largest ref key of a row and column; None: there is none."""
        return self.get_cell(row, column)

    def get_row(self, row: str) -> dict[str, Cell]:
        """The newest cell of each column of a row, by column."""
        _check(row, "any", 0)
        with self._session() as connection:
            return {cell.column_name: cell for cell in self.table.newest(connection, row)}

    def close(self) -> None:
        """Give the session up; the next call opens another."""
        with self._lock:
            self._give_up()

    @contextmanager
    def _session(self) -> Iterator[Connection]:
        with self._lock:
            try:
                yield self._opened()
            except pymysql.err.MySQLError as error:
                self._give_up()
                raise self.mapped(error) from None
            except BaseException:  # an answer may be under way
                self._give_up()
                raise

    def _opened(self) -> Connection:
        if self._connection is not None:
            with suppress(pymysql.err.MySQLError):
                self._connection.ping(reconnect=False)  # one that idled may have been closed
                return self._connection
            self._give_up()
        self._connection = open_session(self.address, role="store")
        self._connection.autocommit(True)
        return self._connection

    def mapped(self, error: pymysql.err.MySQLError) -> ViewtailError:
        """Return the error of viewtail's tree for one of PyMySQL's."""
        mapped, number = session_error(error, self.address, "store"), number_of(error)
        if may_pass(error) or isinstance(mapped, StoreError):
            return mapped
        said = str(error.args[1]) if len(error.args) > 1 else type(error).__name__
        return StoreError(f"{self.table.name}: MySQL refused: {number} {said}. Is it as Cells.create() makes it?")

    def _give_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(pymysql.err.MySQLError):
                connection.close()

    @property
    def address(self) -> MySQLAddress:
        """The server of the table."""
        if self._settings is None:
            from viewtail import settings

            self._settings = settings.load(None)
        return replace(self._settings.primary_address(), database=None)


def _text(column: str, body: Any) -> bytes:
    """Return the text of a body that views can read. Raises MisuseError."""
    try:
        text = as_json(body)
        _read(text)
    except NotJsonError as error:
        raise MisuseError(f"the body of cell {column} is no JSON: {error}") from None
    except bodies.BodyRefusedError as error:
        raise MisuseError(f"no view could show the body of cell {column}: {error}") from None
    return text


def _check(row: str, column: str, ref: int) -> None:
    for what, value, most in (("row key", row, MOST_KEY), ("column name", column, MOST_NAME)):
        if not is_key(value, most):
            raise MisuseError(f"a cell's {what} is text of 1 to {most} characters, without NUL or lone surrogates")
    if not isinstance(ref, int) or isinstance(ref, bool) or not 0 <= ref <= MOST_REF:
        raise MisuseError("a cell's ref key is an integer from 0 to 2^62 - 1")
