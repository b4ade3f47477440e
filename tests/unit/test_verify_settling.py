"""What a pass of `viewtail verify` makes of entities that differ."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any

from projectors.proving.comparison import Difference, Found, Settled
from projectors.stores import NOTHING_HELD
from viewtail.changes.writes import Key
from viewtail.commands.verify import _as_json
from viewtail.operations.repair import MOST_LISTED, Repair
from viewtail.operations.verify import Verify
from viewtail.operations.version_resets import VersionReset


def found(key: Key) -> Found:
    return Found(
        key=key, name=str(key[0]), difference=Difference.EXTRA, version=5, why="it is there", is_unexplained=False,
        held=NOTHING_HELD,
    )  # fmt: skip


class _Comparison:
    """All that it is asked for differs, now and again."""

    def settle(self, keys: Collection[Key]) -> Settled:
        return Settled(found=[found(key) for key in keys], watermark=7)

    def name_of(self, key: Key) -> str:
        return str(key[0])


def told(suspects: Sequence[list[Key]], writer: Any) -> tuple[list[str], int]:
    """The entities that a pass lists, and how many it counts."""
    beside: Any = SimpleNamespace(
        require_place=lambda: None, check=lambda: None, note_behind=lambda: None, now=lambda: 7
    )
    run: Any = SimpleNamespace(progress={"watermark": 0}, save=lambda: None)
    pass_ = Verify(beside=beside, run=run, throttle=Any)  # type: ignore[arg-type]
    comparison: Any = _Comparison()
    pass_._comparison = comparison
    if writer is not None:
        pass_._repair = Repair(beside=beside, comparison=comparison, writer=writer, run=run)
    for keys in suspects:
        pass_._suspects = keys
        pass_._settle()
    return [one.name for one in pass_._listed], pass_.counts.differing.total()


def test_an_entity_that_the_store_shows_twice_is_listed_and_counted_once() -> None:
    assert told([[(1,), (2,)], [(2,), (3,)], [(1,)]], None) == (["1", "2", "3"], 3)


def test_what_a_repair_finds_once_more_is_written_once_more() -> None:
    asked: list[list[Key]] = []
    writer = SimpleNamespace(of_keys=lambda keys, *_: asked.append(list(keys)))
    told([[(1,)], [(1,)]], writer)
    assert asked == [[(1,)]] * 6, "three attempts each time"


def test_the_versions_that_a_run_lowered_are_counted_with_those_before_it_was_stopped() -> None:
    view = SimpleNamespace(id="mysql:v", view=SimpleNamespace(entity=SimpleNamespace(version=None)))
    run: Any = SimpleNamespace(progress={}, save=lambda: None, end=lambda *_: None)

    def report(keys: range) -> Any:
        comparison: Any = SimpleNamespace(reader=SimpleNamespace(foreign=()))
        beside: Any = SimpleNamespace(view=view, paused=())
        pass_ = Verify(beside=beside, run=run, throttle=Any, is_repair=True)  # type: ignore[arg-type]
        pass_._comparison = comparison
        pass_._repair = Repair(beside=beside, comparison=comparison, writer=comparison, run=run)
        pass_._repair.note_resets([VersionReset(str(key), 90, 7) for key in keys])
        pass_.counts.differing["wrong"] = len(keys)
        return _as_json(pass_._report([], 0.0, ""))

    assert report(range(MOST_LISTED + 500))["lowered_count"] == MOST_LISTED + 500
    assert report(range(5000, 5001))["lowered_count"] == MOST_LISTED + 501, "the same run went on"
