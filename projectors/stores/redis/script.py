"""The guard of the Redis sink: one Lua script applies a batch of writes, each only if newer (or equal, where asked).

A second script compares the same batch with what is stored, and writes nothing.

KEYS are pairs: a key and its tombstone, in one slot. Versions are 19 digits of text and compared as text, since Lua's
numbers end at 2^53. At most one of the two keys exists, and holds the newest version. The script returns the numbers
(from 0) of the pairs whose key holds something that viewtail did not write; it leaves those as they are."""

from __future__ import annotations

from viewtail.changes.versions import WIDTH

# Of each write that is given to a guard: its version, and what its values are.
VERSION_AND_MARK = r"""  local version, mark
  if field_count then
    version, mark = sub(given, 1, 19), sub(given, 20)
  elseif #given == 19 then
    version, mark = given, 't'
  else
    version, mark = sub(given, 14, 32), ''
  end
"""

APPLY = (
    r"""
-- ARGV[1]: '>' or '>=', how a write's version must stand to the stored one for the write to apply.
-- ARGV[2]: the number of fields of a hash, then their names, and for each pair its version and
--   '' and all values | a mask of 1 (value follows) and 0 (NULL) and the values | 't' alone: a tombstone.
-- ARGV[2] 'json': for each pair its document, which begins with the version, | the bare version: a tombstone.
local call, pcall, sub = redis.call, redis.pcall, string.sub
local refused = {}
-- Whether any key of the server may expire. It is asked where many are written: to take the time off a key costs a
-- tenth of writing it, and to ask as much as a few of these.
local expires
-- What the last key held, and the version in it: rows of one backfill have the same.
local seen, seen_version

local takes_equal = ARGV[1] == '>='
local field_count = tonumber(ARGV[2])
local at = 3
local row = {'_version'}
if field_count then
  for number = 1, field_count do
    row[2 * number + 1] = ARGV[number + 2]
  end
  at = field_count + 3
end

for number = 1, #KEYS, 2 do
  local key, tombstone = KEYS[number], KEYS[number + 1]
  local given = ARGV[at]
  at = at + 1

  local stored, in_value
  if field_count then
    stored = pcall('HGET', key, '_version')
  else
    stored = pcall('GETRANGE', key, 0, 31)
    if stored == '' then stored = false end
  end
  if type(stored) == 'table' then
    if not string.find(stored.err, 'WRONGTYPE', 1, true) then return stored end
    stored = nil
  elseif stored then
    if stored ~= seen then
      local found = string.match(stored, field_count and '^(%d+)$' or '^{"_version":"(%d+)$')
      seen, seen_version = stored, found and #found == 19 and found or nil
    end
    stored = seen_version
    in_value = true
  elseif call('EXISTS', key) == 1 then
    stored = nil
  else
    stored = call('GET', tombstone)
  end

"""
    + VERSION_AND_MARK
    + r"""
  local applies = stored ~= nil
    and (not stored or version > stored or (takes_equal and version == stored))
  if stored == nil then refused[#refused + 1] = (number - 1) / 2 end

  if mark == 't' then
    if applies then
      if in_value then call('DEL', key) end
      call('SET', tombstone, version)
    end
  elseif not field_count then
    if applies then
      call('SET', key, given)
      if stored and not in_value then call('DEL', tombstone) end
    end
  elseif mark == '' then
    if applies then
      row[2] = version
      for field = 1, field_count do
        row[2 * field + 2] = ARGV[at + field - 1]
      end
      -- Over a hash of the same fields there is nothing to delete, and the append-only file gets half as much.
      local is_over = in_value and call('HLEN', key) == field_count + 1
      if is_over then
        if expires == nil then
          expires = #KEYS < 64 or string.find(call('INFO', 'keyspace'), 'expires=[1-9]') ~= nil
        end
        if expires then call('PERSIST', key) end
      elseif in_value then
        call('DEL', key)
      elseif stored then
        call('DEL', tombstone)
      end
      if call('HSET', key, unpack(row, 1, 2 * field_count + 2)) > 0 and is_over then
        call('DEL', key)
        call('HSET', key, unpack(row, 1, 2 * field_count + 2))
      end
    end
    at = at + field_count
  else
    local some = {'_version', version}
    for field = 1, field_count do
      if sub(mark, field, field) == '1' then
        some[#some + 1] = row[2 * field + 1]
        some[#some + 1] = ARGV[at]
        at = at + 1
      end
    end
    if applies then
      if in_value then call('DEL', key) elseif stored then call('DEL', tombstone) end
      call('HSET', key, unpack(some))
    end
  end
end
return refused
"""
)

