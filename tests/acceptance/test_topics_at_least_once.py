"""`viewtail run` of topics that are delivered at least once: what a consumer has that does not wait for commits.

It leaves out what is not above the last version of its key, and then has each change once. A reader of committed
messages has so anyway, some seconds later: both are compared with mysqlbinlog (`TopicWorld.faults`).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from projectors.failpoints import COMMIT_STEPS
from stack import Server
from tests.acceptance import test_topics
from tests.acceptance.test_consumers import EXAMPLES
from tests.acceptance.test_topics import is_near
from tests.support import topic_log
from tests.support.running import DIED, Run, clean_environment, wait_for
from tests.support.topic_world import TopicWorld, TopicWriters

STEPS = ("before write", "after write", *COMMIT_STEPS)
HELD_S = 5.0  # at most, until a message is committed


@contextmanager
def published(name: str, mysql: Server, kafka: Server, folder: Path) -> Iterator[tuple[TopicWorld, Run]]:
    """A world whose views are filled; behind it everything is compared."""
    with test_topics.published(name, mysql, kafka, folder, 100, "at_least_once") as (world, run):
        wait_for("the views are filled", world.is_filled)
        yield world, run
    assert "Traceback" not in run.log


def test_each_change_comes_at_least_once_and_in_order_however_a_kill_falls(
    mysql_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    with published("least_kills", mysql_server, kafka_server, tmp_path) as (world, run), TopicWriters(world, 2):
        for step in STEPS:
            run.kill()
            killed = run.log.count(DIED)
            # So often that much is read by then and not committed; a commit comes every few seconds.
            run.start(VIEWTAIL_FAILPOINT=f"{step}:{1 if step in COMMIT_STEPS else 100}")
            wait_for(f"it is killed {step}", lambda: run.log.count(DIED) > killed)  # noqa: B023
        run.kill()
        run.start()
        wait_for("a change of now is published", lambda: is_near(world))
    assert world.repeats > 100, "hardly anything was read before it was committed"


def test_a_change_is_read_at_once_and_committed_some_seconds_later_or_at_the_end(
    mysql_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    with published("least_late", mysql_server, kafka_server, tmp_path) as (world, run):
        time.sleep(HELD_S)  # behind the commit of the filling: nothing is open
        began = time.monotonic()
        assert is_near(world)
        assert time.monotonic() - began < HELD_S / 2
        assert not _committed(world), "it is committed already: somebody waited for that"
        wait_for("it is committed", lambda: _committed(world))
        world.ask("INSERT INTO least_late.pair VALUES ('now', 2000, 'v')")
        wait_for("it is read", lambda: ("now", 2000) in topic_log.folded(world.log("pair")))
        world.ask("REPLACE INTO viewtail.watermark (name, token) VALUES ('least_late', 'a token')")
        wait_for("it is committed for whoever waits", lambda: ("now", 2000) in _committed(world), HELD_S / 2)
        world.ask("INSERT INTO least_late.pair VALUES ('now', 3000, 'v')")
        wait_for("it is read", lambda: ("now", 3000) in topic_log.folded(world.log("pair")))
        assert run.stop() == 0
        assert ("now", 3000) in _committed(world)
        run.start()
    assert world.repeats == 0


def _committed(world: TopicWorld) -> set[tuple[object, ...]]:
    """Keys of `pair` that a reader of committed messages has, of those that this test writes."""
    found = topic_log.folded(topic_log.told(world.kafka, f"{world.name}.pair"))
    return {key for key in found if key[0] == "now"}


def test_no_change_is_missed_when_the_broker_is_killed_amid_what_is_not_committed(
    mysql_server: Server, harmed_kafka: Server, tmp_path: Path
) -> None:
    published_world = published("least_broker", mysql_server, harmed_kafka, tmp_path)
    with published_world as (world, _), TopicWriters(world, 3, threads=1) as writers:
        wait_for("a change of now is published", lambda: is_near(world))
        harmed_kafka.kill()
        before = writers.committed
        wait_for("writers write on", lambda: writers.committed > before + 50)
        harmed_kafka.start()
        wait_for("a change of now is published", lambda: is_near(world))


def test_the_delivery_changes_with_a_restart_and_nothing_is_published_again(
    mysql_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    with published("least_changed", mysql_server, kafka_server, tmp_path) as (world, run):
        for delivery in ("exactly_once", "at_least_once"):
            assert run.stop() == 0
            views = world.views.replace("at_least_once", delivery)
            (tmp_path / "views.py").write_text(views)
            run.start()
            wait_for("a change of now is published", lambda: is_near(world))
        read = [one for one in world.log("user") if one.op == "r"]
        assert len(read) == 100, "it was filled again"


def test_the_plain_example_drops_what_comes_twice(mysql_server: Server, kafka_server: Server, tmp_path: Path) -> None:
    with published("least_plain", mysql_server, kafka_server, tmp_path) as (world, run):
        with TopicWriters(world, 5, threads=1) as writers:
            wait_for("much is written", lambda: writers.committed > 200)
            assert run.kill_worker("kafka")
            wait_for("a change of now is published", lambda: is_near(world))
        wait_for("every topic gives its table", world.is_folded)
        address = f"{kafka_server.host}:{kafka_server.port}"
        argv = [sys.executable, str(EXAMPLES / "plain.py"), address, "least_plain.user", "read_uncommitted"]
        done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == len(world.tables()["user"])
    assert world.repeats > 0
