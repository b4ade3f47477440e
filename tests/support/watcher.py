"""Polls a world: no version may fall, and nothing may return below its own tombstone."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

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


class Connected(Protocol):
    """A world with stores."""

    @property
    def redis(self) -> Server: ...
    def connect(self) -> Any: ...  # to MySQL


class Watchable(Connected, Protocol):
    """A world with views of single rows."""

    @property
    def watched(self) -> Watched: ...


class Reader(ABC):
    """A thread a store that looks while the faults happen, `EVERY_S`; a context manager."""

    EVERY_S: float

    def __init__(self, world: Connected) -> None:
        self._stop = threading.Event()
        # Kept from look to look: opening some each time took more than looking.
        self._connect, self._mysql = world.connect, None
        self._redis = redis.Redis(port=world.redis.port, socket_timeout=2)
        self._threads = [threading.Thread(target=self._watch, args=(look,)) for look in self._looks()]

    @abstractmethod
    def _looks(self) -> Sequence[Callable[[], Mapping[Any, Any]]]:
        """What the stores show, by key; one each."""

    @abstractmethod
    def _looked(self, seen: Mapping[Any, Any]) -> None:
        """A look was taken."""

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._redis.close()
        self._give_up_mysql()

    def _watch(self, look: Callable[[], Mapping[Any, Any]]) -> None:
        while not self._stop.wait(self.EVERY_S):
            try:
                seen = look()
            except (pymysql.err.MySQLError, redis.RedisError, OSError, ValueError):
                continue  # that store is being killed just now
            self._looked(seen)

    def _asked(self, statement: str) -> list[Any]:
        try:
            if self._mysql is None:
                self._mysql = self._connect()
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


class Watcher(Reader):
    """Looks at versions; `regressions` is what it caught."""

    EVERY_S = 0.05

    def __init__(self, world: Watchable) -> None:
        self._watched = world.watched
        self._last: dict[str, Seen] = {}
        self.regressions: list[str] = []
        self.looks = 0
        super().__init__(world)

    def _looks(self) -> Sequence[Callable[[], Mapping[str, Seen]]]:
        return [self._index_rows, self._redis_hashes, self._documents]

    def _looked(self, seen: Mapping[str, Seen]) -> None:
        self.looks += 1
        for key, now in seen.items():
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
