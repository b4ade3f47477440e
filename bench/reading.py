"""Reading views as others do: in bulk, as fast as that goes, and one row after another all the time.

`python -m bench.reading STORE PORT ROWS` is a client that reads random rows of the view until its input ends. Prints
one line of JSON: how many reads, how many of them failed, and the longest, in milliseconds.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pymysql
import redis
import urllib3
from elasticsearch import Elasticsearch

from bench import bare
from bench.setting import Setting, told
from ingest.canonical import fetch_rows, select_list
from projectors.stores.index_tables.reading import ROWS_A_PAGE
from viewtail.changes.tables import Column, Kind
from viewtail.servers.sessions import MySQLAddress, open_session

KEYS_AT_ONCE = 1_000
NARROW = [  # the columns of most views
    Column(name="id", kind=Kind.INTEGER, declared="bigint", is_nullable=False),
    Column(name="name", kind=Kind.TEXT, declared="varchar(64)", is_nullable=True, charset="utf8mb4"),
    Column(name="big", kind=Kind.INTEGER, declared="bigint", is_nullable=True),
]
_PAUSE_S = 0.001


def in_bulk(setting: Setting, store: str, rows: int) -> float:
    """Rows/s of reading all of a view, and where that is an index table the canonical table as well."""
    began = time.perf_counter()
    count = {"mysql": _tables, "redis": _hashes, "elasticsearch": _documents}[store](setting, rows)
    if count < rows:
        raise RuntimeError(f"{store}: {count:,} rows of {rows:,} were read")
    return count / (time.perf_counter() - began)


def both_sides(setting: Setting, store: str, rows: int) -> float:
    """Rows/s of reading all of a view and of its table, one after the other."""
    began = time.perf_counter()
    in_bulk(setting, store, rows)
    if store != "mysql":  # where the table is read there, too
        address = MySQLAddress(host="127.0.0.1", port=setting.mysql.port, user="root")
        with closing(open_session(address, role="source")) as connection:
            pages = _pages(connection, "bench.narrow", NARROW)
            if sum(map(len, pages)) < rows:
                raise RuntimeError("not all rows of the table were read")
    return rows / (time.perf_counter() - began)


def _tables(setting: Setting, _: int) -> int:
    """One connection reads both, by viewtail's reader of result sets, which is faster than PyMySQL's."""
    (view,) = bare.catalog(setting).views_of("mysql")
    columns = [*view.key, *view.values]
    version = Column(name="version", kind=Kind.INTEGER, declared="bigint unsigned", is_nullable=False)
    address = MySQLAddress(host="127.0.0.1", port=setting.mysql.port, user="root")
    with closing(open_session(address, role="source")) as connection:
        canonical = _pages(connection, "bench.narrow", columns)
        shown = _pages(connection, "viewtail.index_name", [*columns, replace(version, is_unsigned=True)])
        return min(sum(map(len, canonical)), sum(map(len, shown)))


def _pages(connection: Any, table: str, columns: list[Column]) -> Iterator[list[tuple[Any, ...]]]:
    last = -1
    while True:
        statement = f"SELECT {select_list(columns)} FROM {table} WHERE id > {last} ORDER BY id LIMIT {ROWS_A_PAGE}"
        page = fetch_rows(connection, statement, columns)
        if not page:
            return
        last = page[-1][0]
        yield page


def _hashes(setting: Setting, rows: int) -> int:
    client, count = redis.Redis(port=setting.redis.port), 0
    for at in range(0, rows, KEYS_AT_ONCE):
        asked = client.pipeline(transaction=False)
        for i in range(at, min(at + KEYS_AT_ONCE, rows)):
            asked.hgetall(f"narrow:{i}")
        count += sum(map(bool, asked.execute()))
    client.close()
    return count


def _documents(setting: Setting, rows: int) -> int:
    client, count = Elasticsearch(setting.elasticsearch.url, request_timeout=60), 0
    for at in range(0, rows, KEYS_AT_ONCE):
        ids = [str(i) for i in range(at, min(at + KEYS_AT_ONCE, rows))]
        count += sum(doc["found"] for doc in client.mget(index="narrow", ids=ids)["docs"])
    client.close()
    return count


# -- a client that reads all the time ------------------------------------------------------------------------------


@contextmanager
def all_the_time(setting: Setting, store: str, rows: int) -> Iterator[dict[str, float]]:
    """Meanwhile a client reads; what it says is in the mapping at the end: `reads`, `failed`, `longest_ms`."""
    process = setting.python("bench.reading", store, str(setting.servers[store].port), str(rows))
    found: dict[str, float] = {}
    try:
        yield found
        found |= told(process)
    finally:
        with suppress(subprocess.SubprocessError):
            process.kill()
            process.wait(10)


def _reader(store: str, port: int) -> Callable[[int], object]:
    """What gives the name in a row of the view."""
    if store == "mysql":
        cursor = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True).cursor()

        def from_mysql(i: int) -> object:
            cursor.execute(f"SELECT name FROM viewtail.index_name WHERE id = {i}")
            row = cursor.fetchone()
            return row and (row[0].decode() if isinstance(row[0], bytes) else row[0])

        return from_mysql
    if store == "redis":
        client = redis.Redis(port=port, decode_responses=True)
        return lambda i: client.hget(f"narrow:{i}", "name")
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port)
    return lambda i: json.loads(pool.request("GET", f"/narrow/_doc/{i}").data).get("_source", {}).get("name")


def main() -> None:
    store, port, rows = sys.argv[1], *map(int, sys.argv[2:])
    read, is_over = _reader(store, port), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_over.set()), daemon=True).start()
    reads, failed, longest = 0, 0, 0.0
    while not is_over.wait(_PAUSE_S):
        i, began = random.randrange(rows), time.perf_counter()
        try:
            is_right = read(i) == f"name of {i}"
        except Exception:
            is_right = False
        longest = max(longest, time.perf_counter() - began)
        reads, failed = reads + 1, failed + (not is_right)
    print(json.dumps({"reads": reads, "failed": failed, "longest_ms": longest * 1000}), flush=True)


if __name__ == "__main__":
    main()
