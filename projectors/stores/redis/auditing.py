"""Reads what another tool keeps under the keys of a Redis view: no versions, no tombstones, with the right to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from redis import Redis, exceptions

from projectors.stores import UNREADABLE, Held, ViewReader, slices
from projectors.stores.redis.keys import VERSION
from projectors.stores.redis.reading import RedisReader
from projectors.stores.redis.sink import as_text
from projectors.stores.redis.unanswered import reading, refuses
from projectors.views import BoundView
from viewtail.changes.writes import Key, Write

KEYS_AT_ONCE = 2_000


class AuditedKeys(RedisReader):
    """Reads one view's keys, over a client of its own. What is there of another form is UNREADABLE."""

    def __init__(self, client: Redis, view: BoundView, undeclared: dict[str, None]) -> None:
        super().__init__(client, view)
        self._undeclared = undeclared
        # A function's document is compared as it is: what it names is known by its rows alone.
        self._declared = None if view.view.document is not None else {column.name for column in view.values}

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        held: dict[Key, Held] = {}
        read = self._hash_of if self._is_hash else self._document_of
        for some in slices(keys, KEYS_AT_ONCE):
            for key, answer in zip(some, self._asked(some), strict=True):
                if isinstance(answer, exceptions.ResponseError):
                    held[key] = Held(None, UNREADABLE)
                elif answer:
                    held[key] = Held(None, read(answer))
        return held

    def unequal(self, wanted: Mapping[Key, Write]) -> list[Key]:
        """Compare here: a script would need another right than to read."""
        return ViewReader.unequal(self, wanted)

    def _asked(self, keys: Sequence[Key]) -> list[Any]:
        asked, command = self._client.pipeline(transaction=False), "HGETALL" if self._is_hash else "GET"
        for key in keys:
            asked.execute_command(command, self._keys.redis_key(key), NEVER_DECODE=True)  # type: ignore[no-untyped-call]
        with reading(self._client, self.view.id):
            answers: list[Any] = asked.execute(raise_on_error=False)
        for error in answers:
            if isinstance(error, exceptions.RedisError) and "WRONGTYPE" not in str(error):
                raise refuses(self.view.id, error)
        return answers

    def _hash_of(self, answer: dict[Any, Any]) -> Any:
        return self._declared_of({as_text(field): value for field, value in answer.items()})

    def _document_of(self, answer: bytes) -> Any:
        try:
            document = orjson.loads(answer)
        except ValueError:
            return UNREADABLE
        if not isinstance(document, dict):
            return UNREADABLE
        return orjson.dumps(self._declared_of(document), option=orjson.OPT_SORT_KEYS)

    def _declared_of(self, fields: dict[str, Any]) -> dict[str, Any]:
        if self._declared is None or fields.keys() <= self._declared:
            return fields
        others = fields.keys() - self._declared - {VERSION}
        self._undeclared.update(dict.fromkeys(sorted(others)))
        return {name: value for name, value in fields.items() if name in self._declared}
