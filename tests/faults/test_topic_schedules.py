"""Whatever is killed, stopped or cut, a topic holds every change once and in order: no more, no less.

The changes are compared with MySQL's own mysqlbinlog, over all that a read_committed consumer sees. Of topics that are
delivered at least once, over what a read_uncommitted consumer keeps that drops what comes twice, too. One seed is one
schedule: `VIEWTAIL_TEST_SEED=7 pytest tests/faults/test_topic_schedules.py` runs the seventh alone. A run of all tests
takes two of 100, and one of the latter; `make topics` takes them all.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pymysql
import pytest

from projectors.failpoints import COMMIT_STEPS, EMPTY_COMMIT_STEPS, STEPS
from stack import Server
from tests.support import slices
from tests.support.running import DIED, IN_COMMIT, Run, death_at, running, wait_for
from tests.support.small_disk import SmallDisk
from tests.support.topic_world import TopicWorld, TopicWriters

LOAD_S = 3.0
FAILPOINTS = (IN_COMMIT, *COMMIT_STEPS, *EMPTY_COMMIT_STEPS, *STEPS)
# A pipeline may not come to these at all: a chunk needs a backfill, an empty commit a watermark or an idle moment.
NOT_SURE = (*EMPTY_COMMIT_STEPS, "after chunk")
SEEDS = slices.seeds(2, "VIEWTAIL_TEST_SEEDS")
LEAST_SEEDS = slices.seeds(1, "VIEWTAIL_TEST_SEEDS")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_topic_holds_every_change_once_and_in_order_after_any_schedule_of_faults(
    seed: int, mysql_server: Server, harmed_kafka: Server, disk_of_harmed_kafka: SmallDisk, tmp_path: Path
) -> None:
    world = TopicWorld(mysql_server, harmed_kafka, f"schedule_{seed}", disk_of_harmed_kafka)
    _keeps_its_promise(world, seed, tmp_path)


@pytest.mark.parametrize("seed", LEAST_SEEDS)
def test_who_waits_for_no_commit_misses_nothing(
    seed: int, mysql_server: Server, harmed_kafka: Server, disk_of_harmed_kafka: SmallDisk, tmp_path: Path
) -> None:
    name = f"least_{seed}"
    world = TopicWorld(mysql_server, harmed_kafka, name, disk_of_harmed_kafka, delivery="at_least_once")
    _keeps_its_promise(world, seed, tmp_path)


def _keeps_its_promise(world: TopicWorld, seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}: rerun with VIEWTAIL_TEST_SEED={seed}")
    chance = random.Random(seed)
    world.drop()
    world.make(users=chance.choice((0, 3000, 9000)))
    with running(tmp_path, world.views, world.environment) as run:
        wait_for("the pipeline knows where it begins", world.is_taken)
        world.mark_begin()
        try:
            with TopicWriters(world, seed) as writers:
                _faults(chance, seed, world, run)
                wait_for("there is something to compare", lambda: writers.committed > 100)
        finally:
            world.mend()
        wait_for("the views are filled", world.is_filled)
        wait_for("every topic gives its table", world.is_folded)
        assert run.stop() == 0
    assert world.faults() == []
    assert world.messages > 100
    print(f"  {world.messages} messages, {world.repeats} of them again")
    world.drop()


def _faults(chance: random.Random, seed: int, world: TopicWorld, run: Run) -> None:
    """Three faults or more at random moments, in LOAD_S seconds; before one of them the seed's failpoint is reached."""
    deadline = time.monotonic() + LOAD_S
    step = FAILPOINTS[seed % len(FAILPOINTS)]
    restart_at = chance.randrange(3)
    is_restarted, faults, count = False, _FAULTS, 0
    while time.monotonic() < deadline or count < 3:
        time.sleep(chance.uniform(0.1, 0.8))  # the moment of the fault; nothing is awaited here
        if not is_restarted and count == restart_at:
            is_restarted = True
            _die_at(step, chance, world, run)
            continue
        fault = chance.choice(faults)
        print(f"  {fault.__name__}")
        fault(chance, world, run)
        count += 1
        if fault in _SLOW:
            faults = [one for one in _FAULTS if one not in _SLOW]
    run.kill()
    run.start()


