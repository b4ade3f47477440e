"""The stores that the sink contract (test_sink_contract.py) is held against.

To add a sink: write a class like `Store` below and put it into `STORES`. Its reader must not use the sink's own code,
or both could be wrong in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, unquote

import orjson
import pymysql
import redis
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from elasticsearch import Elasticsearch
from elasticsearch.helpers import scan

import stack.elasticsearch
import stack.mysql
import stack.redis
from ingest.binlog.coordinates import BinlogPosition
from projectors.stores import GuardedSink, Publisher, Sink, StoredRow, ViewReader
from projectors.stores.elasticsearch.reading import DocumentReader
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.index_tables.list_reading import ListReader
from projectors.stores.index_tables.reading import IndexTableReader
from projectors.stores.index_tables.sink import MySQLSink
from projectors.stores.index_tables.views import IndexTable, MySQLTable
from projectors.stores.index_tables.whole_reading import WholeReader
from projectors.stores.redis.reading import RedisReader
from projectors.stores.redis.set_reading import SetReader
from projectors.stores.redis.sink import RedisSink
from projectors.stores.redis.views import RedisHash, RedisJson, RedisSet, RedisSortedSet
from projectors.stores.topics.sink import TopicSink
from projectors.stores.topics.views import Topic
from projectors.views import BoundView, Entity, View
from stack.server import Server
from tests.support import topic_log
from tests.support.fake_publisher import Broker, FakePublisher
from tests.support.fake_sink import FakeReader, FakeSink, FakeStore
from tests.support.log_sink import Log, LogSink
from viewtail.changes.positions import Position
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import KeptChange, Key, Parked, ViewWrites, Write
from viewtail.servers.sessions import MySQLAddress, open_session

Shown = dict[Key, tuple[int, tuple[str | None, ...]]]  # what a reader sees: key to version and values, as text


Published = tuple[Key, int, str, Sequence[str | None] | None]  # key, version, op, and what the row shows after it


class Store(Protocol):
    """One store, with views of its own: `person` by id, `place` by country and code, `ledger` with a version column."""

    person: BoundView  # key (id BIGINT), values (email, note), all VARCHAR(200)
    place: BoundView  # key (country VARCHAR(40), code INT), values (name,)
    ledger: BoundView  # as person, of an entity with a version column

    def sink(self, *views: BoundView) -> Sink:
        """A new sink, not prepared, over these views or person and place; all are of the same pipeline."""

    def finish(self, sink: Sink) -> None:
        """What makes a write durable where `write` leaves that to the offset store."""

    def shown(self, view: BoundView) -> Shown:
        """Everything of a view that a reader sees, read without the sink's code."""

    def unacceptable(self, key: Key) -> Write:
        """Arrange that the returned write of `person` (version 1000) is refused for good, and only for this key."""

    def close(self) -> None: ...


class GuardedStore(Store, Protocol):
    """A store whose sink is guarded, and whose views can be read back."""

    def sink(self, *views: BoundView) -> GuardedSink: ...

    def reader(self, view: BoundView) -> ViewReader:
        """A new reader of one view."""


def of_view(view: BoundView, writes: dict[Key, Write]) -> ViewWrites:
    """What a projection hands over: the writes, and each as a change for a sink that keeps every one."""
    changes = [
        KeptChange(key, version, "delete" if values is None else "insert", None, values)
        for key, (version, values) in writes.items()
    ]
    return ViewWrites(view.id, writes, changes)


def column(name: str, kind: Kind = Kind.TEXT, declared: str = "varchar(200)", length: int = 200) -> Column:
    """A column; by default one of the value columns of the contract's tables."""
    charset = "utf8mb4" if kind is Kind.TEXT else None
    is_key = name in ("id", "country", "code")
    return Column(name=name, kind=kind, declared=declared, is_nullable=not is_key, charset=charset, length=length)


