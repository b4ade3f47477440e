"""`viewtail run` of topic views against real servers: what a read_committed consumer sees, compared with mysqlbinlog.

test_topic_schedules.py has the same with random faults; here each fault comes at a chosen moment.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from projectors.failpoints import COMMIT_STEPS
from stack import Server
from tests.support.running import DIED, Run, running, wait_for
from tests.support.small_disk import SmallDisk
from tests.support.topic_log import faults_of_order, folded
from tests.support.topic_world import TopicWorld, TopicWriters

PAUSED_S = float(os.environ.get("VIEWTAIL_TEST_PAUSED_S", "6"))  # `make topics` takes 15
AGAIN = '"view":"kafka:topic_deleted.user","rows":'  # of the log, when it is filled


@contextmanager
def published(
    name: str, mysql: Server, kafka: Server, folder: Path, users: int = 0, delivery: str = "exactly_once"
) -> Iterator[tuple[TopicWorld, Run]]:
    """A world and the run of its views, which knows where it begins; behind it everything is compared."""
    world = TopicWorld(mysql, kafka, name, delivery=delivery)
    world.drop()
    world.make(users)
    with running(folder, world.views, world.environment) as run:
        wait_for("the pipeline knows where it begins", world.is_taken)
        world.mark_begin()
        yield world, run
        wait_for("the views are filled", world.is_filled)
        wait_for("every topic gives its table", world.is_folded)
        assert run.stop() == 0
    assert world.faults() == []
    world.drop()


def test_a_topic_is_filled_under_live_writes_over_a_kill_and_each_row_is_published_once(
    mysql_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    rows = 30_000
    with published("topic_fill", mysql_server, kafka_server, tmp_path, users=rows) as (world, run):
        with TopicWriters(world, 1, threads=3, keys=rows) as writers:
            filling = "SELECT 1 FROM topic_fill_own.view WHERE name = 'kafka:topic_fill.user' AND fill_row_count"
            wait_for("rows are published", lambda: world.ask(filling))
            assert world.states()["kafka:topic_fill.user"] != "filled", "killed too late to show anything"
            run.kill_worker("kafka")
            wait_for("the views are filled", world.is_filled)
            wait_for("much is written, on a busy machine too", lambda: writers.committed > 100)
        wait_for("every topic gives its table", world.is_folded)
        messages = world.log("user")
        read = Counter(one.key for one in messages if one.op == "r")
        assert max(read.values()) == 1, "a row came twice, though the kill left a note of how far the fill was"
        assert len(read) > rows * 0.8
        changed = [one for one in messages if one.op in "cud"]
        assert len({one.key for one in changed} & read.keys()) > 20, "hardly any key was both changed and read"


def test_each_change_comes_once_however_a_kill_falls(
    mysql_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    """The steps of a commit are those of a transaction that holds changes, so something could come twice or be lost."""
    with published("topic_kills", mysql_server, kafka_server, tmp_path, users=3000) as (world, run):
        with TopicWriters(world, 2):
            for step in (*COMMIT_STEPS, "before write", "after write", "after offset"):
                run.kill()
                killed = run.log.count(DIED)  # not before: the supervisor may log what `kill` ends
                run.start(VIEWTAIL_FAILPOINT=f"{step}:7")
                wait_for(f"it is killed {step}", lambda: run.log.count(DIED) > killed)  # noqa: B023
            run.kill()
            run.start()
        # A fill of its own dies behind each chunk, and goes on behind it.
        run.kill()
        killed = run.log.count(DIED)
        run.start(VIEWTAIL_FAILPOINT="after chunk:2")
        assert run.command("replay", "--yes", "kafka:topic_kills.user").returncode == 0
        wait_for("it is killed after a chunk", lambda: run.log.count(DIED) > killed)
        run.kill()
        run.start()


def test_what_is_published_behind_a_prepared_transaction_comes_once_over_a_restart(
    mysql_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    """The position stays before XA PREPARE, so what came since is read again."""
    world = TopicWorld(mysql_server, kafka_server, "topic_xa")
    world.drop()
    world.make(10)
    update = "UPDATE topic_xa.user SET email = '{0}' WHERE id = {1}"
    with running(tmp_path, world.views, world.environment) as run:
        wait_for("the views are filled", world.is_filled)
        with closing(world.connect()) as session, session.cursor() as cursor:
            for statement in ("XA START 'x'", update.format("prepared", 1), "XA END 'x'", "XA PREPARE 'x'"):
                cursor.execute(statement)
        world.ask(update.format("behind", 2))
        wait_for("the change behind it is published", lambda: _is_told(world, 2))
        assert run.stop() == 0
        run.start()
        world.ask(update.format("after the restart", 3))
        wait_for("the change after the restart is published", lambda: _is_told(world, 3))
        world.ask("XA COMMIT 'x'")
        wait_for("the prepared change is published", lambda: _is_told(world, 1))
        updates = Counter(one.key for one in world.log("user") if one.op == "u")
        assert run.stop() == 0
    assert updates == {(1,): 1, (2,): 1, (3,): 1}
    world.drop()


def _is_told(world: TopicWorld, key: int) -> bool:
    return any(one.key == (key,) and one.op == "u" for one in world.log("user"))


def test_a_broker_that_hangs_is_waited_for(mysql_server: Server, harmed_kafka: Server, tmp_path: Path) -> None:
    with published("topic_broker", mysql_server, harmed_kafka, tmp_path, users=100) as (world, _):
        wait_for("the views are filled", world.is_filled)
        with TopicWriters(world, 3, threads=1) as writers:
            harmed_kafka.pause()
            try:
                before = writers.committed
                wait_for("writers write on", lambda: writers.committed > before + 50)
                time.sleep(PAUSED_S)  # how long it hangs; nothing is awaited here
            finally:
                harmed_kafka.resume()
            wait_for("a change of now is published", lambda: is_near(world))


def test_each_change_comes_once_when_the_disk_of_the_broker_was_full(
    mysql_server: Server, harmed_kafka: Server, disk_of_harmed_kafka: SmallDisk, tmp_path: Path
) -> None:
    with published("topic_disk", mysql_server, harmed_kafka, tmp_path, users=100) as (world, _):
        wait_for("the views are filled", world.is_filled)
        world.disk = disk_of_harmed_kafka
        with TopicWriters(world, 6, threads=1):
            wait_for("a change of now is published", lambda: is_near(world))
            assert world.fill_the_disk(20.0), "the broker went on without room: nothing was tried here"
            wait_for("a change of now is published", lambda: is_near(world))


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_tailer_that_wakes_up_after_another_took_over_publishes_nothing(
    delivery: str, mysql_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    with published(f"zombie_{delivery}", mysql_server, kafka_server, tmp_path, 100, delivery) as (world, run):
        wait_for("the views are filled", world.is_filled)
        (tmp_path / "second").mkdir()
        with TopicWriters(world, 4, threads=1), running(tmp_path / "second", world.views, world.environment) as second:
            wait_for("the second stands by", lambda: "standby" in second.log)
            assert run.process is not None
            zombies = [run.process.pid, *run.workers().values()]
            for pid in zombies:
                os.kill(pid, signal.SIGSTOP)
            wait_for("the second takes over", lambda: '"state":"running"' in second.log)
            wait_for("a change of now is published", lambda: is_near(world))
            for pid in zombies:
                os.kill(pid, signal.SIGCONT)
            wait_for("the first stands by", lambda: run.log.count("standby"))
            wait_for("a change of now is published", lambda: is_near(world))
            assert "Traceback" not in run.log + second.log
            assert second.stop() == 0
            wait_for("a change of now is published", lambda: is_near(world))


def test_a_topic_that_is_deleted_while_it_is_written_is_made_and_filled_again(
    mysql_server: Server, kafka_server: Server, tmp_path: Path
) -> None:
    world = TopicWorld(mysql_server, kafka_server, "topic_deleted")
    world.drop()
    world.make(5000)
    with running(tmp_path, world.views, world.environment) as run:
        wait_for("the pipeline knows where it begins", world.is_taken)
        wait_for("the views are filled", world.is_filled)
        with TopicWriters(world, 5, threads=1):
            wait_for("a change of now is published", lambda: is_near(world))
            admin = AdminClient({"bootstrap.servers": f"{kafka_server.host}:{kafka_server.port}"})
            for future in admin.delete_topics(["topic_deleted.user"]).values():
                future.result(10)
            wait_for("it is filled again", lambda: run.log.count(AGAIN) == 2)
        wait_for("every topic gives its table", world.is_folded)
        assert run.stop() == 0
        messages = world.log("user")
        assert folded(messages) == world.tables()["user"]
        for topic in ("user", "even", "pair"):
            assert faults_of_order(world.log(topic)) == []
        assert Counter(one.op for one in messages)["r"] > 500  # rows that changed meanwhile come as changes
    world.drop()


def is_near(world: TopicWorld) -> bool:
    """Whether a change that is committed now comes to its topic."""
    ((number,),) = world.ask(f"SELECT COALESCE(MAX(b), 1000) + 1 FROM {world.name}.pair WHERE a = 'now'")
    world.ask(f"INSERT INTO {world.name}.pair VALUES ('now', {number}, 'v')")
    wait_for("it is published", lambda: ("now", number) in folded(world.log("pair")), timeout_s=20)
    return True
