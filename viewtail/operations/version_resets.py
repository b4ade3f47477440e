"""Versions that a repair lowers, by name in the record: no other write of viewtail may lower a version.

Each is noted before it is taken away, so that a repair which is killed in between has named it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from projectors.proving.comparison import Found
from projectors.views import BoundView
from viewtail.changes.counting import counted

MOST_NAMED = 100  # of a run; the others are counted
MOST_SAID = 5


@dataclass(frozen=True, slots=True)
class VersionReset:
    """One entity's version in the store, as it was found and as the repair writes it."""

    name: str  # the rendered key
    before: int
    after: int | None  # None: nothing is written, since no row says which version that would have

    def __str__(self) -> str:
        return f"{self.name} from {self.before} to {'none' if self.after is None else self.after}"


def lowered_by(view: BoundView, found: Sequence[Found], version: int) -> list[VersionReset]:
    """Return the entities whose version goes down when they are written under a watermark of this version."""
    lowered = []
    for one in found:
        after = version if view.view.entity.version is None else one.row_version
        if one.is_unexplained and one.version is not None and (after is None or after < one.version):
            lowered.append(VersionReset(one.name, one.version, after))
    return lowered


def note(progress: dict[str, Any], lowered: Sequence[VersionReset]) -> None:
    """Note them in the progress of a run. An entity that another attempt lowers again is named once."""
    named = progress.setdefault("lowered", [])
    known = {one["key"] for one in named}
    new = [one for one in lowered if one.name not in known]
    progress["lowered_count"] = progress.get("lowered_count", 0) + len(new)
    named += [
        {"key": one.name, "from": str(one.before), "to": None if one.after is None else str(one.after)}
        for one in new[: MOST_NAMED - len(named)]
    ]


def words(progress: Mapping[str, Any]) -> str:
    """Return them in words. It holds keys, which `viewtail forget` erases in the progress alone."""
    count = progress.get("lowered_count", 0)
    if not count:
        return ""
    said = [f"{one['key']} from {one['from']} to {one['to'] or 'none'}" for one in progress["lowered"][:MOST_SAID]]
    said += [f"{count - len(said):,} more"] if count > len(said) else []
    return f"; {counted(count, 'versions')} lowered: {', '.join(said)}"
