"""The servers, the narrow table and the rows that every measurement shares."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pymysql
import redis

import stack.elasticsearch
import stack.kafka
from stack import Server

TABLE = (
    "CREATE TABLE bench.narrow (id BIGINT PRIMARY KEY, n INT, name VARCHAR(64), big BIGINT, "
    "at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))"
)
VIEWS = {
    "mysql": 'IndexTable("index_name", narrow, value="name")',
    "redis": 'RedisHash("narrow", narrow, fields=["name", "big"])',
    "elasticsearch": 'SearchIndex("narrow", narrow, fields={"n": "integer", "name": "keyword", "big": "long"})',
    "kafka": 'Topic("bench.narrow", narrow, partitions=4)',
}
_TITLES = {"mysql": "MySQL", "mariadb": "MariaDB"}
ROWS_A_TRANSACTION = 500
_STEP_S = 0.02  # between two looks
CHECKOUT = Path(__file__).resolve().parents[1]
Place = tuple[str, int]  # binlog file, position


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is written."""

    single: int = 100_000
    bulk: int = 500_000
    documents: int = 500_000
    floor_single: int = 20_000
    floor_bulk: int = 200_000
    live_s: float = 60.0  # of each, over all rounds
    json_rows: int = 10_000
    views: int = 200
    operated: int = 1_000_000  # rows of a view that is verified and replayed
    rebuilt: int = 80_000  # rows of one that is rebuilt: that gives way to live changes, and takes its time
    beside_s: float = 12.0  # of live latency before a rebuild, and behind it
    cleaned_s: float = 240.0  # of live changes beside it, over all rounds
    damaged: int = 10  # rows
    idle_s: float = 30.0
    polled: int = 200_000  # rows that wait for a poller
    polled_s: float = 15.0  # of live latency through a poller, over all rounds
    push_s: float = 10.0  # of pushes to each store, over all rounds
    commands_s: float = 15.0  # of each, over all rounds
    puts: int = 2_000  # over all rounds
    put_s: float = 15.0  # of puts whose indexes are looked at, over all rounds
    stored: int = 10_000  # entities that get_all is asked for, of each kind of user
    gets: int = 2_000  # over all rounds
    orders: int = 200_000  # documents of several tables
    order_changes: int = 100_000  # of their lines, one of an order
    order_s: float = 30.0  # of live changes of lines, over all rounds
    hot_orders: int = 600_000  # that have one product, each with a line of it
    hot_s: float = 15.0  # of live changes before that product changes, and behind it


QUICK = Sizes(
    single=10_000,
    bulk=20_000,
    documents=10_000,
    floor_single=3_000,
    floor_bulk=20_000,
    live_s=5.0,
    json_rows=2_000,
    views=20,
    operated=20_000,
    rebuilt=20_000,
    beside_s=3.0,
    cleaned_s=90.0,
    damaged=2,
    idle_s=3.0,
    polled=20_000,
    polled_s=4.0,
    push_s=2.0,
    commands_s=2.0,
    puts=200,
    put_s=2.0,
    stored=1_000,
    gets=200,
    orders=5_000,
    order_changes=2_000,
    order_s=2.0,
    hot_orders=60_000,
    hot_s=4.0,
)


