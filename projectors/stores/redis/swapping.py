"""Swaps two copies of a view: with `{generation}` in its key template by its pointer, otherwise key by key.

A pointer is set in one step, and both copies stay where they are. Without one, readers know the names of the keys, so
each one's content changes place. One script does it for some entities at a time, so a reader finds each key as the one
copy has it or as the other does. What is done already shows by itself: the key of the copy beside is gone, and the
former content is in its new place. Between the first key and the last the view holds keys of both copies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
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
from projectors.stores.redis.sink import KEYS_A_SCAN, as_text
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView

ENTITIES_A_SCRIPT = 50  # Redis serves nobody else meanwhile: well under a millisecond
READ_WITHIN_S = 1.0  # so long after it read a pointer may a reader come for the keys

# KEYS: of each entity its row and tombstone in the live place, in that of the copy beside, and where the former content
# goes. ARGV[1]: 'hash' or 'json'. ARGV[2]: the version of the tombstone for what only the former copy has; '' where
# rows have versions of their own, and a delete is one above. A key that viewtail did not write stays where it is.
_COMMON = r"""
local call, pcall = redis.call, redis.pcall
local none = string.rep('0', 19)

local function version_of(key)
  local stored
  if ARGV[1] == 'hash' then
    stored = pcall('HGET', key, '_version')
  else
    stored = pcall('GETRANGE', key, 0, 31)
  end
  if type(stored) ~= 'string' then return nil end
  stored = string.match(stored, ARGV[1] == 'hash' and '^(%d+)$' or '^{"_version":"(%d+)$')
  return stored and #stored == 19 and stored or nil
end

-- One above an even version of 19 digits.
local function above(version)
  return string.sub(version, 1, 18) .. tostring(math.floor(tonumber(string.sub(version, 19)) / 2) * 2 + 1)
end
"""
EXCHANGE = (
    _COMMON
    + r"""
for at = 1, #KEYS, 6 do
  local row, tombstone, new_row, new_tombstone = KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3]
  local old_row, old_tombstone = KEYS[at + 4], KEYS[at + 5]
  local has_row = call('EXISTS', row) == 1
  if call('EXISTS', new_row, new_tombstone) > 0 then
    if has_row and not version_of(row) then
      call('DEL', new_row, new_tombstone)
    else
      call('DEL', old_row, old_tombstone)
      if has_row then
        call('RENAME', row, old_row)
        call('DEL', tombstone)
      elseif call('EXISTS', tombstone) == 1 then
        call('RENAME', tombstone, old_tombstone)
      else
        call('SET', old_tombstone, none)
      end
      if call('EXISTS', new_row) == 1 then
        call('RENAME', new_row, row)
        call('DEL', new_tombstone)
      else
        call('RENAME', new_tombstone, tombstone)
      end
    end
  end
end
"""
)
RETIRE = (
    _COMMON
    + r"""
for at = 1, #KEYS, 6 do
  local row, tombstone, old_row, old_tombstone = KEYS[at], KEYS[at + 1], KEYS[at + 4], KEYS[at + 5]
  if call('EXISTS', old_row, old_tombstone) == 0 then
    if call('EXISTS', row) == 1 then
      local version = version_of(row)
      if version then
        call('RENAME', row, old_row)
        call('SET', tombstone, ARGV[2] ~= '' and ARGV[2] or above(version))
      end
    elseif call('EXISTS', tombstone) == 1 then
      call('SET', old_tombstone, call('GET', tombstone))
    end
  end
end
"""
)


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
        arguments = ("hash" if isinstance(live.view, RedisHash) else "json", tombstone)
        with _unavailable("swapping two copies"):
            for some in _some(self._entities(places[1])):
                self._run(EXCHANGE, places, some, arguments)
                failpoints.reach(failpoints.SWAP_STEP)
            for some in _some(self._entities(places[0])):
                self._run(RETIRE, places, some, arguments)
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

    def _run(self, script: str, places: Iterable[RedisKeys], keys: Sequence[Key], arguments: tuple[str, ...]) -> None:
        names = [name for key in keys for place in places for name in place.names(key)]
        self._client.eval(script, len(names), *names, *arguments)


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
