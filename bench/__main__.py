"""`python -m bench`: every figure of docs/performance.md, as ratios within one run, medians over rounds.

Exit 0 when everything was measured, 1 when a measurement failed or lost rows. Whether a goal is met is in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import redis

import stack.elasticsearch
import stack.mysql
import stack.redis
from bench import bare, decode, live, starts
from bench.measured import peak_memory_mib
from bench.setting import Place, Setting, prepare, write_bulk_rows, write_single_rows
from stack import StackError

MEASUREMENTS = ("decode", "drains", "elasticsearch", "backfill", "live", "starts")


TURNS = 3  # of reference and ours in one round


@dataclass(frozen=True, slots=True)
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


QUICK = Sizes(
    single=10_000,
    bulk=20_000,
    documents=10_000,
    floor_single=3_000,
    floor_bulk=20_000,
    live_s=5.0,
    json_rows=2_000,
    views=20,
)


@dataclass(slots=True)
class Line:
    """One line of the table; each round adds a pair."""

    work: str
    unit: str  # 'rows/s': more is better; 'ms' and 'MiB': less is
    reference: str
    goal: float
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    def add(self, ours: float, theirs: float) -> None:
        self.ours.append(ours)
        self.theirs.append(theirs)

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def is_met(self) -> bool:
        ratio = statistics.median(self.ratios)
        return ratio >= self.goal if self.unit == "rows/s" else ratio <= self.goal

    def cells(self) -> list[str]:
        ratios, sign = self.ratios, "≥" if self.unit == "rows/s" else "≤"
        digits = 0 if self.unit != "ms" else 2
        spread = "" if len(ratios) < 2 else f" ({min(ratios):.2f} to {max(ratios):.2f})"
        return [
            self.work,
            f"{statistics.median(self.ours):,.{digits}f} {self.unit}",
            f"{self.reference}: {statistics.median(self.theirs):,.{digits}f}",
            f"{statistics.median(ratios):.2f}{spread}",
            f"{sign} {self.goal:g}",
            "yes" if self.is_met else "NO",
        ]


class Bench:
    """The servers, and what was measured so far."""

    def __init__(self, setting: Setting, sizes: Sizes, rounds: int) -> None:
        self.setting = setting
        self.sizes = sizes
        self.rounds = rounds
        self.lines: list[Line] = []
        self.memory_mib: dict[str, float] = {}
        self.decoded: list[decode.Workload] = []
        self.started: list[starts.Told] = []

    def line(self, work: str, unit: str, reference: str, goal: float) -> Line:
        self.lines.append(Line(work, unit, reference, goal))
        return self.lines[-1]

    def child(self, *arguments: str) -> float:
        """Seconds that a measured pipeline took."""
        process = self.setting.python("bench.measured", *arguments)
        output, _ = process.communicate(timeout=600)
        if process.returncode != 0:
            raise RuntimeError(f"bench.measured {' '.join(arguments)} ended with {process.returncode}")
        told = json.loads(output.splitlines()[-1])
        store = arguments[1]
        self.memory_mib[store] = max(self.memory_mib.get(store, 0.0), told["memory_mib"])
        return float(told["seconds"])

    # -- the measurements ---------------------------------------------------------------------------------------

    def decode(self) -> None:
        """Reading and decoding alone, in rows a second of processor time."""
        sizes = self.sizes
        say("writing what is decoded")
        works = decode.workloads(self.setting, sizes.single, sizes.bulk, sizes.json_rows)
        for number in range(self.rounds * decode.SLICES):
            say(f"decoding, slice {number + 1} of {self.rounds * decode.SLICES}")
            for work in works:
                work.measure(self.setting)
        single, bulk, packed, documents = works
        for work, goal in ((single, 20.0), (bulk, 12.0), (documents, 5.0)):
            line = self.line(f"decode {work.name}", "rows/s", "library", goal)
            line.ours, line.theirs = work.ours, work.theirs
        line = self.line(f"decode {packed.name}", "rows/s", "uncompressed", 0.77)
        line.ours, line.theirs = packed.ours, bulk.ours
        self.decoded = works

    def drains(self) -> None:
        """Single-row and bulk transactions, to a MySQL index table and to Redis."""
        sizes, setting = self.sizes, self.setting
        prepare(setting)
        self._fill_everything()
        single_at = setting.place()
        say(f"writing {sizes.single:,} single-row transactions")
        write_single_rows(setting, sizes.single)
        bulk_at = setting.place()
        write_bulk_rows(setting, sizes.single, sizes.bulk)
        setting.place()
        floor = {
            "mysql": self.line(f"drain {sizes.single:,} single-row transactions to MySQL", "rows/s", "floor", 12),
            "redis": self.line(f"drain {sizes.single:,} single-row transactions to Redis", "rows/s", "floor", 12),
        }
        bulk = {
            "mysql": self.line(f"drain {sizes.bulk:,} rows in 500s to MySQL", "rows/s", "bare", 0.7),
            "redis": self.line(f"drain {sizes.bulk:,} rows in 500s to Redis", "rows/s", "bare", 0.7),
        }
        peers: dict[str, Callable[[Setting, int], float]] = {"mysql": bare.mysql, "redis": bare.redis_}
        for number in range(self.rounds):
            say(f"drains, round {number + 1} of {self.rounds}")
            for store in ("mysql", "redis"):
                by_turns(
                    floor[store],
                    lambda: bare.floor(setting, single_at, sizes.floor_single // TURNS),
                    lambda store=store: sizes.single / self._drain(store, sizes.single, single_at),
                )
                by_turns(
                    bulk[store],
                    lambda store=store: peers[store](setting, sizes.bulk),
                    lambda store=store: sizes.bulk / self._drain(store, sizes.bulk, bulk_at),
                )

    def _drain(self, store: str, rows: int, place: Place) -> float:
        """Into an empty target: seconds. Raises when rows are missing afterwards."""
        if store == "mysql":
            self.setting.run("DROP TABLE IF EXISTS viewtail.index_name", "DO 1")
        else:
            client = redis.Redis(port=self.setting.redis.port)
            client.flushall()
            # A Redis without its witness would be filled from the table instead.
            witness = {"epoch": 1, "file": place[0], "end": place[1], "start": place[1], "gtid": ""}
            client.set("viewtail:viewtail:redis:witness", json.dumps(witness))
        seconds = self.child("drain", store, str(rows), place[0], str(place[1]))
        self._check(store, rows)
        return seconds

    def _check(self, store: str, rows: int) -> None:
        if store == "mysql":
            wrong = self.setting.run(
                "SELECT COUNT(*) FROM viewtail.index_name v LEFT JOIN bench.narrow n ON n.id = v.id "
                "WHERE NOT (n.name <=> CONVERT(v.name USING utf8mb4))"
            )[0]
            count = self.setting.run("SELECT COUNT(*) FROM viewtail.index_name")[0]
        else:
            client = redis.Redis(port=self.setting.redis.port)
            count, wrong = client.dbsize() - 1, 0
        if count < rows or wrong:
            raise RuntimeError(f"{store}: {count:,} rows of {rows:,} arrived, {wrong:,} are wrong")

    def _fill_everything(self) -> None:
        """Fill the views of the empty table, so that what follows is only the stream."""
        redis.Redis(port=self.setting.redis.port).flushall()
        self._delete_index("viewtail-narrow")
        for store in ("mysql", "redis", "elasticsearch"):
            self.child("fill", store)

    def elasticsearch(self) -> None:
        """The same rows as documents; each round into an index of its own."""
        rows = self.sizes.documents
        line = self.line(f"drain {rows:,} rows in 500s to Elasticsearch", "rows/s", "parallel_bulk", 0.9)
        for number in range(self.rounds):
            say(f"Elasticsearch, round {number + 1} of {self.rounds}")
            prepare(self.setting)
            self._fill_everything()
            place = self.setting.place()
            write_bulk_rows(self.setting, 0, rows)
            self.setting.place()
            peer = bare.elasticsearch(self.setting, rows)
            line.add(rows / self.child("drain", "elasticsearch", str(rows), place[0], str(place[1])), peer)
            found = json.loads(self._ask("POST", "/viewtail-narrow/_refresh") and self._ask("GET", "/narrow/_count"))
            if found["count"] != rows:
                raise RuntimeError(f"elasticsearch: {found['count']:,} documents of {rows:,} arrived")

    def backfill(self) -> None:
        """Fill an index table from the canonical rows."""
        rows = self.sizes.bulk
        prepare(self.setting)
        write_bulk_rows(self.setting, 0, rows)
        line = self.line(f"backfill of {rows:,} rows to MySQL", "rows/s", "bare", 0.7)

        def peer() -> float:
            self.setting.run("CREATE DATABASE IF NOT EXISTS viewtail", "DO 1")
            return bare.mysql(self.setting, rows)

        def ours() -> float:
            self.setting.run("DROP DATABASE viewtail", "DO 1")
            seconds = self.child("fill", "mysql")
            self._check("mysql", rows)
            return rows / seconds

        for number in range(self.rounds):
            say(f"backfill, round {number + 1} of {self.rounds}")
            by_turns(line, peer, ours)

    def live(self) -> None:
        """Commit to visible at 300 transactions a second, a store at a time: the bare loop and ours by turns."""
        targets = {"mysql": "viewtail.index_name", "redis": "narrow", "elasticsearch": "viewtail-narrow"}
        for store, target in targets.items():
            prepare(self.setting)
            self.setting.run(live.BARE_TABLE, "DO 1")
            self._delete_index("bare")
            self._fill_everything()
            p50 = self.line(f"live to {store}, p50", "ms", "bare", 1.5)
            p99 = self.line(f"live to {store}, p99", "ms", "bare", 3)
            slice_s = self.sizes.live_s / self.rounds
            for number in range(self.rounds):
                say(f"live to {store}, round {number + 1} of {self.rounds}: {slice_s:.0f} s bare and as long ours")
                theirs = self._live_bare(store, slice_s, 1 + number * 1_000_000)
                ours = self._live(store, target, slice_s, 100_000_000 + number * 1_000_000)
                p50.add(ours.p50_ms, theirs.p50_ms)
                p99.add(ours.p99_ms, theirs.p99_ms)

    def _live_bare(self, store: str, seconds: float, first_id: int) -> live.Latency:
        process = live.start_bare(self.setting, store)
        look = live.looker(self.setting, store, "bench.bare" if store == "mysql" else "bare")
        found = live.measure(self.setting, store, seconds, first_id, look)
        process.kill()
        process.wait()
        return found

    def _live(self, store: str, target: str, seconds: float, first_id: int) -> live.Latency:
        read_end, write_end = os.pipe()
        worker = self._worker(store, read_end, write_end)
        found = live.measure(self.setting, store, seconds, first_id, live.looker(self.setting, store, target))
        self.memory_mib[store] = max(self.memory_mib.get(store, 0.0), peak_memory_mib(str(worker.pid)))
        worker.terminate()
        worker.wait(20)
        os.close(read_end)
        return found

    def _worker(self, store: str, read_end: int, write_end: int) -> subprocess.Popen[bytes]:
        """The worker process as `viewtail run` starts it, running when this returns."""
        worker = subprocess.Popen(
            [sys.executable, "-m", "viewtail.process", store, str(write_end)],
            cwd=self.setting.folder,
            env=self.setting.environment,
            pass_fds=[write_end],
        )
        os.close(write_end)
        while b'"state":"running"' not in os.read(read_end, 65536):
            pass
        return worker

    def starts(self) -> None:
        """A first run with many views, and one with a large table."""
        say("first runs: many views, a large backfill")
        self.started = starts.measure(self.setting, self.sizes.views, self.sizes.bulk, self.rounds)

    # -- Elasticsearch by hand ----------------------------------------------------------------------------------

    def _ask(self, method: str, path: str) -> str:
        request = urllib.request.Request(self.setting.elasticsearch.url + path, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())

    def _delete_index(self, index: str) -> None:
        self._ask("DELETE", f"/{index}?ignore_unavailable=true")


def by_turns(line: Line, theirs: Callable[[], float], ours: Callable[[], float]) -> None:
    """One round: reference and ours a few times in alternation, since the machine's speed changes within seconds."""
    rates = [(theirs(), ours()) for _ in range(TURNS)]
    line.add(
        statistics.harmonic_mean([ours for _, ours in rates]),
        statistics.harmonic_mean([it for it, _ in rates]),
    )


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def table(bench: Bench) -> str:
    """The table in Markdown, as docs/performance.md holds it."""
    heads = ["Work", "viewtail", "Reference", "Ratio, median (min to max)", "Goal", "Met"]
    rows = [line.cells() for line in bench.lines]
    if bench.memory_mib:
        most = max(bench.memory_mib.values())
        told = ", ".join(f"{store} {mib:.0f}" for store, mib in bench.memory_mib.items())
        met = "yes" if most <= 150 else "NO"
        rows.append(["peak resident memory of a pipeline", f"{told} MiB", "", f"{most:.0f} MiB", "≤ 150 MiB", met])
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])


