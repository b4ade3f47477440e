"""Which of the entities that changed a moment ago the cleaner looks at next."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import pytest

from projectors.proving import recent
from projectors.proving.recent import AGAIN_AFTER_S, KEPT_S, MOST_KEYS, SETTLED_S, RecentKeys
from viewtail.changes.writes import Key, ViewWrites, Write

VIEW = "mysql:people"
WRITE = Write(1, None)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: made.now_s)
    return made


def writes(numbers: Iterable[int], view: str = VIEW) -> list[ViewWrites]:
    return [ViewWrites(view, {(number,): WRITE for number in numbers})]


def taken(keys: RecentKeys, most: int, view: str = VIEW) -> list[int]:
    return sorted(number for (number,) in keys.take(most).get(view, []))


def test_a_key_is_looked_at_once_it_has_settled(clock: Clock) -> None:
    keys = RecentKeys()
    keys.on_written(writes([1]))
    clock.now_s += SETTLED_S - 0.1
    assert keys.take(10) == {}
    clock.now_s += 0.1
    assert keys.take(10) == {VIEW: [(1,)]}


def test_a_key_that_changes_all_the_time_is_looked_at_too(clock: Clock) -> None:
    keys, looks = RecentKeys(), 0
    for _ in range(100):
        keys.on_written(writes([1]))
        looks += len(taken(keys, 10))
        clock.now_s += 0.1
    assert looks >= 10 / (AGAIN_AFTER_S + 0.1) - 2


def test_fresh_keys_come_before_those_that_were_looked_at(clock: Clock) -> None:
    keys = RecentKeys()
    keys.on_written(writes(range(1000)))
    clock.now_s += SETTLED_S
    assert len(taken(keys, 1000)) == 1000
    keys.on_written(writes([5000]))
    clock.now_s += SETTLED_S
    assert 5000 in taken(keys, 5)


def test_the_newest_of_more_than_can_be_looked_at_come_first(clock: Clock) -> None:
    """Else each would be looked at after as long as the queue is, and none within seconds."""
    keys = RecentKeys()
    for second in range(20):
        keys.on_written(writes(range(second * 100, second * 100 + 100)))
        clock.now_s += 1
        if found := taken(keys, 10):
            settled = int(clock.now_s - SETTLED_S) - 100
            assert min(found) // 100 == settled


def test_a_damaged_key_that_was_looked_at_before_gets_its_turn_again(clock: Clock) -> None:
    """However many are fresh, as long as there is time for more than these: those seen longest ago come first."""
    keys = RecentKeys()
    keys.on_written(writes(range(100)))
    clock.now_s += SETTLED_S
    assert len(taken(keys, 190)) == 100
    looked: list[int] = []
    for second in range(2, 14):
        keys.on_written(writes(range(second * 1000, second * 1000 + 90)))
        clock.now_s += SETTLED_S
        found = taken(keys, 100)
        assert len(found) == 100
        looked += [one for one in found if one < second * 1000]
    assert sorted(looked[:100]) == list(range(100))


def test_no_key_is_looked_at_twice_within_a_second(clock: Clock) -> None:
    keys, looked_at = RecentKeys(), dict[int, float]()
    for number in range(400):
        keys.on_written(writes([number % 7, number]))
        clock.now_s += 0.05
        for one in taken(keys, 3):
            assert clock.now_s - looked_at.get(one, 0.0) >= AGAIN_AFTER_S
            looked_at[one] = clock.now_s
    assert len(looked_at) > 300


def test_a_key_is_dropped_a_minute_after_its_last_change(clock: Clock) -> None:
    keys = RecentKeys()
    keys.on_written(writes([1, 2]))
    clock.now_s += KEPT_S - 1
    assert taken(keys, 10) == [1, 2]
    keys.on_written(writes([2]))
    clock.now_s += SETTLED_S
    assert taken(keys, 10) == [2]
    clock.now_s += KEPT_S
    assert taken(keys, 10) == []
    keys.on_written(writes([3]))
    clock.now_s += KEPT_S
    assert taken(keys, 10) == [], "nobody looked for long, as beside a pipeline that lags"


def test_so_many_keys_are_kept_and_no_more(clock: Clock) -> None:
    keys = RecentKeys()
    for second in range(10):
        for view in ("one", "two", "three"):
            keys.on_written(writes(range(second * 30_000, second * 30_000 + 30_000), view))
        clock.now_s += 1
    assert sum(len(of._arriving) + len(of._fresh) + len(of._seen) for of in keys._views.values()) <= MOST_KEYS
    clock.now_s += SETTLED_S
    found = keys.take(100)
    assert {view: len(some) for view, some in found.items()} == {"one": 100, "two": 100, "three": 100}


def test_where_more_changes_than_is_kept_some_of_what_settled_is_looked_at(clock: Clock) -> None:
    keys = RecentKeys()
    for tenth in range(100):
        keys.on_written(writes(range(tenth * 5_000, tenth * 5_000 + 5_000)))
        clock.now_s += 0.1
        found = taken(keys, 50)
        if tenth > 30:
            assert len(found) == 50 and min(found) >= (tenth - 40) * 5_000


def test_taking_costs_as_much_as_is_taken(clock: Clock) -> None:
    hashed: list[int] = []

    class Counted(int):
        def __hash__(self) -> int:
            hashed.append(self)
            return super().__hash__()

    keys = RecentKeys()
    keys.on_written(writes(map(Counted, range(MOST_KEYS // 2))))
    clock.now_s += SETTLED_S
    keys.take(MOST_KEYS // 4)
    clock.now_s += AGAIN_AFTER_S
    hashed.clear()
    keys.take(10)
    assert 0 < len(hashed) < 100


def test_one_thread_adds_while_another_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "SETTLED_S", 0.0)
    monkeypatch.setattr(recent, "AGAIN_AFTER_S", 60.0)
    keys, found, is_done = RecentKeys(), list[Key](), threading.Event()

    def take() -> None:
        while not is_done.is_set() or keys._views[VIEW]._arriving or keys._views[VIEW]._fresh:
            found.extend(keys.take(50).get(VIEW, []))

    thread = threading.Thread(target=take)
    thread.start()
    for number in range(5_000):
        keys.on_written(writes([number]))
    is_done.set()
    thread.join()
    assert sorted(found) == [(number,) for number in range(5_000)]
