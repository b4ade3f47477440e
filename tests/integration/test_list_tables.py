"""Index tables over lists, on real servers: what a reader finds in them, and what parks a key."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pymysql
import pytest

from projectors.stores.index_tables.leaving import IndexTableLeftover, IndexTableTraces
from projectors.stores.index_tables.list_reading import ListReader
from projectors.stores.index_tables.sink import MySQLSink
from projectors.stores.index_tables.store import IndexTablesStore
from projectors.stores.index_tables.swapping import TableSwapping
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.leaving import Holds, Retired
from projectors.views import BoundView, Entity
from tests.support.missing import missing
from viewtail.changes.errors import StoreError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key, Parked, ViewWrites, Write
from viewtail.servers.sessions import MySQLAddress, open_session, quote

_tokens = itertools.count(1)

ID = Column(name="id", kind=Kind.INTEGER, declared="bigint unsigned", is_nullable=False, is_unsigned=True)
CODE = Column(name="code", kind=Kind.BYTES, declared="binary(3)", is_nullable=False, length=3)
NAME = Column(name="name", kind=Kind.TEXT, declared="varchar(20)", is_nullable=False, charset="utf8mb4", length=20)
DAY = Column(name="day", kind=Kind.DATE, declared="date", is_nullable=False)
AMOUNT = Column(name="amount", kind=Kind.DECIMAL, declared="decimal(20,4)", is_nullable=False, precision=20, scale=4)
TAGS = Column(name="tags", kind=Kind.JSON, declared="json", is_nullable=True)


def list_view(each: str = "VARCHAR(20)", key: tuple[Column, ...] = (ID,), name: str = "user_tag") -> BoundView:
    table = Table(schema="shop", name="user", columns=(*key, TAGS), primary_key=tuple(one.name for one in key))
    view = IndexTable(name, Entity("shop.user"), value="tags", each=each)
    needed = tuple(one.name for one in table.columns)
    return BoundView(view=view, table=table, key=key, values=(TAGS,), needed=needed, fingerprint="0" * 64)


class Place:
    """A database of the test's own, looked at with plain SQL."""

    def __init__(self, host: str, port: int) -> None:
        self.address = MySQLAddress(host=host, port=port, user="root", io_timeout_s=20)
        self.database = f"lists_{next(_tokens)}"
        self._sinks: list[MySQLSink] = []
        self._plain = pymysql.connect(host=host, port=port, user="root", autocommit=True)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self._plain.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def sink(self, *views: BoundView) -> MySQLSink:
        sink = MySQLSink(lambda: open_session(self.address, role="store"), self.database, views)
        assert sink.prepare() == {}
        self._sinks.append(sink)
        return sink

    def reader(self, view: BoundView) -> ListReader:
        return ListReader(open_session(self.address, role="store"), self.database, view)

    def shown(self, view: BoundView) -> set[tuple[Any, ...]]:
        """(value, key...) as a reader's SELECT finds them."""
        keys = ", ".join(quote(one.name) for one in view.key)
        return set(self.ask(f"SELECT tags, {keys} FROM {quote(self.database, view.view.name)}"))

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        self.ask(f"DROP DATABASE IF EXISTS {self.database}")
        self._plain.close()


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    server = request.getfixturevalue(request.param)
    found = Place(server.host, server.port)
    yield found
    found.close()


def write(sink: MySQLSink, view: BoundView, version: int, lists: dict[Key, str | None]) -> list[Parked]:
    refused = sink.write([ViewWrites(view.id, {key: Write(version, (text,)) for key, text in lists.items()})], None)
    sink.connection.commit()
    return refused


