"""What operators do with a large view while it is live: verify it, audit it, replay it, rebuild it.

One store after the other. Each round begins with a new view that the running viewtail backfills; the cleaner is off.
What is rebuilt is a smaller view: it gives way to live changes, so its time grows with every row, and nothing else.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path

import redis

from bench import live, reading
from bench.lines import Limit, Line, Told
from bench.setting import VIEWS, Setting, Sizes, prepare, say, until, write_bulk_rows

STORES = {
    "mysql": ("mysql:index_name", "viewtail.index_name", 0.5),  # view, where rows are looked up, the goal of verify
    "redis": ("redis:narrow", "narrow", 0.7),
    "elasticsearch": ("elasticsearch:narrow", "narrow", 0.7),
}
BULK = {"mysql": "both tables by one connection", "redis": "HGETALL in pipelines", "elasticsearch": "_mget"}
AUDIT_GOAL = 0.7
BOTH_SIDES = {store: bulk if store == "mysql" else f"{bulk}, and the table" for store, bulk in BULK.items()}
MOST_BLOCKED_MS = 100.0
LONGEST_S = 900.0
REBUILDS = 2  # a round; short ones, with what they are compared with before and behind each: the machine drifts
SLICE_S = 3.0  # of live latency, while a rebuild runs and beside it
_LIVE_FROM = 100_000_000  # ids of rows that are written meanwhile


@dataclass(eq=False)
class _Operated:
    """A view of one store and its viewtail, and what was measured of them."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)

    def _write(self, rows: int) -> None:
        say(f"writing {rows:,} rows")
        write_bulk_rows(self.setting, 0, rows)

    # -- the view -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _run(self, store: str) -> Iterator[None]:
        """`viewtail run` with a view that nobody has filled yet."""
        setting = self.setting.having(VIEWTAIL_CLEANER__SHARE="0")
        forget(setting)
        (setting.folder / "views.py").write_text(
            "from viewtail import Entity, IndexTable, RedisHash, SearchIndex\n\n"
            f'narrow = Entity("bench.narrow")\nviews = [{VIEWS[store]}]\n'
        )
        process = subprocess.Popen([_viewtail(), "run"], cwd=setting.folder, env=setting.environment)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)

    def _filled(self, store: str, rows: int) -> float:
        """Rows/s of the next backfill, from its watermark to its end."""
        view, _, _ = STORES[store]
        cursor = self.setting.connect().cursor()

        def state() -> str:
            with contextlib.suppress(Exception):  # the table is not there yet
                cursor.execute("SELECT state FROM viewtail.view WHERE name = %s", (view,))
                row = cursor.fetchone()
                return "" if row is None else str(row[0])
            return ""

        began = until(f"{view}: the backfill begins", lambda: state() == "filling", LONGEST_S)
        ended = until(f"{view}: it is filled", lambda: state() == "filled", LONGEST_S)
        return rows / (ended - began)

    def _viewtail(self, *arguments: str) -> str:
        found = subprocess.run(
            [_viewtail(), *arguments],
            cwd=self.setting.folder,
            env=self.setting.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_S,
        )
        if found.returncode:
            raise RuntimeError(f"viewtail {' '.join(arguments)} ended with {found.returncode}: {found.stderr}")
        return found.stdout


class Operators(_Operated):
    """Verify, audit and replay."""

    def measure(self) -> None:
        rows = self.sizes.operated
        prepare(self.setting)
        self._write(rows)
        for store, (_, _, goal) in STORES.items():
            verify = Line(f"verify of {rows:,} rows: {store}", "rows/s", BULK[store], goal)
            audit = Line(f"audit of {rows:,} rows: {store}", "rows/s", BOTH_SIDES[store], AUDIT_GOAL)
            replay = Line(f"replay of {rows:,} unchanged entities: {store}", "rows/s", "backfill", 1.0)
            where = Line(f"the same by --where TRUE: {store}", "rows/s", "backfill", 1.0)
            self.lines += [verify, audit, replay, where]
            for number in range(self.rounds):
                say(f"verify and replay, {store}, round {number + 1} of {self.rounds}")
                with self._run(store):
                    backfilled = self._filled(store, rows)
                    replay.add(self._replayed(store, rows), backfilled)
                    where.add(self._replayed_where(store, rows), backfilled)
                    verify.add(self._compared("verify", store, rows), reading.in_bulk(self.setting, store, rows))
                    audit.add(self._compared("audit", store, rows), reading.both_sides(self.setting, store, rows))

    def _replayed(self, store: str, rows: int) -> float:
        process = subprocess.Popen(
            [_viewtail(), "replay", STORES[store][0], "--yes"],
            cwd=self.setting.folder,
            env=self.setting.environment,
            stdout=subprocess.DEVNULL,
        )
        rate = self._filled(store, rows)
        if process.wait(LONGEST_S):
            raise RuntimeError(f"{store}: replay ended with {process.returncode}")
        return rate

    def _replayed_where(self, store: str, rows: int) -> float:
        said = self._viewtail("replay", STORES[store][0], "--where", "TRUE", "--yes")
        took = re.search(r"([\d,]+) entit(?:y|ies) in ([\d.]+) s", said)
        if took is None or took[1] != f"{rows:,}":
            raise RuntimeError(f"{store}: replay said {said!r}")
        return rows / max(float(took[2]), 0.05)

    def _compared(self, command: str, store: str, rows: int) -> float:
        (found,) = json.loads(self._viewtail(command, STORES[store][0], "--json"))["views"]
        if not found["is_equal"] or found["rows"] != rows:
            raise RuntimeError(f"{store}: {command} said {found}")
        return float(rows / found["took_s"])


