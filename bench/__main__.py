"""`python -m bench`: the figures of docs/performance.md, as ratios within one run, medians over rounds.

Exit 0 when everything was measured, 1 when a measurement failed or lost rows. Whether a goal is met is in the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import redis

import stack.elasticsearch
import stack.mysql
import stack.redis
from bench import bare, decode, live, starts, through_kafka, topics
from bench.cleaning import Cleaning
from bench.commands import Commands
from bench.consoled import Consoled
from bench.documents import Documents, HotProduct
from bench.lines import TURNS, Line, Told, by_turns
from bench.live import Latency
from bench.masking import Masking
from bench.measured import peak_memory_mib
from bench.operators import Operators, Rebuilds
from bench.page import (
    BINLOG,
    CLEANER,
    CONSOLE,
    DOCUMENTS,
    ENTITIES,
    OPERATORS,
    REBUILT,
    TOPICS,
    operated,
    page,
    section,
)
from bench.polling import Polling
from bench.pushing import Pushing
from bench.setting import (
    QUICK,
    Place,
    Setting,
    Sizes,
    prepare,
    say,
    start_broker,
    writable,
    write_bulk_rows,
    write_single_rows,
)
from bench.storing import Storing
from stack import StackError

# The servers that each part needs.
PARTS = {
    "decode": ("mysql",),
    "drains": ("mysql", "redis"),
    "masks": ("mysql",),
    "elasticsearch": ("mysql", "elasticsearch"),
    "backfill": ("mysql",),
    "live": ("mysql", "redis", "elasticsearch"),
    "starts": ("mysql", "redis"),
    "kafka": ("mysql", "kafka"),
    "through-kafka": ("mysql", "redis", "kafka"),
    "operators": ("mysql", "redis", "elasticsearch"),
    "rebuilds": ("mysql", "redis", "elasticsearch"),
    "cleaner": ("mysql", "redis", "elasticsearch"),
    "console": ("mysql", "redis"),
    "polling": ("mysql",),
    "commands": ("mysql",),
    "datastore": ("mysql",),
    "push": ("mysql", "redis", "elasticsearch"),
    "documents": ("mysql", "redis", "elasticsearch"),
    "hot-product": ("mysql", "redis"),
}
_START = {
    "mysql": stack.mysql.start,
    "redis": stack.redis.start,
    "elasticsearch": stack.elasticsearch.start,
    "kafka": start_broker,
}


# The page has a section for these, and one for the others.
SECTIONS = {
    "kafka": TOPICS,
    "through-kafka": TOPICS,
    "operators": OPERATORS,
    "rebuilds": REBUILT,
    "cleaner": CLEANER,
    "console": CONSOLE,
    "polling": ENTITIES,
    "commands": ENTITIES,
    "datastore": ENTITIES,
    "push": ENTITIES,
    "documents": DOCUMENTS,
    "hot-product": DOCUMENTS,
}


def _command(parts: Sequence[str]) -> str:
    return f"python -m bench --only {' '.join(parts)}"


class Noted(Protocol):
    """What measures a part of a section."""

    lines: list[Line]
    told: list[Told]

    def measure(self) -> None: ...


class Bench:
    """The servers, and what was measured so far."""

    def __init__(self, setting: Setting, sizes: Sizes, rounds: int) -> None:
        self.setting = setting
        self.sizes = sizes
        self.rounds = rounds
        self.lines: list[Line] = []
        self.memory_mib: dict[str, float] = {}
        self.topic_lines: list[Line] = []
        self.topic_memory_mib: dict[str, float] = {}
        self.decoded: list[decode.Workload] = []
        self.started: list[starts.Told] = []
        self.noted: dict[str, tuple[list[Line], list[Told]]] = {
            name: ([], []) for name in (OPERATORS, REBUILT, CLEANER, ENTITIES, DOCUMENTS, CONSOLE)
        }

    def line(self, work: str, unit: str, reference: str, goal: float) -> Line:
        self.lines.append(Line(work, unit, reference, goal))
        return self.lines[-1]

    def child(self, *arguments: str) -> float:
        """Seconds that a measured pipeline took."""
        found = self.setting.measured(*arguments)
        store = arguments[1]
        self.memory_mib[store] = max(self.memory_mib.get(store, 0.0), found["memory_mib"])
        return found["seconds"]

    def sections(self, parts: Sequence[str]) -> dict[str, str]:
        """What was measured, by the page's section."""
        machine = f"{self.setting.machine()}; {self.rounds} rounds"
        of: dict[str, list[str]] = {}
        for part in parts:
            of.setdefault(SECTIONS.get(part, BINLOG), []).append(part)
        written: dict[str, Callable[[str], str]] = {
            BINLOG: lambda command: section(command, machine, self.lines, self.memory_mib, self.decoded, self.started),
            TOPICS: lambda command: section(command, machine, self.topic_lines, self.topic_memory_mib),
        }
        written |= {
            name: partial(operated, machine=machine, lines=of[0], told=of[1]) for name, of in self.noted.items()
        }
        return {name: written[name](_command(some)) for name, some in of.items()}

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
        write_single_rows(setting, 0, sizes.single)
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
                    partial(bare.floor, setting, single_at, sizes.floor_single // TURNS),
                    partial(self._drain, store, sizes.single, single_at),
                )
                by_turns(
                    bulk[store],
                    partial(peers[store], setting, sizes.bulk),
                    partial(self._drain, store, sizes.bulk, bulk_at),
                )

    def masks(self) -> None:
        """The same rows with and without masks."""
        work = Masking(self.setting, self.sizes, self.rounds)
        work.measure()
        self.lines += work.lines

    def _drain(self, store: str, rows: int, place: Place) -> float:
        """Into an empty target: rows/s. Raises when rows are missing afterwards."""
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
        return rows / seconds

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
        servers = self.setting.servers
        if "redis" in servers:
            redis.Redis(port=self.setting.redis.port).flushall()
        if "elasticsearch" in servers:
            self._delete_index("viewtail-narrow")
        for store in ("mysql", "redis", "elasticsearch"):
            if store in servers:
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

    def _live_bare(self, store: str, seconds: float, first_id: int) -> Latency:
        look = live.looker(self.setting, store, "bench.bare" if store == "mysql" else "bare")
        with live.bare(self.setting, store):
            return live.measure(self.setting, store, seconds, first_id, look)

    def _live(self, store: str, target: str, seconds: float, first_id: int) -> Latency:
        look = live.looker(self.setting, store, target)
        with live.worker(self.setting, store) as process:
            found = live.measure(self.setting, store, seconds, first_id, look)
            self.memory_mib[store] = max(self.memory_mib.get(store, 0.0), peak_memory_mib(str(process.pid)))
        return found

    def starts(self) -> None:
        """A first run with many views, and one with a large table."""
        say("first runs: many views, a large backfill")
        self.started = starts.measure(self.setting, self.sizes.views, self.sizes.bulk, self.rounds)

    def kafka(self) -> None:
        """The tailer of topics."""
        lines, self.topic_memory_mib["kafka"] = topics.measure(self.setting, self.sizes, self.rounds)
        self.topic_lines += lines

    def through_kafka(self) -> None:
        """Views that are fed from a topic."""
        self.topic_lines += through_kafka.measure(self.setting, self.sizes, self.rounds)

    def operators(self) -> None:
        """Verify and replay a large view."""
        self._note(OPERATORS, Operators(self.setting, self.sizes, self.rounds))

    def rebuilds(self) -> None:
        """Rebuild a view that is live."""
        self._note(REBUILT, Rebuilds(self.setting, self.sizes, self.rounds))

    def cleaner(self) -> None:
        """What mends views in the background."""
        self._note(CLEANER, Cleaning(self.setting, self.sizes, self.rounds))

    def console(self) -> None:
        """What the console costs live changes."""
        self._note(CONSOLE, Consoled(self.setting, self.sizes, self.rounds))

    def polling(self) -> None:
        """The polling source, beside the tailer."""
        self._note(ENTITIES, Polling(self.setting, self.sizes, self.rounds))

    def commands(self) -> None:
        """Commands to event-sourced entities."""
        self._note(ENTITIES, Commands(self.setting, self.sizes, self.rounds))

    def datastore(self) -> None:
        """Entities without a schema, and their indexes."""
        self._note(ENTITIES, Storing(self.setting, self.sizes, self.rounds))

    def push(self) -> None:
        """What a worker of event-sourced entities pushes."""
        self._note(ENTITIES, Pushing(self.setting, self.sizes, self.rounds))

    def documents(self) -> None:
        """Documents of several tables."""
        self._note(DOCUMENTS, Documents(self.setting, self.sizes, self.rounds))

    def hot_product(self) -> None:
        """What changes beside a fan-out."""
        self._note(DOCUMENTS, HotProduct(self.setting, self.sizes, self.rounds))

    def _note(self, name: str, work: Noted) -> None:
        work.measure()
        lines, told = self.noted[name]
        lines += work.lines
        told += work.told

    # -- Elasticsearch by hand ----------------------------------------------------------------------------------

    def _ask(self, method: str, path: str) -> str:
        request = urllib.request.Request(self.setting.elasticsearch.url + path, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())

    def _delete_index(self, index: str) -> None:
        self._ask("DELETE", f"/{index}?ignore_unavailable=true")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, help="of a view that is verified and replayed; 1,000,000 by default")
    parser.add_argument("--out", type=writable, help="write the document here too")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else Sizes()
    if arguments.rows is not None:
        sizes = replace(sizes, operated=arguments.rows)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="viewtail-bench-") as folder:
        setting = Setting(servers={}, folder=Path(folder) / "app")
        setting.folder.mkdir()
        try:
            bench = Bench(setting, sizes, arguments.rounds)
            for name in arguments.only:
                for server in PARTS[name]:
                    start(setting, server, Path(folder))
                getattr(bench, name.replace("-", "_"))()
            text = page("" if arguments.out is None else arguments.out.read_text(), bench.sections(arguments.only))
        except (RuntimeError, StackError, AssertionError) as error:
            say(f"failed: {error}")
            return 1
        finally:
            for running in setting.servers.values():
                running.stop()
    print(text)
    say(f"took {time.monotonic() - began:.0f} s")
    if arguments.out is not None:
        arguments.out.write_text(text)
    return 0


def start(setting: Setting, server: str, folder: Path) -> None:
    """Start a server unless it runs: a part of the bench that needs none of it starts none."""
    if server not in setting.servers:
        say(f"starting {server}")
        setting.servers[server] = _START[server](folder / server)


if __name__ == "__main__":
    sys.exit(main())
