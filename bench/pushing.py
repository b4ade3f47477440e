"""Pushes: from a command's COMMIT to the view that shows it, beside the store's own write of such a row.

`python -m bench.pushing STORE COUNT PORT` is the process of the worker; it prints one line of JSON. The pipeline has
filled the view and is stopped: it would show some rows first.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench import live
from bench.lines import Line
from bench.setting import Setting, prepare, say, told, until
from viewtail import settings
from viewtail.entities import Command, EventSourced
from viewtail.interpreter import SWITCH_INTERVAL_S

TABLE = "bench.account"
VIEWS = {
    "mysql": 'IndexTable("pushed", account, values={"name": "VARCHAR(64)"}, of=lambda row: row["state"], push=True)',
    "redis": 'RedisHash("pushed", account, fields=["state"], push=True)',
    "elasticsearch": 'SearchIndex("pushed", account, fields={"state": "keyword"}, push=True)',
}
RATE = 200  # a second, commands and writes alike
SLICE = 100  # of each by turns
GOAL = 2.0
_WITHIN_S = 30.0


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
    """When each event was committed, and pushed."""

    def __init__(self, worker: Any) -> None:
        self.committed: dict[tuple[str, int], float] = {}
        self.pushed: dict[tuple[str, int], float] = {}
        hand, (pusher,) = worker._pushes.hand, worker._pushes._pushing
        push = pusher._push

        def handed(newest: Mapping[str, int]) -> None:
            self.committed |= dict.fromkeys(newest.items(), time.perf_counter())
            hand(newest)

        def pushed(newest: Mapping[str, int]) -> None:
            push(newest)
            self.pushed |= dict.fromkeys(newest.items(), time.perf_counter())

        worker._pushes.hand, pusher._push = handed, pushed

    def delays(self) -> list[float]:
        return [(at - self.committed[event]) * 1000 for event, at in self.pushed.items()]


def main() -> None:
    store, count, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    write, of, first = live._writer(store, port), accounts(os.environ), time.time_ns()
    writes: list[float] = []
    with of.worker() as worker:
        pusher: Any = worker._pushes._pushing[0]  # type: ignore[attr-defined]
        until("it pushes", lambda: pusher._opened is not None, _WITHIN_S)
        times = _Times(worker)

        def command(number: int) -> None:
            name = f"{first + number}"
            one = Command(entity_id=name, command_id=name, name="name", request=f"n{number}")
            worker.submit(one).result(_WITHIN_S)

        def own(number: int) -> None:
            began = time.perf_counter()
            write(first + number, f"n{number}")
            writes.append((time.perf_counter() - began) * 1000)

        _paced(command, range(SLICE))
        _paced(own, range(SLICE))
        times.pushed.clear()
        writes.clear()
        for at in range(SLICE, SLICE + count, SLICE):
            _paced(command, range(at, at + SLICE))
            _paced(own, range(at, at + SLICE))
    ours, theirs = live.latency(times.delays()), live.latency(writes)
    found = {"push_p50": ours.p50_ms, "push_p99": ours.p99_ms, "write_p50": theirs.p50_ms, "write_p99": theirs.p99_ms}
    print(json.dumps(found), flush=True)


def _paced(work: Callable[[int], None], numbers: range) -> None:
    """One after the other, on a clock."""
    began = time.perf_counter()
    for at, number in enumerate(numbers):
        while (wait := began + at / RATE - time.perf_counter()) > 0:
            time.sleep(wait)
        work(number)


if __name__ == "__main__":
    main()