def decoded(bench: Bench) -> str:
    """What one core decodes, beside what receiving alone takes."""
    if not bench.decoded:
        return ""
    heads = [
        "Rows a second of one core",
        "viewtail",
        "library",
        "bare packets",
        "viewtail's share of bare packets",
    ]
    cells = [heads, ["---"] * len(heads), *(work.cells() for work in bench.decoded)]
    return "\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in cells)


def started(bench: Bench) -> str:
    """What a first run takes."""
    if not bench.started:
        return ""
    cells = [["From the start of `viewtail run`", "viewtail", "Goal", "Met"], ["---"] * 4, *bench.started]
    return "\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in cells)


def machine(bench: Bench) -> str:
    return f"{bench.setting.machine()}, Elasticsearch {stack.elasticsearch.VERSION}; {bench.rounds} rounds"


TEXT = """# Performance

You want to know how fast viewtail is. `python -m bench --out docs/performance.md` printed this page. Every figure
is a ratio against a reference that was measured in the same run, on this machine: {machine}. The servers run on the
same cores as what is measured.

{table}{decoded}{started}

The references:

- **library**: python-mysql-replication. Its rows are counted in seconds of processor time, as ours are. Garbage
  collection is off for both.
- **bare packets**: the same stream, received and stepped over packet by packet. The three take turns in slices of a
  second or so.
- **floor**: python-mysql-replication (BinLogStreamReader, write events) that only counts the same rows.
- **bare**: the same statements or scripts, ready-made, from one connection that does nothing else. Live, it is a
  raw dump connection with a hard-wired parser that writes each row to the store at once (in MySQL by the same
  guarded upsert).
- **parallel_bulk**: elasticsearch.helpers with its defaults (4 threads, 500 documents a request), documents
  ready-made.

The rows and documents:

- A row has a BIGINT key, INT, VARCHAR(64), BIGINT and TIMESTAMP(6). The index table holds the VARCHAR, the hash the
  VARCHAR and the BIGINT, the document three columns.
- The JSON documents have some 40 members in three levels, 100 a transaction. Checksums are on.

How it is measured:

- A round of the drains to MySQL and Redis and of the backfill is {turns} turns, reference and ours one after the
  other. Its rates are of all rows over all the time. Of the other work a round is one turn.
- A drain is timed inside the process, from the call of the pipeline's loop to the last row applied. Python's start
  is not in it. The rows are written before it with relaxed flushing, which is set back before anything is timed.
- After each drain the rows are counted, and in MySQL compared with the table.
- Live, the 60 s are as many slices as rounds, the bare loop and ours by turns. A second thread looks for each row
  by key, every 0.2 ms. In Elasticsearch that is a get; a search sees a row only after the index's refresh interval,
  1 s by default.
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--only", nargs="+", choices=MEASUREMENTS, default=MEASUREMENTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the document here too")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="viewtail-bench-") as folder:
        servers = []
        try:
            for start, name in (
                (stack.mysql.start, "mysql"),
                (stack.redis.start, "redis"),
                (stack.elasticsearch.start, "elasticsearch"),
            ):
                say(f"starting {name}")
                servers.append(start(Path(folder) / name))
            mysql, redis_server, elasticsearch = servers
            setting = Setting(mysql=mysql, redis=redis_server, elasticsearch=elasticsearch, folder=Path(folder) / "app")
            setting.folder.mkdir()
            bench = Bench(setting, QUICK if arguments.quick else Sizes(), arguments.rounds)
            for name in arguments.only:
                getattr(bench, name)()
            text = TEXT.format(
                machine=machine(bench), turns=TURNS, table=table(bench), decoded=decoded(bench), started=started(bench)
            )
        except (RuntimeError, StackError, AssertionError) as error:
            say(f"failed: {error}")
            return 1
        finally:
            for server in servers:
                server.stop()
    print(text)
    say(f"took {time.monotonic() - began:.0f} s")
    if arguments.out is not None:
        arguments.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
