"""A small world for topics: canonical tables, topic views over them, random writers, and the truth about both."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pymysql
from confluent_kafka.admin import AdminClient

from stack import Server
from tests.support import binlog_truth, topic_log
from tests.support.asking import ask
from tests.support.binlog_truth import Change, Place, Row, Truth
from tests.support.running import addresses
from tests.support.small_disk import SmallDisk
from tests.support.topic_log import Told
from tests.support.writing import RandomWriters

TABLES = (
    "CREATE TABLE {0}.user (id INT PRIMARY KEY, email VARCHAR(60), n INT NOT NULL)",
    "CREATE TABLE {0}.pair (a VARCHAR(20), b INT, v VARCHAR(30), PRIMARY KEY (a, b))",
    "CREATE TABLE {0}.unfollowed (id INT PRIMARY KEY, v VARCHAR(30))",
)
VIEWS = """
from viewtail import Entity, Topic

user = Entity("{0}.user")
pair = Entity("{0}.pair")

views = [
    Topic("{0}.user", user, partitions=3, delivery={1!r}),
    Topic("{0}.even", user, partitions=1, where=lambda row: row["n"] % 2 == 0, delivery={1!r}),
    Topic("{0}.pair", pair, partitions=2, compact=False, schemas=True, delivery={1!r}),
]
"""
KEYS = 4000
FULL_S = 3.0


@dataclass(slots=True)
class TopicWorld:
    """One test's database and topics, called `name`; viewtail's own tables are in NAME_own.

    Where delivery is "at_least_once", consumers do not wait for commits, and leave out what comes twice.
    """

    mysql: Server
    kafka: Server
    name: str
    disk: SmallDisk | None = None  # the broker's
    begin: Place = ("", 0)
    delivery: str = "exactly_once"
    messages: int = field(default=0, init=False)  # that were checked
    repeats: int = field(default=0, init=False)  # of them
    _logs: dict[str, list[Told]] = field(default_factory=dict, init=False)  # read so far, by topic

    @property
    def own(self) -> str:
        return f"{self.name}_own"

    @property
    def views(self) -> str:
        return VIEWS.format(self.name, self.delivery)

    @property
    def environment(self) -> dict[str, str]:
        urls = {"VIEWTAIL_MYSQL__URL": f"{self.mysql.url}/{self.own}", "VIEWTAIL_KAFKA__URL": self.kafka.url}
        return {**addresses(self.mysql), **urls}

    def make(self, users: int = 0) -> None:
        ask(self.mysql, f"CREATE DATABASE {self.name}")
        for table in TABLES:
            ask(self.mysql, table.format(self.name))
        self.insert(0, users)

    def insert(self, begin: int, end: int) -> None:
        """Rows of `user` with these ids."""
        for at in range(begin, end, 1000):
            rows = ",".join(f"({i},'e{i}',{i})" for i in range(at, min(end, at + 1000)))
            ask(self.mysql, f"INSERT INTO {self.name}.user VALUES {rows}")

    def drop(self) -> None:
        for database in (self.name, self.own):
            ask(self.mysql, f"DROP DATABASE IF EXISTS {database}")
        admin = AdminClient({"bootstrap.servers": f"{self.kafka.host}:{self.kafka.port}", "log_level": 0})
        there = [topic for topic in admin.list_topics(timeout=30).topics if topic.startswith(f"{self.name}.")]
        for future in admin.delete_topics(there).values() if there else ():
            future.result(30)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return ask(self.mysql, statement)

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.mysql.port, user="root", autocommit=False)

    # -- what the pipeline says --------------------------------------------------------------------------------

    def is_taken(self) -> bool:
        """Whether the pipeline knows where it begins: what is committed from now on is published."""
        return bool(self.ask(f"SELECT 1 FROM {self.own}.pipeline WHERE name = 'kafka' AND position IS NOT NULL"))

    def states(self) -> dict[str, str]:
        return {str(name): str(state) for name, state in self.ask(f"SELECT name, state FROM {self.own}.view")}

    def is_filled(self) -> bool:
        found = self.states()
        assert len(found) == 3 and set(found.values()) == {"filled"}, found
        return True

    def mend(self) -> None:
        """Every server runs, and the broker's disk has room, wherever a fault broke off."""
        if self.disk is not None:
            self.disk.free()
        for server in self.servers():
            server.resume()
            if not server.is_running():
                server.start()

    def servers(self) -> list[Server]:
        return [self.mysql, self.kafka]

    def mark_begin(self) -> None:
        """From here on the binlog is compared with the topics."""
        self.begin = binlog_truth.end_of(self.mysql)

    def fill_the_disk(self, within_s: float = FULL_S) -> bool:
        """The broker has no room and ends, until there is some and it is started again; False: it wrote nothing."""
        assert self.disk is not None
        self.disk.fill()
        deadline = time.monotonic() + within_s
        while self.kafka.is_running() and time.monotonic() < deadline:
            time.sleep(0.02)
        has_ended = not self.kafka.is_running()
        if not has_ended:
            self.kafka.kill()  # it may be about to end, and would not be started then
        self.disk.free()
        self.kafka.start()
        return has_ended

    # -- what must be, and what is -----------------------------------------------------------------------------

    def rows(self) -> tuple[list[Row], list[Row]]:
        """Of `user`, and of `pair`."""
        users = self.ask(f"SELECT id, email, n FROM {self.name}.user")
        pairs = self.ask(f"SELECT a, b, v FROM {self.name}.pair")
        return users, pairs

    def tables(self) -> dict[str, dict[Row, Row]]:
        users, pairs = self.rows()
        return {
            "user": {row[:1]: row for row in users},
            "even": {row[:1]: row for row in users if row[2] % 2 == 0},
            "pair": {row[:2]: row for row in pairs},
        }

    def log(self, topic: str) -> list[Told]:
        """Every message, as a consumer has them that began before the first one: it reads on each time."""
        known = self._logs.setdefault(topic, [])
        after = {one.partition: one.offset for one in known}
        isolation = topic_log.COMMITTED if self.delivery == "exactly_once" else topic_log.UNCOMMITTED
        known += topic_log.told(self.kafka, f"{self.name}.{topic}", after, isolation)
        return known

    def is_folded(self) -> bool:
        """Whether each topic, read to its end, gives its table; says where it does not."""
        for topic, table in self.tables().items():
            found = topic_log.folded(topic_log.without_repeats(self.log(topic)))
            differing = [key for key in {**found, **table} if found.get(key) != table.get(key)]
            assert not differing, f"{topic}: {[(key, found.get(key), table.get(key)) for key in differing[:3]]}"
        return True

    def faults(self) -> list[str]:
        """Everything that is not as promised, over all topics; nobody writes meanwhile."""
        truth, tables = Truth(self.mysql, self.name, self.begin), self.tables()
        wanted = {
            "user": truth.changes("user", lambda row: row[:1]),
            "even": truth.changes("user", lambda row: row[:1], lambda row: row[2] % 2 == 0),
            "pair": truth.changes("pair", lambda row: row[:2]),
        }
        found = []
        for topic, changes in wanted.items():
            messages = self.log(topic)
            self.messages += len(messages)
            found += [f"{topic}: {fault}" for fault in self._faults(topic, messages, changes, tables[topic])]
        return found

    def _faults(self, topic: str, messages: list[Told], changes: list[Change], table: dict[Row, Row]) -> list[str]:
        if self.delivery == "exactly_once":
            return topic_log.faults(messages, changes, table)
        kept = topic_log.without_repeats(messages)
        committed = topic_log.told(self.kafka, f"{self.name}.{topic}")
        self.repeats += len(messages) - len(kept)
        return [
            *topic_log.faults(kept, changes, table),
            *topic_log.faults_of_repeats(messages, kept),
            *(f"of committed messages: {fault}" for fault in topic_log.faults(committed, changes, table)),
        ]


