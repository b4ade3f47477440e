"""A small world for views that are fed through Kafka, and the processes that keep them: tailers and projectors."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import redis
from pymysql.constants import ER

from offsets.lease import lock_name
from stack import Server
from tests.support import open_transactions, topic_world
from tests.support.binlog_truth import Truth
from tests.support.indices import Indices
from tests.support.running import Run, addresses
from tests.support.topic_world import TopicWorld
from tests.support.watcher import Watched
from tests.support.world import Content, columns, differences, document, escaped, fields

VIEWS = (
    topic_world.VIEWS
    + """
from viewtail import IndexTable, RedisHash

views += [
    IndexTable("email", user, value="email"),
    IndexTable("even", user, value="n", where=lambda row: row["n"] % 2 == 0),
    IndexTable("pair", pair, value="v"),
    RedisHash("{0}_user", user, fields=["email", "n"]),
    RedisHash("{0}_pair", pair, fields=["v"]),
]
"""
)
SEARCH_VIEWS = """
from viewtail import SearchIndex


def document(row):
    return {{"email": row["email"], "n": row["n"], "tag": (row["email"] or "")[:3]}}


views += [
    SearchIndex("{0}_user", user, fields={{"email": "keyword", "n": "integer"}}),
    SearchIndex("{0}_even", user, fields={{"email": "keyword", "n": "integer", "tag": "keyword"}},
                document=document, where=lambda row: row["n"] % 2 == 0),
    SearchIndex("{0}_pair", pair, fields={{"v": "keyword"}}),
]
"""
# Rows of viewtail's table of views: views of user are in three partitions, those of pair in two.
TOPIC_RECORDS = 3
RECORDS = {"mysql": 2 * 3 + 2, "redis": 3 + 2, "elasticsearch": 2 * 3 + 2}
PARTITIONS = 3 + 2
SESSION_MS = 1_500  # of a projector, at Kafka's coordinator


@dataclass(slots=True, kw_only=True)
class FleetWorld(TopicWorld):
    """As TopicWorld, with views of what the topics hold."""

    redis: Server

    @property
    def stores(self) -> tuple[str, ...]:
        return ("mysql", "redis")

    @property
    def views(self) -> str:
        return VIEWS.format(self.name, self.delivery)

    @property
    def watched(self) -> Watched:
        return Watched(f"{self.own}.email", f"{self.name}_user")

    @property
    def projecting(self) -> dict[str, str]:
        """The settings of a projector."""
        pace = {
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 300,
            "topic.metadata.refresh.interval.ms": 500,
        }
        return {
            **addresses(self.mysql, self.redis),
            "VIEWTAIL_SOURCE__URL": self.kafka.url,
            "VIEWTAIL_SOURCE__OPTIONS": json.dumps(pace),
            "VIEWTAIL_MYSQL__URL": f"{self.mysql.url}/{self.own}",
        }

    def servers(self) -> list[Server]:
        return [self.mysql, self.kafka, self.redis]

    def is_filled(self) -> bool:
        found = self.ask(
            f"SELECT p.name, v.name, v.state FROM {self.own}.view v JOIN {self.own}.pipeline p ON p.id = v.pipeline_id"
        )
        missing = [row for row in found if row[2] != "filled"]
        records = TOPIC_RECORDS + sum(RECORDS[store] for store in self.stores)
        assert len(found) == records and not missing, missing or found
        return True

    def is_shared_out(self) -> bool:
        """Whether projectors have taken the partitions for each store."""
        ((found,),) = self.ask(f"SELECT COUNT(*) FROM {self.own}.pipeline WHERE position IS NOT NULL")
        return bool(found == 1 + PARTITIONS * len(self.stores))

    def stand(self) -> str:
        """How far each pipeline is, and what open transactions hide."""
        rows = self.ask(
            "SELECT p.name, p.fence, p.saved_at, s.state, s.error, s.owner, s.updated_at, p.position "
            f"FROM {self.own}.pipeline p LEFT JOIN {self.own}.pipeline_status s ON s.pipeline_id = p.id ORDER BY p.name"
        )
        hidden = open_transactions.hidden(self.kafka, f"{self.name}.")
        return "\n".join(["-- pipelines", *map(str, rows), "-- hidden by open transactions", str(hidden)])

    def fences(self) -> int:
        """Rises whenever somebody takes a pipeline."""
        ((found,),) = self.ask(f"SELECT COALESCE(SUM(fence), 0) FROM {self.own}.pipeline")
        return int(found)

    def owner_of(self, pipeline: str) -> int | None:
        """The process that has its lease."""
        return next(iter(self._owners([pipeline]).values()), None)

    def end_leases_of(self, pids: Sequence[int]) -> None:
        """End these processes' sessions that hold a lease, as MySQL does after 6 s without a word of them."""
        names = [name for (name,) in self.ask(f"SELECT name FROM {self.own}.pipeline")]
        for session, pid in self._owners(names).items() if names else ():
            if pid in pids:
                self._end(session)

    def _end(self, session: int) -> None:
        try:
            self.ask(f"KILL {session}")
        except pymysql.err.OperationalError as error:
            if error.args[0] != ER.NO_SUCH_THREAD:  # MySQL has ended it by now
                raise

    def _owners(self, pipelines: Sequence[str]) -> dict[int, int]:
        """By session that has a lease of these: its process."""
        holders = ", ".join(f"IS_USED_LOCK('{lock_name(self.own, name)}')" for name in pipelines)
        return {
            session: int(pid)
            for session, pid in self.ask(
                "SELECT processlist_id, attr_value FROM performance_schema.session_connect_attrs "
                f"WHERE attr_name = '_pid' AND processlist_id IN ({holders})"
            )
        }

    def faults(self) -> list[str]:
        """As of a TopicWorld; and every time that the offset of a partition fell, as MySQL's binlog has it."""
        return [*TopicWorld.faults(self), *self._fallen_offsets()]

    def _fallen_offsets(self) -> list[str]:
        found, last = [], dict[str, int]()
        for image in Truth(self.mysql, self.own, self.begin, "pipeline").images("pipeline"):
            name, position = str(image[1]), image[6]
            if position is None or name == "kafka":
                continue
            offset = json.loads(position)["offset"]
            if offset < last.get(name, 0):
                found.append(f"{name}: its offset fell from {last[name]} to {offset}")
            last[name] = offset
        return found

    # -- what the views must hold, and what they hold --------------------------------------------------------------

    def are_equal(self) -> bool:
        """Whether every view equals its table; says where it does not."""
        told = differences(self._expected(), self._actual())
        assert not told, told
        return True

    def _expected(self) -> Content:
        users, pairs = self.rows()
        user, pair = f"{self.name}_user", f"{self.name}_pair"
        return {
            "email": {(i,): (email,) for i, email, _ in users if email is not None},
            "even": {(i,): (n,) for i, _, n in users if n % 2 == 0},
            "pair": {(a, b): (v,) for a, b, v in pairs if v is not None},
            user: {f"{user}:{i}": fields(email=email, n=n) for i, email, n in users},
            pair: {f"{pair}:{escaped(a)}:{b}": fields(v=v) for a, b, v in pairs},
        }

    def _actual(self) -> Content:
        found: dict[str, dict[object, object]] = {}
        for name, chosen in (("email", "id, email"), ("even", "id, n"), ("pair", "a, b, v")):
            rows = self.ask(f"SELECT {chosen} FROM {self.own}.{name}")
            found[name] = {_texts(row[:-1]): row[-1:] for row in rows if row[-1] is not None}
        for name in (f"{self.name}_user", f"{self.name}_pair"):
            found[name] = self._hashes(name)
        return found

    def _hashes(self, name: str) -> dict[object, object]:
        with redis.Redis(port=self.redis.port, decode_responses=True) as client:
            keys = list(client.scan_iter(f"{name}:*", 5000))
            look = client.pipeline(transaction=False)
            for key in keys:
                look.hgetall(key)
            return {
                key: {field: value for field, value in row.items() if field != "_version"}
                for key, row in zip(keys, look.execute(), strict=True)
            }

    def drop(self) -> None:
        TopicWorld.drop(self)
        with redis.Redis(port=self.redis.port) as client:
            for pattern in (f"{self.name}_*", f"{{{self.name}_*"):
                for keys in client.scan_iter(pattern, 5000):
                    client.delete(keys)