@dataclass(slots=True, kw_only=True)
class Setting:
    """Servers by name, those that run, and a folder with views.py. The source is the one called mysql."""

    servers: dict[str, Server]
    folder: Path
    reads_topics: bool = False  # instead of the binlog
    more: Mapping[str, str] = field(default_factory=dict)  # settings of its processes

    @property
    def mysql(self) -> Server:
        return self.servers["mysql"]

    @property
    def redis(self) -> Server:
        return self.servers["redis"]

    @property
    def elasticsearch(self) -> Server:
        return self.servers["elasticsearch"]

    @property
    def kafka(self) -> Server:
        return self.servers["kafka"]

    @property
    def brokers(self) -> str:
        return f"{self.kafka.host}:{self.kafka.port}"

    def through_kafka(self) -> Setting:
        """The same, with processes that read the topics."""
        return replace(self, reads_topics=True)

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.mysql.port, user="root", autocommit=True)

    def run(self, *statements: str) -> Any:
        """Execute statements; the last one's first row."""
        connection = self.connect()
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            row = cursor.fetchone()
        connection.close()
        return row

    def place(self) -> Place:
        """The binlog's present end, at the beginning of a new file."""
        row = self.run("FLUSH BINARY LOGS", "SHOW BINARY LOG STATUS")
        return str(row[0]), int(row[1])

    def machine(self) -> str:
        """What every figure stands beside."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
        found = f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, Python {platform.python_version()}"
        found += f", {_TITLES[self.mysql.name]} {self.run('SELECT VERSION()')[0]}"
        if "redis" in self.servers:
            found += f", Redis {redis.Redis(port=self.redis.port).info()['redis_version']}"
        if "elasticsearch" in self.servers:
            found += f", Elasticsearch {stack.elasticsearch.VERSION}"
        if "kafka" in self.servers:
            found += f", Kafka {stack.kafka.VERSION}"  # bench/README.md says how it is started
        return found

    @property
    def environment(self) -> dict[str, str]:
        addresses = {name: server.url for name, server in self.servers.items() if name != "mysql"}
        found = {
            **{name: value for name, value in os.environ.items() if not name.startswith("VIEWTAIL_")},
            "PYTHONPATH": str(CHECKOUT),
            "VIEWTAIL_SOURCE__URL": self.kafka.url if self.reads_topics else self.mysql.url,
            "VIEWTAIL_MYSQL__URL": self.mysql.url,
            **{f"VIEWTAIL_{name.upper()}__URL": url for name, url in addresses.items()},
            "VIEWTAIL_METRICS__PORT": "0",
            "VIEWTAIL_CONSOLE__PORT": "0",
            "VIEWTAIL_LOGS__LEVEL": "error",
            **self.more,
        }
        return {name: value for name, value in found.items() if value}

    def having(self, **more: str) -> Setting:
        """The same, with processes that have these settings too, and do not have those that are empty."""
        return replace(self, more={**self.more, **more})

    def measured(self, *arguments: str) -> dict[str, float]:
        """What bench.measured says: `seconds` and `memory_mib`."""
        return told(self.python("bench.measured", *arguments))

    def python(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """One of bench's own processes; it prints JSON."""
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def start_broker(directory: Path) -> Server:
    """A broker as its users run it: with Java's settings of Kafka's own start script."""
    return stack.kafka.start(directory, java_options=stack.kafka.AS_SHIPPED)


def told(process: subprocess.Popen[str]) -> dict[str, float]:
    """What one of bench's own processes prints when it ends."""
    output, _ = process.communicate(timeout=600)
    if process.returncode != 0:
        raise RuntimeError(f"{process.args!r} ended with {process.returncode}")
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


def writable(text: str) -> Path:
    """An argument: the file of a page. One that cannot be written is told before anything is measured."""
    path = Path(text)
    try:
        path.touch()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {error.strerror}") from None
    return path


def until(what: str, is_so: Callable[[], bool], within_s: float) -> float:
    """The time (time.monotonic) at which something became so. Raises RuntimeError when it did not."""
    deadline = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {within_s:.0f} s")
        time.sleep(_STEP_S)
    return time.monotonic()


def say(text: str) -> None:
    """Tell whoever waits."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


def prepare(setting: Setting) -> None:
    """An empty table, and a view for each store that runs; the stores' own servers are left as they are."""
    views = ", ".join(view for store, view in VIEWS.items() if store in setting.servers)
    (setting.folder / "views.py").write_text(
        "from viewtail import Entity, IndexTable, RedisHash, SearchIndex, Topic\n\n"
        f'narrow = Entity("bench.narrow")\nviews = [{views}]\n'
    )
    setting.run(
        "DROP DATABASE IF EXISTS bench",
        "DROP DATABASE IF EXISTS viewtail",
        "CREATE DATABASE bench",
        TABLE,
        "DO 1",
    )


def write_single_rows(setting: Setting, first: int, count: int) -> None:
    """Single-row transactions from four connections; not flushed one by one, which is not what is measured."""
    setting.run("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 2", "DO 1")

    def write(begin: int) -> None:
        connection = setting.connect()
        with connection.cursor() as cursor:
            for i in range(begin, first + count, 4):
                cursor.execute(insert(range(i, i + 1)))
        connection.close()

    threads = [threading.Thread(target=write, args=(first + number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    setting.run("SET GLOBAL sync_binlog = 1", "SET GLOBAL innodb_flush_log_at_trx_commit = 1", "DO 1")


def write_bulk_rows(setting: Setting, first: int, count: int) -> None:
    """Transactions of 500 rows, one statement each."""
    connection = setting.connect()
    with connection.cursor() as cursor:
        for at in range(first, first + count, ROWS_A_TRANSACTION):
            cursor.execute(insert(range(at, at + ROWS_A_TRANSACTION)))
    connection.close()


def insert(ids: range) -> str:
    """One statement for these rows."""
    rows = ",".join(f"({i},{i % 1000},'name of {i}',{i * 1000003},NOW(6))" for i in ids)
    return f"INSERT INTO bench.narrow VALUES {rows}"