PERSON = Table(
    schema="shop",
    name="person",
    columns=(column("id", Kind.INTEGER, "bigint", 0), column("email"), column("note")),
    primary_key=("id",),
)
PLACE = Table(
    schema="shop",
    name="place",
    columns=(
        column("country", length=40, declared="varchar(40)"),
        column("code", Kind.INTEGER, "int", 0),
        column("name"),
    ),
    primary_key=("country", "code"),
)


def bound(view: View, table: Table, values: Sequence[str]) -> BoundView:
    """A view bound by hand."""
    found = {one.name: one for one in table.columns}
    return BoundView(
        view=view,
        table=table,
        key=tuple(found[name] for name in table.primary_key),
        values=tuple(found[name] for name in values),
        needed=tuple(found),
        fingerprint="0" * 64,
    )


def all_three(make: Callable[[str, Entity, list[str]], View], token: str) -> tuple[BoundView, BoundView, BoundView]:
    """The views; `make(name, entity, values)` declares one. `token` keeps one test's names from another's."""
    person = make(f"person_{token}", Entity("shop.person"), ["email", "note"])
    place = make(f"place_{token}", Entity("shop.place"), ["name"])
    ledger = make(f"ledger_{token}", Entity("shop.person", version="revision"), ["email", "note"])
    return (
        bound(person, PERSON, ["email", "note"]),
        bound(place, PLACE, ["name"]),
        bound(ledger, PERSON, ["email", "note"]),
    )


class FakeOne:
    """The fake, held to the same promise."""

    def __init__(self, server: Server | None, token: str) -> None:
        self.person, self.place, self.ledger = all_three(
            lambda name, of, values: RedisHash(name, of, fields=values), token
        )
        self._store = FakeStore()
        self._rejected: Key | None = None

    def sink(self, *views: BoundView) -> FakeSink:
        sink = FakeSink(views or [self.person, self.place], self._store)
        if self._rejected is not None:
            sink.faults.reject(self.person.id, self._rejected)
        return sink

    def reader(self, view: BoundView) -> ViewReader:
        return FakeReader(self._store, view)

    def finish(self, sink: Sink) -> None:
        pass

    def shown(self, view: BoundView) -> Shown:
        return {key: (version, tuple(values or ())) for key, (version, values) in self._store.shown(view.id).items()}

    def unacceptable(self, key: Key) -> Write:
        self._rejected = key
        return Write(1000, ("x", "y"))

    def close(self) -> None:
        pass


class LogOne:
    """A store that keeps every change."""

    def __init__(self, server: Server | None, token: str) -> None:
        self.person, self.place, self.ledger = all_three(
            lambda name, of, values: RedisHash(name, of, fields=values), token
        )
        self._log = Log()
        self._rejected: Key | None = None

    def sink(self, *views: BoundView) -> LogSink:
        sink = LogSink(views or [self.person, self.place], self._log)
        if self._rejected is not None:
            sink.faults.reject(self.person.id, self._rejected)
        return sink

    def finish(self, sink: Sink) -> None:
        pass

    def shown(self, view: BoundView) -> Shown:
        newest = self._log.newest(view.id)
        return {key: (change.version, tuple(change.after or ())) for key, change in newest.items()}

    def unacceptable(self, key: Key) -> Write:
        self._rejected = key
        return Write(1000, ("x", "y"))

    def close(self) -> None:
        pass


class PublisherStore(Store, Protocol):
    """A store whose sink appends every change exactly once."""

    def sink(self, *views: BoundView) -> Publisher: ...

    def published(self, view: BoundView) -> list[Published]:
        """What a reader sees who is shown committed changes alone, per key in the order of the stream."""

    def told(self) -> tuple[dict[str, int], int | None]:
        """What consumers were told: the watermarks, and the version that progress has come to."""

    def delete(self, view: BoundView) -> None:
        """Take a view's place away, as an operator does."""

    def break_off(self, sink: Publisher, is_kept: bool) -> None:
        """Let the next commit fail; `is_kept`: it is done all the same, and nobody hears of it."""


