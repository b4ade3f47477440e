"""Parked keys: a projection or a store refused them. They are listed as dead letters, which hold no row values.

A later success of the key clears its dead letter. Other processes may clear some, too (`viewtail dead-letters`): the
owner of the pipeline looks for that now and then. A view that does little but park its keys is halted.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from offsets import dead_letters
from offsets.mysql import Session
from projectors.views import BoundView
from viewtail.changes.errors import MisuseError
from viewtail.changes.rendering import key_renderer, parse_key
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key, Parked, ViewWrites

_log = structlog.get_logger("viewtail.pipeline")

# So many refusals of a view without a success halt it; of a batch they count where they are more than its successes.
PARKED_IN_A_ROW = 100
_LOGGED = 10  # of one batch
LOOK_EVERY_S = 3.0  # for letters that another process changed
_LOOK_SHARE = 0.02  # at most so much of the time goes into looking, however many letters there are
_LOOK_TRIES = 3  # while letters come and go here, too


@dataclass(slots=True)
class _Known:
    """Which keys are parked, shared by the threads of one ownership; the lock is held while memory changes."""

    keys: dict[str, set[str]]  # by view
    lock: threading.Lock = field(default_factory=threading.Lock)
    changes: int = 0  # made here
    seen: tuple[object, ...] = ()  # what the table said of itself when it was read last
    look_at: float = 0.0  # monotonic; not before


class DeadLetters:
    """The dead letters of a pipeline's views; which keys they are is remembered, so that success costs nothing."""

    def __init__(self, session: Session, database: str, views: Sequence[BoundView], ids: dict[str, int]) -> None:
        self._session = session
        self._database = database
        self._columns = {view.id: view.key for view in views}
        self._ids = ids
        self._known = _Known({view.id: set() for view in views})

    def on(self, session: Session) -> DeadLetters:
        """The same dead letters, written on another thread's session; what is known of them is shared."""
        twin = copy.copy(self)
        twin._session = session
        return twin

    def load(self) -> None:
        """Learn which keys are parked, before anybody parks others."""
        self._known.seen = self._seen_now()
        self._remember(self._read(), self._known.changes)

    def look_again(self) -> None:
        """Learn which letters other processes took away or added, now and then; for one thread.

        What is parked or cleared here meanwhile counts more than what was read before.
        """
        known, began = self._known, time.monotonic()
        if began < known.look_at or not self._ids:
            return
        seen = self._seen_now()
        for _ in range(_LOOK_TRIES if seen != known.seen else 0):
            before = known.changes
            if self._remember(self._read(), before):
                known.seen = seen
                break
        now = time.monotonic()
        known.look_at = now + max(LOOK_EVERY_S, (now - began) / _LOOK_SHARE)

    def _seen_now(self) -> tuple[object, ...]:
        return dead_letters.fingerprint(self._session, self._database, self._ids.values())

    def _read(self) -> dict[str, set[str]]:
        names = {number: name for name, number in self._ids.items()}
        keys: dict[str, set[str]] = {name: set() for name in self._known.keys}
        for number, key in dead_letters.keys(self._session, self._database, names):
            keys[names[number]].add(key)
        return keys

    def _remember(self, keys: dict[str, set[str]], changes: int) -> bool:
        """Return whether nothing changed here since there had been so many changes."""
        with self._known.lock:
            if self._known.changes != changes:
                return False
            self._known.keys.update(keys)
        return True

    @property
    def count(self) -> int:
        return sum(len(keys) for keys in self._known.keys.values())

    def counts(self) -> dict[str, int]:
        """Count the parked keys of each view."""
        return {view: len(keys) for view, keys in self._known.keys.items()}

    def record(self, parked: Iterable[Parked]) -> None:
        """Durable on return; called before the offset moves past them."""
        letters = list(parked)
        dead_letters.record(self._session, self._database, self._ids, letters)
        with self._known.lock:
            self._known.changes += 1
            for letter in letters:
                self._known.keys[letter.view].add(letter.key)

    def has_letters(self, writes: Sequence[ViewWrites]) -> bool:
        """Return whether one of these keys may be parked: false positives where another process cleared some."""
        for of_view in writes:
            if keys := self._known.keys[of_view.view]:
                render = key_renderer(self._columns[of_view.view])
                if any(render(key) in keys for key in of_view.writes):
                    return True
        return False

    def clear_applied(self, writes: Sequence[ViewWrites], parked: Sequence[Parked]) -> None:
        """Forget the keys that these writes brought up to date."""
        refused = {(letter.view, letter.key): letter.version for letter in parked}
        for of_view in writes:
            view = of_view.view
            if keys := self._known.keys[view]:
                render = key_renderer(self._columns[view])
                applied = {render(key): write[0] for key, write in of_view.writes.items()}
                # A key refused at one version and applied at a later one, in the same batch, is up to date.
                newer = {key: at for key, at in applied.items() if key in keys and at > refused.get((view, key), -1)}
                self._clear(view, newer)

    def keys_of(self, view: str) -> frozenset[str]:
        """The rendered keys of a view's dead letters."""
        with self._known.lock:
            return frozenset(self._known.keys[view])

    def waiting(self, view: str, after: bytes, limit: int) -> list[tuple[bytes, str]]:
        """Read the next keys of a view that wait for another source's delete; see offsets/dead_letters.py."""
        return dead_letters.waiting(self._session, self._database, self._ids[view], after, limit)

    def clear_view(self, view: str) -> None:
        """Forget a view's dead letters: its backfill begins."""
        self._clear(view, dict.fromkeys(sorted(self.keys_of(view)), MAX_VERSION))

    def clear_part(self, view: BoundView, values: Key, upto: int) -> None:
        """Forget the letters up to a version of keys that begin with these values: their rows are read again."""
        self._clear(view.id, {name: upto for name in self.keys_of(view.id) if begins_with(name, view, values)})

    def _clear(self, view: str, upto: Mapping[str, int]) -> None:
        """Delete, by key, the letters of changes up to a version."""
        if not upto:
            return
        gone = dead_letters.clear(self._session, self._database, self._ids[view], upto)
        with self._known.lock:
            self._known.changes += 1
            self._known.keys[view].difference_update(gone)


