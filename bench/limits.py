"""`python -m bench.limits`: what is large, its peak memory, and its cost a row beside the same in small.

A bulk update of a gibibyte in one transaction, a row of 60 MB, 1,000 columns, 10,000 tables of which one is followed.
Each is read by a process of its own that decodes and delivers as `viewtail run` does, but writes nothing; the large
transaction and the large row go through the whole pipeline to Redis as well. Exit 1 when a limit is not held.

Beside each large thing stands a small one with the same work in it: the same rows in small transactions, the same bytes
in few columns, the same texts in short rows. The clock starts behind a first row, so that connecting and making the
table's decoder, which happen once, are not taken for a cost of rows.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path

import redis

import stack.mysql
import stack.redis
from bench.measured import peak_memory_mib
from bench.setting import CHECKOUT, Place, Setting, writable
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from viewtail.changes.batches import Followed
from viewtail.interpreter import tune_worker
from viewtail.servers.sessions import MySQLAddress, open_session

MOST_MIB = 512
MOST_COST = 1.3  # of a row beside the same row in small
ROUNDS = 5
LEAST_S = 0.6  # of processor time a turn: a shorter one is read several times
VIEWS = """
from viewtail import Entity, RedisHash

views = [RedisHash("{table}", Entity("limits.{table}"), fields=["{field}"])]
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How large the large is."""

    transaction_bytes: int = 1 << 30
    row_bytes: int = 60_000_000
    columns: int = 1_000
    tables: int = 10_000
    rows: int = 20_000  # of the small ones


SMALL = Sizes(transaction_bytes=48 << 20, row_bytes=17_500_000, columns=1_000, tables=300, rows=3_000)
_PAD = 900  # bytes of a row of the large transaction, which stand in it twice


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Rows in the binlog, and how a reader takes them."""

    name: str
    table: str
    columns: tuple[str, ...]
    place: Place
    rows: int  # with the first, from which on is measured
    work: float = 1.0  # in a row, where the one beside it has another share

    def run(self, port: int) -> tuple[float, float]:
        """Seconds of processor time a row, and the peak memory in MiB."""
        told = [
            str(port),
            self.table,
            ",".join(self.columns),
            self.place[0],
            str(self.place[1]),
            str(self.rows),
        ]
        done = subprocess.run(
            [sys.executable, "-m", "bench.limits", "--read", *told],
            cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, timeout=600, check=True,
        )  # fmt: skip
        found = json.loads(done.stdout)
        return found["seconds"] / found["rows"], found["memory_mib"]


def read(port: int, table: str, columns: str, file: str, start: int, rows: int) -> None:
    """In a process of its own: decode so many rows, again until it took long enough; prints one line of JSON."""
    address = MySQLAddress(host="127.0.0.1", port=port, user="root")
    with open_session(address, role="source") as session:
        followed = Followed(describe(session, "limits", table), tuple(columns.split(",")))
    tune_worker()  # as in a worker
    seconds, measured = 0.0, 0
    while seconds < LEAST_S:
        source = BinlogSource(
            address,
            {("limits", table): followed},
            watermark_schema="viewtail",
            own_schemas=frozenset({"viewtail"}),
            epoch=1,
        )
        took, count = _pass(source, BinlogPosition(epoch=1, file=file, end=start, start=start), rows)
        seconds, measured = seconds + took, measured + count
    print(json.dumps({"seconds": seconds, "rows": measured, "memory_mib": peak_memory_mib()}))


def _pass(source: BinlogSource, begin: BinlogPosition, rows: int) -> tuple[float, int]:
    """Processor time, and how many rows it was for: the first batch is unmeasured."""
    counted = unmeasured = 0
    began = 0.0
    for batch in source.read(begin):
        if batch.halts:
            raise RuntimeError(batch.halts[0].reason)
        counted += batch.row_count
        if not unmeasured:
            unmeasured, began = counted, time.process_time()
        if counted >= rows:
            break
    took = time.process_time() - began
    source.interrupt()
    return took, counted - unmeasured


