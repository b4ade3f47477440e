"""Index tables on a real server: their shape, what they refuse, and how they are read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pymysql
import pytest

from ingest.binlog.coordinates import BinlogPosition
from ingest.canonical.rows import Fetch
from offsets import schema
from offsets.mysql import MySQLOffsets
from projectors.stores.index_tables.offsets import SharedOffsets
from projectors.stores.index_tables.reading import IndexTableReader
from projectors.stores.index_tables.single_rows import MOST_VIEWS
from projectors.stores.index_tables.sink import MySQLSink
from projectors.stores.index_tables.unchanged import ROWS_A_LOOK, Unchanged
from projectors.stores.index_tables.upserts import BLOCKS
from projectors.stores.index_tables.views import IndexTable
from projectors.views import BoundView, Entity
from stack.server import Server
from tests.support.missing import missing
from viewtail.changes.errors import FencedError, StoreError, StoreUnavailableError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key, Parked, ViewWrites, Write
from viewtail.servers.literals import equals, selected
from viewtail.servers.sessions import MySQLAddress, open_session, quote

_tokens = itertools.count(1)


def column(name: str, kind: Kind, declared: str, **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=True, **more)


ID = Column(name="id", kind=Kind.INTEGER, declared="bigint", is_nullable=False)
EMAIL = column("email", Kind.TEXT, "varchar(64)", charset="latin1", length=64)
AGE = column("age", Kind.INTEGER, "tinyint unsigned", is_unsigned=True)


def index_table(name: str, values: Sequence[Column], key: Sequence[Column] = (ID,)) -> BoundView:
    table = Table(schema="shop", name="user", columns=(*key, *values), primary_key=tuple(one.name for one in key))
    view = IndexTable(name, Entity("shop.user"), value=[one.name for one in values])
    needed = tuple(one.name for one in table.columns)
    return BoundView(view=view, table=table, key=tuple(key), values=tuple(values), needed=needed, fingerprint="0" * 64)


def get(
    connection: pymysql.Connection[Any], database: str, view: BoundView, key: Key
) -> tuple[int, tuple[Any, ...]] | None:
    """(version, values) of a key, as they stand in the index table."""
    values = ", ".join(map(selected, view.values))
    with connection.cursor() as cursor:
        where = equals(view.key, key)
        cursor.execute(f"SELECT version, {values} FROM {quote(database, view.view.name)} WHERE {where}")
        row = cursor.fetchone()
    return None if row is None else (row[0], tuple(row[1:]))


def lookup(
    connection: pymysql.Connection[Any], database: str, view: BoundView, values: Sequence[Any], limit: int = 1_000
) -> list[Key]:
    return IndexTableReader(connection, database, view).keys_with(values, limit)


class Place:
    """A database of the test's own, looked at with plain SQL."""

    def __init__(self, server: Server) -> None:
        self.address = MySQLAddress(host=server.host, port=server.port, user="root", io_timeout_s=20)
        self.database = f"index_{next(_tokens)}"
        self._sinks: list[MySQLSink] = []
        self._plain = pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self._plain.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def sink(self, *views: BoundView) -> MySQLSink:
        sink = MySQLSink(lambda: open_session(self.address, role="store"), self.database, views)
        self._sinks.append(sink)
        return sink

    def prepared(self, *views: BoundView) -> MySQLSink:
        sink = self.sink(*views)
        sink.prepare()
        return sink

    def shared_offsets(self, sink: MySQLSink) -> SharedOffsets:
        """Offsets of a pipeline that was taken, in the transactions of the sink's rows."""
        schema.create(self._plain, self.address, self.database, schema.STORE_TABLES, "store")
        offsets = sink.offsets("mysql", BinlogPosition.from_text)
        offsets.take()
        return offsets

    def columns(self, table: str) -> dict[str, str]:
        return dict(
            self.ask(
                "SELECT column_name, column_type FROM information_schema.columns "
                f"WHERE table_schema = '{self.database}' AND table_name = '{table}'"
            )
        )

    def index(self, table: str) -> list[str]:
        rows = self.ask(f"SHOW INDEX FROM {self.database}.{table} WHERE Key_name = 'value_idx'")
        return [row[4] for row in rows]

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()  # an open transaction of a failed test would hold up the DROP
        self.ask(f"DROP DATABASE IF EXISTS {self.database}")
        self._plain.close()


@pytest.fixture
def place(mysql_server: Server) -> Iterator[Place]:
    found = Place(mysql_server)
    yield found
    found.close()


