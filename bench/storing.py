"""A DataStore: what put and get_all take beside bare statements, and how soon its indexes have an entity."""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import orjson

from bench import live
from bench.lines import Limit, Line, Told
from bench.setting import Setting, Sizes, say, until
from viewtail import settings
from viewtail.datastore import DataStore, Index
from viewtail.entities.datastore.properties import new_id

PER_USER = (10, 100)  # entities that get_all finds
_MOST_MS = 20.0  # from put to indexes
_WITHIN_S = 60.0
_INDEX_DATABASE = "viewtail_from_0_to_0_bench"
_ROWS_A_STATEMENT = 500
_INSERT = "INSERT INTO bench.entities (id, body) VALUES (%s, %s)"
_VIEWS = """from viewtail.datastore import DataStore, Index

datastore = DataStore(["{url}"], [{indexes}])
"""
_INDEXES = 'Index("index_user_id", ["user_id"], shard_on="user_id"), Index("index_link", ["link", "kind"])'


@dataclass(eq=False)
class Storing:
    """The measurements, and what they gave."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    _next: int = 0  # of an entity

    def measure(self) -> None:
        url = f"{self.setting.mysql.url}/bench"
        # The servers are those of the declaration.
        kept = {"VIEWTAIL_VIEWS": "views:datastore", "VIEWTAIL_SHARD": "0.0", "VIEWTAIL_CLEANER__SHARE": "0"}
        self.kept = self.setting.having(**kept, VIEWTAIL_SOURCE__URL="", VIEWTAIL_MYSQL__URL="")
        (self.setting.folder / "views.py").write_text(_VIEWS.format(url=url, indexes=_INDEXES))
        self.setting.run("DROP DATABASE IF EXISTS bench", f"DROP DATABASE IF EXISTS {_INDEX_DATABASE}", "DO 1")
        indexes = eval(f"[{_INDEXES}]", {"Index": Index})
        self.datastore = DataStore([url], indexes, settings=settings.load(None, self.kept.environment))
        self.datastore.create()
        try:
            with live.worker(self.kept, "mysql"):
                self._wait_filled()
                self._visible()
                gets = [self._users(count) for count in PER_USER]
            self._puts()
            for get in gets:
                get()
        finally:
            self.datastore.close()

    def _wait_filled(self) -> None:
        filled = f"SELECT COUNT(*) FROM {_INDEX_DATABASE}.view WHERE state = 'filled'"
        until("the indexes are filled", lambda: self.setting.run(filled) == (2,), _WITHIN_S)

    def _entity(self, user: int) -> dict[str, Any]:
        """Of a link that somebody posted: some 400 bytes of JSON."""
        self._next += 1
        return {
            "user_id": user,
            "feed_id": UUID(int=user).hex,
            "kind": "link",
            "title": f"What {self._next} people said about something that happened",
            "link": f"https://example.org/{self._next}/what-people-said-about-something-that-happened",
            "published": 1_230_000_000 + self._next,
            "body": "They said a lot, and most of it is not worth to be repeated here. " * 2,
            "likes": [self._next % 7, self._next % 11],
        }

    # -- put -----------------------------------------------------------------------------------------------------

    def _puts(self) -> None:
        """One by one in alternation, so that both meet the same disk."""
        line = Line("put, p50", "ms", "bare INSERT", 1.2)
        self.lines.append(line)
        with closing(self.setting.connect()) as connection, connection.cursor() as cursor:
            for number in range(self.rounds):
                say(f"put, round {number + 1} of {self.rounds}")
                ours, theirs = list[float](), list[float]()
                for at in range(self.sizes.puts // self.rounds):
                    entity, entity_id = self._entity(at), new_id().bytes
                    row = entity_id, zlib.compress(orjson.dumps(entity))
                    theirs.append(_took_ms(lambda row=row: cursor.execute(_INSERT, row)))
                    ours.append(_took_ms(lambda entity=entity: self.datastore.put(entity)))
                line.add(statistics.median(ours), statistics.median(theirs))

    def _visible(self) -> None:
        """Puts on a clock; a second thread looks into both indexes."""
        line = Limit("indexes have an entity after its put, p99", "ms", "the put", _MOST_MS)
        self.lines.append(line)
        with closing(self.setting.connect()) as connection, connection.cursor() as cursor:
            ids: dict[int, bytes] = {}

            def is_seen(number: int) -> bool:
                one = ids[number].hex()
                where = [
                    f"EXISTS (SELECT 1 FROM {_INDEX_DATABASE}.{index.table} WHERE id = x'{one}')" for index in all_
                ]
                cursor.execute(f"SELECT {' AND '.join(where)}")
                return bool(cursor.fetchone() == (1,))

            all_, took = self.datastore.indexes, list[float]()

            def put(number: int) -> None:
                ids[number] = new_id().bytes
                entity = {**self._entity(number), "id": ids[number]}
                took.append(_took_ms(lambda: self.datastore.put(entity)))

            for number in range(self.rounds):
                say(f"from put to indexes, round {number + 1} of {self.rounds}")
                took.clear()
                seconds = self.sizes.put_s / self.rounds
                found = live.delays_of("DataStore", seconds, number * 1_000_000, is_seen, put)
                line.add(live.latency(found).p99_ms, live.latency(took).p99_ms)

    # -- get_all -------------------------------------------------------------------------------------------------

    def _users(self, count: int) -> Callable[[], None]:
        """Users with so many entities, in the indexes; what measures get_all of them."""
        first = 1_000_000 * count
        users = range(first, first + max(1, self.sizes.stored // count))
        entities = [self._entity(user) for user in users for _ in range(count)]
        with closing(self.setting.connect()) as connection, connection.cursor() as cursor:
            for at in range(0, len(entities), _ROWS_A_STATEMENT):
                rows = [
                    (new_id().bytes, zlib.compress(orjson.dumps(one))) for one in entities[at : at + _ROWS_A_STATEMENT]
                ]
                cursor.executemany(_INSERT, rows)
        there = f"SELECT COUNT(*) FROM {_INDEX_DATABASE}.index_user_id WHERE user_id = '{users[-1]}'"
        until("the indexes have all entities", lambda: self.setting.run(there) == (count,), _WITHIN_S)
        return lambda: self._gets(users, count)

    def _gets(self, users: range, count: int) -> None:
        line = Line(f"get_all of {count} entities, p50", "ms", "the two bare SELECTs", 1.5)
        self.lines.append(line)
        by_user = self.datastore.indexes[0]
        with closing(self.setting.connect()) as connection, connection.cursor() as cursor:

            def bare(user: int) -> int:
                cursor.execute(
                    f"SELECT id FROM {_INDEX_DATABASE}.index_user_id WHERE user_id = %s ORDER BY id LIMIT 101",
                    (str(user),),
                )
                ids = [row[0] for row in cursor.fetchall()]
                marks = ", ".join(["%s"] * len(ids))
                cursor.execute(f"SELECT id, updated, body FROM bench.entities WHERE id IN ({marks})", ids)
                return len(cursor.fetchall())

            for number in range(self.rounds):
                say(f"get_all of {count}, round {number + 1} of {self.rounds}")
                ours, theirs = list[float](), list[float]()
                for at in range(self.sizes.gets // self.rounds):
                    user = users[at % len(users)]
                    theirs.append(_took_ms(lambda user=user: _require(bare(user), count)))
                    ours.append(
                        _took_ms(lambda user=user: _require(len(by_user.get_all(self.datastore, user_id=user)), count))
                    )
                line.add(statistics.median(ours), statistics.median(theirs))


def _require(found: int, count: int) -> None:
    if found != count:
        raise RuntimeError(f"{found} entities were found, not {count}")


def _took_ms(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000