class Cases:
    """Writes what is read."""

    def __init__(self, setting: Setting, sizes: Sizes) -> None:
        self.setting = setting
        self.sizes = sizes
        setting.run("DROP DATABASE IF EXISTS limits", "CREATE DATABASE limits", "DO 1")

    def transaction(self) -> tuple[Case, Case]:
        """One bulk update of so many bytes; the same in transactions of 500 rows. An update is two rows."""
        rows = self.sizes.transaction_bytes // (2 * _PAD)
        self.setting.run(
            "CREATE TABLE limits.big (id INT PRIMARY KEY, n INT, pad VARCHAR(1000))",
            "SET SESSION cte_max_recursion_depth = 100000000",
            f"INSERT INTO limits.big WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < {rows}) "
            f"SELECT i, i, REPEAT('x', {_PAD - 20}) FROM s",
            "DO 1",
        )
        first = "UPDATE limits.big SET n = n + 1 WHERE id = 1"
        place = self.setting.place()
        self.setting.run(first, "UPDATE limits.big SET n = n + 1", "DO 1")
        large = Case(
            name=f"a transaction of {self.sizes.transaction_bytes >> 20:,} MiB", table="big", columns=("id", "n"),
            place=place, rows=2 * rows + 2,
        )  # fmt: skip
        place, few = self.setting.place(), min(rows, 100_000)
        self.setting.run(
            first,
            *(
                f"UPDATE limits.big SET n = n + 1 WHERE id > {after} AND id <= {after + 500}"
                for after in range(0, few - 499, 500)
            ),
            "DO 1",
        )
        small = Case(
            name="the same rows in transactions of 500", table="big", columns=("id", "n"), place=place,
            rows=2 * (few - few % 500) + 2,
        )  # fmt: skip
        return large, small

    def row(self) -> tuple[Case, Case]:
        """A row so large that its event comes in several packets; as many bytes in rows of 60 kB."""
        self.setting.run("CREATE TABLE limits.wide_row (id INT PRIMARY KEY, body LONGTEXT)", "DO 1")
        size, made = self.sizes.row_bytes, []
        for name, row_bytes, count in (
            (f"a row of {size / 1e6:.0f} MB", size, 3),
            (f"as many bytes in rows of {size / 1e6:.0f} kB", size // 1000, 2000),
        ):
            place = self.setting.place()
            self.setting.run(
                "DELETE FROM limits.wide_row",
                "INSERT INTO limits.wide_row VALUES (-1, 'first')",
                *(f"INSERT INTO limits.wide_row VALUES ({at}, REPEAT('x', {row_bytes}))" for at in range(count)),
                "DO 1",
            )
            made.append(
                Case(
                    name=name, table="wide_row", columns=("id", "body"), place=place, rows=count + 1,
                    work=row_bytes / size,
                )
            )  # fmt: skip
        return made[0], made[1]

    def columns(self) -> Iterator[tuple[Case, Case]]:
        """Tables of so many columns of which two are followed: numbers; numbers with NULLs that no row repeats; texts.

        Beside the numbers stand the same followed columns, with the other bytes of the row in one text that nobody
        follows, so that what the columns cost is all of the difference. A NULL and the length of a text must be looked
        at wherever they stand, so those have as many of them in rows of some ten columns beside them.
        """
        count, rows = self.sizes.columns, self.sizes.rows
        others, null_bytes = count - 2, (count + 7) // 8
        rng = random.Random(1)

        few, sevens = max(1, others // 100), ", ".join("7" for _ in range(others))
        # In the row image the one text has a byte of NULL bits before it, and two of length.
        text = f"REPEAT('x', {4 * others + null_bytes - 3})"
        yield (
            self._filled("many", _columns(others, "INT"), rows, f"{count:,} numbers", repeat(sevens)),
            self._filled("one_text", "c TEXT", rows, "as many bytes in 3 columns", repeat(text)),
        )

        def halves(numbers: int) -> Iterator[str]:
            for _ in repeat(None):
                yield ", ".join(rng.choice(("7", "NULL")) for _ in range(numbers))

        def texts(number: int) -> Iterator[str]:
            return repeat(", ".join("'abcd'" for _ in range(number)))

        short = "VARCHAR(5) CHARACTER SET latin1 NOT NULL"
        for what, type_, values in (
            ("numbers, half of them NULL at random", "INT", halves),
            ("short texts", short, texts),
        ):
            wide = self._filled("many", _columns(others, type_), rows // 2, f"{count:,} {what}", values(others))
            narrow = self._filled(
                "few", _columns(few, type_), rows, f"as many in rows of {few + 2} columns", values(few)
            )
            yield wide, replace(narrow, work=few / others)

    def _filled(self, table: str, declared: str, rows: int, what: str, values: Iterator[str]) -> Case:
        """So many rows in transactions of 50, of which id and n are followed."""
        self.setting.run(
            f"DROP TABLE IF EXISTS limits.{table}",
            f"CREATE TABLE limits.{table} (id INT PRIMARY KEY, n INT, {declared})",
            "DO 1",
        )
        place = self.setting.place()
        statements = [f"INSERT INTO limits.{table} VALUES (-1, 7, {next(values)})"]
        for first in range(0, rows, 50):
            some = ", ".join(f"({number}, 7, {next(values)})" for number in range(first, min(first + 50, rows)))
            statements.append(f"INSERT INTO limits.{table} VALUES {some}")
        self.setting.run(*statements, "DO 1")
        return Case(name=what, table=table, columns=("id", "n"), place=place, rows=rows + 1)

    def tables(self) -> tuple[Case, Case]:
        """Rows of so many tables in turn, one of them followed; the same rows, all but those of one other table."""
        tables = self.sizes.tables
        for first in range(0, tables, 500):
            self.setting.run(
                *(f"CREATE TABLE limits.t{number} (id INT PRIMARY KEY, n INT)" for number in range(first, first + 500)),
                "DO 1",
            )
        self.setting.run("CREATE TABLE limits.one (id INT PRIMARY KEY, n INT)", "DO 1")
        made = []
        for name, others in ((f"{tables:,} tables, one followed", tables), ("two tables, one followed", 1)):
            self.setting.run("DELETE FROM limits.one", "DO 1")
            place, rows = self.setting.place(), 1
            self.setting.run("INSERT INTO limits.one VALUES (-1, 1)", "DO 1")
            for first in range(0, tables, 500):
                statements = []
                for number in range(first, first + 500):
                    rows += number % 10 == 0
                    if number % 10 == 0:
                        statements.append(f"INSERT INTO limits.one VALUES ({number}, 1)")
                    statements.append(
                        f"REPLACE INTO limits.t{number % others} VALUES ({number + (others == 1)}, {others})"
                    )
                self.setting.run(*statements, "DO 1")
            made.append(Case(name=name, table="one", columns=("id", "n"), place=place, rows=rows))
        return made[0], made[1]


def _columns(count: int, type_: str) -> str:
    return ", ".join(f"c{number} {type_}" for number in range(count))


def compare(setting: Setting, large: Case, small: Case, rounds: int) -> list[str]:
    """A line of the table; the two take turns."""
    costs, ratios, most = [], [], 0.0
    for _ in range(rounds):
        cost, memory = large.run(setting.mysql.port)
        costs.append(cost)
        most = max(most, memory)
        ratios.append(cost / large.work / (small.run(setting.mysql.port)[0] / small.work))
    ratio = statistics.median(ratios)
    is_held = most < MOST_MIB and ratio <= MOST_COST
    return [
        large.name,
        f"{most:.0f} MiB",
        f"{statistics.median(costs) * 1e6:,.1f} µs",
        f"{small.name}: {ratio:.2f}",
        "yes" if is_held else "NO",
    ]


def through(setting: Setting, case: Case, field: str) -> list[str]:
    """The same through the whole pipeline to Redis."""
    (setting.folder / "views.py").write_text(VIEWS.format(table=case.table, field=field))
    client = redis.Redis(port=setting.redis.port)
    client.flushall()
    witness = {"epoch": 1, "file": case.place[0], "end": case.place[1], "start": case.place[1], "gtid": ""}
    client.set("viewtail:viewtail:redis:witness", json.dumps(witness))
    setting.run("DROP DATABASE IF EXISTS viewtail", "DO 1")
    told = setting.measured("drain", "redis", str(case.rows), case.place[0], str(case.place[1]))
    most = told["memory_mib"]
    cost = f"{told['seconds'] / case.rows * 1e6:,.1f} µs"
    return [f"{case.name}, to Redis", f"{most:.0f} MiB", cost, "", "yes" if most < MOST_MIB else "NO"]


def measure(setting: Setting, sizes: Sizes, rounds: int) -> list[list[str]]:
    """All lines."""
    cases = Cases(setting, sizes)
    lines: list[list[str]] = []

    def add(line: list[str]) -> None:
        print(" | ".join(line), file=sys.stderr, flush=True)
        lines.append(line)

    large, small = cases.transaction()
    add(compare(setting, large, small, rounds))
    add(through(setting, large, "n"))
    large, small = cases.row()
    add(compare(setting, large, small, rounds))
    add(through(setting, large, "body"))
    for many, few in cases.columns():
        add(compare(setting, many, few, rounds))
    add(compare(setting, *cases.tables(), rounds))
    return lines


def table(lines: Sequence[Sequence[str]]) -> str:
    heads = [
        "What",
        "Peak memory",
        "Cost of a row",
        "Beside",
        f"Under {MOST_MIB} MiB, at most {MOST_COST} times the cost",
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in [heads, ["---"] * len(heads), *lines])


TEXT = """# Limits of size

You want to know how large a row, a transaction or a schema may be. `make limits` (`python -m bench.limits --out
docs/limits.md`) printed this page from what it measured on this machine: {machine}.

{table}

- **Peak memory** is the resident memory of the process that reads, with Python and all packages.
- **Cost of a row** is the processor time for reading and decoding it: the median of five turns, from the second row
  on. Connecting and making the table's decoder happen once and are not in it. An update is two rows.
- **To Redis** is the whole pipeline. Its cost is time on the clock.
- **XA**: the rows of an XA transaction share the version of its commit, so they go to the store at once. An XA
  transaction above `run.spool_bytes` (4 MiB unless set) halts its tables.

**Beside** compares each line with the same work in small pieces:

- Two of the 1,000 numbers are followed. The other row has those two and one text, so the factor is what columns cost
  that nobody follows. With NULLs or texts viewtail must look at each one.
- The 10,000 tables are written in turn, and every tenth row is in the table that is followed.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.limits", description=__doc__)
    parser.add_argument("--small", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--out", type=writable, help="write the page here too")
    parser.add_argument("--read", nargs=6, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        port, name, columns, file, start, rows = arguments.read
        read(int(port), name, columns, file, int(start), int(rows))
        return 0
    with tempfile.TemporaryDirectory(prefix="viewtail-limits-") as folder:
        # What is written is only to be read again; how it is flushed is not measured.
        options = [
            "--max-allowed-packet=128M", "--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2",
            "--innodb-file-per-table=OFF",
        ]  # fmt: skip
        mysql = stack.mysql.start(Path(folder) / "mysql", options=options)
        redis_server = stack.redis.start(Path(folder) / "redis")
        try:
            setting = Setting(servers={"mysql": mysql, "redis": redis_server}, folder=Path(folder) / "app")
            setting.folder.mkdir()
            machine = setting.machine()
            lines = measure(setting, SMALL if arguments.small else Sizes(), 1 if arguments.small else ROUNDS)
        finally:
            redis_server.stop()
            mysql.stop()
    text = TEXT.format(table=table(lines), machine=machine)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text)
    return int(any(line[-1] != "yes" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
