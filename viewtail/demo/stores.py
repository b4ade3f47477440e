"""Reads each store as any program would: with its own client, and nothing of viewtail but the address."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Protocol

from viewtail.demo.given import own_session
from viewtail.demo.place import TITLES, Place
from viewtail.demo.rows import Cities, City


class Store(Protocol):
    """One of the places that a view is in."""

    name: str
    question: str  # what its reader asks for one city; {key} is its id

    def cities(self, keys: list[int]) -> Cities:
        """Those of these that it has, now."""
        ...

    def damage(self, key: int) -> str:
        """Write something wrong past viewtail; returns the statement, or '' where nobody can."""
        ...

    def close(self) -> None: ...


class IndexTableStore:
    """The index table in MySQL."""

    name = "mysql"

    def __init__(self, place: Place) -> None:
        self._connection, self._table = own_session(place), f"{place.names.own}.{place.names.view(self.name)}"
        self._connection.autocommit(True)  # a SELECT sees what is committed by then
        self.question = f"SELECT * FROM {self._table} WHERE id = {{key}}"

    def cities(self, keys: list[int]) -> Cities:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT id, country, population FROM {self._table} WHERE id IN %s", (keys,))
            found = cursor.fetchall()
        return {key: City(country, count) for key, country, count in found if country is not None}

    def damage(self, key: int) -> str:
        statement = f"UPDATE {self._table} SET country = 'XX' WHERE id = {key}"
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
        return f"mysql> {statement};"

    def close(self) -> None:
        self._connection.close()


class RedisStore:
    """The hashes in Redis."""

    name = "redis"

    def __init__(self, place: Place) -> None:
        self._client: Any = place.settings().redis.client()  # type: ignore[attr-defined]  # a section of a store
        self._view = place.names.view(self.name)
        self.question = f"HGETALL {self._view}:{{key}}"

    def cities(self, keys: list[int]) -> Cities:
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.hmget(f"{self._view}:{key}", "country", "population")
        found = zip(keys, pipe.execute(), strict=True)
        return {key: City(country.decode(), int(count)) for key, (country, count) in found if country is not None}

    def damage(self, key: int) -> str:
        self._client.hset(f"{self._view}:{key}", "population", 7)
        return f"redis> HSET {self._view}:{key} population 7"

    def close(self) -> None:
        self._client.close()


class ElasticsearchStore:
    """The documents in Elasticsearch; a read by id sees what a search sees after the next refresh."""

    name = "elasticsearch"

    def __init__(self, place: Place) -> None:
        self._client: Any = place.settings().elasticsearch.client()  # type: ignore[attr-defined]
        self._view = place.names.view(self.name)
        self.question = f"GET {self._view}/_doc/{{key}}"

    def cities(self, keys: list[int]) -> Cities:
        answer = self._client.mget(index=self._view, ids=[str(key) for key in keys])
        found = {int(one["_id"]): one["_source"] for one in answer["docs"] if one.get("found")}
        return {key: City(one["country"], one["population"]) for key, one in found.items() if "country" in one}

    def damage(self, key: int) -> str:
        return ""

    def close(self) -> None:
        self._client.close()


class TopicStore:
    """The topic in Kafka: what its newest message says of each key, read in a thread of its own."""

    name = "kafka"

    def __init__(self, place: Place) -> None:
        self._options: Mapping[str, Any] = place.settings().kafka.client()  # type: ignore[attr-defined]
        self._topic = place.names.view(self.name)
        self.question = f"the newest message of {self._topic}"
        self._newest: dict[int, City] = {}
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="consumer", daemon=True)
        self._thread.start()

    def cities(self, keys: list[int]) -> Cities:
        if self._error is not None:
            raise self._error
        newest = self._newest
        return {key: newest[key] for key in keys if key in newest}

    def damage(self, key: int) -> str:
        return ""

    def close(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        from confluent_kafka import Consumer, TopicPartition

        options = {
            **self._options,
            "group.id": "viewtail-demo",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        try:
            with closing(Consumer(options)) as consumer:
                known = consumer.list_topics(self._topic, timeout=30).topics[self._topic].partitions
                consumer.assign([TopicPartition(self._topic, number, 0) for number in known])
                while not self._stop.is_set():
                    for message in consumer.consume(1000, timeout=0.005):
                        self._read(message)
        except BaseException as error:  # raised again in the thread that asks
            self._error = error

    def _read(self, message: Any) -> None:
        if message.error() is not None:
            raise ConnectionError(message.error().str())
        if message.value() is None:
            return  # the tombstone behind a delete
        row = json.loads(message.value())["after"]
        self._newest[row["id"]] = City(row["country"], row["population"])


_OPENED: dict[str, Callable[[Place], Store]] = {
    "mysql": IndexTableStore,
    "redis": RedisStore,
    "elasticsearch": ElasticsearchStore,
    "kafka": TopicStore,
}


def opened(place: Place) -> list[Store]:
    """A client of each store that is shown."""
    return [_OPENED[name](place) for name in place.stores]


def title(store: Store) -> str:
    """What a reader calls it."""
    return TITLES[store.name]
