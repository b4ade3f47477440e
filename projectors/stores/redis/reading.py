"""Reads Redis views: rows by key, and all rows of a view by SCAN."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import orjson
from redis import Redis, exceptions

from projectors.stores import MOST_FOREIGN, UNREADABLE, Held, StoredRow, ViewReader
from projectors.stores.redis.comparing import Comparing
from projectors.stores.redis.keys import JSON_HEAD, VERSION, RedisKeys, leading, version_of
from projectors.stores.redis.packing import hash_content, json_content
from projectors.stores.redis.script import WRONG_TYPE
from projectors.stores.redis.sink import KEYS_A_SCAN, as_text
from projectors.stores.redis.unanswered import UNREACHABLE, no_answer, reading, refuses
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView
from viewtail.changes.errors import StoreError
from viewtail.changes.versions import WIDTH
from viewtail.changes.writes import Key, Write

_VERSION = re.compile(
    re.escape(JSON_HEAD) + rb"([0-9]{%d})" % WIDTH
)  # the version in a document, where the guard reads it too
# What is wrong with an entity's key.
ANOTHER_TYPE = "its key holds a value of another type"
NO_VERSION = "it holds no version"
BURIED = "a tombstone is beside it"


class RedisReader(ViewReader):
    """Reads one view, over a client of its own."""

    def __init__(self, client: Redis, view: BoundView) -> None:
        self.view, self.foreign = view, []
        self._client = client
        self._keys = RedisKeys(view)
        self._is_hash = isinstance(view.view, RedisHash)

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        read = _hash if self._is_hash else orjson.loads
        asked = self._client.pipeline(transaction=False)
        for key in keys:
            command = "HGETALL" if self._is_hash else "GET"
            asked.execute_command(command, self._keys.redis_key(key), NEVER_DECODE=True)  # type: ignore[no-untyped-call]
        try:
            contents = [(key, read(answer)) for key, answer in zip(keys, asked.execute(), strict=True) if answer]
            return [StoredRow(key, int(content.pop(VERSION)), content) for key, content in contents]
        except UNREACHABLE as error:
            raise no_answer(self._client, error) from None
        except (exceptions.RedisError, ValueError, KeyError) as error:
            raise StoreError(
                f"view {self.view.id}: what Redis holds under this key cannot be read ({type(error).__name__}); check "
                "user, password and permissions, and that nobody else writes to the view's keys"
            ) from None

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        """Send two commands per key, all at once: one for the row, one for its tombstone."""
        asked = self._client.pipeline(transaction=False)
        command = "HGETALL" if self._is_hash else "GET"
        for key in keys:
            name, tombstone = self._keys.names(key)
            asked.execute_command(command, name, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
            asked.execute_command("GET", tombstone, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
        with reading(self._client, self.view.id):
            answers = asked.execute(raise_on_error=False)
        for error in [answer for answer in answers if isinstance(answer, exceptions.RedisError)]:
            if "WRONGTYPE" not in str(error):
                raise refuses(self.view.id, error)
        rows, tombstones = answers[::2], answers[1::2]
        by_key = {key: self._held(row, mark) for key, row, mark in zip(keys, rows, tombstones, strict=True)}
        return {key: held for key, held in by_key.items() if held is not None}

    def _held(self, row: Any, tombstone: Any) -> Held | None:
        if isinstance(row, exceptions.RedisError):
            return Held(None, UNREADABLE, ANOTHER_TYPE, mark=WRONG_TYPE, is_foreign=True)
        if row is not None and row != {}:
            held = self._of_hash(row) if self._is_hash else self._of_document(row)
            is_beside = tombstone is not None and not held.fault
            return replace(held, fault=BURIED) if is_beside else held
        return held_as_tombstone(WRONG_TYPE if isinstance(tombstone, exceptions.RedisError) else tombstone)

    @staticmethod
    def _of_hash(row: dict[Any, Any]) -> Held:
        content = _hash(row)
        mark = content.pop(VERSION, b"")
        version = version_of(mark)
        fault = "" if version is not None else NO_VERSION
        return Held(version, content, fault, mark, is_foreign=version is None)

    @staticmethod
    def _of_document(row: bytes) -> Held:
        mark = hashlib.sha1(row).hexdigest().encode()
        match = _VERSION.match(row)
        is_foreign = match is None
        try:
            content = orjson.loads(row)
            stored = content.pop(VERSION, None)
        except (ValueError, AttributeError, TypeError):
            return Held(None, UNREADABLE, "it is not the JSON that viewtail wrote", mark, is_foreign=is_foreign)
        shown = orjson.dumps(content, option=orjson.OPT_SORT_KEYS)
        if match is None or match[1].decode() != stored:
            return Held(None, shown, NO_VERSION, mark, is_foreign=is_foreign)
        return Held(int(match[1]), shown, mark=mark)

    def form_of(self, key: Key, values: tuple[Any, ...] | bytes) -> Any:
        if self._is_hash:
            return hash_content(self.view, values)
        return orjson.dumps(json_content(self.view, values), option=orjson.OPT_SORT_KEYS)

    def unequal(self, wanted: Mapping[Key, Write]) -> list[Key]:
        """Let Redis compare byte by byte; rows that differ there are read and compared here."""
        suspects = self._comparing.differing(list(wanted.items()))
        return super().unequal({key: wanted[key] for key in suspects}) if suspects else []

    @cached_property
    def _comparing(self) -> Comparing:
        return Comparing(self._client, self.view, self._keys)

    def pointer_problem(self) -> str:
        keys = leading(self.view)
        if keys is None or self.view.is_beside:
            return ""
        try:
            stored: Any = self._client.execute_command("GET", keys.pointer, NEVER_DECODE=True)  # type: ignore[no-untyped-call]
        except exceptions.ResponseError:
            stored = b"a value of another type"
        except exceptions.RedisError as error:
            raise no_answer(self._client, error) from None
        if stored == str(self.view.copy).encode():
            return ""
        holds = "is not there" if stored is None else "holds something else"
        return (
            f"the key {keys.pointer}, by which readers find the view's generation, {holds}; it must hold "
            f"{self.view.copy}. A running viewtail puts it right within seconds"
        )

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        """Pages in the order of SCAN: a row that is written meanwhile may come twice."""
        return map(self.rows, self.shown_keys())

    def shown_keys(self) -> Iterator[list[Key]]:
        cursor: Any = 0
        while True:
            with reading(self._client, self.view.id):
                cursor, names = self._client.scan(cursor, match=self._keys.scan_match, count=KEYS_A_SCAN)
            texts = {text: self._keys.key_of(text) for text in map(as_text, names)}
            yield [key for key in texts.values() if key is not None]
            for text, key in texts.items():
                if key is None and self._keys.is_like_ours(text):
                    self._note_foreign(text)
            if not cursor:
                return

    def _note_foreign(self, text: str) -> None:
        name = text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
        if len(self.foreign) < MOST_FOREIGN and name not in self.foreign:  # SCAN may return it twice
            self.foreign.append(name)

    def close(self) -> None:
        self._client.close()


def held_as_tombstone(mark: bytes | None) -> Held | None:
    """The state that a tombstone stands for; WRONG_TYPE is a value of another type, None no tombstone."""
    if mark is None:
        return None
    if mark == WRONG_TYPE:
        return Held(None, None, "its tombstone is a value of another type", mark)
    version = version_of(mark)
    return Held(version, None, "" if version is not None else "its tombstone holds no version", mark)


def _hash(answer: dict[Any, Any]) -> dict[str, Any]:
    return {as_text(field): value for field, value in answer.items()}
