"""Reading Redis views: by key, and all of a view by SCAN."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from redis import Redis, exceptions

from changes.errors import StoreError, StoreUnavailableError
from changes.rendering import json_value
from changes.writes import Key
from projectors.stores import Held, StoredRow, ViewReader
from projectors.stores.redis.keys import JSON_HEAD, VERSION, RedisKeys, tombstone_of, version_of
from projectors.stores.redis.packing import redis_text
from projectors.stores.redis.script import WRONG_TYPE
from projectors.stores.redis.sink import KEYS_A_SCAN, as_text
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView


class RedisReader(ViewReader):
    """One view, over a client of the reader's own."""

    def __init__(self, client: Redis, view: BoundView) -> None:
        self.view, self.foreign = view, []
        self._client = client
        self._keys = RedisKeys(view)
        self._is_hash = isinstance(view.view, RedisHash)
        self._converts = [json_value(column) for column in view.values]

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        read = _hash if self._is_hash else orjson.loads
        asked = self._client.pipeline(transaction=False)
        for key in keys:
            command = "HGETALL" if self._is_hash else "GET"
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

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        """Two commands a key, all sent at once: the row, and its tombstone."""
        asked = self._client.pipeline(transaction=False)
        command = "HGETALL" if self._is_hash else "GET"
        for key in keys:
            name = self._keys.redis_key(key)
            asked.execute_command(command, name, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
            asked.execute_command("GET", tombstone_of(name), NEVER_DECODE=True)  # type: ignore[no-untyped-call]
        try:
            answers = asked.execute(raise_on_error=False)
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise StoreUnavailableError(f"Redis does not answer ({type(error).__name__}); is it up?") from None
        rows, tombstones = answers[::2], answers[1::2]
        found = {key: self._held(row, mark) for key, row, mark in zip(keys, rows, tombstones, strict=True)}
        return {key: held for key, held in found.items() if held is not None}

    def _held(self, row: Any, tombstone: Any) -> Held | None:
        for answer in (row, tombstone):
            if isinstance(answer, exceptions.RedisError) and "WRONGTYPE" not in str(answer):
                raise StoreError(
                    f"view {self.view.id}: Redis refuses to read it: {type(answer).__name__}. Check user, password and "
                    "permissions (ACL) of viewtail in Redis"
                )
        if isinstance(row, exceptions.RedisError):
            return Held(None, None, fault="its key holds a value of another type", mark=WRONG_TYPE)
        if row:
            return self._row(row)
        if isinstance(tombstone, exceptions.RedisError):
            return Held(None, None, fault="its tombstone is a value of another type", mark=WRONG_TYPE)
        if not tombstone:
            return None
        version = version_of(tombstone)
        return Held(version, None, "" if version is not None else "its tombstone holds no version", tombstone)

    def _row(self, row: Any) -> Held:
        try:
            content = _hash(row) if self._is_hash else orjson.loads(row)
            mark = content.pop(VERSION, b"")
        except (ValueError, AttributeError, TypeError):
            return Held(None, None, "it is not the JSON that viewtail wrote", WRONG_TYPE)
        mark = mark if isinstance(mark, bytes) else str(mark).encode()
        if not self._is_hash and not row.startswith(JSON_HEAD + mark + b'"'):
            mark = WRONG_TYPE  # the guard reads it there
        version = version_of(mark)
        shown = content if self._is_hash else orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
        return Held(version, shown, "" if version is not None else "it holds no version", mark)

    def form_of(self, key: Key, values: tuple[Any, ...] | bytes) -> Any:
        if isinstance(values, bytes):
            return orjson.dumps(orjson.loads(values), option=orjson.OPT_SORT_KEYS)
        columns = self.view.values
        if self._is_hash:
            pairs = zip(columns, values, strict=True)
            fields = {column.name: redis_text(column.kind)(value) for column, value in pairs if value is not None}
            return {name: value if isinstance(value, bytes) else value.encode() for name, value in fields.items()}
        document = {
            column.name: value if value is None or convert is None else convert(value)
            for column, convert, value in zip(columns, self._converts, values, strict=True)
        }
        return orjson.dumps(orjson.loads(orjson.dumps(document)), option=orjson.OPT_SORT_KEYS)

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        """In the order of SCAN: a row that is written meanwhile may come twice."""
        return map(self.rows, self.shown_keys())

    def shown_keys(self) -> Iterator[list[Key]]:
        cursor: Any = 0
        while True:
            try:
                cursor, names = self._client.scan(cursor, match=self._keys.scan_match, count=KEYS_A_SCAN)
            except exceptions.RedisError as error:
                raise StoreUnavailableError(f"Redis: a scan failed ({type(error).__name__}); try again") from None
            found = (self._keys.key_of(as_text(name)) for name in names)
            yield list(dict.fromkeys(key for key in found if key is not None))
            if not cursor:
                return

    def close(self) -> None:
        self._client.close()


def _hash(answer: dict[Any, Any]) -> dict[str, Any]:
    return {as_text(field): value for field, value in answer.items()}
