"""What `viewtail rebuild` says when the running viewtail, or somebody else, was quicker."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from offsets.copies import Copy, Event, Stage
from offsets.views import State
from tests.unit.test_rebuilds import bound
from viewtail import Entity, IndexTable
from viewtail.changes.errors import MisuseError, ViewtailError
from viewtail.commands.rebuild import _told
from viewtail.operations import rebuild
from viewtail.operations.rebuild import Operation, _trouble

VIEW = "mysql:people"


def at(stage: Stage, live: int = 1, copy: int = 2) -> Copy:
    return Copy(
        view=VIEW, live=live, copy=copy, stage=stage, is_automatic=True, is_compared=False, note=None,
        started_by="somebody", keep_s=0, kept_s=None, state=State.FILLED,
    )  # fmt: skip


class _Copies:
    """Each look finds the next of these, and the last one from then on; None: there is no copy any more."""

    pipeline = "mysql"

    def __init__(self, found: Sequence[Copy | None], live: int, *, is_paused: bool = False) -> None:
        self._found, self._live = list(found), live
        self.asked: list[Event] = []
        self.begun = 0
        row = SimpleNamespace(state=State.PAUSED if is_paused else State.FILLED)
        self.states = SimpleNamespace(read=lambda _: row)

    def begin(self, *_: object, **__: object) -> bool:
        """There is one already."""
        self.begun += 1
        return True

    def read(self) -> dict[str, Copy]:
        found = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        return {} if found is None else {VIEW: found}

    def live(self, _: str) -> tuple[int, str]:
        return self._live, ""

    def move(self, _: Copy, event: Event, *, keep_s: int | None) -> bool:
        self.asked.append(event)
        return True


class _Operation(Operation):
    """Over such copies."""

    copies: _Copies
    waits: int

    @contextmanager
    def _records(self) -> Iterator[Any]:
        yield self.copies

    def _pause(self, seconds: float) -> None:
        self.waits += 1
        assert 0 < seconds < 3 and self.waits < 10, "it waits for what does not come"


@pytest.fixture(autouse=True)
def _pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "pipelines_now", lambda catalog: catalog.pipelines)


def operation(
    found: Sequence[Copy | None], live: int, *, is_filled: bool = True, is_paused: bool = False
) -> _Operation:
    view = bound(IndexTable("people", Entity("shop.user"), value="email"))
    copy = SimpleNamespace(name=f"{VIEW}~2")
    if not is_filled:
        found = [one and replace(one, state=State.BACKFILLING) for one in found]
    pipeline = SimpleNamespace(state="running", paused=None, error=None, views=[copy])
    catalog = SimpleNamespace(pipelines={"mysql": pipeline})
    one = _Operation(catalog=catalog, view=view, say=lambda _: None, stop=threading.Event())  # type: ignore[arg-type]
    one.copies, one.waits = _Copies(found, live, is_paused=is_paused), 0
    return one


def rebuilt(one: _Operation, error: ViewtailError | None = None) -> Copy:
    def proof(*_: object, is_hurried: bool) -> Sequence[str]:
        if error is not None:
            raise error
        return ()

    return one.rebuild(proof, "somebody", keep_s=0, is_held=False)


BUILDING, SWAPPING, MOVING = at(Stage.BUILDING), at(Stage.SWAPPING), at(Stage.MOVING, live=2, copy=1)


@pytest.mark.parametrize("found", [[BUILDING, BUILDING, None], [BUILDING, SWAPPING, None], [BUILDING, MOVING, None]])
def test_a_copy_that_was_swapped_by_itself_while_it_was_waited_for_is_the_end(found: list[Copy | None]) -> None:
    one = operation(found, 2, is_filled=False)
    done = rebuilt(one)
    assert (done.live, done.copy, done.stage) == (2, 1, Stage.ENDED)
    assert one.copies.asked == []


def test_a_former_copy_that_goes_behind_the_swap_is_no_error() -> None:
    one = operation([BUILDING, BUILDING, SWAPPING, None], 2, is_filled=True)
    done = rebuilt(one)
    assert (done.live, done.copy, done.stage) == (2, 1, Stage.ENDED)
    assert one.copies.asked == [Event.SWAP_ASKED]
    assert rebuilt(operation([BUILDING, at(Stage.DROPPING, 2, 1)], 2, is_filled=True)).live == 2


def test_who_waits_while_entities_change_places_is_told_how_many_have() -> None:
    moving = [replace(MOVING, upto=9, moved_count=count) for count in (0, 700)]
    one = operation([BUILDING, BUILDING, *moving, None], 2, is_filled=True)
    said: list[Any] = []
    one.say = said.append
    shown = SimpleNamespace(name=VIEW, state="filled", row_count=1200, row_estimate=1000)
    one.catalog.pipelines["mysql"].views.append(shown)
    assert rebuilt(one).live == 2
    assert [now.moved_count for now in said if now.stage == "swapping"] == [0, 700]
    assert _told(said[-1]) == "swapping: 700 of about 1,200 entities are in place"


def test_a_comparison_that_a_swap_cut_off_is_the_end() -> None:
    one = operation([BUILDING, at(Stage.KEPT, 2, 1)], 2, is_filled=True)
    assert rebuilt(one, ViewtailError("the copies were swapped meanwhile")).live == 2
    with pytest.raises(ViewtailError, match="it differs"):
        rebuilt(operation([BUILDING], 1, is_filled=True), ViewtailError("it differs"))


def test_a_copy_that_somebody_else_drops_is_not_waited_for() -> None:
    with pytest.raises(ViewtailError, match="somebody else dropped"):
        rebuilt(operation([BUILDING, BUILDING, None], 1, is_filled=False))
    with pytest.raises(MisuseError, match="is being dropped"):
        rebuilt(operation([BUILDING, at(Stage.DROPPING)], 1, is_filled=False))
    with pytest.raises(MisuseError, match="is being dropped"):
        rebuilt(operation([at(Stage.DROPPING, 2, 1)], 2, is_filled=True))
    gone = operation([at(Stage.KEPT, 2, 1), None], 2, is_filled=False)
    with pytest.raises(ViewtailError, match="somebody else dropped"):
        gone.roll_back()


def test_a_paused_view_is_neither_built_nor_swapped_nor_taken_back() -> None:
    begun = operation([BUILDING], 1, is_paused=True)
    with pytest.raises(ViewtailError, match=f"First: viewtail resume {VIEW}"):
        rebuilt(begun)
    assert (begun.copies.asked, begun.copies.begun) == ([], 0)
    filling = replace(BUILDING, state=State.BACKFILLING)
    for looks in ([], [filling], [BUILDING]):  # as it begins, while it is built, and when it was compared
        one = operation([*looks, replace(BUILDING, is_paused=True)], 1)
        with pytest.raises(ViewtailError, match=f"First: viewtail resume {VIEW}"):
            rebuilt(one)
        assert (one.copies.asked, one.copies.begun) == ([], 1)
    kept = at(Stage.KEPT, 2, 1)
    for looks in ([], [replace(kept, state=State.BACKFILLING)]):
        one = operation([*looks, replace(kept, is_paused=True)], 2)
        with pytest.raises(ViewtailError, match=f"First: viewtail resume {VIEW}"):
            one.roll_back()
        assert one.copies.asked == []


def test_a_copy_is_compared_again_after_it_was_not_filled_or_a_swap_was_refused() -> None:
    refused = replace(BUILDING, note="the table is locked")
    lost = [replace(BUILDING, state=State.BACKFILLING), BUILDING]
    for meanwhile in (lost, [BUILDING, SWAPPING, refused, refused]):
        one, said = operation([BUILDING, *meanwhile, at(Stage.KEPT, 2, 1)], 2), list[Any]()
        one._pause = lambda _: None  # type: ignore[method-assign]
        one.say = said.append
        assert rebuilt(one).live == 2
        assert [now.stage for now in said].count("verifying") == 2
    assert refused.note in [now.remark for now in said]


def test_what_a_rebuild_waits_for_is_told() -> None:
    def why(state: str, error: str | None = None, paused: str | None = None) -> str | None:
        return _trouble("redis", SimpleNamespace(state=state, error=error, paused=paused))  # type: ignore[arg-type]

    assert why("running") is None
    assert "Start one: viewtail run" in str(why("down")) and "viewtail run" in str(_trouble("redis", None))
    assert str(why("paused", paused="since 3")).endswith("is paused. To go on: viewtail resume --pipeline redis")
    assert (
        why("retrying", "Redis does not answer")
        == "pipeline redis, which does this, is retrying: Redis does not answer"
    )
