"""Pushes: how soon a view with push=True shows what a worker of event-sourced entities has committed.

Beside it stands the store's own write of one row, by a client that does nothing else, at the same rate. Both are looked
for by another process, whose own time is in both. The pipelines look at the table every 10 s, so that what is seen
sooner was pushed. `python -m bench.pushing STORE MYSQL_PORT STORE_PORT SECONDS FIRST` is the process with the worker,
and `look STORE PORT pushed|bare` that of a reader; each prints one line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pymysql
import redis
import urllib3

from bench import live
from bench.lines import Line, Told
from bench.setting import Setting, Sizes, say, told, until
from viewtail.entities import Command, EventSourced

TABLE = "bench.account"
TITLES = {"mysql": "MySQL", "redis": "Redis", "elasticsearch": "Elasticsearch"}
_EVERY_S = 10  # between two looks of the pollers
_MOST = 2.0  # times the store's own write
_WITHIN_S = 60.0
_BEGINS_WITHIN_S = 1.0  # the reader, and the sessions of who writes: both begin with a row
WRITERS = {"mysql": 1, "redis": 1, "elasticsearch": 8}  # of the store's own writes; a single PUT takes too long for one
_WARM_ROUNDS = 3  # Java compiles what it runs often
_VIEWS = {
    "mysql": 'IndexTable("account_by_command", account, value="command_id", push=True)',
    "redis": 'RedisHash("account", account, fields=["command_id"], push=True)',
    "elasticsearch": 'SearchIndex("account", account, fields={"command_id": "keyword"}, push=True)',
}
_DECLARED = f"""from viewtail import Entity, IndexTable, RedisHash, SearchIndex

account = Entity("{TABLE}", key="entity_id", version="version", append_only=True, order="event_id")
views = [%s]
"""


@dataclass(eq=False)
class Pushing:
    """The measurements, and what they gave."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    def measure(self) -> None:
        polled = {"VIEWTAIL_SOURCE__MODE": "poll", "VIEWTAIL_SOURCE__POLL_S": str(_EVERY_S)}
        setting = self.setting.having(**polled, VIEWTAIL_CLEANER__SHARE="0")
        databases = ("DROP DATABASE IF EXISTS viewtail", "DROP DATABASE IF EXISTS bench", "CREATE DATABASE bench")
        setting.run(*databases, live.BARE_TABLE, "DO 1")
        redis.Redis(port=setting.redis.port).flushall()
        told(setting.python("bench.commanding", "create"))
        for at, (store, title) in enumerate(TITLES.items()):
            line = Line(f"from commit to {title} by a push, p99", "ms", "its own write", _MOST)
            self.lines.append(line)
            (setting.folder / "views.py").write_text(_DECLARED % _VIEWS[store])
            with live.worker(setting, store):
                self._wait_filled(store)
                for number in range(1 - _WARM_ROUNDS, self.rounds + 1):
                    say(f"pushes to {store}, " + (f"round {number} of {self.rounds}" if number > 0 else "to warm up"))
                    ports = (str(setting.mysql.port), str(setting.servers[store].port))
                    first = (at * (self.rounds + _WARM_ROUNDS) + number + _WARM_ROUNDS) * 1_000_000
                    seconds = self.sizes.push_s / self.rounds
                    found = told(setting.python("bench.pushing", store, *ports, str(seconds), str(first)))
                    if number > 0:
                        line.add(found["pushed_ms"], found["written_ms"])

    def _wait_filled(self, store: str) -> None:
        sql = (
            "SELECT COUNT(*) FROM viewtail.view JOIN viewtail.pipeline p ON p.id = pipeline_id "
            f"WHERE state = 'filled' AND p.store = '{store}'"
        )
        until(f"the view of {store} is filled", lambda: self.setting.run(sql) == (1,), _WITHIN_S)


# -- the process with the worker -----------------------------------------------------------------------------------


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "look":
        _look(_views(rest[0], int(rest[1]))[rest[2]])
        return
    mysql_port, store_port, seconds, first = rest
    port = int(mysql_port if what == "mysql" else store_port)
    count = int(float(seconds) * live.RATE)
    rows = range(int(first), int(first) + count)
    written, pushed = _written(what, port, rows), _pushed(what, port, rows)
    print(json.dumps({"pushed_ms": live.latency(pushed).p99_ms, "written_ms": live.latency(written).p99_ms}))


