"""The guard of sets: one Lua script moves a batch of entities from set to set, each only if its write is newer.

KEYS are pairs: an entity's place (a hash with its version, its set and its name there) and its tombstone. Only the
place knows the set that the entity leaves, so the sets are not among KEYS: that works on a single primary, and viewtail
refuses anything else. At most one of the pair exists, and holds the newest version. The script returns the numbers
(from 0) of the pairs whose place, or set, holds something that viewtail did not write; it leaves those as they are.

A copy beside the live one has places of its own, and no sets, because readers know the sets by name. Its places also
hold what the set would have for the entity: its score, or 1. The swap moves the members (moving.py)."""

from __future__ import annotations

from projectors.stores.redis.script import LOWEST, WRONG_TYPE

# What several scripts share.
COMMON = r"""
local call, pcall, sub = redis.call, redis.pcall, string.sub

-- Nothing is lost where somebody put another type of value there.
local function remove(set, member)
  if type(pcall('SREM', set, member)) == 'table' then pcall('ZREM', set, member) end
end
local function leave(place)
  local set, member = unpack(call('HMGET', place, 'set', 'member'))
  if set and member then remove(set, member) end
end
"""

MOVE = (
    COMMON
    + r"""
-- ARGV[1]: '>' or '>=', how a write's version must stand to the stored one for the write to apply.
-- ARGV[2]: 'set' or 'zset'. ARGV[3]: 'shown', or 'beside': the sets stay as they are.
-- Then for each pair its version, with 't' behind it: a tombstone | or without, and behind it the set, the member, and
--   in a 'zset' the score.
local refused = {}
local takes_equal, kind, is_shown = ARGV[1] == '>=', ARGV[2], ARGV[3] == 'shown'
local is_sorted = kind == 'zset'
local at = 4

for number = 1, #KEYS, 2 do
  local place, tombstone = KEYS[number], KEYS[number + 1]
  local version, is_gone = sub(ARGV[at], 1, 19), sub(ARGV[at], 20) == 't'
  at = at + 1
  local set, member, score
  if not is_gone then
    set, member = ARGV[at], ARGV[at + 1]
    at = at + 2
    if is_sorted then
      score = ARGV[at]
      at = at + 1
    end
  end

  local is_there = false
  local stored = pcall('HGET', place, '_version')
  if type(stored) == 'table' then
    if not string.find(stored.err, 'WRONGTYPE', 1, true) then return stored end
    stored = nil
  elseif stored then
    if #stored ~= 19 or not string.match(stored, '^%d+$') then stored = nil end
    is_there = true
  elseif call('EXISTS', place) == 1 then
    stored = nil
  else
    stored = call('GET', tombstone)
  end
  local found = set and call('TYPE', set).ok or 'none'
  if stored == nil then
    refused[#refused + 1] = (number - 1) / 2
  elseif not stored or version > stored or (takes_equal and version == stored) then
    if found ~= 'none' and found ~= kind then
      refused[#refused + 1] = (number - 1) / 2
    else
      if is_there then
        if is_shown then leave(place) end
        call('DEL', place)
      elseif stored then
        call('DEL', tombstone)
      end
      if is_gone then
        call('SET', tombstone, version)
      elseif not is_shown then
        call('HSET', place, '_version', version, 'set', set, 'member', member, 'in', score or '1')
      elseif is_sorted then
        call('ZADD', set, score, member)
        call('HSET', place, '_version', version, 'set', set, 'member', member)
      else
        call('SADD', set, member)
        call('HSET', place, '_version', version, 'set', set, 'member', member)
      end
    end
  end
end
return refused
"""
)

# KEYS as above. ARGV: 'set' or 'zset', and 'shown' or 'beside'. Returns for each pair: the type of its place, what it
# holds, whether the set contains the member or would contain it (its score, or 1), and the tombstone; '' for nothing.
LOOK = (
    COMMON
    + f"""
local answers = {{}}
for number = 1, #KEYS, 2 do
  local place, tombstone = KEYS[number], KEYS[number + 1]
  local version, set, member, has, mark = '', '', '', '', ''
  local kind = call('TYPE', place).ok
  if kind == 'hash' then
    local found = call('HMGET', place, '_version', 'set', 'member')
    version, set, member = found[1] or '', found[2] or '', found[3] or ''
    if ARGV[2] == 'beside' then
      local there = call('TYPE', set).ok
      has = (there == 'none' or there == ARGV[1]) and call('HGET', place, 'in')
    elseif ARGV[1] == 'zset' then
      has = pcall('ZSCORE', set, member)
    else
      has = pcall('SISMEMBER', set, member)
    end
    if type(has) ~= 'string' and has ~= 1 then has = '' end
  end
  mark = pcall('GET', tombstone) or ''
  if type(mark) == 'table' then mark = '{WRONG_TYPE.decode()}' end
  answers[(number + 1) / 2] = {{kind, version, set, member, has, mark}}
end
return answers
"""
)

# ARGV: a set and its type, then pairs of a member and its entity's place. Returns the numbers (from 0) of the members
# that the set contains and should not contain: their entities are in another set, or in none.
ORPHANS = """
local found = {}
for at = 3, #ARGV, 2 do
  local has = redis.pcall(ARGV[2] == 'zset' and 'ZSCORE' or 'SISMEMBER', ARGV[1], ARGV[at])
  if type(has) == 'string' or has == 1 then
    local place = redis.pcall('HMGET', ARGV[at + 1], 'set', 'member')
    if place[1] ~= ARGV[1] or place[2] ~= ARGV[at] then found[#found + 1] = (at - 3) / 2 end
  end
end
return found
"""

# KEYS: a place and its tombstone. ARGV: the version as a reader saw it, or WRONG_TYPE. Deletes both keys, unless
# something else is stored by now. A place that names a set stays with the lowest version: readers keep the member until
# the next write.
TAKE_AWAY = (
    COMMON
    + f"""
local function version_in(key)
  local found = key == KEYS[1] and pcall('HGET', key, '_version') or key == KEYS[2] and pcall('GET', key)
  if type(found) == 'table' then return '{WRONG_TYPE.decode()}' end
  return found or ''
end
local is_there = call('EXISTS', KEYS[1]) == 1
if version_in(is_there and KEYS[1] or KEYS[2]) ~= ARGV[1] then return 0 end
if call('TYPE', KEYS[1]).ok == 'hash' and call('HMGET', KEYS[1], 'set', 'member')[2] then
  call('HSET', KEYS[1], '_version', '{LOWEST}')
  call('DEL', KEYS[2])
  return 1
end
call('DEL', KEYS[1], KEYS[2])
return 1
"""
)

# KEYS: a place. ARGV: the entity's member, then sets. Removes the member from each set that the place does not name.
EXPEL = (
    COMMON
    + """
local there = pcall('HMGET', KEYS[1], 'set', 'member')
for at = 2, #ARGV do
  if there[1] ~= ARGV[at] or there[2] ~= ARGV[1] then remove(ARGV[at], ARGV[1]) end
end
"""
)