class SearchedFleetWorld(FleetWorld):
    """As FleetWorld, with search documents too."""

    def __init__(self, *, elasticsearch: Server, **of_others: Any) -> None:
        super().__init__(**of_others)
        self.elasticsearch = elasticsearch

    @property
    def stores(self) -> tuple[str, ...]:
        return (*super().stores, "elasticsearch")

    @property
    def views(self) -> str:
        return super().views + SEARCH_VIEWS.format(self.name)

    @property
    def watched(self) -> Watched:
        return replace(super().watched, documents=partial(self._indices.stored, f"{self.name}_user"))

    @property
    def projecting(self) -> dict[str, str]:
        return {**super().projecting, "VIEWTAIL_ELASTICSEARCH__URL": self.elasticsearch.url}

    @property
    def _indices(self) -> Indices:
        return Indices(self.elasticsearch)

    @property
    def _searched(self) -> list[str]:
        return [f"{self.name}_{view}" for view in ("user", "even", "pair")]

    def servers(self) -> list[Server]:
        return [*super().servers(), self.elasticsearch]

    def _expected(self) -> Content:
        users, pairs = self.rows()
        user, even, pair = (f"elasticsearch:{name}" for name in self._searched)
        return {
            **super()._expected(),
            user: {str(i): columns(email=email, n=n) for i, email, n in users},
            even: {str(i): document(email, n) for i, email, n in users if n % 2 == 0},
            pair: {f"{escaped(a)}:{b}": columns(v=v) for a, b, v in pairs},
        }

    def _actual(self) -> Content:
        return {**super()._actual(), **self._indices.contents(self._searched)}

    def drop(self) -> None:
        super().drop()
        self._indices.drop(self._searched)


