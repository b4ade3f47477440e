"""A source that hangs, is cut off or killed: reading goes on from its own last transaction, and says so meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

import stack.mysql
from changes.batches import Followed
from changes.positions import Position
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from offsets.session import MySQLAddress, open_session
from stack import Server
from tests.support.running import wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own: it is stopped and killed."""
    started = stack.mysql.start(tmp_path_factory.mktemp("source") / "mysql")
    yield started
    started.stop()


class Reading:
    """A source that is read in a thread; `ids` are the rows that came."""

    def __init__(self, server: Server) -> None:
        self.server = server
        address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        self.execute(
            "DROP DATABASE IF EXISTS away", "CREATE DATABASE away", "CREATE TABLE away.t (id INT PRIMARY KEY)"
        )
        with open_session(address, role="source") as session:
            table = describe(session, "away", "t")
        self.source = BinlogSource(
            address,
            {("away", "t"): Followed(table, ("id",))},
            watermark_schema="viewtail",
            own_schemas=frozenset({"viewtail"}),
            epoch=1,
            heartbeat_s=0.5,
        )
        self.ids: list[int] = []
        self._thread = threading.Thread(target=self._read, args=(self.source.now(),))
        self._thread.start()

    def _read(self, after: Position) -> None:
        for batch in self.source.read(after):
            self.ids += [row[0] for change in batch.changes for row in change.rows]

    def execute(self, *statements: str) -> None:
        connection: Any = pymysql.connect(
            host="127.0.0.1", port=self.server.port, user="root", autocommit=True
        )
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.close()

    def insert(self, *ids: int) -> None:
        self.execute(*(f"INSERT INTO away.t VALUES ({i})" for i in ids))

    def close(self) -> None:
        self.source.interrupt()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the reading thread does not end"


@pytest.fixture
def reading(server: Server) -> Iterator[Reading]:
    found = Reading(server)
    yield found
    found.close()


def test_a_server_that_hangs_is_given_up_and_read_on_from_when_it_answers_again(reading: Reading) -> None:
    """Its socket stays open and says nothing, which without a bound would be waited for for ever."""
    reading.insert(1, 2)
    wait_for("the first rows", lambda: reading.ids == [1, 2])
    reading.server.pause()
    try:
        wait_for("the silence is noticed", lambda: reading.source.progress.trouble, 30)
        assert not reading.source.progress.is_at_end
    finally:
        reading.server.resume()
    reading.insert(3)
    wait_for("the row after it", lambda: reading.ids == [1, 2, 3], 30)
    assert reading.source.progress.trouble is None and reading.source.progress.reconnect_count >= 1


def test_a_reader_of_a_hanging_server_can_be_stopped(reading: Reading) -> None:
    reading.server.pause()
    try:
        wait_for("the silence is noticed", lambda: reading.source.progress.trouble, 30)
        reading.close()
    finally:
        reading.server.resume()


def test_cut_connections_lose_and_double_no_row(reading: Reading) -> None:
    for number in range(1, 41):
        reading.insert(number)
        if number % 8 == 0:
            connection: Any = pymysql.connect(host="127.0.0.1", port=reading.server.port, user="root")
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
                )
                for (number_of,) in cursor.fetchall():
                    cursor.execute(f"KILL {number_of}")
            connection.close()
    wait_for("all rows", lambda: len(reading.ids) >= 40)
    assert reading.ids == list(range(1, 41))
    assert reading.source.progress.reconnect_count >= 3


def test_a_killed_server_is_read_on_from_when_it_is_back(reading: Reading) -> None:
    reading.insert(1)
    wait_for("the first row", lambda: reading.ids == [1])
    for number in (2, 3):
        reading.server.kill()
        wait_for("the loss is noticed", lambda: reading.source.progress.trouble, 30)
        reading.server.start()
        reading.insert(number)
        wait_for("the row after it", lambda number=number: reading.ids == list(range(1, number + 1)), 30)