# Precedes scripts that ask `version_in`: the version in a key of that kind ('json', 'tombstone', or any word for a
# hash), false or nil if viewtail did not write it.
VERSION_IN = """
local function version_in(key, kind)
  local found
  if kind == 'tombstone' then
    found = redis.pcall('GET', key)
  elseif kind == 'json' then
    found = redis.pcall('GETRANGE', key, 0, 31)
    found = type(found) == 'string' and string.match(found, '^{"_version":"(%d+)$')
  else
    found = redis.pcall('HGET', key, '_version')
  end
  return type(found) == 'string' and #found == 19 and string.match(found, '^%d+$')
end
"""

# Precedes a guard whose last KEY is the mark of the view's last move (moving.py). While entities are being moved, a
# writer must move an entity before it writes it; a writer that does not know of the move writes nothing.
UNLESS_MOVING = r"""
local moving = redis.call('GET', table.remove(KEYS))
if moving and moving ~= 'done' then return {} end
"""

# KEYS and ARGV as for the guard, but ARGV[1] is ignored. Returns the numbers (from 0) of the pairs that are not as the
# write would leave them, or hold a newer version. Only reads.
COMPARE = r"""
local pcall, sub, find = redis.pcall, string.sub, string.find
local field_count = tonumber(ARGV[2])
local at = field_count and field_count + 3 or 3
local names = {'_version'}
for number = 1, field_count or 0 do
  names[number + 1] = ARGV[number + 2]
end

local tombstones = {}
for number = 2, #KEYS, 2 do
  tombstones[number / 2] = KEYS[number]
end
local is_any_buried = redis.call('EXISTS', unpack(tombstones)) > 0  -- one call, where mostly there is none

local function is_upto(stored, version)
  return type(stored) == 'string' and #stored == 19 and not find(stored, '%D') and stored <= version
end

local function is_gone(key, tombstone, version)
  if redis.call('EXISTS', key) == 1 then return false end
  local stored = pcall('GET', tombstone)
  return not stored or is_upto(stored, version)
end

-- `mark` says which fields a value follows for, from ARGV[at] on.
local function is_hash(key, version, mark)
  local found = pcall('HMGET', key, unpack(names))
  if found.err or not is_upto(found[1], version) then return false end
  local count, argument = 1, at
  for field = 1, field_count do
    if mark == '' or sub(mark, field, field) == '1' then
      if found[field + 1] ~= ARGV[argument] then return false end
      count, argument = count + 1, argument + 1
    elseif found[field + 1] then
      return false
    end
  end
  return redis.call('HLEN', key) == count
end

local function is_document(key, version, given)
  local found = pcall('GET', key)
  return type(found) == 'string' and sub(found, 1, 13) == sub(given, 1, 13)
    and is_upto(sub(found, 14, 32), version) and sub(found, 33) == sub(given, 33)
end

local differing = {}
for number = 1, #KEYS, 2 do
  local key, tombstone, given = KEYS[number], KEYS[number + 1], ARGV[at]
  at = at + 1
  local is_equal
  if field_count then
    local version, mark = sub(given, 1, 19), sub(given, 20)
    if mark == 't' then
      is_equal = is_gone(key, tombstone, version)
    else
      is_equal = is_hash(key, version, mark) and not (is_any_buried and redis.call('EXISTS', tombstone) == 1)
      local count = field_count
      if mark ~= '' then
        local _
        _, count = string.gsub(mark, '1', '')
      end
      at = at + count
    end
  elseif #given == 19 then
    is_equal = is_gone(key, tombstone, given)
  else
    is_equal = is_document(key, sub(given, 14, 32), given)
      and not (is_any_buried and redis.call('EXISTS', tombstone) == 1)
  end
  if not is_equal then differing[#differing + 1] = (number - 1) / 2 end
end
return differing
"""

