"""Pushes: how soon a view with push=True shows what a worker of event-sourced entities has committed.

Beside it stands the store's own write of one row, by a client that does nothing else, at the same rate. The pipelines
look at the table every 10 s, so that what is seen sooner was pushed. `python -m bench.pushing STORE MYSQL_PORT
STORE_PORT SECONDS FIRST` is the process with the worker, and `look STORE PORT` that of a reader; each prints one line
of JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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
        _look(rest[0], int(rest[1]))
        return
    mysql_port, store_port, seconds, first = rest
    port = int(mysql_port if what == "mysql" else store_port)
    write, _ = _hands(what, port)
    count, began = int(float(seconds) * live.RATE), int(first)
    written = _written_ms(write, range(began, began + count))
    with (
        EventSourced(TABLE, {"handle": lambda _, request: (request, request)}).worker() as worker,
        _reader(what, port) as reader,
    ):
        assert reader.stdin is not None
        committed: dict[int, float] = {}

        def command(number: int) -> None:
            worker.submit(Command(entity_id=str(number), command_id="1", name="handle", request=number)).result(30)
            committed[number] = time.perf_counter()
            reader.stdin.write(f"{number}\n")
            reader.stdin.flush()

        command(began - 1)
        time.sleep(1)  # it opens its sessions with the first
        live.on_a_clock(command, count, began, {})
        seen = json.loads(reader.communicate(timeout=_WITHIN_S)[0])
    pushed = [(seen[str(row)] - committed[row]) * 1000 for row in range(began, began + count)]
    print(json.dumps({"pushed_ms": live.latency(pushed).p99_ms, "written_ms": live.latency(written).p99_ms}))


@contextlib.contextmanager
def _reader(store: str, port: int) -> Iterator[subprocess.Popen[str]]:
    """Whoever reads the view is another process; killed at the end."""
    command = [sys.executable, "-m", "bench.pushing", "look", store, str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _look(store: str, port: int) -> None:
    """Prints when each entity was seen whose number comes on standard input: perf_counter is the machine's."""
    _, is_there = _hands(store, port)
    seen = {}
    for line in sys.stdin:
        while not is_there(int(line)):
            pass  # it is soon
        seen[int(line)] = time.perf_counter()
    print(json.dumps(seen))


def _hands(store: str, port: int) -> tuple[Callable[[int], object], Callable[[int], bool]]:
    """What writes a row as the sink would, and what sees the view of an entity."""
    if store == "redis":
        client = redis.Redis(port=port)
        return (
            lambda row: client.hset(f"bare:{row}", mapping={"command_id": "1", "_version": str(row)}),
            lambda entity: bool(client.exists(f"account:{entity}")),
        )
    if store == "elasticsearch":
        pool = urllib3.HTTPConnectionPool("127.0.0.1", port)
        headers = {"Content-Type": "application/json"}

        def to_elasticsearch(row: int) -> None:
            answer = pool.request("PUT", f"/bare/_doc/{row}", body=b'{"command_id":"1"}', headers=headers)
            assert answer.status < 300, answer.status

        return (
            to_elasticsearch,
            lambda entity: pool.request("GET", f"/account/_doc/{entity}?_source=false").status == 200,
        )
    cursor = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True).cursor()

    def is_there(entity: int) -> bool:
        with contextlib.suppress(pymysql.err.MySQLError):
            looking.execute(f"SELECT 1 FROM viewtail.account_by_command WHERE entity_id = '{entity}'")
            return looking.fetchone() is not None
        return False

    looking = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True).cursor()
    return lambda row: cursor.execute(live.guarded(row, "1")), is_there


def _written_ms(write: Callable[[int], object], rows: range) -> list[float]:
    """How long each took on the same clock; of one that waited for the write before it, since it was due."""
    began, took = time.perf_counter(), list[float]()
    for at, row in enumerate(rows):
        due = began + at / live.RATE
        is_late = time.perf_counter() > due
        while (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        asked = due if is_late else time.perf_counter()
        write(row)
        took.append((time.perf_counter() - asked) * 1000)
    return took


if __name__ == "__main__":
    main()
