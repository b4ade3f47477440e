"""Table maps: what MySQL 9.7 wrote, and that nothing garbled gets past or raises anything but our own
error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.binlog import column_types
from ingest.binlog.collations import charset_of
from ingest.binlog.table_map import names, parse
from viewtail.changes.errors import TableUnreadableError

# CREATE TABLE t.ch (id INT PRIMARY KEY, e1 ENUM('a','é'), e2 ENUM('a','ü','€','ß') CHARACTER SET latin1,
# s1 SET('ä','ö'), s2 SET('x'), e3 ENUM('a','b'), e4 ENUM('a'), e5 ENUM('c'), u CHAR(5) CHARACTER SET latin1,
# x1 CHAR(2), x2 .. x6 CHAR(2), x7 CHAR(2) CHARACTER SET latin1), as MySQL 9.7.0 logged it.
CHOICES = (
    b"\x7f\x00\x00\x00\x00\x00\x01\x00\x01t\x00\x02ch\x00\x10\x03\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe\xfe"
    b"\xfe\x1e\xf7\x01\xf7\x01\xf8\x01\xf8\x01\xf7\x01\xf7\x01\xf7\x01\xfe\x05\xfe\x08\xfe\x08\xfe\x08\xfe\x08\xfe\x08"
    b"\xfe\x08\xfe\x02\xfe\xff\x01\x01\x00\x02\x07\xfc\xff\x00\x00\x08\x07\x08\x04/\x02id\x02e1\x02e2\x02s1\x02s2\x02e3"
    b"\x02e4\x02e5\x01u\x02x1\x02x2\x02x3\x02x4\x02x5\x02x6\x02x7\n\x05\xfc\xff\x00\x01\x08\x05\n\x02\x02\xc3\xa4\x02"
    b"\xc3\xb6\x01\x01x\x06\x1a\x02\x01a\x02\xc3\xa9\x04\x01a\x01\xfc\x01\x80\x01\xdf\x02\x01a\x01b\x01\x01a\x01\x01c"
    b"\x08\x01\x00\x0c\x02\xff\xff"
)
# CREATE TABLE t.ten (a INT PRIMARY KEY, b .. i INT, j VECTOR(3), k GEOMETRY, l ENUM('a','ü') CHARACTER SET
# latin1, m SET('x','y'), n BIT(10), o VARCHAR(10) CHARACTER SET utf16, inv INT INVISIBLE, gen INT AS ..
# STORED, gv INT AS ..)
MIXED = bytes.fromhex(
    "6c000000000001000174000374656e0012030303030303030303f2fffefe100f0303030a0404f701f80102012800feff0301"
    "02000003023f360701000d01030429016101620163016401650166016701680169016a016b016c016d016e016f03696e7603"
    "67656e0267760b0408fcff0005050201780179060502016101fc0801000c03fffec0"
)
NAMES_END = CHOICES.index(b"\x04/\x02id")


def test_the_columns_of_a_real_table_map() -> None:
    found = parse(CHOICES)
    assert (found.schema, found.name) == ("t", "ch")
    assert names(CHOICES) == ("t", "ch")
    charsets = [charset_of(column.collation) for column in found.columns if column.collation]
    assert [column.name for column in found.columns if column.collation is None] == ["id"]
    latin_at = [at for at, charset in enumerate(charsets) if charset == "latin1"]
    assert latin_at == [1, 7, 14] and set(charsets) == {"latin1", "utf8mb4"}  # e2, u and x7
    latin = found.column("e2")
    assert latin is not None and latin.labels == (b"a", b"\xfc", b"\x80", b"\xdf") and latin.type == column_types.ENUM
    assert [column.is_nullable for column in found.columns] == [False] + [True] * 15


def test_columns_with_odd_metadata() -> None:
    found = parse(MIXED)
    by_name = {column.name: column for column in found.columns}
    assert (by_name["j"].type_name, by_name["j"].detail, by_name["j"].collation) == ("VECTOR", 3, 63)
    assert (by_name["n"].type_name, by_name["n"].metadata) == ("BIT", 10)
    assert charset_of(by_name["o"].collation) == "utf16"
    assert by_name["m"].labels == (b"x", b"y")


@pytest.mark.parametrize(
    ("signs", "unsigned"),
    [(0b0110_0000, [False, True, True, False]), (0b0101_0000, [False, True, False, True])],
    ids=["before a signed column", "before an unsigned one"],
)
def test_year_has_a_sign_bit(signs: int, unsigned: list[bool]) -> None:
    assert [column.is_unsigned for column in parse(_with_year(signs)).columns] == unsigned


def test_a_server_that_gives_year_no_sign_bit_is_understood() -> None:
    # id and w are unsigned; read with a bit for YEAR, that would be a signed YEAR, which there is not.
    assert [column.is_unsigned for column in parse(_with_year(0b1010_0000)).columns] == [
        True,
        False,
        False,
        True,
    ]


def _with_year(signs: int) -> bytes:
    # (id INT, y YEAR, u INT, w INT)
    kinds = bytes((column_types.LONG, column_types.YEAR, column_types.LONG, column_types.LONG))
    columns = b"\2id\1y\1u\1w"
    start = b"\1\0\0\0\0\0\1\0\1s\0\1t\0\4" + kinds + b"\0\0"
    return start + bytes((1, 1, signs, 4, len(columns))) + columns


def test_without_column_names_the_error_names_the_setting() -> None:
    with pytest.raises(TableUnreadableError, match=r"t\.ch.*run SET GLOBAL binlog_row_metadata=FULL"):
        parse(CHOICES[:NAMES_END])


def test_unknown_metadata_fields_are_skipped() -> None:
    assert parse(CHOICES + b"\xc8\x03abc") == parse(CHOICES)


def test_a_type_whose_layout_is_unknown_halts_by_name() -> None:
    broken = bytearray(CHOICES)
    broken[broken.index(b"\x10\x03\xfe") + 1] = 243
    with pytest.raises(TableUnreadableError, match=r"t\.ch: column 1 has the type 243"):
        parse(broken)


@pytest.mark.parametrize("body", [CHOICES, MIXED], ids=["choices", "mixed"])
def test_a_body_that_is_cut_short_is_our_error_at_every_length(body: bytes) -> None:
    for length in range(len(body)):
        try:
            parsed = parse(body[:length])
        except TableUnreadableError:
            continue
        # A cut between two optional fields cannot be seen; what is there must still be right.
        assert [column.name for column in parsed.columns] == [column.name for column in parse(body).columns]


@given(st.data())
def test_garbled_bodies_raise_nothing_but_our_error(data: st.DataObject) -> None:
    body = bytearray(data.draw(st.sampled_from([CHOICES, MIXED])))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    for read in (names, parse):
        says = "garbled"
        try:
            read(body)
        except TableUnreadableError as error:
            says = str(error)
        assert any(part in says for part in ("garbled", "layout", "names no columns"))


@given(st.binary(max_size=300))
def test_noise_raises_nothing_but_our_error(noise: bytes) -> None:
    for read in (names, parse):
        try:
            read(noise)
        except TableUnreadableError:
            pass
