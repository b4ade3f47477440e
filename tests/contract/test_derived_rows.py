"""Rows that are read again for a change: in a snapshot that shows it, by one SELECT for all keys of a batch."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pymysql
import pytest

from ingest import Committed
from ingest.binlog.continuity import shows
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from projectors.derived import reading
from projectors.derived.cells import NewestCells
from projectors.derived.reading import LOOK_AT_MOST_EVERY_S, DerivedReader, Slice, committed
from stack import Server
from tests.contract.test_held_commits import LET_GO, held
from tests.support.asking import ask
from tests.support.running import wait_for
from viewtail import settings
from viewtail.cells import Cells
from viewtail.changes.batches import Followed, Row
from viewtail.changes.errors import StopRequested
from viewtail.changes.writes import Key
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import Connection, MySQLAddress, open_session

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
            canonical=table,
            key=("row_key",),
            by="column_name",
            newest="ref_key",
            body="body",
            names=("users", "settings"),
        )
        self.needed = [column.name for column in self.newest.table.columns]
        self._followed = Followed(table, columns=("row_key", "column_name", "ref_key"))
        self.begin = self.source().now()
        self.reader = DerivedReader(self.open, self._shows, self.stop)

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

    def rows(self, keys: Sequence[Key], upto: Committed) -> dict[Key, Row]:
        """Of all slices."""
        found: dict[Key, Row] = {}
        for part in self.reader.slices(self.newest, self.needed, dict.fromkeys(keys, 1), upto):
            found.update(part.rows)
        return found

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
    found.reader.close()
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
        jog.cells.put_cell(row, column, ref, {"v": f"{column} {ref}"})
    *_, (_, upto) = _until(jog, ("eve", "other", 1))
    found = jog.rows([("ada",), ("bob",), ("eve",), ("none",)], upto)
    assert found == {
        ("ada",): ("ada", '{"v":"users 10"}', '{"v":"settings 1"}'),
        ("bob",): ("bob", None, '{"v":"settings 3"}'),
    }
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
    jog.cells.put_cell("ada", "users", 1, {"v": "old"})
    insert = "INSERT INTO jog.cell (row_key, column_name, ref_key, body) VALUES ('ada', 'users', 2, '\"new\"')"
    with held(jog.kind, jog, insert) as commit:
        *_, (_, upto) = _until(jog, ("ada", "users", 2))
        assert commit.is_alive()
        assert ask(jog.server, "SELECT MAX(ref_key) FROM jog.cell") == [(1,)], "it is in the binlog alone"
        with let_go_meanwhile(jog):
            found = jog.rows([("ada",)], upto)
    assert found == {("ada",): ("ada", '"new"', None)}


def test_waiting_for_a_commit_ends_when_it_is_to_stop(jog: Jog) -> None:
    jog.stop.set()
    never = DerivedReader(jog.open, lambda *_: False, jog.stop)
    with pytest.raises(StopRequested):
        next(never.slices(jog.newest, jog.needed, {("ada",): 1}, Committed(gtids=frozenset(), version=0)))
    never.close()


def test_a_change_that_is_not_shown_for_long_is_told_and_asked_for_now_and_then(jog: Jog) -> None:
    asked: list[float] = []
    is_shown = threading.Event()

    def shows(*_: object) -> bool:
        asked.append(time.monotonic())
        return is_shown.is_set()

    waiting = DerivedReader(jog.open, shows, jog.stop)
    found: list[Slice] = []
    none = Committed(gtids=frozenset(), version=0)
    thread = threading.Thread(target=lambda: found.extend(waiting.slices(jog.newest, jog.needed, {("ada",): 1}, none)))
    thread.start()
    try:
        wait_for("it is told", lambda: waiting.trouble is not None)
        assert "does not show changes" in str(waiting.trouble)
        count = len(asked)
        wait_for("it is asked again", lambda: len(asked) > count + 3)
        assert len(asked) < (asked[-1] - asked[0]) / LOOK_AT_MOST_EVERY_S + 10
    finally:
        is_shown.set()
        thread.join()
    assert [one.rows for one in found] == [{}] and waiting.trouble is None
    waiting.close()


def test_rows_of_many_bytes_are_read_in_slices_and_each_is_read(jog: Jog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SLICE_BYTES", 1 << 20)
    monkeypatch.setattr(reading, "KEYS_A_QUERY", 10)
    sizes = [300_000] * 13 + [10] * 30 + [3_000_000] + [10] * 30
    names = [f"r{number:02}" for number in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        jog.cells.put_cell(name, "users", 1, {"v": "x" * size})
    keys: list[Key] = [(name,) for one in names for name in (one, f"{one} without a row")]
    *_, (_, upto) = _until(jog, (names[-1], "users", 1))
    slices = list(jog.reader.slices(jog.newest, jog.needed, dict.fromkeys(keys, 1), upto))
    assert sorted(key for one in slices for key in one.versions) == sorted(keys)
    assert {key for one in slices for key in one.rows} == {(name,) for name in names}
    for one in slices:
        *most, _ = sorted(len(str(row[1])) for row in one.rows.values())
        assert sum(most) <= 2 << 20, "a slice, and what one more query brought"
    assert len(slices) > 3 and [one.is_last for one in slices] == [False] * (len(slices) - 1) + [True]


def test_a_key_that_a_collation_takes_for_another_holds_nothing_up(jog: Jog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SLICE_BYTES", 1)
    text = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"
    jog.execute(f"ALTER TABLE jog.cell MODIFY row_key {text} NOT NULL")
    jog.begin = jog.source().now()
    for ref, name in enumerate(("ada", "bob")):
        jog.cells.put_cell(name, "users", ref, {"v": "x" * 400_000})
    *_, (_, upto) = _until(jog, ("bob", "users", 1))
    assert {*jog.rows([("ADA",), ("bob",)], upto)} == {("bob",)}


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
    last = threading.Thread(target=lambda: ([one.join() for one in writers], jog.cells.put_cell("end", "users", 1, {})))
    last.start()
    read = 0
    for rows, upto in _until(jog, ("end", "users", 1)):
        newest = {(row,): ref for row, column, ref in rows if column == "users"}
        found = jog.rows([*newest], upto)
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
                found = jog.rows([("ada",), ("xa",)], upto)
    finally:
        prepared.query("XA COMMIT 'x'")
        prepared.close()
    assert found == {("ada",): ("ada", '"new"', None)}
    *_, (_, upto) = _until(jog, ("xa", "users", 1))
    assert jog.rows([("xa",)], upto) == {("xa",): ("xa", '"new"', None)}