class TopicWriters(RandomWriters):
    """Each rests `rest_s` behind a transaction."""

    def __init__(self, world: TopicWorld, seed: int, threads: int = 2, keys: int = KEYS, rest_s: float = 0.0) -> None:
        super().__init__(world.connect, seed, threads)
        self._world, self._keys, self._rest_s = world, keys, rest_s

    def _transact(self, connection: Any, chance: random.Random, at: int) -> None:
        super()._transact(connection, chance, at)
        self._stop.wait(self._rest_s)

    def _change(self, chance: random.Random, execute: Callable[..., Any], at: int) -> None:
        i, kind, name = chance.randrange(self._keys), chance.random(), self._world.name
        if kind < 0.3:
            execute(
                f"INSERT INTO {name}.user VALUES (%s, %s, %s) AS new "
                "ON DUPLICATE KEY UPDATE email = new.email, n = user.n + 1",
                (i, f"e{chance.randrange(999)}", chance.randrange(99)),
            )
        elif kind < 0.5:
            email = chance.choice((None, f"y{i}", f"x{i}"))
            execute(f"UPDATE {name}.user SET email = %s, n = n + 1 WHERE id = %s", (email, i))
        elif kind < 0.6:
            execute(f"DELETE FROM {name}.user WHERE id = %s", (i,))
        elif kind < 0.65:
            execute(f"UPDATE IGNORE {name}.user SET id = %s WHERE id = %s", (chance.randrange(self._keys), i))
        elif kind < 0.7:
            execute(f"REPLACE INTO {name}.user VALUES (%s, 'replaced', %s)", (i, chance.randrange(9)))
        elif kind < 0.73:
            execute(f"UPDATE {name}.user SET n = n + 1 WHERE id BETWEEN %s AND %s", (i, i + 50))
        elif kind < 0.75:
            # One row event holds it all, and each key twice; where the next row is there, it is rolled back.
            last = (self._keys - 30, self._keys + 70)
            execute(f"UPDATE {name}.user SET id = id + 1 WHERE id > %s AND id < %s ORDER BY id DESC", last)
        elif kind < 0.9:
            a = chance.choice(("abc", "ABC", "x:{}", "x"))
            execute(
                f"REPLACE INTO {name}.pair VALUES (%s, %s, %s)", (a, chance.randrange(40), f"v{chance.randrange(9)}")
            )
        elif kind < 0.97:
            execute(f"DELETE FROM {name}.pair WHERE b = %s", (chance.randrange(40),))
        else:
            execute(f"REPLACE INTO {name}.unfollowed VALUES (%s, 'x')", (i,))
