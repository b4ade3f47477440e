"""Reading and decoding alone: rows a second of processor time, with no sink behind.

One after another in small slices, so that a slow phase of the machine meets all alike: viewtail's source over a dump
connection, python-mysql-replication with its rows counted, and the bare packets, received and stepped over.
"""

from __future__ import annotations

import gc
import json
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.row_event import WriteRowsEvent

from bench.setting import TABLE, Place, Setting, write_bulk_rows, write_single_rows
from ingest.binlog.connection import DumpConnection
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from viewtail.changes.batches import Followed
from viewtail.servers.sessions import MySQLAddress, open_session

SLICES = 3  # a round
_DOCUMENTS_A_TRANSACTION = 100
_BUFFER_BYTES = 256 << 10
_PACKET = struct.Struct("<I").unpack_from


@dataclass(slots=True, kw_only=True)
class Workload:
    """Rows in a binlog of their own, and what each reader's slices took: rows a second of processor time."""

    name: str
    table: str
    place: Place
    rows: int
    theirs_rows: int  # the library reads no more than these a slice
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    raw: list[float] = field(default_factory=list)

    def measure(self, setting: Setting) -> None:
        """One slice of each."""
        self.ours.append(_ours(setting, self))
        self.raw.append(_raw(setting, self))
        if self.theirs_rows:
            self.theirs.append(_theirs(setting, self))

    def cells(self) -> list[str]:
        share = statistics.median(ours / raw for ours, raw in zip(self.ours, self.raw, strict=True))
        theirs = f"{statistics.median(self.theirs):,.0f}" if self.theirs else ""
        ours, raw = statistics.median(self.ours), statistics.median(self.raw)
        return [self.name, f"{ours:,.0f}", theirs, f"{raw:,.0f}", f"{100 * share:.0f} %"]


def workloads(setting: Setting, single: int, bulk: int, documents: int) -> list[Workload]:
    """Write the rows of each kind, a binlog each."""
    made = []

    def add(name: str, table: str, rows: int, theirs_rows: int, write: Callable[[], None]) -> None:
        place = setting.place()
        write()
        made.append(Workload(name=name, table=table, place=place, rows=rows, theirs_rows=theirs_rows))

    setting.run("DROP DATABASE IF EXISTS bench", "CREATE DATABASE bench", TABLE, "DO 1")
    setting.run("CREATE TABLE bench.document (id INT PRIMARY KEY, body JSON)", "DO 1")
    add("single-row transactions", "narrow", single, single // 20, lambda: write_single_rows(setting, 0, single))
    add("500-row transactions", "narrow", bulk, bulk // 10, lambda: write_bulk_rows(setting, single, bulk))
    setting.run("SET GLOBAL binlog_transaction_compression = ON", "DO 1")
    add(
        "500-row transactions, compressed",
        "narrow",
        bulk,
        0,
        lambda: write_bulk_rows(setting, single + bulk, bulk),
    )
    setting.run("SET GLOBAL binlog_transaction_compression = OFF", "DO 1")
    add("JSON documents", "document", documents, documents // 5, lambda: _write_documents(setting, documents))
    setting.place()
    return made


def _write_documents(setting: Setting, count: int) -> None:
    connection = setting.connect()
    with connection.cursor() as cursor:
        for first in range(0, count, _DOCUMENTS_A_TRANSACTION):
            numbers = range(first, first + _DOCUMENTS_A_TRANSACTION)
            cursor.executemany(
                "INSERT INTO bench.document VALUES (%s, %s)", [(i, json.dumps(_document(i))) for i in numbers]
            )
    connection.close()


def _document(number: int) -> dict[str, Any]:
    """What a shop keeps of an order: some 50 values in three levels."""
    lines = [
        {
            "sku": f"SKU-{number + line}",
            "name": "A thing of some length",
            "price": (number % 90) + line + 0.95,
            "quantity": line + 1,
            "tags": ["new", "red", "on sale"],
            "gift": False,
            "note": None,
        }
        for line in range(4)
    ]
    customer = {"id": number * 7, "name": f"Customer {number}", "city": "Zürich", "vip": True}
    return {"order": number, "customer": customer, "lines": lines, "total": number * 1.25, "state": "shipped"}


def _ours(setting: Setting, work: Workload) -> float:
    address = MySQLAddress(host="127.0.0.1", port=setting.mysql.port, user="root")
    with open_session(address, role="source") as session:
        table = describe(session, "bench", work.table)
    followed = Followed(table, tuple(column.name for column in table.columns))
    source = BinlogSource(
        address,
        {("bench", work.table): followed},
        watermark_schema="viewtail",
        own_schemas=frozenset({"viewtail"}),
        epoch=1,
    )
    file, start = work.place
    batches = iter(source.read(BinlogPosition(epoch=1, file=file, end=start, start=start)))
    before = next(batches).row_count  # connected by then
    gc.disable()  # as in a worker
    counted, began = 0, time.process_time()
    for batch in batches:
        counted += batch.row_count
        if before + counted >= work.rows:
            break
    seconds = time.process_time() - began
    gc.enable()
    return counted / seconds


def _theirs(setting: Setting, work: Workload) -> float:
    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": setting.mysql.port, "user": "root"},
        server_id=772,
        log_file=work.place[0],
        log_pos=work.place[1],
        resume_stream=True,
        only_events=[WriteRowsEvent],
        blocking=True,
    )
    gc.disable()
    next(iter(stream))
    counted, began = 0, time.process_time()
    for event in stream:
        counted += len(event.rows)
        if counted >= work.theirs_rows:
            break
    seconds = time.process_time() - began
    gc.enable()
    stream.close()
    return counted / seconds


def _raw(setting: Setting, work: Workload) -> float:
    address = MySQLAddress(host="127.0.0.1", port=setting.mysql.port, user="root")
    connection = DumpConnection(address, *work.place, heartbeat_s=2.0, server_id=None)
    buffer = bytearray(_BUFFER_BYTES)
    began = time.process_time()
    filled = at = 0
    is_over = False
    with memoryview(buffer) as view:
        while not is_over:
            filled += connection.receive_into(view[filled:])
            at = 0
            while filled - at >= 24 and (end := at + 4 + (_PACKET(buffer, at)[0] & 0xFFFFFF)) <= filled:
                # The next file's rotation, which is the first without a time.
                is_over = is_over or (buffer[at + 9] == 4 and _PACKET(buffer, at + 5)[0] != 0)
                at = end
            view[: filled - at] = view[at:filled]
            filled -= at
    seconds = time.process_time() - began
    connection.close()
    return work.rows / seconds
