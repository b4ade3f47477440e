"""The application: what it asks of the tables of an account, and how it changes from the old ones to the new.

In each transaction it looks at a flag, and holds it until it commits. So whoever sets the flag waits for the
transactions that saw it otherwise, and no later one does.

    old    every account has tables of its own
    held   reads go there still, writes wait: viewtail hands the new tables over
    new    three tables have the rows of all accounts
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

import pymysql

from examples import running
from examples.unshatter import tables
from examples.unshatter.tables import KINDS, Row
from stack.server import Server

State = Literal["old", "held", "new"]
LOOK_AGAIN_S = 0.02


class Stopped(Exception):
    """The application is to end, and a write waited still."""


class Tables(Protocol):
    """Where rows are. `condition` and `place` are of one account."""

    def table(self, account: int, kind: str) -> str: ...
    def condition(self, account: int) -> str: ...
    def place(self, account: int) -> dict[str, int]: ...  # columns that a new row has besides


class OldTables:
    """A table for each account."""

    def table(self, account: int, kind: str) -> str:
        return f"app.org{account}_{kind}"

    def condition(self, account: int) -> str:
        return "TRUE"

    def place(self, account: int) -> dict[str, int]:
        return {}


class NewTables:
    """One table for all."""

    def table(self, account: int, kind: str) -> str:
        return f"app.{kind}"

    def condition(self, account: int) -> str:
        return f"account_id = {account}"

    def place(self, account: int) -> dict[str, int]:
        return {"account_id": account}


class Application:
    """One process of it, with sessions of its own. An account is served by one at a time."""

    def __init__(self, server: Server, stop: threading.Event) -> None:
        self._stop = stop
        self._session = running.connected(server)
        self._ddl = running.connected(server)  # CREATE and DROP commit, and the flag is to be held through them
        self.longest_wait_s = {"read": 0.0, "write": 0.0}

    def close(self) -> None:
        self._session.close()
        self._ddl.close()

    def read(self, account: int, kind: str) -> dict[int, Row]:
        """All rows of an account, by number."""
        with self._transaction("read") as (cursor, where):
            cursor.execute(
                f"SELECT {', '.join(KINDS[kind])} FROM {where.table(account, kind)} WHERE {where.condition(account)}"
            )
            return {row[0]: row for row in cursor.fetchall()}

    def add(self, account: int, kind: str, chance: random.Random) -> Row:
        """A new row, with the number that it got."""
        with self._transaction("write") as (cursor, where):
            row = tables.content(kind, chance, int(_seen(cursor, "number_length")))
            place = where.place(account)
            names = (*place, *KINDS[kind][1:])
            cursor.execute(tables.insert(where.table(account, kind), names), (*place.values(), *row))
            return (cursor.lastrowid, *row)

    def change(self, account: int, kind: str, number: int, chance: random.Random) -> Row:
        """Another content for a row."""
        with self._transaction("write") as (cursor, where):
            row = tables.content(kind, chance, int(_seen(cursor, "number_length")))
            key, *names = KINDS[kind]
            cursor.execute(
                f"UPDATE {where.table(account, kind)} SET {', '.join(f'{name} = %s' for name in names)} "
                f"WHERE {where.condition(account)} AND {key} = %s",
                (*row, number),
            )
            return (number, *row)

    def remove(self, account: int, kind: str, number: int) -> None:
        with self._transaction("write") as (cursor, where):
            cursor.execute(
                f"DELETE FROM {where.table(account, kind)} WHERE {where.condition(account)} AND {KINDS[kind][0]} = %s",
                (number,),
            )
            if cursor.rowcount != 1:
                raise LookupError(f"{cursor.rowcount} rows of {kind} {number} of account {account}, instead of one")

    def open_account(self, account: int) -> None:
        with self._transaction("write") as (cursor, where):
            if isinstance(where, OldTables):
                for statement in tables.ddl(account, int(_seen(cursor, "column_length"))):
                    self._execute(statement)
            cursor.execute("INSERT INTO app.account VALUES (%s, %s)", (account, f"org {account}"))

    def close_account(self, account: int) -> None:
        with self._transaction("write") as (cursor, where):
            cursor.execute("DELETE FROM app.account WHERE id = %s", (account,))
            if isinstance(where, OldTables):
                self._execute(f"DROP TABLE {', '.join(where.table(account, kind) for kind in KINDS)}")
                return
            for kind in KINDS:
                cursor.execute(f"DELETE FROM {where.table(account, kind)} WHERE {where.condition(account)}")

    @contextmanager
    def _transaction(self, what: Literal["read", "write"]) -> Iterator[tuple[Any, Tables]]:
        """A cursor in a transaction, and where the rows are as long as it lasts."""
        began = time.monotonic()
        try:
            with self._session.cursor() as cursor:
                while (state := _seen(cursor, "tables")) == "held" and what == "write":
                    self._session.commit()
                    if self._stop.wait(LOOK_AGAIN_S):
                        raise Stopped
                yield cursor, NewTables() if state == "new" else OldTables()
            self._session.commit()
        except BaseException:
            self._session.rollback()
            raise
        self.longest_wait_s[what] = max(self.longest_wait_s[what], time.monotonic() - began)

    def _execute(self, statement: str) -> None:
        with self._ddl.cursor() as cursor:
            cursor.execute(statement)


def _seen(cursor: Any, flag: str) -> str:
    """How a flag is set, and stays until the transaction ends."""
    cursor.execute("SELECT state FROM app.flag WHERE name = %s FOR SHARE", (flag,))
    ((state,),) = cursor.fetchall()
    return str(state)


def switch(connection: pymysql.Connection[Any], flag: str, state: str) -> None:
    """Set a flag; returns when no transaction sees it otherwise any more."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE app.flag SET state = %s WHERE name = %s", (state, flag))
    connection.commit()
