"""One source server, its broker, and the readers by turns: a drain, some time live, a kill in the middle of a drain.

Every reader goes on where it left off. What is written for one of them the others read as well, when it is their turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

from bench import live
from bench.consuming import admin, ends, id_of, messages
from bench.peers import usage
from bench.peers.readers import Reader
from bench.setting import Setting, insert, say, write_bulk_rows, write_single_rows
from stack import ServerFailed

_QUIET_S = 1.5  # without a new message: all that was written has come
_LOST_S = 60.0  # without a new message: what has not come does not come
_STEP_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is written a round."""

    single: int = 100_000
    bulk: int = 500_000
    killed: int = 300_000
    live_s: float = 20.0


QUICK = Sizes(single=4_000, bulk=20_000, killed=60_000, live_s=3.0)


@dataclass(slots=True, kw_only=True)
class Figures:
    """What was measured of one reader, a number a round."""

    single_rate: list[float] = field(default_factory=list)  # rows/s
    bulk_rate: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    single_cpu_s: list[float] = field(default_factory=list)  # processor seconds a million rows
    bulk_cpu_s: list[float] = field(default_factory=list)
    live_cpu: list[float] = field(default_factory=list)  # percent of a core
    memory_mib: list[float] = field(default_factory=list)
    duplicates: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)

    def median(self, name: str) -> float:
        return float(median(getattr(self, name)))


@dataclass(slots=True)
class Topic:
    """What a reader has still to publish, and where its topic ended before."""

    reader: Reader
    begin: list[int]
    waiting: int = 0  # rows that were written and that it has not published


