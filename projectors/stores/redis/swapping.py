"""Swaps two copies of a view: with `{generation}` in its key template by its pointer, otherwise key by key.

A pointer is set in one step, and both copies stay where they are. Without one, readers know the names of the keys, so
each one's content changes place. One script does it for some entities at a time, so a reader finds each key as the one
copy has it or as the other does. What is done already shows by itself: the key of the copy beside is gone, and the
former content is in its new place. Between the first key and the last the view holds keys of both copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from redis import Redis, exceptions

from changes.errors import StoreUnavailableError
from changes.versions import WIDTH
from changes.writes import Key
from projectors import failpoints
from projectors.stores import Swapping, takes_equal_versions
from projectors.stores.redis.keys import RedisKeys, keys_of, leading
from projectors.stores.redis.packing import argument
from projectors.stores.redis.sink import KEYS_A_SCAN, as_text
from projectors.stores.redis.swap_script import scripts_of
from projectors.views import BoundView

ENTITIES_A_SCRIPT = 50  # Redis serves nobody else meanwhile: well under a millisecond
SCRIPTS_UNDER_WAY = 8  # sent before the first answer is read; Redis serves others between two or three of them
READ_WITHIN_S = 1.0  # so long after it read a pointer may a reader come for the keys


class KeySwapping(Swapping):
    """Over a client of its own. One that breaks off in the midst is always to be tried again."""

    def __init__(self, client: Redis) -> None:
        self._client = client

    def swap(self, live: BoundView, beside: BoundView, upto: int) -> None:
        """Every key that the copy beside has takes its place; then those go that it lacks. Or the pointer moves."""
        if (leading_ := leading(beside)) is not None:
            with _unavailable("swapping two copies"):
                self._client.set(leading_.pointer, beside.copy)
            return
        places = [RedisKeys(one) for one in (live, beside, replace(live, is_beside=True))]
        tombstone = "" if takes_equal_versions(live) else f"{upto:0{WIDTH}d}"
        exchange, retire, kind = scripts_of(live)
        with _unavailable("swapping two copies"):
            for script, of in ((exchange, places[1]), (retire, places[0])):
                with self._running(script, (kind, tombstone)) as run:
                    for some in _some(self._entities(of)):
                        run([name for key in some for place in places for name in place.names(key)])
                        failpoints.reach(failpoints.SWAP_STEP)

    def drop(self, live: BoundView, beside: BoundView) -> None:
        """Delete its keys; those that a pointer led to once nobody is led there any more."""
        keys, *sets = keys_of(beside)
        with _unavailable("dropping a copy"):
            if (leading_ := leading(live)) is not None:
                self._client.set(leading_.pointer, live.copy)
                time.sleep(READ_WITHIN_S)
            for some in _some(self._entities(keys)):
                self._client.unlink(*(name for key in some for name in keys.names(key)))
            for of in sets:
                self._drop_sets(of)

    def close(self) -> None:
        self._client.close()

    def _entities(self, keys: RedisKeys) -> Iterator[Key]:
        """Those that a copy has a row or a tombstone of; one may come twice."""
        for match, read in ((keys.scan_match, keys.key_of), (keys.tombstone_match, keys.key_of_tombstone)):
            for name in self._client.scan_iter(match=match, count=KEYS_A_SCAN):
                if (key := read(as_text(name))) is not None:
                    yield key

    def _drop_sets(self, keys: RedisKeys) -> None:
        """Of one copy; sets that copies share stay."""
        if not keys.has_generation:
            return
        for name in self._client.scan_iter(match=keys.scan_match, count=KEYS_A_SCAN):
            if keys.key_of(as_text(name)) is not None:
                self._client.unlink(name)

    @contextmanager
    def _running(self, script: str, arguments: Sequence[str]) -> Iterator[Callable[[Sequence[str]], None]]:
        """Sends the script with names of keys, some before the first answer; all have been answered at the end."""
        before = "$7\r\nEVALSHA\r\n" + argument(str(self._client.script_load(script)))
        behind = "".join(map(argument, arguments))
        connection: Any = self._client.connection_pool.get_connection()
        waiting = 0

        def run(names: Sequence[str]) -> None:
            nonlocal waiting
            head = f"*{3 + len(names) + len(arguments)}\r\n{before}{argument(str(len(names)))}"
            command = "".join([head, *map(argument, names), behind]).encode()
            connection.send_packed_command((command,), check_health=False)
            waiting += 1
            if waiting == SCRIPTS_UNDER_WAY:
                settle(1)

        def settle(count: int) -> None:
            nonlocal waiting
            for _ in range(count):
                connection.read_response()
                waiting -= 1

        try:
            yield run
            settle(waiting)
        except BaseException:
            connection.disconnect()  # answers that were not read must not be taken for later ones
            raise
        finally:
            self._client.connection_pool.release(connection)


def _some(keys: Iterator[Key]) -> Iterator[list[Key]]:
    while some := list(islice(keys, ENTITIES_A_SCRIPT)):
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
