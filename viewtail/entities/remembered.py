"""Remembers the newest events that a worker's last batches left, so that the next one does not read them again.

Nothing rests on it: the table's unique keys refuse an event that is not the next one of its entity, and what they do
not see is compared with the table before a batch is committed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from viewtail.entities.event_table import Newest

FOR_S = 1.0
MOST_BYTES = 16 << 20
_BYTES_AN_ENTITY = 512  # about what one takes, beside its state


@dataclass(eq=False, slots=True)
class Remembered:
    """The newest events that one lane remembers; a new session begins with none."""

    _newest: dict[str, Newest] = field(default_factory=dict)
    _bytes: int = 0
    _until: float = 0.0  # by the monotonic clock: what is remembered then is forgotten
    _from: float = 0.0  # nothing is remembered before

    @property
    def is_worth_it(self) -> bool:
        """Return whether nobody else wrote the same entities a moment ago."""
        return time.monotonic() >= self._from

    def of(self, entity_ids: Iterable[str]) -> dict[str, Newest]:
        """Return the events of these entities that are remembered."""
        if time.monotonic() > self._until:
            self._drop()
        known = self._newest
        return {entity: known[entity] for entity in entity_ids if entity in known}

    def keep(self, newest: Mapping[str, Newest]) -> None:
        """Remember the newest events of a batch that was committed."""
        if not self.is_worth_it:
            return
        self._until = time.monotonic() + FOR_S
        kept = self._newest
        for entity, event in newest.items():
            before = kept.pop(entity, None)  # the last ones are forgotten last
            self._bytes += _size(event) - (0 if before is None else _size(before))
            kept[entity] = event
        while self._bytes > MOST_BYTES:
            self._bytes -= _size(kept.pop(next(iter(kept))))

    def forget(self) -> None:
        """Forget everything, because it was outdated: while others write these entities, remembering does not pay."""
        self._drop()
        self._from = time.monotonic() + FOR_S

    def _drop(self) -> None:
        self._newest.clear()
        self._bytes = 0


def _size(newest: Newest) -> int:
    _, state, _ = newest
    return len(state) + _BYTES_AN_ENTITY
