"""RENAME TABLE under readers: for whom it waits, how long others wait then, and what it says of who is in the way.

With the rights that README asks for nobody shows who holds a table; with more it is not tried before the way is free.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql
import pytest

from projectors.stores.index_tables import renaming
from projectors.stores.index_tables.renaming import Renaming
from stack import Server
from viewtail.changes.errors import StoreError
from viewtail.servers.sessions import Connection, MySQLAddress, open_session, value_of

READERS = 8
AT_MOST_S = 0.5  # some hundredths on a machine with nothing else to do
PAIRS = [("live", "former"), ("beside", "live")]


class Tables:
    """Two tables of a database, what eight readers of one of them find, and their longest read."""

    def __init__(self, server: Server, user: str) -> None:
        self.address = MySQLAddress(host="127.0.0.1", port=server.port, user=user)
        self._root = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        self.slowest_s = 0.0
        self.found: set[Any] = set()
        with closing(self.session()) as root, root.cursor() as cursor:
            for statement in (
                "DROP DATABASE IF EXISTS renaming", "CREATE DATABASE renaming",
                "CREATE TABLE renaming.live (id INT PRIMARY KEY)", "CREATE TABLE renaming.beside (id INT PRIMARY KEY)",
                "INSERT INTO renaming.live VALUES (1)", "INSERT INTO renaming.beside VALUES (2)",
                "DROP USER IF EXISTS renamer", "CREATE USER renamer",
                "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO renamer", "GRANT ALL ON renaming.* TO renamer",
            ):  # fmt: skip
                cursor.execute(statement)

    def session(self) -> Connection:
        found = open_session(self._root, role="test")
        found.autocommit(True)
        return found

    def renaming(self) -> Renaming:
        return Renaming(lambda: open_session(self.address, role="store"), "renaming")

    @contextmanager
    def held(self) -> Iterator[int]:
        """A transaction that has read the table, and does not end; its session."""
        with closing(self.session()) as session, session.cursor() as cursor:
            session.begin()
            cursor.execute("SELECT * FROM renaming.live")
            yield int(value_of(session, "SELECT CONNECTION_ID()"))

    @contextmanager
    def read(self) -> Iterator[None]:
        """By eight sessions, two SELECTs a transaction."""
        ended, threads = threading.Event(), []
        for _ in range(READERS):
            threads.append(threading.Thread(target=self._read, args=(ended,)))
            threads[-1].start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def _read(self, ended: threading.Event) -> None:
        with closing(self.session()) as session, session.cursor() as cursor:
            while not ended.wait(0.004):
                session.begin()
                for _ in range(2):
                    began_at = time.monotonic()
                    cursor.execute("SELECT id FROM renaming.live")
                    self.found |= {*cursor.fetchall()}
                    self.slowest_s = max(self.slowest_s, time.monotonic() - began_at)
                session.commit()


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.mark.parametrize("user", ["root", "renamer"])
def test_readers_wait_for_a_moment_only_while_a_long_transaction_holds_the_table_and_then_find_the_other(
    server: Server, user: str
) -> None:
    tables = Tables(server, user)
    with tables.read():
        with tables.held() as holder, pytest.raises(StoreError, match=f"session {holder}\\b|metadata_locks") as error:
            tables.renaming().rename(PAIRS)
        assert tables.found == {(1,)} and tables.slowest_s < AT_MOST_S
        tables.renaming().rename(PAIRS)
        deadline = time.monotonic() + 10
        while (2,) not in tables.found and time.monotonic() < deadline:
            time.sleep(0.01)
    assert tables.found == {(1,), (2,)} and tables.slowest_s < AT_MOST_S
    if user == "root" and shows_locks(server):
        assert f"session {holder}. End it (KILL {holder})" in str(error.value)


def test_where_the_server_shows_who_holds_a_table_nothing_is_tried_before_the_way_is_free(mysql_server: Server) -> None:
    tables = Tables(mysql_server, "root")
    with tables.held(), closing(tables.session()) as watching, watching.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Com_rename_table'")
        ((_, before),) = cursor.fetchall()
        with pytest.raises(StoreError, match="KILL"):
            tables.renaming().rename(PAIRS)
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Com_rename_table'")
        assert cursor.fetchall() == (("Com_rename_table", before),)


def shows_locks(server: Server) -> bool:
    with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as root, root.cursor() as cursor:
        cursor.execute("SELECT @@performance_schema, @@version")
        shown, version = cursor.fetchone() or (0, "")
    return bool(shown) and "MariaDB" not in version


def test_an_order_to_end_an_attempt_that_came_before_it_had_begun_is_given_again(
    mysql_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine: the server forgets an order for a session that does nothing, and a second is long."""
    monkeypatch.setattr(renaming, "WAITS_S", (0.01, 0.01))
    tables = Tables(mysql_server, "renamer")

    def busy() -> Connection:
        session = open_session(tables.address, role="store")
        query = session.query

        def late(statement: str) -> int:
            time.sleep(0.2 if statement.startswith("RENAME") else 0)
            return query(statement)

        monkeypatch.setattr(session, "query", late)
        return session

    began_at = time.monotonic()
    with tables.held(), pytest.raises(StoreError, match="metadata_locks"):
        Renaming(busy, "renaming").rename(PAIRS)
    assert time.monotonic() - began_at < 2 * (0.2 + renaming.PAUSE_S) + 1.0