def test_a_list_has_a_row_for_each_of_its_values_and_the_old_ones_leave_when_new_ones_come(place: Place) -> None:
    view = list_view()
    sink = place.sink(view)
    write(sink, view, 5, {(1,): '["a", "b", "a"]', (2,): '["b"]', (3,): "[]", (4,): None, (5,): "null"})
    assert place.shown(view) == {("a", 1), ("b", 1), ("b", 2)}
    write(sink, view, 6, {(1,): '["c", "b"]', (2,): "[]", (3,): '["a"]'})
    assert place.shown(view) == {("b", 1), ("c", 1), ("a", 3)}
    write(sink, view, 5, {(1,): '["older"]', (6,): '["new"]'})
    assert place.shown(view) == {("b", 1), ("c", 1), ("a", 3), ("new", 6)}
    with_reader = place.reader(view)
    assert with_reader.keys_with(["b"], 10) == [(1,)]
    assert with_reader.rows([(1,), (2,), (3,)])[0].content == {"tags": ["b", "c"]}
    assert [row.key for page in with_reader.pages() for row in page] == [(1,), (3,), (6,)]
    with_reader.close()


STRANGE = ["", " ", "a ", "A", "a", "ä", "a\u0308", "\0", "'\\\"\n\t", "😀漢字", "null", "1", "\x1f", "\u2028"]


def test_values_that_differ_in_anything_are_different_values(place: Place) -> None:
    view = list_view()
    sink = place.sink(view)
    write(sink, view, 5, {(1,): orjson.dumps(STRANGE).decode(), ((1 << 64) - 1,): '["\\u0061\\u0000\\ud83d\\ude00"]'})
    assert place.shown(view) == {(one, 1) for one in STRANGE} | {("a\0😀", (1 << 64) - 1)}
    reader = place.reader(view)
    for one in STRANGE:
        assert reader.keys_with([one], 10) == [(1,)]
    assert reader.rows([(1,)])[0].content == {"tags": sorted(STRANGE)}
    reader.close()


@pytest.mark.parametrize(
    ("each", "given", "shown"),
    [
        ("BIGINT", "[-9223372036854775808, 9223372036854775807, 0, -0, 5.0]", {-(1 << 63), (1 << 63) - 1, 0, 5}),
        ("BIGINT UNSIGNED", "[18446744073709551615]", {(1 << 64) - 1}),
        ("tinyint", "[-128, 127]", {-128, 127}),
        ("DECIMAL(30,2)", "[1, 1.0, 1.50, -0.0, 1234567890123456789012345678.25]",
         {Decimal(1), Decimal("1.5"), Decimal(0), Decimal("1234567890123456789012345678.25")}),
        ("BOOLEAN", "[true, false, true]", {0, 1}),
    ],
)  # fmt: skip
def test_values_have_the_declared_type(place: Place, each: str, given: str, shown: set[Any]) -> None:
    view = list_view(each)
    sink = place.sink(view)
    assert write(sink, view, 5, {(1,): given}) == []
    assert {value for value, _ in place.shown(view)} == shown
    reader = place.reader(view)
    assert reader.rows([(1,)])[0].content == {"tags": sorted(shown)}
    assert reader.held([(1,)])[1,].fault == ""
    for value in shown:
        assert reader.keys_with([value], 10) == [(1,)]
    reader.close()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1}', "column tags holds an object, not a list"),
        ('"a"', "column tags holds a text, not a list"),
        ('["a", 5]', "value 2 of its list is a number, and the view's values are VARCHAR(20)"),
        ('["a", null]', "value 2 of its list is null"),
        ('[["a"]]', "value 1 of its list is a list"),
        ('["a", "123456789012345678901"]', "value 2 of its list has 21 characters"),
        ('["\\ud800"]', "has a lone surrogate"),
        ("[", "its list is no JSON"),
    ],
)
def test_a_list_that_does_not_fit_parks_its_key_and_no_other(place: Place, text: str, reason: str) -> None:
    view = list_view()
    sink = place.sink(view)
    write(sink, view, 5, {(1,): '["before"]'})
    lists: dict[Key, str | None] = {(key,): f'["{key}"]' for key in range(2, 400)}
    (letter,) = write(sink, view, 6, {**lists, (1,): text})
    assert (letter.key, letter.version) == ("1", 6)
    assert reason in letter.reason
    assert place.shown(view) == {("before", 1)} | {(str(key), key) for key in range(2, 400)}