def _pushed(store: str, port: int, rows: range) -> list[float]:
    """Milliseconds from the answer of each command until its entity is seen."""
    with (
        EventSourced(TABLE, {"handle": lambda _, request: (request, request)}).worker() as worker,
        _Reader(store, port, "pushed") as reader,
    ):

        def command(number: int) -> None:
            worker.submit(Command(entity_id=str(number), command_id="1", name="handle", request=number)).result(30)
            reader.look_for(number, time.perf_counter())

        command(rows.start - 1)
        time.sleep(_BEGINS_WITHIN_S)
        live.on_a_clock(command, len(rows), rows.start, {})
        return reader.delays(rows)


def _written(store: str, port: int, rows: range) -> list[float]:
    """Milliseconds from the moment at which each row is sent until it is seen.

    By so many connections that none waits for the one before it as a rule.
    """
    own = threading.local()

    def write(row: int) -> None:
        if not hasattr(own, "write"):
            own.write = _writer(store, port)
        own.write(row)

    with _Reader(store, port, "bare") as reader, ThreadPoolExecutor(WRITERS[store]) as pool:
        sent = []

        def send(row: int) -> None:
            reader.look_for(row)
            sent.append(pool.submit(write, row))

        for row in range(rows.start - WRITERS[store], rows.start):
            send(row)
        time.sleep(_BEGINS_WITHIN_S)
        live.on_a_clock(send, len(rows), rows.start, {})
        for one in sent:
            one.result()  # raises what it raised
        return reader.delays(rows)


class _Reader:
    """Another process, which looks for each row from the moment at which it is told to; killed at the end."""

    def __init__(self, store: str, port: int, which: str) -> None:
        self._command = [sys.executable, "-m", "bench.pushing", "look", store, str(port), which]
        self._since: dict[int, float] = {}

    def __enter__(self) -> _Reader:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin is not None
        self._asks = self._process.stdin
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def look_for(self, row: int, since: float | None = None) -> None:
        """`since`: what its delay is counted from, by perf_counter; None: from the return of this."""
        self._asks.write(f"{row}\n")
        self._asks.flush()
        self._since[row] = time.perf_counter() if since is None else since

    def delays(self, rows: range) -> list[float]:
        """Milliseconds; every row is seen once this returns."""
        seen = json.loads(self._process.communicate(timeout=_WITHIN_S)[0])
        return [(seen[str(row)] - self._since[row]) * 1000 for row in rows]


def _look(is_there: Callable[[int], bool]) -> None:
    """Prints when each row was seen whose number comes on standard input: perf_counter is the machine's."""
    seen = {}
    for line in sys.stdin:
        while not is_there(int(line)):
            pass  # it is soon
        seen[int(line)] = time.perf_counter()
    print(json.dumps(seen))


def _writer(store: str, port: int) -> Callable[[int], object]:
    """Writes a row as the sink would."""
    if store == "redis":
        client = redis.Redis(port=port)
        return lambda row: client.hset(f"bare:{row}", mapping={"command_id": "1", "_version": str(row)})
    if store == "elasticsearch":
        pool, headers = urllib3.HTTPConnectionPool("127.0.0.1", port), {"Content-Type": "application/json"}

        def to_elasticsearch(row: int) -> None:
            answer = pool.request("PUT", f"/bare/_doc/{row}", body=b'{"command_id":"1"}', headers=headers)
            assert answer.status < 300, answer.status

        return to_elasticsearch
    cursor = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True).cursor()
    return lambda row: cursor.execute(live.guarded(row, "1"))


def _views(store: str, port: int) -> dict[str, Callable[[int], bool]]:
    """Whether the view shows an entity that was pushed, and whether a row is there that was written bare."""
    if store == "redis":
        client = redis.Redis(port=port)
        return {
            "pushed": lambda entity: bool(client.exists(f"account:{entity}")),
            "bare": lambda row: bool(client.exists(f"bare:{row}")),
        }
    if store == "elasticsearch":
        pool = urllib3.HTTPConnectionPool("127.0.0.1", port)
        return {
            "pushed": lambda entity: pool.request("GET", f"/account/_doc/{entity}?_source=false").status == 200,
            "bare": lambda row: pool.request("GET", f"/bare/_doc/{row}?_source=false").status == 200,
        }
    looking = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True).cursor()

    def has(table: str, column: str, value: object) -> bool:
        with contextlib.suppress(pymysql.err.MySQLError):
            looking.execute(f"SELECT 1 FROM {table} WHERE {column} = %s", (value,))
            return looking.fetchone() is not None
        return False

    return {
        "pushed": lambda entity: has("viewtail.account_by_command", "entity_id", str(entity)),
        "bare": lambda row: has("bench.bare", "id", row),
    }


if __name__ == "__main__":
    main()