def _die_at(step: str, chance: random.Random, world: TopicWorld, run: Run) -> None:
    """Starts the pipeline again, to be killed at its failpoint. The next fault waits until it was.

    It would come first otherwise: a start takes longer than the time between two faults.
    """
    assert run.stop() in (0, -signal.SIGTERM)  # the latter while Python itself was starting
    killed = run.log.count(DIED)
    is_rare = world.delivery == "at_least_once" and step in (IN_COMMIT, *COMMIT_STEPS)  # it comes every few seconds
    run.start(VIEWTAIL_FAILPOINT=death_at(step, chance, latest=1 if is_rare else 20))
    print(f"  {step}")
    if step not in NOT_SURE:
        wait_for(f"it is killed {step}", lambda: run.log.count(DIED) > killed)


def _kill_the_worker(chance: random.Random, world: TopicWorld, run: Run) -> None:
    run.kill_worker("kafka")


def _kill_everything(chance: random.Random, world: TopicWorld, run: Run) -> None:
    run.kill()
    run.start()


def _stop_and_start(chance: random.Random, world: TopicWorld, run: Run) -> None:
    assert run.stop() in (0, -signal.SIGTERM)
    run.start()


def _kill_the_broker(chance: random.Random, world: TopicWorld, run: Run) -> None:
    world.kafka.kill()
    time.sleep(chance.uniform(0, 1.0))  # how long it is away
    world.kafka.start()


def _pause_the_broker(chance: random.Random, world: TopicWorld, run: Run) -> None:
    world.kafka.pause()
    time.sleep(chance.uniform(0.1, 2.5))  # how long it hangs
    world.kafka.resume()


def _the_disk_of_the_broker_is_full(chance: random.Random, world: TopicWorld, run: Run) -> None:
    world.fill_the_disk()


def _kill_the_worker_while_the_broker_hangs(chance: random.Random, world: TopicWorld, run: Run) -> None:
    world.kafka.pause()
    time.sleep(chance.uniform(0.1, 0.5))
    run.kill_worker("kafka")
    time.sleep(chance.uniform(0.1, 0.5))
    world.kafka.resume()


def _cut_the_dump_connections(chance: random.Random, world: TopicWorld, run: Run) -> None:
    for (number,) in world.ask(
        "SELECT processlist_id FROM performance_schema.threads WHERE processlist_command LIKE 'Binlog Dump%'"
    ):
        try:
            world.ask(f"KILL {number}")
        except pymysql.err.MySQLError:
            continue  # it ended by itself


def _rotate_the_binlog(chance: random.Random, world: TopicWorld, run: Run) -> None:
    world.ask("FLUSH BINARY LOGS")


def _kill_mysql(chance: random.Random, world: TopicWorld, run: Run) -> None:
    world.mysql.kill()
    world.mysql.start()


def _restore_an_older_offset(chance: random.Random, world: TopicWorld, run: Run) -> None:
    """viewtail's own tables come back from a backup: the offset is behind what was published."""
    ((position,),) = world.ask(f"SELECT position FROM {world.own}.pipeline")
    time.sleep(chance.uniform(0.1, 0.5))
    run.kill()
    quoted = position.replace("\\", "\\\\").replace("'", "''")
    world.ask(f"UPDATE {world.own}.pipeline SET position = '{quoted}'")
    run.start()


_FAULTS: list[Callable[[random.Random, TopicWorld, Run], None]] = [
    _kill_the_worker,
    _kill_the_worker,
    _kill_everything,
    _stop_and_start,
    _kill_the_broker,
    _pause_the_broker,
    _the_disk_of_the_broker_is_full,
    _kill_the_worker_while_the_broker_hangs,
    _cut_the_dump_connections,
    _rotate_the_binlog,
    _kill_mysql,
    _restore_an_older_offset,
]
# The broker starts again, which takes seconds: a schedule has one of them.
_SLOW = (_kill_the_broker, _the_disk_of_the_broker_is_full)
