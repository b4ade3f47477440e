"""Messages are read back as exactly what the table has, or refused by the column's name, or rejected."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.support.envelopes import (
    BIT,
    BITS,
    DATE,
    DATETIME,
    DATETIME6,
    DOUBLE,
    ENUM,
    FLOAT,
    ID,
    JSON,
    KEPT,
    NAME,
    ORIGIN,
    PADDED,
    PLACE,
    POINT,
    PRICE,
    RAW,
    SET,
    SHAPE,
    TIME,
    TIME3,
    TIMESTAMP3,
    UNSIGNED,
    VALUES,
    VECTOR,
    VERSION,
    YEAR,
    base64_of,
    column,
    deleted,
    envelope,
    inserted,
    reader,
    shown,
    table,
    updated,
)
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Followed, Refused, RowChanges, Unreadable
from viewtail.changes.envelope_reading import Change, EnvelopeReader, MalformedEnvelopeError
from viewtail.changes.tables import Column, Kind
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import KeptChange

SECRET = "row-value-7391"


def written(each: Column, *changes: KeptChange, with_schemas: bool = False) -> list[bytes]:
    """The messages of viewtail that have a value."""
    found = envelope(table(each), with_schemas=with_schemas).messages(changes, 1_700_000_001_000_000)
    return [value for _, value, _ in found if value is not None]


def message(each: Column, found: Any = None, *, sequence: str | None = None, **other: Any) -> dict[str, Any]:
    """A message as Debezium writes it, of a row whose column has this JSON."""
    source = {"version": "3.6.1.Final", "connector": "mysql", "db": "shop", "table": "user", "sequence": sequence}
    source |= {"file": "binlog.000007", "pos": 1234, "row": 0, "snapshot": "false"}
    return {"before": None, "after": {"id": 5, each.name: found}, "source": source, "op": "c", **other}


def read(each: Column, found: Any, **options: Any) -> Change:
    """What a reader makes of a Debezium message with this JSON in the column; `schema` is of the column's field."""
    schema, op = options.pop("schema", None), options.pop("op", "c")
    whole = message(each, found, op=op)
    if schema is not None:
        fields = [{"type": "int32", "field": "id"}, {**schema, "field": each.name}]
        envelope_schema = {"type": "struct", "fields": [{"type": "struct", "fields": fields, "field": "after"}]}
        whole = {"schema": envelope_schema, "payload": whole}
    return reader(table(each), **options).read(json.dumps(whole).encode())


# --- What viewtail wrote ---


@pytest.mark.parametrize("with_schemas", [False, True])
@pytest.mark.parametrize("value", [*VALUES[1:], *KEPT], ids=shown)
def test_what_was_written_is_read_back(value: tuple[Column, Any, Any], with_schemas: bool) -> None:
    each, held, _ = value
    changes = [
        inserted(5, held),
        updated((5, None), (5, held)),
        deleted(5, held),
        KeptChange((5,), 3, "read", None, (5, held)),
    ]
    found = [reader(table(each)).read(one) for one in written(each, *changes, with_schemas=with_schemas)]
    one_reader = reader(table(each))  # which knows the schema and the source block from the second message on
    assert repr([one_reader.read(one) for one in written(each, *changes, with_schemas=with_schemas)]) == repr(found)
    assert [type(change) for change in found] == [RowChanges] * 4
    assert [change.kind for change in found] == [INSERT, UPDATE, DELETE, INSERT]
    rows = [[(5, held)], [(5, None), (5, held)], [(5, held)], [(5, held)]]
    assert repr([change.rows for change in found]) == repr(rows)
    assert [change.version for change in found] == [VERSION] * 3 + [3]


@pytest.mark.parametrize("value", [*VALUES[1:], *KEPT], ids=shown)
def test_a_message_of_viewtail_in_another_layout_is_read_alike(value: tuple[Column, Any, Any]) -> None:
    each, held, _ = value
    (plain,) = written(each, inserted(5, held))
    loose = json.dumps(json.loads(plain), indent=1, sort_keys=True).encode()
    assert loose != plain and repr(reader(table(each)).read(loose)) == repr(reader(table(each)).read(plain))