def _counts(writes: Iterable[ViewWrites]) -> Counter[str]:
    """How many writes each view has of these."""
    counts = Counter[str]()
    for of_view in writes:
        counts[of_view.view] += of_view.count
    return counts


def begins_with(name: str, view: BoundView, values: Key) -> bool:
    """Return whether a letter's key begins with these values, those of a part's braces."""
    with suppress(MisuseError):  # a key that nobody could read
        return parse_key(name, view.key)[: len(values)] == values
    return False


class Parking:
    """Parks the keys of a pipeline or a backfill. `halt` takes a view and the reason."""

    def __init__(self, dead_letters: DeadLetters, halt: Callable[[str, str], None]) -> None:
        self._dead_letters = dead_letters
        self._halt = halt
        self._in_a_row: Counter[str] = Counter()

    def park(self, writes: Sequence[ViewWrites], unprojected: Sequence[Parked], refused: Sequence[Parked]) -> None:
        """List what was refused of one batch; durable on return.

        `unprojected` never became writes; `refused` are writes that the store would not take.
        """
        parked = [*unprojected, *refused]
        if parked:
            self._dead_letters.record(parked)
            for letter in parked[:_LOGGED]:
                _log.warning("key parked", view=letter.view, version=str(letter.version), reason=letter.reason)
        if parked or self._in_a_row:
            applied = _counts(writes)
            applied.subtract(letter.view for letter in refused)
            lasting = [letter for letter in parked if not letter.waits]  # many rows may move to another source at once
            self._count(applied, {letter.view: letter.reason for letter in lasting}, Counter(of.view for of in lasting))

    def _count(self, applied: Counter[str], last_reasons: dict[str, str], parked: Counter[str]) -> None:
        """Halt the views that do little but park their keys."""
        for view, count in applied.items():
            if count:
                del self._in_a_row[view]
            if count >= parked[view]:
                del parked[view]  # in which order they came is not known
        self._in_a_row.update(parked)
        for view in parked:
            if self._in_a_row[view] >= PARKED_IN_A_ROW:
                self._halt(
                    view,
                    f"{self._in_a_row.pop(view)} keys in a row could not be applied, the last because: "
                    f"{last_reasons[view]}. Mend that, then backfill the view again: viewtail replay {view}",
                )
