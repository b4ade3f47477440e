"""Commit to visible, at a steady rate: the real worker, and a bare loop that writes each row at once.

One thread commits single-row transactions on a clock, another looks for each row in the store.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis
import urllib3

from bench.setting import Setting

RATE = 300  # transactions a second
BARE_TABLE = (
    "CREATE TABLE bench.bare (id BIGINT PRIMARY KEY, name VARCHAR(64), version BIGINT UNSIGNED, "
    "INDEX value_idx (name, id))"
)


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the end of COMMIT to the first look that saw the row."""

    p50_ms: float
    p99_ms: float


def measure(setting: Setting, store: str, seconds: float, first_id: int, is_seen: Callable[[int], bool]) -> Latency:
    """Commit for `seconds` and watch; the store's writer must be running already."""
    count = int(seconds * RATE)
    committed: dict[int, float] = {}
    seen: dict[int, float] = {}

    def watch() -> None:
        at = 0
        while at < count:
            if at in committed and is_seen(first_id + at):
                seen[at] = time.perf_counter()
                at += 1
            else:
                time.sleep(0.0002)

    connection = setting.connect()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began = time.perf_counter()
    with connection.cursor() as cursor:
        for at in range(count):
            while (wait := began + at / RATE - time.perf_counter()) > 0:
                time.sleep(wait)
            i = first_id + at
            cursor.execute(f"INSERT INTO bench.narrow VALUES ({i}, 1, 'live {i}', {i}, NOW(6))")
            committed[at] = time.perf_counter()
    watcher.join(30)
    connection.close()
    if len(seen) < count:
        raise RuntimeError(f"live {store}: {count - len(seen)} of {count} rows were not seen within 30 s")
    took = sorted((seen[at] - committed[at]) * 1000 for at in range(count))
    return Latency(took[count // 2], took[int(count * 0.99)])


def looker(setting: Setting, store: str, target: str) -> Callable[[int], bool]:
    """A look for one row in a store: by key, not by search."""
    if store == "mysql":
        connection = setting.connect()
        cursor = connection.cursor()

        def in_mysql(i: int) -> bool:
            cursor.execute(f"SELECT 1 FROM {target} WHERE id = {i}")
            return cursor.fetchone() is not None

        return in_mysql
    if store == "redis":
        client = redis.Redis(port=setting.redis.port)
        return lambda i: bool(client.exists(f"{target}:{i}"))
    pool = urllib3.HTTPConnectionPool("127.0.0.1", setting.elasticsearch.port)
    return lambda i: pool.request("GET", f"/{target}/_doc/{i}?_source=false").status == 200


def start_bare(setting: Setting, store: str) -> subprocess.Popen[str]:
    """The bare loop in a process of its own; ready when it has printed a line."""
    ports = [str(server.port) for server in (setting.mysql, setting.redis, setting.elasticsearch)]
    process = setting.python("bench.live", store, *ports)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def main() -> None:
    """The bare loop: a raw dump connection, a hard-wired parser of the narrow table, one write a row."""
    import struct

    import pymysql

    from ingest.binlog.connection import DumpConnection
    from servers.sessions import MySQLAddress

    store, mysql_port, redis_port, elasticsearch_port = sys.argv[1], *map(int, sys.argv[2:])
    connection: Any = pymysql.connect(host="127.0.0.1", port=mysql_port, user="root", autocommit=True)
    cursor = connection.cursor()
    cursor.execute("SHOW BINARY LOG STATUS")
    file, position = cursor.fetchone()[:2]
    client = redis.Redis(port=redis_port)
    pool = urllib3.HTTPConnectionPool("127.0.0.1", elasticsearch_port)
    headers = {"Content-Type": "application/json"}

    def write(i: int, name: str) -> None:
        if store == "mysql":
            # The same write as ours: the guarded upsert into a table with the same index.
            cursor.execute(
                f"INSERT INTO bench.bare (id, name, version) VALUES ({i}, '{name}', {i}) AS new "
                "ON DUPLICATE KEY UPDATE name = IF(new.version > bare.version, new.name, bare.name), "
                "version = IF(new.version > bare.version, new.version, bare.version)"
            )
        elif store == "redis":
            client.hset(f"bare:{i}", mapping={"name": name})
        else:
            pool.request("PUT", f"/bare/_doc/{i}", body=json.dumps({"name": name}).encode(), headers=headers)

    dump = DumpConnection(
        MySQLAddress(host="127.0.0.1", port=mysql_port, user="root"),
        file,
        position,
        heartbeat_s=2,
        server_id=None,
    )
    print("ready", flush=True)
    buffer, filled, is_narrow = bytearray(1 << 20), 0, False
    while True:
        filled += dump.receive_into(memoryview(buffer)[filled:])
        at = 0
        while filled - at >= 24:
            end = at + 4 + int.from_bytes(buffer[at : at + 3], "little")
            if end > filled:
                break
            kind = buffer[at + 9]
            if kind == 19:
                is_narrow = b"\x05bench\x00\x06narrow\x00" in buffer[at:end]
            elif kind == 30 and is_narrow:
                row = at + 24 + 8 + 2 + 2  # table id and flags, no extra data, column count and bitmap
                i, _, length = struct.unpack_from("<qiB", buffer, row + 1)
                write(i, buffer[row + 14 : row + 14 + length].decode())
            at = end
        buffer[: filled - at] = buffer[at:filled]
        filled -= at


if __name__ == "__main__":
    main()
