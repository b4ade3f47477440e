"""Views that are whole tables, on real servers: every type as the entity's table has it, and who wins over whom."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from ingest.canonical import describe
from ingest.canonical.chunks import CanonicalRows
from projectors.binding import bind
from projectors.projection import Projections, followed_tables
from projectors.proving.comparison import Comparison, Difference
from projectors.stores.index_tables.leaving import IndexTableLeftover, IndexTableTraces
from projectors.stores.index_tables.releasing import TableRelease
from projectors.stores.index_tables.sink import MySQLSink
from projectors.stores.index_tables.swapping import TableSwapping
from projectors.stores.index_tables.views import IndexTable, MySQLTable
from projectors.stores.index_tables.whole_reading import WholeReader
from projectors.stores.leaving import Holds, Retired
from projectors.views import BoundView, Entity
from stack import Server
from tests.support.missing import missing
from viewtail.changes.errors import DeclarationError, StoreUnavailableError
from viewtail.changes.writes import Key, Parked, ViewWrites, Write
from viewtail.servers.sessions import MySQLAddress, open_session, quote

_tokens = itertools.count(1)

COLUMNS = {
    "tiny": ("TINYINT", [-128, 127]),
    "flag": ("TINYINT(1)", [0, 1]),
    "small": ("SMALLINT UNSIGNED", [0, 65535]),
    "medium": ("MEDIUMINT", [-(1 << 23), (1 << 23) - 1]),
    "big": ("BIGINT", [-(1 << 63), (1 << 63) - 1]),
    "huge": ("BIGINT UNSIGNED", [0, (1 << 64) - 1]),
    "filled": ("INT(6) UNSIGNED ZEROFILL", [0, 42]),
    "bits": ("BIT(11)", [0, 2047]),
    "bits64": ("BIT(64)", [1, (1 << 64) - 1]),
    "exact": ("DECIMAL(65,30)", ["-1.5", "99999999999999999999999999999999999.000000000000000000000000000001"]),
    "single": ("FLOAT", [0.1, -3.4e38]),
    "doubled": ("DOUBLE", [0.1, 5e-324]),
    "yr": ("YEAR", [1901, 2155]),
    "day": ("DATE", ["0000-00-00", "9999-12-31"]),
    "clock": ("TIME(6)", ["-838:59:59.000000", "00:00:00.000001"]),
    "moment": ("DATETIME(6)", ["1000-01-01 00:00:00", "9999-12-31 23:59:59.999999"]),
    "stamp": ("TIMESTAMP(3)", ["1970-01-01 00:00:01.001", "2038-01-19 03:14:07"]),
    "stamp0": ("TIMESTAMP", ["0000-00-00 00:00:00", "2024-02-29 23:59:59"]),
    "latin": ("VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_swedish_ci", ["äöü€ ", ""]),
    "padded": ("CHAR(9) CHARACTER SET utf8mb4", ["a", "漢字 😀"]),
    "bin_text": ("VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", [" blanks ", "A\0'\"\\"]),
    "long_text": ("LONGTEXT CHARACTER SET utf8mb3", ["x" * 70_000, "é"]),
    "fixed_bytes": ("BINARY(5)", [b"ab", b"\0\xff\0\0\0"]),
    "some_bytes": ("VARBINARY(9)", [b"", b"\0\xff"]),
    "lump": ("MEDIUMBLOB", [b"\xff" * 70_000, b""]),
    "label": ("ENUM('a','it''s','ö','b\\\\c')", ["it's", "b\\c"]),
    "labels": ("SET('x','y','z') CHARACTER SET latin1", ["", "x,z"]),
    "doc": ("JSON", ['{"b": [1, 2.5, null, true], "a": "ö\\u0000"}', "[]"]),
    "spot": ("GEOMETRY", [b"POINT(1 2)", b"LINESTRING(0 0,1 1,2.5 3)"]),
}
MARIADB_ONLY = {
    "uid": ("UUID", ["123e4567-e89b-12d3-a456-426655440000"] * 2),
    "ip": ("INET6", ["::1", "::ffff:1.2.3.4"]),
}


class Place:
    """A server with a schema for canonical tables, and one, by default the same, with a database for views; both of the
    test's own."""

    def __init__(self, server: Server, other: Server | None = None, *, is_mariadb: bool) -> None:
        self.source, self.address = map(_address, (server, other or server))
        self.is_mariadb = is_mariadb
        number = next(_tokens)
        self.schema, self.database = f"whole_{number}", f"whole_views_{number}"
        self._open: list[Any] = []
        self.ask(f"CREATE DATABASE {self.schema}")

    def session(self) -> Any:
        return open_session(self.address, role="store")

    def open_source(self) -> Any:
        return open_session(self.source, role="source")

    def ask(self, query: str, *arguments: object, at: MySQLAddress | None = None) -> list[tuple[Any, ...]]:
        """The server of the canonical tables, or another one."""
        asked = at or self.source
        with (
            pymysql.connect(
                host=asked.host,
                port=asked.port,
                user="root",
                autocommit=True,
                init_command="SET time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,ALLOW_INVALID_DATES'",
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query, arguments or None)
            return list(cursor.fetchall())

    def bound(self, view: MySQLTable) -> BoundView:
        session = self.open_source()
        try:
            (bound,) = bind([view], lambda schema, name: describe(session, schema, name))
        finally:
            session.close()
        return bound

    def sink(self, *views: BoundView) -> MySQLSink:
        sink = MySQLSink(self.session, self.database, views)
        assert sink.prepare() == {}
        self._open.append(sink)
        return sink

    def reader(self, view: BoundView) -> WholeReader:
        reader = WholeReader(self.session(), self.database, view)
        self._open.append(reader)
        return reader

    def comparison(self, view: BoundView) -> Comparison:
        rows = CanonicalRows(view.rows, view.needed, open_source=self.open_source, shows=None, stop=threading.Event())
        self._open.append(rows)
        return Comparison(
            view=view,
            rows=rows,
            reader=self.reader(view),
            projections=Projections([view], followed_tables([view])),
            now=lambda: 10,
            parked=frozenset,
        )

    def rows_of(self, view: BoundView) -> dict[Key, tuple[Any, ...]]:
        """The canonical rows, as a backfill reads them."""
        session = self.open_source()
        columns = (*view.key, *view.values)
        rows = view.rows.fetch(session, columns)
        session.close()
        width = len(view.key)
        return {row[:width]: row[width:] for row in rows}

    def close(self) -> None:
        for one in self._open:
            one.close()
        self.ask(f"DROP DATABASE IF EXISTS {self.schema}")
        self.ask(f"DROP DATABASE IF EXISTS {self.database}", at=self.address)


def _address(server: Server) -> MySQLAddress:
    return MySQLAddress(host=server.host, port=server.port, user="root", io_timeout_s=20)


@pytest.fixture(params=["mysql_server", pytest.param("mariadb_server", marks=pytest.mark.mariadb)])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    server = request.getfixturevalue(request.param)
    found = Place(server, is_mariadb="mariadb" in request.param)
    yield found
    found.close()


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def elsewhere(request: pytest.FixtureRequest, mysql_server: Server, mariadb_server: Server) -> Iterator[Place]:
    """Canonical tables on the server of that name, and views on the other."""
    is_mariadb = request.param == "mariadb_server"
    servers = (mariadb_server, mysql_server) if is_mariadb else (mysql_server, mariadb_server)
    found = Place(*servers, is_mariadb=is_mariadb)
    yield found
    found.close()


def write(sink: MySQLSink, view: BoundView, version: int, rows: dict[Key, Any]) -> list[Parked]:
    refused = sink.write([ViewWrites(view.id, {key: Write(version, row) for key, row in rows.items()})], None)
    sink.connection.commit()
    return refused


def filled(place: Place) -> dict[str, tuple[str, list[Any]]]:
    """A canonical table of all types with a row for each column's values, and one of NULLs."""
    columns = {**COLUMNS, **(MARIADB_ONLY if place.is_mariadb else {})}
    lines = ", ".join(f"{name} {type_} NULL" for name, (type_, _) in columns.items())
    place.ask(
        f"CREATE TABLE {place.schema}.thing (tenant INT, {lines}, twice BIGINT AS (small * 2) STORED, id BIGINT "
        "UNSIGNED, PRIMARY KEY (tenant, id))"
    )
    names = ", ".join(columns)
    values = ", ".join("ST_GeomFromText(%s)" if name == "spot" else "%s" for name in columns)
    for at in range(2):
        place.ask(
            f"INSERT INTO {place.schema}.thing (tenant, id, {names}) VALUES (%s, %s, {values})",
            at,
            7,
            *(given[at] for _, given in columns.values()),
        )
    place.ask(f"INSERT INTO {place.schema}.thing (tenant, id) VALUES (1, 18446744073709551615)")
    return columns


def everything(place: Place, table: str) -> list[tuple[Any, ...]]:
    """All that `SELECT *` shows of a table, by name and as bytes."""
    schema, name = table.split(".")
    names = [
        column
        for (column,) in place.ask(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s "
            "AND extra NOT LIKE '%%INVISIBLE%%' ORDER BY ordinal_position",
            schema,
            name,
        )
    ]
    shown = ", ".join(f"HEX({quote(column)})" for column in names)
    whole = place.ask(f"SELECT * FROM {table} ORDER BY tenant, id")
    return [tuple(names), *place.ask(f"SELECT {shown} FROM {table} ORDER BY tenant, id"), *whole]


def types_of(place: Place, table: str) -> dict[str, Any]:
    schema, name = table.split(".")
    rows = place.ask(
        "SELECT column_name, column_type, collation_name, is_nullable FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s",
        schema,
        name,
    )
    return {column: more for column, *more in rows}


def test_a_table_of_every_type_is_equal_to_its_entitys(place: Place) -> None:
    filled(place)
    view = place.bound(MySQLTable("thing", Entity(f"{place.schema}.thing")))
    sink, reader = place.sink(view), place.reader(view)
    rows = place.rows_of(view)
    assert write(sink, view, 5, rows) == []
    canonical, table = f"{place.schema}.thing", f"{place.database}.thing"
    assert everything(place, table) == everything(place, canonical)
    types = types_of(place, table)
    assert types.pop("viewtail_version")
    assert types == types_of(place, canonical)
    assert missing(place.sink(view)) == frozenset()  # the server prints the types as the view wants them

    writes: dict[Key, Write] = {key: Write(5, row) for key, row in rows.items()}
    assert reader.unequal(writes) == []
    assert reader.between(None, None, 5)[0] == rows
    # An older write that is refused, and a newer one that applies, leave each value as it is.
    older, newer = dict.fromkeys(rows, rows[1, 7]), {(0, 7): rows[1, 7], (1, 7): rows[0, 7]}
    assert write(sink, view, 4, older) == []
    assert everything(place, table) == everything(place, canonical)
    assert write(sink, view, 6, newer) == []
    assert reader.unequal({key: Write(6, row) for key, row in newer.items()}) == []
    assert write(sink, view, 7, rows) == []
    assert everything(place, table) == everything(place, canonical)
    assert sink.write_again([ViewWrites(view.id, {key: Write(8, row) for key, row in rows.items()})]) == []
    sink.connection.commit()
    assert everything(place, table) == everything(place, canonical)
    assert {held.version for held in reader.held(list(rows)).values()} == {8}


@pytest.mark.mariadb
def test_a_table_of_every_type_on_a_server_of_the_other_kind_has_equal_values(elsewhere: Place) -> None:
    """In the default collation of the source's server too, which the other one may not have."""
    place = elsewhere
    filled(place)
    collation = "utf8mb4_uca1400_ai_ci" if place.is_mariadb else "utf8mb4_0900_ai_ci"
    place.ask(f"ALTER TABLE {place.schema}.thing ADD short VARCHAR(9) COLLATE {collation} NOT NULL DEFAULT '\u00e4'")
    view = place.bound(MySQLTable("thing", Entity(f"{place.schema}.thing")))
    sink, reader, rows = place.sink(view), place.reader(view), place.rows_of(view)
    assert write(sink, view, 5, rows) == []
    assert reader.unequal({key: Write(5, row) for key, row in rows.items()}) == []
    assert reader.between(None, None, 5)[0] == rows
    assert missing(place.sink(view)) == frozenset(), "it would be filled again at each start"
    release = TableRelease(place.session, place.database, view)
    assert release.obstacles() == [], "nothing is to be altered"
    told = [remark.split(":")[0] for remark in release.remarks() if "texts are compared by" in remark]
    release.close()
    assert "short" in told and "latin" not in told


@pytest.mark.mariadb
def test_what_the_server_of_the_views_cannot_have_is_refused_for_its_view_alone(
    mysql_server: Server, mariadb_server: Server
) -> None:
    place = Place(mariadb_server, mysql_server, is_mariadb=True)
    place.ask(f"CREATE TABLE {place.schema}.exact (id INT PRIMARY KEY, d DECIMAL(65,38) NOT NULL)")
    exact = Entity(f"{place.schema}.exact")
    views = [place.bound(view) for view in (MySQLTable("exact", exact), IndexTable("by_d", exact, value="d"))] + [
        place.bound(MySQLTable("bare", exact, columns=["id"]))
    ]
    sink = MySQLSink(place.session, place.database, views)
    refused = sink.prepare()
    assert refused.keys() == {"mysql:exact", "mysql:by_d"}
    assert all("cannot make" in why and "compute the column" in why for why in refused.values())
    assert ["columns={'NAME': 'TYPE'}" in refused[view] for view in ("mysql:exact", "mysql:by_d")] == [True, False]
    sink.close()
    place.close()


def small(place: Place, **more: Any) -> BoundView:
    place.ask(
        f"CREATE TABLE {place.schema}.item (a INT, b VARCHAR(9) COLLATE utf8mb4_general_ci NOT NULL, c TEXT, "
        "PRIMARY KEY (a))"
    )
    return place.bound(MySQLTable("item", Entity(f"{place.schema}.item"), **more))


def test_a_deleted_row_leaves_and_nothing_older_brings_it_back(place: Place) -> None:
    view = small(place)
    sink, reader, table = place.sink(view), place.reader(view), f"{place.database}.item"
    rows: dict[Key, Any] = {(number,): (f"b{number}", None) for number in range(600)}
    write(sink, view, 10, rows)
    write(sink, view, 20, {(number,): None for number in range(300)})
    assert place.ask(f"SELECT COUNT(*), MIN(a) FROM {table}") == [(300, 300)]
    write(sink, view, 15, rows)
    assert place.ask(f"SELECT COUNT(*), MIN(a) FROM {table}") == [(300, 300)]
    assert reader.held([(1,)])[1,].version == 20
    write(sink, view, 30, {(1,): ("back", "c")})
    write(sink, view, 25, {(1,): None})
    assert place.ask(f"SELECT * FROM {table} WHERE a = 1") == [(1, "back", "c")]
    assert reader.between(None, (2,), 12) == ({(1,): ("back", "c")}, {(0,): 20, (1,): 30, (2,): 20})


def test_a_row_of_nulls_is_a_row_and_so_is_one_without_other_columns(place: Place) -> None:
    place.ask(f"CREATE TABLE {place.schema}.pair (x INT, y INT, note TEXT NULL, PRIMARY KEY (y, x))")
    pair = Entity(f"{place.schema}.pair")
    views = [place.bound(MySQLTable("pair", pair)), place.bound(MySQLTable("bare", pair, columns=["x", "y"]))]
    sink = place.sink(*views)
    for view, row in zip(views, [(None,), ()], strict=True):
        reader = place.reader(view)
        assert write(sink, view, 5, {(1, 2): row, (3, 4): row}) == []
        write(sink, view, 6, {(3, 4): None})
        assert reader.unequal({(1, 2): Write(5, row), (3, 4): Write(6, None)}) == []
        assert [row.key for page in reader.pages() for row in page] == [(1, 2)]
        assert [key for page in sink.keys_below(view.id, 9) for key in page] == [((1, 2), 5)]
    assert place.ask(f"SELECT * FROM {place.database}.pair") == [(2, 1, None)]  # as in the entity's table: x, y, note


def test_a_missing_row_is_seen_whatever_it_would_show(place: Place) -> None:
    place.ask(f"CREATE TABLE {place.schema}.pair (x INT, y INT, note TEXT NULL, PRIMARY KEY (y, x))")
    place.ask(f"INSERT INTO {place.schema}.pair (x, y) VALUES (2, 1), (4, 3)")
    pair = Entity(f"{place.schema}.pair")
    views = [place.bound(MySQLTable("pair", pair)), place.bound(MySQLTable("bare", pair, columns=["x", "y"]))]
    sink = place.sink(*views)
    for view, row in zip(views, [(None,), ()], strict=True):
        write(sink, view, 5, {(1, 2): row})
        comparison = place.comparison(view)
        assert comparison.look(None, 10)[1] == [(3, 4)]
        assert [one.difference for one in comparison.settle([(1, 2), (3, 4)]).found] == [Difference.MISSING]


def test_a_row_by_hand_over_a_tombstone_is_told_and_goes_with_what_is_written_next(place: Place) -> None:
    view = small(place)
    sink, comparison, table = place.sink(view), place.comparison(view), f"{place.database}.item"
    for newest, number in (5, 1), (12, 2):  # below the watermark, and above it
        write(sink, view, newest, {(number,): None})
        place.ask(f"INSERT INTO {table} (a, b) VALUES ({number}, 'by hand')")
    held = comparison.reader.held([(1,), (2,)])
    assert [(one.version, one.content) for one in held.values()] == [(5, ("by hand", None)), (12, ("by hand", None))]
    assert [row.key for row in comparison.reader.rows([(1,)])] == [(1,)]
    assert sorted(comparison.look(None, 10)[1]) == [(1,), (2,)]
    found = comparison.settle([(1,), (2,)]).found
    assert [(one.difference, one.is_unexplained) for one in found] == [
        (Difference.EXTRA, False),
        (Difference.EXTRA, True),
    ]
    write(sink, view, 11, {(1,): None})
    sink.take_away(view.id, {(2,): held[2,]})
    sink.connection.commit()
    assert place.ask(f"SELECT * FROM {table}") == []
    assert comparison.reader.held([(2,)]) == {}


def test_a_key_column_may_be_called_version(place: Place) -> None:
    place.ask(f"CREATE TABLE {place.schema}.document (id INT, version INT, body TEXT, PRIMARY KEY (id, version))")
    view = place.bound(MySQLTable("document", Entity(f"{place.schema}.document")))
    sink, reader, table = place.sink(view), place.reader(view), f"{place.database}.document"
    assert write(sink, view, 7, {(1, 1): ("a",), (1, 2): ("b",)}) == []
    write(sink, view, 8, {(1, 1): None})
    write(sink, view, 6, {(1, 1): ("old",)})
    assert place.ask(f"SELECT * FROM {table}") == [(1, 2, "b")]
    held = reader.held([(1, 1), (1, 2)])
    assert {key: one.version for key, one in held.items()} == {(1, 1): 8, (1, 2): 7}
    assert missing(place.sink(view)) == frozenset()
    traces = IndexTableTraces(place.session(), place.database, view)
    assert [(trace.holds, trace.version) for trace in traces.of((1, 1))] == [
        (Holds.NOTHING, None),
        (Holds.TOMBSTONE, 8),
    ]
    traces.close()
    sink.take_away(view.id, held)
    sink.connection.commit()
    assert reader.held([(1, 1), (1, 2)]) == {}
    leftover = IndexTableLeftover(
        place.session, place.database, Retired(name="document", places=[], others={}, read_by=[])
    )
    assert len(leftover.look().dropped) == 2
    leftover.close()


def test_a_table_of_many_columns_takes_deletes_in_larger_blocks_than_rows(place: Place) -> None:
    """A statement has 65,535 parameters at most."""
    columns = ", ".join(f"c{number} TINYINT" for number in range(260))
    place.ask(f"CREATE TABLE {place.schema}.wide (id INT PRIMARY KEY, {columns})")
    view = place.bound(MySQLTable("wide", Entity(f"{place.schema}.wide")))
    sink = place.sink(view)
    assert write(sink, view, 5, {(number,): (1,) * 260 for number in range(300)}) == []
    assert write(sink, view, 6, {(number,): None for number in range(290)}) == []
    assert place.ask(f"SELECT COUNT(*) FROM {place.database}.wide") == [(10,)]


@pytest.mark.parametrize("is_delete_last", [False, True])
def test_of_two_writers_of_one_key_the_newest_write_stays(place: Place, is_delete_last: bool) -> None:
    """Neither sees what the other has not committed, so each must wait for it, or meet it afterwards."""
    view = small(place)
    sinks = [place.sink(view) for _ in range(2)]
    begin = threading.Barrier(2)

    def run(sink: MySQLSink, is_deleting: bool) -> None:
        for number in range(60):
            version = 2 * number + (is_deleting != is_delete_last) + 1
            begin.wait()
            rows: dict[Key, Any] = {(key,): None if is_deleting else (f"v{version}", None) for key in range(40)}
            version = version if number % 2 else 200 - version
            while True:
                try:
                    write(sink, view, version, rows)
                    break
                except StoreUnavailableError:  # deadlocks, several times
                    sink.prepare()

    threads = [threading.Thread(target=run, args=(sink, bool(at))) for at, sink in enumerate(sinks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # 199 was the first write of one of them, 198 that of the other.
    left = (0, None, None) if is_delete_last else (40, "v1", "v1")
    assert place.ask(f"SELECT COUNT(*), MIN(b), MAX(b) FROM {place.database}.item") == [left]


def test_a_delete_that_is_not_committed_holds_an_older_upsert_until_it_is(place: Place) -> None:
    view = small(place)
    deleting, writing = place.sink(view), place.sink(view)
    assert deleting.write([ViewWrites(view.id, {(1,): Write(9, None)})], None) == []  # its transaction is open
    done = threading.Event()

    def upsert() -> None:
        write(writing, view, 5, {(1,): ("old", None)})
        done.set()

    thread = threading.Thread(target=upsert)
    thread.start()
    assert not done.wait(0.5)
    deleting.connection.commit()
    thread.join()
    assert place.ask(f"SELECT * FROM {place.database}.item") == []


def test_what_a_reader_saw_is_taken_away_with_its_version_and_nothing_newer(place: Place) -> None:
    view = small(place)
    sink, reader = place.sink(view), place.reader(view)
    write(sink, view, 9, {(1,): ("b", None), (2,): None, (3,): ("b", None)})
    held = reader.held([(1,), (2,), (3,)])
    write(sink, view, 10, {(3,): ("newer", None)})
    sink.take_away(view.id, held)
    sink.connection.commit()
    assert reader.held([(1,), (2,)]) == {}
    assert write(sink, view, 3, {(1,): ("again", None), (2,): ("again", None), (3,): ("again", None)}) == []
    assert dict(place.ask(f"SELECT a, b FROM {place.database}.item")) == {1: "again", 2: "again", 3: "newer"}


def test_indexes_and_numbers_are_as_declared_and_follow_the_declaration(place: Place) -> None:
    place.ask(
        f"CREATE TABLE {place.schema}.invoice (account_id INT, allowed_id INT UNSIGNED NOT NULL, invoice_id INT, "
        "gateway VARCHAR(20), PRIMARY KEY (account_id, allowed_id))"
    )
    entity, table = Entity(f"{place.schema}.invoice"), f"{place.database}.invoice"
    indexes = {"account_invoice_idx": ["account_id", "invoice_id"], "allowed_idx": ["allowed_id"]}
    view = place.bound(MySQLTable("invoice", entity, indexes=indexes, auto_increment="allowed_id"))
    write(place.sink(view), view, 5, {(1, 0): (7, "stripe"), (1, 3): (8, None)})
    ddl = place.ask(f"SHOW CREATE TABLE {table}")[0][1]
    assert "PRIMARY KEY (`account_id`,`allowed_id`)" in ddl
    assert "KEY `account_invoice_idx` (`account_id`,`invoice_id`)" in ddl
    assert "`allowed_id` int" in ddl and "AUTO_INCREMENT" in ddl
    assert place.ask(f"SELECT * FROM {table}") == [(1, 0, 7, "stripe"), (1, 3, 8, None)]  # 0 stays 0
    assert place.reader(view).keys_with([1, 8], 5) == [(1, 3)]

    indexes = {"allowed_idx": ["allowed_id"], "gateway_idx": ["gateway", "account_id"]}
    view = place.bound(MySQLTable("invoice", entity, indexes=indexes, auto_increment="allowed_id"))
    sink = place.sink(view)
    assert missing(sink) == frozenset()
    ddl = place.ask(f"SHOW CREATE TABLE {table}")[0][1]
    assert "KEY `gateway_idx` (`gateway`,`account_id`)" in ddl
    assert place.ask(f"SELECT COUNT(*) FROM {table}") == [(2,)]

    place.ask(f"ALTER TABLE {table} ADD UNIQUE INDEX by_hand (invoice_id)")
    assert "by_hand" in sink.prepare()[view.id]


def test_a_function_makes_columns_of_other_names_and_leaves_rows_out(place: Place) -> None:
    place.ask(f"CREATE TABLE {place.schema}.note (id INT PRIMARY KEY, body TEXT, size DECIMAL(8,2))")
    columns = {"text": "LONGTEXT", "cents": "BIGINT", "raw": "BLOB"}
    view = place.bound(
        MySQLTable("note", Entity(f"{place.schema}.note"), columns=columns, of=lambda row: {"text": row["body"]})
    )
    made = view.view.computed_values({"text": "ä" * 70_000, "cents": 12, "raw": b"\0"})
    sink, reader = place.sink(view), place.reader(view)
    assert write(sink, view, 5, {(1,): made, (2,): view.view.computed_values({})}) == []
    assert place.ask(f"SELECT * FROM {place.database}.note") == [(1, "ä" * 70_000, 12, b"\0"), (2, None, None, None)]
    assert reader.unequal({(1,): Write(5, made)}) == []
    assert view.view.computed_values(None) is None


def test_one_swap_renames_both_tables_of_a_copy(place: Place) -> None:
    from dataclasses import replace

    view = small(place)
    copy = replace(view, copy=2, is_beside=True)
    write(place.sink(view), view, 5, {(1,): ("live", None), (2,): None})
    write(place.sink(copy), copy, 6, {(1,): ("copy", None), (3,): None})
    place.ask(f"CREATE TABLE {place.database}.view (name VARCHAR(99), filled_at TIMESTAMP(6) NULL)")
    swapping = TableSwapping(place.session, place.database)
    assert swapping.swap(view, copy, 0)
    assert swapping.is_swapped(view, copy)
    swapping.close()
    assert place.ask(f"SELECT * FROM {place.database}.item") == [(1, "copy", None)]
    assert place.ask(f"SELECT a FROM {place.database}.item__version") == [(3,)]
    assert place.ask(f"SELECT a FROM {place.database}.item__version__viewtail_1") == [(2,)]


def test_both_tables_tell_what_they_hold_of_an_entity_and_are_dropped_together(place: Place) -> None:
    view = small(place)
    write(place.sink(view), view, 5, {(1,): ("b", None), (2,): None})
    traces = IndexTableTraces(place.session(), place.database, view)
    assert [(trace.holds, trace.version) for trace in traces.of((1,))] == [(Holds.VALUES, 5), (Holds.NOTHING, None)]
    assert [(trace.holds, trace.version) for trace in traces.of((2,))] == [(Holds.NOTHING, None), (Holds.TOMBSTONE, 5)]
    traces.close()
    retired = Retired(name="item", places=[], others={}, read_by=[])
    leftover = IndexTableLeftover(place.session, place.database, retired)
    assert len(leftover.look().dropped) == 2
    leftover.drop(lambda _: None)
    leftover.close()
    assert place.ask(f"SHOW TABLES FROM {place.database}") == []


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ("ADD UNIQUE INDEX by_hand (b)", "UNIQUE"),
        ("ADD CONSTRAINT by_hand CHECK (a > 0)", "CHECK"),
        ("ADD CONSTRAINT by_hand FOREIGN KEY (a) REFERENCES parent (a)", "FOREIGN KEY"),
    ],
)
def test_a_constraint_that_somebody_added_since_the_start_keeps_the_table_from_its_release(
    place: Place, made: str, kind: str
) -> None:
    view, table = small(place), f"{place.database}.item"
    place.sink(view)
    place.ask(f"CREATE TABLE {place.database}.parent (a INT PRIMARY KEY)")
    release = TableRelease(place.session, place.database, view)
    assert release.obstacles() == []
    place.ask(f"ALTER TABLE {table} {made}")
    (told,) = release.obstacles()
    assert f"by_hand: a constraint ({kind})" in told
    mend = re.search(r"ALTER TABLE .+? DROP CONSTRAINT `by_hand`", told)
    assert mend is not None
    place.ask(mend[0])
    assert release.obstacles() == []
    release.close()


def test_a_check_that_a_column_has_goes_as_the_server_lets_it_go(place: Place) -> None:
    view, table = small(place), f"{place.database}.item"
    place.sink(view)
    release = TableRelease(place.session, place.database, view)
    place.ask(f"ALTER TABLE {table} MODIFY a INT NOT NULL CHECK (a > 0)")
    (told,) = release.obstacles()
    mend = re.search(r"ALTER TABLE .+? (?:DROP CONSTRAINT `item_chk_1`|MODIFY `a` [^;]+)", told)
    assert mend is not None, told
    place.ask(mend[0])
    assert release.obstacles() == []
    release.close()


def test_a_table_that_somebody_changed_is_not_released_and_more_indexes_and_defaults_are_no_change(
    place: Place,
) -> None:
    view = small(place, indexes={"b_idx": ["b"]})
    place.sink(view)
    release, table = TableRelease(place.session, place.database, view), f"{place.database}.item"
    place.ask(f"ALTER TABLE {table} ADD INDEX own (b, a), ALTER b SET DEFAULT 'x'")
    assert release.obstacles() == []
    for changed, back in (
        ("ADD extra INT", "DROP extra"),
        ("DROP INDEX b_idx", "ADD INDEX b_idx (b)"),
        ("MODIFY b VARCHAR(7) NOT NULL", "MODIFY b VARCHAR(9) COLLATE utf8mb4_general_ci NOT NULL"),
    ):
        place.ask(f"ALTER TABLE {table} {changed}")
        (told,) = release.obstacles()
        assert "not as the view is declared" in told
        place.ask(f"ALTER TABLE {table} {back}")
        assert release.obstacles() == []
    release.close()


def test_rows_that_a_foreign_key_by_hand_refuses_are_parked(place: Place) -> None:
    view, table = small(place), f"{place.database}.item"
    sink = place.sink(view)
    place.ask(f"CREATE TABLE {place.database}.parent (a INT PRIMARY KEY)")
    place.ask(f"INSERT INTO {place.database}.parent VALUES (1), (2)")
    place.ask(f"ALTER TABLE {table} ADD CONSTRAINT by_hand FOREIGN KEY (a) REFERENCES parent (a)")
    refused = write(sink, view, 5, {(number,): ("b", None) for number in (1, 2, 3)})
    assert [(one.key, "foreign key" in one.reason) for one in refused] == [("3", True)]
    place.ask(f"CREATE TABLE {place.database}.child (a INT, FOREIGN KEY (a) REFERENCES item (a))")
    place.ask(f"INSERT INTO {place.database}.child VALUES (1)")
    refused = write(sink, view, 6, {(1,): None, (2,): None})
    assert [(one.key, "foreign key" in one.reason) for one in refused] == [("1", True)]
    assert place.ask(f"SELECT a FROM {table}") == [(1,)]
    place.ask(f"DROP TABLE {place.database}.child")
    place.ask(f"ALTER TABLE {table} DROP FOREIGN KEY by_hand")


def test_numbers_begin_above_those_of_deleted_rows(place: Place) -> None:
    """Also where the entity's table gives out none itself."""
    place.ask(f"CREATE TABLE {place.schema}.thing (a INT PRIMARY KEY, n INT NOT NULL)")
    entity = Entity(f"{place.schema}.thing")
    view = place.bound(MySQLTable("thing", entity, indexes={"n_idx": ["n"]}, auto_increment="n"))
    sink = place.sink(view)
    write(sink, view, 5, {(1,): (7,), (2,): (900,)})
    write(sink, view, 6, {(2,): None})
    release = TableRelease(place.session, place.database, view)
    release.release(0)
    release.close()
    place.ask(f"INSERT INTO {place.database}.thing (a) VALUES (5)")
    assert place.ask(f"SELECT n FROM {place.database}.thing WHERE a = 5") == [(901,)]


def test_defaults_that_the_table_lacks_now_are_told_before_the_release(place: Place) -> None:
    place.ask(
        f"CREATE TABLE {place.schema}.user (id INT PRIMARY KEY, score INT NOT NULL DEFAULT 7, name VARCHAR(9) NOT NULL "
        "DEFAULT '', note VARCHAR(9) NULL DEFAULT NULL, seen TIMESTAMP(6) NULL DEFAULT CURRENT_TIMESTAMP(6))"
    )
    view, table = place.bound(MySQLTable("user", Entity(f"{place.schema}.user"))), f"{place.database}.user"
    release = TableRelease(place.session, place.database, view)

    def told() -> list[str]:
        return [remark.split(":")[0] for remark in release.remarks() if "DEFAULT" in remark]

    assert told() == ["score, name, seen"]
    sink = place.sink(view)
    assert told() == ["score, name, seen"]
    place.ask(f"ALTER TABLE {table} ALTER score SET DEFAULT 8, ALTER name SET DEFAULT ''")
    assert told() == ["seen"]
    place.ask(f"ALTER TABLE {place.schema}.user MODIFY score BIGINT NOT NULL DEFAULT 7")
    sink.fit(place.bound(MySQLTable("user", Entity(f"{place.schema}.user"))))  # it makes the column anew
    assert told() == ["score, seen"]
    place.ask(
        f"ALTER TABLE {table} ALTER score SET DEFAULT 7, MODIFY seen TIMESTAMP(6) NULL DEFAULT CURRENT_TIMESTAMP(6)"
    )
    assert told() == []
    release.close()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"indexes": {"i": ["nothing"]}}, "which the table has not"),
        ({"indexes": {"i": ["c"]}}, "which an index cannot hold whole"),
        ({"auto_increment": "b"}, "integer column"),
        ({"auto_increment": "d"}, "of the key or of an index"),
        ({"columns": ["nothing"]}, "no column nothing"),
        ({"columns": {"A": "INT"}, "of": lambda row: {}}, "another name"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(place: Place, more: dict[str, Any], why: str) -> None:
    place.ask(f"CREATE TABLE {place.schema}.item (a INT PRIMARY KEY, b VARCHAR(9), c TEXT, d INT NOT NULL)")
    with pytest.raises(DeclarationError, match=why):
        place.bound(MySQLTable("item", Entity(f"{place.schema}.item"), **more))