def test_keys_of_several_columns_and_types_lead_to_their_own_rows(place: Place) -> None:
    view = list_view(key=(NAME, CODE, DAY, AMOUNT))
    sink = place.sink(view)
    keys: list[Key] = [
        (name, bytes([number, 0, 255]), f"2024-01-{number + 1:02d}", Decimal(f"{number}.5000"))
        for number in range(20)
        for name in ("a", "A", "a ", "ä:%{}'\\")
    ]
    write(sink, view, 5, {key: f'["t{at}", "all"]' for at, key in enumerate(keys)})
    reader = place.reader(view)
    assert {row.key: row.content["tags"] for row in reader.rows(keys)} == {
        key: sorted([f"t{at}", "all"]) for at, key in enumerate(keys)
    }
    assert sorted(reader.keys_with(["all"], 100)) == sorted(keys)
    write(sink, view, 6, {keys[3]: None})
    assert reader.keys_with(["t3"], 10) == []
    reader.close()


def test_a_list_that_is_written_again_as_it_is_gets_back_the_rows_that_somebody_took(place: Place) -> None:
    view = list_view()
    sink = place.sink(view)
    write(sink, view, 5, {(1,): '["a", "b"]', (2,): '["c"]'})
    place.ask(f"DELETE FROM {place.database}.user_tag WHERE tags = 'b'")
    again: dict[Key, Write] = {(1,): Write(6, ('["a", "b"]',)), (2,): Write(6, ('["c"]',))}
    assert sink.write_again([ViewWrites(view.id, again)]) == []
    sink.connection.commit()
    assert place.shown(view) == {("a", 1), ("b", 1), ("c", 2)}


def test_rows_that_somebody_changed_are_seen_and_the_next_write_mends_them(place: Place) -> None:
    view = list_view()
    sink = place.sink(view)
    write(sink, view, 5, {(1,): '["a"]', (2,): '["b"]', (3,): '["c"]'})
    table = f"{place.database}.user_tag"
    place.ask(f"DELETE FROM {table} WHERE id = 1")
    place.ask(f"INSERT INTO {table} (id, tags) VALUES (2, 'foreign'), (9, 'orphan')")
    reader = place.reader(view)
    held = reader.held([(1,), (2,), (3,), (9,)])
    assert [bool(held[key,].fault) for key in (1, 2, 3, 9)] == [True, True, False, True]
    assert [key for page in reader.shown_keys() for key in page] == [(2,), (3,), (9,)]
    assert sorted(reader.unequal({(key,): Write(5, (f'["{value}"]',)) for key, value in ((1, "a"), (3, "c"))})) == [
        (1,)
    ]
    write(sink, view, 7, {(1,): '["a"]', (2,): '["b"]', (9,): None})
    assert place.shown(view) == {("a", 1), ("b", 2), ("c", 3)}
    reader.close()


def test_an_entity_is_taken_away_with_its_rows_only_as_it_was_seen(place: Place) -> None:
    view = list_view()
    sink = place.sink(view)
    write(sink, view, 5, {(1,): '["a"]', (2,): '["b"]'})
    reader = place.reader(view)
    held = reader.held([(1,), (2,)])
    reader.close()
    write(sink, view, 6, {(2,): '["newer"]'})
    sink.take_away(view.id, held)
    sink.connection.commit()
    assert place.shown(view) == {("newer", 2)}
    write(sink, view, 1, {(1,): '["old"]'})
    assert ("old", 1) in place.shown(view)


def test_a_view_that_lost_one_of_its_tables_is_missing_and_begins_empty(place: Place) -> None:
    view = list_view()
    sink = place.sink(view)
    write(sink, view, 5, {(1,): '["a"]'})
    for table in ("user_tag", "user_tag__version"):
        assert missing(sink) == frozenset()
        place.ask(f"DROP TABLE {place.database}.{table}")
        assert missing(sink) == {view.id}
        assert sink.prepare() == {}
        assert place.shown(view) == set()
        write(sink, view, 5, {(1,): '["a"]'})
        assert place.shown(view) == {("a", 1)}


