"""Fills under live changes: what is read when, what wins, where an interrupted one goes on."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis

from ingest.canonical import rows as canonical_rows
from ingest.canonical.chunks import CanonicalRows
from offsets.backfills import BackfillProgress
from offsets.runs import REFILL
from projectors.fills import guarded
from projectors.fills.filling import Filling
from projectors.fills.runner import SIDE_BY_SIDE, FillRunner
from projectors.outcomes import DONE, End, Outcome
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisHash
from projectors.views import Entity, View
from stack import Server
from tests.support.pipelines import Owner, deployed, owned
from tests.support.running import addresses, running, wait_for
from tests.support.world import World
from viewtail.changes.errors import StopRequested
from viewtail.operations.runs import past

ITEM = Entity("fill.item")
VIEWS: dict[str, View] = {
    "mysql": IndexTable("ix_item", ITEM, value="name"),
    "redis": RedisHash("item", ITEM, fields=["name"]),
    "elasticsearch": SearchIndex("item", ITEM, fields={"name": "keyword"}),
}
STORES = tuple(VIEWS)
LOSES_VALUES = "ALTER TABLE fill.item DROP COLUMN name, ADD COLUMN name VARCHAR(60)"
VIEWS_FILE = """
from viewtail import Entity, IndexTable
views = [IndexTable("ix_item", Entity("fill.item"), value={value!r})]
"""


class Shelf:
    """The table fill.item and what the three stores show of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.execute("DROP DATABASE IF EXISTS fill", "DROP DATABASE IF EXISTS viewtail", "CREATE DATABASE fill")
        self.execute("CREATE TABLE fill.item (id INT PRIMARY KEY, name VARCHAR(60), other VARCHAR(60))")
        redis.Redis(port=world.redis.port).flushall()
        world.search("DELETE", "/viewtail-item?ignore_unavailable=true")

    def execute(self, *statements: str) -> None:
        connection = self.world.connect()
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()
        connection.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = self.world.connect()
        with connection.cursor() as cursor:
            cursor.execute(query)
            found = list(cursor.fetchall())
        connection.close()
        return found

    def add(self, count: int) -> None:
        values = [f"({i},'n{i}','o{i}')" for i in range(1, count + 1)]
        for at in range(0, count, 1000):
            self.execute(f"INSERT INTO fill.item VALUES {','.join(values[at : at + 1000])}")

    def shown(self, store: str) -> dict[int, str]:
        if store == "mysql":
            return dict(self.rows("SELECT id, name FROM viewtail.ix_item WHERE name IS NOT NULL"))  # type: ignore[arg-type]
        if store == "redis":
            client: Any = redis.Redis(port=self.world.redis.port, decode_responses=True)
            keys = sorted(client.scan_iter("item:*", count=5000))
            found = {int(key.partition(":")[2]): client.hget(key, "name") for key in keys}
            client.close()
            return found
        self.world.search("POST", "/viewtail-item/_refresh")
        hits = self.world.search("GET", "/item/_search?size=10000")["hits"]["hits"]
        return {int(hit["_id"]): hit["_source"]["name"] for hit in hits}

    def in_table(self) -> dict[int, str]:
        return dict(self.rows("SELECT id, name FROM fill.item"))  # type: ignore[arg-type]


