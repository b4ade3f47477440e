"""Commit to visible, at a steady rate: the real worker, and a bare loop that writes each row at once.

One thread commits single-row transactions on a clock, another looks for each row in the store, or consumes the topic.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pymysql
import redis
import urllib3
from confluent_kafka import Producer

from bench.consuming import COMMITTED, arrivals
from bench.setting import Setting
from ingest.binlog.connection import DumpConnection
from viewtail.servers.sessions import MySQLAddress

RATE = 300  # transactions a second
SEEN_WITHIN_S = 30.0
WARM_S = 5.0  # before latency counts: a broker's first small transactions are slow, and a process's first looks
BARE_TOPIC = "bare"
BARE_TABLE = (
    "CREATE TABLE bench.bare (id BIGINT PRIMARY KEY, name VARCHAR(64), version BIGINT UNSIGNED, "
    "INDEX value_idx (name, id))"
)
Change = tuple[float, float]  # when its COMMIT ended (time.perf_counter), and milliseconds until it was seen


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from the end of COMMIT to the moment at which the row was seen."""

    p50_ms: float
    p99_ms: float


def measure(setting: Setting, store: str, seconds: float, first_id: int, is_seen: Callable[[int], bool]) -> Latency:
    """Commit for `seconds` and look for each row; the store's writer must be running already."""
    return latency(delays(setting, store, seconds, first_id, is_seen))


def delays(setting: Setting, store: str, seconds: float, first_id: int, is_seen: Callable[[int], bool]) -> list[float]:
    """Of each row of the narrow table, milliseconds."""
    return delays_of(store, seconds, first_id, is_seen, committer(setting, narrow))


def delays_of(
    where: str, seconds: float, first_id: int, is_seen: Callable[[int], bool], write: Callable[[int], object]
) -> list[float]:
    """The same of what `write` commits, one by one."""
    return [took_ms for _, took_ms in changes_of(where, seconds, first_id, is_seen, write)]


def changes_of(
    where: str,
    seconds: float,
    first_id: int,
    is_seen: Callable[[int], bool],
    write: Callable[[int], object],
    rate: int = RATE,
) -> list[Change]:
    """Of each row."""
    count = round(seconds * rate)
    committed: dict[int, float] = {}
    seen: dict[int, float] = {}

    def watch() -> None:
        i = first_id
        while i < first_id + count:
            if i in committed and is_seen(i):
                seen[i] = time.perf_counter()
                i += 1
            else:
                time.sleep(0.0002)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    on_a_clock(write, count, first_id, committed, rate)
    watcher.join(SEEN_WITHIN_S)
    return _delays(where, committed, seen)


def measure_topic(setting: Setting, topic: str, seconds: float, first_id: int, isolation: str = COMMITTED) -> Latency:
    """Commit for `seconds` while a plain consumer reads the topic."""
    committed: dict[int, float] = {}
    with arrivals(setting.brokers, topic, isolation) as seen:
        on_a_clock(committer(setting, narrow), int(seconds * RATE), first_id, committed)
        deadline = time.monotonic() + SEEN_WITHIN_S
        while not committed.keys() <= seen.keys() and time.monotonic() < deadline:
            time.sleep(0.01)
    return latency([took_ms for _, took_ms in _delays(topic, committed, seen)])


def narrow(row: int) -> str:
    """The statement for a row."""
    return f"INSERT INTO bench.narrow VALUES ({row}, 1, 'live {row}', {row}, NOW(6))"


def committer(setting: Setting, statement: Callable[[int], str]) -> Callable[[int], object]:
    """What commits a row by its statement, on a connection of its own."""
    cursor = setting.connect().cursor()
    return lambda row: cursor.execute(statement(row))


def on_a_clock(
    write: Callable[[int], object], count: int, first_id: int, committed: dict[int, float], rate: int = RATE
) -> None:
    """Single rows on a clock; notes when the COMMIT of each ended, by its id."""
    began = time.perf_counter()
    for at in range(count):
        while (wait := began + at / rate - time.perf_counter()) > 0:
            time.sleep(wait)
        write(first_id + at)
        committed[first_id + at] = time.perf_counter()


