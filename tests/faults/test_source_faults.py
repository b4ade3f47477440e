"""A source that hangs, is cut off or killed: reading goes on from its own last transaction, and says so meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

import stack.mariadb
import stack.mysql
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from stack import Server
from tests.support.running import wait_for
from viewtail.changes.batches import Followed
from viewtail.changes.errors import HistoryGoneError, ViewtailError
from viewtail.servers.sessions import MySQLAddress, open_session


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own: it is stopped and killed."""
    started = stack.mysql.start(tmp_path_factory.mktemp("source") / "mysql")
    yield started
    started.kill()


@contextmanager
def _sql(server: Server) -> Iterator[Any]:
    connection: Any = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    with connection.cursor() as cursor:
        yield cursor
    connection.close()


class Reading:
    """A source that is read in a thread; `ids` are the rows that came."""

    def __init__(self, server: Server, *, server_id: int | None = None, makes_table: bool = True) -> None:
        self.server = server
        address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        if makes_table:
            self.execute(
                "DROP DATABASE IF EXISTS away",
                "CREATE DATABASE away",
                "CREATE TABLE away.t (id INT PRIMARY KEY)",
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
            server_id=server_id,
        )
        self.ids: list[int] = []
        self.versions: list[int] = []
        self.failure: ViewtailError | None = None
        self.position = self.source.now()
        self._thread = threading.Thread(target=self._read, args=(self.position,))
        self._thread.start()

    def _read(self, after: BinlogPosition) -> None:
        try:
            for batch in self.source.read(after):
                self.ids += [row[0] for change in batch.changes for row in change.rows]
                self.versions += [change.version for change in batch.changes]
                self.position = batch.end or self.position
        except ViewtailError as error:
            self.failure = error

    def execute(self, *statements: str) -> None:
        with _sql(self.server) as cursor:
            for statement in statements:
                cursor.execute(statement)

    def insert(self, *ids: int) -> None:
        self.execute(*(f"INSERT INTO away.t VALUES ({i})" for i in ids))

    def cut(self) -> None:
        """KILL every dump connection."""
        with _sql(self.server) as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            for (number,) in cursor.fetchall():
                cursor.execute(f"KILL {number}")

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
        wait_for("the silence is noticed", lambda: reading.source.progress.trouble)
        assert not reading.source.progress.is_at_end
    finally:
        reading.server.resume()
    reading.insert(3)
    wait_for("the row after it", lambda: reading.ids == [1, 2, 3])
    assert reading.source.progress.trouble is None and reading.source.progress.reconnect_count >= 1


def test_a_reader_of_a_hanging_server_can_be_stopped(reading: Reading) -> None:
    reading.server.pause()
    try:
        wait_for("the silence is noticed", lambda: reading.source.progress.trouble)
        reading.close()
    finally:
        reading.server.resume()


def test_cut_connections_lose_and_double_no_row(reading: Reading) -> None:
    for number in range(1, 41):
        reading.insert(number)
        if number % 8 == 0:
            reading.cut()
    wait_for("all rows", lambda: len(reading.ids) >= 40)
    assert reading.ids == list(range(1, 41))
    assert reading.source.progress.reconnect_count >= 3


def test_a_killed_server_is_read_on_from_when_it_is_back(reading: Reading) -> None:
    reading.insert(1)
    wait_for("the first row", lambda: reading.ids == [1])
    for number in (2, 3):
        reading.server.kill()
        wait_for("the loss is noticed", lambda: reading.source.progress.trouble)
        reading.server.start()
        reading.insert(number)
        wait_for("the row after it", lambda number=number: reading.ids == list(range(1, number + 1)))