def test_a_wider_type_keeps_the_rows_and_a_narrower_one_begins_empty(place: Place) -> None:
    view = list_view("VARCHAR(10)")
    write(place.sink(view), view, 5, {(1,): '["0123456789"]'})
    wider = list_view("VARCHAR(20)")
    place.sink(wider)
    assert place.shown(wider) == {("0123456789", 1)}
    narrower = list_view("VARCHAR(5)")
    place.sink(narrower)
    assert place.shown(narrower) == set()


def test_a_key_that_becomes_wider_makes_both_tables_wider_and_keeps_their_rows(place: Place) -> None:
    narrow = replace(ID, declared="int unsigned")
    view = list_view(key=(narrow,))
    sink = place.sink(view)
    write(sink, view, 5, {(1,): '["a"]'})
    wide = list_view()
    assert sink.fit(wide)
    write(sink, wide, 6, {(1 << 40,): '["b"]'})
    write(sink, wide, 5, {(1,): '["not newer"]'})
    assert place.shown(wide) == {("a", 1), ("b", 1 << 40)}


def test_a_table_of_somebody_elses_is_left_alone(place: Place) -> None:
    place.sink(list_view(name="other"))
    place.ask(f"CREATE TABLE {place.database}.user_tag__version (id INT)")
    view = list_view()
    sink = MySQLSink(lambda: open_session(place.address, role="store"), place.database, [view])
    assert "was not made by viewtail" in sink.prepare()[view.id]
    sink.close()


def test_a_sweep_and_a_truncate_find_the_entities_that_show_a_value(place: Place) -> None:
    view = list_view()
    sink = place.sink(view)
    write(sink, view, 5, {(1,): '["a", "b"]', (2,): "[]", (3,): '["c"]'})
    write(sink, view, 9, {(4,): '["d"]'})
    assert [pair for page in sink.keys_below(view.id, 9) for pair in page] == [((1,), 5), ((3,), 5)]


def test_two_views_that_want_one_table_are_refused() -> None:
    first, second = list_view(), list_view(name="user_tag__version")
    problems = list(IndexTablesStore().problems_between([first, second]))
    assert [view for view, _ in problems] == [second]


def test_a_row_is_locked_until_the_commit_so_two_writers_of_an_entity_do_not_mix_their_values(place: Place) -> None:
    view = list_view()
    one, other = place.sink(view), place.sink(view)
    write(one, view, 5, {(1,): '["a"]'})
    one.write([ViewWrites(view.id, {(1,): Write(7, ('["new", "both"]',))})], None)
    later = threading.Thread(target=lambda: write(other, view, 6, {(1,): '["older", "both"]'}))
    later.start()
    while not place.ask("SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"):
        later.join(0.2)  # the server shows waits as of its last look, and looks only if nobody asked for a moment
        assert later.is_alive()
    one.connection.commit()
    later.join()
    assert place.shown(view) == {("both", 1), ("new", 1)}


def leftover(place: Place, name: str, *others: str) -> IndexTableLeftover:
    retired = Retired(name=name, places=[], others={f"mysql:{other}": [] for other in others}, read_by=[])
    return IndexTableLeftover(lambda: open_session(place.address, role="store"), place.database, retired)


def test_a_forgotten_list_view_goes_with_its_second_table(place: Place) -> None:
    view = list_view()
    write(place.sink(view), view, 5, {(1,): '["a", "b"]', (2,): None})
    left = leftover(place, "user_tag")
    assert [line.partition(": ")[2] for line in left.look().dropped] == ["2 rows, tombstones too"] * 2
    left.drop(lambda _: None)
    assert left.look().count == 0 and place.ask(f"SHOW TABLES FROM {place.database}") == []
    left.close()


def test_a_second_table_that_is_another_views_stays(place: Place) -> None:
    table = f"{place.database}.user_tag__version"
    place.sink(
        replace(list_view(), view=IndexTable("user_tag__version", Entity("shop.user"), value="name"), values=(NAME,))
    )
    for left in (leftover(place, "user_tag", "user_tag__version"), leftover(place, "user_tag")):
        left.drop(lambda _: None)
        left.close()
    assert place.ask(f"SELECT COUNT(*) FROM {table}") == [(0,)]