def test_only_the_wanted_columns_are_read_in_the_tables_order() -> None:
    of = table(NAME, column(Kind.DOUBLE, "double", "d"), column(Kind.DATE, "date", "e"))
    (_, value, _), *_ = envelope(of).messages([inserted(5, "ann", 1.5, "2024-01-02")], 0)
    assert value is not None
    for names in (("id", "d"), ("id",), ("c", "e"), ("id", "c", "d", "e")):
        wanted = tuple({"id": 5, "c": "ann", "d": 1.5, "e": "2024-01-02"}[name] for name in names)
        assert EnvelopeReader(Followed(of, names), []).read(value).rows == [wanted]


def test_related_rows_that_lack_a_column_are_refused_with_its_name() -> None:
    price = column(Kind.DECIMAL, "decimal(9,2)", "price")
    product = replace(column(Kind.JSON, "row", "product"), fields=(column(Kind.INTEGER, "int", "id"), price))
    lines = replace(column(Kind.JSON, "rows"), fields=(product,))
    for held, missing in (
        ('[{"product":{"id":1,"price":"1.50","more":1}},{"product":null}]', None),
        ("[]", None),
        ("[{}]", "product"),
        ('[{"product":null},{"product":{"more":1}}]', "product.id, product.price"),
    ):
        (message_of_it,) = written(lines, inserted(5, held))
        found = reader(table(lines)).read(message_of_it)
        if missing is None:
            assert found.rows == [(5, held)]
        else:
            assert isinstance(found, Refused) and f"column c has rows without {missing}:" in found.reason


def test_rows_of_several_events_keep_their_own_kind_and_version() -> None:
    later = ORIGIN._replace(start=4000)
    changes = [
        inserted(1, "a"),
        inserted(2, "b"),
        updated((2, "b"), (2, "c")),
        deleted(1, "a"),
        deleted(2, "c", origin=later),
    ]
    of = reader(table(NAME))
    found = [of.read(one) for one in written(NAME, *changes)]
    assert [(each.kind, each.rows) for each in found] == [
        (INSERT, [(1, "a")]),
        (INSERT, [(2, "b")]),
        (UPDATE, [(2, "b"), (2, "c")]),
        (DELETE, [(1, "a")]),
        (DELETE, [(2, "c")]),
    ]


def test_the_version_of_a_header_wins_over_what_the_message_says() -> None:
    own, foreign = written(NAME, inserted(5, "ann"))[0], json.dumps(message(NAME, "ann")).encode()
    of = reader(table(NAME))
    assert [of.read(one, 99).version for one in (own, own, foreign, foreign)] == [99] * 4
    assert [of.read(one).version for one in (own, own, foreign, foreign)] == [VERSION, VERSION, *[_place(7, 1234)] * 2]


def test_a_message_after_one_with_an_impossible_version_does_not_inherit_one() -> None:
    of, good = reader(table(NAME)), written(NAME, inserted(5, "ann"))[0]
    bad = good.replace(str(VERSION).encode(), str(MAX_VERSION + 1).encode())
    assert of.read(good).version == VERSION
    for _ in range(2):
        with pytest.raises(MalformedEnvelopeError, match="sequence is no version"):
            of.read(bad)


def test_an_update_whose_old_row_is_not_known_is_the_new_row() -> None:
    (value,) = written(NAME, updated(None, (5, "ann")))
    change = reader(table(NAME)).read(value)
    assert (change.kind, change.rows) == (INSERT, [(5, "ann")])