@pytest.fixture
def shelf(mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Shelf:
    return Shelf(World(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server))


def servers(shelf: Shelf) -> tuple[Server, Server, Server]:
    return shelf.world.mysql, shelf.world.redis, shelf.world.elasticsearch


class Chunks:
    """Counts chunks read, and calls what a test wants done after the first chunk is written."""

    def __init__(self, patch: pytest.MonkeyPatch, after_first: Callable[[], None]) -> None:
        self._read = 0
        self._changed = threading.Condition()
        read, save = CanonicalRows.after, BackfillProgress.save

        def counted(chunks: Any, after: Any, version: int) -> Any:
            found = read(chunks, after, version)
            with self._changed:
                self._read += 1
                self._changed.notify_all()
            return found

        def saved(progress: Any, key: Any, count: int, kept: int) -> None:
            save(progress, key, count, kept)
            if self._is_first:
                self._is_first = False
                with self._changed:
                    assert self._changed.wait_for(lambda: self._read >= 2, 60)
                after_first()

        self._is_first = True
        patch.setattr(CanonicalRows, "after", counted)
        patch.setattr(BackfillProgress, "save", saved)


# -- under live changes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_changes_during_a_fill_win_over_the_rows_it_read_before(
    store: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunk 1 is written, chunk 2 is read and not written yet, chunk 3 is not read yet."""
    shelf.add(30)
    with owned(deployed([VIEWS[store]], *servers(shelf)), store) as owner:

        def changes() -> None:
            shelf.execute(
                "DELETE FROM fill.item WHERE id IN (3, 13, 23)",
                "UPDATE fill.item SET name = 'changed' WHERE id IN (4, 14, 24)",
                "UPDATE fill.item SET id = 103 WHERE id = 15",
                "UPDATE fill.item SET id = -5 WHERE id = 25",  # ahead of everything that is still to be read
                "DELETE FROM fill.item WHERE id = 16",
                "INSERT INTO fill.item VALUES (16, 'anew', NULL), (0, 'first', NULL)",
            )
            owner.pass_everything()

        Chunks(monkeypatch, changes)
        owner.fill(VIEWS[store].id, chunk_rows=10)
        assert owner.state(VIEWS[store].id) == "filled"
        assert shelf.shown(store) == shelf.in_table()
        assert {3, 13, 23, 15, 25}.isdisjoint(shelf.shown(store))


@pytest.mark.parametrize("store", STORES)
def test_changes_that_the_stream_brings_after_the_fill_read_their_rows_end_right(
    store: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fill reads ahead of the stream: the rows it reads are newer than what the pipeline has applied."""
    shelf.add(30)
    with owned(deployed([VIEWS[store]], *servers(shelf)), store) as owner:
        gate = threading.Event()
        apply = type(owner.own.pipeline)._apply

        def held(pipeline: Any, batch: Any) -> None:
            if batch.changes:
                assert gate.wait(20)
            apply(pipeline, batch)

        def changes() -> None:
            monkeypatch.setattr(type(owner.own.pipeline), "_apply", held)
            shelf.execute(
                "DELETE FROM fill.item WHERE id IN (3, 23)",
                "UPDATE fill.item SET name = 'once' WHERE id IN (4, 24)",
                "UPDATE fill.item SET name = 'twice' WHERE id IN (4, 24)",
                "UPDATE fill.item SET id = 2300 WHERE id = 25",
            )

        Chunks(monkeypatch, changes)
        made = owner.backfill(VIEWS[store].id, chunk_rows=10)
        write, written = made.watermarks.write, []

        def release_at_the_end() -> str:
            written.append(write())
            if len(written) == 2:  # behind all rows of the fill
                gate.set()
            return written[-1]

        monkeypatch.setattr(made.watermarks, "write", release_at_the_end)
        assert made.run() == DONE
        assert len(written) == 2
        assert shelf.shown(store) == shelf.in_table()


@pytest.mark.parametrize("store", STORES)
def test_a_view_that_is_paused_during_its_fill_gets_neither_rows_nor_changes(
    store: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.add(50)
    view = VIEWS[store].id
    with owned(deployed([VIEWS[store]], *servers(shelf)), store) as owner:
        Chunks(monkeypatch, lambda: owner.pause(view))
        assert owner.backfill(view, chunk_rows=10).run().end is End.AGAIN
        owner.look()
        assert owner.own.paused_views == [view] and owner.to_fill() == []
        shelf.execute("UPDATE fill.item SET name = 'changed' WHERE id IN (1, 50)")
        owner.pass_everything()
        shown = shelf.shown(store)
        assert shown[1] == "n1" and len(shown) <= 20, "the chunk that was on its way is the last"


def refills(owner: Owner) -> list[tuple[str, str, str]]:
    catalog = owner.own.catalog
    with closing(catalog.session()) as session:
        return [(one.view, one.what, one.result) for one in past(session, catalog.database, [REFILL], 9)]


def test_a_view_that_was_resumed_and_filled_while_its_pause_was_looked_at_is_filled_again(shelf: Shelf) -> None:
    """It got no changes from the look on: to leave it as it is would lose them unseen. That is no loss of the store."""
    view = VIEWS["redis"].id
    with owned(deployed([VIEWS["redis"]], *servers(shelf)), "redis") as owner:
        owner.fill_all()
        for _ in range(2):
            owner.own.life.lost([view])
            owner.own.life.lost([view])  # it is to be filled already
            owner.fill_all()
        owner.own.life.projections.halt(view)  # what a look does that read of a pause
        owner.own.life.wake.clear()
        owner.look()
        assert owner.to_fill() == [view] and owner.own.life.wake.is_set()
        assert refills(owner) == [(view, "its store lost rows of it", "backfilled again, 2 times")]


@pytest.mark.parametrize("store", STORES)
def test_a_fill_takes_away_keys_that_the_table_does_not_have(store: str, shelf: Shelf) -> None:
    shelf.add(5)
    with owned(deployed([VIEWS[store]], *servers(shelf)), store) as owner:
        owner.fill_all()
        if store == "mysql":
            shelf.execute("INSERT INTO viewtail.ix_item (id, name, version) VALUES (99, 'stray', 7)")
        elif store == "redis":
            client: Any = redis.Redis(port=shelf.world.redis.port)
            client.hset("item:99", mapping={"_version": f"{7:019d}", "name": "stray"})
        else:
            shelf.world.search("PUT", "/viewtail-item/_doc/99?version=7&version_type=external", {"name": "stray"})
        assert 99 in shelf.shown(store)
        owner.fill_again(VIEWS[store].id, chunk_rows=2)
        assert shelf.shown(store) == shelf.in_table()


@pytest.mark.parametrize("store", STORES)
def test_an_empty_table_is_filled_at_once(store: str, shelf: Shelf) -> None:
    with owned(deployed([VIEWS[store]], *servers(shelf)), store) as owner:
        owner.fill_all()
        assert owner.state(VIEWS[store].id) == "filled"
        assert shelf.shown(store) == {}


def test_a_statement_before_a_view_s_watermark_has_it_filled_under_another_taking(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets no more changes: filled now, it would be wrong from then on without anybody being told."""
    shelf.add(5)
    view = VIEWS["mysql"].id
    with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:
        made = owner.backfill(view)
        write = made.watermarks.write

        def lose_values_first() -> str:
            shelf.execute(LOSES_VALUES)
            return write()

        monkeypatch.setattr(made.watermarks, "write", lose_values_first)
        assert made.run().end is End.AGAIN
        assert owner.state(view) == "new"
        assert owner.own.life.projections.is_halted(view) and owner.own.life.wake.is_set()
    with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:
        owner.fill(view)
        assert owner.state(view) == "filled"
        shelf.execute("UPDATE fill.item SET name = 'live' WHERE id = 3")
        owner.pass_everything()
        assert not owner.own.life.projections.is_halted(view) and shelf.shown("mysql")[3] == "live"


def test_a_statement_that_halts_the_view_during_its_fill_leaves_it_halted(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.add(30)
    view = VIEWS["mysql"].id
    with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:

        def lose_values() -> None:
            shelf.execute(LOSES_VALUES)
            owner.pass_everything()

        Chunks(monkeypatch, lose_values)
        owner.backfill(view, chunk_rows=10).run()
        assert owner.state(view) == "halted"


def test_a_view_that_is_halted_during_its_fill_is_not_under_way_any_more(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cleaner waits while something is filled, and reports say of it how far it is."""
    shelf.add(3)
    view = VIEWS["mysql"].id
    with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:
        run = Filling.run

        def halted(made: Filling) -> Outcome:
            made.life.halt(view, "a test halts it")
            return run(made)

        monkeypatch.setattr(Filling, "run", halted)
        rounds = threading.Thread(target=FillRunner(owner.own).run)
        rounds.start()
        rounds.join(30)  # the pipeline is to be taken again, since a halted view may be mended
        owner.own.stop.set()
        rounds.join()
        assert owner.state(view) == "halted"
        assert not owner.own.fills.under_way


# -- what is read -----------------------------------------------------------------------------------------------


def test_no_chunk_is_read_in_a_snapshot_older_than_its_watermark(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server shows the watermark late, as a replica may: the fill waits, and reads the rows as they are then."""
    shelf.add(3)
    with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:
        made = owner.backfill(VIEWS["mysql"].id)
        is_visible = made.watermarks.is_visible
        looks: list[bool] = []

        def late(cursor: Any, version: int) -> bool:
            looks.append(len(looks) >= 3 and is_visible(cursor, version))
            if len(looks) == 3:
                shelf.execute("UPDATE fill.item SET name = 'late' WHERE id = 2")
            return looks[-1]

        read: list[int] = []
        fetch = canonical_rows.fetch_rows
        monkeypatch.setattr(made.rows, "_shows", late)
        monkeypatch.setattr(canonical_rows, "fetch_rows", lambda *given: read.append(len(looks)) or fetch(*given))
        assert made.run() == DONE
        assert looks[:4] == [False, False, False, True] and min(read) == 4
        assert shelf.shown("mysql") == {1: "n1", 2: "late", 3: "n3"}


def test_a_snapshot_from_before_the_watermark_is_told_from_a_fresh_one(shelf: Shelf) -> None:
    """Of two watermarks the first is no proof of the second, though the stream has brought both."""
    with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:
        marks = owner.own.pipeline.watermarks
        first = marks.waiter.wait([marks.write()], owner.own.stop, 10)
        assert first is not None
        old = shelf.world.connect()
        try:
            with old.cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                assert marks.is_visible(cursor, first)
                second = marks.waiter.wait([marks.write()], owner.own.stop, 10)
                assert second is not None and second > first
                assert not marks.is_visible(cursor, second)
                cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
                assert marks.is_visible(cursor, second)
        finally:
            old.close()


def test_a_chunk_that_waited_too_long_is_read_again_and_never_written(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.add(30)
    read = CanonicalRows.after
    ages = iter([0.0, guarded.CHUNK_AGE_LIMIT_S + 1])

    def old(chunks: Any, after: Any, version: int) -> Any:
        found = read(chunks, after, version)
        age = next(ages, 0.0)
        if age:
            shelf.execute("UPDATE fill.item SET name = 'newer' WHERE id = 15")
        return found and replace(found, read_at=found.read_at - age)

    written: list[Any] = []
    with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:
        made = owner.backfill(VIEWS["mysql"].id, chunk_rows=10)
        sink = made.strategy.sink  # type: ignore[attr-defined]
        write = sink.write

        def seen(writes: Any, upto: Any) -> Any:
            written.extend(found.writes[15,][1] for found in writes if (15,) in found.writes)
            return write(writes, upto)

        monkeypatch.setattr(CanonicalRows, "after", old)
        monkeypatch.setattr(sink, "write", seen)
        assert made.run() == DONE
        assert written == [("newer",)]
        owner.pass_everything()
        assert shelf.shown("mysql") == shelf.in_table()


KEYS = {
    "DECIMAL(40,5)": [f"12345678901234567890123456789012345.0000{i}" for i in range(7)],
    "DECIMAL(20,2)": [
        "-3.50",
        "-3.49",
        "-1.00",
        "0.00",
        "0.01",
        "9007199254740993.00",
        "9007199254740993.01",
    ],
    "BIGINT UNSIGNED": [str((1 << 64) - i) for i in range(1, 8)],
    "BIGINT": [str(-(1 << 63) + i) for i in range(7)],
    "VARBINARY(20)": ["", "a", "a\0", "a\0b", "aa", "b'\\", "c"],
    "VARCHAR(30)": ["", "A", "a b", "é", "zz%", "z{}:", "漢字"],
    "VARCHAR(30) CHARACTER SET latin1": ["", "a", "Ab", "ä", "ß!", "ö'", "ÿ"],
    "VARCHAR(30) COLLATE utf8mb4_bin": ["A", "B", "a", "b", "c ", "é", "🙂"],
    "CHAR(5) CHARACTER SET ascii": ["", "a", "b", "c", "d", "e", "f"],
    "DATETIME(6)": [f"2024-01-01 00:00:00.00000{i}" for i in range(7)],
    "DATE": [f"2024-01-0{i}" for i in range(1, 8)],
    "TIMESTAMP(3)": [f"2024-06-01 00:00:00.00{i}" for i in range(7)],
    "TIME(2)": [
        "-10:00:00.50",
        "-10:00:00.25",
        "00:00:00.00",
        "00:00:00.01",
        "10:00:00",
        "99:00:00",
        "838:59:59",
    ],
    "YEAR": ["1901", "1970", "1999", "2000", "2024", "2100", "2155"],
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", KEYS)
def test_a_fill_interrupted_after_every_chunk_shows_every_row_once(
    kind: str, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk of two rows begins behind a key that was kept as JSON."""
    shelf.execute(f"CREATE TABLE fill.keyed (k {kind}, b INT, v INT, PRIMARY KEY (k, b))")
    with shelf.world.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for at, key in enumerate(KEYS[kind]):
            for b in range(3):
                cursor.execute("INSERT INTO fill.keyed VALUES (%s, %s, %s)", (key, b, 10 * at + b))
        connection.commit()
    entity, save = Entity("fill.keyed"), BackfillProgress.save
    counts: list[int] = []

    def stopping(progress: Any, key: Any, count: int, kept: int) -> None:
        save(progress, key, count, kept)
        counts.append(count)
        raise StopRequested

    monkeypatch.setattr(BackfillProgress, "save", stopping)
    with owned(deployed([IndexTable("ix_keyed", entity, value="v")], shelf.world.mysql), "mysql") as owner:

        def filled() -> bool:
            outcome = owner.backfill("mysql:ix_keyed", chunk_rows=2).run()
            assert outcome == DONE or (outcome.end is End.AGAIN and len(counts) < 20), "it does not come to an end"
            return outcome == DONE

        while not filled():
            pass
    assert counts == [*range(2, 21, 2), 21]
    assert sorted(shelf.rows("SELECT v FROM viewtail.ix_keyed")) == sorted(
        (10 * at + b,) for at in range(7) for b in range(3)
    )


def test_pages_of_a_composite_key_read_no_more_rows_than_they_hold(shelf: Shelf) -> None:
    shelf.execute("CREATE TABLE fill.pair (a VARCHAR(10), b INT, v INT, PRIMARY KEY (a, b))")
    for a in range(4):
        values = ",".join(f"('a{a}',{b},{b})" for b in range(5000))
        shelf.execute(f"INSERT INTO fill.pair VALUES {values}")
    view = IndexTable("ix_pair", Entity("fill.pair"), value="v")
    shelf.execute("TRUNCATE TABLE performance_schema.events_statements_summary_by_digest")
    with owned(deployed([view], shelf.world.mysql), "mysql") as owner:
        owner.fill(view.id, chunk_rows=500)
    ((pages, examined, sent),) = shelf.rows(
        "SELECT SUM(count_star), SUM(sum_rows_examined), SUM(sum_rows_sent) FROM "
        "performance_schema.events_statements_summary_by_digest "
        "WHERE digest_text LIKE 'SELECT%`fill` . `pair`%ORDER BY%'"
    )
    assert sent == 20_000 and 40 <= pages <= 42
    assert 10 * examined <= 11 * sent, f"{examined} rows examined for {sent}"


TYPES = {
    "f": ("FLOAT", "1.2345677"),
    "d": ("DOUBLE", "0.1"),
    "dec_": ("DECIMAL(30,10)", "12345678901234567890.0123456789"),
    "ts": ("TIMESTAMP(6) NULL", "'2024-03-31 01:30:00.000001'"),
    "dt": ("DATETIME(3)", "'2024-03-31 02:30:00.120'"),
    "day": ("DATE", "'2024-02-29'"),
    "t": ("TIME(2)", "'-12:00:00.25'"),
    "y": ("YEAR", "2024"),
    "bits": ("BIT(10)", "b'1000000001'"),
    "e": ("ENUM('a','b')", "'b'"),
    "s": ("SET('x','y','z')", "'x,z'"),
    "fixed": ("BINARY(4)", "X'01000000'"),
    "raw": ("VARBINARY(10)", "X'FF00'"),
    "l1": ("VARCHAR(20) CHARACTER SET latin1", "'çß'"),
    "big": ("BIGINT UNSIGNED", "18446744073709551615"),
    "j": ("JSON", """'{"b": [1, 1.5, null, "é"], "a": {"x": -0.1}}'"""),
}


@pytest.mark.parametrize("store", STORES)
def test_a_row_is_shown_alike_whether_it_was_followed_or_filled_in(store: str, shelf: Shelf) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in TYPES.items())
    values = ", ".join(value for _, value in TYPES.values())
    shelf.execute(f"CREATE TABLE fill.typed (id INT PRIMARY KEY, {columns})")
    typed = Entity("fill.typed")
    view: View = {
        "mysql": IndexTable("ix_typed", typed, value=[name for name in TYPES if name not in ("j", "f", "d")]),
        "redis": RedisHash("typed", typed, fields=list(TYPES)),
        "elasticsearch": SearchIndex(
            "item",
            typed,
            document=lambda row: row,
            fields={"id": "integer"} | dict.fromkeys(TYPES, "keyword") | {"j": {"type": "object", "enabled": False}},
        ),
    }[store]
    with owned(deployed([view], *servers(shelf)), store) as owner:
        owner.fill_all()
        shelf.execute(
            f"INSERT INTO fill.typed VALUES (1, {values})",
            "INSERT INTO fill.typed (id) VALUES (2)",
        )
        owner.pass_everything()
        followed = _raw(shelf, store)
        owner.fill_again(view.id)
        filled = _raw(shelf, store)
        assert [key for key, *_ in followed] == [key for key, *_ in filled] and len(filled) == 2
        assert [content for _, content, _ in followed] == [content for _, content, _ in filled]
        assert all(new[2] > old[2] for old, new in zip(followed, filled, strict=True)), "it was written again"


def _raw(shelf: Shelf, store: str) -> list[tuple[Any, Any, int]]:
    """(key, content, version) of what the store holds."""
    if store == "mysql":
        return [(row[0], row[1:-1], row[-1]) for row in shelf.rows("SELECT * FROM viewtail.ix_typed ORDER BY id")]
    if store == "redis":
        client: Any = redis.Redis(port=shelf.world.redis.port)
        found = {key: client.hgetall(key) for key in sorted(client.scan_iter("typed:*"))}
        return [(key, fields, int(fields.pop(b"_version"))) for key, fields in found.items()]
    shelf.world.search("POST", "/viewtail-item/_refresh")
    hits = shelf.world.search("GET", "/item/_search?size=10&version=true")["hits"]["hits"]
    return sorted((hit["_id"], hit["_source"], hit["_version"]) for hit in hits)


# -- version columns --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_a_fill_by_version_column_shows_each_keys_newest_row_and_sweeps_the_rest(store: str, shelf: Shelf) -> None:
    shelf.execute(
        "CREATE TABLE fill.doc (id INT PRIMARY KEY, rev BIGINT NOT NULL, name VARCHAR(20))",
        "INSERT INTO fill.doc VALUES (1, 10, 'one'), (2, 20, 'two'), (3, 30, 'three')",
    )
    doc = Entity("fill.doc", version="rev")
    view: View = {
        "mysql": IndexTable("ix_item", doc, value="name"),
        "redis": RedisHash("item", doc, fields=["name"]),
        "elasticsearch": SearchIndex("item", doc, fields={"name": "keyword"}),
    }[store]
    with owned(deployed([view], *servers(shelf)), store) as owner:
        owner.fill_all()
        assert shelf.shown(store) == {1: "one", 2: "two", 3: "three"}
        shelf.execute("DELETE FROM fill.doc WHERE id = 2", "UPDATE fill.doc SET rev = 11, name = 'uno' WHERE id = 1")
        owner.pass_everything()
        if store == "mysql":
            shelf.execute("INSERT INTO viewtail.ix_item (id, name, version) VALUES (99, 'stray', 70)")
        elif store == "redis":
            client: Any = redis.Redis(port=shelf.world.redis.port)
            client.hset("item:99", mapping={"_version": f"{70:019d}", "name": "stray"})
        else:
            shelf.world.search("PUT", "/viewtail-item/_doc/99?version=70&version_type=external", {"name": "stray"})
        owner.fill_again(view.id)
        assert shelf.shown(store) == {1: "uno", 3: "three"}
        shelf.execute("INSERT INTO fill.doc VALUES (2, 21, 'again'), (99, 36, 'real')")
        owner.pass_everything()
        assert shelf.shown(store) == {1: "uno", 2: "again", 3: "three", 99: "real"}


# -- the command line -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def _states(shelf: Shelf) -> list[tuple[str, int]]:
    return shelf.rows("SELECT state, fill_row_count FROM viewtail.view")  # type: ignore[return-value]


def test_a_killed_fill_goes_on_after_its_last_finished_chunk(shelf: Shelf, folder: Path) -> None:
    shelf.add(10_000)
    shelf.execute("TRUNCATE TABLE performance_schema.events_statements_summary_by_digest")
    environment = {**addresses(shelf.world.mysql), "VIEWTAIL_RUN__CHUNK_ROWS": "1000"}
    with running(folder, VIEWS_FILE.format(value="name"), environment) as run:
        run.kill()
        run.start(VIEWTAIL_FAILPOINT="after chunk:3")
        wait_for("the worker dies in the fill", lambda: "starting it again" in run.log and "-9" in run.log)
        run.kill()
        ((state, count),) = _states(shelf)
        assert state == "filling" and count % 1000 == 0 and 3000 <= count < 10_000
        for command in (("get", "ix_item", "1"), ("find", "ix_item", "n1")):
            assert "half backfilled" in (told := run.command(*command)).stdout + told.stderr
        status = json.loads(run.command("status", "--json").stdout)
        assert '"state": "filling"' in json.dumps(status)
        run.start()
        wait_for("the view is filled", lambda: _states(shelf) == [("filled", 10_000)])
        assert f'"rows_before":{count},' in run.log
        ((sent,),) = shelf.rows(
            "SELECT SUM(sum_rows_sent) FROM performance_schema.events_statements_summary_by_digest "
            "WHERE digest_text LIKE 'SELECT%`fill` . `item`%ORDER BY%'"
        )
        assert sent <= 10_000 + 2 * 1000, "at most the chunk that was read ahead is read again, for each kill"
        assert shelf.shown("mysql") == shelf.in_table()
        assert "half backfilled" not in run.command("get", "ix_item", "1").stderr
        assert run.stop() == 0


def test_a_changed_declaration_fills_its_view_again_and_an_unchanged_one_does_not(shelf: Shelf, folder: Path) -> None:
    shelf.add(10)
    with running(folder, VIEWS_FILE.format(value="name"), addresses(shelf.world.mysql)) as run:
        wait_for("the view is filled", lambda: _states(shelf) == [("filled", 10)])
        assert run.stop() == 0
        run.start()
        shelf.execute("UPDATE fill.item SET name = 'live' WHERE id = 1")
        wait_for("it follows", lambda: shelf.shown("mysql")[1] == "live")
        assert run.log.count('"event":"backfilling"') == 1
        assert run.stop() == 0
        (folder / "views.py").write_text(VIEWS_FILE.format(value="other"))
        run.start()
        wait_for("it is filled again", lambda: run.log.count('"event":"view backfilled"') == 2)
        query = "SELECT id, other FROM viewtail.ix_item WHERE other IS NOT NULL"
        assert dict(shelf.rows(query)) == dict(shelf.rows("SELECT id, other FROM fill.item"))  # type: ignore[arg-type]
        assert run.stop() == 0


def test_chunks_of_wide_rows_are_cut_by_bytes_and_none_is_left_out(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, sizes = CanonicalRows.after, []

    def counted(chunks: Any, after: Any, version: int) -> Any:
        found = read(chunks, after, version)
        sizes.append(len(found.rows))
        return found

    monkeypatch.setattr(CanonicalRows, "after", counted)
    monkeypatch.setattr("ingest.canonical.rows._READ_BYTES", 4_096)
    shelf.add(3_000)
    shelf.execute("UPDATE fill.item SET name = REPEAT('w', 60) WHERE id BETWEEN 1200 AND 2400")
    with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:
        made = owner.backfill("mysql:ix_item")
        made.rows.chunk_bytes = 40_000
        assert made.run() == DONE
    assert shelf.shown("mysql") == shelf.in_table()
    assert sum(sizes) == 3_000 and sizes[0] == 1_500 and max(sizes[1:]) < 1_500, sizes


# -- many views, and stores that hold nothing ---------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_a_store_that_held_nothing_of_a_view_is_not_swept(store: str, shelf: Shelf) -> None:
    shelf.add(30)
    with owned(deployed([VIEWS[store]], *servers(shelf)), store) as owner:
        made, looks = owner.backfill(VIEWS[store].id, chunk_rows=10), []
        sink = made.strategy.sink  # type: ignore[attr-defined]
        keys_below = sink.keys_below

        def looked(*of: Any) -> Any:
            looks.append(of)
            return keys_below(*of)

        sink.keys_below = looked
        assert made.run() == DONE
        assert len(looks) == 1, "it is looked for older keys before the first chunk, and not again"
        assert owner.state(VIEWS[store].id) == "filled" and shelf.shown(store) == shelf.in_table()


@pytest.mark.parametrize("store", STORES)
def test_a_key_that_is_not_in_the_table_is_swept_where_the_store_held_some(store: str, shelf: Shelf) -> None:
    shelf.add(30)
    with owned(deployed([VIEWS[store]], *servers(shelf)), store) as owner:
        owner.fill_all()
        gone = owner.own.life.states.read(VIEWS[store].id).watermark_version
        assert gone is not None
        owner.own.life.projections.halt(VIEWS[store].id)  # the delete does not reach the view
        shelf.execute("DELETE FROM fill.item WHERE id = 7")
        owner.pass_everything()
        assert 7 in shelf.shown(store)
        owner.own.life.projections._halted.clear()
        owner.fill_again(VIEWS[store].id, chunk_rows=10)
        assert shelf.shown(store) == shelf.in_table() and 7 not in shelf.shown(store)


def test_many_small_views_are_backfilled_side_by_side_under_shared_watermarks(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose place is taken halts; it keeps none of the others."""
    count = 12
    for number in range(count):
        shelf.execute(
            f"CREATE TABLE fill.small{number} (id INT PRIMARY KEY, name VARCHAR(20))",
            f"INSERT INTO fill.small{number} VALUES (1, 'one'), (2, 'two')",
        )
    views = [IndexTable(f"ix_small{number}", Entity(f"fill.small{number}"), value="name") for number in range(count)]
    catalog = deployed(views, shelf.world.mysql)
    shelf.execute("CREATE TABLE viewtail.ix_small5 (id INT PRIMARY KEY)")
    with owned(catalog, "mysql") as owner:
        marks, write = [], owner.own.pipeline.watermarks.write
        running, most = threading.Semaphore(count), [0]

        def counted() -> str:
            marks.append(1)
            return write()

        run = Filling.run

        def together(made: Filling) -> Outcome:
            running.acquire()
            most[0] = max(most[0], count - running._value)
            try:
                return run(made)
            finally:
                running.release()

        monkeypatch.setattr(owner.own.pipeline.watermarks, "write", counted)
        monkeypatch.setattr(Filling, "run", together)
        rounds = threading.Thread(target=FillRunner(owner.own).run)
        rounds.start()
        filled = [view.id for view in views if view.name != "ix_small5"]
        wait_for("the others are filled", lambda: all(owner.state(view) == "filled" for view in filled))
        assert owner.state("mysql:ix_small5") == "halted"
        assert 1 < most[0] <= SIDE_BY_SIDE
        assert len(marks) < 2 * len(filled), "each needs one at its beginning and one at its end"
        owner.own.stop.set()
        owner.own.life.wake.set()
        rounds.join()
    for number in range(count):
        if number != 5:
            shown = shelf.rows(f"SELECT id, name FROM viewtail.ix_small{number} ORDER BY id")
            assert shown == [(1, "one"), (2, "two")]
