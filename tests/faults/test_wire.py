"""What may happen to bytes between server and tailer: no row is lost, none is wrong, and reading goes on by itself."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from stack import Server
from tests.support.proxy import Harm, Proxy, double, flip, lose, truncate
from tests.support.running import wait_for
from viewtail.changes.batches import DELETE, UPDATE, Followed
from viewtail.changes.errors import ViewtailError
from viewtail.servers.sessions import MySQLAddress, open_session


class Tail:
    """A table of a server that is read through a proxy; `rows` is what a view of it would hold."""

    def __init__(self, server: Server, heartbeat_s: float = 0.3) -> None:
        self._connection: Any = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
        self.execute(
            "DROP DATABASE IF EXISTS wire",
            "CREATE DATABASE wire",
            "CREATE TABLE wire.t (id INT PRIMARY KEY, v VARCHAR(200), b LONGBLOB)",
        )
        self.proxy = Proxy(server.port).__enter__()
        direct = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        with open_session(direct, role="source") as session:
            table = describe(session, "wire", "t")
        self.source = BinlogSource(
            MySQLAddress(host="127.0.0.1", port=self.proxy.port, user="root", connect_timeout_s=2),
            {("wire", "t"): Followed(table, ("id", "v"))},
            watermark_schema="viewtail",
            own_schemas=frozenset({"viewtail"}),
            epoch=1,
            heartbeat_s=heartbeat_s,
            max_event_bytes=1 << 20,
        )
        self.rows: dict[int, str] = {}
        self.versions: list[int] = []
        self.halts: list[str] = []
        self.failures: list[ViewtailError] = []
        self.position: BinlogPosition = self.source.now()
        self.is_over = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        """Again after an error that ends a read, as a pipeline is taken anew."""
        while not self.is_over:
            try:
                for batch in self.source.read(self.position):
                    self.halts += [halt.reason for halt in batch.halts]
                    for _, kind, version, rows, *_ in batch.changes:
                        self.versions.append(version)
                        for at, row in enumerate(rows):
                            if kind == DELETE or (kind == UPDATE and at % 2 == 0):
                                self.rows.pop(row[0], None)
                            else:
                                self.rows[row[0]] = row[1]
                    if batch.end is not None:
                        self.position = batch.end
            except ViewtailError as error:
                self.failures.append(error)
                time.sleep(0.05)

    def execute(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def content(self) -> dict[int, str]:
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT id, v FROM wire.t")
            return dict(cursor.fetchall())

    def catches_up(self, timeout_s: float = 20) -> None:
        wanted = self.content()
        wait_for(
            "the view equals its table",
            lambda: self.rows == wanted or (_ for _ in ()).throw(AssertionError(self.source.progress.trouble)),
            timeout_s,
        )

    def close(self) -> None:
        self.is_over = True
        self.proxy.__exit__(None, None, None)
        while self._thread.is_alive():
            self.source.interrupt()
            self._thread.join(0.05)
        self._connection.close()


@pytest.fixture
def tail(mysql_server: Server) -> Iterator[Tail]:
    found = Tail(mysql_server)
    found.execute("INSERT INTO wire.t VALUES (0, 'first', NULL)")
    found.catches_up()
    yield found
    found.close()


def harms(chance: random.Random) -> Iterator[tuple[str, Harm]]:
    """Each at a place in the some 350 bytes that a change of one row is."""
    for at in (0, 2, 3, 4, 9, 14, 16, 17, 20, *(chance.randrange(400) for _ in range(12))):
        yield f"flip {at}", flip(at, 1 << chance.randrange(8))
    for at in (5, 80, 200, 330):
        yield f"lose {at}", lose(at, chance.choice((1, 4, 40, 1000)))
        yield f"truncate {at}", truncate(at)
    yield "double", double


def test_harmed_bytes_change_no_row_and_lose_none(tail: Tail) -> None:
    chance = random.Random(20)
    for number, (name, harm) in enumerate(harms(chance)):
        tail.proxy.harm_next(harm)
        tail.execute(
            f"INSERT INTO wire.t VALUES ({number + 1}, 'row {name}', NULL)",
            f"UPDATE wire.t SET v = 'seen {number}' WHERE id = 0",
        )
        tail.catches_up()
    assert tail.halts == [], "a harmed byte is no reason to halt a view"
    assert tail.proxy.harmed > 25
    assert [str(error) for error in tail.failures] == [], "each is waited out by reading again"
    assert tail.source.progress.reconnect_count >= 15


def test_a_large_event_with_a_flipped_byte_is_read_again(tail: Tail) -> None:
    """It does not fit the buffer and comes in many pieces; the first of them has its length."""
    for at in (14, 15, 16, 17, 300, 5000):
        tail.proxy.harm_next(flip(at, 8))
        tail.execute(f"REPLACE INTO wire.t VALUES (7, 'large {at}', REPEAT('x', 400000))")
        tail.catches_up()
    assert tail.halts == [] and tail.failures == []


def test_an_event_above_the_bound_is_checked_before_it_halts_its_table(tail: Tail) -> None:
    """It is never held as a whole; what a flipped byte makes of it is read again all the same."""
    insert = "INSERT INTO wire.t VALUES (8, 'above', REPEAT('x', 2000000))"
    tail.proxy.harm_next(flip(200_000))
    tail.execute(insert)
    wait_for("the halt", lambda: tail.halts)
    assert tail.proxy.harmed == 1 and tail.source.progress.reconnect_count == 1


def test_a_connection_that_is_held_is_given_up_and_read_again(tail: Tail) -> None:
    tail.proxy.hold()
    tail.execute("INSERT INTO wire.t VALUES (1, 'held', NULL)")
    wait_for("the silence is noticed", lambda: tail.source.progress.trouble, 10)
    tail.proxy.release()
    tail.catches_up()
    assert tail.rows[1] == "held" and tail.versions == sorted(set(tail.versions))


def test_what_comes_late_or_in_small_pieces_is_read_as_it_is(tail: Tail) -> None:
    """Longer than a heartbeat, shorter than the time-out."""
    reconnects = tail.source.progress.reconnect_count
    for number in range(1, 6):
        tail.proxy.hold()
        tail.execute(f"INSERT INTO wire.t VALUES ({number}, 'late', NULL)")
        time.sleep(0.4)
        tail.proxy.release()
        tail.catches_up()
    assert tail.source.progress.reconnect_count == reconnects


def test_connections_cut_at_any_moment_lose_and_double_no_row(tail: Tail) -> None:
    chance = random.Random(21)
    for number in range(1, 61):
        if number % 4 == 0:
            tail.proxy.harm_next(truncate(chance.randrange(700)))
        if number % 15 == 0:
            tail.catches_up()
            tail.proxy.cut()
        tail.execute(f"INSERT INTO wire.t VALUES ({number}, 'n', NULL)")
    tail.catches_up()
    assert tail.versions == sorted(set(tail.versions)), "a transaction that was delivered comes no second time"
    assert tail.source.progress.reconnect_count >= 3 and tail.failures == []
