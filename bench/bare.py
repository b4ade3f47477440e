"""What the measurements are compared with: the floor, and the same writes with nothing else to do.

Ready-made writes come from the sinks' own encoders, made before the clock starts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis
from elasticsearch import Elasticsearch
from elasticsearch.helpers import parallel_bulk
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from bench.setting import Place, Setting
from ingest.binlog.coordinates import BinlogPosition
from ingest.limits import Limits
from projectors.catalog import Catalog
from projectors.stores.index_tables.sink import MySQLSink
from projectors.stores.redis.sink import RedisSink
from viewtail import declarations, settings
from viewtail.changes.writes import Key
from viewtail.composition import deploy
from viewtail.servers.pipelined import Flight

ROWS_A_COMMIT = Limits().batch_rows  # as many as one batch of a pipeline holds


def floor(setting: Setting, place: Place, rows: int) -> float:
    """Rows/s of python-mysql-replication, doing nothing but counting them."""
    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": setting.mysql.port, "user": "root"},
        server_id=771,
        log_file=place[0],
        log_pos=place[1],
        resume_stream=True,
        only_events=[WriteRowsEvent],
        blocking=True,
    )
    counted, began = 0, time.perf_counter()
    for event in stream:
        counted += len(event.rows)
        if counted >= rows:
            break
    seconds = time.perf_counter() - began
    stream.close()
    return counted / seconds


def catalog(setting: Setting) -> Catalog:
    """The same settings and views as the measured processes have."""
    here = Path.cwd()
    os.chdir(setting.folder)
    try:
        config = settings.load(None, setting.environment)
        return deploy(config, declarations.load(config.views))
    finally:
        os.chdir(here)


def _writes(rows: int, count: int, values: Any) -> Iterator[list[tuple[Key, Any]]]:
    for at in range(0, rows, count):
        yield [((i,), ((1 << 53) + i, values(i))) for i in range(at, min(at + count, rows))]


def mysql(setting: Setting, rows: int) -> float:
    """Rows/s of ready-made upserts into an empty index table, committed as often as a pipeline does."""
    deployed = catalog(setting)
    setting.run("DROP TABLE IF EXISTS viewtail.index_name", "DO 1")
    sink = MySQLSink(deployed.servers.open_own, deployed.database, deployed.views_of("mysql"))
    sink.prepare()
    upsert, connection = sink._upserts["mysql:index_name"], sink.connection
    batches = []
    for some in _writes(rows, ROWS_A_COMMIT, lambda i: (f"name of {i}",)):
        upsert.make_ready(connection, len(some))
        batches.append([execution for _, execution in upsert.executions(some) if execution is not None])
    began = time.perf_counter()
    for executions in batches:
        flight = Flight(connection)
        for execution in executions:
            flight.execute(execution)
        assert all(isinstance(answer, int) for answer in flight.land())
        connection.commit()
    seconds = time.perf_counter() - began
    sink.close()
    return rows / seconds


def redis_(setting: Setting, rows: int) -> float:
    """Rows/s of ready-made scripts into an empty Redis, sixteen under way as the sink has them."""
    deployed = catalog(setting)
    client = redis.Redis(port=setting.redis.port)
    client.flushall()
    sink = RedisSink(
        lambda: redis.Redis(port=setting.redis.port),
        deployed.views_of("redis"),
        deployed.database,
        "bare",
        read_position=BinlogPosition.from_text,
    )
    sink.prepare()
    packer = sink._packers["redis:narrow"]
    commands = [
        packer.command(some[at : at + 100])
        for some in _writes(rows, 500, lambda i: (f"name of {i}", i * 1000003))
        for at in range(0, 500, 100)
    ]
    connection: Any = sink._connection
    began, waiting = time.perf_counter(), 0
    for command in commands:
        connection.send_packed_command((command,), check_health=False)
        waiting += 1
        if waiting == 16:
            connection.read_response(disable_decoding=True)
            waiting -= 1
    for _ in range(waiting):
        connection.read_response(disable_decoding=True)
    seconds = time.perf_counter() - began
    sink.close()
    assert client.dbsize() == rows, "the bare loop lost rows"
    client.flushall()
    return rows / seconds


def elasticsearch(setting: Setting, rows: int) -> float:
    """Documents/s of elasticsearch.helpers.parallel_bulk, documents ready-made, into an index like the view's."""
    client = Elasticsearch(setting.elasticsearch.url, request_timeout=60)
    client.options(ignore_status=404).indices.delete(index="bare")
    types = {"n": "integer", "name": "keyword", "big": "long", "viewtail_deleted": "boolean"}
    client.indices.create(
        index="bare",
        mappings={
            "dynamic": "strict",
            "properties": {name: {"type": type_} for name, type_ in types.items()},
        },
        settings={"number_of_shards": 1, "number_of_replicas": 0},
    )
    actions = [
        {
            "_index": "bare",
            "_id": str(i),
            "_source": {"n": i % 1000, "name": f"name of {i}", "big": i * 1000003},
            "version": (1 << 53) + i,
            "version_type": "external",
        }
        for i in range(rows)
    ]
    began = time.perf_counter()
    for is_good, answer in parallel_bulk(client, actions, thread_count=4, chunk_size=500):
        assert is_good, answer
    seconds = time.perf_counter() - began
    client.indices.delete(index="bare")
    client.close()
    return rows / seconds
