"""Gives readers the other copy of a view; see moving.py for how its keys change place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from redis import Redis, exceptions

from changes.errors import StoreUnavailableError
from changes.writes import Key
from projectors import failpoints
from projectors.stores import GradualSwapping
from projectors.stores.redis.keys import RedisKeys
from projectors.stores.redis.moving import DONE, DONE_FOR_S, MOVE, Moves, mark_of
from projectors.stores.redis.sink import KEYS_A_SCAN, as_text
from projectors.views import BoundView

ENTITIES_A_SCRIPT = 20  # Redis serves nobody else meanwhile
ENTITIES_A_DROP = 50


class KeySwapping(GradualSwapping):
    """Over a client of its own. One that breaks off in the midst is always to be tried again."""

    def __init__(self, client: Redis, database: str) -> None:
        self._client = client
        self._database = database

    def swap(self, live: BoundView, beside: BoundView, upto: int) -> None:
        """From now on each entity is moved before it is written; nothing is moved yet."""
        with _unavailable("beginning to move two copies"):
            self._client.set(mark_of(live, self._database), f"{beside.copy}:{live.copy}")

    def move(self, beside: BoundView, stop: threading.Event, pace: Callable[[float], None]) -> bool:
        """Every key that the copy has which comes; then those that it lacks."""
        moves = Moves(beside, self._database)
        with _unavailable("moving two copies"):
            for place in (moves.coming, moves.live):
                for some in _some(self._entities(place), ENTITIES_A_SCRIPT):
                    if stop.is_set():
                        return False
                    began = time.monotonic()
                    names, arguments = moves.evaluated(some)
                    self._client.eval(MOVE, len(names), *names, *arguments)
                    failpoints.reach(failpoints.SWAP_STEP)
                    pace(time.monotonic() - began)
            self._client.set(moves.mark, DONE, ex=DONE_FOR_S)
        return True

    def drop(self, beside: BoundView) -> None:
        """Delete its keys."""
        keys = RedisKeys(beside)
        with _unavailable("dropping a copy"):
            for some in _some(self._entities(keys), ENTITIES_A_DROP):
                self._client.unlink(*(name for key in some for name in keys.names(key)))

    def close(self) -> None:
        self._client.close()

    def _entities(self, keys: RedisKeys) -> Iterator[Key]:
        """Those that a copy has a row or a tombstone of; one may come twice."""
        for match, read in ((keys.scan_match, keys.key_of), (keys.tombstone_match, keys.key_of_tombstone)):
            for name in self._client.scan_iter(match=match, count=KEYS_A_SCAN):
                if (key := read(as_text(name))) is not None:
                    yield key


def _some(keys: Iterator[Key], count: int) -> Iterator[list[Key]]:
    while some := list(islice(keys, count)):
        yield some


@contextmanager
def _unavailable(doing: str) -> Iterator[None]:
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        said: Any = str(error).rstrip(".")
        raise StoreUnavailableError(
            f"Redis: {doing} broke off: {said} ({type(error).__name__}); viewtail goes on with it by itself"
        ) from None
