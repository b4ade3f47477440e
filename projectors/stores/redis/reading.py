"""Reading Redis views: by key, and all of a view by SCAN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from redis import Redis, exceptions

from changes.errors import StoreError, StoreUnavailableError
from changes.writes import Key
from projectors.stores import StoredRow, ViewReader
from projectors.stores.redis.keys import VERSION, RedisKeys
from projectors.stores.redis.sink import KEYS_A_SCAN, as_text
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView


class RedisReader(ViewReader):
    """One view, over a client of the reader's own."""

    def __init__(self, client: Redis, view: BoundView) -> None:
        self.view = view
        self._client = client
        self._keys = RedisKeys(view)

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        is_hash = isinstance(self.view.view, RedisHash)
        read = _hash if is_hash else orjson.loads
        asked = self._client.pipeline(transaction=False)
        for key in keys:
            command = "HGETALL" if is_hash else "GET"
            asked.execute_command(command, self._keys.redis_key(key), NEVER_DECODE=True)  # type: ignore[no-untyped-call]
        try:
            found = [(key, read(answer)) for key, answer in zip(keys, asked.execute(), strict=True) if answer]
            return [StoredRow(key, int(content.pop(VERSION)), content) for key, content in found]
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise StoreUnavailableError(f"Redis does not answer ({type(error).__name__}); is it up?") from None
        except (exceptions.RedisError, ValueError, KeyError) as error:
            raise StoreError(
                f"view {self.view.id}: what Redis holds under this key cannot be read ({type(error).__name__}); check "
                "user, password and permissions, and that nobody else writes to the view's keys"
            ) from None

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        """In the order of SCAN: a row that is written meanwhile may come twice."""
        cursor: Any = 0
        while True:
            try:
                cursor, names = self._client.scan(cursor, match=self._keys.scan_match, count=KEYS_A_SCAN)
            except exceptions.RedisError as error:
                raise StoreUnavailableError(f"Redis: a scan failed ({type(error).__name__}); try again") from None
            found = (self._keys.key_of(as_text(name)) for name in names)
            yield self.rows(list(dict.fromkeys(key for key in found if key is not None)))
            if not cursor:
                return

    def close(self) -> None:
        self._client.close()


def _hash(answer: dict[Any, Any]) -> dict[str, Any]:
    return {as_text(field): value for field, value in answer.items()}