class FakePublisherOne:
    """The fake publisher, held to the same promise."""

    def __init__(self, server: Server | None, token: str) -> None:
        self.person, self.place, self.ledger = all_three(
            lambda name, of, values: RedisHash(name, of, fields=values), token
        )
        self._broker = Broker()
        self._rejected: Key | None = None

    def sink(self, *views: BoundView) -> FakePublisher:
        sink = FakePublisher(views or [self.person, self.place], self._broker)
        if self._rejected is not None:
            sink.faults.reject(self.person.id, self._rejected)
        return sink

    def finish(self, sink: Sink) -> None:
        finish_publishing(sink)

    def shown(self, view: BoundView) -> Shown:
        return {one[0]: (one[1], tuple(one[3])) for one in newest(self.published(view)) if one[3] is not None}

    def published(self, view: BoundView) -> list[Published]:
        return [(one.key, one.version, one.op, one.after) for one in self._broker.of(view.id)]  # type: ignore[misc]

    def told(self) -> tuple[dict[str, int], int | None]:
        return self._broker.watermarks, None if self._broker.told is None else self._broker.told.version

    def delete(self, view: BoundView) -> None:
        self._broker.delete(view.id)

    def break_off(self, sink: Publisher, is_kept: bool) -> None:
        assert isinstance(sink, FakePublisher)
        if is_kept:
            sink.faults.fail_after_write()
        else:
            sink.faults.fail_before_write()

    def unacceptable(self, key: Key) -> Write:
        self._rejected = key
        return Write(1000, ("x", "y"))

    def close(self) -> None:
        pass


class KafkaOne:
    """Topics of the test's own, and a pipeline of its own."""

    limit = 100_000  # bytes of a message of `person`
    delivery = "exactly_once"

    def __init__(self, server: Server | None, token: str) -> None:
        assert server is not None
        self._server = server
        self._database = f"contract_{token}"
        self.person, self.place, self.ledger = all_three(
            lambda name, of, values: Topic(
                name,
                of,
                fields=values,
                partitions=2,
                config={"max.message.bytes": self.limit},
                delivery=self.delivery,
            ),
            token,
        )

    def client(self) -> dict[str, Any]:
        return {"bootstrap.servers": f"{self._server.host}:{self._server.port}", "log_level": 0}

    def sink(self, *views: BoundView) -> TopicSink:
        return TopicSink(
            self.client,
            views or [self.person, self.place],
            self._database,
            "kafka",
            name="shop",
            read_position=BinlogPosition.from_text,
        )

    def finish(self, sink: Sink) -> None:
        finish_publishing(sink)

    def shown(self, view: BoundView) -> Shown:
        return {one[0]: (one[1], tuple(one[3])) for one in newest(self.published(view)) if one[3] is not None}

    def published(self, view: BoundView) -> list[Published]:
        found: list[Published] = []
        for message in topic_log.raw(self._server, view.view.name):
            key = tuple(orjson.loads(message.key()).values())
            version = int(dict(message.headers())["viewtail_version"])
            if message.value() is None:
                assert found[-1][:3] == (key, version, "delete"), "a tombstone comes right behind its delete"
                continue
            value = orjson.loads(message.value())
            after = None if value["after"] is None else tuple(value["after"].values())
            found.append((key, version, topic_log.OPS[value["op"]], after))
        return found

    def told(self) -> tuple[dict[str, int], int | None]:
        watermarks: dict[str, int] = {}
        version = None
        for message in topic_log.raw(self._server, "viewtail_positions"):
            progress = orjson.loads(message.value()).get("progress")
            if message.key() == f"{self._database}.kafka".encode() and progress is not None:
                version = int(progress["version"])
                watermarks |= {token: int(at) for token, at in progress["watermarks"].items()}
        return watermarks, version

    def delete(self, view: BoundView) -> None:
        admin = AdminClient(self.client())  # what it was asked fails when it is gone
        for future in admin.delete_topics([view.view.name]).values():
            future.result(10)

    def break_off(self, sink: Publisher, is_kept: bool) -> None:
        assert isinstance(sink, TopicSink)
        sink._producer = _BrokenOff(sink._producer, is_kept)  # type: ignore[assignment]

    def unacceptable(self, key: Key) -> Write:
        return Write(1000, ("x", "y" * self.limit))

    def close(self) -> None:
        admin = AdminClient(self.client())
        for future in admin.delete_topics([view.view.name for view in (self.person, self.place, self.ledger)]).values():
            future.exception(10)  # not all are made by each test


