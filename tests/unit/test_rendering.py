"""Rendered keys are read back as they were, and every store gets the form that docs/types.md lists."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from projectors.stores.redis.packing import redis_text
from viewtail.changes.errors import MisuseError
from viewtail.changes.rendering import (
    OPTIONAL_FIELD_TYPES,
    in_a_line,
    integer_parser,
    json_value,
    key_renderer,
    out_of_a_line,
    parse_key,
    render_key,
    row_value,
    search_mapping,
    search_value,
)
from viewtail.changes.tables import Column, Kind


def column(kind: Kind, declared: str = "", name: str = "c", **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=declared or kind.value, is_nullable=False, **more)


LABELS = ("a", "b:c", "100%", "{x}", "é")
CLOCK = st.builds("{:02d}:{:02d}:{:02d}".format, *[st.integers(0, 59)] * 3)
OF_A_DAY = st.builds("{:02d}:{:02d}:{:02d}".format, st.integers(0, 23), *[st.integers(0, 59)] * 2)
DAY = st.builds("{:04d}-{:02d}-{:02d}".format, st.integers(0, 9999), st.integers(0, 12), st.integers(0, 31))
SIGN = st.sampled_from(("", "-"))


def in_order(chosen: set[str]) -> str:
    return ",".join(label for label in LABELS if label in chosen)


COLUMNS: list[tuple[Column, st.SearchStrategy[Any]]] = [
    (column(Kind.INTEGER, "bigint"), st.integers(-(2**63), 2**63 - 1)),
    (column(Kind.INTEGER, "bigint unsigned", is_unsigned=True), st.integers(0, 2**64 - 1)),
    (column(Kind.TEXT, "varchar(64)"), st.text(st.characters(exclude_categories=["Cs"]))),
    (column(Kind.TEXT, "varchar(64)"), st.text("ab%{}:25AD")),
    (column(Kind.BYTES, "varbinary(64)"), st.binary()),
    (column(Kind.BYTES, "binary(4)", length=4), st.binary(min_size=4, max_size=4)),
    (column(Kind.DECIMAL, "decimal(20,3)", scale=3), st.decimals(-(10**17), 10**17, places=3)),
    (column(Kind.DECIMAL, "decimal(20,0)"), st.decimals(-(10**17), 10**17, places=0)),
    (column(Kind.DOUBLE), st.floats(allow_nan=False, allow_infinity=False)),
    (column(Kind.ENUM, "enum(...)", labels=LABELS), st.sampled_from(("", *LABELS))),
    (column(Kind.SET, "set(...)", labels=LABELS), st.sets(st.sampled_from(LABELS)).map(in_order)),
    (column(Kind.DATE), DAY),
    (
        column(Kind.TIME, "time(3)", scale=3),
        st.builds("{}{}.{:03d}".format, SIGN, CLOCK, st.integers(0, 999)),
    ),
    (column(Kind.DATETIME), st.builds("{} {}".format, DAY, OF_A_DAY)),
    (
        column(Kind.TIMESTAMP, "timestamp(1)", scale=1),
        st.builds("{} {}.{}".format, DAY, OF_A_DAY, st.integers(0, 9)),
    ),
]


@given(st.data(), st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4))
def test_a_rendered_key_reads_back_as_the_same_key(data: st.DataObject, chosen: list[Any]) -> None:
    columns = [each for each, _ in chosen]
    key = tuple(data.draw(values) for _, values in chosen)
    text = render_key(key, columns)
    assert parse_key(text, columns) == key
    assert render_key(parse_key(text, columns), columns) == text
    assert key_renderer(columns)(key) == text
    assert "{" not in text and "}" not in text and text.count(":") == len(columns) - 1


@given(st.data(), st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3))
def test_two_keys_never_share_a_text(data: st.DataObject, chosen: list[Any]) -> None:
    columns = [each for each, _ in chosen]
    one, other = (tuple(data.draw(values) for _, values in chosen) for _ in range(2))
    if repr(one) != repr(other):
        assert render_key(one, columns) != render_key(other, columns)


@given(st.text(), st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3))
def test_any_text_is_a_key_or_a_misuse_that_names_the_column(text: str, chosen: list[Any]) -> None:
    columns = [each for each, _ in chosen]
    says = ""
    try:
        parse_key(text, columns)
    except MisuseError as error:
        says = str(error)
    assert not says or "column c" in says or "part" in says


@given(st.one_of(st.integers(-(10**21), 10**21).map(str), st.text("-+0123456789_ \u0661", max_size=6)), st.booleans())
def test_a_whole_number_is_a_key_where_the_longer_way_says_so(text: str, is_unsigned: bool) -> None:
    of = column(Kind.INTEGER, "bigint", "id", is_unsigned=is_unsigned)
    try:
        slow = parse_key(text, [of])
        slow = slow if render_key(slow, [of]) == text else None
    except MisuseError:
        slow = None
    assert integer_parser(of)(text) == slow


@pytest.mark.parametrize(
    ("text", "wrong", "says"),
    [
        ("x1", column(Kind.INTEGER, "int", "id"), r"column id \(int\): expected a whole number"),
        ("-1", column(Kind.INTEGER, "int unsigned", "id", is_unsigned=True), "column id"),
        ("1:2", column(Kind.TEXT, "varchar(9)", "email"), "has 2 parts.*%3A"),
        ("50%", column(Kind.TEXT, "varchar(9)", "email"), "email.*%25"),
        ("abc", column(Kind.BYTES, "binary(2)", "h", length=2), "h.*hexadecimal"),
        ("00", column(Kind.BYTES, "binary(2)", "h", length=2), "h.*as many as the column has"),
        ("1.234", column(Kind.DECIMAL, "decimal(5,2)", "d", scale=2), "column d"),
        ("2024-1-1", column(Kind.DATE, name="d"), "YYYY-MM-DD"),
        ("2024-13-01", column(Kind.DATE, name="d"), "YYYY-MM-DD"),
        ("2024-01-02 24%3A00%3A00", column(Kind.DATETIME, name="d"), "YYYY-MM-DD"),
        ("zz", column(Kind.ENUM, "enum('a','b:c')", "e", labels=("a", "b:c")), "one of a, b%3Ac"),
    ],
)
def test_a_key_of_the_wrong_form_names_column_and_form(text: str, wrong: Column, says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        parse_key(text, [wrong])


def test_keys_look_as_the_design_says() -> None:
    columns = [column(Kind.INTEGER), column(Kind.BYTES), column(Kind.TEXT), column(Kind.DATETIME)]
    key = (7, b"\x00\xff", "a:{b}%", "2024-01-02 03:04:05")
    assert render_key(key, columns) == "7:00ff:a%3A%7Bb%7D%25:2024-01-02 03%3A04%3A05"
    assert parse_key("1.5", [column(Kind.DECIMAL, scale=3)]) == (Decimal("1.500"),)


def test_a_key_in_a_line_of_output_is_taken_where_it_is_typed_again() -> None:
    columns = [column(Kind.TEXT), column(Kind.TEXT)]
    key = ("a\tb\r\n", "%09")
    shown = in_a_line(render_key(key, columns))
    assert shown == "a%09b%0D%0A:%2509"
    assert parse_key(shown, columns) == key
    assert out_of_a_line(shown) == render_key(key, columns), "where keys are looked for as they are kept"


def test_redis_gets_plain_numbers_and_raw_bytes() -> None:
    assert redis_text(Kind.INTEGER)(-5) == "-5"
    assert redis_text(Kind.DECIMAL)(Decimal("0E-30")) == "0." + "0" * 30
    assert redis_text(Kind.FLOAT)(1.2345677614212036) == "1.2345677614212036"
    assert redis_text(Kind.BYTES)(b"\xff") == b"\xff"
    assert redis_text(Kind.JSON)('{"a": 1}') == '{"a": 1}'
    assert redis_text(Kind.TIMESTAMP)("2024-01-02 03:04:05") == "2024-01-02 03:04:05"


def written(each: Column, value: Any) -> bytes:
    convert = json_value(each)
    return orjson.dumps(value if convert is None else convert(value))


def test_json_documents_keep_every_value_exact() -> None:
    assert written(column(Kind.DECIMAL), Decimal("0.000000010")) == b'"0.000000010"'
    assert written(column(Kind.JSON), '{"a": [1.50, 18446744073709551615]}') == b'{"a": [1.50, 18446744073709551615]}'
    assert written(column(Kind.BYTES), b"\x00\xff") == b'"AP8="'
    assert written(column(Kind.INTEGER), 2**64 - 1) == b"18446744073709551615"
    assert written(column(Kind.DATE), "0000-00-00") == b'"0000-00-00"'


def test_a_users_function_sees_json_parsed_and_all_else_as_it_is() -> None:
    parse = row_value(column(Kind.JSON))
    assert parse is not None and parse('{"a": [1, null]}') == {"a": [1, None]}
    assert all(row_value(column(kind)) is None for kind in Kind if kind is not Kind.JSON)


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        (Kind.DATE, "2024-02-29", "2024-02-29"),
        (Kind.DATE, "2023-02-29", None),
        (Kind.DATE, "2000-02-29", "2000-02-29"),
        (Kind.DATE, "1900-02-29", None),
        (Kind.DATE, "2024-04-31", None),
        (Kind.DATE, "2024-00-10", None),
        (Kind.DATE, "0000-00-00", None),
        (Kind.DATETIME, "2024-01-02 03:04:05.678", "2024-01-02T03:04:05.678"),
        (Kind.TIMESTAMP, "2024-01-02 03:04:05", "2024-01-02T03:04:05Z"),
        (Kind.TIMESTAMP, "0000-00-00 00:00:00", None),
        (Kind.SET, "a,b", ["a", "b"]),
        (Kind.SET, "", []),
        (Kind.DECIMAL, Decimal("1.50"), "1.50"),
    ],
)
def test_search_documents_hold_what_elasticsearch_takes(kind: Kind, value: Any, shown: Any) -> None:
    convert = search_value(column(kind))
    assert convert is not None and convert(value) == shown


@pytest.mark.parametrize(
    ("declared", "kind", "type_"),
    [
        ("tinyint", Kind.INTEGER, "byte"),
        ("tinyint unsigned", Kind.INTEGER, "short"),
        ("mediumint unsigned", Kind.INTEGER, "integer"),
        ("int unsigned", Kind.INTEGER, "long"),
        ("bigint", Kind.INTEGER, "long"),
        ("bigint(20) unsigned", Kind.INTEGER, "unsigned_long"),
        ("year", Kind.INTEGER, "short"),
        ("bit(63)", Kind.INTEGER, "long"),
        ("bit(64)", Kind.INTEGER, "unsigned_long"),
        ("longtext", Kind.TEXT, "text"),
        ("json", Kind.JSON, "object"),
        ("binary(16)", Kind.BYTES, "binary"),
        ("timestamp(6)", Kind.TIMESTAMP, "date"),
        ("decimal(10,2)", Kind.DECIMAL, "double"),
        ("time", Kind.TIME, "keyword"),
    ],
)
def test_mappings_follow_the_column_type(declared: str, kind: Kind, type_: str) -> None:
    length = int(declared[4:-1]) if declared.startswith("bit") else 0
    mapped = search_mapping(column(kind, declared, is_unsigned="unsigned" in declared, length=length))
    assert mapped["type"] == type_
    assert mapped["type"] != "unsigned_long" or OPTIONAL_FIELD_TYPES[mapped["type"]] == {"type": "keyword"}


def test_short_text_can_be_searched_exactly_too() -> None:
    assert search_mapping(column(Kind.TEXT, "varchar(64)")) == {
        "type": "text",
        "fields": {"keyword": {"type": "keyword", "ignore_above": 256}},
    }
    assert search_mapping(column(Kind.TEXT, "text")) == {"type": "text"}
    assert search_mapping(column(Kind.TEXT, "inet6")) == {"type": "keyword"}
    assert search_mapping(column(Kind.JSON)) == {"type": "object", "enabled": False}


def test_every_kind_that_is_supported_has_a_mapping_and_a_text() -> None:
    for kind in Kind:
        if kind is not Kind.UNSUPPORTED:
            assert search_mapping(column(kind))["type"]
            assert callable(redis_text(kind))
