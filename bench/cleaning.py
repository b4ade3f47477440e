"""The cleaner: how soon it mends a row that somebody damaged, and what it costs while there is nothing to mend."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
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
MET_S = 0.02  # behind a step: a change that comes then waits for those that waited
WARM_S = 20.0  # before the first round: live changes wait while Java compiles what Elasticsearch runs often
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
            self._live(on, store, WARM_S)
            drain = Line(f"drain of {self.sizes.bulk:,} rows with the cleaner: {store}", "rows/s", WITHOUT, 1 - COST)
            p50 = Line(f"live with the cleaner, p50: {store}", "ms", MET_NONE, 1 + COST)
            p99 = Line(f"live with the cleaner, p99: {store}", "ms", MET_NONE, 1 + COST)
            self.lines += [drain, p50, p99]
            for number in range(self.rounds):
                say(f"the cleaner, {store}, round {number + 1} of {self.rounds}")
                drain.add(*self._drain(on, store))
                every, others = self._live(on, store, self.sizes.cleaned_s / self.rounds)
                p50.add(every.p50_ms, others.p50_ms)
                p99.add(every.p99_ms, others.p99_ms)
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
        found = told(setting.python("bench.cleaned", store, "1", f"--rows={self.sizes.bulk}"))
        return found["rows"] / found["seconds"], found["rows"] / (found["seconds"] - found["cleaner_s"])

    def _live(self, setting: Setting, store: str, seconds: float) -> tuple[live.Latency, live.Latency]:
        """Of all live changes, and of those that met no step of the cleaner."""
        first, look = _LIVE_FROM + self._next, live.looker(setting, store, STORES[store][1])
        self._next += int((live.WARM_S + seconds) * live.RATE)
        steps, write = setting.folder / "steps.json", live.committer(setting, live.narrow)
        with live.worker(setting, store, "bench.cleaned", [f"--steps={steps}"]):
            changes = live.changes_of(store, live.WARM_S + seconds, first, look, write)[int(live.WARM_S * live.RATE) :]
        met = _Met(map(tuple, json.loads(steps.read_text())))
        others = [took_ms for at, took_ms in changes if not met.by(at, at + took_ms / 1000)]
        if len(others) == len(changes):
            raise RuntimeError(f"{store}: no live change met a step of the cleaner, so its cost was not measured")
        return live.latency([took_ms for _, took_ms in changes]), live.latency(others)

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
    def _seen(setting: Setting, store: str, row: int) -> float:
        look = live.looker(setting, store, STORES[store][1])
        return until(f"{store}: row {row:,} is in the view", lambda: look(row), LONGEST_S)

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


class _Met:
    """Whether a change met a step of the cleaner."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = sorted(steps)
        self._longest_s = max((upto - at for at, upto in self._steps), default=0.0)

    def by(self, committed: float, seen: float) -> bool:
        """Between these two times, or a moment before."""
        first = bisect_left(self._steps, (committed - MET_S - self._longest_s, 0.0))
        last = bisect_left(self._steps, (seen, 0.0))
        return any(upto > committed - MET_S for _, upto in self._steps[first:last])


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
