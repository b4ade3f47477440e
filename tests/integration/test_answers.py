"""A statement that is asked again and again: an answer counts as the one of before only where all its bytes are."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pymysql
import pytest
from pymysql.constants import COMMAND

from ingest.canonical import fetch_rows
from stack.server import Server
from tests.support.statements import run
from viewtail.changes.errors import SourceError, SourceUnavailableError
from viewtail.changes.tables import Column, Kind
from viewtail.servers.answers import LastAnswer, _is_whole
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = pytest.mark.mysql

ALL = "SELECT name, token FROM mark ORDER BY name"
NAME = Column(name="name", kind=Kind.TEXT, declared="varchar(64)", is_nullable=False, charset="utf8mb4")
NONE = "SELECT name FROM mark WHERE name > 'z' ORDER BY name"


@pytest.fixture
def session(mysql_server: Server) -> Iterator[pymysql.Connection[Any]]:
    address = MySQLAddress(host=mysql_server.host, port=mysql_server.port, user="root", io_timeout_s=2)
    connection = open_session(address, role="source")
    run(connection, "DROP DATABASE IF EXISTS answers", "CREATE DATABASE answers", "USE answers")
    run(connection, "SET autocommit = 1", "CREATE TABLE mark (name VARCHAR(64) PRIMARY KEY, token MEDIUMTEXT)")
    yield connection
    if connection.open:
        connection.close()


class Watched(LastAnswer):
    """Notes what was told of each answer."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bool] = []

    def is_again(self, session: Any, statement: str) -> bool:
        self.told.append(super().is_again(session, statement))
        return self.told[-1]


def test_the_same_answer_is_read_once(session: pymysql.Connection[Any]) -> None:
    last = Watched()
    for rows in ((), (("a", "1"),), (("a", "1"), ("b", None)), (("a", "2"), ("b", None)), (("b", None),), ()):
        run(session, "DELETE FROM mark")
        for name, token in rows:
            with session.cursor() as cursor:
                cursor.execute("INSERT INTO mark VALUES (%s, %s)", (name, token))
        assert last.ask(session, ALL) == rows
        assert last.ask(session, ALL) == rows
    assert last.told == [False, True] * 6
    assert run(session, "SELECT 7") == ((7,),)


def test_another_statement_has_another_answer(session: pymysql.Connection[Any]) -> None:
    last = Watched()
    for statement in (NONE, NONE.replace("'z'", "'y'"), NONE, NONE):
        assert last.ask(session, statement) == ()
    assert last.told == [False, False, False, True]


BESIDE_TEXT = 140  # bytes of the answer below: with its ends 140, up to the second row 131, up to the first 123


@pytest.mark.parametrize("cut", [0, 9, 17])  # nothing is cut off; its end is; and the row before
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_an_answer_that_is_not_there_as_a_whole_is_read(session: pymysql.Connection[Any], cut: int, more: int) -> None:
    """However it is cut by what is read at once: that may end behind a packet too."""
    last = Watched()
    length = io.DEFAULT_BUFFER_SIZE - BESIDE_TEXT + cut + more
    run(session, f"INSERT INTO mark VALUES ('a', REPEAT('x', {length})), ('b', 'y')")
    for _ in range(5):
        assert last.ask(session, ALL) == (("a", "x" * length), ("b", "y"))
    assert last.told == [False, *[cut + more <= 0] * 4]
    run(session, "UPDATE mark SET token = 'z' WHERE name = 'b'")
    assert last.ask(session, ALL) == (("a", "x" * length), ("b", "z"))


def test_no_part_of_an_answer_is_taken_for_a_whole_one(session: pymysql.Connection[Any]) -> None:
    run(session, "INSERT INTO mark VALUES ('a', '1'), ('b', NULL)")
    for statement in (ALL, NONE):
        session._execute_command(COMMAND.COM_QUERY, statement)  # type: ignore[attr-defined]
        answer = session._rfile.peek()  # type: ignore[attr-defined]
        session._read_query_result()  # type: ignore[attr-defined]
        assert _is_whole(answer)
        assert not any(_is_whole(answer[:length]) for length in range(len(answer)))
        assert not _is_whole(answer + answer[:4])


def test_an_answer_that_was_not_read_is_not_known(session: pymysql.Connection[Any]) -> None:
    """What raises at its form must see it again."""
    last = Watched()

    def refuse(_: object) -> None:
        raise SourceError("of another form")

    for _ in range(2):
        with pytest.raises(SourceError, match="of another form"):
            fetch_rows(session, NONE, [NAME], look=refuse, last=last)
        session.connect()
        run(session, "USE answers")
    assert last.told == [False, False]


def test_what_the_server_refuses_is_raised_each_time(session: pymysql.Connection[Any]) -> None:
    last = Watched()
    for _ in range(3):
        with pytest.raises(pymysql.err.ProgrammingError, match="1146"):
            last.ask(session, "SELECT a FROM absent")
        assert last.ask(session, "DO 1") == ()  # an answer without columns
    assert last.told == [False] * 6


def test_a_session_that_ends_is_told_as_by_others(session: pymysql.Connection[Any]) -> None:
    last = LastAnswer()
    assert last.ask(session, ALL) == ()
    with suppress(pymysql.err.MySQLError):
        run(session, f"KILL {session.thread_id()}")
    for _ in range(2):
        with pytest.raises(pymysql.err.MySQLError) as told:
            last.ask(session, ALL)
        assert told.value.args[0] in (0, 2006, 2013)


def test_a_server_that_does_not_answer_is_not_waited_for(session: pymysql.Connection[Any]) -> None:
    last = LastAnswer()
    with pytest.raises(pymysql.err.OperationalError, match=r"2013.*TimeoutError"):
        last.ask(session, "SELECT SLEEP(5)")
    assert not session.open


def test_nor_where_it_answered_the_same_statement_before(session: pymysql.Connection[Any]) -> None:
    last, statement = Watched(), "SELECT SLEEP(@seconds)"
    run(session, "SET @seconds = 0")
    assert [last.ask(session, statement) for _ in range(3)] == [((0,),)] * 3
    run(session, "SET @seconds = 5")
    with pytest.raises(pymysql.err.OperationalError, match=r"2013.*TimeoutError"):
        last.ask(session, statement)
    assert last.told == [False, True, True]
    assert not session.open


def test_rows_that_are_new_are_fetched_whatever_there_was_before(session: pymysql.Connection[Any]) -> None:
    last = Watched()
    run(session, "INSERT INTO mark VALUES ('a', '')")
    for _ in range(3):
        assert fetch_rows(session, NONE, [NAME], last=last) == []
    run(session, "INSERT INTO mark VALUES ('zz', '')")
    for _ in range(3):  # an answer with rows is never taken for known
        assert fetch_rows(session, NONE, [NAME], last=last) == [("zz",)]
    assert last.told == [False, True, True, False, False, False]


def test_a_fetch_that_waits_too_long_is_told_as_by_others(session: pymysql.Connection[Any]) -> None:
    with pytest.raises(SourceUnavailableError, match="2013"):
        fetch_rows(session, "SELECT SLEEP(5)", [NAME], last=LastAnswer())
    assert not session.open
