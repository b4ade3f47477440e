"""What the console costs live changes, while it answers ten requests a second and one page is open in a browser."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle
from typing import TypeAlias

import redis

from bench import live
from bench.lines import Line, Told
from bench.operators import STORES
from bench.setting import Setting, Sizes, prepare, say, until
from stack.server import free_port

A_SECOND = 10
COST = 0.10  # of live latency
SPIN_S = 0.003  # as long as a page takes
# The pages of one view, and the two of everything.
_PAGES = ("/", "/view/{store}/{name}", "/", "/view/{store}/{name}/rows", "/", "/record", "/view/{store}/{name}/letters",
          "/pipeline/{store}", "/", "/view/{store}/{name}")  # fmt: skip
_WHY = ("/view/{store}/{name}/why?key=100000001",)  # a change of long ago: the newest binlog is read back
_VIEW = {"mysql": "index_name", "redis": "narrow"}
_LIVE_FROM = 100_000_000
_Other: TypeAlias = Callable[[], AbstractContextManager[None]]


@dataclass(eq=False)
class Consoled:
    """The measurements, and what they gave."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    _next: int = 0  # id of a row
    _pages_s: list[float] = field(default_factory=list)  # of each, how long it took
    _whys_s: list[float] = field(default_factory=list)

    def measure(self) -> None:
        for store, view in _VIEW.items():
            prepare(self.setting)
            redis.Redis(port=self.setting.redis.port).flushall()
            with live.worker(self.setting, store), self._console() as url:
                pages = partial(self._asked, url, store, view, A_SECOND, _PAGES, self._pages_s)
                whys = partial(self._asked, url, store, view, 1, _WHY, self._whys_s)
                self._live(store, live.WARM_S)
                self._measure(store, pages, whys)
        for what, took_s in {"a page": self._pages_s, "`why`": self._whys_s}.items():
            took = sorted(took_s)
            found = f"{1000 * took[len(took) // 2]:.0f} ms, {1000 * took[int(len(took) * 0.99)]:.0f} ms"
            self.told.append((f"{what} of the console, p50 and p99 of {len(took)}", found, "", ""))

    def _measure(self, store: str, pages: _Other, whys: _Other) -> None:
        beside = f"live beside {A_SECOND} pages a second of the console"
        p50 = Line(f"{beside}, p50: {store}", "ms", "alone", 1 + COST)
        p99 = Line(f"{beside}, p99: {store}", "ms", "alone", 1 + COST)
        of_any = Line(f"the same: {store}", "ms", "beside a process that spins", 1 + COST)
        self.lines += [p50, p99, of_any]
        ratios = list[float]()
        for number in range(self.rounds):
            say(f"the console, {store}, round {number + 1} of {self.rounds}")
            found, alone = self._beside(store, pages)
            p50.add(found.p50_ms, alone.p50_ms)
            p99.add(found.p99_ms, alone.p99_ms)
            of_any.add(found.p99_ms, self._beside(store, self._spinning)[0].p99_ms)
            found, alone = self._beside(store, whys)
            ratios.append(found.p99_ms / alone.p99_ms)
        ratio = f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) times that alone"
        self.told.append((f"live beside one `why` a second of the console, p99: {store}", ratio, "", ""))

    def _beside(self, store: str, other: _Other) -> tuple[live.Latency, live.Latency]:
        """Of changes beside another process, and of those before and behind it."""
        seconds = self.sizes.live_s / self.rounds / 2
        before = self._live(store, seconds / 2)
        with other():
            beside = self._live(store, seconds)
        behind = self._live(store, seconds / 2)
        alone = live.Latency((before.p50_ms + behind.p50_ms) / 2, (before.p99_ms + behind.p99_ms) / 2)
        return beside, alone

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
    def _asked(
        self, url: str, store: str, view: str, a_second: int, paths: Sequence[str], took_s: list[float]
    ) -> Iterator[None]:
        """So many requests a second, and a page that is open. Raises RuntimeError where one was not answered.

        A process of its own asks: threads of this one would make the commits, and the looks for them, wait.
        """
        asked = [path.format(store=store, name=view) for path in paths]
        process = self.setting.python("bench.consoled", url, f"{a_second}", *asked)
        assert process.stdout is not None
        try:
            yield
        finally:
            process.terminate()
            told, _ = process.communicate(timeout=60)
        *took, failed = told.splitlines()
        if failed != _NONE_FAILED:
            raise RuntimeError(f"the console did not answer: {failed}")
        took_s += map(float, took)

    @contextmanager
    def _spinning(self) -> Iterator[None]:
        """What any other process costs here that computes as much."""
        process = self.setting.python("bench.consoled")
        try:
            yield
        finally:
            process.kill()
            process.wait()


_NONE_FAILED = "none failed"


def spin() -> None:
    """Compute for a while, again and again, for ever."""
    began = time.monotonic()
    for number in count():
        time.sleep(max(0.0, began + number / A_SECOND - time.monotonic()))
        until = time.perf_counter() + SPIN_S
        while time.perf_counter() < until:
            pass


def ask(url: str, a_second: int, paths: Sequence[str]) -> None:
    """Until SIGTERM. Print how many seconds each request took, and in the last line what failed."""
    stop, failed = threading.Event(), _NONE_FAILED
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=_look, args=(url,), daemon=True).start()
    began = time.monotonic()
    for number, path in enumerate(cycle(paths)):
        if stop.wait(max(0.0, began + number / a_second - time.monotonic())):
            break
        at = time.perf_counter()
        try:
            with urllib.request.urlopen(url + path, timeout=30) as answer:
                answer.read()
        except OSError as error:
            failed = f"{path}: {error}"
            break
        print(time.perf_counter() - at)
    print(failed)


def _look(url: str) -> None:
    """As a browser does that has a page open."""
    with suppress(OSError), urllib.request.urlopen(f"{url}/events") as stream:
        while stream.readline():
            pass


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


if __name__ == "__main__":
    if sys.argv[1:]:
        ask(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    else:
        spin()
