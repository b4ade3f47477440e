"""The cleaner: how soon it mends a row that somebody damaged, and what it costs while there is nothing to mend."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import redis
import urllib3

from bench import live
from bench.cleaned import Step
from bench.lines import Line, Told, median
from bench.measured import processor_s
from bench.operators import STORES, forget
from bench.setting import Setting, Sizes, prepare, say, told, until, write_bulk_rows

RIGHT_WITHIN_S = 5.0
MOST_SHARE = 5.0  # per cent of one core
COST = 0.05  # of drain speed and of live latency
LONGEST_S = 120.0
WITHOUT, MET_NONE = "without its time", "changes that met none"
LINGERS_S = 0.1  # behind a step: a change that comes then waits for those that waited, and is no reference
LEAST_STEPS = 5  # of a store's live changes; with fewer their p99 tells of nothing
MOST_MET = 1.0  # per cent of the live changes
WARM_UP_S = 20.0  # before the first round: live changes wait while Java compiles what Elasticsearch runs often
_LIVE_FROM = 100_000_000


@dataclass(eq=False)
class Cleaning:
    """The measurements, and what they gave."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    _next: int = 0  # id of a row

    def measure(self) -> None:
        # It rests for no moment, so that what it costs is what it costs at work.
        on = self.setting.having(VIEWTAIL_CLEANER__REST_S="0")
        off = self.setting.having(VIEWTAIL_CLEANER__SHARE="0")
        for store in STORES:
            forget(self.setting)
            prepare(self.setting)
            self._next = 0
            with live.worker(off, store):
                self._drained(off, store)  # fills the view, and the table with what the cleaner goes round
            say(f"the cleaner, {store}, to warm up")
            self._live(on, store, WARM_UP_S)
            drain = Line(f"drain of {self.sizes.bulk:,} rows with the cleaner: {store}", "rows/s", WITHOUT, 1 - COST)
            p50 = Line(f"live with the cleaner, p50: {store}", "ms", MET_NONE, 1 + COST)
            p99 = Line(f"live with the cleaner, p99: {store}", "ms", MET_NONE, 1 + COST)
            self.lines += [drain, p50, p99]
            met = _Met()
            for number in range(self.rounds):
                say(f"the cleaner, {store}, round {number + 1} of {self.rounds}")
                drain.add(*self._drain(on, store))
                changes, steps = self._live(on, store, self.sizes.cleaned_s / self.rounds)
                every, others = live.latency(took_of(changes)), live.latency(took_of(met.others(changes, steps)))
                p50.add(every.p50_ms, others.p50_ms)
                p99.add(every.p99_ms, others.p99_ms)
            self.told += met.told(store)
            share = self._share(on, store) - self._share(off, store)
            self.told.append(median(f"share of one core at work: {store}", "%", [share], MOST_SHARE))
            with live.worker(self.setting, store):
                seconds = [self._mended(store) for _ in range(self.sizes.damaged)]
            self.told.append(median(f"a damaged row is right again: {store}", "s", seconds, RIGHT_WITHIN_S))

    # -- what it costs ------------------------------------------------------------------------------------------

    def _drain(self, setting: Setting, store: str) -> tuple[float, float]:
        """Rows/s of what waits when the pipeline begins, and what they would be without the time of the cleaner."""
        first, self._next = self._next, self._next + self.sizes.bulk
        write_bulk_rows(setting, first, self.sizes.bulk)
        # Its reports go where the result goes, before it.
        found = told(setting.python("bench.cleaned", store, "1", "drain", str(self.sizes.bulk)))
        return found["rows"] / found["seconds"], found["rows"] / (found["seconds"] - found["cleaner_s"])

    def _live(self, setting: Setting, store: str, seconds: float) -> tuple[list[live.Change], list[Step]]:
        """Live changes but for those of the first seconds, and the steps of the cleaner."""
        noted = setting.folder / "steps.json"
        noted.unlink(missing_ok=True)  # of a worker before this one
        with live.worker(setting, store, "bench.cleaned", ["live", str(noted)]):
            changes = self._changes(setting, store, seconds)
        return changes, [(began, ended) for began, ended in json.loads(noted.read_text())]

    def _changes(self, setting: Setting, store: str, seconds: float) -> list[live.Change]:
        seconds += live.WARM_S
        first, look = _LIVE_FROM + self._next, live.looker(setting, store, STORES[store][1])
        self._next += int(seconds * live.RATE)
        write = live.committer(setting, live.narrow)
        return live.changes_of(store, seconds, first, look, write)[int(live.WARM_S * live.RATE) :]

    def _drained(self, setting: Setting, store: str) -> None:
        write_bulk_rows(setting, self._next, self.sizes.bulk)
        self._next += self.sizes.bulk
        self._seen(setting, store, self._next - 1)
        filled = setting.connect().cursor()

        def is_filled() -> bool:
            filled.execute("SELECT COUNT(*) FROM viewtail.view WHERE state = 'filled'")
            return bool(filled.fetchone() == (1,))

        until("the view is filled", is_filled, LONGEST_S)

    @staticmethod
    def _seen(setting: Setting, store: str, row: int) -> None:
        look = live.looker(setting, store, STORES[store][1])
        until(f"{store}: row {row:,} is in the view", lambda: look(row), LONGEST_S)

    def _share(self, setting: Setting, store: str) -> float:
        """Per cent of one core that a pipeline takes while nothing changes."""
        with live.worker(setting, store) as process:
            time.sleep(1.0)  # what it does at its start is not counted
            before, began = processor_s(process.pid), time.monotonic()
            time.sleep(self.sizes.idle_s)
            return 100 * (processor_s(process.pid) - before) / (time.monotonic() - began)

    # -- how soon it mends --------------------------------------------------------------------------------------

    def _mended(self, store: str) -> float:
        """Seconds from the damage of a row that has just changed until it is right."""
        row, self._next = self._next, self._next + 1
        self.setting.run(f"INSERT INTO bench.narrow VALUES ({row}, 1, 'right', 1, NOW(6))", "DO 1")
        self._seen(self.setting, store, row)
        damage, name = _hands(self.setting, store, row)
        damage()
        began = time.monotonic()
        return until(f"{store}: the row is right", lambda: name() == "right", LONGEST_S) - began


