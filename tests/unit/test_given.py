"""Values and keys as people give them: what the column can hold, and what is refused with the forms that it has."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from viewtail.changes.errors import MisuseError
from viewtail.changes.tables import Column, Kind
from viewtail.operations.given import (
    canonical_value,
    in_hexadecimal,
    key_of_text,
    key_spellings,
    other_reading,
    plain_key_of_text,
)


def column(kind: Kind, declared: str, **more: Any) -> Column:
    return Column(name="c", kind=kind, declared=declared, is_nullable=False, **more)


VARBINARY = column(Kind.BYTES, "varbinary(8)", length=8)
BINARY = column(Kind.BYTES, "binary(4)", length=4)
BLOB = column(Kind.BYTES, "blob", length=65535)
DECIMAL = column(Kind.DECIMAL, "decimal(5,2)", precision=5, scale=2)
LATIN = column(Kind.TEXT, "varchar(5)", charset="latin1", length=5)
TIMESTAMP = column(Kind.TIMESTAMP, "timestamp")


@pytest.mark.parametrize(
    ("of", "given", "value"),
    [
        (VARBINARY, "de", b"de"),
        (VARBINARY, "tide", b"tide"),
        (VARBINARY, "für", "für".encode()),
        (VARBINARY, "0xde", b"\xde"),
        (VARBINARY, "0X6465", b"de"),
        (VARBINARY, "0x", b""),
        (VARBINARY, "", b""),
        (VARBINARY, b"0xde", b"0xde"),
        (VARBINARY, "0011223344556677", bytes.fromhex("0011223344556677")),  # too long for a text
        (BINARY, "dead", b"dead"),
        (BINARY, "deadbeef", b"\xde\xad\xbe\xef"),
        (BINARY, "0xDEADbeef", b"\xde\xad\xbe\xef"),
        (BLOB, "de", b"de"),
        (column(Kind.INTEGER, "int"), "007", 7),
        (column(Kind.INTEGER, "tinyint(1)"), True, 1),
        (column(Kind.INTEGER, "year"), "0000", 0),
        (column(Kind.INTEGER, "bit(3)", length=3, is_unsigned=True), "7", 7),
        (DECIMAL, "999.9", Decimal("999.90")),
        (column(Kind.TEXT, "char(5)", charset="utf8mb4", length=5), "ab  ", "ab"),
        (LATIN, "für", "für"),
        (
            column(Kind.TEXT, "uuid", charset="ascii", length=36),
            "123E4567E89B12D3A456426655440000",
            "123e4567-e89b-12d3-a456-426655440000",
        ),
        (column(Kind.TEXT, "inet6", charset="ascii", length=45), "2001:0DB8::1", "2001:db8::1"),
        (column(Kind.TEXT, "inet6", charset="ascii", length=45), "::ffff:c000:0201", "::ffff:192.0.2.1"),
        (TIMESTAMP, "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    ],
)
def test_a_value_is_what_the_column_would_hold_of_it(of: Column, given: Any, value: Any) -> None:
    found = canonical_value(given, of)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("of", "given", "expected"),
    [
        (VARBINARY, "0xd", "at most 8 bytes: as a text, or as 0x and two hexadecimal digits a byte"),
        (VARBINARY, "0xtide", "at most 8 bytes: as a text, or as 0x"),
        (VARBINARY, "longer than it is", "at most 8 bytes: as a text, or as 0x"),
        (VARBINARY, b"longer than it is", "at most 8 bytes"),
        (VARBINARY, 5, "give bytes, or a str"),
        (BINARY, "abc", r"expected 4 bytes: as a text, or as 0x"),
        (BINARY, "0xdead", r"expected 4 bytes"),
        (column(Kind.INTEGER, "int"), " 7", "a whole number"),
        (column(Kind.INTEGER, "int"), "+7", "a whole number"),
        (column(Kind.INTEGER, "int"), "7.0", "a whole number"),
        (column(Kind.INTEGER, "int"), "NULL", "a whole number"),
        (column(Kind.INTEGER, "tinyint(1)"), "true", "a whole number; true is 1, false is 0"),
        (column(Kind.INTEGER, "tinyint"), "128", "a whole number from -128 to 127"),
        (column(Kind.INTEGER, "int unsigned", is_unsigned=True), 2**32, "a whole number from 0 to 4294967295"),
        (column(Kind.INTEGER, "year"), "24", "a whole number from 1901 to 2155"),
        (column(Kind.INTEGER, "bit(3)", length=3, is_unsigned=True), "8", "a whole number from 0 to 7"),
        (DECIMAL, "1000", "up to 3 digits before the point and 2 behind it"),
        (DECIMAL, Decimal("0.001"), "no more digits after the point"),
        (column(Kind.DOUBLE, "double"), "1e999", "a number that the column can hold"),
        (column(Kind.DOUBLE, "double"), float("nan"), "a number that the column can hold"),
        (column(Kind.FLOAT, "float"), "1e300", "a number that the column can hold"),
        (column(Kind.TEXT, "varchar(3)", charset="utf8mb4", length=3), "abcd", "a text of at most 3 characters"),
        (LATIN, "日", "characters of latin1"),
        (column(Kind.TEXT, "varchar(3)", charset="utf8mb3", length=3), "😀", "characters of utf8mb3"),
        (column(Kind.TEXT, "uuid", charset="ascii", length=36), "nobody", "a UUID, such as"),
        (column(Kind.TEXT, "inet4", charset="ascii", length=15), "300.1.1.1", "an IPv4 address, such as"),
        (column(Kind.TEXT, "inet6", charset="ascii", length=45), "x::", "an IPv6 address, such as"),
        (column(Kind.TIME, "time"), "839:00:00", "a time from -838:59:59 to 838:59:59"),
        (TIMESTAMP, "1950-01-01 00:00:00", "a moment in UTC from 1970"),
        (column(Kind.DATE, "date"), "2024-1-1", "YYYY-MM-DD"),
        (column(Kind.ENUM, "enum('a','b')", labels=("a", "b")), "c", "one of a, b"),
    ],
)
def test_what_the_column_cannot_hold_is_refused_with_what_it_can(of: Column, given: Any, expected: str) -> None:
    with pytest.raises(MisuseError, match=expected):
        canonical_value(given, of)


def test_a_rendered_key_has_its_bytes_in_hexadecimal_with_or_without_0x() -> None:
    columns = [column(Kind.INTEGER, "int"), VARBINARY]
    for text in ("7:6465", "7:0x6465", "7:0X6465"):
        assert key_of_text(text, columns) == (7, b"de")
    with pytest.raises(MisuseError, match=r"expected bytes in hexadecimal.*the text 'tide' is written 0x74696465"):
        key_of_text("7:tide", columns)
    with pytest.raises(MisuseError, match="expected at most 8 bytes"):
        key_of_text(f"7:{'00' * 9}", columns)
    with pytest.raises(MisuseError, match="from -2147483648 to 2147483647"):
        key_of_text("3000000000:00", columns)


def test_what_may_be_meant_in_two_ways_is_said_with_both_spellings() -> None:
    assert other_reading("7:de", [column(Kind.INTEGER, "int"), VARBINARY]) == (
        "the key '7:de' is read in hexadecimal, as it is rendered: column c is 0xde there. "
        "The text 'de' is written 0x6465"
    )
    assert other_reading("0xde", [VARBINARY]) is None
    assert other_reading("deadbeef", [BINARY]) is None, "a text of 8 bytes it cannot be"
    assert in_hexadecimal("de", VARBINARY) == "'de' was looked for as a text, 0x6465; bytes are written 0xde"
    assert in_hexadecimal("tide", VARBINARY) is in_hexadecimal(b"de", VARBINARY) is None


def test_a_key_that_may_be_meant_in_two_ways_is_refused_with_both_spellings_where_nobody_sees_which_was_taken() -> None:
    columns = [column(Kind.INTEGER, "int"), VARBINARY]
    with pytest.raises(
        MisuseError, match=r"two ways.*column c are written '7:0xde', and the text is written '7:0x4445'"
    ):
        plain_key_of_text("7:DE", [columns[0], VARBINARY])
    assert plain_key_of_text("7:0xde", columns) == (7, b"\xde")
    assert plain_key_of_text("7:0x6465", columns) == (7, b"de")
    assert plain_key_of_text("deadbeef", [BINARY]) == (b"\xde\xad\xbe\xef",), "a text of 8 bytes it cannot be"
    assert plain_key_of_text("7:", columns) == (7, b"")


def test_a_letters_key_is_found_with_0x_too() -> None:
    assert key_spellings("7:0xDE") == ["7:0xDE", "7:de"]
    assert key_spellings("0xzz:a") == ["0xzz:a"]