class Course:
    """The readers of one source server, measured round by round."""

    def __init__(self, setting: Setting, readers: Sequence[Reader], sizes: Sizes) -> None:
        self._setting = setting
        self._sizes = sizes
        self._admin = admin(setting.brokers)
        self._topics = [Topic(reader, ends(self._admin, reader.topic)) for reader in readers]
        self._next_id = 0
        self.figures = {reader.name: Figures() for reader in readers}

    def begin(self) -> None:
        """Let each reader publish a row, so that it has a place where it goes on."""
        for topic in self._topics:
            say(f"{topic.reader.name}: the first start")
            topic.waiting = 0  # it begins at the present end
            with self._running(topic):
                # It may say that it runs before it has settled where to begin.
                while not self._grown(topic):
                    self._setting.run(insert(self._written(1)), "DO 1")
                    self._require_alive(topic)
                    time.sleep(1)
                self._wait(topic)
            self._settled(topic)

    def round(self, number: int) -> None:
        """Each reader once; another one first than in the round before."""
        at = number % len(self._topics)
        order = self._topics[at:] + self._topics[:at]
        self._setting.run("SET SESSION sql_log_bin = 0", "TRUNCATE bench.narrow", "DO 1")  # nobody hears of it
        sizes = self._sizes
        say("writing what is drained")
        phases = [
            write(size) for _ in range(2) for write, size in ((self._single, sizes.single), (self._bulk, sizes.bulk))
        ]
        for topic in order:
            say(f"{topic.reader.name}: draining {topic.waiting:,} rows, then {sizes.live_s:.0f} s live")
            self._drain_and_live(topic, phases)
        killed = self._bulk(sizes.killed)
        for topic in order:
            say(f"{topic.reader.name}: killed in the middle of {topic.waiting:,} rows")
            self._kill(topic, killed)

    # -- a reader's turn -----------------------------------------------------------------------------------------

    def _drain_and_live(self, topic: Topic, phases: Sequence[range]) -> None:
        """The first two phases warm it; the next two count. The rows live come on top."""
        reader, figures, setting = topic.reader, self.figures[topic.reader.name], self._setting
        with self._running(topic), usage.recorded(reader.server.pid) as timeline:
            self._wait(topic)
            warm = self._written(int(live.WARM_S * live.RATE))
            live.measure_topic(setting, reader.topic, live.WARM_S, warm.start, reader.isolation)
            rows, began = self._written(int(self._sizes.live_s * live.RATE)), time.time()
            latency = live.measure_topic(setting, reader.topic, self._sizes.live_s, rows.start, reader.isolation)
            figures.live_cpu.append(100 * timeline.between(began, time.time()) / (time.time() - began))
            self._wait(topic)
            figures.memory_mib.append(usage.memory_mib(reader.server.pid))
        came = self._taken(topic, [*phases, rows])
        for name, at in (("single", 2), ("bulk", 3)):
            phase, began, ended = phases[at], came[phases[at - 1]], came[phases[at]]
            getattr(figures, f"{name}_rate").append(len(phase) / max(ended - began, 0.001))
            getattr(figures, f"{name}_cpu_s").append(timeline.between(began, ended) / len(phase) * 1e6)
        figures.p50_ms.append(latency.p50_ms)
        figures.p99_ms.append(latency.p99_ms)
        say(f"{reader.name}: {latency.p50_ms:.2f} and {latency.p99_ms:.2f} ms, {figures.live_cpu[-1]:.0f} % of a core")

    def _kill(self, topic: Topic, ids: range) -> None:
        """SIGKILL for the whole group when half has come; started again, and every row counted."""
        reader, figures = topic.reader, self.figures[topic.reader.name]
        other = topic.waiting - len(ids)
        with self._running(topic):
            self._until_came(topic, other + len(ids) // 2)
            reader.server.kill()
        with self._running(topic):
            self._wait(topic)
        seen = bytearray(len(ids))
        for message in messages(self._setting.brokers, reader.topic, topic.begin, reader.isolation):
            if (i := id_of(message.key())) in ids:
                seen[i - ids.start] += 1
        figures.duplicates.append(sum(seen) - len(seen) + seen.count(0))
        figures.losses.append(seen.count(0))
        self._settled(topic)

    @contextmanager
    def _running(self, topic: Topic) -> Iterator[None]:
        server = topic.reader.server
        try:
            server.start()
        except ServerFailed as error:
            server.kill()  # a worker of Kafka Connect goes on when its task has failed
            raise ServerFailed(f"{topic.reader.name} did not start: {error}") from None
        try:
            yield
        finally:
            server.stop()

    # -- its topic -----------------------------------------------------------------------------------------------

    def _grown(self, topic: Topic) -> int:
        """How many records the topic has got, those of transactions that were taken back included."""
        return sum(ends(self._admin, topic.reader.topic)) - sum(topic.begin)

    def _until_came(self, topic: Topic, count: int) -> None:
        while self._grown(topic) < count:
            self._require_alive(topic)
            time.sleep(_STEP_S)

    def _wait(self, topic: Topic) -> None:
        """Until all that waits has come, or nothing comes any more."""
        grown, since = self._grown(topic), time.monotonic()
        while time.monotonic() - since < (_QUIET_S if grown >= topic.waiting else _LOST_S):
            self._require_alive(topic)
            time.sleep(_STEP_S)
            if (now := self._grown(topic)) != grown:
                grown, since = now, time.monotonic()

    def _require_alive(self, topic: Topic) -> None:
        server = topic.reader.server
        if not server.is_running():
            end = "\n".join(server.log.read_text(errors="replace").splitlines()[-20:])
            raise RuntimeError(f"{topic.reader.name} ended while it was measured. The end of its log:\n{end}")

    def _taken(self, topic: Topic, phases: Sequence[range]) -> dict[range, float]:
        """When the last message of each phase came to the broker. Raises unless each row came once."""
        found = dict.fromkeys(phases, 0.0)
        counted = dict.fromkeys(phases, 0)
        for message in messages(self._setting.brokers, topic.reader.topic, topic.begin, topic.reader.isolation):
            i = id_of(message.key())
            for phase in phases:
                if i in phase:
                    found[phase] = max(found[phase], message.timestamp()[1] / 1000)
                    counted[phase] += 1
        for phase, count in counted.items():
            if count != len(phase):
                raise RuntimeError(f"{topic.reader.name} published {count:,} messages for {len(phase):,} rows")
        self._settled(topic)
        return found

    def _settled(self, topic: Topic) -> None:
        topic.begin, topic.waiting = ends(self._admin, topic.reader.topic), 0

    # -- writing -------------------------------------------------------------------------------------------------

    def _single(self, count: int) -> range:
        rows = self._written(count)
        write_single_rows(self._setting, rows.start, count)
        return rows

    def _bulk(self, count: int) -> range:
        rows = self._written(count)
        write_bulk_rows(self._setting, rows.start, count)
        return rows

    def _written(self, count: int) -> range:
        """Ids of rows that nobody has written yet; every reader has to publish them."""
        rows = range(self._next_id, self._next_id + count)
        self._next_id += count
        for topic in self._topics:
            topic.waiting += count
        return rows
