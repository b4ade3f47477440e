"""A table under load, and workers that are killed meanwhile: how far each store is behind, and when that is over."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from viewtail.demo import screen
from viewtail.demo.hands import END, ENTER, KILL, NOTHING, Hands, Moment
from viewtail.demo.process import DemoError, Run
from viewtail.demo.rows import Application, Behind, behind
from viewtail.demo.screen import duration
from viewtail.demo.stores import Store, title

LOOK_EVERY_S = 0.2
CAUGHT_UP_S = 0.3  # nothing older is missing
HEALED_WITHIN_S = 60.0


@dataclass(slots=True)
class _Kill:
    """A worker that was killed, and what that led to."""

    store: Store
    pid: int
    at: float  # monotonic
    most: int = 0  # rows that were behind


class Load:
    """Watches the stores, and kills workers, while an application writes; whoever began that one stops it."""

    def __init__(self, application: Application, run: Run, stores: Sequence[Store], keys: list[int]) -> None:
        self._application, self._run, self._keys = application, run, keys
        self._stores = sorted(stores, key=lambda store: store.name != "redis")  # the first that is killed
        self._began_at = time.monotonic()
        self._kill: _Kill | None = None  # the one that is not healed yet
        self._kills = 0
        self._healed_at: float | None = None

    def watch(self, hands: Hands) -> bool:
        """Until somebody wants to go on (True) or to end, and all are well. Raises DemoError if a worker stays ill."""
        wanted = NOTHING
        with screen.area() as draw:
            while not wanted or self._kill is not None:
                rows = [self._look(store, self._run.workers()) for store in self._stores]
                draw(screen.load_table(self._rate(), rows))
                key = hands.meanwhile(LOOK_EVERY_S, self._moment())
                wanted = key if key in (ENTER, END) else wanted
                if key == KILL and self._kill is None:
                    self._kill_one()
                self._run.require_running()
        return wanted == ENTER

    def _look(self, store: Store, workers: dict[str, int]) -> screen.Row:
        asked_at = time.monotonic()
        found = behind(store.cities(self._keys), self._application.changes(), asked_at)
        worker = workers.get(store.name)
        if self._kill is not None and self._kill.store is store:
            self._judge(self._kill, worker, found)
        return title(store), worker, found

    def _judge(self, kill: _Kill, worker: int | None, found: Behind) -> None:
        kill.most = max(kill.most, found.rows)
        seconds = time.monotonic() - kill.at
        if worker not in (None, kill.pid) and found.oldest_s < CAUGHT_UP_S:
            screen.done(
                f"{title(kill.store)}: process {worker} went on at the saved offset; {kill.most} rows were behind, all "
                f"are right after {duration(seconds)}"
            )
            self._kill, self._healed_at = None, time.monotonic()
        elif seconds > HEALED_WITHIN_S:
            raise DemoError(
                f"{title(kill.store)} is {found.rows} rows behind, {seconds:.0f} s after its worker was killed.\n"
                f"{self._run.log_tail()}"
            )

    def _kill_one(self) -> None:
        """SIGKILL to the next worker in turn, if it is there."""
        store = self._stores[self._kills % len(self._stores)]
        pid = self._run.workers().get(store.name)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self._kills += 1
        self._kill, self._healed_at = _Kill(store, pid, time.monotonic()), None
        screen.struck(f"kill -9 {pid}: the worker that writes {title(store)}, amid {self._rate():.0f} changes a second")

    def _rate(self) -> float:
        return self._application.count / max(0.1, time.monotonic() - self._began_at)

    def _moment(self) -> Moment:
        now = time.monotonic()
        healed_s = None if self._healed_at is None else now - self._healed_at
        return Moment(seconds=now - self._began_at, kills=self._kills, healed_s=healed_s)