def test_binlogs_are_followed_past_number_999999(server: Server) -> None:
    """Where the names grow by a digit; '.1000000' sorts before '.999999' as text."""
    with _sql(server) as cursor:
        cursor.execute("RESET BINARY LOGS AND GTIDS TO 999998")
    reading = Reading(server)
    try:
        for number in range(1, 5):
            reading.insert(number)
            wait_for("the row", lambda number=number: reading.ids == list(range(1, number + 1)))
            reading.execute("FLUSH BINARY LOGS")
            if number == 3:
                reading.cut()
        wait_for("the last file is followed", lambda: reading.position.file == "binlog.1000001")
        assert reading.versions == sorted(set(reading.versions))
    finally:
        reading.close()


def test_two_readers_with_one_server_id_are_told_what_is_wrong_and_derived_ids_do_not_clash(
    server: Server,
) -> None:
    first, second = Reading(server, server_id=77), Reading(server, server_id=77, makes_table=False)
    try:
        told = wait_for(
            "the clash is told",
            lambda: (
                "server_id" in f"{first.source.progress.trouble} {second.source.progress.trouble}"
                and (first.source.progress.trouble or second.source.progress.trouble)
            ),
        )
        assert "source.server_id" in told
    finally:
        first.close()
        second.close()
    one, other = Reading(server), Reading(server, makes_table=False)
    try:
        one.insert(1, 2, 3)
        wait_for("both read", lambda: one.ids == other.ids == [1, 2, 3])
        assert (one.source.progress.reconnect_count, other.source.progress.reconnect_count) == (0, 0)
    finally:
        one.close()
        other.close()


def test_a_server_that_comes_back_is_read_within_10_s(reading: Reading) -> None:
    """However long it was away: pauses between attempts grow, but not above five seconds."""
    reading.server.kill()
    wait_for("several attempts fail", lambda: reading.source.progress.reconnect_count >= 8, 60)
    reading.server.start()
    began = time.monotonic()
    reading.insert(1)
    wait_for("the row", lambda: reading.ids == [1], 10)
    assert time.monotonic() - began < 10


def test_a_history_that_was_reset_while_connected_stops(reading: Reading) -> None:
    reading.insert(1)
    wait_for("the row", lambda: reading.ids == [1])
    reading.execute("RESET BINARY LOGS AND GTIDS")
    reading.insert(2)
    wait_for("reading stops", lambda: reading.failure)
    assert isinstance(reading.failure, HistoryGoneError)
    assert "viewtail replay --new-history" in str(reading.failure) and reading.ids == [1]


RESETS = {"mysql": "RESET BINARY LOGS AND GTIDS", "mariadb": "RESET MASTER"}


@pytest.fixture(scope="module", params=sorted(RESETS))
def reset_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    start = {"mysql": stack.mysql.start, "mariadb": stack.mariadb.start}[request.param]
    started = start(tmp_path_factory.mktemp("reset") / request.param)
    yield started
    started.kill()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("is_cut", [False, True], ids=["open", "cut"])
@pytest.mark.parametrize("written_after", [0, 1, 200])
def test_a_reset_of_the_first_file_halts_within_10_s_and_says_what_to_do(
    written_after: int, is_cut: bool, reset_server: Server
) -> None:
    """Whether the new file is shorter than the place that was read, or longer, and whether the connection stays."""
    with _sql(reset_server) as cursor:
        cursor.execute("SELECT VERSION()")
        reset = RESETS["mariadb" if "MariaDB" in cursor.fetchone()[0] else "mysql"]
        cursor.execute(reset)
    reading = Reading(reset_server)
    try:
        reading.insert(*range(1, 60))
        wait_for("the rows", lambda: len(reading.ids) == 59)
        reading.execute(
            reset, *(f"INSERT INTO away.t VALUES ({number})" for number in range(1000, 1000 + written_after))
        )
        if is_cut:
            reading.cut()
        wait_for("reading stops", lambda: reading.failure, 10)
        assert isinstance(reading.failure, HistoryGoneError)
        assert "binlog.000001:" in str(reading.failure)
        assert "viewtail replay --new-history" in str(reading.failure)
        assert len(reading.ids) == 59
    finally:
        reading.close()
