"""Keys that are written at most every so often: which of those that a batch touched are written now, and which later.

A key that was written lately waits with others of its batch: they are a fan-out of their own, which is durable before
the offset moves past their changes. When keys were written is in memory only: after a restart one may be written too
early, and none is forgotten.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from projectors.derived.climbing import what_of, what_text
from viewtail.changes.rendering import in_a_line, render_key
from viewtail.changes.tables import Column
from viewtail.changes.writes import Key

KEYS_A_ROW = 200
MOST_REMEMBERED = 100_000  # keys of a view that were written lately
_KEYS = "#keys"  # in place of a way up, whose name never begins so


def keys_in(what: str) -> list[Key]:
    """The keys that wait; none where `what` names changed rows."""
    return what_of(what)[1] if what.startswith(f'["{_KEYS}",') else []


@dataclass(slots=True)
class Divided:
    """Keys that a batch touched, each with its version."""

    now: dict[Key, int] = field(default_factory=dict)
    later: dict[Key, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)  # by the `what` of their fan-out, which brings this, too

    def rows(self) -> Iterator[tuple[str, int, int]]:
        """What is to wait, as fan-outs: `what`, and the least and the largest version of its keys."""
        keys = sorted(self.later, key=repr)
        for at in range(0, len(keys), KEYS_A_ROW):
            some = keys[at : at + KEYS_A_ROW]
            versions = [self.later[key] for key in some]
            yield what_text(_KEYS, some), min(versions), max(versions)


@dataclass(slots=True)
class Postponed:
    """Those of one view."""

    every_s: float
    _written: OrderedDict[Key, float] = field(default_factory=OrderedDict)  # lately; monotonic, the oldest first
    _waiting: dict[Key, str] = field(default_factory=dict)  # the `what` of their fan-out

    def divided(self, versions: Mapping[Key, int]) -> Divided:
        """Divide keys that a batch touched; those of `now` count as written."""
        self._forget()
        divided = Divided()
        for key, version in versions.items():
            if (what := self._waiting.get(key)) is not None:
                divided.waiting[what] = max(version, divided.waiting.get(what, 0))
            elif key in self._written:
                divided.later[key] = version
            else:
                divided.now[key] = version
        self.note_written(divided.now)
        return divided

    def is_written_lately(self, key: Key) -> bool:
        """Whether a key was written within the time; or what a fan-out names, in place of a key: all of it was."""
        self._forget()
        return key in self._written

    def note_waiting(self, what: str) -> None:
        """A fan-out of keys that wait is kept."""
        self._waiting.update(dict.fromkeys(keys_in(what), what))

    def note_gone(self, what: str) -> None:
        """It is over."""
        for key in keys_in(what):
            self._waiting.pop(key, None)

    def note_written(self, keys: Iterable[Key]) -> None:
        """Keys are written now."""
        now = time.monotonic()
        for key in keys:
            self._written[key] = now
            self._written.move_to_end(key)

    def _forget(self) -> None:
        before = time.monotonic() - self.every_s
        while self._written:
            key, at = next(iter(self._written.items()))
            if at > before and len(self._written) <= MOST_REMEMBERED:
                return
            del self._written[key]


def described(what: str, key: Sequence[Column], every_s: float) -> str:
    """Name keys that wait, to people."""
    keys = keys_in(what)
    others = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
    return f"{in_a_line(render_key(keys[0], key))}{others} (at_most_every={every_s:g})"
