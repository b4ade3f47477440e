"""Reads a Redis view whose keys are of one source at a time, as its source has it: others' rows are not its own."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from redis import Redis, exceptions

from projectors.stores import Held, StoredRow, ViewReader
from projectors.stores.redis.keys import JSON_HEAD, SOURCE_NAME
from projectors.stores.redis.reading import RedisReader
from projectors.stores.redis.sink import as_text
from projectors.stores.redis.unanswered import reading, refuses
from projectors.views import BoundView
from viewtail.changes.versions import WIDTH
from viewtail.changes.writes import Key, Write

# What precedes a document's own members, as the guard reads it, too.
_HEAD = re.compile(rb"(%s[0-9]{%d}\"),\"%s\":\"([a-z0-9_]+)\"" % (re.escape(JSON_HEAD), WIDTH, SOURCE_NAME.encode()))
_HEAD_ENDS = 127  # the name of a source has 63 characters at most
NO_SOURCE = "it does not say which source it is of"


class UniqueReader(RedisReader):
    """Reads one view as one source has it. A tombstone, too, is that source's own."""

    def __init__(self, client: Redis, view: BoundView) -> None:
        super().__init__(client, view)
        (self._source,) = view.source

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        return [row for row in super().rows(keys) if self._owner(row.content.pop(SOURCE_NAME, None)) == self._source]

    def shown_keys(self) -> Iterator[list[Key]]:
        """Keys with what is nobody's are among them, for `held` to say so."""
        for page in super().shown_keys():
            owners = self.owners(page)
            yield [key for key in page if owners.get(key, self._source) == self._source]

    def unequal(self, wanted: Mapping[Key, Write]) -> list[Key]:
        """Compare here: the script that does so in Redis does not know of sources."""
        return ViewReader.unequal(self, wanted)

    def owners(self, keys: Sequence[Key]) -> dict[Key, str]:
        asked = self._client.pipeline(transaction=False)
        command = ("HGET", SOURCE_NAME) if self._is_hash else ("GETRANGE", 0, _HEAD_ENDS)
        for key in keys:
            asked.execute_command(command[0], self._keys.redis_key(key), *command[1:], NEVER_DECODE=True)  # type: ignore[no-untyped-call]
        with reading(self._client, self.view.id):
            answers = asked.execute(raise_on_error=False)
        found: dict[Key, str] = {}
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, exceptions.RedisError):
                if "WRONGTYPE" not in str(answer):
                    raise refuses(self.view.id, answer)
            elif (owner := self._owner(answer if self._is_hash else _source_in(answer))) is not None:
                found[key] = owner
        return found

    def _held(self, row: Any, tombstone: Any) -> Held | None:
        if not row or isinstance(row, exceptions.RedisError):
            return super()._held(row, tombstone)
        owner, plain = self._taken_apart(row)
        if owner is None:
            held = super()._held(row, None)
            assert held is not None
            return replace(held, version=None, fault=held.fault or NO_SOURCE, is_foreign=True)
        if owner != self._source:
            return super()._held(None, tombstone)
        held = super()._held(plain, tombstone)
        if held is None or self._is_hash:
            return held
        return replace(held, mark=hashlib.sha1(row).hexdigest().encode())

    def _taken_apart(self, row: Any) -> tuple[str | None, Any]:
        """The source that a row is of, and the row as that of a view which does not note it."""
        if self._is_hash:
            plain = {name: value for name, value in row.items() if as_text(name) != SOURCE_NAME}
            return self._owner(next((row[name] for name in row if name not in plain), None)), plain
        return self._owner(_source_in(row)), _HEAD.sub(rb"\1", row, count=1)

    @staticmethod
    def _owner(name: Any) -> str | None:
        return None if name is None else as_text(name)


def _source_in(document: bytes) -> bytes | None:
    match = _HEAD.match(document)
    return None if match is None else match[2]
