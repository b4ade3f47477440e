"""The polling source on real servers: every committed row comes once, whatever is open, rolled back or restarted."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from typing import Any

import pymysql
import pytest

from ingest.canonical import Descriptions, fetch_rows
from ingest.poll import polled_table
from ingest.poll import source as poll_source
from ingest.poll.polled_table import PolledTable
from ingest.poll.position import PollPosition
from ingest.poll.source import PollSource
from ingest.poll.writers import BoundedWait, Writers, why_unreadable, writers_of
from stack import Server
from tests.support.asking import ask
from tests.support.running import wait_for
from viewtail.changes.batches import Batch, Followed
from viewtail.changes.errors import SourceUnavailableError, TablesChangedError
from viewtail.changes.tables import NamePattern, Table
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import Connection, MySQLAddress, open_session

EVERY_S = 0.02
IDS = int(os.environ.get("VIEWTAIL_TEST_POLLED_IDS", "0"))  # that are given out at least; `make polling`: a million
WRITERS = 12 if IDS else 8
LONGEST_S = 5.0 if IDS else 1.0  # of a transaction, about


@pytest.fixture(params=["mysql_server", "mariadb_with_locks"])
def polled(request: pytest.FixtureRequest) -> Polled:
    return Polled(request.getfixturevalue(request.param))


class Polled:
    """A table, and what a reading of it delivers."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
        for statement in (
            "DROP DATABASE IF EXISTS polled",
            "CREATE DATABASE polled",
            "CREATE TABLE polled.event (event_id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, entity_id INT, note TEXT)",
            "CREATE TABLE polled.watermark (name VARCHAR(64) PRIMARY KEY, token VARCHAR(64))",
        ):
            ask(server, statement)
        self.position = PollPosition(1, 0)
        self.found: list[tuple[int, str]] = []
        self.begun_at: list[int] = []  # of each reading, how many rows had come before
        self.tokens: dict[str, int] = {}  # how many rows there were when it came
        self.source: PollSource | None = None
        self.halts: list[str] = []
        self.batches: list[Batch] = []
        self.tables: tuple[str, ...] = ("event",)
        self.order = "event_id"
        self.writers: Callable[[Connection], Writers] = lambda connection: writers_of(facts_of(connection))

    def session(self) -> Connection:
        return open_session(self.address, role="source")

    def table(self, name: str) -> Table:
        with closing(self.session()) as connection:
            name = NamePattern(name) if "#" in name else name
            return Descriptions(connection, [("polled", name)]).table("polled", name)

    @contextmanager
    def reading(self) -> Iterator[threading.Thread]:
        names = [("polled", name) for name in self.tables]
        source = self.source = PollSource(
            {name: Followed(self.table(name[1]), ("event_id", "entity_id", "note")) for name in names},
            dict.fromkeys(names, self.order),
            open_source=self.session,
            open_own=self.session,
            marks="SELECT name, token FROM polled.watermark",
            writers=self.writers,
            epoch=1,
            every_s=EVERY_S,
        )
        errors: list[BaseException] = []
        self.begun_at.append(len(self.found))

        def read() -> None:
            try:
                for batch in source.read(self.position):
                    self._take(batch)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield thread
        finally:
            source.interrupt()
            thread.join(60)
        assert not errors, errors
        assert not thread.is_alive()

    def _take(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.halts += [halt.reason for halt in batch.halts]
        assert batch.end is not None and batch.end.version > self.position.version
        for change in batch.changes:
            self.found += [(row[0], row[2]) for row in change.rows]
        for mark in batch.watermarks:
            self.tokens[mark.token] = len(self.found)
        assert isinstance(batch.end, PollPosition)
        self.position = PollPosition.from_text(batch.end.to_text())

    def mark(self, token: str) -> None:
        ask(self.server, f"REPLACE INTO polled.watermark VALUES ('test', '{token}')")

    def until_marked(self, token: str) -> None:
        self.mark(token)
        wait_for(f"{token} is passed", lambda: token in self.tokens)

    def rows(self) -> list[tuple[Any, ...]]:
        return ask(self.server, "SELECT event_id, note FROM polled.event ORDER BY event_id")

    def open(self, note: str = "slow") -> pymysql.Connection[Any]:
        """A transaction that has an id and goes on."""
        other = pymysql.connect(host="127.0.0.1", port=self.server.port, user="root")
        other.query(f"INSERT INTO polled.event (entity_id, note) VALUES (1, '{note}')")
        return other

    def insert(self, *notes: str) -> None:
        ask(self.server, f"INSERT INTO polled.event (entity_id, note) VALUES {', '.join(f'(1, {n!r})' for n in notes)}")

    def passed(self) -> int:
        return self.position.tables["polled.event"][0]


def test_locks_can_be_read(polled: Polled) -> None:
    with closing(polled.session()) as connection:
        assert why_unreadable(connection, facts_of(connection)) is None


def test_watermarks_are_looked_for_less_often_while_nobody_asks(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    look = poll_source._Marks._ask

    def counting(*given: Any) -> dict[str, str]:
        looks.append(time.monotonic())
        return look(*given)

    def counted(seconds: float) -> int:
        began, before = time.monotonic(), len(looks)
        wait_for("some time has gone", lambda: time.monotonic() - began > seconds)
        return len(looks) - before

    monkeypatch.setattr(poll_source._Marks, "_ask", counting)
    monkeypatch.setattr(poll_source, "MARKS_S", 3.0)
    with polled.reading():
        polled.until_marked("begun")
        assert counted(2.0) >= 8, "who waits for one asks for the next soon"
        counted(2.0)
        assert 2 <= counted(2.0) <= 5
        began = time.monotonic()
        polled.until_marked("first")
        assert time.monotonic() - began < 1.5
        assert counted(2.0) >= 8


def test_a_row_that_commits_after_a_higher_one_is_waited_for_and_others_are_not_held_up(polled: Polled) -> None:
    with polled.reading():
        polled.until_marked("begun")
        slow = polled.open()
        polled.insert("a", "b")
        wait_for("the others", lambda: [note for _, note in polled.found] == ["a", "b"])
        rolled = polled.open("rolled back")
        polled.insert("c")
        polled.until_marked("while open")
        rolled.rollback()
        polled.until_marked("still open")
        assert [note for _, note in polled.found] == ["a", "b", "c"]
        assert polled.passed() == 0
        slow.commit()
        wait_for("the slow one", lambda: len(polled.found) == 4)
        wait_for("nothing is open", lambda: polled.passed() == 5)
    assert polled.position.tables["polled.event"] == (5, ())
    assert sorted(polled.found) == polled.rows()


def test_with_a_bounded_wait_no_row_is_missed_whose_transaction_ends_within_it(polled: Polled) -> None:
    """The server is asked for no locks; an id is passed when the wait is over, and not before."""
    wait_s = 2.0
    polled.writers = lambda _: BoundedWait(wait_s)
    with polled.reading():
        polled.until_marked("begun")
        began = time.monotonic()
        slow, rolled = polled.open(), polled.open("rolled back")
        polled.insert("a")
        wait_for("it is not held up", lambda: [note for _, note in polled.found] == ["a"])
        rolled.rollback()
        polled.until_marked("while open")
        assert polled.passed() == 0
        time.sleep(wait_s / 2)
        slow.commit()
        wait_for("the slow one", lambda: sorted(polled.found) == polled.rows())
        wait_for("nothing is open", lambda: polled.passed() == 3)
        assert time.monotonic() - began >= wait_s


def test_more_gaps_than_one_statement_names_hold_up_nothing(polled: Polled) -> None:
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 13000) SELECT 2 * i"
    with polled.reading():
        polled.until_marked("begun")
        slow = pymysql.connect(host="127.0.0.1", port=polled.server.port, user="root")
        for number in (1, 25_001):
            slow.query(f"INSERT INTO polled.event (event_id, entity_id, note) VALUES ({number}, 1, 'slow')")
        with closing(polled.session()) as session, session.cursor() as cursor:
            for variable in ("cte_max_recursion_depth", "max_recursive_iterations"):
                with suppress(pymysql.err.MySQLError):  # of the other server
                    cursor.execute(f"SET {variable} = 20000")
            cursor.execute(f"INSERT INTO polled.event (event_id, entity_id, note) {numbers}, 1, 'even' FROM n")
            session.commit()
        wait_for("every second one", lambda: len(polled.found) == 13_000)
        polled.insert("after")
        wait_for("it comes at once", lambda: polled.found[-1][1] == "after")
        slow.commit()
        wait_for("the slow ones", lambda: sorted(polled.found) == polled.rows())
        wait_for("nothing is open", lambda: polled.passed() == polled.rows()[-1][0])


def test_gaps_of_several_statements_are_read_as_of_one_moment(polled: Polled, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that were read at a later moment could bring a row without those that were committed before it."""

    def then_one_in_each_gap(*given: Any) -> list[Any]:
        found = fetch_rows(*given)
        if polled.rows()[0][0] != 1:
            both = "(1, 1, 'first'), (5, 1, 'second')"
            ask(polled.server, f"INSERT INTO polled.event (event_id, entity_id, note) VALUES {both}")
        return found

    monkeypatch.setattr(polled_table, "MOST_GAPS", 1)
    monkeypatch.setattr(polled_table, "fetch_rows", then_one_in_each_gap)
    at = PollPosition(1, 0, {"polled.event": (0, ((2, 4), (6, 7)))})
    (table,) = polled_table.polled(Followed(polled.table("event"), ("event_id",)), "event_id", at)
    ask(polled.server, "INSERT INTO polled.event (event_id, entity_id, note) VALUES (2, 1, 'there')")
    with closing(polled.session()) as connection:
        assert table.read(connection) == ([], True)
        assert table.read(connection) == ([(1,), (5,)], True)


def test_a_reading_begins_behind_what_open_transactions_may_bring(polled: Polled) -> None:
    polled.insert("before")
    slow = polled.open()
    polled.insert("before too")
    with polled.reading():
        polled.mark("begun")
        time.sleep(0.5)
        assert "begun" not in polled.tokens, "a backfill would begin, and miss the row"
        slow.commit()
        wait_for("it has begun", lambda: "begun" in polled.tokens)
        polled.insert("after")
        wait_for("what comes then", lambda: polled.found == [(4, "after")])


def test_rows_that_were_delivered_come_no_second_time_after_a_restart(polled: Polled) -> None:
    with polled.reading():
        polled.until_marked("begun")
        slow = polled.open()
        polled.insert("a", "b")
        wait_for("the others", lambda: len(polled.found) == 2)
    polled.insert("while it is down")
    with polled.reading():
        wait_for("what came meanwhile", lambda: len(polled.found) == 3)
        slow.commit()
        wait_for("the slow one", lambda: len(polled.found) == 4)
    assert sorted(polled.found) == polled.rows()


@pytest.mark.parametrize("is_seen_before", [False, True])
def test_a_prepared_transaction_keeps_its_ids_open(polled: Polled, is_seen_before: bool) -> None:
    """Also where it was seen open before it was prepared, and its session gone afterwards."""
    with polled.reading():
        polled.until_marked("begun")
        other = pymysql.connect(host="127.0.0.1", port=polled.server.port, user="root", autocommit=True)
        for statement in (
            "XA START 'polled'",
            "INSERT INTO polled.event (entity_id, note) VALUES (1, 'prepared')",
            "XA END 'polled'",
        ):
            other.query(statement)
        if is_seen_before:
            polled.insert("after")
            polled.until_marked("while open")
        other.query("XA PREPARE 'polled'")
        if is_seen_before:
            polled.until_marked("prepared")
        other.close()
        if not is_seen_before:
            polled.insert("after")
        polled.until_marked("while prepared")
        time.sleep(0.3)
        assert polled.passed() == 0
        ask(polled.server, "XA COMMIT 'polled'")
        wait_for("it is there", lambda: sorted(polled.found) == [(1, "prepared"), (2, "after")])
        wait_for("it is passed", lambda: polled.passed() == 2)


def test_a_prepared_transaction_keeps_its_ids_open_while_its_session_goes_on(polled: Polled) -> None:
    with polled.reading():
        polled.until_marked("begun")
        other = pymysql.connect(host="127.0.0.1", port=polled.server.port, user="root", autocommit=True)
        for statement in (
            "XA START 'polled'",
            "INSERT INTO polled.event (entity_id, note) VALUES (1, 'prepared')",
            "XA END 'polled'",
            "XA PREPARE 'polled'",
        ):
            other.query(statement)
        for number in range(5):
            for statement in ("BEGIN", "INSERT INTO polled.event (entity_id, note) VALUES (1, 'after')", "COMMIT"):
                with suppress(pymysql.err.MySQLError):  # MariaDB allows only the end of the prepared one
                    other.query(statement)
            polled.insert("another")
            polled.until_marked(str(number))
        assert polled.passed() == 0
        other.query("XA COMMIT 'polled'")
        other.close()
        wait_for("it is there", lambda: sorted(polled.found) == polled.rows())
        wait_for("it is passed", lambda: polled.passed() == len(polled.found))


def test_sessions_that_begin_the_next_transaction_at_once_hold_nothing_up(mysql_server: Server) -> None:
    """Where the server tells transactions apart: these sessions are in one whenever anybody looks."""
    polled = Polled(mysql_server)
    ask(
        polled.server,
        "CREATE PROCEDURE polled.busy() BEGIN DECLARE n INT DEFAULT 0; "
        "WHILE IS_USED_LOCK('polled.busy') IS NOT NULL DO START TRANSACTION; "
        "INSERT INTO polled.event (entity_id, note) VALUES (1, 'x'); DO SLEEP(0.05); "
        "IF n % 5 = 0 THEN ROLLBACK; ELSE COMMIT; END IF; SET n = n + 1; END WHILE; END",
    )

    def keeps_up() -> bool:
        ((newest,),) = ask(polled.server, "SELECT MAX(event_id) FROM polled.event")
        return polled.passed() > max(100, newest - 50)

    callers = [threading.Thread(target=ask, args=(polled.server, "CALL polled.busy()")) for _ in range(2)]
    with closing(polled.session()) as holder:
        holder.query("SELECT GET_LOCK('polled.busy', 0)")  # they go on as long as it is held
        for caller in callers:
            caller.start()
        with polled.reading():
            polled.until_marked("begun")
            wait_for("it passes what has ended", keeps_up)
            assert all(caller.is_alive() for caller in callers)
            holder.query("SELECT RELEASE_LOCK('polled.busy')")
            for caller in callers:
                caller.join()
            wait_for("all is there", lambda: sorted(polled.found) == polled.rows())


def test_partitions_that_are_added_and_dropped_meanwhile_change_nothing(polled: Polled) -> None:
    """The server's own: the ids of one table, whichever of its partitions has a row."""
    ask(
        polled.server,
        "ALTER TABLE polled.event PARTITION BY RANGE (event_id) (PARTITION p0 VALUES LESS THAN (4), "
        "PARTITION p1 VALUES LESS THAN (8))",
    )
    with polled.reading():
        polled.until_marked("begun")
        polled.insert("a", "b", "c", "d")
        slow = polled.open()
        polled.insert("e")
        wait_for("of both", lambda: len(polled.found) == 5)
        slow.commit()
        wait_for("the slow one", lambda: len(polled.found) == 6)
        ask(polled.server, "ALTER TABLE polled.event ADD PARTITION (PARTITION p2 VALUES LESS THAN (1000))")
        polled.insert("f", "g", "h")
        wait_for("of the new one", lambda: len(polled.found) == 9)
        there = polled.rows()
        ask(polled.server, "ALTER TABLE polled.event DROP PARTITION p0")
        polled.insert("i")
        wait_for("what comes then", lambda: len(polled.found) == 10)
        wait_for("nothing is open", lambda: polled.passed() == 10)
        time.sleep(1.2)
    assert polled.halts == []
    assert sorted(polled.found) == [*there, (10, "i")]


def test_two_tables_are_read_beside_each_other_whatever_one_of_them_brings(polled: Polled) -> None:
    ask(
        polled.server,
        "CREATE TABLE polled.other (event_id BIGINT AUTO_INCREMENT PRIMARY KEY, entity_id INT, note LONGTEXT)",
    )
    polled.tables = ("other", "event")
    with polled.reading():
        polled.until_marked("begun")
        for _ in range(3):
            rows = ", ".join(["(1, REPEAT('x', 1000000))"] * 10)
            ask(polled.server, f"INSERT INTO polled.other (entity_id, note) VALUES {rows}")
        polled.insert("a")
        wait_for("all are there", lambda: len(polled.found) == 31)
    assert [note for _, note in polled.found if len(note) == 1] == ["a"]


@pytest.mark.parametrize("order", ["entity_id", "missing"])
def test_a_column_whose_ids_the_server_does_not_give_out_is_refused(polled: Polled, order: str) -> None:
    polled.order = order
    refused = pytest.raises(AssertionError, match=r"AUTO_INCREMENT column is event_id|has no column")
    with refused, polled.reading() as reader:
        reader.join(60)


@pytest.mark.parametrize("now", ["TEXT CHARACTER SET sjis", "DATETIME(3)", "BIGINT UNSIGNED", "DECIMAL(12,3)"])
def test_rows_of_a_column_that_is_another_one_now_are_not_read_as_what_it_was(polled: Polled, now: str) -> None:
    ask(polled.server, "ALTER TABLE polled.event MODIFY note DECIMAL(9,1)")

    def until_it_ends() -> None:
        with polled.reading():
            polled.until_marked("begun")
            polled.insert("0.5")
            wait_for("it is there", lambda: len(polled.found) == 1)
            ask(polled.server, "UPDATE polled.event SET note = NULL")
            ask(polled.server, f"ALTER TABLE polled.event MODIFY note {now}, ALGORITHM=COPY")
            ask(polled.server, "INSERT INTO polled.event (entity_id, note) VALUES (1, '20010203')")
            time.sleep(0.5)

    with pytest.raises(AssertionError, match=r"columns of polled\.event changed"):
        until_it_ends()
    assert len(polled.found) == 1
    with polled.reading():
        wait_for("described anew it is read", lambda: len(polled.found) == 2)


def test_a_column_that_changed_between_its_description_and_the_first_look_is_seen(polled: Polled) -> None:
    polled.insert("a")
    (table,) = polled_table.polled(
        Followed(polled.table("event"), ("event_id", "note")), "event_id", PollPosition(1, 0, {"polled.event": (0, ())})
    )
    with closing(polled.session()) as connection:
        connection.autocommit(True)
        table.check(connection)
        assert table.read(connection) == ([(1, "a")], True)
        ask(polled.server, "ALTER TABLE polled.event MODIFY entity_id BIGINT, ADD more INT")  # none of those it reads
        table.check(connection)
        ask(polled.server, "ALTER TABLE polled.event MODIFY note VARCHAR(30) CHARACTER SET sjis")
        with pytest.raises(TablesChangedError):
            table.check(connection)


def test_a_table_whose_ids_begin_again_halts_and_is_read_anew_afterwards(polled: Polled) -> None:
    with polled.reading():
        polled.until_marked("begun")
        polled.insert("a", "b", "c")
        wait_for("they are there", lambda: len(polled.found) == 3)
        ask(polled.server, "DELETE FROM polled.event WHERE event_id < 3")  # archived: nothing to it
        time.sleep(1.2)
        assert polled.halts == []
        ask(polled.server, "TRUNCATE TABLE polled.event")
        wait_for("it halts", lambda: polled.halts)
        polled.insert("under an old id")
    assert "begin again" in polled.halts[0] and "viewtail replay" in polled.halts[0]
    assert "polled.event" not in polled.position.tables
    with polled.reading():
        polled.until_marked("begun anew")
        polled.insert("next")
        wait_for("what comes then", lambda: polled.found[3:] == [(2, "next")])


def test_a_table_that_halts_as_a_session_is_lost_halts_with_the_next_one(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled.tables = ("event", "other")
    ask(polled.server, "CREATE TABLE polled.other LIKE polled.event")
    begins_again, lost = PolledTable.begins_again, []

    def lose_one(table: PolledTable, connection: Connection) -> bool:
        is_truncated = polled.found and ask(polled.server, "SELECT COUNT(*) FROM polled.event") == [(0,)]
        if table.name == "polled.other" and is_truncated:
            lost.append(table.name)
            if len(lost) == 1:
                raise SourceUnavailableError("lost, right behind the table that halts")
        return begins_again(table, connection)

    monkeypatch.setattr(PolledTable, "begins_again", lose_one)
    with polled.reading():
        polled.until_marked("begun")
        polled.insert("a", "b")
        wait_for("they are there", lambda: len(polled.found) == 2)
        ask(polled.server, "TRUNCATE TABLE polled.event")
        wait_for("it halts", lambda: polled.halts)
    assert len(lost) > 1 and "begin again" in polled.halts[0]


def test_of_tables_that_have_much_each_is_read_in_turn(polled: Polled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_source, "MOST_BYTES", 1)
    polled.tables = ("event", "other")
    ask(polled.server, "CREATE TABLE polled.other LIKE polled.event")
    with polled.reading():
        polled.until_marked("begun")
    polled.insert(*"abc")
    ask(polled.server, "INSERT INTO polled.other (entity_id, note) VALUES (1, 'd'), (1, 'e')")
    batches = len(polled.batches)
    with polled.reading():
        polled.until_marked("all of it")
    assert [note for _, note in polled.found] == ["a", "b", "c", "d", "e"]
    assert max(len(batch.changes) for batch in polled.batches[batches:]) == 1
    assert polled.tokens["all of it"] == 5, "no mark is passed before all tables were read"


@pytest.mark.parametrize("kind", ["INT", "BIGINT", "BIGINT UNSIGNED"])
def test_ids_are_read_up_to_the_largest_of_their_column(polled: Polled, kind: str) -> None:
    end = {"INT": 31, "BIGINT": 63, "BIGINT UNSIGNED": 64}[kind]
    last = (1 << end) - 1
    ask(polled.server, f"ALTER TABLE polled.event MODIFY event_id {kind} AUTO_INCREMENT")
    polled.insert("small")
    with polled.reading():
        polled.until_marked("begun")
        polled.insert("a")
        slow = polled.open()
        ask(polled.server, f"INSERT INTO polled.event VALUES ({(1 << 63) - 2 if end == 64 else last - 4}, 1, 'far')")
        polled.insert("b", "c")  # over 2^63, where ids may be that large
        rolled = polled.open("rolled back")
        rolled.rollback()
        wait_for("all but the slow one", lambda: len(polled.found) == 4)
        slow.commit()
        ask(polled.server, f"INSERT INTO polled.event VALUES ({last - (end == 64)}, 1, 'the last')")
        wait_for("all", lambda: len(polled.found) == 6)
        wait_for("nothing is open", lambda: polled.passed() == polled.rows()[-1][0])
        time.sleep(1.2)
        polled.until_marked("end")
    assert polled.halts == []
    assert sorted(polled.found) == polled.rows()[1:]


def test_a_server_that_is_away_is_waited_for(polled: Polled) -> None:
    with polled.reading():
        polled.until_marked("begun")
        polled.insert("a")
        wait_for("the first", lambda: len(polled.found) == 1)
        sessions = ask(
            polled.server, "SELECT id FROM information_schema.processlist WHERE user = 'root' AND command = 'Sleep'"
        )
        for (number,) in sessions:
            with suppress(pymysql.err.OperationalError):  # it was the question's own
                ask(polled.server, f"KILL {number}")
        polled.insert("b")
        wait_for("the second", lambda: len(polled.found) == 2)
    assert polled.source is not None and polled.source.progress.reconnect_count


def test_writers_with_rollbacks_and_long_transactions_lose_nothing_over_restarts(
    polled: Polled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Single rows and bulk inserts, some in transactions of seconds; the reader is restarted all the time.

    Its clock jumps by up to a day, back and forth.
    """
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + random.randrange(-(10**14), 10**14))
    seed, given = random.randrange(1 << 30), [0] * WRITERS
    print("seed", seed)

    def is_over() -> bool:
        return time.monotonic() > until and sum(given) >= IDS

    def write(number: int) -> None:
        chance = random.Random(seed + number)
        session = pymysql.connect(host="127.0.0.1", port=polled.server.port, user="root")
        with closing(session), session.cursor() as cursor:
            while not is_over():
                for _ in range(chance.choice((1, 1, 1, 3))):
                    count = chance.choice((1, 1, 1, 5, 200))
                    rows = ", ".join(["(1, 'x')"] * count)
                    cursor.execute(f"INSERT INTO polled.event (entity_id, note) VALUES {rows}")
                    given[number] += count
                    if chance.random() < 0.05:
                        time.sleep(chance.random() ** 3 * LONGEST_S)
                session.rollback() if chance.random() < 0.2 else session.commit()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    with polled.reading():
        polled.until_marked("begun")
        until = time.monotonic() + 6
        for one in writers:
            one.start()
        time.sleep(0.3)
    while not is_over():
        with polled.reading():
            time.sleep(random.random() * 0.5)
    for one in writers:
        one.join()
    with polled.reading():
        polled.until_marked("end")
        assert polled.tokens["end"] == len(polled.found)
        wait_for("nothing is open", lambda: not polled.position.tables["polled.event"][1])
    counts = Counter(number for number, _ in polled.found)
    print(f"{sum(given):,} ids were given, {len(counts):,} rows came, {len(polled.found) - len(counts):,} came again")
    if IDS:  # more open ids than a position names: what is above them comes again after a restart, and only then
        readings = pairwise([*polled.begun_at, len(polled.found)])
        twice = [len(polled.found[begin:end]) - len(set(polled.found[begin:end])) for begin, end in readings]
        assert twice == [0] * len(polled.begun_at)
    else:
        assert [number for number, count in counts.items() if count > 1] == []
    assert sorted(counts) == [number for number, _ in polled.rows()] and len(counts) > 1_000


def test_a_unique_key_of_a_pattern_is_one_that_each_of_its_tables_has(polled: Polled) -> None:
    columns = "(event_id BIGINT AUTO_INCREMENT PRIMARY KEY, entity_id INT NOT NULL, version INT NOT NULL"
    ask(polled.server, f"CREATE TABLE polled.part_00 {columns}, UNIQUE KEY one (entity_id, version))")
    ask(polled.server, f"CREATE TABLE polled.part_01 {columns}, UNIQUE KEY another (entity_id, version))")
    assert polled.table("part_##").unique_keys == (("entity_id", "version"),)
    ask(polled.server, f"CREATE TABLE polled.part_02 {columns})")
    assert polled.table("part_##").unique_keys == polled.table("part_##").unique_names == ()
