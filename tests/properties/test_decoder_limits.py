"""What the decoder refuses, and that bytes which do not fit are an error and never a row."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingest.binlog import column_types as types
from ingest.binlog import json_binary
from ingest.binlog.json_binary import MalformedJsonError, to_text, to_tree
from ingest.binlog.row_decoder import compile_decoder
from ingest.binlog.table_map import MapColumn, TableMap
from viewtail.changes.batches import Followed, Unreadable
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.json_text import double_text
from viewtail.changes.tables import Column, Kind, Table

UTF8, LATIN1, UTF16, BINARY = 255, 8, 54, 63


def seen(name: str, type_: int, metadata: int = 0, **more: Any) -> MapColumn:
    return MapColumn(name=name, type=type_, metadata=metadata, is_nullable=True, **more)


def described(name: str, kind: Kind, **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=f"{kind.value}", is_nullable=True, **more)


def table_of(*columns: MapColumn) -> TableMap:
    return TableMap(schema="shop", name="user", columns=columns)


def following(*columns: Column) -> Followed:
    table = Table(schema="shop", name="user", columns=columns, primary_key=())
    return Followed(table, tuple(column.name for column in columns))


NARROW = table_of(
    seen("id", types.LONGLONG),
    seen("name", types.VARCHAR, 256, collation=UTF8),
    seen("at", types.TIMESTAMP2, 3),
)
NARROW_FOLLOWED = following(
    described("id", Kind.INTEGER),
    described("name", Kind.TEXT, charset="utf8mb4"),
    described("at", Kind.TIMESTAMP, scale=3),
)


def row(number: int, name: bytes) -> bytes:
    moment = (1704164645).to_bytes(4, "big") + (6780).to_bytes(2, "big")
    return b"\0" + struct.pack("<qH", number, len(name)) + name + moment


# --- What goes on, and what halts ---

LABELS = {"collation": UTF8, "labels": (b"a", b"b")}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("now", "then", "says"),
    [
        (seen("c", types.LONGLONG), described("c", Kind.INTEGER), None),
        (seen("c", types.LONG, is_unsigned=True), described("c", Kind.INTEGER), "unsigned"),
        (seen("c", types.LONG), described("c", Kind.INTEGER, is_unsigned=True), "signed"),
        (seen("c", types.VARCHAR, 4000, collation=UTF8), described("c", Kind.TEXT, length=9), None),
        (seen("c", types.VARCHAR, 9, collation=LATIN1), described("c", Kind.TEXT, charset="utf8mb4"), None),
        (seen("c", types.VARCHAR, 9, collation=UTF16), described("c", Kind.TEXT), None),
        (
            seen("c", types.ENUM, 1, labels=(b"a",), collation=BINARY),
            described("c", Kind.ENUM),
            "ENUM in the character set binary",
        ),
        (
            seen("c", types.ENUM, 1, collation=UTF8, labels=("é😀".encode(),)),
            described("c", Kind.ENUM, labels=("é?",)),
            None,
        ),
        (seen("c", types.VARCHAR, 9, collation=9999), described("c", Kind.TEXT), "collation 9999"),
        (seen("c", types.VARCHAR, 9, collation=BINARY), described("c", Kind.TEXT), "bytes instead of text"),
        (seen("c", types.DOUBLE), described("c", Kind.FLOAT), "double instead of float"),
        (seen("c", types.NEWDECIMAL, 12 << 8 | 2), described("c", Kind.DECIMAL, precision=10, scale=2), None),
        (
            seen("c", types.NEWDECIMAL, 12 << 8 | 3),
            described("c", Kind.DECIMAL, precision=10, scale=2),
            "3 digits",
        ),
        (seen("c", types.DATETIME2, 6), described("c", Kind.DATETIME, scale=0), "6 digits"),
        (
            seen("c", types.STRING, 20, collation=BINARY),
            described("c", Kind.BYTES, length=16),
            r"BINARY\(20\)",
        ),
        (seen("c", types.ENUM, 1, **LABELS), described("c", Kind.ENUM, labels=("a",)), None),
        (seen("c", types.ENUM, 1, **LABELS), described("c", Kind.ENUM, labels=("a", "c")), "other labels"),
        (seen("c", types.SET, 1, **LABELS), described("c", Kind.SET, labels=("b", "a")), "other labels"),
        (seen("c", types.DATETIME), described("c", Kind.DATETIME), "DATETIME .before MySQL 5.6."),
        (seen("other", types.LONG), described("c", Kind.INTEGER), "rows of the binlog lack it"),
    ],
)
def test_a_changed_column_halts_by_name_when_its_values_would_mean_something_else(
    now: MapColumn, then: Column, says: str | None
) -> None:
    if says is None:
        compile_decoder(table_of(now), following(then))
        return
    with pytest.raises(TableUnreadableError, match=rf"shop\.user, column c: .*{says}"):
        compile_decoder(table_of(now), following(then))


def test_the_images_are_what_the_server_writes_before_full_rows() -> None:
    wide = table_of(*(seen(f"c{number}", types.TINY) for number in range(300)))
    decoder = compile_decoder(wide, following(described("c0", Kind.INTEGER)))
    assert decoder.write_image == b"\xfc\x2c\x01" + b"\xff" * 38
    assert decoder.update_image == decoder.write_image + b"\xff" * 38


# --- Bytes that do not fit ---


def test_an_invalid_text_raises_and_the_careful_way_names_its_column_and_keeps_the_other_rows() -> None:
    decoder = compile_decoder(NARROW, NARROW_FOLLOWED)
    rows = row(1, b"fine") + row(2, b"\xffno") + row(3, "é".encode())
    with pytest.raises(UnicodeDecodeError):
        decoder.decode(bytearray(rows), 0, len(rows))
    first, second, third = decoder.decode_carefully(bytearray(rows), 0, len(rows))
    assert first == (1, "fine", "2024-01-02 03:04:05.678") and third[1] == "é"
    assert second[0] == 2 and isinstance(second[1], Unreadable) and second[1].column == "name"


@example(["a long event"] * 400, 7, 0, False)
@given(
    st.lists(st.text(max_size=400), min_size=1, max_size=30),
    st.integers(0, 50),
    st.integers(0, 50),
    st.booleans(),
)
def test_rows_end_where_the_event_does_or_are_an_error(names: list[str], before: int, cut: int, grow: bool) -> None:
    decoder = compile_decoder(NARROW, NARROW_FOLLOWED)
    rows = b"".join(row(number, name.encode()) for number, name in enumerate(names))
    buffer = b"\xaa" * before + rows + b"\xbb" * 60
    wanted = [(number, name, "2024-01-02 03:04:05.678") for number, name in enumerate(names)]
    end = before + len(rows)
    for kind in (bytes, bytearray):
        assert decoder.decode(kind(buffer), before, end) == wanted
        assert decoder.decode_carefully(kind(buffer), before, end) == wanted
    moved = end + cut if grow else end - cut
    if moved != end and moved >= before:
        for read in (decoder.decode, decoder.decode_carefully):
            try:
                found = read(bytearray(buffer), before, moved)
            except (TableUnreadableError, UnicodeDecodeError):
                continue
            # only a cut between two rows can look whole
            assert found == wanted[: len(found)] and len(found) < len(names)


@given(st.binary(max_size=200))
def test_noise_is_never_anything_but_rows_or_our_error(noise: bytes) -> None:
    whole = table_of(
        seen("e", types.ENUM, 1, **LABELS),
        seen("s", types.SET, 1, **LABELS),
        seen("d", types.NEWDECIMAL, 20 << 8 | 5),
        seen("t", types.TIME2, 3),
        seen("m", types.DATETIME2, 5),
        seen("j", types.JSON, 4),
        seen("b", types.BLOB, 1, collation=BINARY),
    )
    chosen = following(
        described("e", Kind.ENUM, labels=("a", "b")),
        described("s", Kind.SET, labels=("a", "b")),
        described("d", Kind.DECIMAL, scale=5),
        described("t", Kind.TIME, scale=3),
        described("m", Kind.DATETIME, scale=5),
        described("j", Kind.JSON),
        described("b", Kind.BYTES),
    )
    decoder = compile_decoder(whole, chosen)
    for read in (decoder.decode, decoder.decode_carefully):
        try:
            assert all(len(found) == 7 for found in read(bytearray(noise), 0, len(noise)))
        except (TableUnreadableError, UnicodeDecodeError):
            pass


def test_every_null_pattern_is_read_before_and_after_it_gets_code_of_its_own() -> None:
    columns = [seen(f"c{number}", types.LONG) for number in range(9)]
    chosen = following(*(described(f"c{number}", Kind.INTEGER) for number in (0, 3, 8)))
    table = table_of(*columns)
    decoder = compile_decoder(table, replace(chosen, columns=("c0", "c3", "c8")))
    rows, wanted = b"", []
    for number in range(512 * 40):
        nulls = number % 512 if number < 5120 else number // 40
        values = [None if nulls >> place & 1 else number * 9 + place for place in range(9)]
        rows += nulls.to_bytes(2, "little") + b"".join(
            struct.pack("<i", value) for value in values if value is not None
        )
        wanted.append((values[0], values[3], values[8]))
        if len(rows) > 3000:
            assert decoder.decode(bytearray(rows), 0, len(rows)) == wanted
            assert decoder.decode_carefully(rows, 0, len(rows)) == wanted
            rows, wanted = b"", []


# --- JSON ---


@given(st.binary(max_size=100))
def test_noise_as_json_raises_nothing_but_our_errors(noise: bytes) -> None:
    try:
        to_text(noise)
    except (MalformedJsonError, UnicodeDecodeError):
        pass


def test_a_document_that_contains_itself_ends() -> None:
    # A small array whose one element points back to the array itself.
    with pytest.raises(MalformedJsonError):
        to_text(b"\x02\x01\x00\x07\x00\x02\x00\x00")


_INNER = "6b6c6f6e67032271228201" + "79" * 130
# As MySQL 9.7 stored it.
_DOCUMENT = bytes.fromhex(
    "00080041013c0001003d0001003e0003004100030044000400480004004c000500510005000507000c56000a5b0005fbff0263000f9200009c00"
    "0f3b016e736269676e65676c6973747768656e696e6e657270726963650474657874ffffffffffffffff07002f000501000b19000400000c2100"
    "072300092700040100000000000000044001787011010000f2052a010000000a08000000000044b21902009f0012000100130004000c17000c1b"
    "00" + _INNER + "f60403028132"
)  # fmt: skip
_DOCUMENT_TEXT = (
    '{"n": 7, "s": "text", "big": 18446744073709551615, "neg": -5, "list": [1, 2.5, null, "x", 70000, 5000000000, '
    'true], "when": "2024-01-02", "inner": {"k": "\\"q\\"", "long": "' + "y" * 130 + '"}, "price": 1.50}'
)


def _read(raw: bytes) -> str | type[Exception]:
    try:
        return to_text(raw)
    except (MalformedJsonError, UnicodeDecodeError) as error:
        return type(error)


def test_the_code_for_a_kind_of_document_reads_as_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_binary, "_KINDS", {})
    damaged = [_DOCUMENT]
    for at in range(len(_DOCUMENT) - 136):
        for value in (0, 1, 5, 12, 15, 0x22, 0x7F, 0x80, 0xFF, _DOCUMENT[at] ^ 1, (_DOCUMENT[at] + 4) % 256):
            damaged.append(_DOCUMENT[:at] + bytes([value]) + _DOCUMENT[at + 1 :])
        damaged.append(_DOCUMENT[:at])
    monkeypatch.setattr(json_binary, "_MOST_KINDS", 0)
    wanted = [_read(raw) for raw in damaged]
    assert wanted[0] == _DOCUMENT_TEXT and not json_binary._KINDS
    monkeypatch.setattr(json_binary, "_MOST_KINDS", 1000)
    for _ in range(60):  # an inner kind is seen once the outer one has code
        assert to_text(_DOCUMENT) == _DOCUMENT_TEXT
    assert len(json_binary._KINDS) == 3
    assert [_read(raw) for raw in damaged] == wanted
    for raw in damaged[::7]:
        assert {_read(raw) for _ in range(20)} == {_read(raw)}  # kinds of damaged ones too
    assert [_read(raw) for raw in damaged] == wanted


def _encoded(value: Any) -> tuple[int, bytes]:
    """Type and bytes of a value in the small form; of inlined values the two bytes of their entry."""
    if isinstance(value, bool) or value is None:
        return 4, bytes([0 if value is None else 1 if value else 2, 0])
    if isinstance(value, int):
        return (5, struct.pack("<h", value)) if abs(value) < 1 << 15 else (9, struct.pack("<q", value))
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        return 12, bytes([len(value.encode())]) + value.encode()
    members = list(value.values()) if isinstance(value, dict) else value
    names = [name.encode() for name in value] if isinstance(value, dict) else []
    at = 4 + 4 * len(names) + 3 * len(members)
    keys, entries, rest = b"", b"", b"".join(names)
    for name in names:
        keys += struct.pack("<HH", at, len(name))
        at += len(name)
    for type_, raw in map(_encoded, members):
        if type_ in (4, 5):
            entries += bytes([type_]) + raw
        else:
            entries += struct.pack("<BH", type_, at)
            rest += raw
            at += len(raw)
    made = struct.pack("<HH", len(members), 4 + len(keys + entries + rest)) + keys + entries + rest
    return (0 if isinstance(value, dict) else 2), made


def _random_json(by: random.Random, depth: int) -> Any:
    kind = by.randrange(8 if depth else 5)
    if kind < 5:
        return by.choice((None, True, by.randrange(-99, 99), 1 << 40, by.random() * 10, "a", 'say "x"', "\n", "é"))
    if kind == 5:
        return [_random_json(by, depth - 1) for _ in range(by.randrange(4))]
    return {name: _random_json(by, depth - 1) for name in ("a", "b", "k1")[: by.randrange(4)]}


def test_documents_of_many_kinds_in_one_place_are_each_read_by_the_code_of_their_own() -> None:
    by = random.Random(7)
    # An array of one double has, where an object of one key has the key's place, a byte that is the same.
    some: list[Any] = [
        {"a": 1},
        [1.5],
        {"a": [1.5]},
        {"a": {"a": 1}},
        [[1.5]],
        [{"a": 1}],
        {"a": 1, "b": [True]},
    ]
    some += [{"a": ["some text"] * 40}, [[[1.5]]]]
    some += [_random_json(by, 3) for _ in range(100)]
    some = [one for one in some if isinstance(one, dict | list)]
    made = []
    for one in some:
        type_, raw = _encoded(one)
        made.append((bytes([type_]) + raw, json.dumps(one, ensure_ascii=False)))
    for _ in range(30):
        by.shuffle(made)
        for raw, text in made:
            assert to_text(raw) == text
            assert to_text(raw) == text


def test_the_code_for_a_kind_in_its_usual_place_looks_at_sizes_and_depth() -> None:
    def nested(levels: int) -> bytes:
        value: list[Any] = []
        for _ in range(levels):
            value = [value]
        return b"\2" + _encoded(value)[1]

    whole = b"\0" + _encoded({"a": 1})[1]
    for usual, wrong in ((nested(50), nested(200)), (whole, whole.replace(b"\x0c", b"\x08", 1))):
        for _ in range(20):
            to_text(usual)
        with pytest.raises(MalformedJsonError):
            to_text(wrong)


def test_values_that_share_their_bytes_end_before_they_add_up() -> None:
    # Each array holds the next one twice: 2^40 leaves in 400 bytes; and one string of 1 MB 10,000 times.
    arrays = b"".join(struct.pack("<HHBHBH", 2, 1000 - 10 * at, 2, 10, 2, 10) for at in range(40))
    shared = struct.pack("<II", 10_000, 1_050_100) + struct.pack("<BI", 12, 50_008) * 10_000
    for raw in (
        b"\x02" + arrays + b"\0\0\x04" + bytes(700),
        b"\x03" + shared + b"\xc0\x84\x3d" + bytes(1_000_100),
    ):
        for read in (to_text, to_tree):
            with pytest.raises(MalformedJsonError, match="overlap"):
                read(raw)


def test_objects_of_the_same_keys_read_alike_whatever_form_and_order_they_came_in() -> None:
    # The keys' bytes of three members in the small form can be those of two in the large one.
    small = (
        struct.pack("<HH", 3, 31) + struct.pack("<HHHHHH", 25, 1, 26, 1, 27, 1) + struct.pack("<BHBHBH", *(4, 0) * 3)
    )
    large = struct.pack("<II", 2, 33) + struct.pack("<IHIH", 30, 1, 31, 1) + struct.pack("<BIBI", *(4, 1) * 2)
    for _ in range(2):
        assert to_text(b"\x00" + small + b"abc\0\0\0") == '{"a": null, "b": null, "c": null}'
        assert to_text(b"\x01" + large + b"xy\0") == '{"x": true, "y": true}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e20, "1e20"), (1e15, "1e15"), (1e14, "100000000000000.0"), (1234567890123456.8, "1234567890123456.8"),
        (1e-14, "0.00000000000001"), (1e-15, "0.000000000000001"), (1e-16, "1e-16"), (-0.0, "-0.0"), (0.0, "0.0"),
        (-1.5e-7, "-0.00000015"), (5e-324, "5e-324"), (1.25e-100, "1.25e-100"), (2.0, "2.0"),
    ],
)  # fmt: skip
def test_doubles_in_json_print_as_the_server_prints_them(value: float, text: str) -> None:
    assert double_text(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_in_json_read_back_equal(value: float) -> None:
    assert repr(float(double_text(value))) == repr(value)


# --- Many columns, and NULLs that never repeat ---


@pytest.mark.parametrize("columns", [6, 33, 130])
def test_rows_whose_nulls_never_repeat_are_read_exactly(columns: int) -> None:
    """From some hundred patterns on, columns nobody follows are counted by their width instead of looked at."""
    rng = random.Random(columns)
    made, followed_columns = [seen("id", types.LONG)], [described("id", Kind.INTEGER)]
    for number in range(1, columns):
        type_, metadata = rng.choice(
            [(types.LONG, 0), (types.TINY, 0), (types.DATETIME2, 6), (types.LONGLONG, 0), (types.VARCHAR, 40)]
        )
        column = seen(f"c{number}", type_, metadata, **({"collation": UTF8} if type_ == types.VARCHAR else {}))
        made.append(replace(column, is_nullable=rng.random() < 0.9))
        if number % 10 == 3:
            if type_ == types.VARCHAR:
                followed_columns.append(described(column.name, Kind.TEXT, charset="utf8mb4"))
            elif type_ == types.DATETIME2:
                followed_columns.append(described(column.name, Kind.DATETIME, scale=6))
            else:
                followed_columns.append(described(column.name, Kind.INTEGER))
    wanted = {column.name for column in followed_columns}
    events, rows = [], []
    for _ in range(1_200):
        event, expected = bytearray(), []
        for _ in range(3):
            some, values = _random_row(rng, made)
            event += some
            expected.append(tuple(value for name, value in values if name in wanted))
        events.append(event)
        rows.append(expected)
    decoder = compile_decoder(table_of(*made), following(*followed_columns))
    for event, expected in zip(events, rows, strict=True):
        assert decoder.decode(bytearray(b"head") + event, 4, 4 + len(event)) == expected
        assert decoder.decode_carefully(bytes(event), 0, len(event)) == expected
        if columns > 12:  # with fewer there are no hundreds of patterns
            with pytest.raises(TableUnreadableError):
                decoder.decode(event + b"\0", 0, len(event) + 1)
            with pytest.raises(TableUnreadableError):
                decoder.decode(event, 0, len(event) - 1)


def _random_row(rng: random.Random, columns: list[MapColumn]) -> tuple[bytes, list[tuple[str, Any]]]:
    nulls, body, values = 0, b"", []
    for at, column in enumerate(columns):
        value: Any = None
        if column.is_nullable and rng.random() < 0.5:
            nulls |= 1 << at
        elif column.type == types.VARCHAR:
            value = "x" * rng.randrange(40)
            body += bytes((len(value),)) + value.encode()
        elif column.type == types.DATETIME2:
            value = "2026-11-21 20:30:40.000007"
            packed = ((2026 * 13 + 11) << 22 | 21 << 17 | 20 << 12 | 30 << 6 | 40) + 0x8000000000
            body += packed.to_bytes(5, "big") + (7).to_bytes(3, "big")
        else:
            size = {types.LONG: 4, types.TINY: 1, types.LONGLONG: 8}[column.type]
            value = rng.randrange(-100, 100)
            body += value.to_bytes(size, "little", signed=True)
        values.append((column.name, value))
    bits = (len(columns) + 7) // 8
    nulls |= -1 << len(columns) & (1 << 8 * bits) - 1  # the bits of no column say nothing
    return nulls.to_bytes(bits, "little") + body, values
