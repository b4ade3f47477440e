"""The servers, the narrow table and the rows that every measurement shares."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import redis

from stack import Server

TABLE = (
    "CREATE TABLE bench.narrow (id BIGINT PRIMARY KEY, n INT, name VARCHAR(64), big BIGINT, "
    "at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))"
)
VIEWS = """
from viewtail import Entity, IndexTable, RedisHash, SearchIndex

narrow = Entity("bench.narrow")
views = [
    IndexTable("index_name", narrow, value="name"),
    RedisHash("narrow", narrow, fields=["name", "big"]),
    SearchIndex("narrow", narrow, fields={"n": "integer", "name": "keyword", "big": "long"}),
]
"""
ROWS_A_TRANSACTION = 500
CHECKOUT = Path(__file__).resolve().parents[1]
Place = tuple[str, int]  # binlog file, position


@dataclass(slots=True, kw_only=True)
class Setting:
    """Running servers and a folder with views.py."""

    mysql: Server
    redis: Server
    elasticsearch: Server
    folder: Path

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
        mysql = self.run("SELECT VERSION()")[0]
        redis_version = redis.Redis(port=self.redis.port).info()["redis_version"]
        return (
            f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, Python {platform.python_version()}, MySQL {mysql}, "
            f"Redis {redis_version}"
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("VIEWTAIL_")},
            "PYTHONPATH": str(CHECKOUT),
            "VIEWTAIL_SOURCE__URL": self.mysql.url,
            "VIEWTAIL_REDIS__URL": self.redis.url,
            "VIEWTAIL_ELASTICSEARCH__URL": self.elasticsearch.url,
            "VIEWTAIL_METRICS__PORT": "0",
            "VIEWTAIL_LOGS__LEVEL": "error",
        }

    def python(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """One of bench's own processes; it prints JSON."""
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )


def prepare(setting: Setting) -> None:
    """An empty table and empty stores."""
    (setting.folder / "views.py").write_text(VIEWS)
    setting.run(
        "DROP DATABASE IF EXISTS bench",
        "DROP DATABASE IF EXISTS viewtail",
        "CREATE DATABASE bench",
        TABLE,
        "DO 1",
    )


def write_single_rows(setting: Setting, count: int) -> None:
    """Single-row transactions from four connections; not flushed one by one, which is not what is measured."""
    setting.run("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 2", "DO 1")

    def write(first: int) -> None:
        connection = setting.connect()
        with connection.cursor() as cursor:
            for i in range(first, count, 4):
                cursor.execute(_insert(range(i, i + 1)))
        connection.close()

    threads = [threading.Thread(target=write, args=(first,)) for first in range(4)]
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
            cursor.execute(_insert(range(at, at + ROWS_A_TRANSACTION)))
    connection.close()


def _insert(ids: range) -> str:
    rows = ",".join(f"({i},{i % 1000},'name of {i}',{i * 1000003},NOW(6))" for i in ids)
    return f"INSERT INTO bench.narrow VALUES {rows}"
