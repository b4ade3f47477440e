"""The poller: how soon a row is visible, what it costs while nothing happens, and how fast it reads what waits.

Beside it the tailer reads the same table's binlog into a view of its own: each has a database for its view and offsets.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from bench import live
from bench.lines import Limit, Line, Told, by_turns, median
from bench.measured import processor_s
from bench.setting import Place, Setting, Sizes, say, until

EVERY_MS = 100  # between two looks, as it is by default
MOST_MS = 150.0  # from commit to visible
MOST_IDLE = 1.0  # per cent of one core
_SHARE_OF_TAILER = 0.5
_WITHIN_S = 60.0
_LIVE_FROM = 100_000_000
_ROWS_A_TRANSACTION = 500
_TABLE = (
    "CREATE TABLE bench.event (event_id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, id BIGINT NOT NULL, "
    "version BIGINT UNSIGNED NOT NULL, name VARCHAR(64), UNIQUE (id, version))"
)
_VIEWS = """from viewtail import Entity, IndexTable

event = Entity("bench.event", key="id", version="version", append_only=True, order="event_id")
views = [IndexTable("index_name", event, value="name")]
"""


@dataclass(eq=False)
class Polling:
    """The measurements, and what they gave."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    _next: int = _LIVE_FROM  # id of a row

    def measure(self) -> None:
        off = self.setting.having(VIEWTAIL_CLEANER__SHARE="0")
        self.tailed = off.having(VIEWTAIL_MYSQL__URL=f"{self.setting.mysql.url}/tailed")
        self.polled = off.having(VIEWTAIL_MYSQL__URL=f"{self.setting.mysql.url}/polled", VIEWTAIL_SOURCE__MODE="poll")
        self._prepare()
        self._drains()
        self._live()
        self._idle()

    def _prepare(self) -> None:
        """An empty table, and both views filled from it."""
        (self.setting.folder / "views.py").write_text(_VIEWS)
        databases = [f"DROP DATABASE IF EXISTS {name}" for name in ("bench", "tailed", "polled")]
        self.setting.run(*databases, "CREATE DATABASE bench", _TABLE, "DO 1")
        for setting, database in ((self.tailed, "tailed"), (self.polled, "polled")):
            with live.worker(setting, "mysql"):
                self._wait_filled(database)

    def _wait_filled(self, database: str) -> None:
        cursor = self.setting.connect().cursor()

        def is_filled() -> bool:
            cursor.execute(f"SELECT COUNT(*) FROM {database}.view WHERE state = 'filled'")
            return bool(cursor.fetchone() == (1,))

        until(f"the view in {database} is filled", is_filled, _WITHIN_S)

    # -- what waits ---------------------------------------------------------------------------------------------

    def _drains(self) -> None:
        rows, place = self.sizes.polled, self.setting.place()
        say(f"writing {rows:,} events")
        with self.setting.connect().cursor() as cursor:
            for at in range(0, rows, _ROWS_A_TRANSACTION):
                cursor.execute(_insert(range(at, at + _ROWS_A_TRANSACTION)))
        self.setting.place()
        line = Line(f"drain {rows:,} rows by polling to MySQL", "rows/s", "the tailer", _SHARE_OF_TAILER)
        self.lines.append(line)
        for number in range(self.rounds):
            say(f"drain by polling, round {number + 1} of {self.rounds}")
            by_turns(line, partial(self._tail, rows, place), partial(self._poll, rows))

    def _tail(self, rows: int, place: Place) -> float:
        return self._drained(self.tailed, "tailed", "drain", "mysql", str(rows), place[0], str(place[1]))

    def _poll(self, rows: int) -> float:
        return self._drained(self.polled, "polled", "poll", "mysql", str(rows), "bench.event")

    @staticmethod
    def _drained(setting: Setting, database: str, what: str, store: str, rows: str, *where: str) -> float:
        """Into an empty view: rows/s. Raises when rows are missing afterwards."""
        setting.run(f"DROP TABLE {database}.index_name", "DO 1")
        seconds = setting.measured(what, store, rows, *where)["seconds"]
        (count,) = setting.run(
            f"SELECT COUNT(*) FROM {database}.index_name v JOIN bench.event e ON e.id = v.id AND e.name = v.name"
        )
        if count != int(rows):
            raise RuntimeError(f"{database}: {count:,} rows of {rows} arrived as they are")
        return int(rows) / seconds

    # -- how soon ------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        """By turns: the tailer, the poller, and the poller while somebody has a transaction open that wrote a row."""
        polled = Limit(f"live by polling every {EVERY_MS} ms, p99", "ms", "from the binlog", MOST_MS)
        held = Limit("the same while a transaction is open, p99", "ms", "none is open", MOST_MS)
        self.lines += [polled, held]
        for number in range(self.rounds):
            say(f"live by polling, round {number + 1} of {self.rounds}")
            with live.worker(self.tailed, "mysql"):
                theirs = self._delays("tailed")
            with live.worker(self.polled, "mysql"):
                ours = self._delays("polled")
                with self._open_transaction():
                    meanwhile = self._delays("polled")
            polled.add(ours, theirs)
            held.add(meanwhile, ours)

    def _delays(self, database: str) -> float:
        """The p99, of a slice."""
        seconds, first = self.sizes.polled_s / self.rounds, self._next
        self._next += int(seconds * live.RATE) + 1
        look = live.looker(self.setting, "mysql", f"{database}.index_name")
        self._catch_up(look)
        write = live.committer(self.setting, lambda row: _insert(range(row, row + 1)))
        found = live.delays_of(database, seconds, first, look, write)
        return live.latency(found).p99_ms

    def _catch_up(self, look: Callable[[int], bool]) -> None:
        """What came while it was not running does not count."""
        row, self._next = self._next, self._next + 1
        self.setting.run(_insert(range(row, row + 1)), "DO 1")
        until("the view is up to date", lambda: look(row), _WITHIN_S)

    @contextlib.contextmanager
    def _open_transaction(self) -> Iterator[None]:
        """Of a row whose id is below those that others commit meanwhile."""
        with self.setting.connect() as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(_insert(range(-1, 0)))
            yield
            cursor.execute("ROLLBACK")

    # -- what it costs -------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        shares = []
        for number in range(self.rounds):
            say(f"idle, round {number + 1} of {self.rounds}")
            with live.worker(self.polled, "mysql") as process:
                time.sleep(2.0)  # what it does at its start is not counted
                before, began = processor_s(process.pid), time.monotonic()
                time.sleep(self.sizes.idle_s / self.rounds)
                shares.append(100 * (processor_s(process.pid) - before) / (time.monotonic() - began))
        self.told.append(median("share of one core of an idle poller", "%", shares, MOST_IDLE))


def _insert(ids: range) -> str:
    rows = ",".join(f"({i},1,'name of {i}')" for i in ids)
    return f"INSERT INTO bench.event (id, version, name) VALUES {rows}"
