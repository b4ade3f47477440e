"""What becomes of a suspect, by what a store holds of it at each look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from projectors.binding import bind
from projectors.projection import Projections, followed_tables
from projectors.proving.comparison import Comparison, Difference, Settled
from projectors.stores import Held, ViewReader
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView, Entity
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key

KEY: Key = (1,)
ID = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)
NAME = Column(name="name", kind=Kind.TEXT, declared="varchar(9)", is_nullable=True, charset="utf8mb4", length=9)


class Scripted(ViewReader):
    """Holds something else at each look."""

    def __init__(self, holds: Iterator[Held]) -> None:
        self._holds = holds

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        return {KEY: next(self._holds)}

    def form_of(self, key: Key, values: tuple[Any, ...] | bytes) -> Any:
        return values

    rows: Any = None
    pages: Any = None
    close: Any = None


class OneRow:
    """A table with one row, whose name is 'right'."""

    def having(self, *_: object) -> list[tuple[int, str]]:
        return [(1, "right")]


class NewestRow:
    """Of a table of events: the row of the key whose version is 3."""

    def __init__(self, row: tuple[Any, ...]) -> None:
        self._row = row

    def having(self, *_: object) -> list[tuple[Any, ...]]:
        return [self._row]


def settled(holds: Callable[[], Iterator[Held]], view: BoundView | None = None, rows: Any = None) -> Settled:
    """Of one suspect, with a watermark of version 10, 20, 30 ... between two looks."""
    table = Table(schema="shop", name="user", columns=(ID, NAME), primary_key=("id",))
    (plain,) = bind([RedisHash("user", Entity("shop.user"), fields=["name"])], lambda *_: table)
    view = plain if view is None else view
    versions = iter(range(10, 1000, 10))
    comparison = Comparison(
        view=view,
        rows=OneRow() if rows is None else rows,  # type: ignore[arg-type]
        reader=Scripted(holds()),
        projections=Projections([view], followed_tables([view])),
        now=lambda: next(versions),
        parked=frozenset,
    )
    return comparison.settle([KEY])


def test_what_is_wrong_at_two_looks_around_two_watermarks_differs() -> None:
    def holds() -> Iterator[Held]:
        while True:
            yield Held(5, ("wrong",))

    found = settled(holds).found
    assert [(one.difference, one.is_unexplained) for one in found] == [(Difference.WRONG, False)]


def test_what_is_right_at_the_second_look_was_behind() -> None:
    def holds() -> Iterator[Held]:
        yield Held(5, ("older",))
        yield Held(15, ("right",))

    assert settled(holds) == Settled(watermark=20)


def test_a_key_that_gets_a_newer_version_between_all_looks_is_as_the_stream_writes_it() -> None:
    def holds() -> Iterator[Held]:
        for version in range(5, 1000):
            yield Held(version, (f"name {version}",))

    assert settled(holds) == Settled(watermark=100)


def test_a_key_that_changes_between_all_looks_and_keeps_its_version_is_told() -> None:
    def holds() -> Iterator[Held]:
        for number in range(1000):
            yield Held(5, (f"name {number}",))

    assert settled(holds).changing == [KEY]


def test_a_version_above_the_watermark_that_stood_before_it_differs_though_the_values_are_right() -> None:
    def holds() -> Iterator[Held]:
        while True:
            yield Held(1 << 60, ("right",))

    (found,) = settled(holds).found
    assert (found.difference, found.is_unexplained) == (Difference.WRONG, True)
    assert "above all that there were" in found.why


def test_a_version_above_the_watermark_that_came_behind_it_is_the_streams() -> None:
    def holds() -> Iterator[Held]:
        yield Held(5, ("older",))
        yield Held(1000, ("right",))

    assert settled(holds) == Settled(watermark=20)


@pytest.mark.parametrize(
    ("key", "only", "unique", "is_one_history"),
    [
        ("id", None, (), True),  # by the primary key
        ("owner", None, ("version", "owner"), True),
        ("owner", {"name": "right"}, ("owner", "name", "version"), True),
        ("owner", None, ("owner", "name", "version"), False),
        ("owner", None, ("name", "version"), False),
        ("owner", None, ("version",), False),
        ("owner", {"name": "right"}, ("name", "version"), False),
        ("owner", {"name": "right"}, ("name", "owner"), True),
        ("owner", None, (), False),
    ],
)
def test_an_older_row_beside_what_an_append_only_view_shows_is_no_archiving_in_one_history(
    key: str, only: dict[str, str] | None, unique: tuple[str, ...], is_one_history: bool
) -> None:
    """Where a key has rows of several entities, the newest one of the key may be archived before others."""
    owner = replace(ID, name="owner")
    version = replace(ID, name="version")
    table = Table(
        schema="bank",
        name="event",
        columns=(ID, NAME, owner, version),
        primary_key=("id",) if key == "id" else (),
        unique_keys=(unique,) if unique else (("id",),),
    )
    entity = Entity("bank.event", key=key, version="version", append_only=True, only=only)
    (view,) = bind([RedisHash("event", entity, fields=["name"])], lambda *_: table)

    def holds() -> Iterator[Held]:
        while True:
            yield Held(1 << 50, ("of an event that is gone",))

    found = settled(holds, view, NewestRow((1, "right", 3) if key == "id" else ("right", 1, 3))).found
    told = [(one.difference, one.is_unexplained, one.may_be_archiving) for one in found]
    assert told == ([(Difference.WRONG, True, True)] if is_one_history else [])