def _delays(where: str, committed: Mapping[int, float], seen: Mapping[int, float]) -> list[Change]:
    if missing := len(committed.keys() - seen.keys()):
        raise RuntimeError(
            f"live {where}: {missing} of {len(committed)} rows were not seen within {SEEN_WITHIN_S:.0f} s"
        )
    return [(at, (seen[i] - at) * 1000) for i, at in committed.items()]


def latency(delays_ms: Sequence[float]) -> Latency:
    """Of at least one row."""
    took = sorted(delays_ms)
    return Latency(took[len(took) // 2], took[int(len(took) * 0.99)])


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


# -- the writers -----------------------------------------------------------------------------------------------


@contextmanager
def worker(
    setting: Setting, store: str, module: str = "viewtail.process", more: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """The worker process as `viewtail run` starts it, running; stopped at the end."""
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", module, store, str(write_end), *more],
        cwd=setting.folder,
        env=setting.environment,
        pass_fds=[write_end],
    )
    os.close(write_end)
    try:
        while b'"state":"running"' not in (told := os.read(read_end, 65536)):
            if not told:
                raise RuntimeError(f"the worker of {store} ended before it was running")
        reader = threading.Thread(target=_read_on, args=(read_end,), daemon=True)
        reader.start()
        yield process
    finally:
        process.terminate()
        process.wait(20)
        os.close(read_end)


def _read_on(pipe: int) -> None:
    """As its supervisor does: a worker whose reports nobody reads would wait, once the pipe is full."""
    with contextlib.suppress(OSError):
        while os.read(pipe, 65536):
            pass


@contextmanager
def bare(setting: Setting, store: str) -> Iterator[None]:
    """The bare loop in a process of its own, reading when this returns; killed at the end."""
    process = setting.python("bench.live", store, str(setting.mysql.port), str(setting.servers[store].port))
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the bare loop to {store} did not start")
        yield
    finally:
        process.kill()
        process.wait()


def guarded(row: int, name: str) -> str:
    """The upsert of an index table."""
    return (
        f"INSERT INTO bench.bare (id, name, version) VALUES ({row}, '{name}', {row}) AS new "
        "ON DUPLICATE KEY UPDATE name = IF(new.version > bare.version, new.name, bare.name), "
        "version = IF(new.version > bare.version, new.version, bare.version)"
    )


def _writer(store: str, port: int) -> Callable[[int, str], None]:
    """One write a row, at once."""
    if store == "mysql":
        cursor = pymysql.connect(host="127.0.0.1", port=port, user="root", autocommit=True).cursor()

        def to_mysql(i: int, name: str) -> None:
            # The same write as ours: the guarded upsert into a table with the same index.
            cursor.execute(guarded(i, name))

        return to_mysql
    if store == "redis":
        client = redis.Redis(port=port)

        def to_redis(i: int, name: str) -> None:
            client.hset(f"bare:{i}", mapping={"name": name})

        return to_redis
    if store == "kafka":
        return _to_topic(port)
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port)
    headers = {"Content-Type": "application/json"}

    def to_elasticsearch(i: int, name: str) -> None:
        pool.request("PUT", f"/bare/_doc/{i}", body=json.dumps({"name": name}).encode(), headers=headers)

    return to_elasticsearch


def _to_topic(port: int) -> Callable[[int, str], None]:
    producer = Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "transactional.id": "bare",
            "acks": "all",
            "linger.ms": 0,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)

    def to_topic(i: int, name: str) -> None:
        producer.begin_transaction()
        producer.produce(BARE_TOPIC, json.dumps({"id": i, "name": name}).encode(), b'{"id":%d}' % i)
        producer.commit_transaction(30)

    return to_topic


def main() -> None:
    """The bare loop: a raw dump connection, a hard-wired parser of the narrow table, one write a row."""
    store, source_port, port = sys.argv[1], *map(int, sys.argv[2:])
    write = _writer(store, port)
    with pymysql.connect(host="127.0.0.1", port=source_port, user="root") as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        file, position = cursor.fetchone()[:2]  # type: ignore[index]
    address = MySQLAddress(host="127.0.0.1", port=source_port, user="root")
    dump = DumpConnection(address, file, position, heartbeat_s=2, server_id=None)
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
