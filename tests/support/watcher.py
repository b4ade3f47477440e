"""Polls a world: no version may fall, and nothing may return below its own tombstone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pymysql
import redis

from stack import Server

Seen = tuple[int, bool]  # version, whether the key is there

_KEYS = range(0, 4000, 131)


@dataclass(frozen=True, slots=True)
class Watched:
    """The views that are looked at; each is keyed by a table's id."""

    index_table: str  # with its schema
    hashes: str  # before `:` and the id
    documents: Callable[[list[str]], list[Any]] | None = None  # gives those with these ids


class Watchable(Protocol):
    """A world with views."""

    @property
    def redis(self) -> Server: ...
    @property
    def watched(self) -> Watched: ...
    def connect(self) -> Any: ...  # to MySQL


class Watcher:
    """A thread that looks while the faults happen; `regressions` is what it caught."""

    def __init__(self, world: Watchable) -> None:
        self._world, self._watched = world, world.watched
        self._last: dict[str, Seen] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        # Kept from look to look: opening some each time took more than looking.
        self._mysql: Any = None
        self._redis = redis.Redis(port=world.redis.port, socket_timeout=2)
        self.regressions: list[str] = []
        self.looks = 0

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._redis.close()
        self._give_up_mysql()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            for look in (self._index_rows, self._redis_hashes, self._documents):
                try:
                    found = look()
                except (pymysql.err.MySQLError, redis.RedisError, OSError, ValueError):
                    continue  # that store is being killed just now
                self.looks += 1
                for key, now in found.items():
                    self.saw(key, now)

    def saw(self, key: str, now: Seen) -> None:
        before = self._last.get(key)
        if before is not None:
            if now[0] < before[0]:
                self.regressions.append(f"{key} went from version {before[0]} to {now[0]}")
            elif now[1] and not before[1] and now[0] <= before[0]:
                self.regressions.append(f"{key} returned at version {now[0]}, deleted at {before[0]}")
        self._last[key] = now

    def _index_rows(self) -> dict[str, Seen]:
        keys = ",".join(map(str, _KEYS))
        rows = self._asked(f"SELECT id, version FROM {self._watched.index_table} WHERE id IN ({keys})")
        return {f"mysql {i}": (version, True) for i, version in rows}

    def _asked(self, statement: str) -> list[Any]:
        try:
            if self._mysql is None:
                self._mysql = self._world.connect()
            with self._mysql.cursor() as cursor:
                cursor.execute(statement)
                rows = list(cursor.fetchall())
            self._mysql.commit()  # the next look is to see what is there then
        except (pymysql.err.MySQLError, OSError):
            self._give_up_mysql()
            raise
        return rows

    def _give_up_mysql(self) -> None:
        if self._mysql is not None and self._mysql.open:
            self._mysql.close()
        self._mysql = None

    def _redis_hashes(self) -> dict[str, Seen]:
        found: dict[str, Seen] = {}
        with self._redis.pipeline(transaction=True) as look:
            for key in _KEYS:
                look.hget(f"{self._watched.hashes}:{key}", "_version")
                look.get(f"{{{self._watched.hashes}:{key}}}:t")
            answers: list[Any] = look.execute()
        for key, version, tombstone in zip(_KEYS, answers[::2], answers[1::2], strict=True):
            if version is not None or tombstone is not None:
                found[f"redis {key}"] = (max(int(version or 0), int(tombstone or 0)), version is not None)
        return found

    def _documents(self) -> dict[str, Seen]:
        if self._watched.documents is None:
            return {}
        docs = self._watched.documents([str(key) for key in _KEYS])
        return {
            f"elasticsearch {doc['_id']}": (
                doc["_version"],
                not doc["_source"].get("viewtail_deleted", False),
            )
            for doc in docs
            if doc.get("found")
        }