def position(number: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000001", end=number * 16, start=number * 16 - 16)


def write(sink: MySQLSink, view: BoundView, writes: dict[Key, Write]) -> list[Any]:
    parked = sink.write([ViewWrites(view.id, writes)], None)
    sink.connection.commit()
    return parked


EVERY_TYPE: list[tuple[Column, list[Any]]] = [
    (column("tiny", Kind.INTEGER, "tinyint"), [-128, 127]),
    (column("big", Kind.INTEGER, "bigint unsigned", is_unsigned=True), [0, (1 << 64) - 1]),
    (column("year_of", Kind.INTEGER, "year"), [0, 1901, 2155]),
    (column("bits", Kind.INTEGER, "bit(64)", length=64), [0, 5, (1 << 64) - 1]),
    (
        column("price", Kind.DECIMAL, "decimal(30,10)", precision=30, scale=10),
        [Decimal("-12345678901234567890.0123456789")],
    ),
    (
        column("small", Kind.FLOAT, "float"),
        [1.100000023841858, -0.0, 3.4028234663852886e38, 1.401298464324817e-45],
    ),
    (column("wide", Kind.DOUBLE, "double"), [0.1, -0.0, 1e-300, 1.7976931348623157e308, 12345678.9]),
    (column("word", Kind.TEXT, "varchar(20)", charset="utf16", length=20), ["", "it's \\ é😀\0", " blanks "]),
    (column("fixed", Kind.TEXT, "char(5)", charset="latin1", length=5), ["", "abc"]),
    (column("label", Kind.ENUM, "enum('it''s','B')", charset="utf8mb4", labels=("it's", "B")), ["", "it's"]),
    (column("labels", Kind.SET, "set('x','y')", charset="utf8mb4", labels=("x", "y")), ["", "x,y"]),
    (column("raw", Kind.BYTES, "varbinary(9)", length=9), [b"", b"\0\xff'\\\x80", b"\xf0\x9f\x98\x80"]),
    (column("fixed_raw", Kind.BYTES, "binary(4)", length=4), [b"a\0\0\0"]),
    (column("day", Kind.DATE, "date"), ["0000-00-00", "2024-00-31", "2024-02-31", "9999-12-31"]),
    (column("clock", Kind.TIME, "time(6)", scale=6), ["-838:59:59.000000", "00:00:00.000001"]),
    (
        column("moment", Kind.DATETIME, "datetime(3)", scale=3),
        ["0000-00-00 00:00:00.000", "2024-02-29 23:59:59.999"],
    ),
    (
        column("instant", Kind.TIMESTAMP, "timestamp(6)", scale=6),
        ["0000-00-00 00:00:00.000000", "2024-03-31 01:30:00.000001"],
    ),
]


@pytest.mark.parametrize(("typed", "values"), EVERY_TYPE, ids=lambda given: getattr(given, "name", ""))
def test_a_value_of_every_type_comes_back_as_it_was_and_is_found(
    place: Place, typed: Column, values: list[Any]
) -> None:
    view = index_table("of_type", [typed])
    sink = place.prepared(view)
    assert write(sink, view, {(at,): Write(7, (value,)) for at, value in enumerate(values)}) == []
    for at, value in enumerate(values):
        found = get(sink.connection, place.database, view, (at,))
        assert found is not None
        assert repr(found) == repr((7, (value,)))
        assert lookup(sink.connection, place.database, view, (value,)) == [(at,)]
    sink.close()


@pytest.mark.parametrize(("typed", "values"), EVERY_TYPE, ids=lambda given: getattr(given, "name", ""))
def test_a_key_of_every_type_is_paged_and_read_back(place: Place, typed: Column, values: list[Any]) -> None:
    key = Column(**{name: getattr(typed, name) for name in typed.__slots__} | {"is_nullable": False})
    view = index_table("by_type", [EMAIL], key=[key, ID])
    sink = place.prepared(view)
    write(sink, view, {(value, 1): Write(7, ("e",)) for value in values})
    pages = list(sink.keys_below(view.id, 8))
    assert sorted(map(repr, pages[0])) == sorted(repr(((value, 1), 7)) for value in values)
    sink.close()


@pytest.mark.parametrize("rows", [0, 2, 3, 4, 6, 7])
def test_a_sweep_of_several_pages_sees_each_older_row_once(
    place: Place, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projectors.stores.index_tables.reading.ROWS_A_PAGE", 3)
    view = index_table("paged", [EMAIL])
    sink = place.prepared(view)
    write(sink, view, {(at,): Write(5 + at % 2, ("e",)) for at in range(rows)})
    pages = list(sink.keys_below(view.id, 6))
    assert [pair for page in pages for pair in page] == [((at,), 5) for at in range(0, rows, 2)]
    assert len(list(sink.keys_below(view.id, 5))) == len(pages) == rows // 3 + 1
    sink.close()


def test_the_table_says_what_it_is(place: Place) -> None:
    view = index_table("index_user_email", [EMAIL])
    place.prepared(view).close()
    ((comment, engine),) = place.ask(
        f"SELECT table_comment, engine FROM information_schema.tables WHERE table_schema = '{place.database}'"
    )
    assert comment.startswith("viewtail index table of shop.user")
    assert engine == "InnoDB"
    rows = place.ask(
        "SELECT column_name, column_comment, is_nullable, collation_name FROM information_schema.columns "
        f"WHERE table_schema = '{place.database}' ORDER BY ordinal_position"
    )
    assert [(name, nullable, collation) for name, _, nullable, collation in rows] == [
        ("id", "NO", None),
        ("email", "YES", "utf8mb4_0900_bin"),
        ("version", "NO", None),
    ]
    assert all(comment for _, comment, _, _ in rows)
    assert place.index("index_user_email") == ["email", "id"]


def test_a_lookup_is_answered_by_the_index_alone(place: Place) -> None:
    view = index_table("covering", [EMAIL, AGE])
    sink = place.prepared(view)
    write(sink, view, {(n,): Write(5, (f"e{n % 10}", n % 3)) for n in range(500)})
    ((*_, extra),) = place.ask(f"EXPLAIN SELECT id FROM {place.database}.covering WHERE email = 'e1' ORDER BY id")
    assert "Using index" in extra or "Covering index lookup" in extra  # as the server prints plans by default
    assert lookup(sink.connection, place.database, view, ("e1",), limit=3) == [(1,), (11,), (21,)]
    assert lookup(sink.connection, place.database, view, ("e1", 1)) == [(n,) for n in range(1, 500, 30)]
    assert lookup(sink.connection, place.database, view, ("E1",)) == []
    sink.close()


def test_a_reader_is_told_what_is_wrong_with_the_index_table(place: Place) -> None:
    view = index_table("told", [EMAIL])
    reader = IndexTableReader(open_session(place.address, role="store"), place.database, view)
    looks = (lambda: reader.held([(1,)]), lambda: next(reader.pages()), lambda: reader.keys_with(("e1",), 3))
    for look in looks:
        with pytest.raises(StoreError, match=f"view {view.id} has no table: it is new"):
            look()
    place.prepared(view)
    place.ask(f"ALTER TABLE {place.database}.{view.view.name} DROP COLUMN version")
    with pytest.raises(StoreUnavailableError, match=r"cannot be read now \(MySQL error 1054\); try again"):
        reader.held([(1,)])


def test_a_tombstone_is_found_by_no_lookup(place: Place) -> None:
    view = index_table("tombs", [EMAIL, AGE])
    sink = place.prepared(view)
    write(sink, view, {(1,): Write(5, ("e", 1)), (2,): Write(5, ("e", None))})
    write(sink, view, {(1,): Write(6, None)})
    assert lookup(sink.connection, place.database, view, ("e",)) == [(2,)]
    assert lookup(sink.connection, place.database, view, ("e", None)) == [(2,)]
    assert lookup(sink.connection, place.database, view, (None, None)) == []
    sink.close()


LONG = column("bio", Kind.TEXT, "varchar(800)", charset="latin1", length=800)


@pytest.mark.parametrize(
    ("view", "said"),
    [
        (
            index_table("v", [column("bio", Kind.TEXT, "text", charset="utf8mb4", length=65535)]),
            ["bio", "TEXT", "ALTER TABLE"],
        ),
        (index_table("v", [column("photo", Kind.BYTES, "mediumblob")]), ["photo", "MEDIUMBLOB", "generated"]),
        (index_table("v", [column("extra", Kind.JSON, "json")]), ["extra", "JSON"]),
        (index_table("v", [column("place", Kind.GEOMETRY, "point")]), ["place", "POINT"]),
        (index_table("v", [LONG]), ["bio", "3072", "3208", "shorten"]),
        (index_table("v", [AGE], key=[LONG]), ["key column bio", "3072"]),
        (index_table("v", [column("Version", Kind.INTEGER, "int")]), ["Version", "rename"]),
        (index_table("v", [ID]), ["id", "key column"]),
        (index_table("new", [EMAIL]), ["new", "another"]),
        (index_table("dead_letter", [EMAIL]), ["dead_letter", "another"]),
        (index_table("x" * 65, [EMAIL]), ["64"]),
    ],
)
def test_a_declaration_that_cannot_be_a_table_is_refused_by_name(
    place: Place, view: BoundView, said: list[str]
) -> None:
    sink = place.sink(view)
    assert missing(sink) == frozenset()
    (reason,) = sink.prepare().values()
    for word in (view.view.name, *said):
        assert word in reason
    assert place.ask(f"SHOW DATABASES LIKE '{place.database}'") == []


def test_an_index_of_exactly_3072_bytes_is_accepted(place: Place) -> None:
    view = index_table("brim", [column("bio", Kind.TEXT, "varchar(766)", charset="latin1", length=766)])
    sink = place.prepared(view)
    assert write(sink, view, {(1,): Write(5, ("😀" * 766,))}) == []
    assert lookup(sink.connection, place.database, view, ("😀" * 766,)) == [(1,)]
    sink.close()


@pytest.mark.parametrize("name", ["odd `name`", "select", "tab\tle", "Größe", "it's"])
def test_identifiers_are_quoted(place: Place, name: str) -> None:
    odd = column(f"{name} value", Kind.TEXT, "varchar(10)", charset="utf8mb4", length=10)
    key = Column(name=f"{name} id", kind=Kind.INTEGER, declared="int", is_nullable=False)
    view = index_table(name, [odd], key=[key])
    sink = place.prepared(view)
    sink.prepare()
    write(sink, view, {(1,): Write(5, ("v",))})
    assert lookup(sink.connection, place.database, view, ("v",)) == [(1,)]
    assert list(sink.keys_below(view.id, 6)) == [[((1,), 5)]]
    sink.close()


def test_the_tables_of_many_views_are_looked_at_together(place: Place) -> None:
    def asked(*views: BoundView) -> int:
        sink = place.prepared(*views)
        before = _selects(sink)
        assert missing(sink) == frozenset()
        after = _selects(sink)
        sink.close()
        return after - before

    views = [index_table(f"many_{number}", [EMAIL]) for number in range(30)]
    assert asked(*views) == asked(views[0])


def _selects(sink: MySQLSink) -> int:
    with sink.connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS WHERE Variable_name = 'Com_select'")
        ((_, count),) = cursor.fetchall()
    return int(count)


def test_views_whose_names_differ_in_case_alone_have_tables_of_their_own(place: Place) -> None:
    upper, lower = index_table("By_Email", [EMAIL]), index_table("by_email", [EMAIL, AGE])
    place.prepared(lower).close()
    sink = place.sink(upper, lower)
    assert missing(sink) == {upper.id}
    assert sink.prepare() == {}
    assert missing(sink) == frozenset()
    assert set(place.columns("By_Email")) == {"id", "email", "version"}
    assert set(place.columns("by_email")) == {"id", "email", "age", "version"}
    sink.close()


def test_somebody_elses_table_is_left_alone(place: Place) -> None:
    place.ask(f"CREATE DATABASE {place.database}")
    place.ask(f"CREATE TABLE {place.database}.index_user_email (id BIGINT PRIMARY KEY, email TEXT) COMMENT 'ours'")
    place.ask(f"INSERT INTO {place.database}.index_user_email VALUES (1, 'precious')")
    sink = place.sink(index_table("index_user_email", [EMAIL]), index_table("index_user_note", [EMAIL]))
    refused = sink.prepare()
    assert list(refused) == ["mysql:index_user_email"], "the other view has its table"
    assert re.search(r"index_user_email.*not made by viewtail.*Rename", refused["mysql:index_user_email"])
    assert place.ask(f"SELECT * FROM {place.database}.index_user_email") == [(1, "precious")]


def test_preparing_again_changes_nothing(place: Place) -> None:
    zero = column("zero", Kind.INTEGER, "int(8) unsigned zerofill", is_unsigned=True)
    old = column("old", Kind.INTEGER, "int(11)")  # as a server before 8.0.19 prints it
    view = index_table("steady", [EMAIL, zero, old, EVERY_TYPE[9][0]])
    sink = place.prepared(view)
    ((before,),) = (place.ask("SHOW GLOBAL STATUS WHERE Variable_name = 'Com_alter_table'"),)
    sink.prepare()
    place.prepared(view).close()
    assert place.ask("SHOW GLOBAL STATUS WHERE Variable_name = 'Com_alter_table'") == [before]
    sink.close()


def test_a_view_with_other_values_gets_a_table_of_that_shape(place: Place) -> None:
    before = index_table("shifting", [EMAIL])
    sink = place.prepared(before)
    write(sink, before, {(1,): Write(5, ("kept",)), (2,): Write(9, None)})
    sink.close()
    after = index_table("shifting", [AGE, EMAIL])
    sink = place.prepared(after)
    assert place.columns("shifting") == {
        "id": "bigint",
        "email": "varchar(64)",
        "age": "tinyint unsigned",
        "version": "bigint unsigned",
    }
    assert place.index("shifting") == ["age", "email", "id"]
    assert get(sink.connection, place.database, after, (1,)) == (5, (None, "kept"))
    write(sink, after, {(1,): Write(6, (33, "kept")), (2,): Write(8, (1, "deleted"))})
    assert get(sink.connection, place.database, after, (2,)) == (9, (None, None))
    sink.close()
    only = index_table("shifting", [AGE])
    sink = place.prepared(only)
    assert place.columns("shifting") == {
        "id": "bigint",
        "age": "tinyint unsigned",
        "version": "bigint unsigned",
    }
    assert place.index("shifting") == ["age", "id"]
    assert lookup(sink.connection, place.database, only, (33,)) == [(1,)]
    sink.close()


def test_a_widened_column_keeps_its_values_and_a_narrowed_one_says_what_to_do(place: Place) -> None:
    view = index_table("stretch", [EMAIL])
    sink = place.prepared(view)
    write(sink, view, {(1,): Write(5, ("x" * 60,))})
    wider = index_table("stretch", [column("email", Kind.TEXT, "varchar(100)", charset="utf8mb4", length=100)])
    sink = place.prepared(wider)
    assert lookup(sink.connection, place.database, wider, ("x" * 60,)) == [(1,)]
    narrower = index_table("stretch", [column("email", Kind.TEXT, "varchar(10)", charset="utf8mb4", length=10)])
    with pytest.raises(StoreError, match=r"DROP TABLE.*viewtail replay mysql:stretch"):
        sink.fit(narrower)  # while the pipeline runs nothing would fill it again
    assert place.columns("stretch")["email"] == "varchar(100)"
    sink.close()
    again = place.sink(narrower)
    assert missing(again) == {narrower.id}, "so that it is filled again"
    assert again.prepare() == {}
    assert place.columns("stretch")["email"] == "varchar(10)"
    assert lookup(again.connection, place.database, narrower, ("x" * 10,)) == [(1,)], "cut until it is filled"
    again.close()


def test_a_table_under_another_key_or_of_another_entity_starts_empty(place: Place) -> None:
    view = index_table("rekeyed", [EMAIL])
    sink = place.prepared(view)
    write(sink, view, {(1,): Write(5, ("e",))})
    code = Column(name="code", kind=Kind.TEXT, declared="varchar(9)", is_nullable=False, charset="ascii", length=9)
    sink = place.prepared(index_table("rekeyed", [EMAIL], key=[code]))
    assert set(place.columns("rekeyed")) == {"code", "email", "version"}
    assert place.ask(f"SELECT COUNT(*) FROM {place.database}.rekeyed") == [(0,)]
    sink.close()


def test_of_many_rows_only_those_that_cannot_fit_are_parked(place: Place) -> None:
    price = column("price", Kind.DECIMAL, "decimal(4,2)", precision=4, scale=2)
    day = column("day", Kind.DATE, "date")
    view = index_table("mixed", [EMAIL, price, day])
    sink = place.prepared(view)
    good = ("e", Decimal("1.00"), "2024-01-01")
    writes: dict[Key, Write] = {(number,): Write(5, good) for number in range(1_700)}
    writes[3,] = Write(5, ("secret" * 20, *good[1:]))
    writes[499,] = Write(5, ("e", Decimal("98765.4"), "2024-01-01"))
    writes[500,] = Write(5, ("e", Decimal("1.00"), "2024-13-98"))
    writes[1_699,] = Write(5, ("\ud800", *good[1:]))
    parked = {one.key: one.reason for one in write(sink, view, writes)}
    assert set(parked) == {"3", "499", "500", "1699"}
    assert "1406" in parked["3"] and "column email" in parked["3"]
    assert "1264" in parked["499"] and "column price" in parked["499"]
    assert "1292" in parked["500"] and "column day" in parked["500"]
    assert not any(value in reason for reason in parked.values() for value in ("secret", "98765", "13-98"))
    assert place.ask(f"SELECT COUNT(*), COUNT(email) FROM {place.database}.mixed") == [(1_696, 1_696)]
    sink.close()


PRICE = column("price", Kind.DECIMAL, "decimal(4,2)", precision=4, scale=2)
GOOD = ("e", Decimal("1.00"))


@pytest.mark.parametrize("beside", [0, BLOCKS[-2] - 1, BLOCKS[-2], BLOCKS[0]], ids="with {} others".format)
@pytest.mark.parametrize(
    ("key", "values", "said"),
    [
        (7, ("secret" * 20, Decimal("1.00")), ["1406", "column email", "longer than the column"]),
        (7, ("e", Decimal("98765.4")), ["1264", "column price", "outside the column's range"]),
        (7, ("secret\ud800", Decimal("1.00")), ["lone surrogate"]),
        (1 << 63, GOOD, ["1264", "column id", "outside the column's range"]),
    ],
    ids=["too long", "too large", "no character", "key too large"],
)
def test_a_row_that_cannot_fit_is_parked_with_its_reason_however_few_come_with_it(
    place: Place, key: int, values: tuple[Any, ...], said: list[str], beside: int
) -> None:
    view = index_table("few", [EMAIL, PRICE])
    sink = place.prepared(view)
    writes: dict[Key, Write] = {(number,): Write(5, GOOD) for number in range(-beside, 0)}
    writes[key,] = Write(5, values)
    (parked,) = write(sink, view, writes)
    assert (parked.view, parked.key, parked.version) == (view.id, str(key), 5)
    assert all(words in parked.reason for words in said)
    assert not any(value in parked.reason for value in ("secret", "98765"))
    assert place.ask(f"SELECT COUNT(*), COUNT(email) FROM {place.database}.few") == [(beside, beside)]
    # What was refused does not stay in the way of what comes next.
    assert write(sink, view, {(key & 7,): Write(6, GOOD)}) == []
    sink.close()


# An index has 16 columns at most, so two tables.
@pytest.mark.parametrize("types", [EVERY_TYPE[:9], EVERY_TYPE[9:]], ids=["numbers", "texts and times"])
def test_rows_that_come_one_by_one_make_the_same_table_as_rows_that_come_together(
    place: Place, types: list[tuple[Column, list[Any]]]
) -> None:
    columns = [typed for typed, _ in types]
    names = ("together", "alone", "by_three", "by_itself")
    together, alone, by_three, by_itself = views = [index_table(name, columns) for name in names]
    sink = place.prepared(*views)
    offsets = place.shared_offsets(sink)
    numbers = itertools.count(1)
    chances = [[None, *values] for _, values in types]
    rows = {
        (number,): tuple(chances[at][(number + at) % len(chances[at])] for at in range(len(types)))
        for number in range(-300, 300)
    }
    first: dict[Key, Write] = {key: Write(5, values) for key, values in rows.items()}
    # Over those: newer ones, older ones, tombstones.
    second: dict[Key, Write] = {
        key: Write(4 + key[0] % 3, None if key[0] % 4 == 0 else rows[(key[0] + 7) % 300,]) for key in rows
    }
    for writes in (first, second):
        assert write(sink, together, writes) == []
        for view, step in ((alone, 1), (by_three, 3)):  # together: as blocks of every size
            items = list(writes.items())
            for start in range(0, len(items), step):
                assert sink.write([ViewWrites(view.id, dict(items[start : start + step]))], None) == []
            sink.connection.commit()
        for key, one in writes.items():
            upto = position(next(numbers))
            assert sink.write([ViewWrites(by_itself.id, {key: one})], upto) == []
            assert place.ask(f"SELECT COUNT(*) FROM {place.database}.by_itself WHERE id = {key[0]}") == [(1,)], (
                "it is not committed by itself"
            )
            offsets.save(upto)
    tables = ", ".join(f"{place.database}.{view.view.name}" for view in views)
    sums = {number for _, number in place.ask(f"CHECKSUM TABLE {tables}")}
    assert len(sums) == 1, "the tables differ in some byte"
    ((count, newer, kept),) = place.ask(
        f"SELECT COUNT(*), SUM(version = 6), SUM(version = 5) FROM {place.database}.alone"
    )
    assert (count, newer, kept) == (600, 200, 400)
    sink.close()


def test_statements_stay_below_the_servers_packet_limit(mysql_server: Server, place: Place) -> None:
    raw = column("raw", Kind.BYTES, "varbinary(3000)", length=3000)
    view = index_table("packets", [raw])
    place.prepared(view).close()
    ((usual,),) = place.ask("SELECT @@GLOBAL.max_allowed_packet")
    place.ask("SET GLOBAL max_allowed_packet = 2048")
    try:
        sink = place.prepared(view)
        writes: dict[Key, Write] = {(number,): Write(5, (bytes(100),)) for number in range(600)}
        writes[77,] = Write(5, (bytes(2_900),))
        (parked,) = write(sink, view, writes)
        sink.close()
    finally:
        place.ask(f"SET GLOBAL max_allowed_packet = {usual}")
    assert parked.key == "77"
    assert "max_allowed_packet" in parked.reason
    assert place.ask(f"SELECT COUNT(*) FROM {place.database}.packets") == [(599,)]


# -- rows that come alone, and their offset ----------------------------------------------------------------------


def alone(view: BoundView, key: int, version: int, email: str | None) -> list[ViewWrites]:
    return [ViewWrites(view.id, {(key,): Write(version, None if email is None else (email,))})]


def test_the_offset_of_rows_that_come_alone_is_late_until_it_is_settled(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projectors.stores.index_tables.offsets.LATE_S", 60.0)
    view = index_table("lone", [EMAIL])
    sink = place.prepared(view)
    offsets = place.shared_offsets(sink)
    offsets.save(position(1))
    for number in (2, 3):
        upto = position(number)
        assert sink.write(alone(view, number, number, "e"), upto) == []
        offsets.save(upto)
    assert place.ask(f"SELECT COUNT(*) FROM {place.database}.lone") == [(2,)]
    assert offsets.saved() == position(1)
    offsets.settle()
    assert offsets.saved() == position(3)
    # Two rows are no lone row: their offset comes with them.
    both = [ViewWrites(view.id, {(8,): Write(4, ("e",)), (9,): Write(4, ("e",))})]
    upto = position(4)
    assert sink.write(both, upto) == []
    assert place.ask(f"SELECT COUNT(*) FROM {place.database}.lone") == [(2,)], "rows and offset are one transaction"
    offsets.save(upto)
    assert offsets.saved() == position(4)
    sink.close()


def test_a_row_that_comes_alone_is_written_to_all_its_views_in_one_transaction(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("projectors.stores.index_tables.offsets.LATE_S", 60.0)
    views = [index_table(f"lone_of_{number}", [EMAIL]) for number in range(MOST_VIEWS + 1)]
    sink = place.prepared(*views)
    offsets = place.shared_offsets(sink)
    offsets.save(position(1))

    def in_each(of: Sequence[BoundView], number: int, email: str) -> list[Parked]:
        upto = position(number)
        letters = sink.write([one for view in of for one in alone(view, 1, number, email)], upto)
        offsets.save(upto)
        return letters

    def shown(view: BoundView) -> list[tuple[Any, ...]]:
        return place.ask(f"SELECT email, version FROM {place.database}.{view.view.name}")

    assert in_each(views[:-1], 2, "ahead") == []
    assert [shown(view) for view in views] == [[("ahead", 2)]] * MOST_VIEWS + [[]]
    assert offsets.saved() == position(1), "the offset comes later"
    assert in_each(views, 3, "too many") == []
    assert [shown(view) for view in views] == [[("too many", 3)]] * len(views) and offsets.saved() == position(3)
    # One view takes the row, another one refuses it: the usual way says so, and writes the rest.
    place.ask(f"ALTER TABLE {place.database}.lone_of_1 ADD CONSTRAINT short CHECK (CHAR_LENGTH(email) < 9)")
    assert [letter.view for letter in in_each(views[:2], 4, "not short")] == [views[1].id]
    assert [shown(view) for view in views[:2]] == [[("not short", 4)], [("too many", 3)]]
    assert offsets.saved() == position(4)
    newer = place.prepared(*views)
    place.shared_offsets(newer)
    with pytest.raises(FencedError):
        in_each(views[:2], 5, "stale")
    assert [shown(view) for view in views[:2]] == [[("not short", 4)], [("too many", 3)]]
    sink.close()
    newer.close()


def test_a_stale_owner_writes_no_lone_row_and_is_told(place: Place) -> None:
    view = index_table("lone_stale", [EMAIL])
    sink = place.prepared(view)
    offsets = place.shared_offsets(sink)
    assert sink.write(alone(view, 1, 1, "mine"), position(1)) == []
    newer = place.prepared(view)
    place.shared_offsets(newer)
    upto = position(2)
    assert sink.write(alone(view, 1, 2, "stale"), upto) == []
    with pytest.raises(FencedError):
        offsets.save(upto)
    assert place.ask(f"SELECT email, version FROM {place.database}.lone_stale") == [("mine", 1)]
    sink.close()


def test_a_lone_row_is_guarded_and_a_refused_one_parked(place: Place) -> None:
    view = index_table("lone_guarded", [EMAIL])
    sink = place.prepared(view)
    offsets = place.shared_offsets(sink)
    letters = []
    for number, (version, email) in enumerate([(5, "new"), (4, "old"), (6, "x" * 65), (6, "\ud800"), (7, None)], 1):
        letters += sink.write(alone(view, 1, version, email), upto := position(number))
        offsets.save(upto)
        if number == 4:
            assert place.ask(f"SELECT email, version FROM {place.database}.lone_guarded") == [("new", 5)]
    assert [letter.version for letter in letters] == [6, 6]
    assert place.ask(f"SELECT email, version FROM {place.database}.lone_guarded") == [(None, 7)]
    sink.close()


def test_a_server_that_takes_no_writes_is_told_with_its_variable_and_written_to_when_it_does(place: Place) -> None:
    view = index_table("read_only", [EMAIL])
    sink = place.prepared(view)
    offsets = place.shared_offsets(sink)
    session = open_session(place.address, role="store")
    of_others = MySQLOffsets(lambda: session, place.database, "redis", read_position=BinlogPosition.from_text)
    told = r"super_read_only is ON there.*SET GLOBAL super_read_only = OFF"
    place.ask("SET GLOBAL super_read_only = ON")
    try:
        with pytest.raises(StoreUnavailableError, match=rf"index tables.*{told}"):
            sink.write(alone(view, 1, 1, "a"), position(1))
        with pytest.raises(StoreUnavailableError, match=rf"offset store.*{told}"):
            of_others.take()
    finally:
        place.ask("SET GLOBAL super_read_only = OFF")
        place.ask("SET GLOBAL read_only = OFF")
    sink.prepare()
    assert sink.write(alone(view, 1, 2, "b"), position(2)) == []
    offsets.save(position(2))
    offsets.settle()
    assert place.ask(f"SELECT email, version FROM {place.database}.read_only") == [("b", 2)]
    sink.close()


def test_a_lone_row_goes_the_usual_way_when_its_session_is_killed(place: Place) -> None:
    view = index_table("lone_killed", [EMAIL])
    sink = place.prepared(view)
    offsets = place.shared_offsets(sink)
    assert sink.write(alone(view, 1, 1, "a"), position(1)) == []
    session = sink._single_rows._connection
    assert session is not None
    place.ask(f"KILL {session.thread_id()}")
    upto = position(2)
    assert sink.write(alone(view, 1, 2, "b"), upto) == []
    offsets.save(upto)
    assert offsets.saved() == position(2), "it was no lone row"
    assert place.ask(f"SELECT email, version FROM {place.database}.lone_killed") == [("b", 2)]
    sink.close()


def test_a_server_that_lost_transactions_shows_it_by_its_offset(place: Place) -> None:
    view = index_table("lone_lost", [EMAIL])
    sink = place.prepared(view)
    offsets = place.shared_offsets(sink)
    offsets.save(position(9))
    assert sink.witness(position(9)) == position(9)
    place.ask(f"UPDATE {place.database}.pipeline SET position = JSON_SET(position, '$.end', 64, '$.start', 48)")
    assert sink.witness(position(9)) == position(4)
    sink.close()


def test_a_late_offset_is_not_saved_on_another_session(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one may be to a server that came back without the row."""
    monkeypatch.setattr("projectors.stores.index_tables.offsets.LATE_S", 60.0)
    view = index_table("lone_back", [EMAIL])
    sink = place.prepared(view)
    offsets = place.shared_offsets(sink)
    offsets.save(position(1))
    upto = position(2)
    assert sink.write(alone(view, 1, 2, "a"), upto) == []
    offsets.save(upto)
    place.ask(f"DELETE FROM {place.database}.lone_back")
    sink.close()
    sink.connect()
    offsets.settle()
    assert offsets.saved() == position(1)
    sink.close()


def test_rows_that_share_the_position_of_a_lone_one_are_committed_with_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an XA transaction holds the offset back, several batches end at one position."""
    monkeypatch.setattr("projectors.stores.index_tables.offsets.LATE_S", 60.0)
    view = index_table("lone_shared", [EMAIL])
    sink = place.prepared(view)
    offsets = place.shared_offsets(sink)
    offsets.save(position(1))
    upto = position(2)
    assert sink.write(alone(view, 1, 2, "a"), upto) == []
    offsets.save(upto)
    saved = f"SELECT CAST(JSON_EXTRACT(position, '$.end') AS UNSIGNED) FROM {place.database}.pipeline"
    assert place.ask(saved) == [(position(1).end,)], "it went ahead of its offset"
    both = [ViewWrites(view.id, {(8,): Write(4, ("e",)), (9,): Write(4, ("e",))})]
    assert sink.write(both, upto) == []
    offsets.save(upto)
    assert place.ask(f"SELECT id FROM {place.database}.lone_shared ORDER BY id") == [(1,), (8,), (9,)]
    assert place.ask(saved) == [(upto.end,)], "rows and offset are one transaction"
    sink.close()


def upserted(sink: MySQLSink, view: BoundView, writes: dict[Key, Write]) -> list[Key]:
    """Write them again; the keys of those that an upsert was made of."""
    upsert, keys = sink._upserts[view.id], []
    executions = upsert.executions

    def told(items: list[Any]) -> Any:
        keys.extend(key for key, _ in items)
        return executions(items)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(upsert, "executions", told)
        assert sink.write_again([ViewWrites(view.id, writes)]) == []
    sink.connection.commit()
    return keys


@pytest.mark.parametrize(("typed", "values"), EVERY_TYPE, ids=[one.declared for one, _ in EVERY_TYPE])
def test_rows_of_every_type_that_are_there_are_given_their_version_without_an_upsert(
    place: Place, typed: Column, values: list[Any]
) -> None:
    view = index_table("index_any", [typed])
    sink = place.prepared(view)
    rows: dict[Key, Write] = {(at,): Write(5, (value,)) for at, value in enumerate(values)}
    assert write(sink, view, rows) == []
    again = {key: Write(9, one.values) for key, one in rows.items()}
    assert upserted(sink, view, again) == []
    assert upserted(sink, view, again) == []
    assert {key: get(place._plain, place.database, view, key) for key in again} == again
    different = {key: Write(10, (values[key[0] - 1],)) for key in again}
    assert upserted(sink, view, different) == (sorted(again) if len(values) > 1 else [])
    assert {key: get(place._plain, place.database, view, key) for key in again} == different


def test_only_blocks_in_which_something_differs_are_upserted(place: Place) -> None:
    view = index_table("index_user", [EMAIL, AGE])
    sink = place.prepared(view)
    rows: dict[Key, Write] = {(key,): Write(5, (f"e{key}", key % 100)) for key in range(ROWS_A_LOOK * 4)}
    write(sink, view, rows)
    place.ask(f"UPDATE {place.database}.index_user SET email = 'by hand' WHERE id = {ROWS_A_LOOK + 5}")
    place.ask(f"INSERT INTO {place.database}.index_user (id, version) VALUES (-7, 5), ({ROWS_A_LOOK * 5}, 5)")
    rows[ROWS_A_LOOK * 3 + 5,] = Write(5, (None, None))
    write(sink, view, {(ROWS_A_LOOK * 3 + 5,): Write(6, None), (ROWS_A_LOOK * 3 + 6,): Write(7, None)})
    del rows[ROWS_A_LOOK * 3 + 6,]  # a tombstone that nothing of is written
    for block in range(3):  # rows without values are no misses
        rows[ROWS_A_LOOK * block + 500,] = Write(5, (None, None))
    write(sink, view, {key: Write(8, (None, None)) for key, one in rows.items() if one.values == (None, None)})
    again = {key: Write(9, one.values) for key, one in rows.items()}
    second = [(key,) for key in range(ROWS_A_LOOK + 1, ROWS_A_LOOK * 2 + 2)]  # a look is of rows with values
    assert upserted(sink, view, again) == [(500,), *second, (ROWS_A_LOOK * 2 + 500,), (ROWS_A_LOOK * 3 + 5,)]
    assert {key: get(place._plain, place.database, view, key) for key in again} == again
    untouched = place.ask(f"SELECT id, version FROM {place.database}.index_user WHERE version <> 9 ORDER BY id")
    assert untouched == [(-7, 5), (ROWS_A_LOOK * 3 + 6, 7), (ROWS_A_LOOK * 5, 5)]


def test_blocks_that_show_nothing_are_no_misses(place: Place) -> None:
    view = index_table("index_user", [EMAIL])
    sink = place.prepared(view)
    rows: dict[Key, Write] = {(key,): Write(5, (None,)) for key in range(ROWS_A_LOOK * 3)}
    rows |= {(key,): Write(5, (f"e{key}",)) for key in range(ROWS_A_LOOK * 3, ROWS_A_LOOK * 5)}
    write(sink, view, rows)
    again = {key: Write(9, one.values) for key, one in rows.items()}
    assert upserted(sink, view, again) == [(key,) for key in range(ROWS_A_LOOK * 3)]
    assert place.ask(f"SELECT DISTINCT version FROM {place.database}.index_user") == [(9,)]


def test_scattered_rows_are_upserted_and_what_lies_between_them_stays(place: Place) -> None:
    view = index_table("index_user", [EMAIL])
    sink = place.prepared(view)
    write(sink, view, {(key,): Write(5, (f"e{key}",)) for key in range(20_000)})
    again: dict[Key, Write] = {(key,): Write(9, (f"e{key}",)) for key in range(0, 20_000, 7)}
    assert upserted(sink, view, again) == sorted(again)
    assert place.ask(f"SELECT version, COUNT(*) FROM {place.database}.index_user GROUP BY version ORDER BY 1") == [
        (5, 20_000 - len(again)),
        (9, len(again)),
    ]


def test_a_row_that_comes_between_the_look_and_the_update_keeps_its_own_version(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = index_table("index_user", [EMAIL])
    sink, other = place.prepared(view), place.prepared(view)
    rows: dict[Key, Write] = {(key,): Write(5, (f"e{key}",)) for key in range(0, 3_000, 2)}
    write(sink, view, rows)
    again, came = {key: Write(9, one.values) for key, one in rows.items()}, []
    looked = Unchanged._raising

    def raising(self: Unchanged, block: Any, version: int) -> str:
        if not came:
            came.append(write(other, view, {(1_001,): Write(6, ("between",))}))
        return looked(self, block, version)

    monkeypatch.setattr(Unchanged, "_raising", raising)
    assert sink.write_again([ViewWrites(view.id, again)]) == []
    sink.connection.commit()
    assert came == [[]]
    assert get(place._plain, place.database, view, (1_001,)) == (6, ("between",))
    assert {key: get(place._plain, place.database, view, key) for key in list(again)[::50]} == dict(
        list(again.items())[::50]
    )


@pytest.mark.parametrize("is_tombstone", [False, True])
def test_a_row_that_was_looked_at_is_changed_by_nobody_until_it_has_its_version(
    place: Place, monkeypatch: pytest.MonkeyPatch, is_tombstone: bool
) -> None:
    view = index_table("index_user", [EMAIL])
    sink, other = place.prepared(view), place.prepared(view)
    rows: dict[Key, Write] = {(key,): Write(5, (f"e{key}",)) for key in range(100)}
    write(sink, view, rows)
    if is_tombstone:
        write(sink, view, {(50,): Write(6, None)})
        del rows[50,]
    with other.connection.cursor() as cursor:
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
    looked = Unchanged._raising

    def raising(self: Unchanged, block: Any, version: int) -> str:
        with pytest.raises(StoreUnavailableError):
            other.write([ViewWrites(view.id, {(50,): Write(7, ("older than the replay",))})], None)
        return looked(self, block, version)

    monkeypatch.setattr(Unchanged, "_raising", raising)
    assert upserted(sink, view, {key: Write(9, one.values) for key, one in rows.items()}) == []
    assert get(place._plain, place.database, view, (50,)) == ((6, (None,)) if is_tombstone else (9, ("e50",)))


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("what", ["SELECT", "UPDATE"])
def test_a_look_that_fails_halfway_leaves_the_usual_way(
    place: Place, monkeypatch: pytest.MonkeyPatch, what: str, number: int
) -> None:
    """What was sent behind the statement that failed is answered too, and rolled back with it."""
    view = index_table("index_user", [EMAIL])
    sink = place.prepared(view)
    rows: dict[Key, Write] = {(key,): Write(5, (f"e{key}",)) for key in range(ROWS_A_LOOK * 4)}
    write(sink, view, rows)
    made, block, raising = [], Unchanged._block, Unchanged._raising

    def blocked(self: Unchanged, connection: Any, items: Any) -> Any:
        made.append(items)
        found = block(self, connection, items)
        if what == "SELECT" and len(made) == number + 1:
            return found._replace(rows=Fetch(connection, "SELECT id FROM absent", [ID]))
        return found

    def raised(self: Unchanged, one: Any, version: int) -> str:
        is_it = what == "UPDATE" and one.items[0][0] == (ROWS_A_LOOK * number,)
        return "UPDATE absent SET version = 7" if is_it else raising(self, one, version)

    monkeypatch.setattr(Unchanged, "_block", blocked)
    monkeypatch.setattr(Unchanged, "_raising", raised)
    again = {key: Write(9, one.values) for key, one in rows.items()}
    connection = sink.connection
    assert upserted(sink, view, again) == sorted(again)
    assert sink.connection is connection, "nothing was under way"
    assert place.ask(f"SELECT DISTINCT version FROM {place.database}.index_user") == [(9,)]


def test_a_look_ahead_that_nobody_needs_any_more_fails_the_others_too(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a deadlock the server rolled back what was changed before it: to keep the rest would be half of it."""
    view = index_table("index_user", [EMAIL])
    sink = place.prepared(view)
    rows: dict[Key, Write] = {(key,): Write(5, (f"e{key}",)) for key in range(ROWS_A_LOOK * 5)}
    write(sink, view, rows)
    missed = (ROWS_A_LOOK + 5, ROWS_A_LOOK * 2 + 5)  # two blocks, and the one behind them is read already
    place.ask(f"UPDATE {place.database}.index_user SET email = 'by hand' WHERE id IN {missed}")
    block, made = Unchanged._block, []

    def blocked(self: Unchanged, connection: Any, items: Any) -> Any:
        made.append(items)
        found = block(self, connection, items)
        return found._replace(rows=Fetch(connection, "SELECT id FROM absent", [ID])) if len(made) == 4 else found

    monkeypatch.setattr(Unchanged, "_block", blocked)
    again = {key: Write(9, one.values) for key, one in rows.items()}
    assert upserted(sink, view, again) == sorted(again)
    assert place.ask(f"SELECT DISTINCT version FROM {place.database}.index_user") == [(9,)]


@pytest.mark.parametrize("server", ["mysql_server", "mariadb_server"])
def test_rows_of_a_composite_key_are_looked_at_without_reading_others(
    request: pytest.FixtureRequest, server: str
) -> None:
    place = Place(request.getfixturevalue(server))
    country = column("country", Kind.TEXT, "varchar(10)", charset="utf8mb4", length=10)
    view = index_table("by_country", [EMAIL], key=[replace(country, is_nullable=False), ID])
    sink = place.prepared(view)
    write(sink, view, {(name, at): Write(5, (f"e{at}",)) for name in "abc" for at in range(6_000)})
    again: dict[Key, Write] = {(name, at): Write(9, (f"e{at}",)) for name in "abc" for at in range(6_000)}
    with sink.connection.cursor() as cursor:
        cursor.execute("FLUSH STATUS")
        assert upserted(sink, view, again) == []
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        read = sum(int(count) for _, count in cursor.fetchall())
    assert place.ask(f"SELECT DISTINCT version FROM {place.database}.by_country") == [(9,)]
    place.close()
    assert read < 3 * len(again), "each row by the look, and by the UPDATE"
