"""Archiving a table of many entities into files: what it remembers of them, over a table in memory."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from viewtail.entities import archiving
from viewtail.entities.archive_files import FiledEvent
from viewtail.entities.archive_steps import Listed
from viewtail.entities.archiving import Archiving
from viewtail.entities.event_table import EventTable

Event = tuple[int, str, int]  # its id, entity and version


class Table(Archiving):
    """Ranges of events, made as they are asked for; all are old."""

    def _id_ranges(self) -> Iterator[tuple[int, int]]:
        for _ in range(self.count):
            self.events += self.make()
            end = self.end()
            yield self.upto, end
            self.upto = end

    def begin(
        self, count: int, make: Callable[[], list[Event]], end: Callable[[], int] | None = None
    ) -> Iterator[list[int]]:
        """Ids of each file, which are out of the table then. `end`: of a range; by default that of the table."""
        self.count, self.make, self.upto = count, make, 0
        self.end = end or (lambda: self.events[-1][0])
        self.events: list[Event] = []
        for found in self._for_files("now"):
            gone = [one.event_id for one in found]
            self.events = [one for one in self.events if one[0] not in {*gone}]
            yield gone

    def _read(self, begin: int, end: int, cutoff: str, is_exact: str) -> Any:
        read = sorted((one for one in self.events if begin < one[0] <= end), key=lambda one: one[1:])
        versions: dict[str, list[int]] = {}
        for _, entity, version in self.events:
            versions.setdefault(entity, []).append(version)
        old = [archiving._Old(Listed(*one, 10), is_exact=True) for one in read]
        return archiving._Range(old, {name: (min(all_of), max(all_of)) for name, all_of in versions.items()})

    def step(self, work: Callable[[], Any]) -> Any:
        return work()

    def _is_exact(self) -> str:
        return ""

    def texts(self, table: EventTable, ids: Any) -> dict[int, FiledEvent]:
        return {one: FiledEvent(one, "", 0, "", "", "", "", "", "") for one in ids}


def table() -> Table:
    nothing: Any = None
    return Table(connection=nothing, table=EventTable("bank.account"), throttle=nothing, stop=threading.Event())


@pytest.mark.parametrize("versions", [1, 2], ids=["nothing is to be moved", "half of them are moved"])
def test_what_it_remembers_does_not_grow_with_the_entities(versions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "EVENTS_A_FILE", 400)
    numbers = iter(range(1, 1_000_000))
    held: list[int] = []
    archived = table()

    def stretch() -> list[Event]:
        archived.events.clear()  # so that only what archiving remembers grows
        held.append(tracemalloc.get_traced_memory()[0])
        made = range(200)
        names = [f"entity {next(numbers)}" for _ in made]
        return [(next(numbers), name, version) for name in names for version in range(1, versions + 1)]

    tracemalloc.start()
    try:
        moved = sum(map(len, archived.begin(120, stretch)))
    finally:
        tracemalloc.stop()
    assert moved == (versions - 1) * 120 * 200
    assert held[-1] - held[20] < 500_000


def test_an_entity_whose_events_fill_several_files_is_moved_in_order_up_to_its_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archiving, "EVENTS_A_FILE", 7)
    monkeypatch.setattr(archiving, "EVENTS_AT_ONCE", 3)
    numbers = iter(range(1, 1_000))
    versions = {name: iter(range(1, 1_000)) for name in "abc"}

    made = [(next(numbers), name, next(versions[name])) for name in "aaaabbc" * 5 for _ in range(3)]
    archived = table()
    ends = iter([21, 40, 60, 80, 105])
    everything = iter([made])
    files = list(archived.begin(5, lambda: next(everything, []), lambda: next(ends)))
    moved = [one for file in files for one in file]
    assert len(files) > 10 and len(moved) == len({*moved})
    assert [entity for _, entity, _ in archived.events] == ["a", "b", "c"]
    assert archived.held == 0
    for name in "abc":
        of_one = [number for number, entity, _ in made if entity == name]
        assert [one for one in moved if one in of_one] == of_one[:-1]