class Rebuilds(_Operated):
    """Under live writes and reads."""

    def measure(self) -> None:
        rows = self.sizes.rebuilt
        prepare(self.setting)
        self._write(rows)
        for store in STORES:
            rebuilt = _Rebuilt(store, rows)
            self.lines += [rebuilt.p99, rebuilt.longest]
            for number in range(self.rounds * REBUILDS):
                say(f"rebuild, {store}, round {number + 1} of {self.rounds * REBUILDS}")
                with self._run(store):
                    self._rebuild(store, rebuilt, self._filled(store, rows))
                self.setting.run(f"DELETE FROM bench.narrow WHERE id >= {_LIVE_FROM}", "DO 1")
            self.told += rebuilt.told()

    def _rebuild(self, store: str, rebuilt: _Rebuilt, backfilled: float) -> None:
        """Under live writes, and with a client that reads all the time: before it, meanwhile, and when it is over."""
        setting, rows = self.setting, rebuilt.rows
        view, target, _ = STORES[store]
        look = live.looker(setting, store, target)
        first_ids = itertools.count(_LIVE_FROM, 10_000)

        def slice_of() -> list[float]:
            return live.delays(setting, store, SLICE_S, next(first_ids), look)

        def slices_beside() -> list[list[float]]:
            return [slice_of() for _ in range(ceil(self.sizes.beside_s / SLICE_S))]

        with reading.all_the_time(setting, store, rows) as read_before:
            beside = slices_beside()
        began = time.monotonic()
        process = subprocess.Popen(
            [_viewtail(), "rebuild", view], cwd=setting.folder, env=setting.environment, stdout=subprocess.DEVNULL
        )
        during: list[list[float]] = []
        with reading.all_the_time(setting, store, rows) as read:
            while process.poll() is None:
                during.append(slice_of())
        if process.returncode:
            raise RuntimeError(f"{store}: the rebuild ended with {process.returncode}")
        rebuilt.backfills.append((time.monotonic() - began) * backfilled / rows)
        with reading.all_the_time(setting, store, rows) as read_at_swap:
            self._viewtail("rebuild", view, "--rollback")
        self._viewtail("rebuild", view, "--abort", "--yes")
        with reading.all_the_time(setting, store, rows):  # the same load as before it
            beside += slices_beside()
        rebuilt.add(beside, during, read_before, read, read_at_swap)


@dataclass(eq=False)
class _Rebuilt:
    """The lines of a store's rebuilds."""

    store: str
    rows: int
    p99: Line = field(init=False)
    longest: Line = field(init=False)
    longest_ms: list[float] = field(default_factory=list)  # of all reads while it is built, one a round
    slowest_ms: list[float] = field(default_factory=list)  # of live changes, one a round
    reads: int = 0
    failed: int = 0
    backfills: list[float] = field(default_factory=list)  # that a rebuild takes the time of

    def __post_init__(self) -> None:
        self.p99 = Line(
            f"live during a rebuild of {self.rows:,} rows, p99: {self.store}", "ms", "before and behind", 2.0
        )
        self.longest = Limit(f"longest read during a swap: {self.store}", "ms", "before", MOST_BLOCKED_MS)

    def add(
        self,
        beside: list[list[float]],
        during: list[list[float]],
        read_before: dict[str, float],
        read: dict[str, float],
        read_at_swap: dict[str, float],
    ) -> None:
        self.p99.add(_p99(during), _p99(beside))
        self.slowest_ms.append(max(map(max, during)))
        self.longest.add(read_at_swap["longest_ms"], read_before["longest_ms"])
        self.longest_ms.append(read["longest_ms"])
        self.reads += int(read["reads"] + read_at_swap["reads"])
        self.failed += int(read["failed"] + read_at_swap["failed"])

    def told(self) -> list[Told]:
        what, met = f"failed reads during rebuilds and swaps: {self.store}", self.reads and not self.failed
        took = f"{statistics.median(self.backfills):.1f} times a backfill"
        return [
            (what, f"{self.failed:,} of {self.reads:,}", "0", "yes" if met else "NO"),
            (f"a rebuild under 300 transactions/s: {self.store}", took, "", ""),
            (f"slowest live change during a rebuild: {self.store}", f"{max(self.slowest_ms):.0f} ms", "", ""),
            (f"longest read of a whole rebuild: {self.store}", f"{max(self.longest_ms):.0f} ms", "", ""),
        ]


def _p99(slices: list[list[float]]) -> float:
    """The median of the slices' own: a disk that stalls now and then is not what is measured."""
    return statistics.median(live.latency(one).p99_ms for one in slices)


def forget(setting: Setting) -> None:
    """No view is left of whatever ran before; the canonical table stays."""
    setting.run("DROP DATABASE IF EXISTS viewtail", "DO 1")
    redis.Redis(port=setting.redis.port).flushall()
    names = f"{setting.elasticsearch.url}/_cat/indices/viewtail*?h=index"
    with urllib.request.urlopen(names, timeout=30) as answer:
        for name in answer.read().decode().split():
            ask = urllib.request.Request(f"{setting.elasticsearch.url}/{name}", method="DELETE")
            urllib.request.urlopen(ask, timeout=30).close()


def _viewtail() -> Path:
    return Path(sys.executable).with_name("viewtail")
