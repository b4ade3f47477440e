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
        self._texts = {column.name.encode(): column.name for column in view.values}  # of fields that all hashes have

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
        """Send all commands as the bytes that they are: redis-py's pipeline is slow at making them."""
        head = b"*2\r\n$7\r\nHGETALL\r\n$" if self._is_hash else b"*2\r\n$3\r\nGET\r\n$"
        names = [self._keys.redis_key(key).encode() for key in keys]
        packed = b"".join([b"%s%d\r\n%s\r\n" % (head, len(name), name) for name in names])
        with reading(self._client, self.view.id):
            answers = self._answered(packed, len(keys))
        for error in answers:
            if isinstance(error, exceptions.RedisError) and "WRONGTYPE" not in str(error):
                raise refuses(self.view.id, error)
        return answers

    def _answered(self, packed: bytes, count: int) -> list[Any]:
        """What Redis answers to each of the commands; an error is an answer."""
        connection: Any = self._client.connection_pool.get_connection()
        answers: list[Any] = []
        try:
            connection.send_packed_command((packed,), check_health=False)
            for _ in range(count):
                try:
                    answers.append(connection.read_response(disable_decoding=True))
                except exceptions.ResponseError as error:
                    answers.append(error)
        except BaseException:
            connection.disconnect()  # answers that were not read must not be taken for later ones
            raise
        finally:
            self._client.connection_pool.release(connection)
        return answers

    def _hash_of(self, answer: dict[Any, Any] | list[Any]) -> Any:
        pairs = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
        return self._declared_of({self._texts.get(field) or as_text(field): value for field, value in pairs})

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
