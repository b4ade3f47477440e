"""Whatever is killed, stopped or cut, every view equals its table afterwards, and no key ever went backward.

One seed is one schedule: `VIEWTAIL_TEST_SEED=7 pytest tests/faults/test_convergence.py` runs the seventh alone. A run
of all tests takes two of twenty; `make convergence` takes them all. Beside every fourth the
cleaner is at work.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pymysql
import pytest

from projectors.failpoints import STEPS
from stack import Server
from tests.support import slices
from tests.support.running import CLEANING, Run, addresses, running, wait_for
from tests.support.watcher import Watcher
from tests.support.world import VIEWS, World, Writers, differences

LOAD_S = 5.0
STORES = ("mysql", "redis", "elasticsearch")
SEEDS = slices.seeds(2, "VIEWTAIL_TEST_SEEDS")  # every fourth kills Elasticsearch


@pytest.fixture(scope="module")
def world(mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> World:
    return World(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_view_equals_its_table_after_any_schedule_of_faults(seed: int, world: World, tmp_path: Path) -> None:
    print(f"seed {seed}: rerun with VIEWTAIL_TEST_SEED={seed}")
    chance = random.Random(seed)
    world.make(users=chance.choice((0, 3000)))
    writers = Writers(world, seed)
    is_cleaned = seed % 4 == 1
    environment = addresses(world.mysql, world.redis, world.elasticsearch) | (CLEANING if is_cleaned else {})
    with running(tmp_path, VIEWS, environment) as run, Watcher(world) as watcher:
        writers.start()
        try:
            _faults(chance, seed, world, run)
            wait_for("much is written, on a busy machine too", lambda: writers.committed > 100)
        finally:
            writers.stop()
            for server in (world.mysql, world.redis, world.elasticsearch):
                if not server.is_running():
                    server.start()
        _converged(world)
        if is_cleaned:
            wait_for("a cleaner has gone round beside", lambda: _rounds(world))
        assert run.stop() == 0
    assert watcher.looks > 20
    assert watcher.regressions == []


def _converged(world: World) -> None:
    def same() -> bool:
        told = differences(world.expected(), world.actual())
        assert not told, told
        return True

    wait_for("every view equals its table", same)


def _rounds(world: World) -> int:
    """Views over which a cleaner has gone."""
    with world.cursor() as cursor:
        cursor.execute("SELECT COUNT(DISTINCT view) FROM viewtail.operator_run WHERE kind = 'clean' AND state = 'done'")
        return int(cursor.fetchone()[0])


def _faults(chance: random.Random, seed: int, world: World, run: Run) -> None:
    """Faults at random moments for LOAD_S seconds; each seed has a failpoint of its own in one restart."""
    deadline = time.monotonic() + LOAD_S
    step = STEPS[seed % len(STEPS)]
    is_restarted = False
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(0.2, 1.0))  # the moment of the fault; nothing is awaited here
        if not is_restarted and chance.random() < 0.4:
            is_restarted = True
            assert run.stop() in (0, -signal.SIGTERM)  # the latter while Python itself was starting
            run.start(VIEWTAIL_FAILPOINT=f"{step}:{chance.randint(1, 6)}")
            continue
        fault = chance.choice(_FAULTS if seed % 4 else [*_FAULTS, _kill_elasticsearch])
        print(f"  {fault.__name__}")
        fault(chance, world, run)
    if is_restarted:
        run.stop()
        run.start()


def _kill_a_worker(chance: random.Random, world: World, run: Run) -> None:
    run.kill_worker(chance.choice(STORES))


def _kill_everything(chance: random.Random, world: World, run: Run) -> None:
    run.kill()
    run.start()


def _cut_the_dump_connections(chance: random.Random, world: World, run: Run) -> None:
    with world.cursor() as cursor:
        cursor.execute(
            "SELECT processlist_id FROM performance_schema.threads WHERE processlist_command LIKE 'Binlog Dump%'"
        )
        for (number,) in cursor.fetchall():
            try:
                cursor.execute(f"KILL {number}")
            except pymysql.err.MySQLError:
                continue  # it ended by itself


def _rotate_the_binlog(chance: random.Random, world: World, run: Run) -> None:
    with world.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")


def _kill_mysql(chance: random.Random, world: World, run: Run) -> None:
    world.mysql.kill()
    world.mysql.start()


def _kill_redis(chance: random.Random, world: World, run: Run) -> None:
    world.redis.kill()
    time.sleep(chance.uniform(0, 1.0))  # how long it is away
    world.redis.start()


def _pause_redis(chance: random.Random, world: World, run: Run) -> None:
    world.redis.pause()
    time.sleep(chance.uniform(0.1, 1.5))  # how long it hangs
    world.redis.resume()


def _pause_elasticsearch(chance: random.Random, world: World, run: Run) -> None:
    world.elasticsearch.pause()
    time.sleep(chance.uniform(0.1, 1.5))  # how long it hangs
    world.elasticsearch.resume()


def _kill_elasticsearch(chance: random.Random, world: World, run: Run) -> None:
    world.elasticsearch.kill()
    world.elasticsearch.start()


_FAULTS: list[Callable[[random.Random, World, Run], None]] = [
    _kill_a_worker,
    _kill_a_worker,
    _kill_a_worker,
    _kill_everything,
    _cut_the_dump_connections,
    _rotate_the_binlog,
    _kill_mysql,
    _kill_redis,
    _pause_redis,
    _pause_elasticsearch,
]
