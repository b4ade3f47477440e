"""Takes over keys that another tool wrote under a view's names: each gets the lowest version, where it is."""

from __future__ import annotations

from redis import Redis

from projectors import failpoints
from projectors.stores import Adoption
from projectors.stores.redis.keys import RedisKeys
from projectors.stores.redis.owners import UNDER_WAY
from projectors.stores.redis.places import RedisPlaces
from projectors.stores.redis.script import LOWEST
from projectors.stores.redis.sink import as_text
from projectors.stores.redis.unanswered import asking
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView

KEYS_A_SCAN = 500  # Redis serves nobody else while it looks at as many
TAKEN = "adopted from another tool"

# ARGV: 'hash' or 'json'; 'all' where no version is this deployment's. KEYS: names to look at. A key that has no version
# gets the lowest one, and so does one whose version is another's; one that holds a value of another form is left alone,
# and so is a text that begins as a document does and is none. Returns how many got one.
MARK = f"""
local ours = '^{{"_version":"%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d"'
local lowest, is_hash, is_all = '{LOWEST}', ARGV[1] == 'hash', ARGV[2] == 'all'
local count = 0
local function is_document(text)
  local is_json, found = pcall(cjson.decode, text)
  return is_json and type(found) == 'table'
end
for _, key in ipairs(KEYS) do
  if is_hash then
    if redis.call('TYPE', key).ok == 'hash' then
      local stored = redis.call('HGET', key, '_version')
      local is_version = stored and #stored == 19 and string.match(stored, '^%d+$')
      if not is_version or is_all and stored ~= lowest then
        redis.call('HSET', key, '_version', lowest)
        count = count + 1
      end
    end
  elseif redis.call('TYPE', key).ok == 'string' then
    local head = redis.call('GETRANGE', key, 0, 32)
    local has_version = string.match(head, ours)
    if has_version and is_all and string.sub(head, 14, 32) ~= lowest then
      redis.call('SETRANGE', key, 13, lowest)
      count = count + 1
    elseif string.match(head, '^%s*{{') and not has_version and is_document(redis.call('GET', key)) then
      local rest = string.gsub(redis.call('GET', key), '^%s*{{%s*', '', 1)
      local comma = string.sub(rest, 1, 1) == '}}' and '' or ','
      redis.call('SET', key, '{{"_version":"' .. lowest .. '"' .. comma .. rest, 'KEEPTTL')
      count = count + 1
    end
  end
end
return count
"""


class KeyAdoption(Adoption):
    """Adopts the keys of one view, over a client of its own."""

    def __init__(self, client: Redis, view: BoundView, places: RedisPlaces) -> None:
        self._client, self._view, self._places = client, view, places
        self._keys = RedisKeys(view)

    def refusal(self, *, drops_extra: bool) -> str | None:
        if self._keys.has_generation:
            return (
                f"{self._view.id}: its keys have {{generation}}, the number of a copy, which other tools' have not. "
                "Declare it with the keys that readers use"
            )
        if others := self._places.others(self._view):
            return (
                f"{self._view.id}: its keys belong to {'; '.join(map(str, others))}. Have that one give them up: take "
                "the view out of its views.py and run viewtail forget there"
            )
        return None

    def steps(self) -> list[str]:
        match = self._keys.scan_match
        kind = "the field" if isinstance(self._view.view, RedisHash) else "a first member"
        return [
            f"note in Redis that the keys {match} are this deployment's",
            f"write {kind} _version into each of these keys, beside what it holds",
        ]

    def take(self, *, is_beside: bool) -> None:
        """Until all keys are marked, what they have for a version is the other tool's, however large it is."""
        own = self._places.own(self._view)
        is_marked = own is not None and own.taken == TAKEN
        if not is_marked:
            self._places.take_over(self._view, UNDER_WAY)
        failpoints.reach("after claim")
        self._mark("new" if is_marked else "all")
        if not is_marked:
            self._places.take_over(self._view, TAKEN)

    def _mark(self, which: str) -> None:
        kind = "hash" if isinstance(self._view.view, RedisHash) else "json"
        cursor = b"0"
        while True:
            with asking(self._client, "adopting keys"):
                cursor, found = self._client.execute_command(  # type: ignore[no-untyped-call]
                    "SCAN", cursor, "MATCH", self._keys.scan_match, "COUNT", KEYS_A_SCAN
                )
                names = [name for name in found if self._keys.key_of(as_text(name)) is not None]
                if names:
                    self._client.eval(MARK, len(names), *names, kind, which)
            failpoints.reach("in marking")
            if int(cursor) == 0:
                return

    def close(self) -> None:
        self._places.close()
        self._client.close()