@pytest.mark.parametrize(
    ("each", "bad"),
    [
        (ID, 2147483648), (ID, "5"), (ID, True), (ID, 5.0), (ID, None), (ID, []),
        (UNSIGNED, -1), (UNSIGNED, 2**64), (UNSIGNED, "AQ=="),
        (BIT, 1), (BIT, "true"), (BITS, "AQ=="), (BITS, "//8="), (BITS, 5),
        (YEAR, 1900), (YEAR, 2156), (YEAR, "2024"),
        (PRICE, "1.5"), (PRICE, "1.500"), (PRICE, "123456789.00"), (PRICE, "1E2"), (PRICE, " 1.50"), (PRICE, "-0.00"),
        (PRICE, 1.5), (PRICE, "NaN"), (PRICE, "01.50"), (PRICE, "١.50"),
        (FLOAT, "1.5"), (FLOAT, 1e39), (FLOAT, True), (DOUBLE, "1.5"), (DOUBLE, True), (DOUBLE, 2**63 - 1),
        (NAME, 5), (NAME, "x" * 41), (NAME, ["x"]),
        (RAW, "AP8"), (RAW, "A P8="), (RAW, "AAAAAAAAAAAAAAAA"), (RAW, 5), (PADDED, "YWI="), (RAW, "é"),
        (ENUM, "b"), (ENUM, 1), (ENUM, ["a"]), (SET, "é,a"), (SET, "a,b"), (SET, "a,a"), (SET, 3), (SET, "a,"),
        (DATE, "20240229Z"), (DATE, "2024-W09-4Z"), (DATE, ""),
        (DATE, "2024-02-29"), (DATE, "2024-02-30Z"), (DATE, "2024-13-01"), (DATE, "2024-01-32"),
        (TIME, "24:00:00Z"), (TIME, "23:59:59"), (TIME, "839:00:00"), (TIME, "-01:00:60"), (TIME, "12:00:00.5Z"),
        (DATE, 19000), (TIME, 0), (TIME, "012:00:00"), (TIME3, "-01:00:00"), (TIME3, "-01:00:00.50"),
        (DATETIME, "2024-01-02 03:04:05"), (DATETIME, "2024-01-02T24:00:00Z"), (DATETIME, "2024-02-30T00:00:00Z"),
        (DATETIME, "2024-01-02T03:04:05"), (DATETIME, "2024-01-02T03:04:05.1Z"), (DATETIME, "20240102T030405Z"),
        (DATETIME, 0), (DATETIME6, "2024-01-02T03:04:05.1234567Z"), (DATETIME6, "2024-01-02T03:04:05.+1Z"),
        (DATETIME6, "2024-00-10 23:59:59.5"), (DATETIME6, "2024-01-02T03:04:05+00:00"), (DATETIME, ["2", "0"] * 20),
        (JSON, "{"), (JSON, {"a": 1}), (JSON, "NaN"), (JSON, "[" * 2000 + "]" * 2000),
        (SHAPE, "AA=="), (SHAPE, {"wkb": "AA==", "srid": None}), (SHAPE, {"wkb": 5, "srid": 0}),
        (SHAPE, {"wkb": base64_of(struct.pack(">BIdd", 0, 1, 1, 2)), "srid": 0}), (SHAPE, {"srid": 0}),
        (SHAPE, {"wkb": base64_of(bytes(9)), "srid": 0}),
        (PLACE, {"wkb": VALUES[-2][2], "srid": 0}), (SHAPE, {**VALUES[-4][2], "srid": 2**32}),
        (VECTOR, [1.0] * 4), (VECTOR, []), (VECTOR, ["1"]), (VECTOR, [True]), (VECTOR, [1e39]), (VECTOR, "AAAA"),
    ],
)  # fmt: skip
def test_what_a_column_cannot_hold_is_refused_by_its_name(each: Column, bad: Any) -> None:
    each = column(each.kind, each.declared, "v", is_nullable=each is not ID, **_of(each))
    value = message(each, bad, sequence="77")
    for of in (reader(table(each)), _warm(each)):
        change = of.read(json.dumps(value).encode())
        assert isinstance(change, Refused) and (change.kind, change.version) == (INSERT, 77)
        ((number, refused),) = change.rows
        assert number == 5 and isinstance(refused, Unreadable)
        assert change.reason == refused.reason
        assert change.reason.startswith(f"column v holds what {each.declared} cannot hold: if the table was altered, ")


def _of(each: Column) -> dict[str, Any]:
    names = ("is_unsigned", "length", "precision", "scale", "labels", "charset")
    return {name: getattr(each, name) for name in names}


def _warm(each: Column) -> EnvelopeReader:
    """A reader that has read a message of viewtail."""
    of = reader(table(each))
    of.read(json.dumps(message(each, sequence="7")).encode()) if each.is_nullable else None
    return of


def test_a_refused_update_keeps_what_can_be_read_of_both_rows() -> None:
    value = message(NAME, sequence="7", op="u")
    value |= {"before": {"id": 5, "c": 7}, "after": {"id": 5, "c": "ann"}}
    change = reader(table(NAME)).read(json.dumps(value).encode())
    assert isinstance(change, Refused) and change.kind == UPDATE
    (before, after) = change.rows
    assert before[0] == 5 and isinstance(before[1], Unreadable) and after == (5, "ann")