def _texts(key: tuple[object, ...]) -> tuple[object, ...]:
    """Text columns of a key are binary in an index table."""
    return tuple(part.decode() if isinstance(part, bytes) else part for part in key)


class Process(Run):
    """A `viewtail run` in one role. `start` and `kill` as often as wanted."""

    def __init__(self, folder: Path, world: FleetWorld, role: str) -> None:
        folder.mkdir()
        super().__init__(folder, world.views, world.environment if role == "tail" else world.projecting)
        self.role = role

    @property
    def is_running(self) -> bool:
        return self.process is not None

    @property
    def was_started(self) -> bool:
        return (self.folder / "run.log").exists()

    def begin(self, **environment: str) -> None:
        self.start("--role", self.role, **environment)

    def begin_again(self) -> None:
        """Killed, and started."""
        self.kill()
        self.begin()

    @contextmanager
    def stopped(self) -> Iterator[list[int]]:
        """With all of it stopped (SIGSTOP); gives the process ids."""
        assert self.process is not None
        pids = [self.process.pid, *self.workers().values()]
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        try:
            yield pids
        finally:
            for pid in pids:
                _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


class Fleet:
    """Two tailers, of which one stands by, and three projectors, of which one comes and goes."""

    def __init__(self, world: FleetWorld, folder: Path, failpoints: Mapping[str, str]) -> None:
        """`failpoints`, by role: VIEWTAIL_FAILPOINT of its first process."""
        self._world, self._failpoints = world, failpoints
        self.tailers = [Process(folder / f"tailer_{number}", world, "tail") for number in (1, 2)]
        self.projectors = [Process(folder / f"projector_{number}", world, "project") for number in (1, 2, 3)]

    @property
    def _all(self) -> list[Process]:
        return [*self.tailers, *self.projectors]

    def projecting(self) -> list[Process]:
        """Those projectors that run."""
        return [one for one in self.projectors if one.is_running]

    def __enter__(self) -> Fleet:
        """With the first of each role, so that those have something to do when they come to their failpoints."""
        for one in (self.tailers[0], self.projectors[0]):
            one.begin(VIEWTAIL_FAILPOINT=self._failpoints[one.role])
        return self

    def begin_others(self) -> None:
        """The tailer that stands by, and a second projector."""
        for one in (self.projectors[1], self.tailers[1]):
            one.begin()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with suppress(Exception):  # of a server that is not there
                print(self._world.stand())
            for one in self._all:
                if one.was_started:
                    print(f"-- {one.folder.name}\n{one.log[-4000:]}")
        for one in self._all:
            one.kill()

    def stop(self) -> list[int]:
        """The exit codes of all that run; SIGTERM comes to all at once."""
        running = [one.process for one in self._all if one.process is not None]
        for process in running:
            process.terminate()
        return [process.wait(15) for process in running]

    def deaths(self) -> dict[str, int]:
        """By role, how often a process of it was killed, by whomever."""
        killed = {one.role: 0 for one in self._all}
        for one in self._all:
            killed[one.role] += one.log.count("ended with code -9") if one.was_started else 0
        return killed

    def tailer(self) -> Process:
        """The one that publishes, or either of them while nobody does."""
        owner = self._world.owner_of("kafka")
        return next((one for one in self.tailers if owner in one.workers().values()), self.tailers[0])
