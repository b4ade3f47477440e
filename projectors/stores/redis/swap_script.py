"""The scripts that swap two copies of a view, some entities at a time.

KEYS: of each entity its row and tombstone in the live place, in that of the copy beside, and where the former content
goes. ARGV[1]: what the rows are: 'hash', 'json', or 'set' and 'zset' for the places of entities that are in sets.
ARGV[2]: the version of the tombstone for what only the former copy has; '' where rows have versions of their own, and a
delete is one above. A key that viewtail did not write stays where it is.

The copies of a view of sets share the sets. So an entity leaves its set, and enters the other one, in the step in which
its places change; what the set had of it goes along with the former place, also where that was not what the place says.
"""

from __future__ import annotations

from projectors.stores.redis.set_packing import set_type
from projectors.stores.redis.set_script import COMMON
from projectors.stores.redis.views import RedisHash, RedisSet
from projectors.views import BoundView

_VERSIONS = r"""
local none = string.rep('0', 19)

local function version_of(key)
  local stored
  if ARGV[1] ~= 'json' then
    stored = pcall('HGET', key, '_version')
  else
    stored = pcall('GETRANGE', key, 0, 31)
  end
  if type(stored) ~= 'string' then return nil end
  stored = string.match(stored, ARGV[1] ~= 'json' and '^(%d+)$' or '^{"_version":"(%d+)$')
  return stored and #stored == 19 and stored or nil
end

-- One above an even version of 19 digits.
local function above(version)
  return string.sub(version, 1, 18) .. tostring(math.floor(tonumber(string.sub(version, 19)) / 2) * 2 + 1)
end
"""
_ROWS = """
local call, pcall = redis.call, redis.pcall

local function put_aside(row, to) call('RENAME', row, to) end
local function show(row, to) call('RENAME', row, to) end
"""
_MEMBERS = (
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
)
_EXCHANGE = """
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
  end
end
"""
_RETIRE = """
for at = 1, #KEYS, 6 do
  local row, tombstone, old_row, old_tombstone = KEYS[at], KEYS[at + 1], KEYS[at + 4], KEYS[at + 5]
  if call('EXISTS', old_row, old_tombstone) == 0 then
    if call('EXISTS', row) == 1 then
      local version = version_of(row)
      if version then
        put_aside(row, old_row)
        call('SET', tombstone, ARGV[2] ~= '' and ARGV[2] or above(version))
      end
    elseif call('EXISTS', tombstone) == 1 then
      call('SET', old_tombstone, call('GET', tombstone))
    end
  end
end
"""


def scripts_of(view: BoundView) -> tuple[str, str, str]:
    """One for what the copy beside has, one for what it lacks, and their ARGV[1]."""
    if isinstance(view.view, RedisSet):
        before, kind = _MEMBERS + _VERSIONS, set_type(view)
    else:
        before, kind = _ROWS + _VERSIONS, "hash" if isinstance(view.view, RedisHash) else "json"
    return before + _EXCHANGE, before + _RETIRE, kind
