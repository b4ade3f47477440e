"""Index tables in which a key is of one source at a time: the guard of real servers, one sink a source."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pymysql
import pytest

from ingest.canonical.parts import of_parts
from projectors.binding import bind
from projectors.stores.index_tables.reading import IndexTableReader
from projectors.stores.index_tables.sink import MySQLSink
from projectors.views import BoundView
from stack import Server
from viewtail import Entity, IndexTable
from viewtail.changes.patterns import pattern_of
from viewtail.changes.rendering import parse_key, render_key
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Parked, ViewWrites, Write
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = pytest.mark.mysql

ID = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)
_tokens = itertools.count(1)


def text(length: int, name: str = "email") -> Column:
    declared = f"varchar({length})"
    return Column(name=name, kind=Kind.TEXT, declared=declared, is_nullable=True, charset="utf8mb4", length=length)


def view_of(source: str, *, length: int = 40, is_unique: bool = True, value: tuple[str, ...] = ("email",)) -> BoundView:
    columns = (ID, text(length), text(40, "note"))
    user = Table(schema="shop", name="user", columns=columns, primary_key=("id",))

    def described(schema: str, name: str) -> Table:
        pattern = pattern_of(schema, name)
        assert pattern is not None
        return of_parts(pattern, [user], [pattern.sample])

    entity = Entity("shop.user", sources=["eu", "us"], unique_over_sources=is_unique)
    (bound,) = bind([IndexTable("by_email", entity, value=value).of_source(source)], described)
    return bound


class Table_:
    """One index table, and a sink for each source."""

    def __init__(self, server: Server) -> None:
        self.address = MySQLAddress(host=server.host, port=server.port, user="root", io_timeout_s=20)
        self.database = f"unique_{next(_tokens)}"
        self.plain = pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True)
        self.views = {name: view_of(name) for name in ("eu", "us")}
        self.sinks = {name: self.sink(view) for name, view in self.views.items()}
        for sink in self.sinks.values():
            assert sink.prepare() == {}

    def sink(self, view: BoundView) -> MySQLSink:
        return MySQLSink(lambda: open_session(self.address, role="store"), self.database, [view])

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self.plain.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def write(self, source: str, **emails: str | None) -> list[Parked]:
        """Write keys k1, k2, ... at a version each: `k1_5='a@x'` is key 1 at version 5; None is a tombstone."""
        writes = {}
        for name, email in emails.items():
            key, version = name[1:].split("_")
            writes[source, int(key)] = Write(int(version), None if email is None else (email or None,))
        sink = self.sinks[source]
        parked = sink.write([ViewWrites(self.views[source].id, writes)], None)
        sink.connection.commit()
        return parked

    def shown(self) -> dict[int, tuple[str, str]]:
        rows = self.ask(f"SELECT id, source, email FROM {self.database}.by_email WHERE email IS NOT NULL")
        assert len({key for key, _, _ in rows}) == len(rows), rows
        return {key: (source, email) for key, source, email in rows}

    def close(self) -> None:
        for sink in self.sinks.values():
            sink.close()
        self.ask(f"DROP DATABASE IF EXISTS {self.database}")
        self.plain.close()


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def table(request: pytest.FixtureRequest) -> Iterator[Table_]:
    found = Table_(request.getfixturevalue(request.param))
    yield found
    found.close()


def test_a_key_of_another_source_is_refused_until_that_ones_row_is_deleted(table: Table_) -> None:
    assert table.write("eu", k1_5="eu@x", k2_5="two@x") == []
    (letter,) = table.write("us", k1_90="us@x", k3_91="three@x")
    assert (letter.key, letter.version, letter.waits) == ("1", 90, True)
    assert letter.reason.startswith("its key lives on the source eu, and this row is on us.")
    assert table.shown() == {1: ("eu", "eu@x"), 2: ("eu", "two@x"), 3: ("us", "three@x")}
    assert table.write("eu", k1_6="again@x") == []  # whatever the versions of the other one are
    assert table.write("us", k1_92=None) == []  # nothing of its own is shown, and the tombstone is kept
    (letter,) = table.write("us", k1_93="us@x")  # now it has a row of its own
    assert letter.waits and table.shown()[1] == ("eu", "again@x")
    assert table.write("eu", k1_7=None) == []
    assert table.write("us", k1_94="us@x") == [] and table.shown()[1] == ("us", "us@x")


def test_an_old_write_of_the_source_that_gave_a_key_up_never_comes_back_over_the_others(table: Table_) -> None:
    table.write("eu", k1_5="eu@x")
    table.write("eu", k1_9=None)
    assert table.write("us", k1_2="us@x") == []  # with a version far below
    assert table.write("eu", k1_5="eu@x") == [] and table.write("eu", k1_8="late@x") == []
    assert table.shown() == {1: ("us", "us@x")}
    (letter,) = table.write("eu", k1_10="back@x")  # but a newer one is a row on both
    assert letter.waits and letter.reason.startswith("its key lives on the source us, and this row is on eu.")
    table.write("us", k1_3=None)
    assert table.write("eu", k1_10="back@x") == [] and table.shown() == {1: ("eu", "back@x")}
    assert table.write("us", k1_2="us@x") == [] and table.shown() == {1: ("eu", "back@x")}


def test_a_row_that_shows_no_value_holds_no_key(table: Table_) -> None:
    table.write("eu", k1_5="")
    assert table.write("us", k1_5="us@x") == []
    assert table.write("eu", k1_6="eu@x")[0].waits and table.shown() == {1: ("us", "us@x")}


def test_one_refused_row_of_a_large_block_keeps_no_other_out(table: Table_) -> None:
    table.write("eu", k150_1="eu@x")
    parked = table.write("us", **{f"k{key}_1": f"{key}@x" for key in range(1, 301)})
    assert [letter.key for letter in parked] == ["150"] and len(table.shown()) == 300
    with closing(table.sink(table.views["us"])) as again:  # as a backfill does, with rows that are there unchanged
        again.prepare()
        writes = {("us", key): Write(2, (f"{key}@x",)) for key in range(1, 301)}
        assert [letter.key for letter in again.write_again([ViewWrites("mysql:by_email", writes)])] == ["150"]
        again.connection.commit()
    assert table.shown()[150] == ("eu", "eu@x")
    assert table.ask(f"SELECT COUNT(*) FROM {table.database}.by_email WHERE version = 2") == [(299,)]


def test_of_two_sources_that_insert_at_the_same_time_one_gets_the_key(table: Table_) -> None:
    def insert(source: str, refused: list[Parked]) -> None:
        for start in range(1, 100, 10):
            refused += table.write(source, **{f"k{key}_1": f"{source}@x" for key in range(start, start + 10)})

    refused: dict[str, list[Parked]] = {"eu": [], "us": []}
    threads = [threading.Thread(target=insert, args=(source, refused[source])) for source in refused]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shown = table.shown()
    assert shown.keys() == {*range(1, 101)}
    for source, other in (("eu", "us"), ("us", "eu")):
        assert {int(letter.key) for letter in refused[source]} == {k for k, (of, _) in shown.items() if of == other}


def test_readers_of_a_source_know_whose_a_key_is(table: Table_) -> None:
    table.write("eu", k1_5="both@x", k2_5="both@x", k4_5=None)
    table.write("us", k3_5="both@x")
    for source, own in (("eu", [1, 2]), ("us", [3])):
        with closing(
            IndexTableReader(open_session(table.address, role="store"), table.database, table.views[source])
        ) as reader:
            keys = [(source, key) for key in (1, 2, 3, 4, 5)]
            assert reader.owners(keys) == {(source, 1): "eu", (source, 2): "eu", (source, 3): "us"}
            assert [row.key for row in reader.rows(keys)] == [(source, key) for key in own]
            assert reader.keys_with(["both@x"], 10) == [(source, key) for key in own]
    view = table.views["eu"]
    assert render_key(("eu", 7), view.key) == "7" and parse_key("7", view.key) == ("eu", 7)


def test_a_wider_column_of_one_source_is_taken_and_a_view_does_not_become_unique_in_place(table: Table_) -> None:
    table.write("eu", k1_5="eu@x")
    for view in (view_of("us", length=60), view_of("eu")):
        with closing(table.sink(view)) as sink:
            assert sink.prepare(lambda missing: pytest.fail(f"{missing} is there")) == {}
    assert table.write("us", k2_5="w" * 60) == []
    assert table.write("us", k1_6="us@x")[0].waits
    for other in (view_of("eu", is_unique=False), view_of("eu", value=("email", "note"))):
        with closing(table.sink(other)) as sink:
            (why,) = sink.prepare().values()
            assert "give the view another name" in why


def test_an_index_that_somebody_took_is_made_again_and_two_rows_of_a_key_are_told_as_such(table: Table_) -> None:
    table.write("eu", k1_5="eu@x")
    name = f"{table.database}.by_email"
    for taken in ("DROP INDEX live_idx", "DROP INDEX live_idx, ADD INDEX live_idx (id, is_live)"):
        table.ask(f"ALTER TABLE {name} {taken}")
        with closing(table.sink(table.views["us"])) as sink:
            assert sink.prepare() == {}
        assert table.write("us", k1_6="us@x")[0].waits
    table.ask(f"ALTER TABLE {name} DROP INDEX live_idx")
    table.ask(f"INSERT INTO {name} (source, id, email, version) VALUES ('us', 1, 'us@x', 7)")
    with closing(table.sink(table.views["us"])) as sink:
        (why,) = sink.prepare().values()
    assert "two sources show the same key" in why and "live_idx" in why and "DROP TABLE" in why