def test_a_column_that_is_not_in_the_message_is_refused_by_its_name() -> None:
    value = message(NAME, sequence="7")
    del value["after"]["c"]
    change = reader(table(NAME)).read(json.dumps(value).encode())
    assert isinstance(change, Refused) and change.reason.startswith("column c is not in the message: ")


# --- What Debezium wrote ---


def _place(file: int, position: int) -> int:
    """Of an insert."""
    return (1 << 53 | file << 32 | position >> 4) + 1


DEFAULT_FORM: list[tuple[Column, Any, Any]] = [
    (ID, -5, -5),
    (UNSIGNED, -1, 2**64 - 1),
    (UNSIGNED, 7, 7),
    (UNSIGNED, "AP//////////", 2**64 - 1),
    (UNSIGNED, "Bw==", 7),
    (column(Kind.INTEGER, "tinyint(1)"), True, 1),
    (column(Kind.INTEGER, "tinyint(1)"), False, 0),
    (column(Kind.INTEGER, "tinyint(1)"), 5, 5),
    (BIT, True, 1),
    (BITS, "AQM=", 0x301),
    (YEAR, 2024, 2024),
    (YEAR, 1900, 0),
    (PRICE, "/2o=", Decimal("-1.50")),
    (PRICE, "AA==", Decimal("0.00")),
    (PRICE, "-1.50", Decimal("-1.50")),
    (PRICE, 1.5, Decimal("1.50")),
    (PRICE, -2, Decimal("-2.00")),
    (column(Kind.DECIMAL, "decimal(10,0)", precision=10), "-12", Decimal("-12")),
    (column(Kind.DECIMAL, "decimal(10,0)", precision=10), "BNI=", Decimal("1234")),
    (column(Kind.DECIMAL, "decimal(10,0)", precision=10), 1234, Decimal("1234")),
    (FLOAT, 1.1, struct.unpack("f", struct.pack("f", 1.1))[0]),
    (DOUBLE, 1e-07, 1e-07),
    (NAME, "ann\ufffd", "ann\ufffd"),
    (RAW, "AP8=", b"\x00\xff"),
    (ENUM, "", ""),
    (DATE, 19782, "2024-02-29"),
    (DATE, 0, "1970-01-01"),
    (DATE, -719162, "0001-01-01"),
    (DATE, "2024-02-29Z", "2024-02-29"),
    (TIME, -3020399000000, "-838:59:59"),
    (TIME, 86400000000, "24:00:00"),
    (TIME3, -500000, "-00:00:00.500"),
    (TIME3, "12:00:00.5Z", "12:00:00.500"),
    (DATETIME, 1704164645000, "2024-01-02 03:04:05"),
    (DATETIME, -30610160213000, "1000-01-01 17:43:07"),
    (column(Kind.DATETIME, "datetime(3)", scale=3), 1704164645120, "2024-01-02 03:04:05.120"),
    (DATETIME6, 1704164645120000, "2024-01-02 03:04:05.120000"),
    (DATETIME6, "2024-01-02T03:04:05.12Z", "2024-01-02 03:04:05.120000"),
    (TIMESTAMP3, "2024-01-02T03:04:05.120Z", "2024-01-02 03:04:05.120"),
    (TIMESTAMP3, "2024-01-02T03:04:05Z", "2024-01-02 03:04:05.000"),
    (JSON, '{"a":[1,null,"x y"]}', '{"a": [1, null, "x y"]}'),
    (SHAPE, {"wkb": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "srid": None}, struct.pack("<IBIdd", 0, 1, 1, 1, 2)),
    (PLACE, {"x": 1.5, "y": -2.0, "wkb": base64_of(POINT[4:]), "srid": 4326}, POINT),
    (SHAPE, {"wkb": "AQEAAAAAAAAAAADwPwAAAAAAAABA", "srid": -1}, struct.pack("<IBIdd", 2**32 - 1, 1, 1, 1, 2)),
    (VECTOR, [1.5, -0.1, 1e20], struct.pack("<3f", 1.5, -0.1, 1e20)),
    (NAME, None, None),
]  # fmt: skip


