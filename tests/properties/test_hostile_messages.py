"""Damaged and forged messages: each is read as a row that the table could have, or refused, or rejected.

The seed is printed; VIEWTAIL_TEST_SEED sets it."""

from __future__ import annotations

import json
import os
import random
import re
import struct
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import orjson
import pytest

from tests.support.envelopes import KEPT, VALUES, deleted, envelope, inserted, reader, table, updated
from tests.unit.test_envelope_reading import DEFAULT_FORM, message
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Refused, Row, RowChanges, Unreadable
from viewtail.changes.envelope_columns import integers_of, is_bit
from viewtail.changes.envelope_reading import EnvelopeReader, MalformedEnvelopeError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import KeptChange

MESSAGES = 10_000
_OWN = [*VALUES[1:-1], *KEPT]
_FOREIGN = DEFAULT_FORM[1:-1]


def _table(values: list[tuple[Column, Any, Any]]) -> tuple[Table, tuple[Any, ...]]:
    """A table of a column for each value, and a row of them."""
    columns = [replace(each, name=f"c{at}") for at, (each, _, _) in enumerate(values)]
    return table(*columns), (5, *(held for _, held, _ in values))


def _of_viewtail(with_schemas: bool) -> tuple[Table, list[bytes]]:
    of, row = _table(_OWN)
    changes = [inserted(*row), updated(row, row), deleted(*row), KeptChange((5,), 3, "read", None, row)]
    found = envelope(of, with_schemas=with_schemas).messages(changes, 1_700_000_000_000_000)
    return of, [value for _, value, _ in found if value is not None]


def _of_debezium() -> tuple[Table, list[bytes]]:
    of, _ = _table([(each, wanted, found) for each, found, wanted in _FOREIGN])
    image = {"id": 5, **{f"c{at}": found for at, (_, found, _) in enumerate(_FOREIGN)}}
    plain = [
        message(of.columns[1], after=image),
        message(of.columns[1], op="u", before=image, after=image),
        message(of.columns[1], op="d", before=image, after=None),
        message(of.columns[1], op="r", after=image),
    ]
    schema = {"fields": [{"field": "after", "fields": [{"type": "int32", "field": name} for name in image]}]}
    whole = [{"schema": schema, "payload": each} for each in plain[:2]]
    return of, [json.dumps(each, separators=(",", ":")).encode() for each in (*plain, *whole)]


@pytest.mark.parametrize("kind", ["viewtail", "with schemas", "debezium"])
def test_a_damaged_message_is_a_row_of_the_table_or_is_refused_or_rejected(kind: str) -> None:
    seed = int(os.environ.get("VIEWTAIL_TEST_SEED") or random.randrange(1 << 32))
    print(f"VIEWTAIL_TEST_SEED={seed}")
    rng = random.Random(seed)
    of, good = _of_debezium() if kind == "debezium" else _of_viewtail(kind == "with schemas")
    wanted = {each: _told(_read(reader(of), each)) for each in good}
    one_reader, ends = reader(of), Counter[str]()
    for at in range(MESSAGES // 3 + 1):
        chosen = rng.choice(good)
        bad = _damaged(chosen, rng) if rng.random() < 0.4 else _forged(chosen, rng)
        change = _read(one_reader, bad)
        _assert_possible(change, of, bad)
        ends[type(change).__name__] += 1
        if at % 10 == 0:  # what a reader has read before changes nothing
            assert _told(_read(reader(of), bad)) == _told(change), bad
            assert _told(_read(one_reader, chosen)) == wanted[chosen]
    assert min(ends[name] for name in ("RowChanges", "Refused", "MalformedEnvelopeError")) > MESSAGES / 200, ends


def _told(change: Any) -> str:
    """All that a change says; of what could not be read, why."""
    if isinstance(change, MalformedEnvelopeError):
        return str(change)
    rows = [[value.reason if isinstance(value, Unreadable) else value for value in row] for row in change.rows]
    return repr((type(change), change.kind, change.version, rows))


def _read(of: EnvelopeReader, bad: bytes) -> Any:
    try:
        return of.read(bad)
    except MalformedEnvelopeError as rejected:
        return rejected


# --- Damage ---


def _damaged(good: bytes, rng: random.Random) -> bytes:
    """Some bytes are others, gone, there twice, or cut off."""
    raw = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at, size = rng.randrange(len(raw) + 1), rng.choice((0, 1, 1, 2, 8, 40))
        piece = rng.choice(
            (b"", rng.randbytes(size), b'"', b"}", b",", b"null", b"-", b"\xff", raw[at : at + size] * 2)
        )
        raw[at : at + size] = piece
    return bytes(raw[: rng.randrange(len(raw))] if rng.random() < 0.1 else raw)


def _forged(good: bytes, rng: random.Random) -> bytes:
    """Valid JSON in which some values are others, gone, or under another name."""
    whole = json.loads(good)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(whole))
        where, name = rng.choice(places)
        style = rng.random()
        if style < 0.6:
            where[name] = rng.choice(_VALUES)(rng)
        elif style < 0.8:
            other, other_name = rng.choice(places)
            where[name] = json.loads(json.dumps(other[other_name])) if other_name in _names(other) else None
        elif style < 0.9:
            del where[name]
        else:
            where[name] = _altered(where[name], rng)
        if not isinstance(whole, dict) or not whole:
            break
    text = json.dumps(whole, separators=(",", ":") if rng.random() < 0.8 else None, ensure_ascii=rng.random() < 0.5)
    return text.replace(f'"{_DEEP}"', "[" * 900 + "]" * 900).encode("utf-8", "surrogatepass")


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    for name in _names(node):
        yield node, name
        yield from _places(node[name])


