"""What waits in the spool comes back as it was: every kind of value, and what is too large to be copied."""

from __future__ import annotations

import io
import math
from decimal import Decimal
from typing import Any

import pytest

from ingest.binlog.spool import Spool
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Followed, Refused, Row, RowChanges, Unreadable
from viewtail.changes.errors import SourceUnavailableError
from viewtail.changes.tables import Column, Kind, Table

LARGE = 17 << 20  # bytes of events in one piece: it is written value by value
VALUES: dict[Kind, tuple[Any, Any]] = {
    Kind.INTEGER: (0, 2**64 - 1),
    Kind.DECIMAL: (Decimal("-0.00"), Decimal("9" * 35 + "." + "1" * 30)),
    Kind.FLOAT: (1.5, -0.0),
    Kind.DOUBLE: (5e-324, math.inf),
    Kind.TEXT: ("", "\x00 é \U0001f600"),
    Kind.ENUM: ("", "é"),
    Kind.SET: ("", "a,b"),
    Kind.BYTES: (b"", bytes(range(256))),
    Kind.DATE: ("0000-00-00", "2026-02-29"),
    Kind.TIME: ("-838:59:59", "00:00:00.000000"),
    Kind.DATETIME: ("0000-00-00 00:00:00", "9999-12-31 23:59:59.999999"),
    Kind.TIMESTAMP: ("1970-01-01 00:00:01", "2038-01-19 03:14:07"),
    Kind.JSON: ("null", '{"a": [1, 2.5, "é"]}'),
    Kind.GEOMETRY: (b"\0\0\0\0\x01", b"\xff"),
    Kind.VECTOR: (bytes(4), b"\0\0\x80?"),
}
KINDS = tuple(kind for kind in Kind if kind is not Kind.UNSUPPORTED)


def followed(*kinds: Kind) -> Followed:
    columns = tuple(
        Column(name=f"c{at}", kind=kind, declared=kind.value, is_nullable=True) for at, kind in enumerate(kinds)
    )
    table = Table(schema="shop", name="user", columns=columns, primary_key=("c0",))
    return Followed(table, tuple(column.name for column in columns))


ALL, PLAIN = followed(*KINDS), followed(Kind.INTEGER, Kind.TEXT)
ROWS: list[Row] = [
    tuple(VALUES[kind][0] for kind in KINDS),
    tuple(VALUES[kind][1] for kind in KINDS),
    (1, *(None for _ in KINDS[1:])),
]


def same(left: list[RowChanges], right: list[RowChanges]) -> bool:
    """Also in type, and to the last digit: -0.0 equals 0, and Decimal('1.0') equals 1."""
    return left == right and repr([c[1:] for c in left]) == repr([c[1:] for c in right])


@pytest.mark.parametrize("event_bytes", [100, LARGE], ids=["small", "large"])
def test_every_kind_of_value_comes_back_as_it_was(event_bytes: int) -> None:
    first = [
        RowChanges(ALL, UPDATE, 2**63 - 1, [ROWS[0], ROWS[1]]),
        RowChanges(PLAIN, INSERT, 7, [(1, "one"), (2, None)]),
        RowChanges(ALL, DELETE, 8, []),
    ]
    second = [RowChanges(ALL, INSERT, 9, ROWS)]
    spool = Spool()
    spool.append(first, [], event_bytes)
    spool.append([], [], 1)
    spool.append(second, [], event_bytes)
    pieces = list(spool.pieces())
    spool.close()
    assert [event_bytes for *_, event_bytes in pieces] == [event_bytes, 1, event_bytes]
    assert same(pieces[0][0], first) and pieces[1][0] == [] and same(pieces[2][0], second)
    assert all(type(change) is RowChanges for changes, *_ in pieces for change in changes)
    assert all(change.followed is ALL for change in pieces[2][0])


def test_refused_rows_come_back_with_their_piece() -> None:
    decimal = followed(Kind.DECIMAL, Kind.TEXT)
    change = RowChanges(decimal, INSERT, 3, [(Decimal("1.50"), "one")])
    refused = Refused(decimal, INSERT, 4, [(Decimal("2.50"), Unreadable("c1"))], "column c1 holds ...")
    spool = Spool()
    spool.append([change], [refused], 100)
    ((changes, others, _),) = spool.pieces()
    spool.close()
    assert same(changes, [change])
    assert others[0].followed is decimal and others[0].reason == refused.reason
    assert str(others[0].rows[0][0]) == "2.50" and others[0].rows[0][1].column == "c1"


@pytest.mark.parametrize("kept", [4, 30, -1], ids=["in a length", "in a piece", "at its end"])
@pytest.mark.parametrize("event_bytes", [100, LARGE], ids=["small", "large"])
def test_a_file_that_ends_too_early_is_an_error_and_no_rows(
    event_bytes: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = io.BytesIO()
    monkeypatch.setattr("ingest.binlog.spool.tempfile.TemporaryFile", lambda **_: file)
    spool = Spool()
    spool.append([RowChanges(ALL, INSERT, 9, ROWS)], [], event_bytes)
    file.truncate(len(file.getvalue()) + kept if kept < 0 else kept)
    with pytest.raises(SourceUnavailableError, match="temporary file for a large transaction"):
        list(spool.pieces())