@pytest.mark.parametrize("value", DEFAULT_FORM, ids=shown)
def test_a_value_of_debezium_is_the_tables(value: tuple[Column, Any, Any]) -> None:
    each, found, wanted = value
    each = column(each.kind, each.declared, "v", **_of(each))
    change = read(each, found)
    assert isinstance(change, RowChanges), change.reason
    assert repr(change.rows) == repr([(5, wanted)])
    assert (change.kind, change.version) == (INSERT, _place(7, 1234))


NOT_NULL_DATE = column(Kind.DATE, is_nullable=False)
NOT_NULL_DATETIME = column(Kind.DATETIME, is_nullable=False)
NOT_NULL_NOW = column(Kind.TIMESTAMP, is_nullable=False, default="CURRENT_TIMESTAMP")
WHOLE = column(Kind.DECIMAL, "decimal(10,0)", precision=10)
LONG = column(Kind.DECIMAL, "decimal(16,2)", precision=16, scale=2)
LATIN = column(Kind.TEXT, "varchar(40)", length=40, charset="latin1")
DEFAULTED = column(Kind.TEXT, "varchar(40)", length=40, default="new")


@pytest.mark.parametrize(
    ("each", "found", "cause"),
    [
        (NOT_NULL_DATE, 0, "a date that Debezium writes for a zero or impossible date too"),
        (NOT_NULL_DATE, "1970-01-01Z", "a date that Debezium writes for a zero or impossible date too"),
        (NOT_NULL_DATE, None, "is null, and the column is NOT NULL"),
        (NOT_NULL_DATETIME, 0, "a date that Debezium writes for a zero or impossible date too"),
        (column(Kind.DATE, is_nullable=False, default="2001-02-03"), 11356, "for a zero or impossible date too"),
        (column(Kind.TIMESTAMP, is_nullable=False, default="2020-01-01 00:00:00"), "2020-01-01T00:00:00Z", "date too"),
        (column(Kind.TIMESTAMP, default="CURRENT_TIMESTAMP"), "1970-01-01T00:00:00Z", "for NULL too"),
        (column(Kind.DATETIME, default="CURRENT_TIMESTAMP"), 0, "for NULL too"),
        (LATIN, "ann\ufffd", "a character that Debezium could not read"),
        (LONG, 1.5, "a number that is not exact"),
        (WHOLE, "9000", "another number in each decimal.handling.mode"),
        (DEFAULTED, "new", "its default, which Kafka Connect writes for NULL too"),
        (column(Kind.INTEGER, "int", default="5"), 5, "its default, which"),
        (column(Kind.INTEGER, "bit(3)", length=3, default="b'101'"), "BQ==", "its default, which"),
        (column(Kind.DECIMAL, "decimal(10,2)", precision=10, scale=2, default="1.50"), "AJY=", "its default, which"),
        (column(Kind.BYTES, "varbinary(8)", length=8, default="0x6162"), "YWI=", "its default, which"),
        (column(Kind.DOUBLE, "double", default="1.5"), 1.5, "its default, which"),
        (column(Kind.FLOAT, "float", default="1.1"), 1.1, "its default, which"),
    ],
)  # fmt: skip
def test_what_debezium_may_have_lost_is_refused_by_name(each: Column, found: Any, cause: str) -> None:
    change = read(each, found)
    assert isinstance(change, Refused)
    assert change.reason.startswith("column c ") and cause in change.reason


@pytest.mark.parametrize(
    ("each", "found", "wanted"),
    [
        (DATE, None, None),
        (column(Kind.TIMESTAMP, is_nullable=False), "1970-01-01T00:00:00Z", "0000-00-00 00:00:00"),
        (NOT_NULL_NOW, "1970-01-01T00:00:00Z", "0000-00-00 00:00:00"),
        (column(Kind.TEXT, "varchar(40)", length=40, is_nullable=False, default="new"), "new", "new"),
        (column(Kind.TEXT, "varchar(40)", length=40, default="uuid()"), "new", "new"),
        (column(Kind.INTEGER, "int", default="uuid()"), 5, 5),
    ],
)  # fmt: skip
def test_what_can_stand_for_one_value_only_is_read(each: Column, found: Any, wanted: Any) -> None:
    assert read(each, found).rows == [(5, wanted)]


