"""Values that a function makes, on real servers: each is read back as it was fitted, and found by itself."""

from __future__ import annotations

import itertools
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from projectors.binding import bind
from projectors.stores.index_tables.computed import value_column
from projectors.stores.index_tables.reading import IndexTableReader, present_columns
from projectors.stores.index_tables.sink import MySQLSink
from projectors.stores.index_tables.views import IndexTable
from projectors.views import BoundView, Entity
from tests.support.missing import missing
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key, ViewWrites, Write
from viewtail.servers.sessions import MySQLAddress, open_session, quote

_numbers = itertools.count(1)
TABLE = Table(
    schema="shop",
    name="user",
    columns=(
        Column(name="id", kind=Kind.INTEGER, declared="bigint", is_nullable=False),
        Column(name="size", kind=Kind.INTEGER, declared="int", is_nullable=False),
    ),
    primary_key=("id",),
)
VALUES: dict[str, list[Any]] = {
    "VARCHAR(6)": ["", " ", "a ", "A", "ä", "a\u0308", "😀" * 6, "\0", "'\\\"\n", "%s"],
    "TINYINT": [-128, 0, 127],
    "smallint unsigned": [0, 65535],
    "MEDIUMINT": [-(1 << 23), (1 << 23) - 1],
    "INTEGER": [-(1 << 31), (1 << 31) - 1],
    "BIGINT": [-(1 << 63), (1 << 63) - 1, 5.0],
    "BIGINT UNSIGNED": [0, (1 << 64) - 1],
    "BOOLEAN": [True, False],
    "DECIMAL(5,2)": [1.1, Decimal("-999.99"), 0],
    "NUMERIC(65, 30)": [Decimal("9" * 35 + "." + "9" * 30), Decimal("1E-30"), -1],
    "DECIMAL(40)": [10**40 - 1],
    "DOUBLE": [0.1, -1e308, 5e-324, 1.7976931348623157e308, 3, 1 / 3],
    "DATE": ["2024-02-29", "0000-00-00", "9999-12-31", "2024-02-31"],
    "DATETIME": [datetime(2024, 1, 2, 3, 4, 5), "1000-01-01 00:00:00"],
    "DATETIME(6)": [datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), "2024-01-02 03:04:05.1"],
    "BINARY(3)": [b"\0\0\0", b"abc", b"ab\0"],
    "VARBINARY(3)": [b"", b"a", b"a\0", b"\xff\xfe\0"],
}


@pytest.fixture(params=["mysql_server", pytest.param("mariadb_server", marks=pytest.mark.mariadb)])
def address(request: pytest.FixtureRequest) -> MySQLAddress:
    server = request.getfixturevalue(request.param)
    return MySQLAddress(host=server.host, port=server.port, user="root", io_timeout_s=20)


def view_of(types: dict[str, str]) -> BoundView:
    (view,) = bind([IndexTable("v", Entity("shop.user"), values=types, of=lambda row: row["size"])], lambda *_: TABLE)
    return view


def test_a_value_is_read_back_as_it_was_fitted(address: MySQLAddress) -> None:
    """So that `verify`, which compares what is there with what is fitted, finds no difference, and `find` the key."""
    for type_, given in VALUES.items():
        view = view_of({"value": type_})
        fitted = [view.view.computed_values(one) for one in given]
        writes: dict[Key, Write] = {(at,): Write(5, values) for at, values in enumerate(fitted)}
        with kept(address, view) as (sink, reader):
            assert sink.write([ViewWrites(view.id, dict(writes))], None) == [], type_
            sink.connection.commit()
            assert reader.unequal(writes) == [], type_
            shown, _ = reader.between(None, None, 9)
            assert shown == {key: write.values for key, write in writes.items()}, type_
            for key, values in enumerate(fitted):
                assert (key,) in reader.keys_with(values, 10), (type_, values)
            assert missing(sink) == frozenset(), type_  # the server prints the types as the view wants them
            present = present_columns(sink.connection, database_of(sink), view)
            assert value_column("value", present["value"]) == view.values[0], type_  # as `preview` reads them
            again: dict[Key, Write] = {key: Write(6, write.values) for key, write in writes.items()}
            assert sink.write_again([ViewWrites(view.id, again)]) == []
            sink.connection.commit()
            assert {row.version for row in reader.rows(list(writes))} == {6}, type_


def test_columns_of_all_types_stand_beside_each_other_and_null_is_none(address: MySQLAddress) -> None:
    some = dict(list(VALUES.items())[:15])  # and the key: MySQL's indexes have 16 columns at most
    view = view_of({f"v{at}": type_ for at, type_ in enumerate(some)})
    first = view.view.computed_values(tuple(given[0] for given in some.values()))
    nothing = view.view.computed_values(None)
    half = view.view.computed_values({"v1": 5})
    writes: dict[Key, Write] = {(1,): Write(5, first), (2,): Write(5, nothing), (3,): Write(5, half)}
    with kept(address, view) as (sink, reader):
        assert sink.write([ViewWrites(view.id, dict(writes))], None) == []
        sink.connection.commit()
        assert reader.unequal(writes) == []
        assert [row.key for row in reader.rows([(1,), (2,), (3,)])] == [(1,), (3,)]


@pytest.mark.parametrize("fixture", ["mysql_server", pytest.param("mariadb_server", marks=pytest.mark.mariadb)])
def test_a_view_of_more_columns_than_an_index_has_is_refused_alone(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(fixture)
    address = MySQLAddress(host=server.host, port=server.port, user="root", io_timeout_s=20)
    view = view_of({f"v{at}": "INT" for at in range(32)})
    sink = MySQLSink(lambda: open_session(address, role="store"), "computed_wide", [view])
    assert "its index has 33 columns" in sink.prepare()[view.id]
    sink.close()


def database_of(sink: MySQLSink) -> str:
    return sink._database


class kept:
    """A sink and a reader of a view in a database of their own."""

    def __init__(self, address: MySQLAddress, view: BoundView) -> None:
        self._address, self._view, self._database = address, view, f"computed_{next(_numbers)}"

    def __enter__(self) -> tuple[MySQLSink, IndexTableReader]:
        self._sink = MySQLSink(lambda: self._session(), self._database, [self._view])
        assert self._sink.prepare() == {}
        self._reader = IndexTableReader(self._session(), self._database, self._view)
        return self._sink, self._reader

    def __exit__(self, *_: object) -> None:
        self._sink.close()
        self._reader.close()
        with closing(self._session()) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {quote(self._database)}")

    def _session(self) -> Any:
        return open_session(self._address, role="store")
