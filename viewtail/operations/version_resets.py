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


def lowered_by(view: BoundView, mismatches: Sequence[Found], version: int) -> list[VersionReset]:
    """Return the entities whose version goes down when they are written under a watermark of this version."""
    lowered = []
    for mismatch in mismatches:
        after = version if view.view.entity.version is None else mismatch.row_version
        if mismatch.is_unexplained and mismatch.version is not None and (after is None or after < mismatch.version):
            lowered.append(VersionReset(mismatch.name, mismatch.version, after))
    return lowered


def note(progress: dict[str, Any], lowered: Sequence[VersionReset]) -> None:
    """Note them in the progress of a run. An entity that another attempt lowers again is named once."""
    named = progress.setdefault("lowered", [])
    known = {reset["key"] for reset in named}
    new = [reset for reset in lowered if reset.name not in known]
    progress["lowered_count"] = progress.get("lowered_count", 0) + len(new)
    named += [
        {"key": reset.name, "from": str(reset.before), "to": None if reset.after is None else str(reset.after)}
        for reset in new[: MOST_NAMED - len(named)]
    ]


def words(progress: Mapping[str, Any]) -> str:
    """Return them in words. It holds keys, which `viewtail forget` erases in the progress alone."""
    count = progress.get("lowered_count", 0)
    if not count:
        return ""
    said = [
        f"{reset['key']} from {reset['from']} to {reset['to'] or 'none'}" for reset in progress["lowered"][:MOST_SAID]
    ]
    said += [f"{count - len(said):,} more"] if count > len(said) else []
    return f"; {counted(count, 'versions')} lowered: {', '.join(said)}"