@pytest.mark.parametrize(
    ("each", "found"),
    [
        (PRICE, 1.005), (PRICE, True), (PRICE, [1]),
        (PRICE, "AAA="), (PRICE, "AJYAAAAAAA=="), (WHOLE, "x"), (WHOLE, ""),
        (TIME, 1), (TIME, 839 * 3600 * 10**6), (TIME3, 1500), (DATETIME, 1500), (DATETIME, 10**15), (DATE, 10**9),
        (UNSIGNED, "AQAAAAAAAAAA"), (UNSIGNED, -(2**63) - 1), (JSON, "{"), (JSON, 5), (BIT, 1), (BITS, "AQ=="),
    ],
)  # fmt: skip
def test_what_debezium_cannot_have_read_from_the_column_is_refused(each: Column, found: Any) -> None:
    change = read(each, found)
    assert isinstance(change, Refused)
    assert change.reason.startswith(f"column c holds what {each.declared} cannot hold: ")


def test_labels_that_the_server_cannot_show_are_taken_as_they_come() -> None:
    one, many = (
        column(Kind.ENUM, "enum(...)", labels=("a?", "b")),
        column(Kind.SET, "set(...)", labels=("a?", "b", "?")),
    )
    for each, held in ((one, "a😀"), (one, "a?"), (one, "b"), (one, ""), (many, "a😀,b,😀"), (many, "b"), (many, "")):
        assert reader(table(each)).read(written(each, inserted(5, held))[0]).rows == [(5, held)]
    for each, bad in ((one, "c😀"), (one, "a"), (many, "b,a😀"), (many, "a😀,a😀")):
        assert isinstance(reader(table(each)).read(written(each, inserted(5, bad))[0]), Refused)


def test_dates_are_read_however_many_there_were() -> None:
    days = [(date(1990, 1, 1) + timedelta(days=at)).isoformat() for at in range(12_000)]
    of = reader(table(DATE, column(Kind.DATETIME, "datetime", "e")))
    changes = [inserted(5, day, f"{day} 00:00:00") for day in [*days, *days[:3]]]
    messages = envelope(table(DATE, column(Kind.DATETIME, "datetime", "e"))).messages(changes, 0)
    found = [of.read(value).rows[0] for _, value, _ in messages if value is not None]
    assert found == [(5, day, f"{day} 00:00:00") for day in [*days, *days[:3]]]


def test_a_default_is_itself_where_the_converter_keeps_null() -> None:
    assert read(DEFAULTED, "new", shows_default_for_null=False).rows == [(5, "new")]


def test_a_key_that_debezium_may_have_lost_is_rejected() -> None:
    value = json.dumps(message(NOT_NULL_DATE, 0)).encode()
    of = table(NOT_NULL_DATE)
    lost = "column c of the key holds a date that Debezium writes for a zero or impossible date too"
    with pytest.raises(MalformedEnvelopeError, match=lost):
        EnvelopeReader(Followed(of, ("id", "c")), [NOT_NULL_DATE]).read(value)


def test_a_float_of_a_snapshot_is_refused_since_six_digits_are_left_of_it() -> None:
    change = read(FLOAT, 1.5, op="r")
    assert isinstance(change, Refused) and "snapshot rounded to six digits" in change.reason
    assert read(column(Kind.FLOAT, "float(7,2)"), 1.5, op="r").rows == [(5, 1.5)]


def test_labels_of_the_binlog_are_escaped_and_those_of_a_snapshot_are_not() -> None:
    labels = ("c,d", "b\\s", "n\nl")
    each, many = column(Kind.ENUM, "enum(...)", labels=labels), column(Kind.SET, "set(...)", labels=labels[1:])
    for held, escaped in zip(labels, ("c\\,d", "b\\\\s", "n\\nl"), strict=True):
        assert read(each, escaped).rows == [(5, held)] and read(each, held, op="r").rows == [(5, held)]
        assert isinstance(read(each, held), Refused)
    assert read(many, "b\\\\s,n\\nl").rows == [(5, "b\\s,n\nl")]