def _names(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node)
    return list(range(len(node))) if isinstance(node, list) else []


def _altered(value: Any, rng: random.Random) -> Any:
    if isinstance(value, str) and value:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "0", "9", "-", ".", "Z", " ", "T", "é", "\0", "=", value)) + value[at + 1 :]
    return value * rng.choice((-1, 2, 10**9, 10**20)) if isinstance(value, int | float) else [value]


_DEEP = "deeply nested"  # as deep as a reader of JSON goes, but no writer
_VALUES: list[Any] = [
    lambda rng: rng.choice((None, True, False, 0, -1, 1, 5, 0.0, -0.0, 1.5, 1e300, 2**31, 2**63, 2**64, -(2**63) - 1)),
    lambda rng: rng.choice(
        ("", "0", "-0", "1.50", "1e5", "NaN", "AA==", "x" * 70_000, "\ud800", "null", "2024-01-02Z")
    ),
    lambda rng: rng.choice(([], {}, [[]], {"wkb": "AA=="}, ["a"], [1.5] * 5, {"id": 5})),
    lambda rng: deepcopy(rng.choice(_OWN)[2]),
    lambda rng: deepcopy(rng.choice(_FOREIGN)[1]),
    lambda rng: _DEEP,
]


# --- What a table can have ---


def _assert_possible(change: Any, of: Table, bad: bytes) -> None:
    if isinstance(change, MalformedEnvelopeError):
        assert str(change).startswith("the message cannot be read: ") and len(str(change)) < 200
        return
    assert isinstance(change, RowChanges | Refused) and 0 <= change.version <= MAX_VERSION
    assert len(change.rows) == {INSERT: 1, UPDATE: 2, DELETE: 1}[change.kind]
    unreadable = 0
    for row in change.rows:
        unreadable += _assert_row(row, of, bad)
    assert (unreadable > 0) == isinstance(change, Refused)


def _assert_row(row: Row, of: Table, bad: bytes) -> int:
    assert len(row) == len(of.columns) and not isinstance(row[0], Unreadable)
    for value, each in zip(row, of.columns, strict=True):
        if isinstance(value, Unreadable):
            assert value.column == each.name and len(value.reason) < 200
        elif value is None:
            assert each.is_nullable
        else:
            assert _is_possible(value, each), (each, value, bad[:200])
    return sum(isinstance(value, Unreadable) for value in row)


def _is_possible(value: Any, each: Column) -> bool:
    if each.kind is Kind.INTEGER:
        low, high = (0, (1 << each.length) - 1) if is_bit(each) else integers_of(each)
        return type(value) is int and low <= value <= high
    if each.kind is Kind.DECIMAL:
        digits = value.as_tuple()
        return type(value) is Decimal and digits.exponent == -each.scale and len(digits.digits) <= each.precision
    if each.kind in (Kind.FLOAT, Kind.DOUBLE):
        is_single = each.kind is Kind.DOUBLE or struct.unpack("f", struct.pack("f", value))[0] == value
        return type(value) is float and abs(value) < float("inf") and is_single
    if each.kind in (Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR):
        sizes = {Kind.GEOMETRY: range(13, 10**6), Kind.VECTOR: range(4, 13, 4)}.get(each.kind, range(each.length + 1))
        return type(value) is bytes and len(value) in sizes
    return type(value) is str and _TEXTS[each.kind](value, each)


def _is_moment(value: str, each: Column) -> bool:
    day, _, clock = value.partition(" ")
    return _is_day(day, each) and bool(re.fullmatch(r"([01]\d|2[0-3])(:[0-5]\d){2}" + _fraction(each), clock, re.ASCII))


def _is_day(value: str, _: Column) -> bool:
    return bool(re.fullmatch(r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])", value, re.ASCII))


def _is_time(value: str, each: Column) -> bool:
    return bool(re.fullmatch(r"-?(\d\d|[1-7]\d\d|8[0-3]\d)(:[0-5]\d){2}" + _fraction(each), value, re.ASCII))


def _fraction(each: Column) -> str:
    return rf"\.\d{{{each.scale}}}" if each.scale else ""


def _is_json(value: str, _: Column) -> bool:
    orjson.loads(value)
    return True


_TEXTS: dict[Kind, Any] = {
    Kind.TEXT: lambda value, each: len(value) <= each.length and value.encode() is not None,
    Kind.ENUM: lambda value, each: value in ("", *each.labels),
    Kind.SET: lambda value, each: value in ("", *_subsets(each.labels)),
    Kind.DATE: _is_day,
    Kind.TIME: _is_time,
    Kind.DATETIME: _is_moment,
    Kind.TIMESTAMP: _is_moment,
    Kind.JSON: _is_json,
}


def _subsets(labels: tuple[str, ...]) -> list[str]:
    chosen = range(1 << len(labels))
    return [",".join(label for at, label in enumerate(labels) if bits >> at & 1) for bits in chosen]


def test_the_check_of_rows_knows_an_impossible_one() -> None:
    of, row = _table(_OWN)
    assert _assert_row(row, of, b"") == 0
    for at in range(1, len(row)):
        for wrong in (object(), bytes(10**6), "x" * 100, 2**70, date(2024, 1, 2)):
            with pytest.raises((AssertionError, AttributeError, ValueError, OverflowError, struct.error, TypeError)):
                _assert_row((*row[:at], wrong, *row[at + 1 :]), of, b"")
