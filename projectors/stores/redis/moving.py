"""Lets two copies of a view change places entity by entity, for views whose readers know the names of the keys.

One script moves a few entities at a time, so a reader finds each key as one copy has it or as the other does; between
the first and the last step the view has keys of both. Both copies are written meanwhile, each under its new names. So a
sink runs the script for an entity before it writes it, and swapping.py moves all other entities.

The keys show what is done: an entity that was moved has nothing under the names where its copy was built, and something
under those of the former copy. A mark records for good that all entities are moved, since the former copy may be
dropped then: a writer that does not know of it must not start again."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

from projectors.stores import takes_equal_versions
from projectors.stores.redis.keys import RedisKeys
from projectors.stores.redis.script import VERSION_IN
from projectors.stores.redis.set_packing import set_type
from projectors.stores.redis.set_script import COMMON
from projectors.stores.redis.views import RedisHash, RedisSet
from projectors.views import BoundView
from viewtail.changes.versions import WIDTH
from viewtail.changes.writes import Key

DONE = "done"
DONE_FOR_S = 86_400  # no writer runs so long without learning of it

# What the two scripts share. KEYS: the move's mark; then for each entity the keys of its row and tombstone in the live
# place, in the place where the new copy was built, and in the place for the former content. ARGV[1]: the kind of rows:
# 'hash', 'json', or 'set' and 'zset' for the places of entities that are in sets. ARGV[2]: the version of the tombstone
# for an entity that only the former copy has; '' if rows have versions of their own, and a delete is one above.
# ARGV[3]: the id of this move. A key that viewtail did not write stays where it is.
_MOVE = (
    VERSION_IN
    + r"""
local none = string.rep('0', 19)
local mark = call('GET', KEYS[1])
if mark and mark ~= ARGV[3] then return {} end

-- One above an even version of 19 digits.
local function above(version)
  return string.sub(version, 1, 18) .. tostring(math.floor(tonumber(string.sub(version, 19)) / 2) * 2 + 1)
end

for at = 2, #KEYS, 6 do
  local row, tombstone, new_row, new_tombstone = KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3]
  local old_row, old_tombstone = KEYS[at + 4], KEYS[at + 5]
  local has_row = call('EXISTS', row) == 1
  if call('EXISTS', new_row, new_tombstone) > 0 then
    if has_row and not version_in(row, ARGV[1]) then
      call('DEL', new_row, new_tombstone)
    else
      call('DEL', old_row, old_tombstone)
      if has_row then
        put_aside(row, old_row)
        call('DEL', tombstone)
      elseif call('EXISTS', tombstone) == 1 then
        call('RENAME', tombstone, old_tombstone)
      else
        call('SET', old_tombstone, none)
      end
      if call('EXISTS', new_row) == 1 then
        show(new_row, row)
        call('DEL', new_tombstone)
      else
        call('RENAME', new_tombstone, tombstone)
      end
    end
  elseif call('EXISTS', old_row, old_tombstone) == 0 then
    if has_row then
      local version = version_in(row, ARGV[1])
      if version then
        put_aside(row, old_row)
        call('SET', tombstone, ARGV[2] ~= '' and ARGV[2] or above(version))
      end
    elseif call('EXISTS', tombstone) == 1 then
      -- Somebody's value of another type stays where it is, and is no former content.
      local mark = pcall('GET', tombstone)
      call('SET', old_tombstone, type(mark) == 'string' and mark or none)
    else
      -- What is written here from now on is no former content.
      call('SET', old_tombstone, none)
    end
  end
end
return {}
"""
)
MOVE_ROWS = (
    """
local call, pcall = redis.call, redis.pcall

local function put_aside(row, to) call('RENAME', row, to) end
local function show(row, to) call('RENAME', row, to) end
"""
    + _MOVE
)
# The copies of a view of sets share the sets. So an entity leaves its set and enters the other one in the step in which
# its places change. Its membership in the former set is kept with the former place, even if the place says otherwise.
MOVE_MEMBERS = (
    COMMON
    + """
local function put_aside(place, to)
  local set, member = unpack(call('HMGET', place, 'set', 'member'))
  call('RENAME', place, to)
  if not set or not member then return end
  local score = pcall('ZSCORE', set, member)
  if type(score) == 'string' then
    call('HSET', to, 'in', score)
  elseif pcall('SISMEMBER', set, member) == 1 then
    call('HSET', to, 'in', '1')
  end
  remove(set, member)
end

-- A set that somebody put another type of value to stays as it is, and verify finds that the entity is not in it.
local function show(place, to)
  call('RENAME', place, to)
  local set, member, score = unpack(pcall('HMGET', to, 'set', 'member', 'in'))
  pcall('HDEL', to, 'in')
  if set and member and score then
    if ARGV[1] == 'zset' then pcall('ZADD', set, score, member) else pcall('SADD', set, member) end
  end
end
"""
    + _MOVE
)


def mark_of(view: str, shape: str, database: str) -> str:
    """The key that records the state of a view's last move; its name has the view's id and the shape of its keys.

    Views of two deployments may have the same id, and their databases the same name; but keys of one shape belong to
    only one of them."""
    return f"viewtail:{quote(database, safe='')}:{view}:{shape}:move"


class Moves:
    """The script's calls for a view that has a `move`; they are the same for both of its copies."""

    def __init__(self, view: BoundView, database: str) -> None:
        assert view.move is not None
        live = replace(view, copy=view.move.copy, is_beside=False)
        places = (live, replace(live, is_beside=True), replace(live, copy=view.move.former, is_beside=True))
        self.live, self.coming, self.former = map(RedisKeys, places)
        self.mark = mark_of(view.view.id, self.live.shape, database)
        self.id = f"{view.move.copy}:{view.move.former}"
        tombstone = "" if takes_equal_versions(view) else f"{view.move.upto:0{WIDTH}d}"
        is_of_sets = isinstance(view.view, RedisSet)
        kind = set_type(view) if is_of_sets else "hash" if isinstance(view.view, RedisHash) else "json"
        self._arguments = (kind, tombstone, self.id)
        self.script = MOVE_MEMBERS if is_of_sets else MOVE_ROWS
        self._sha1 = hashlib.sha1(self.script.encode()).hexdigest()

    def evaluated(self, keys: Sequence[Key]) -> tuple[list[str], tuple[str, ...]]:
        """The script's KEYS and ARGV for these entities."""
        places = (self.live, self.coming, self.former)
        names = [self.mark, *(name for key in keys for place in places for name in place.names(key))]
        return names, self._arguments

    def command(self, keys: Sequence[Key]) -> list[str | int]:
        """The EVALSHA for these entities; its answer is empty."""
        names, arguments = self.evaluated(keys)
        return ["EVALSHA", self._sha1, len(names), *names, *arguments]