@pytest.mark.parametrize(
    ("each", "schema", "found", "wanted"),
    [
        (WHOLE, {"type": "string"}, "9000", Decimal(9000)),
        (WHOLE, {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal"}, "9000", Decimal(-570060)),
        (TIME3, {"type": "int32", "name": "io.debezium.time.Time"}, 1500, "00:00:01.500"),
        (TIME3, {"type": "int64", "name": "io.debezium.time.NanoTime"}, 1500000000, "00:00:01.500"),
        (TIME3, {"type": "int64", "name": "io.debezium.time.MicroTime"}, 1500000, "00:00:01.500"),
        (DATETIME, {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, 1000000, "1970-01-01 00:00:01"),
        (DATETIME, {"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, 10**9, "1970-01-01 00:00:01"),
        (DATETIME, {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}, 1000, "1970-01-01 00:00:01"),
        (DEFAULTED, {"type": "string"}, "new", "new"),
        (NAME, {"type": "string", "default": "x"}, "y", "y"),
    ],
)
def test_a_schema_says_what_a_value_means(each: Column, schema: dict[str, Any], found: Any, wanted: Any) -> None:
    assert read(each, found, schema=schema).rows == [(5, wanted)]


def test_a_schema_says_what_the_default_is() -> None:
    change = read(NAME, "x", schema={"type": "string", "default": "x"})
    assert isinstance(change, Refused) and "its default" in change.reason


def test_each_message_is_read_by_its_own_schema() -> None:
    def whole(name: str, found: Any) -> bytes:
        row = [{"type": "int32", "field": "id"}, {"type": "int64", "name": f"io.debezium.time.{name}", "field": "c"}]
        schema = {"fields": [{"fields": row, "field": "after"}]}
        text = json.dumps({"schema": schema, "payload": message(TIME, found)}, separators=(",", ":"))
        return text.encode()

    of = reader(table(TIME))
    messages = [
        whole("MicroTime", 5_000_000),
        whole("Time", 5_000),
        whole("MicroTime", 6_000_000),
        whole("Time", 6_000),
    ]
    assert [of.read(one).rows for one in messages] == [[(5, f"00:00:0{n}")] for n in (5, 5, 6, 6)]
    assert of.read(json.dumps(message(TIME, 7_000_000)).encode()).rows == [(5, "00:00:07")], "and by none"
    assert of.read(written(TIME, inserted(5, "-00:00:08"))[0]).rows == [(5, "-00:00:08")], "and by viewtail's form"
    for at in range(300):  # each is a schema of its own, in Kafka Connect's layout or in another
        value = whole("Micro" + "x" * at, 9_000_000)
        assert of.read(value if at < 150 else json.dumps(json.loads(value)).encode()).rows == [(5, "00:00:09")]
        assert at < 150 or of.read(value).rows == [(5, "00:00:09")]
    assert of.read(messages[1]).rows == [(5, "00:00:05")]
    for at in range(300):
        assert of.read(json.dumps(json.loads(whole(f"Micro{at}", 9_000_000))).encode()).rows == [(5, "00:00:09")]
    assert of.read(messages[1]).rows == [(5, "00:00:05")]


def test_versions_of_debeziums_messages_follow_the_binlog() -> None:
    places = [("binlog.000001", 4), ("binlog.000001", 30), ("mysql-bin.000002", 4), ("a.b.1000000", 2**36 - 17)]
    versions = []
    for file, position in places:
        value = message(NAME, "ann")
        value["source"] |= {"file": file, "pos": position}
        versions.append(reader(table(NAME)).read(json.dumps(value).encode()).version)
    assert versions == sorted(set(versions))
    assert versions[1] == _place(1, 30) and versions[-1] <= MAX_VERSION


def test_a_key_that_one_event_deletes_and_inserts_again_has_two_versions_before_the_next_event() -> None:
    """Where keys move up."""
    versions = []
    for position, op in ((400, "d"), (400, "c"), (433, "d")):  # an event has 33 bytes at least
        value = message(NAME, "ann")
        value["source"] |= {"pos": position}
        image = value["after"]
        value |= {"op": op, "before": image if op == "d" else None, "after": image if op == "c" else None}
        versions.append(reader(table(NAME)).read(json.dumps(value).encode()).version)
    assert versions == sorted(set(versions))


# --- What is no message of the table ---


def _changed(**source: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda value: {**value, "source": {**value["source"], **source}}


def _with(**parts: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda value: {**value, **parts}


@pytest.mark.parametrize(
    ("spoil", "seen"),
    [
        (_with(source=None), "no change of a row"),
        (_with(source=[]), "no change of a row"),
        (_with(op=5), "no change of a row"),
        (_with(op="t"), "its op is none of"),
        (_with(op="C"), "its op is none of"),
        (_with(after=None), "lacks the row"),
        (_with(after=[5, "ann"]), "lacks the row"),
        (_with(after="id"), "lacks the row"),
        (_with(op="d"), "lacks the row"),
        (_with(op="u", after=None), "lacks the row"),
        (_with(after={"c": "ann"}), "column id of the key is not in the message"),
        (_with(after={"id": SECRET, "c": "ann"}), "column id of the key holds what int cannot hold"),
        (_with(after={"id": None, "c": "ann"}), "column id of the key"),
        (_changed(table="users"), "of another table than shop.user"),
        (_changed(db="shop2"), "of another table than shop.user"),
        (_changed(db=None), "of another table than shop.user"),
        (_changed(sequence="-1"), "sequence is no version"),
        (_changed(sequence=5), "sequence is no version"),
        (_changed(sequence="1_0"), "sequence is no version"),
        (_changed(sequence=str(MAX_VERSION + 1)), "sequence is no version"),
        (_changed(sequence='["1","2"]'), "sequence is no version"),
        (_changed(sequence=None, file="binlog"), "does not say a place in a binlog"),
        (_changed(sequence=None, file=""), "does not say a place in a binlog"),
        (_changed(sequence=None, file=None), "does not say a place in a binlog"),
        (_changed(sequence=None, file="b.9999999999"), "does not say a place in a binlog"),
        (_changed(sequence=None, pos=None), "does not say a place in a binlog"),
        (_changed(sequence=None, pos=-1), "does not say a place in a binlog"),
        (_changed(sequence=None, pos=True), "does not say a place in a binlog"),
        (_changed(sequence=None, pos=2**36), "does not say a place in a binlog"),
        (lambda value: {"schema": {}, "payload": value}, "its schema is not that of an envelope"),
        (lambda value: {"schema": {"fields": [{"field": "after"}]}, "payload": value}, "its schema is not that of"),
        (lambda value: {"schema": None, "payload": value}, "its schema is not that of an envelope"),
        (lambda value: {"schema": {}}, "no change of a row"),
        (lambda value: {"payload": value}, "no change of a row"),
        (lambda value: [value], "no change of a row"),
        (lambda value: None, "no change of a row"),
        (lambda value: 5, "no change of a row"),
        (lambda value: SECRET, "no change of a row"),
        (lambda value: {}, "no change of a row"),
    ],
)
def test_what_is_no_change_of_the_table_is_rejected(spoil: Callable[[Any], Any], seen: str) -> None:
    bad = json.dumps(spoil(message(NAME, SECRET, sequence="7"))).encode()
    for of in (reader(table(NAME)), _warm(NAME)):
        with pytest.raises(MalformedEnvelopeError) as rejected:
            of.read(bad)
        assert seen in str(rejected.value) and SECRET not in str(rejected.value)
        assert str(rejected.value).endswith("look at what writes the topic")


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"null", b"{", b"\x00\x00\x00\x00\x07avro", b'{"schema":', b'{"schema":{},"payload":}', b"\xff\xfe",
        b'{"after":"\xff"}', b'{"after":"\\ud800"}', b'{"a":NaN}', b'{"a":1e999}', b"[" * 5000, b'{"schema":' * 5000,
        b',"source":', b'{"before":null,"after":{},"source":', b'{"schema":[],"payload":[]}}',
    ],
)  # fmt: skip
def test_bytes_that_are_no_message_are_rejected(bad: bytes) -> None:
    of = _warm(NAME)
    for _ in range(2):
        with pytest.raises(MalformedEnvelopeError):
            of.read(bad)


@pytest.mark.parametrize("with_schemas", [False, True])
def test_a_message_that_is_cut_or_goes_on_is_rejected(with_schemas: bool) -> None:
    (good,) = written(NAME, inserted(5, "ann"), with_schemas=with_schemas)
    of = reader(table(NAME))
    assert of.read(good).rows == [(5, "ann")]
    for bad in (good[:-1], good + b"}", good + b"x", b"x" + good, good[: len(good) // 2], good[:-1] + b"]"):
        with pytest.raises(MalformedEnvelopeError):
            of.read(bad)
    assert of.read(good).rows == [(5, "ann")]
