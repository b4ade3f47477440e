"""The cleaner: how soon it mends a row that somebody damaged, and what it costs while there is nothing to mend."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import redis
import urllib3

from bench import live
from bench.lines import Line, Told, median
from bench.measured import processor_s
from bench.operators import STORES, forget
from bench.setting import ROWS_A_TRANSACTION, Setting, Sizes, prepare, say, until, write_bulk_rows

RIGHT_WITHIN_S = 5.0
MOST_SHARE = 5.0  # per cent of one core
COST = 0.05  # of drain speed and of live latency
LONGEST_S = 120.0
OFF = "the cleaner off"
DRAINS = 5  # with it and without, in a round
LIVE_TURNS = 6  # of live changes likewise: the machine's speed drifts by more than what is looked for
WARM_TURNS = 2  # before the first round: live changes wait while Java compiles what Elasticsearch runs often
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
            for setting in (on, off) * WARM_TURNS:
                self._live(setting, store)
            drain = Line(f"drain of {self._drained_rows:,} rows with the cleaner: {store}", "rows/s", OFF, 1 - COST)
            p50 = Line(f"live with the cleaner, p50: {store}", "ms", OFF, 1 + COST)
            p99 = Line(f"live with the cleaner, p99: {store}", "ms", OFF, 1 + COST)
            self.lines += [drain, p50, p99]
            for number in range(self.rounds):
                say(f"the cleaner, {store}, round {number + 1} of {self.rounds}")
                settings = (on, off) if number % 2 else (off, on)
                self._drains(drain, settings, store, on)
                self._live_by_turns(p50, p99, settings, store, on)
            share = self._share(on, store) - self._share(off, store)
            self.told.append(median(f"share of one core at work: {store}", "%", [share], MOST_SHARE))
            with live.worker(self.setting, store):
                seconds = [self._mended(store) for _ in range(self.sizes.damaged)]
            self.told.append(median(f"a damaged row is right again: {store}", "s", seconds, RIGHT_WITHIN_S))

    @property
    def _drained_rows(self) -> int:
        """Of each drain."""
        return self.sizes.bulk // 2 // ROWS_A_TRANSACTION * ROWS_A_TRANSACTION

    # -- what it costs ------------------------------------------------------------------------------------------

    def _drains(self, line: Line, settings: Sequence[Setting], store: str, on: Setting) -> None:
        """Pairs: MySQL flushes and purges what earlier ones wrote, so that two in a row differ by a third."""
        for number in range(DRAINS):
            order = reversed(settings) if number % 2 else settings
            rates = {setting is on: self._drain(setting, store) for setting in order}
            line.add(rates[True], rates[False])

    def _drain(self, setting: Setting, store: str) -> float:
        """Rows/s of what waits when the pipeline begins, from the first row in the view to the last."""
        count = self._drained_rows
        first, self._next = self._next, self._next + count
        write_bulk_rows(setting, first, count)
        with live.worker(setting, store):
            began = self._seen(setting, store, first)
            return count / (self._seen(setting, store, self._next - 1) - began)

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

    def _live_by_turns(self, p50: Line, p99: Line, settings: Sequence[Setting], store: str, on: Setting) -> None:
        """Pairs, and another one is first in each."""
        for number in range(LIVE_TURNS):
            order = reversed(settings) if number % 2 else settings
            found = {setting is on: live.latency(self._live(setting, store)) for setting in order}
            p50.add(found[True].p50_ms, found[False].p50_ms)
            p99.add(found[True].p99_ms, found[False].p99_ms)

    def _live(self, setting: Setting, store: str) -> list[float]:
        seconds = self.sizes.live_s / self.rounds / LIVE_TURNS + live.WARM_S
        first, look = _LIVE_FROM + self._next, live.looker(setting, store, STORES[store][1])
        self._next += int(seconds * live.RATE)
        with live.worker(setting, store):
            return live.delays(setting, store, seconds, first, look)[int(live.WARM_S * live.RATE) :]

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
