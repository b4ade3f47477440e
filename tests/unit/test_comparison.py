"""What becomes of a suspect, by what a store holds of it at each look."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from changes.tables import Column, Kind, Table
from changes.writes import Key
from projectors.binding import bind
from projectors.projection import Projections, followed_tables
from projectors.proving.comparison import Comparison, Difference, Settled
from projectors.stores import Held, ViewReader
from projectors.stores.redis.views import RedisHash
from projectors.views import Entity

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


def settled(holds: Callable[[], Iterator[Held]]) -> Settled:
    """Of one suspect, with a watermark of version 10, 20, 30 ... between two looks."""
    table = Table(schema="shop", name="user", columns=(ID, NAME), primary_key=("id",))
    (view,) = bind([RedisHash("user", Entity("shop.user"), fields=["name"])], lambda *_: table)
    versions = iter(range(10, 1000, 10))
    comparison = Comparison(
        view=view,
        rows=OneRow(),  # type: ignore[arg-type]
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
