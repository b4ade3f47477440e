"""What a replay of some entities counts: rows that were written, that `where` keeps out, and that are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from projectors.binding import bind
from projectors.projection import Projections, followed_tables
from projectors.proving import reprojection
from projectors.proving.reprojection import Piece, Reprojection, Written
from projectors.stores import NOTHING_HELD, Held
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView, Entity
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key, Parked, ViewWrites

ID = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)
NAME = Column(name="name", kind=Kind.TEXT, declared="varchar(9)", is_nullable=True, charset="utf8mb4", length=9)
REF = Column(name="ref", kind=Kind.INTEGER, declared="int", is_nullable=False)
TABLE = Table(schema="shop", name="user", columns=(ID, NAME, REF), primary_key=("id",))
ROWS: Mapping[Key, tuple[int, str, int]] = {(1,): (1, "in", 10), (2,): (2, "out", 20), (3,): (3, "bad", 30)}
AT = 500  # version of the watermark


class Rows:
    """As of the table: all columns that the view needs."""

    def __init__(self, view: BoundView) -> None:
        names = [column.name for column in TABLE.columns]
        self._at = [names.index(name) for name in view.needed]

    def having(self, _: object, keys: Sequence[Key], __: int) -> list[tuple[Any, ...]]:
        return [tuple(ROWS[key][at] for at in self._at) for key in keys if key in ROWS]

    def absent(self, _: object, keys: Sequence[Key], __: int) -> set[Key]:
        return set(keys) - ROWS.keys()


class Sink:
    def __init__(self) -> None:
        self.writes: dict[Key, tuple[int, bool]] = {}  # version, and whether it shows something
        self.without_rows: list[Key] = []

    def write(self, writes: Sequence[ViewWrites], _: object = None) -> list[Parked]:
        self.writes |= {
            key: (version, values is not None) for one in writes for key, (version, values) in one.writes.items()
        }
        return []

    write_again = write


def where(row: Mapping[str, Any]) -> bool:
    if row["name"] == "bad":
        raise ValueError
    return bool(row["name"] == "in")


@contextmanager
def no_lock() -> Iterator[Any]:
    yield SimpleNamespace(is_held=lambda: True)


def made(version: str | None) -> tuple[Reprojection, Sink]:
    (view,) = bind(
        [RedisHash("user", Entity("shop.user", version=version), fields=["name"], where=where)], lambda *_: TABLE
    )
    sink, session = Sink(), SimpleNamespace(cursor=lambda: None, commit=lambda: None, get_autocommit=lambda: False)
    held = {(4,): Held(40, ("old",)), (9,): NOTHING_HELD}
    return Reprojection(
        view=view,
        rows=Rows(view),  # type: ignore[arg-type]
        projections=Projections([view], followed_tables([view])),
        sink=sink,  # type: ignore[arg-type]
        session=lambda: session,  # type: ignore[arg-type,return-value]
        lock=no_lock,
        check=lambda: None,
        settle=lambda *_: None,
        end=sink.without_rows.extend,
        held=lambda keys: {key: held[key] for key in keys},
    ), sink  # fmt: skip


def counts(written: Written) -> tuple[int, int, int, int]:
    return written.shown, written.kept_out, written.gone, len(written.parked)


def test_without_a_version_column_a_row_that_where_keeps_out_is_not_gone() -> None:
    made_of, sink = made(None)
    assert counts(made_of.of_keys([(1,), (2,), (3,), (4,), (9,)], AT)) == (1, 1, 2, 1)
    assert sink.writes == {(1,): (AT, True), (2,): (AT, False), (4,): (AT, False), (9,): (AT, False)}


def test_with_a_version_column_a_row_that_where_keeps_out_is_not_gone() -> None:
    """Nothing is written for a key that neither the table nor the store has: its tombstone would have no version."""
    made_of, sink = made("ref")
    assert counts(made_of.of_keys([(1,), (2,), (3,), (4,), (9,)], AT)) == (1, 1, 1, 1)
    assert sink.writes == {(1,): (20, True), (2,): (40, False), (4,): (41, False)}
    assert sink.without_rows == [(9,)]  # so no write ends its dead letter


def piece_of(made_of: Reprojection) -> Piece:
    rows = Rows(made_of.view).having(None, list(ROWS), 0)
    projected = made_of.projections.of_rows(made_of.view.id, rows, AT)
    return Piece(keys=list(ROWS), projected=projected, rows=3, place=(3,), is_last=True)


def test_of_pieces_of_rows_none_is_gone() -> None:
    made_of, sink = made(None)
    done = made_of.of_pieces(lambda _: piece_of(made_of), None, AT, 4)
    assert (counts(done.written), done.rows, done.is_end) == ((1, 1, 0, 1), 3, True)
    assert sink.writes == {(1,): (AT, True), (2,): (AT, False)}


def test_waiting_for_the_lock_is_no_time_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a lock that the pipeline holds for long would let one piece through at a time."""
    now = [0.0]
    monkeypatch.setattr(reprojection, "time", SimpleNamespace(monotonic=lambda: now[0]))

    @contextmanager
    def late_lock() -> Iterator[Any]:
        now[0] += 10 * reprojection.PIECES_WITHIN_S
        yield SimpleNamespace(is_held=lambda: True)

    made_of, _ = made(None)
    object.__setattr__(made_of, "lock", late_lock)
    pieces = iter([False, False, True])

    def read(_: object) -> Piece:
        found = piece_of(made_of)
        return Piece(keys=found.keys, projected=found.projected, rows=3, place=(3,), is_last=next(pieces))

    assert made_of.of_pieces(read, None, AT, 4).rows == 9
