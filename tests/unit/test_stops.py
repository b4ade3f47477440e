"""Being told to stop: who is told, when, and by which thread."""

from __future__ import annotations

import threading

from viewtail.stops import Stop


def test_whoever_is_listed_is_told_by_the_thread_that_sets_it() -> None:
    stop, told = Stop(), list[threading.Thread]()
    with stop.telling(lambda: told.append(threading.current_thread())):
        setting = threading.Thread(target=stop.set)
        setting.start()
        setting.join()
    assert told == [setting]
    assert stop.is_set()


def test_what_was_set_before_is_told_at_once() -> None:
    stop, told = Stop(), list[str]()
    stop.set()
    with stop.telling(lambda: told.append("at once")):
        assert told == ["at once"]


def test_nobody_is_told_who_has_left() -> None:
    stop, told = Stop(), list[str]()
    with stop.telling(lambda: told.append("left")):
        pass
    stop.set()
    assert told == []


def test_one_stop_ends_another() -> None:
    outer, inner, told = Stop(), Stop(), list[str]()
    with inner.telling(lambda: told.append("interrupted")), outer.telling(inner.set):
        outer.set()
    assert inner.is_set()
    assert told == ["interrupted"]
