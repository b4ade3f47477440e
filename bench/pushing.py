"""Pushes: from a command's COMMIT to the view that shows it, beside the store's own write of such a row: by a plain
client, in a thread of the same process, while the same commands go on.

`python -m bench.pushing STORE COUNT PORT` is the process of the worker; it prints one line of JSON. The pipeline has
filled the view and is stopped: it would show some rows first.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from bench import live
from bench.lines import Line
from bench.setting import Setting, prepare, say, told, until
from viewtail import settings
from viewtail.entities import Command, CommandWorker, EventSourced
from viewtail.interpreter import SWITCH_INTERVAL_S

TABLE = "bench.account"
VIEWS = {
    "mysql": 'IndexTable("pushed", account, values={"name": "VARCHAR(64)"}, of=lambda row: row["state"], push=True)',
    "redis": 'RedisHash("pushed", account, fields=["state"], push=True)',
    "elasticsearch": 'SearchIndex("pushed", account, fields={"state": "keyword"}, push=True)',
}
RATE = 200  # commands a second
SLICE = 100  # of them are pushed, and then as many written by a plain client, by turns
GOAL = 2.0
_WITHIN_S = 30.0
_PAUSE_S = 0.2


def measure(setting: Setting, seconds: float, rounds: int) -> list[Line]:
    """A store at a time."""
    lines = []
    for store, view in VIEWS.items():
        prepare(setting)
        setting.run(live.BARE_TABLE, "DO 1")
        accounts(setting.environment).create()
        # Of an _id that Elasticsearch takes.
        setting.run(f"ALTER TABLE {TABLE} MODIFY entity_id VARCHAR(60) COLLATE utf8mb4_0900_bin NOT NULL", "DO 1")
        (setting.folder / "views.py").write_text(
            "from viewtail import Entity, IndexTable, RedisHash, SearchIndex\n\n"
            f'account = Entity("{TABLE}", key="entity_id", version="version", append_only=True)\nviews = [{view}]\n'
        )
        own = f"own write to {store}"
        p50, p99 = (Line(f"push to {store}, {name}", "ms", own, GOAL) for name in ("p50", "p99"))
        lines += [p50, p99]
        with live.worker(setting, store):
            until("the view is filled", lambda: _is_filled(setting), _WITHIN_S)
        for number in range(rounds):
            say(f"push to {store}, round {number + 1} of {rounds}")
            count = int(seconds / rounds * RATE)
            found = told(setting.python("bench.pushing", store, str(count), str(setting.servers[store].port)))
            p50.add(found["push_p50"], found["write_p50"])
            p99.add(found["push_p99"], found["write_p99"])
    return lines


def _is_filled(setting: Setting) -> bool:
    return bool(setting.run("SELECT COUNT(*) FROM viewtail.view WHERE state = 'filled'") == (1,))


def accounts(environment: Mapping[str, str]) -> EventSourced:
    return EventSourced(TABLE, {"name": _named}, settings=settings.load(None, environment))


def _named(_: Any, request: Any) -> tuple[Any, Any]:
    return None, request


class _Times:
    """When each event was committed, and pushed; or how long a plain client took to write its row instead."""

    def __init__(self, worker: Any, write: Callable[[int, str], None]) -> None:
        self.committed: dict[tuple[str, int], float] = {}
        self.pushed: dict[tuple[str, int], float] = {}
        self.writes: list[float] = []  # ms
        self.is_plain = False
        self._write, self._rows = write, SimpleQueue[int]()
        pushes, (pusher,) = worker._pushes, worker._pushes._pushing
        self._announce, self._hand, self._push = pushes.announce, pushes.hand, pusher._push
        pushes.announce, pushes.hand, pusher._push = self._announced, self._handed, self._pushed
        threading.Thread(target=self._plain, daemon=True).start()

    def _announced(self, newest: Mapping[str, int]) -> None:
        if not self.is_plain:
            self._announce(newest)

    def _handed(self, newest: Mapping[str, int]) -> None:
        if self.is_plain:
            self._rows.put(int(next(iter(newest))))
        else:
            self.committed |= dict.fromkeys(newest.items(), time.perf_counter())
            self._hand(newest)

    def _pushed(self, newest: Mapping[str, int]) -> None:
        self._push(newest)
        self.pushed |= dict.fromkeys(newest.items(), time.perf_counter())

    def _plain(self) -> None:
        while True:
            row = self._rows.get()
            began = time.perf_counter()
            self._write(row, f"n{row}")
            self.writes.append((time.perf_counter() - began) * 1000)

    def delays(self) -> list[float]:
        return [(at - self.committed[event]) * 1000 for event, at in self.pushed.items()]


def main() -> None:
    store, count, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    first = time.time_ns()
    with accounts(os.environ).worker() as worker:
        pusher: Any = worker._pushes._pushing[0]  # type: ignore[attr-defined]
        until("it pushes", lambda: pusher._opened is not None, _WITHIN_S)
        times = _Times(worker, live._writer(store, port))
        for at in range(0, 2 * (count + SLICE), SLICE):
            times.is_plain = at // SLICE % 2 == 1
            if at == 2 * SLICE:  # the first of each are for warming up
                times.pushed.clear()
                times.writes.clear()
            _send(worker, range(first + at, first + at + SLICE))
            time.sleep(_PAUSE_S)  # the last ones are under way
    ours, theirs = live.latency(times.delays()), live.latency(times.writes)
    found = {"push_p50": ours.p50_ms, "push_p99": ours.p99_ms, "write_p50": theirs.p50_ms, "write_p99": theirs.p99_ms}
    print(json.dumps(found), flush=True)


def _send(worker: CommandWorker, numbers: range) -> None:
    """One after the other, on a clock."""
    began = time.perf_counter()
    for at, number in enumerate(numbers):
        while (wait := began + at / RATE - time.perf_counter()) > 0:
            time.sleep(wait)
        command = Command(entity_id=f"{number}", command_id=f"{number}", name="name", request=f"n{number}")
        worker.submit(command).result(_WITHIN_S)


if __name__ == "__main__":
    main()
