"""The guard of views whose keys are of one source at a time: `unique_over_sources=True`.

A row says which source it is of: a hash in the field `_source`, a document in the member behind its version. Each
source has a tombstone of its own for a key. So versions of two sources are never compared, and one step of Redis
decides: while a key holds the row of another source, a row is refused, and its refusal says whose the key is; a delete
is noted in the own tombstone, and the other one's row stays.

KEYS, versions, and what the scripts return are otherwise as in script.py; its scripts know nothing of sources, and cost
what they did."""

from __future__ import annotations

from projectors.stores.redis.script import LOWEST, VERSION_AND_MARK, WRONG_TYPE

# Precedes the scripts. Returns the source whose row a key holds, and the version; '' where there is no key; nil where
# viewtail did not write what it holds.
_ROW_AT = r"""
local function row_at(key, is_hash)
  local found, version, source
  if is_hash then
    found = redis.pcall('HMGET', key, '_version', '_source')
    version, source = found[1], found[2]
  else
    found = redis.pcall('GETRANGE', key, 0, 127)
    if type(found) == 'string' then
      version, source = string.match(found, '^{"_version":"(%d+)","_source":"([a-z0-9_]+)"')
    end
  end
  if type(found) == 'table' and found.err then
    if not string.find(found.err, 'WRONGTYPE', 1, true) then error(found.err, 0) end
    return nil
  end
  if version and source and #version == 19 and not string.find(version, '%D') then return source, version end
  if not version and not source and redis.call('EXISTS', key) == 0 then return '' end
  return nil
end
"""

APPLY_OWN = (
    _ROW_AT
    + r"""
-- ARGV: as for the guard of other views, with the name of the own source behind the first.
-- Returns the numbers of refused pairs; of those whose key another source has, each with its name.
local call, sub = redis.call, string.sub
local refused = {}
local takes_equal, own, field_count = ARGV[1] == '>=', ARGV[2], tonumber(ARGV[3])
local at = 4 + (field_count or 0)

for number = 1, #KEYS, 2 do
  local key, tombstone = KEYS[number], KEYS[number + 1]
  local given = ARGV[at]
  at = at + 1

"""
    + VERSION_AND_MARK
    + r"""  local row = {'_version', version, '_source', own}
  if field_count and mark ~= 't' then
    for field = 1, field_count do
      if mark == '' or sub(mark, field, field) == '1' then
        row[#row + 1] = ARGV[field + 3]
        row[#row + 1] = ARGV[at]
        at = at + 1
      end
    end
  end

  local owner, stored = row_at(key, field_count)
  local is_own = owner == own
  if owner and not is_own then stored = call('GET', tombstone) end
  local applies = not stored or version > stored or (takes_equal and version == stored)
  if not owner then
    refused[#refused + 1] = (number - 1) / 2
  elseif not applies then
    -- It is older than what this source has written of the key.
  elseif mark == 't' then
    if is_own then call('DEL', key) end
    call('SET', tombstone, version)
  elseif not is_own and owner ~= '' then
    refused[#refused + 1] = {(number - 1) / 2, owner}
  else
    if is_own then call('DEL', key) elseif stored then call('DEL', tombstone) end
    if field_count then call('HSET', key, unpack(row)) else call('SET', key, given) end
  end
end
return refused
"""
)

# As BELOW, for the rows of one source: its name is ARGV[3], before what SCAN gets.
BELOW_OWN = (
    _ROW_AT
    + r"""
local is_hash, version, own = ARGV[1] == 'hash', ARGV[2], ARGV[3]
local found = {'', KEYS}
if #KEYS == 0 then found = redis.call('SCAN', ARGV[4], 'MATCH', ARGV[5], 'COUNT', ARGV[6]) end
local below = {found[1]}
for _, key in ipairs(found[2]) do
  local owner, of = row_at(key, is_hash)
  if owner == own and of < version then
    below[#below + 1] = key
    below[#below + 1] = of
  end
end
return below
"""
)

# As TAKE_AWAY, with the name of the own source as ARGV[3]: while another one has the key, its row stays, and what was
# seen is the own tombstone.
TAKE_AWAY_OWN = (
    _ROW_AT
    + f"""
local is_hash, seen = ARGV[1] == 'hash', ARGV[2]
local owner = row_at(KEYS[1], is_hash)
local at = (not owner or owner == ARGV[3]) and KEYS[1] or KEYS[2]
local found
if at == KEYS[1] and is_hash then
  found = redis.pcall('HGET', at, '_version')
else
  found = redis.pcall('GET', at)
end
if type(found) == 'table' then
  found = '{WRONG_TYPE.decode()}'
elseif found and at == KEYS[1] and not is_hash then
  found = redis.sha1hex(found)
end
if (found or '') ~= seen then return 0 end
if at == KEYS[2] then
  redis.call('DEL', KEYS[2])
elseif not owner then
  redis.call('DEL', KEYS[1], KEYS[2])
else
  if is_hash then redis.call('HSET', at, '_version', '{LOWEST}') else redis.call('SETRANGE', at, 13, '{LOWEST}') end
  redis.call('DEL', KEYS[2])
end
return 1
"""
)
