"""Flights and prepared statements on a real server: what PyMySQL's private names must go on meaning."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pymysql
import pytest

from stack import Server
from tests.support.running import wait_for
from viewtail.servers.pipelined import Flight, Prepared
from viewtail.servers.sessions import MySQLAddress, open_session


@pytest.fixture
def connection(mysql_server: Server) -> Iterator[Any]:
    address = MySQLAddress(host="127.0.0.1", port=mysql_server.port, user="root")
    opened = open_session(address, role="store")
    with opened.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS flight")
        cursor.execute("CREATE DATABASE flight")
        cursor.execute("CREATE TABLE flight.t (id BIGINT UNSIGNED PRIMARY KEY, n TINYINT, s VARCHAR(20))")
    opened.commit()
    yield opened
    if opened.open:
        opened.close()


def rows(connection: Any, query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def test_answers_come_in_the_order_of_the_statements(connection: Any) -> None:
    flight = Flight(connection)
    for statement in (
        b"INSERT INTO flight.t VALUES (1, 1, 'a'), (2, 2, 'b')",
        b"INSERT INTO flight.t VALUES (3, 300, 'too large a number')",
        b"UPDATE flight.t SET s = 'c'",
        b"DELETE FROM flight.t WHERE id = 2",
    ):
        flight.send(statement)
    first, second, third, fourth = flight.land()
    assert (first, third, fourth) == (2, 2, 1)
    assert isinstance(second, pymysql.err.MySQLError) and second.args[0] == 1264
    assert rows(connection, "SELECT * FROM flight.t") == [(1, 1, "c")]
    assert flight.land() == [], "nothing is under way any more"


def test_whether_an_answer_came_is_known_without_waiting(connection: Any) -> None:
    flight = Flight(connection)
    assert (flight.is_under_way, flight.has_answer()) == (False, True), "there is none to wait for"
    flight.send(b"DO SLEEP(0.5)")
    flight.send(b"DO SLEEP(0.1)")
    flight.flush()
    assert (flight.is_under_way, flight.has_answer()) == (True, False)
    wait_for("the first is over", flight.has_answer)
    answers = flight.answers()
    assert (next(answers), flight.is_under_way) == (0, True)
    assert ([*answers], flight.is_under_way) == ([0], False)
    flight.send(b"DO SLEEP(5)")
    flight.flush()
    connection._force_close()
    assert flight.has_answer(), "that it is broken is told at once"
    with pytest.raises(pymysql.err.MySQLError):
        flight.land()


def test_a_statement_of_several_packets_may_be_in_a_flight(connection: Any) -> None:
    flight = Flight(connection)
    flight.send(b"DO 1")
    flight.send(b"DO '" + b"x" * (17 << 20) + b"'")
    flight.send(b"INSERT INTO flight.t VALUES (1, 1, 'a')")
    assert flight.land() == [0, 0, 1]


def test_a_broken_connection_says_nothing_of_any_statement(connection: Any, mysql_server: Server) -> None:
    killer = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root")
    flight = Flight(connection)
    flight.send(b"INSERT INTO flight.t VALUES (1, 1, 'a')")
    flight.send(b"DO SLEEP(5)")
    with killer.cursor() as cursor:
        cursor.execute(f"KILL {connection.thread_id()}")
    with pytest.raises(pymysql.err.MySQLError):
        flight.land()
    assert not connection.open
    killer.close()


VALUES: list[tuple[str, Any]] = [
    ("BIGINT", -(1 << 63)),
    ("BIGINT", (1 << 63) - 1),
    ("BIGINT UNSIGNED", (1 << 64) - 1),
    ("TINYINT", None),
    ("DOUBLE", -1.5e300),
    ("DECIMAL(65,30)", Decimal("-12345678901234567890123456789012345.000000000000000000000000000001")),
    ("DECIMAL(10,2)", Decimal("1E+3")),
    ("VARCHAR(300)", "漢字 'quoted\\' \0🙂" * 20),
    ("VARCHAR(10)", ""),
    ("VARBINARY(300)", bytes(range(256))),
    ("BINARY(4)", b"\1\0\0\0"),
    ("YEAR", 0),
]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_prepared_statement_stores_what_it_is_given(kind: str, value: Any, connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE flight.typed (id INT PRIMARY KEY, v {kind}) CHARACTER SET utf8mb4")
    prepared = Prepared(connection, "INSERT INTO flight.typed VALUES (?, ?)")
    flight = Flight(connection)
    for at in range(2):
        flight.execute(prepared.packed((at, value)))
    assert flight.land() == [1, 1]
    assert rows(connection, "SELECT * FROM flight.typed") == [(0, value), (1, value)]


def test_more_than_eight_values_and_several_null(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE flight.wide ({', '.join(f'c{at} INT' for at in range(20))})")
    prepared = Prepared(connection, f"INSERT INTO flight.wide VALUES ({', '.join('?' * 20)})")
    values = [None if at % 3 == 0 else at for at in range(20)]
    flight = Flight(connection)
    flight.execute(prepared.packed(values))
    assert flight.land() == [1]
    assert rows(connection, "SELECT * FROM flight.wide") == [tuple(values)]


def test_text_that_is_none_is_refused_before_anything_is_sent(connection: Any) -> None:
    prepared = Prepared(connection, "INSERT INTO flight.t VALUES (?, ?, ?)")
    with pytest.raises(UnicodeEncodeError):
        prepared.packed((1, 1, "\ud800"))
    flight = Flight(connection)
    flight.execute(prepared.packed((1, 1, "a")))
    assert flight.land() == [1]


def test_a_statement_that_cannot_be_prepared_says_why(connection: Any) -> None:
    with pytest.raises(pymysql.err.ProgrammingError) as raised:
        Prepared(connection, "INSERT INTO flight.missing VALUES (?)")
    assert raised.value.args[0] == 1146
    assert rows(connection, "SELECT 1") == [(1,)]