# A step of a sweep. KEYS: the names to examine; if none, SCAN finds them. ARGV: hash or json, a version, and SCAN's
# cursor, MATCH and COUNT. Returns the next cursor, then the name and version of each key with a smaller version, in one
# list; a key with foreign content has no version. The names of all other keys are not sent.
BELOW = r"""
local pcall, sub, match = redis.pcall, string.sub, string.match
local is_hash, version = ARGV[1] == 'hash', ARGV[2]
local form = is_hash and '^%d+$' or '^{"_version":"%d+$'
local found = {'', KEYS}
if #KEYS == 0 then found = redis.call('SCAN', ARGV[3], 'MATCH', ARGV[4], 'COUNT', ARGV[5]) end
local below = {found[1]}
for _, key in ipairs(found[2]) do
  local stored
  if is_hash then
    stored = pcall('HGET', key, '_version')
  else
    stored = pcall('GETRANGE', key, 0, 31)
  end
  if type(stored) == 'table' then
    if not string.find(stored.err, 'WRONGTYPE', 1, true) then return stored end
  elseif stored then
    local of = is_hash and stored or sub(stored, 14)
    if #of == 19 and of < version and match(stored, form) then
      below[#below + 1] = key
      below[#below + 1] = of
    end
  end
end
return below
"""

# ARGV: SCAN's cursor, MATCH and COUNT. Returns the next cursor, and the names in one MessagePack array: redis-py parses
# an answer of many parts more slowly than Redis makes it.
NAMES = """
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
return {found[1], cmsgpack.pack(found[2])}
"""

# Moves the witness from ARGV[1] ('' for none yet) to ARGV[2]; returns 0 if it held something else and was left.
MOVE_WITNESS = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""

# KEYS: the witness, then pointers. ARGV: what the witness must hold ('' for none yet), then what each pointer must
# hold. Returns the numbers (from 0) of the pointers that it had to correct; nil if the witness holds something else.
LEAD = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return false end
local changed = {}
for number = 2, #KEYS do
  if redis.pcall('GET', KEYS[number]) ~= ARGV[number] then
    redis.call('SET', KEYS[number], ARGV[number])
    changed[#changed + 1] = number - 2
  end
end
return changed
"""

WRONG_TYPE = b"another type"  # stands for the version of a value of another type
LOWEST = "0" * WIDTH

# KEYS: a key and its tombstone. ARGV: 'hash' or 'json', then what the reader saw: the version of a hash or a tombstone
# as stored, the SHA-1 of a document, or WRONG_TYPE. Deletes both keys, unless something else is stored by now. A row
# that could be read stays with the lowest version: readers keep it until the next write.
TAKE_AWAY = f"""
local pcall = redis.pcall
local function mark_of(key)
  local found
  if key == KEYS[1] and ARGV[1] == 'hash' then
    found = pcall('HGET', key, '_version')
  else
    found = pcall('GET', key)
  end
  if type(found) == 'table' then return '{WRONG_TYPE.decode()}' end
  if found and key == KEYS[1] and ARGV[1] == 'json' then return redis.sha1hex(found) end
  return found or ''
end
local at = redis.call('EXISTS', KEYS[1]) == 1 and KEYS[1] or KEYS[2]
if mark_of(at) ~= ARGV[2] then return 0 end
if at == KEYS[1] and ARGV[2] ~= '{WRONG_TYPE.decode()}' then
  if ARGV[1] == 'hash' then
    redis.call('HSET', at, '_version', '{LOWEST}')
    redis.call('DEL', KEYS[2])
    return 1
  end
  local head = redis.call('GETRANGE', at, 0, 32)
  if #head == 33 and string.match(head, '^{{"_version":"%d*"$') then
    redis.call('SETRANGE', at, 13, '{LOWEST}')
    redis.call('DEL', KEYS[2])
    return 1
  end
end
redis.call('DEL', KEYS[1], KEYS[2])
return 1
"""
