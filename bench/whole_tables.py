"""`python -m bench.whole_tables`: what a whole table costs beside an index table of the same columns and index.

Both sinks get the same batches in turns, as a pipeline makes them, and commit each. The table of results has rows/s of
both and their ratio: new rows, the same rows changed, half of them deleted, a mix.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import stack.mysql
from ingest.canonical import describe
from ingest.limits import Limits
from projectors.binding import bind
from projectors.stores.index_tables.sink import MySQLSink
from projectors.stores.index_tables.views import IndexTable, MySQLTable
from projectors.views import Entity
from viewtail.changes.writes import Key, ViewWrites, Write
from viewtail.servers.sessions import MySQLAddress, open_session

ROUNDS = 5
Writes = dict[Key, Write]
WORKS: dict[str, Callable[[int, int], Write]] = {
    "new rows": lambda number, version: Write(version, (f"name of {number}",)),
    "changed rows": lambda number, version: Write(version, (f"new name of {number}",)),
    "half deleted": lambda number, version: Write(version, None if number % 2 else (f"name of {number}",)),
    "written again, half new": lambda number, version: Write(version, (f"again {number}",)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as folder:
        server = stack.mysql.start(Path(folder))
        try:
            _measure(MySQLAddress(host=server.host, port=server.port, user="root", io_timeout_s=60), rows)
        finally:
            server.kill()


def _measure(address: MySQLAddress, rows: int) -> None:
    session = open_session(address, role="store")
    with session.cursor() as cursor:
        cursor.execute("CREATE DATABASE bench")
        cursor.execute("CREATE TABLE bench.narrow (id BIGINT PRIMARY KEY, name VARCHAR(64))")
    entity = Entity("bench.narrow")
    views = bind(
        [
            IndexTable("by_name", entity, value="name"),
            MySQLTable("whole", entity, indexes={"name_idx": ["name", "id"]}),
        ],
        lambda schema, name: describe(session, schema, name),
    )
    rates: dict[str, list[tuple[float, float]]] = {work: [] for work in WORKS}
    for round_ in range(ROUNDS):
        with session.cursor() as cursor:
            cursor.execute("DROP DATABASE IF EXISTS bench_views")
        sinks = [MySQLSink(lambda: open_session(address, role="store"), "bench_views", [view]) for view in views]
        for sink in sinks:
            sink.prepare()
        for version, (work, write) in enumerate(WORKS.items(), 1):
            seconds = [0.0, 0.0]
            for batch in _batches(rows, write, version):
                for at in (0, 1) if round_ % 2 else (1, 0):
                    began = time.perf_counter()
                    sinks[at].write([ViewWrites(views[at].id, batch)], None)
                    sinks[at].connection.commit()
                    seconds[at] += time.perf_counter() - began
            rates[work].append((rows / seconds[0], rows / seconds[1]))
        for sink in sinks:
            sink.close()
    print("| Work | index table, rows/s | whole table, rows/s | ratio |\n|---|---|---|---|")
    for work, pairs in rates.items():
        index, whole = (statistics.median(rate[at] for rate in pairs) for at in (0, 1))
        ratio = statistics.median(second / first for first, second in pairs)
        print(f"| {work} | {index:,.0f} | {whole:,.0f} | {ratio:.2f} |")


def _batches(rows: int, write: Callable[[int, int], Write], version: int) -> Iterator[Writes]:
    size = Limits().batch_rows
    for begin in range(0, rows, size):
        yield {(number,): write(number, version) for number in range(begin, min(begin + size, rows))}


if __name__ == "__main__":
    main()