def test_an_erased_entity_is_looked_for_in_both_tables(place: Place) -> None:
    view = list_view()
    sink = place.sink(view)
    write(sink, view, 5, {(1,): '["a", "b"]'})
    traces = IndexTableTraces(open_session(place.address, role="store"), place.database, view)
    assert [(one.holds, one.version) for one in traces.of((1,))] == [(Holds.VALUES, 5), (Holds.VALUES, 5)]
    sink.write([ViewWrites(view.id, {(1,): Write(6, None)})], None)
    sink.connection.commit()
    assert [one.holds for one in traces.of((1,))] == [Holds.TOMBSTONE, Holds.NOTHING]
    assert [one.holds for one in traces.of((2,))] == [Holds.NOTHING, Holds.NOTHING]
    traces.close()


PLAIN = IndexTable("user_tag", Entity("shop.user"), value="name")


def swapping(place: Place) -> TableSwapping:
    # The table `view`, which it asks when the copy was filled.
    place.ask(f"CREATE TABLE IF NOT EXISTS {place.database}.view (name VARCHAR(50), filled_at DATETIME(6))")
    return TableSwapping(lambda: open_session(place.address, role="store"), place.database)


def tables(place: Place) -> set[str]:
    return {name for (name,) in place.ask(f"SHOW TABLES FROM {place.database}")} - {"view"}


@pytest.mark.parametrize(("had_list", "has_list"), [(True, True), (False, True), (True, False)])
def test_a_copy_is_swapped_and_dropped_with_all_tables_that_it_has(
    place: Place, had_list: bool, has_list: bool
) -> None:
    lists = list_view()
    plain = replace(lists, view=PLAIN, values=(NAME,))
    live, declared = lists if had_list else plain, lists if has_list else plain
    beside = replace(declared, copy=2, is_beside=True)
    place.sink(live)
    place.sink(beside)
    before = tables(place)
    swap = swapping(place)
    for _ in range(2):  # given again, it changes nothing
        swap.swap(declared, beside, 0)
    second = {"user_tag__version", "user_tag__version__viewtail_1"}
    there = {"user_tag", "user_tag__viewtail_1"} | {
        name for name, has in zip(sorted(second), (has_list, had_list), strict=True) if has
    }
    assert tables(place) == there and len(there) == len(before)
    assert missing(place.sink(declared)) == frozenset(), "it is of the new shape"
    for _ in range(2):
        swap.drop(replace(declared, copy=2), replace(declared, copy=1, is_beside=True))
    assert tables(place) == there - {"user_tag__viewtail_1", "user_tag__version__viewtail_1"}
    swap.close()


def test_the_tables_of_a_view_whose_name_is_that_of_a_second_table_stay(place: Place) -> None:
    """Its copies too: nothing of the name alone tells them from a second table's."""
    plain = replace(list_view(), view=PLAIN, values=(NAME,))
    other = replace(plain, view=IndexTable("user_tag__version", Entity("shop.user"), value="name"))
    for view in (plain, other):
        place.sink(view)
        place.sink(replace(view, copy=2, is_beside=True))
    swap = swapping(place)
    others = {"user_tag__version", "user_tag__version__viewtail_2"}
    swap.swap(plain, replace(plain, copy=2, is_beside=True), 0)
    assert tables(place) == {"user_tag", "user_tag__viewtail_1", *others}
    swap.drop(replace(plain, copy=2), replace(plain, copy=1, is_beside=True))
    assert tables(place) == {"user_tag", *others}
    lists = replace(list_view(), copy=3, is_beside=True)
    place.sink(lists)
    with pytest.raises(StoreError, match="user_tag__version` is in the way"):
        swap.swap(list_view(), lists, 0)
    assert tables(place) == {"user_tag", "user_tag__viewtail_3", "user_tag__version__viewtail_3", *others}
    swap.close()
