"""Tells what differs for good in a view that another tool keeps, which no watermark tells.

What differs at a first look may only be under way. So it is looked at again some seconds later, row and place anew.
Where neither has changed, it differs for good. Where one has, it is looked at again, a few times: what then shows what
the row was at an earlier look is stale, and what changed each time is told as changing. Meanwhile the pass goes on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from projectors.proving.comparison import Comparison, Difference, Expected
from projectors.stores import NOTHING_HELD, UNREADABLE, Held, Unfit, slices
from viewtail.changes.errors import StopRequested
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key

LOOKS = 4  # at one key, the first among them
KEYS_A_LOOK = 2_000
MOST_LISTED = 1_000  # rows that are refused, by name
MOST_WAITING = 40_000  # keys, whose values are in memory; with more the pass waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Differing:
    """One entity that differs for good. Holds no values but the key's."""

    name: str  # the rendered key
    difference: Difference
    fields: tuple[str, ...] = ()  # that are wrong; none where the whole is


@dataclass(slots=True)
class _Seen:
    """The state of one suspect at its last look."""

    content: Any  # None: the place shows nothing
    form: Any  # that it must show; None: nothing
    earlier: list[Any] = field(default_factory=list)  # what it had to show at looks before
    is_moving: bool = False  # the place had changed since the look before
    looks: int = 1


@dataclass(slots=True, kw_only=True)
class SecondLooks:
    """The suspects of one pass. Not thread-safe.

    Args:
        again_after_s: between two looks at a key.
    """

    comparison: Comparison
    again_after_s: float
    stop: threading.Event
    found: list[Differing] = field(default_factory=list)  # for good; the caller takes them
    refused: list[str] = field(default_factory=list)  # the first rendered keys of rows that cannot be in such a view
    refused_count: int = 0
    changing: int = 0
    _waiting: deque[tuple[float, dict[Key, _Seen]]] = field(default_factory=deque)  # since when, and what

    def add(self, suspects: Collection[Key]) -> None:
        """Look at these for the first time, and at others again whose time has come."""
        for some in slices(list(dict.fromkeys(suspects)), KEYS_A_LOOK):
            self._look(dict.fromkeys(some))
        while self._waiting and (self._is_due() or sum(len(some) for _, some in self._waiting) > MOST_WAITING):
            self._look_again()

    def finish(self) -> None:
        """Look at all of them until each is told. Raises StopRequested."""
        while self._waiting:
            self._look_again()

    def _is_due(self) -> bool:
        return time.monotonic() - self._waiting[0][0] >= self.again_after_s

    def _look_again(self) -> None:
        looked_at, some = self._waiting.popleft()
        if self.stop.wait(max(0.0, looked_at + self.again_after_s - time.monotonic())):
            raise StopRequested
        self._look(some)

    def _look(self, suspects: Mapping[Key, _Seen | None]) -> None:
        keys = list(suspects)
        held = self.comparison.reader.held(keys)
        expected = self.comparison.expected(keys, MAX_VERSION)
        left = {}
        for key, before in suspects.items():
            seen = self._seen(key, before, held.get(key, NOTHING_HELD), expected)
            if seen is not None and not self._is_told(key, before, seen):
                left[key] = seen
        if left:
            self._waiting.append((time.monotonic(), left))

    def _seen(self, key: Key, before: _Seen | None, held: Held, expected: Expected) -> _Seen | None:
        """What this look shows; None where nothing differs, or the row cannot be in the view."""
        try:
            is_shown, form = self.comparison.is_shown(key, held, expected), self.comparison.form(key, expected)
        except (Unfit, ValueError, TypeError):
            is_shown, form = False, UNREADABLE
        if (name := self.comparison.name_of(key)) in expected.parked or form == UNREADABLE:
            self._refuse(name)
            return None
        if is_shown:
            return None
        if before is None:
            return _Seen(held.content, form)
        earlier = before.earlier if form == before.form else [*before.earlier, before.form]
        return _Seen(held.content, form, earlier, held.content != before.content, before.looks + 1)

    def _refuse(self, name: str) -> None:
        if name in self.refused:  # the place may show a key twice
            return
        self.refused_count += 1
        if len(self.refused) < MOST_LISTED:
            self.refused.append(name)

    def _is_told(self, key: Key, before: _Seen | None, seen: _Seen) -> bool:
        """Return whether this look tells what becomes of a key."""
        stands_still = before is not None and not seen.is_moving and seen.form == before.form
        is_behind = seen.content in seen.earlier
        if (not stands_still or is_behind) and seen.looks < LOOKS:
            return False
        if seen.is_moving and not is_behind:
            self.changing += 1
        else:
            self.found.append(self._differing(key, seen, is_behind=is_behind))
        return True

    def _differing(self, key: Key, seen: _Seen, *, is_behind: bool) -> Differing:
        name = self.comparison.name_of(key)
        if seen.content is None:
            return Differing(name=name, difference=Difference.MISSING)
        if seen.form is None:
            return Differing(name=name, difference=Difference.EXTRA)
        members = self.comparison.reader.members
        there, wanted = members(seen.content), members(seen.form)
        fields = sorted(field for field in there.keys() | wanted.keys() if not _is_same(field, there, wanted))
        difference = Difference.STALE if is_behind else Difference.WRONG
        return Differing(name=name, difference=difference, fields=tuple(fields) if there else ())


def _is_same(name: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether both have the value, as the same type of it: 1, 1.0 and true are three values."""
    one, other = there.get(name), wanted.get(name)
    return name in there and name in wanted and type(one) is type(other) and bool(one == other)
