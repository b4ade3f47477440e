"""What the console costs live changes, while it answers ten requests a second and one page is open in a browser."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle

import redis

from bench import live
from bench.lines import Line, Told
from bench.operators import STORES
from bench.setting import Setting, Sizes, prepare, say, until
from stack.server import free_port

A_SECOND = 10
COST = 0.10  # of live latency
# The pages of one view, and the two of everything.
_PATHS = ("/", "/view/{store}/{name}", "/", "/view/{store}/{name}/rows", "/", "/view/{store}/{name}/why?key=100000001",
          "/record", "/view/{store}/{name}/letters", "/pipeline/{store}", "/")  # fmt: skip
_VIEW = {"mysql": "index_name", "redis": "narrow"}
_LIVE_FROM = 100_000_000


@dataclass(eq=False)
class Consoled:
    """The measurements, and what they gave."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    _next: int = 0  # id of a row
    _took_s: list[float] = field(default_factory=list)

    def measure(self) -> None:
        for store, view in _VIEW.items():
            prepare(self.setting)
            redis.Redis(port=self.setting.redis.port).flushall()
            p50 = Line(f"live beside {A_SECOND} requests a second to the console, p50: {store}", "ms", "none", 1 + COST)
            p99 = Line(f"live beside {A_SECOND} requests a second to the console, p99: {store}", "ms", "none", 1 + COST)
            self.lines += [p50, p99]
            with live.worker(self.setting, store), self._console() as url:
                self._live(store, live.WARM_S)
                for number in range(self.rounds):
                    say(f"the console, {store}, round {number + 1} of {self.rounds}")
                    seconds = self.sizes.live_s / self.rounds / 2
                    alone = self._live(store, seconds)
                    with self._asked(url, store, view):
                        beside = self._live(store, seconds)
                    alone_after = self._live(store, seconds)
                    p50.add(beside.p50_ms, (alone.p50_ms + alone_after.p50_ms) / 2)
                    p99.add(beside.p99_ms, (alone.p99_ms + alone_after.p99_ms) / 2)
        took = sorted(self._took_s)
        found = f"{1000 * took[len(took) // 2]:.0f} ms, {1000 * took[int(len(took) * 0.99)]:.0f} ms"
        self.told.append((f"a page of the console, p50 and p99 of {len(took)}", found, "none", "-"))

    def _live(self, store: str, seconds: float) -> live.Latency:
        first, self._next = _LIVE_FROM + self._next, self._next + int(seconds * live.RATE) + 1
        return live.measure(self.setting, store, seconds, first, live.looker(self.setting, store, STORES[store][1]))

    @contextmanager
    def _console(self) -> Iterator[str]:
        port = free_port()
        process = subprocess.Popen(
            [sys.executable, "-m", "viewtail.main", "console", "--port", str(port)],
            cwd=self.setting.folder,
            env=self.setting.environment,
        )
        url = f"http://127.0.0.1:{port}"
        try:
            until("the console answers", lambda: _answers(url), 30)
            yield url
        finally:
            process.terminate()
            process.wait(20)

    @contextmanager
    def _asked(self, url: str, store: str, view: str) -> Iterator[None]:
        """Ten requests a second, and a page that is open. Raises RuntimeError where one was not answered."""
        stop, failures = threading.Event(), list[str]()

        def ask() -> None:
            began = time.monotonic()
            for number, path in enumerate(cycle(_PATHS)):
                if stop.wait(max(0.0, began + number / A_SECOND - time.monotonic())):
                    return
                at = time.perf_counter()
                try:
                    with urllib.request.urlopen(url + path.format(store=store, name=view), timeout=30) as answer:
                        answer.read()
                except OSError as error:
                    failures.append(f"{path}: {error}")
                self._took_s.append(time.perf_counter() - at)

        def look() -> None:
            with suppress(OSError), urllib.request.urlopen(f"{url}/events", timeout=30) as stream:
                while not stop.is_set() and stream.readline():
                    pass

        threads = [threading.Thread(target=work, daemon=True) for work in (ask, look)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            threads[0].join()
        if failures:
            raise RuntimeError(f"the console did not answer: {failures[0]}")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
