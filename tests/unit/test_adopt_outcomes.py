"""What the last pass of `viewtail adopt` leaves, and what it counts as adopted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from projectors.proving.comparison import Difference, Found, Settled
from projectors.stores import UNREADABLE, Held
from viewtail.changes.writes import Key
from viewtail.operations.adopt import _is_extra, _is_of_another_form, is_adopted, still_differing
from viewtail.operations.repair import Repair
from viewtail.operations.verify import Report, Verify

OF_ANOTHER_TYPE = Held(None, UNREADABLE, "a value of another type", is_foreign=True)
OF_BROKEN_JSON = Held(None, UNREADABLE, "it is not the JSON that viewtail wrote")  # it may have been marked
OF_NO_VERSION = Held(None, b"{}", "it holds no version", is_foreign=True)
OF_VIEWTAIL = Held(7, b"{}")
LOWEST = Held(0, b"{}")


def found(number: int, held: Held, difference: Difference = Difference.EXTRA) -> Found:
    return Found(
        key=(number,), name=str(number), difference=difference, version=held.version, why="",
        is_unexplained=bool(held.fault), held=held,
    )  # fmt: skip


class _Place:
    """What differs, and is equal once it was written, but for what cannot be written."""

    def __init__(self, differing: Sequence[Found], stubborn: Collection[int]) -> None:
        self.differing = {mismatch.key: mismatch for mismatch in differing}
        self.reader = SimpleNamespace(foreign=(), pointer_problem=lambda: "")
        self._stubborn = stubborn
        self.written: list[int] = []

    def settle(self, keys: Collection[Key]) -> Settled:
        return Settled(found=[self.differing[key] for key in keys if key in self.differing], watermark=7)

    def name_of(self, key: Key) -> str:
        return str(key[0])

    def of_keys(self, keys: Sequence[Key], *_: object) -> None:
        for key in keys:
            self.written.append(key[0])
            if key[0] not in self._stubborn:
                self.differing.pop(key, None)


def proven(differing: Sequence[Found], is_left: Any, stubborn: Collection[int] = ()) -> tuple[_Place, Report]:
    place: Any = _Place(differing, stubborn)
    view = SimpleNamespace(view=SimpleNamespace(entity=SimpleNamespace(version="v")), id="redis:v")
    beside: Any = SimpleNamespace(
        require_place=lambda: None, check=lambda: None, note_behind=lambda: None, now=lambda: 7, view=view, paused=()
    )
    run: Any = SimpleNamespace(progress={"watermark": 0}, save=lambda: None, end=lambda *_: None)
    pass_ = Verify(beside=beside, run=run, throttle=Any, is_repair=True, is_left=is_left)  # type: ignore[arg-type]
    pass_._comparison = place
    pass_._repair = Repair(beside=beside, comparison=place, writer=place, run=run)
    pass_._prove = lambda _: ""  # type: ignore[method-assign]
    pass_._suspects = [mismatch.key for mismatch in differing]
    pass_._settle()
    return place, pass_._report([], 0.0, "")


@pytest.mark.parametrize("held", [OF_ANOTHER_TYPE, OF_NO_VERSION, OF_VIEWTAIL, LOWEST])
def test_no_extra_key_is_dropped_without_the_option(held: Held) -> None:
    place, report = proven([found(1, held), found(2, LOWEST, Difference.WRONG)], _is_extra)
    assert place.written == [2]
    assert (report.counts.left, is_adopted(report)) == (1, True)


@pytest.mark.parametrize("held", [OF_NO_VERSION, OF_VIEWTAIL, LOWEST])
def test_extra_keys_of_the_views_form_are_dropped_when_asked_and_no_others(held: Held) -> None:
    place, report = proven([found(1, held), found(2, OF_ANOTHER_TYPE), found(3, OF_BROKEN_JSON)], _is_of_another_form)
    assert place.written == [1]
    assert (report.counts.left, is_adopted(report)) == (2, True)


def test_however_many_extra_keys_are_dropped_what_is_wrong_still_is_no_extra_key() -> None:
    extra = [found(number, LOWEST) for number in range(1500)]
    wrong = [found(number, LOWEST, Difference.WRONG) for number in range(5000, 5400)]
    _, report = proven([*extra, *wrong], _is_of_another_form, stubborn=range(5000, 5400))
    assert (still_differing(report), is_adopted(report)) == (400, False)
    assert report.counts.left == 0


def test_an_extra_key_that_should_have_gone_and_did_not_is_not_left_on_purpose() -> None:
    _, report = proven([found(1, LOWEST)], _is_of_another_form, stubborn=[1])
    assert (report.counts.left, is_adopted(report)) == (0, False)
