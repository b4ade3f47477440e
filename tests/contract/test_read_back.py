"""Rows that are read again for a change: in a snapshot that shows it, by one SELECT for all keys of a batch."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pymysql
import pytest

from changes.batches import Followed
from changes.errors import StopRequested
from ingest import Committed
from ingest.binlog.shown import shows
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from ingest.canonical.newest_cells import NewestCells
from projectors.read_back import ReadBack, committed
from servers.facts import facts_of
from servers.sessions import Connection, MySQLAddress, open_session
from stack import Server
from tests.contract.test_held_commits import LET_GO, held
from tests.support.asking import ask
from viewtail import settings
from viewtail.cells import Cells

LOCAL = "127.0.0.1"


class Jog:
    def __init__(self, kind: str, server: Server) -> None:
        self.kind, self.server = kind, server
        ask(server, "DROP DATABASE IF EXISTS jog")
        url = f"mysql://root@{LOCAL}:{server.port}"
        self.cells = Cells("jog.cell", settings=settings.load(None, {"VIEWTAIL_SOURCE__URL": url}))
        self.cells.create()
        self.stop = threading.Event()
        self.asked: list[str] = []
        self.address = MySQLAddress(host=LOCAL, port=server.port, user="root")
        with open_session(self.address, role="source") as session:
            table = describe(session, "jog", "cell")
            self._shows = partial(shows, facts=facts_of(session))
        self.newest = NewestCells(
            table=table, key=("row_key",), by="column_name", newest="ref_key", body="body", names=("users", "settings")
        )
        self._followed = Followed(table, columns=("row_key", "column_name", "ref_key"))
        self.begin = self.source().now()
        self.read_back = ReadBack(self.open, self._shows, self.stop)

    def open(self) -> Connection:
        return open_session(self.address, role="source")

    def source(self) -> BinlogSource:
        return BinlogSource(
            self.address,
            {("jog", "cell"): self._followed},
            watermark_schema="viewtail",
            own_schemas=frozenset({"viewtail"}),
            epoch=1,
        )

    def batches(self, source: BinlogSource) -> Iterator[tuple[list[tuple[str, str, int]], Committed]]:
        for batch in source.read(self.begin):
            if batch.changes:
                yield [row for change in batch.changes for row in change.rows], committed(batch)  # type: ignore[misc]

    def execute(self, *statements: str) -> None:
        for statement in statements:
            ask(self.server, statement)


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def jog(request: pytest.FixtureRequest) -> Iterator[Jog]:
    found = Jog(request.param, request.getfixturevalue(f"{request.param}_server"))
    yield found
    found.read_back.close()
    found.cells.close()


def test_the_newest_cells_of_each_row_are_read_and_no_others(jog: Jog) -> None:
    for row, column, ref in (
        ("ada", "users", 2),
        ("ada", "users", 10),
        ("ada", "users", 9),
        ("ada", "settings", 1),
        ("ada", "other", 99),
        ("ada", "Users", 99),
        ("bob", "settings", 3),
        ("bob ", "settings", 4),
        ("eve", "other", 1),
    ):
        jog.cells.put_cell(row, column, ref, f"{column} {ref}")
    *_, (_, upto) = _until(jog, ("eve", "other", 1))
    found = jog.read_back.rows(jog.newest, [("ada",), ("bob",), ("eve",), ("none",)], upto)
    assert found == {("ada",): ("ada", '"users 10"', '"settings 1"'), ("bob",): ("bob", None, '"settings 3"')}
    assert jog.newest.unique == [("row_key", "column_name", "ref_key")]


def _until(jog: Jog, last: tuple[str, str, int]) -> Iterator[tuple[list[tuple[str, str, int]], Committed]]:
    source = jog.source()
    for rows, end in jog.batches(source):
        yield rows, end
        if last in rows:
            source.interrupt()
            return


@contextmanager
def let_go_meanwhile(jog: Jog) -> Iterator[None]:
    """The commit that is held, when whoever reads in here has had time to see that it is not there yet."""
    soon = threading.Timer(1, jog.execute, (LET_GO[jog.kind],))
    soon.start()
    yield
    soon.join()


def test_rows_are_read_when_the_commit_of_their_change_is_shown_and_not_before(jog: Jog) -> None:
    jog.cells.put_cell("ada", "users", 1, "old")
    insert = "INSERT INTO jog.cell (row_key, column_name, ref_key, body) VALUES ('ada', 'users', 2, '\"new\"')"
    with held(jog.kind, jog, insert) as commit:
        *_, (_, upto) = _until(jog, ("ada", "users", 2))
        assert commit.is_alive()
        assert ask(jog.server, "SELECT MAX(ref_key) FROM jog.cell") == [(1,)], "it is in the binlog alone"
        with let_go_meanwhile(jog):
            found = jog.read_back.rows(jog.newest, [("ada",)], upto)
    assert found == {("ada",): ("ada", '"new"', None)}


def test_waiting_for_a_commit_ends_when_it_is_to_stop(jog: Jog) -> None:
    jog.stop.set()
    never = ReadBack(jog.open, lambda *_: False, jog.stop)
    with pytest.raises(StopRequested):
        never.rows(jog.newest, [("ada",)], Committed(gtids=frozenset(), version=0))
    never.close()


def test_under_many_writers_each_row_is_at_least_as_new_as_its_change(jog: Jog) -> None:
    def write(number: int) -> None:
        chance = random.Random(number)
        connection: Any = pymysql.connect(host=LOCAL, port=jog.server.port, user="root")
        for ref in range(1, 151):
            body = json.dumps({"ref": ref})
            connection.query(
                "INSERT INTO jog.cell (row_key, column_name, ref_key, body) VALUES "
                f"('w{number}', 'users', {ref}, '{body}'), ('w{number}', 'settings', {-ref}, '{body}')"
            )
            connection.rollback() if chance.random() < 0.1 else connection.commit()
        connection.close()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for one in writers:
        one.start()
    last = threading.Thread(target=lambda: ([one.join() for one in writers], jog.cells.put_cell("end", "users", 1, 1)))
    last.start()
    read = 0
    for rows, upto in _until(jog, ("end", "users", 1)):
        newest = {(row,): ref for row, column, ref in rows if column == "users"}
        found = jog.read_back.rows(jog.newest, [*newest], upto)
        for key, ref in newest.items():
            body = json.loads(str(found[key][1]))
            assert key == ("end",) or body["ref"] >= ref
            read += 1
    last.join()
    assert read > 6


def test_a_change_behind_a_prepared_xa_transaction_is_waited_for_too(jog: Jog) -> None:
    """While one is prepared, positions stay before it and say nothing of what comes behind."""
    prepared: Any = pymysql.connect(host=LOCAL, port=jog.server.port, user="root", autocommit=True)
    insert = "INSERT INTO jog.cell (row_key, column_name, ref_key, body) VALUES ('{}', 'users', {}, '\"new\"')"
    for statement in ("XA START 'x'", insert.format("xa", 1), "XA END 'x'", "XA PREPARE 'x'"):
        prepared.query(statement)
    try:
        with held(jog.kind, jog, insert.format("ada", 1)) as commit:
            *_, (_, upto) = _until(jog, ("ada", "users", 1))
            assert commit.is_alive() and ask(jog.server, "SELECT COUNT(*) FROM jog.cell") == [(0,)]
            with let_go_meanwhile(jog):
                found = jog.read_back.rows(jog.newest, [("ada",), ("xa",)], upto)
    finally:
        prepared.query("XA COMMIT 'x'")
        prepared.close()
    assert found == {("ada",): ("ada", '"new"', None)}
    *_, (_, upto) = _until(jog, ("xa", "users", 1))
    assert jog.read_back.rows(jog.newest, [("xa",)], upto) == {("xa",): ("xa", '"new"', None)}