class KafkaAtLeastOnceOne(KafkaOne):
    """The same promises hold for those who read what is committed; others do not wait for that."""

    delivery = "at_least_once"


class _BrokenOff:
    """A producer whose next commit is not answered."""

    def __init__(self, producer: Any, is_kept: bool) -> None:
        self._producer, self._is_kept = producer, is_kept

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def __len__(self) -> int:
        return len(self._producer)

    def commit_transaction(self, timeout_s: float) -> None:
        if self._is_kept:
            self._producer.commit_transaction(timeout_s)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer", retriable=True))


def finish_publishing(sink: Sink) -> None:
    """What was written without a position is shown when one comes."""
    assert isinstance(sink, Publisher)
    begin = BinlogPosition(epoch=1, file="binlog.000001", end=4, start=4)
    sink.write([], sink.witness(begin) or begin)


def newest(published: Sequence[Published]) -> list[Published]:
    """Of each key, what somebody keeps who goes by versions."""
    return list({one[0]: one for one in sorted(published, key=lambda one: one[1])}.values())


class MySQLOne:
    """Index tables, in a database of the test's own."""

    def __init__(self, server: Server | None, token: str) -> None:
        assert server is not None
        self.address = MySQLAddress(host=server.host, port=server.port, user="root", io_timeout_s=20)
        self.database = f"contract_{token}"
        self.person, self.place, self.ledger = all_three(
            lambda name, of, values: IndexTable(name, of, value=values), token
        )

    def sink(self, *views: BoundView) -> MySQLSink:
        return MySQLSink(
            lambda: open_session(self.address, role="store"),
            self.database,
            views or [self.person, self.place],
        )

    def reader(self, view: BoundView) -> ViewReader:
        return IndexTableReader(open_session(self.address, role="store"), self.database, view)

    def finish(self, sink: Sink) -> None:
        assert isinstance(sink, MySQLSink)
        sink.connection.commit()

    def shown(self, view: BoundView) -> Shown:
        names = [one.name for one in (*view.key, *view.values)]
        query = f"SELECT version, {', '.join(names)} FROM {self.database}.{view.view.name}"
        with (
            pymysql.connect(host=self.address.host, port=self.address.port, user="root", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(query)
            rows = cursor.fetchall()
        width = len(view.key)
        found: Shown = {tuple(row[1 : width + 1]): (row[0], tuple(row[width + 1 :])) for row in rows}
        # A lookup never meets a row without values: tombstones are such rows.
        return {key: shown for key, shown in found.items() if any(value is not None for value in shown[1])}

    def unacceptable(self, key: Key) -> Write:
        return Write(1000, ("x" * 201, "longer than the column"))

    def close(self) -> None:
        with pymysql.connect(host=self.address.host, port=self.address.port, user="root") as connection:
            connection.cursor().execute(f"DROP DATABASE IF EXISTS {self.database}")


class MySQLTableOne(MySQLOne):
    """Whole tables: rows, and tombstones in a table beside them."""

    def __init__(self, server: Server | None, token: str) -> None:
        super().__init__(server, token)
        self.person, self.place, self.ledger = all_three(
            lambda name, of, values: MySQLTable(name, of, columns=values), token
        )

    def reader(self, view: BoundView) -> ViewReader:
        return WholeReader(open_session(self.address, role="store"), self.database, view)

    def shown(self, view: BoundView) -> Shown:
        names = [one.name for one in (*view.key, *view.values)]
        with (
            pymysql.connect(host=self.address.host, port=self.address.port, user="root", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SELECT viewtail_version, {', '.join(names)} FROM {self.database}.{view.view.name}")
            rows = cursor.fetchall()
        width = len(view.key)
        return {tuple(row[1 : width + 1]): (row[0], tuple(row[width + 1 :])) for row in rows}


class MySQLListOne(MySQLOne):
    """Index tables over lists: a value is an element, with its column's name before it."""

    def __init__(self, server: Server | None, token: str) -> None:
        super().__init__(server, token)
        self.person, self.place, self.ledger = over_one_column(
            lambda name, of: IndexTable(name, of, value="packed", each="VARCHAR(206)"), token
        )

    def sink(self, *views: BoundView) -> MySQLSink:
        return _ListSink(
            lambda: open_session(self.address, role="store"), self.database, views or [self.person, self.place]
        )

    def reader(self, view: BoundView) -> ViewReader:
        return _ListReader(open_session(self.address, role="store"), self.database, view)

    def shown(self, view: BoundView) -> Shown:
        name, keys = view.view.name, ", ".join(one.name for one in view.key)
        with (
            pymysql.connect(host=self.address.host, port=self.address.port, user="root", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"SELECT packed, {keys} FROM {self.database}.{name}")
            elements: dict[Key, list[str]] = {}
            for element, *key in cursor.fetchall():
                elements.setdefault(tuple(key), []).append(element)
            cursor.execute(f"SELECT version, {keys} FROM {self.database}.{name}__version")
            versions = {tuple(key): version for version, *key in cursor.fetchall()}
        return {key: (versions[key], _from_list(found, view)) for key, found in elements.items()}


def over_one_column(make: Callable[[str, Entity], View], token: str) -> tuple[BoundView, BoundView, BoundView]:
    """The views of the contract where a view shows one column, `packed`, which holds all that they show."""

    def narrow(name: str, entity: Entity, _: list[str]) -> View:
        return make(name, entity)

    packed = column("packed", length=1_000, declared="varchar(1000)")
    person, place, ledger = all_three(narrow, token)
    return replace(person, values=(packed,)), replace(place, values=(packed,)), replace(ledger, values=(packed,))


def _names(view: BoundView) -> list[str]:
    return ["name"] if view.table is PLACE else ["email", "note"]


def _from_list(elements: Sequence[str], view: BoundView) -> tuple[str | None, ...]:
    pairs = [element.partition("=") for element in elements]
    found = {name: value for name, _, value in pairs}
    assert len(found) == len(pairs)
    return tuple(found.get(name) for name in _names(view))


class _ListSink(MySQLSink):
    def write(self, writes: Sequence[ViewWrites], upto: Position | None) -> list[Parked]:
        return super().write([self._packed(one) for one in writes], upto)

    def write_again(self, writes: Sequence[ViewWrites]) -> list[Parked]:
        return super().write_again([self._packed(one) for one in writes])

    def push(self, writes: Sequence[ViewWrites]) -> None:
        super().push([self._packed(one) for one in writes])

    def _packed(self, of: ViewWrites) -> ViewWrites:
        names = _names(self._views[of.view])
        found: dict[Key, Write] = {}
        for key, (version, values) in of.writes.items():
            if values is None:
                found[key] = Write(version, None)
                continue
            listed = [f"{name}={one}" for name, one in zip(names, values, strict=True) if one is not None]
            found[key] = Write(version, (orjson.dumps([*listed, *listed]).decode(),))
        return ViewWrites(of.view, found)


class _ListReader(ListReader):
    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        names = _names(self.view)
        return [
            replace(row, content=dict(zip(names, _from_list(row.content["packed"], self.view), strict=True)))
            for row in super().rows(keys)
        ]


class RedisOne:
    kind: Callable[..., View]

    def __init__(self, server: Server | None, token: str) -> None:
        assert server is not None
        self._token = token
        self._port = server.port
        kind = type(self).kind
        self.person, self.place, self.ledger = all_three(lambda name, of, values: kind(name, of, fields=values), token)

    def client(self) -> redis.Redis:
        return redis.Redis(port=self._port, socket_timeout=20)

    def sink(self, *views: BoundView) -> RedisSink:
        return RedisSink(
            self.client,
            views or [self.person, self.place],
            database=f"contract_{self._token}",
            name=f"pipeline_{self._token}",
            read_position=BinlogPosition.from_text,
        )

    def reader(self, view: BoundView) -> ViewReader:
        return RedisReader(self.client(), view)

    def finish(self, sink: Sink) -> None:
        pass

    def shown(self, view: BoundView) -> Shown:
        client = self.client()
        prefix = f"{view.view.name}:"
        names: list[bytes] = list(client.scan_iter(match=f"{prefix}*"))
        return {_key(name.decode().removeprefix(prefix), view): self._one(client, name, view) for name in names}

    def _one(self, client: redis.Redis, name: bytes, view: BoundView) -> tuple[int, tuple[str | None, ...]]:
        raise NotImplementedError

    def close(self) -> None:
        client = self.client()
        for name in client.scan_iter(match=f"*{self._token}*"):
            client.delete(name)


class RedisHashOne(RedisOne):
    kind = RedisHash

    def unacceptable(self, key: Key) -> Write:
        self.client().lpush(f"{self.person.view.name}:{key[0]}", "a list of somebody else's")
        return Write(1000, ("x", "y"))

    def shown(self, view: BoundView) -> Shown:
        return {key: shown for key, shown in super().shown(view).items() if shown[0] >= 0}

    def _one(self, client: redis.Redis, name: bytes, view: BoundView) -> tuple[int, tuple[str | None, ...]]:
        if client.type(name) != b"hash":
            return -1, ()
        fields: dict[bytes, bytes] = client.hgetall(name)
        version = fields.pop(b"_version")
        assert len(version) == 19
        values = tuple(_text(fields.pop(one.name.encode(), None)) for one in view.values)
        assert not fields, f"{name!r} holds stale fields"
        return int(version), values


class RedisJsonOne(RedisOne):
    kind = RedisJson

    def unacceptable(self, key: Key) -> Write:
        self.client().set(f"{self.person.view.name}:{key[0]}", '{"not": "viewtail\'s"}')
        return Write(1000, ("x", "y"))

    def shown(self, view: BoundView) -> Shown:
        return {key: shown for key, shown in super().shown(view).items() if shown[0] >= 0}

    def _one(self, client: redis.Redis, name: bytes, view: BoundView) -> tuple[int, tuple[str | None, ...]]:
        text: Any = client.get(name)
        document = orjson.loads(text)
        if "_version" not in document:
            return -1, ()
        assert next(iter(document)) == "_version"
        version = document.pop("_version")
        assert len(version) == 19
        assert list(document) == [one.name for one in view.values]
        return int(version), tuple(document.values())


class RedisGenerationOne(RedisHashOne):
    """Hashes whose keys have the number of their copy."""

    def __init__(self, server: Server | None, token: str) -> None:
        super().__init__(server, token)

        def declared(name: str, entity: Entity, values: list[str]) -> View:
            key = "{code}:{country}" if entity.table == PLACE.full_name else "{id}"
            return RedisHash(name, entity, fields=values, key=f"{name}:{{generation}}:{key}")

        self.person, self.place, self.ledger = (replace(view, copy=31) for view in all_three(declared, token))

    def unacceptable(self, key: Key) -> Write:
        self.client().lpush(f"{self.person.view.name}:31:{key[0]}", "a list of somebody else's")
        return Write(1000, ("x", "y"))

    def shown(self, view: BoundView) -> Shown:
        shown = {}
        for key, found in super().shown(replace(view, key=(column("copy", Kind.INTEGER), *view.key[::-1]))).items():
            assert key[0] == 31
            shown[key[:0:-1]] = found
        return shown


class _RedisSetOne(RedisOne):
    """Sets that are named by all that a view of the contract shows."""

    type: str
    generation = ""  # in the keys, where the template has it

    def __init__(self, server: Server | None, token: str) -> None:
        assert server is not None
        self._token, self._port = token, server.port
        self.person, self.place, self.ledger = over_one_column(self.declared, token)

    @staticmethod
    def declared(name: str, entity: Entity) -> View:
        return RedisSet(name, entity, key=f"{name}_of:{{packed}}")

    def sink(self, *views: BoundView) -> RedisSink:
        return _SetSink(
            self.client,
            views or [self.person, self.place],
            database=f"contract_{self._token}",
            name=f"pipeline_{self._token}",
            read_position=BinlogPosition.from_text,
        )

    def reader(self, view: BoundView) -> ViewReader:
        return _SetReader(self.client(), view)

    def shown(self, view: BoundView) -> Shown:
        client, name = self.client(), view.view.name
        found: Shown = {}
        for set_name in map(bytes.decode, client.scan_iter(match=f"{name}_of:{self.generation}*")):
            if client.type(set_name).decode() != self.type:
                continue
            members = client.zrange(set_name, 0, -1) if self.type == "zset" else client.smembers(set_name)
            for member in map(bytes.decode, members):
                key = _key(member, view)
                assert key not in found, "an entity is in two sets"
                place: dict[bytes, bytes] = client.hgetall(f"{name}:{self.generation}{member}")
                version = place.pop(b"_version")
                assert len(version) == 19
                assert place == {b"set": set_name.encode(), b"member": member.encode()}
                found[key] = (int(version), _from_set(set_name.rpartition(":")[2]))
        return found

    def unacceptable(self, key: Key) -> Write:
        write = Write(1000, ("x", "y"))
        rendered = _to_set(("x", "y")).replace("%", "%25")
        self.client().set(f"{self.person.view.name}_of:{self.generation}{rendered}", "a text of somebody else's")
        return write


class RedisSetOne(_RedisSetOne):
    type = "set"


class RedisSortedSetOne(_RedisSetOne):
    """All of whose keys have the number of their copy."""

    type = "zset"
    generation = "31:"

    @staticmethod
    def declared(name: str, entity: Entity) -> View:
        return RedisSortedSet(name, entity, key=f"{name}_of:{{generation}}:{{packed}}", score="rank")

    def __init__(self, server: Server | None, token: str) -> None:
        super().__init__(server, token)
        rank = column("rank", Kind.INTEGER, "bigint", 0)
        self.person, self.place, self.ledger = (
            replace(view, values=(*view.values, rank), copy=31) for view in (self.person, self.place, self.ledger)
        )


def _to_set(values: Sequence[str | None]) -> str:
    return quote(orjson.dumps(values), safe="")


def _from_set(name: str) -> tuple[str | None, ...]:
    return tuple(orjson.loads(unquote(unquote(name))))


class _SetSink(RedisSink):
    def write(self, writes: Sequence[ViewWrites], upto: Position | None) -> list[Parked]:
        return super().write([self._packed(one) for one in writes], upto)

    def _packed(self, of: ViewWrites) -> ViewWrites:
        rest = (5,) * (len(self._views[of.view].values) - 1)
        found: dict[Key, Write] = {}
        for key, (version, values) in of.writes.items():
            is_shown = values is not None and any(value is not None for value in values)
            found[key] = Write(version, (_to_set(values), *rest) if is_shown else None)  # type: ignore[arg-type]
        return ViewWrites(of.view, found)


class _SetReader(SetReader):
    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        names = _names(self.view)
        return [
            replace(row, content=dict(zip(names, _from_set(row.content["set"].rpartition(":")[2]), strict=True)))
            for row in super().rows(keys)
        ]


class ElasticsearchOne:
    """Documents, in indices of the test's own."""

    def __init__(self, server: Server | None, token: str) -> None:
        assert server is not None
        self._url = server.url
        self.person, self.place, self.ledger = all_three(_search_index, token)
        self.close()  # a server that was killed and came back has them still

    def client(self) -> Elasticsearch:
        return Elasticsearch(self._url, request_timeout=20, max_retries=0)

    def sink(self, *views: BoundView) -> ElasticsearchSink:
        return ElasticsearchSink(
            self.client,
            views or [self.person, self.place],
            "contract",
            read_position=BinlogPosition.from_text,
        )

    def reader(self, view: BoundView) -> ViewReader:
        return DocumentReader(self.client(), view)

    def finish(self, sink: Sink) -> None:
        pass

    def shown(self, view: BoundView) -> Shown:
        client = self.client()
        client.indices.refresh(index=view.view.name)
        found: Shown = {}
        for hit in scan(client, index=view.view.name, query={"version": True}):
            document = hit["_source"]
            values = tuple(document.pop(one.name, None) for one in view.values)
            assert not document, f"{hit['_id']} holds more than was declared"
            found[_key(hit["_id"], view)] = (hit["_version"], values)
        return found

    def unacceptable(self, key: Key) -> Write:
        # Lucene takes no term of more than 32,766 bytes, and `note` is a keyword.
        return Write(1000, ("x", "y" * 40_000))

    def close(self) -> None:
        client = self.client()
        for view in (self.person, self.place, self.ledger):
            client.indices.delete(index=f"viewtail-{view.view.name}", ignore_unavailable=True)


def _search_index(name: str, entity: Entity, values: list[str]) -> SearchIndex:
    return SearchIndex(name, entity, fields=dict.fromkeys(values, "keyword"))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _key(rendered: str, view: BoundView) -> Key:
    parts = [unquote(part) for part in rendered.split(":")]
    return tuple(int(part) if one.kind is Kind.INTEGER else part for part, one in zip(parts, view.key, strict=True))


# By name: the store, and how a server of its own is started for the test that kills it (None: it has none).
GUARDED: dict[str, Callable[[Server | None, str], GuardedStore]] = {
    "elasticsearch": ElasticsearchOne,
    "fake": FakeOne,
    "mysql": MySQLOne,
    "mysql_list": MySQLListOne,
    "mysql_table": MySQLTableOne,
    "redis_generation": RedisGenerationOne,
    "redis_hash": RedisHashOne,
    "redis_json": RedisJsonOne,
    "redis_set": RedisSetOne,
    "redis_sorted_set": RedisSortedSetOne,
}
PUBLISHERS: dict[str, Callable[[Server | None, str], PublisherStore]] = {
    "fake_publisher": FakePublisherOne,
    "kafka": KafkaOne,
    "kafka_at_least_once": KafkaAtLeastOnceOne,
}
STORES: dict[str, Callable[[Server | None, str], Store]] = {**GUARDED, **PUBLISHERS, "log": LogOne}
SHARED_SERVERS = {  # the session fixture of each
    "elasticsearch": "elasticsearch_server",
    "kafka": "kafka_server",
    "kafka_at_least_once": "kafka_server",
    "mysql": "mysql_server",
    "mysql_list": "mysql_server",
    "mysql_table": "mysql_server",
    "redis_generation": "redis_server",
    "redis_hash": "redis_server",
    "redis_json": "redis_server",
    "redis_set": "redis_server",
    "redis_sorted_set": "redis_server",
}
SERVERS: dict[str, Callable[[Path], Server]] = {
    "elasticsearch": stack.elasticsearch.start,
    "mysql": stack.mysql.start,
    "mysql_list": stack.mysql.start,
    "mysql_table": stack.mysql.start,
    "redis_hash": stack.redis.start,
    "redis_json": stack.redis.start,
    "redis_set": stack.redis.start,
}
