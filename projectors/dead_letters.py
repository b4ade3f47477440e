"""Parked keys: a projection or a store refused them. They are listed as dead letters, which hold no row values.

A later success of the key clears its dead letter. A view that does little but park its keys is halted.
"""

from __future__ import annotations

import copy
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import structlog

from changes.rendering import key_renderer
from changes.writes import Parked, ViewWrites
from offsets.mysql import Session, transaction
from projectors.views import BoundView
from servers.sessions import quote

_log = structlog.get_logger("viewtail.pipeline")

# So many refusals of a view without a success halt it; of a batch they count where they are more than its successes.
PARKED_IN_A_ROW = 100
_LOGGED = 10  # of one batch


class DeadLetters:
    """The dead letters of a pipeline's views; which keys they are is remembered, so that success costs nothing."""

    def __init__(self, session: Session, database: str, views: Sequence[BoundView], ids: dict[str, int]) -> None:
        self._session = session
        self._table = quote(database, "dead_letter")
        self._columns = {view.id: view.key for view in views}
        self._ids = ids
        self._keys: dict[str, set[str]] = {view.id: set() for view in views}

    def on(self, session: Session) -> DeadLetters:
        """The same dead letters, written on another thread's session; what is known of them is shared."""
        twin = copy.copy(self)
        twin._session = session
        return twin

    def load(self) -> None:
        names = {number: name for name, number in self._ids.items()}
        with transaction(self._session, "reading the dead letters") as cursor:
            cursor.execute(f"SELECT view_id, rendered_key FROM {self._table}")
            for number, key in cursor.fetchall():
                if number in names:
                    self._keys[names[number]].add(key)

    @property
    def count(self) -> int:
        return sum(len(keys) for keys in self._keys.values())

    def counts(self) -> dict[str, int]:
        """By view."""
        return {view: len(keys) for view, keys in self._keys.items()}

    def record(self, parked: Iterable[Parked]) -> None:
        """Durable on return; called before the offset moves past them."""
        with transaction(self._session, "recording dead letters") as cursor:
            for letter in parked:
                cursor.execute(
                    f"INSERT INTO {self._table} (view_id, key_hash, rendered_key, version, reason) "
                    "VALUES (%s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE attempt_count = attempt_count + 1, "
                    "reason = VALUES(reason), version = VALUES(version)",
                    (self._ids[letter.view], _hash(letter.key), letter.key, letter.version, letter.reason[:2000]),
                )
                self._keys[letter.view].add(letter.key)

    def clear_applied(self, writes: Sequence[ViewWrites], parked: Sequence[Parked]) -> None:
        """Forget the keys that these writes brought up to date."""
        refused = {(letter.view, letter.key): letter.version for letter in parked}
        for found in writes:
            if keys := self._keys[found.view]:
                render = key_renderer(self._columns[found.view])
                applied = {render(key): write[0] for key, write in found.writes.items()}
                # A key refused at one version and applied at a later one, in the same batch, is up to date.
                mended = [key for key in keys & applied.keys() if applied[key] > refused.get((found.view, key), -1)]
                self._clear(found.view, mended)

    def keys_of(self, view: str) -> frozenset[str]:
        """The rendered keys of a view's dead letters."""
        return frozenset(self._keys[view])

    def clear_view(self, view: str) -> None:
        """Forget a view's dead letters: its backfill begins."""
        self._clear(view, list(self._keys[view]))

    def _clear(self, view: str, keys: list[str]) -> None:
        if not keys:
            return
        with transaction(self._session, "clearing dead letters") as cursor:
            for key in keys:
                where = "WHERE view_id = %s AND key_hash = %s"
                cursor.execute(f"DELETE FROM {self._table} {where}", (self._ids[view], _hash(key)))
        self._keys[view].difference_update(keys)


class Parking:
    """Of a pipeline or a backfill. `halt` takes a view and the reason."""

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
        if not parked and not self._in_a_row:
            return
        parked_counts = Counter(letter.view for letter in parked)
        applied_counts = Counter[str]()
        for found in writes:
            applied_counts[found.view] += found.count
        applied_counts.subtract(letter.view for letter in refused)
        for view, count in applied_counts.items():
            if count:
                del self._in_a_row[view]
            if count >= parked_counts[view]:
                del parked_counts[view]  # in which order they came is not known
        self._in_a_row.update(parked_counts)
        for view in parked_counts:
            if self._in_a_row[view] >= PARKED_IN_A_ROW:
                last = [letter.reason for letter in parked if letter.view == view][-1]
                self._halt(
                    view,
                    f"{self._in_a_row.pop(view)} keys in a row could not be applied, the last because: {last}. Mend "
                    f"that, then backfill the view again: viewtail replay {view}",
                )


def _hash(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:16]
