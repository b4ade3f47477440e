"""Which versions a repair lowers, and how they are named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from projectors.proving.comparison import Difference, Found
from projectors.stores import Held
from viewtail.operations.version_resets import VersionReset, lowered_by, note, words


def found(key: int, version: int | None, row_version: int | None, *, is_unexplained: bool = True) -> Found:
    return Found(
        key=(key,),
        name=str(key),
        difference=Difference.WRONG,
        version=version,
        why="it is",
        is_unexplained=is_unexplained,
        held=Held(version, None),
        row_version=row_version,
    )


def lowered(version_column: str | None, *entities: Found) -> list[VersionReset]:
    view: Any = SimpleNamespace(view=SimpleNamespace(entity=SimpleNamespace(version=version_column)))
    return lowered_by(view, entities, 50)


def test_what_is_written_below_a_version_that_no_history_explains_is_lowered() -> None:
    """Under a watermark with its version, whatever version the row was looked at with before."""
    below, none, explained = found(2, 40, 30), found(3, None, 30), found(4, 90, 30, is_unexplained=False)
    assert lowered(None, found(1, 90, 30), below, none, explained) == [VersionReset("1", 90, 50)]


def test_with_a_version_column_the_row_says_what_its_version_is() -> None:
    """Without a row there is no tombstone for what was taken away either."""
    assert lowered("ref", found(1, 90, 80), found(2, 40, 80), found(3, 90, None)) == [
        VersionReset("1", 90, 80), VersionReset("3", 90, None),
    ]  # fmt: skip


def test_the_first_are_named_and_all_are_counted_each_once() -> None:
    progress: dict[str, Any] = {}
    note(progress, [VersionReset(str(key), 90, 50) for key in range(60)])
    note(progress, [VersionReset(str(key), 90, 50) for key in range(50, 130)])
    assert progress["lowered_count"] == 130
    assert [one["key"] for one in progress["lowered"]] == [str(key) for key in range(100)]
    assert words(progress).startswith("; 130 versions lowered: 0 from 90 to 50, 1 from") and words({}) == ""
    assert words(progress).endswith("4 from 90 to 50, 125 more")
