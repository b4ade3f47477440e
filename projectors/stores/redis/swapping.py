"""Swaps the two copies of a view for readers.

If the key template has `{generation}`, that is one step: the pointer is set, and both copies stay where they are.
Otherwise the keys change places; see moving.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from redis import Redis, exceptions

from projectors import failpoints
from projectors.stores import GradualSwapping
from projectors.stores.owners import LOOK_EVERY_S, NOBODY, Claiming, taken_over
from projectors.stores.redis import owners
from projectors.stores.redis.keys import RedisKeys, keys_of, leading
from projectors.stores.redis.moving import DONE, DONE_FOR_S, Moves, mark_of
from projectors.stores.redis.sink import KEYS_A_SCAN, as_text
from projectors.stores.redis.unanswered import server_of
from projectors.views import BoundView
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.changes.writes import Key

KEYS_A_SHORT_SCAN = 100  # that this process reads without a pause
ENTITIES_A_SCRIPT = 10  # Redis serves nobody else while a script runs
ENTITIES_A_LOOK = 100  # one command each
ENTITIES_A_DROP = 50
READ_WITHIN_S = 1.0  # the longest time between a reader's read of the pointer and of the keys

# The pipeline's sink maintains the pointer. A drop only makes sure that it does not lead to the dropped copy: a process
# that has lost the pipeline meanwhile must not lead readers back.
LEAD_AWAY = """
local led = redis.call('GET', KEYS[1])
if not led or led == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end
return 0
"""


class KeySwapping(GradualSwapping):
    """Swaps copies over a client of its own. After an interruption it can always be called again."""

    def __init__(self, client: Redis, database: str, claiming: Claiming = lambda: NOBODY) -> None:
        """`claiming` returns the deployment that owns both copies; keys that another deployment owns by now stay."""
        self._client = client
        self._database = database
        self._claiming = claiming
        self._asked_whose_at = 0.0

    def swap(self, live: BoundView, beside: BoundView, upto: int, *, is_adopting: bool = False) -> bool:
        """Set the pointer; without one, mark the move: from now on each entity is moved before it is written."""
        self._require_ours(live)
        if (leading_ := leading(beside)) is not None:
            with _unavailable(self._client, "swapping two copies"):
                self._client.set(leading_.pointer, beside.copy)
            return True
        with _unavailable(self._client, "beginning to move two copies"):
            mark = mark_of(live.view.id, RedisKeys(live).shape, self._database)
            self._client.set(mark, f"{beside.copy}:{live.copy}")
        return False

    def is_swapped(self, live: BoundView, beside: BoundView) -> bool:
        """Return whether the pointer leads to `beside`. False for copies that move: that is recorded first."""
        leading_ = leading(beside)
        with _unavailable(self._client, "asking for a pointer"):
            return leading_ is not None and self._client.get(leading_.pointer) == str(beside.copy).encode()

    def move(self, beside: BoundView, stop: threading.Event, rest: Callable[[int], None]) -> bool:
        """Move every entity of the new copy, then those that only the former copy has."""
        self._require_ours(beside)
        moves = Moves(beside, self._database)
        move = self._client.register_script(moves.script)
        with _unavailable(self._client, "moving two copies"):
            for some, count in self._steps(moves):
                if stop.is_set():
                    return False
                self._look_whose(beside)
                if some:
                    names, arguments = moves.evaluated(some)
                    move(names, arguments)
                    failpoints.reach(failpoints.SWAP_STEP)
                rest(count)
            self._client.set(moves.mark, DONE, ex=DONE_FOR_S)
        return True

    def _steps(self, moves: Moves) -> Iterator[tuple[list[Key], int]]:
        """Yield the entities for each script, with how many of them it moves for the first time."""
        for some in _some(self._entities(moves.coming), ENTITIES_A_SCRIPT):
            yield some, len(some)
        for looked_at in _some(self._entities(moves.live), ENTITIES_A_LOOK):
            lacked = self._not_moved(moves, looked_at)
            for at in range(0, max(1, len(lacked)), ENTITIES_A_SCRIPT):  # also a step if nothing is lacking
                yield lacked[at : at + ENTITIES_A_SCRIPT], 0

    def _not_moved(self, moves: Moves, keys: Sequence[Key]) -> list[Key]:
        """The entities with nothing where former content goes: those that did not move yet."""
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.exists(*moves.former.names(key))
        return [key for key, is_moved in zip(keys, pipeline.execute(), strict=True) if not is_moved]

    def drop(self, live: BoundView, beside: BoundView) -> None:
        """Delete the keys of `beside`; if a pointer led to them, only after readers follow it elsewhere."""
        self._require_ours(beside)
        keys, *sets = keys_of(beside)
        with _unavailable(self._client, "dropping a copy"):
            if (leading_ := leading(live)) is not None:
                self._client.eval(LEAD_AWAY, 1, leading_.pointer, beside.copy, live.copy)
                time.sleep(READ_WITHIN_S)
            for some in _some(self._entities(keys), ENTITIES_A_DROP):
                self._look_whose(beside)
                self._client.unlink(*(name for key in some for name in keys.names(key)))
            for of in sets:
                self._drop_sets(of)

    def _drop_sets(self, keys: RedisKeys) -> None:
        """Delete the sets of one copy; sets that copies share stay."""
        if not keys.has_generation:
            return
        for name in self._client.scan_iter(match=keys.scan_match, count=KEYS_A_SCAN):
            if keys.key_of(as_text(name)) is not None:
                self._client.unlink(name)

    def _look_whose(self, view: BoundView) -> None:
        """Check the owner from time to time, as a writer does: another deployment may take the keys over."""
        if time.monotonic() - self._asked_whose_at >= LOOK_EVERY_S:
            self._require_ours(view)

    def _require_ours(self, view: BoundView) -> None:
        """Raise StoreError if another deployment owns the view's keys."""
        shapes = owners.shapes_of(view)
        with _unavailable(self._client, "looking whose keys are"):
            others = owners.read(self._client.execute_command).others(self._claiming(), shapes)
        if others:
            raise StoreError(taken_over(owners.place_of(shapes), others.values()))
        self._asked_whose_at = time.monotonic()

    def close(self) -> None:
        self._client.close()

    def _entities(self, keys: RedisKeys) -> Iterator[Key]:
        """The entities of which a copy has a row or a tombstone; one may come twice."""
        for match, read in ((keys.scan_match, keys.key_of), (keys.tombstone_match, keys.key_of_tombstone)):
            for name in self._client.scan_iter(match=match, count=KEYS_A_SHORT_SCAN):
                if (key := read(as_text(name))) is not None:
                    yield key


def _some(keys: Iterator[Key], count: int) -> Iterator[list[Key]]:
    while some := list(islice(keys, count)):
        yield some


@contextmanager
def _unavailable(client: Redis, doing: str) -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        said: Any = str(error).rstrip(".")
        raise StoreUnavailableError(
            f"{server_of(client)}: {doing} broke off: {said} ({type(error).__name__}); "
            "viewtail goes on with it by itself"
        ) from None