def took_of(changes: Iterable[live.Change]) -> list[float]:
    """Milliseconds."""
    return [took_ms for _, took_ms in changes]


@dataclass(eq=False)
class _Met:
    """Live changes of a store that met steps of the cleaner, and the others."""

    steps: int = 0
    changes: int = 0
    met: int = 0

    def others(self, changes: Sequence[live.Change], steps: Sequence[Step]) -> list[live.Change]:
        """Those that met none, nor came a moment after one."""
        of = sorted((began, ended) for began, ended in steps if ended > changes[0][0] and began < changes[-1][0])
        longest_s = max((ended - began for began, ended in of), default=0.0)

        def ended_last(change: live.Change) -> float:
            """When the last step ended that had begun before the change was seen."""
            committed, seen = change[0], change[0] + change[1] / 1000
            first = bisect_left(of, (committed - LINGERS_S - longest_s, 0.0))
            return max((ended for _, ended in of[first : bisect_left(of, (seen, 0.0))]), default=float("-inf"))

        ended = [ended_last(change) for change in changes]
        self.steps, self.changes = self.steps + len(of), self.changes + len(changes)
        self.met += sum(last > committed for (committed, _), last in zip(changes, ended, strict=True))
        return [one for one, last in zip(changes, ended, strict=True) if last <= one[0] - LINGERS_S]

    def told(self, store: str) -> list[Told]:
        """Raises RuntimeError where too few steps were met for a measurement."""
        if self.steps < LEAST_STEPS or not self.met:
            raise RuntimeError(f"{store}: the cleaner made {self.steps} steps beside live changes, too few to measure")
        share = 100 * self.met / self.changes
        found = f"{share:.2f} %, of {self.steps} steps"
        met = "yes" if share <= MOST_MET else "NO"
        return [(f"live changes that met a step of the cleaner: {store}", found, f"≤ {MOST_MET:g} %", met)]


def _hands(setting: Setting, store: str, row: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """What damages a row, and what gives the name that it shows."""
    if store == "mysql":

        def shown() -> object:
            found = setting.run(f"SELECT name FROM viewtail.index_name WHERE id = {row}")
            return found[0].decode() if isinstance(found[0], bytes) else found[0]

        return lambda: setting.run(f"UPDATE viewtail.index_name SET name = 'damaged' WHERE id = {row}", "DO 1"), shown
    if store == "redis":
        client = redis.Redis(port=setting.redis.port, decode_responses=True)
        return lambda: client.hset(f"narrow:{row}", "name", "damaged"), lambda: client.hget(f"narrow:{row}", "name")
    pool = urllib3.HTTPConnectionPool("127.0.0.1", setting.elasticsearch.port)

    def document() -> dict[str, object]:
        found: dict[str, object] = json.loads(pool.request("GET", f"/narrow/_doc/{row}").data)
        return found

    def damage() -> None:
        found = document()
        where = f"/{found['_index']}/_doc/{row}?version={found['_version']}&version_type=external_gte"
        source = {**dict(found["_source"]), "name": "damaged"}  # type: ignore[call-overload]
        answer = pool.request("PUT", where, body=json.dumps(source), headers={"Content-Type": "application/json"})
        if answer.status != 200:
            raise RuntimeError(f"the document could not be damaged: {answer.status}")

    return damage, lambda: dict(document()["_source"])["name"]  # type: ignore[call-overload]
