"""Whatever is killed, stopped, cut or altered, every document equals the joins afterwards, and none ever went back.

One seed is one schedule: `VIEWTAIL_TEST_SEED=7 pytest tests/faults/test_document_schedules.py` runs the seventh alone.
`make documents` runs 500. Beside every third are search documents too, and beside every fourth the cleaner.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest

from projectors.failpoints import STEPS
from stack import Server
from tests.support import slices
from tests.support.order_watcher import OrderWatcher
from tests.support.order_world import KINDS, VIEWS, WITH_SEARCH, OrderWorld, OrderWriters
from tests.support.proxy import Proxy
from tests.support.running import CLEANING, Run, addresses, running, wait_for
from tests.support.world import differences

LOAD_S = 4.0
ORDERS = 200
FAN_OUT_ABOVE = (3, 1000, 20, 5)  # entities that depend on a row; what has more is worked off page by page
SEEDS = slices.seeds(4, "VIEWTAIL_TEST_SEEDS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault may act on."""

    world: OrderWorld
    run: Run
    writers: OrderWriters
    proxy: Proxy  # between viewtail and MySQL
    stores: tuple[str, ...]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_document_equals_the_joins_after_any_schedule_of_faults(
    seed: int,
    mysql_server: Server,
    redis_server: Server,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    print(f"seed {seed}: rerun with VIEWTAIL_TEST_SEED={seed}")
    chance = random.Random(seed)
    search = request.getfixturevalue("elasticsearch_server") if seed % 3 == 0 else None
    world = OrderWorld(mysql=mysql_server, redis=redis_server, elasticsearch=search)
    world.make(chance, ORDERS)
    writers = OrderWriters(world, seed, ORDERS)
    views = VIEWS if search is None else WITH_SEARCH
    with Proxy(mysql_server.port) as proxy:
        environment = addresses(mysql_server, redis_server, search) | (CLEANING if seed % 4 == 1 else {})
        environment["VIEWTAIL_RUN__FAN_OUT_ABOVE"] = str(FAN_OUT_ABOVE[seed % len(FAN_OUT_ABOVE)])
        environment["VIEWTAIL_SOURCE__URL"] = mysql_server.url.replace(f":{mysql_server.port}", f":{proxy.port}")
        with running(tmp_path, views, environment) as run, OrderWatcher(world) as watcher:
            stores = ("mysql", "redis") if search is None else ("mysql", "redis", "elasticsearch")
            scene = Scene(world=world, run=run, writers=writers, proxy=proxy, stores=stores)
            if seed % 2:
                wait_for("the views are filled", world.is_filled)
            writers.start()
            try:
                faults = _faults(chance, seed, scene)
                wait_for("enough is done", lambda: _is_enough(writers, watcher))
            finally:
                writers.stop()
                proxy.release()
                for server in (world.mysql, world.redis, *([] if search is None else [search])):
                    if not server.is_running():
                        server.start()
            _converged(world)
            wait_for("all is well", run.is_filled)
            wait_for("no fan-out is left", lambda: not _fan_outs(world))
            assert run.stop() == 0
    print(f"  {writers.committed} transactions, {writers.ledger.count} states, {watcher.reads} reads, "
          f"{watcher.changes} changes seen, faults: {', '.join(faults)}")  # fmt: skip
    assert watcher.backward(writers.ledger) == []
    assert faults
    assert _is_enough(writers, watcher)


def _is_enough(writers: OrderWriters, watcher: OrderWatcher) -> bool:
    """A schedule in which little was done, or seen, says nothing."""
    is_done = writers.committed > 300 and writers.ledger.count > 300 and writers.kinds == KINDS
    return is_done and watcher.reads > 2000 and watcher.changes > 100


def _converged(world: OrderWorld) -> None:
    def same() -> bool:
        told = differences(world.expected(), world.actual())
        assert not told, told
        return True

    wait_for("every document equals the joins", same, timeout_s=90)


def _fan_outs(world: OrderWorld) -> int:
    with world.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM viewtail.fan_out WHERE written_upto IS NULL")
        return int(cursor.fetchone()[0])


def _faults(chance: random.Random, seed: int, scene: Scene) -> list[str]:
    """Faults at random moments for LOAD_S seconds; each seed has a failpoint of its own in one restart."""
    deadline = time.monotonic() + LOAD_S
    run = scene.run
    done: list[str] = []
    is_restarted = False
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(0.1, 0.8))  # the moment of the fault; nothing is awaited here
        if not is_restarted and chance.random() < 0.3:
            is_restarted = True
            step = f"{STEPS[seed % len(STEPS)]}:{chance.randint(1, 6)}"
            done.append(f"killed at {step}")
            assert run.stop() in (0, -signal.SIGTERM)  # the latter while Python itself was starting
            run.start(VIEWTAIL_FAILPOINT=step)
            continue
        fault = chance.choice(_FAULTS)
        done.append(fault.__name__.strip("_"))
        print(f"  {done[-1]}")
        fault(chance, scene)
    if is_restarted:
        run.stop()
        run.start()
    return done


def _kill_a_worker(chance: random.Random, scene: Scene) -> None:
    scene.run.kill_worker(chance.choice(scene.stores))


def _kill_everything(chance: random.Random, scene: Scene) -> None:
    scene.run.kill()
    scene.run.start()


def _cut_all_connections(chance: random.Random, scene: Scene) -> None:
    scene.proxy.cut()


def _hold_all_connections(chance: random.Random, scene: Scene) -> None:
    scene.proxy.hold()
    time.sleep(chance.uniform(0.1, 1.5))  # how long nothing comes
    scene.proxy.release()


def _kill_sessions(chance: random.Random, scene: Scene) -> None:
    """Those of viewtail that are reading, and those that follow the binlog."""
    with scene.world.cursor() as cursor:
        cursor.execute(
            "SELECT processlist_id FROM performance_schema.threads WHERE processlist_id IS NOT NULL "
            "AND processlist_command IN ('Query', 'Sleep', 'Binlog Dump', 'Binlog Dump GTID') "
            "AND processlist_id <> CONNECTION_ID()"
        )
        for (number,) in cursor.fetchall():
            if chance.random() < 0.5:
                try:
                    cursor.execute(f"KILL {number}")
                except pymysql.err.MySQLError:
                    continue  # it ended by itself


def _rotate_the_binlog(chance: random.Random, scene: Scene) -> None:
    with scene.world.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")


def _kill_mysql(chance: random.Random, scene: Scene) -> None:
    scene.world.mysql.kill()
    scene.world.mysql.start()


def _kill_redis(chance: random.Random, scene: Scene) -> None:
    scene.world.redis.kill()
    scene.world.redis.start()


def _pause_redis(chance: random.Random, scene: Scene) -> None:
    scene.world.redis.pause()
    time.sleep(chance.uniform(0.1, 1.0))  # how long it hangs
    scene.world.redis.resume()


def _pause_a_worker(chance: random.Random, scene: Scene) -> None:
    """A worker that stands still while the others go on, as where its machine swaps."""
    scene.run.pause_worker(chance.choice(scene.stores), chance.uniform(0.1, 1.5))


def _alter_what_no_view_uses(chance: random.Random, scene: Scene) -> None:
    table = chance.choice(("order", "order_line", "product", "customer", "tag"))
    scene.writers.alone(f"ALTER TABLE docs.`{table}` ADD COLUMN more_{time.monotonic_ns()} INT")


def _widen_a_column(chance: random.Random, scene: Scene) -> None:
    table, column, null = chance.choice(
        (("product", "title", "NOT NULL"), ("customer", "name", "NOT NULL"), ("order", "note", ""))
    )
    scene.writers.alone(f"ALTER TABLE docs.`{table}` MODIFY {column} VARCHAR({chance.randint(31, 39)}) {null}")


def _truncate_a_child(chance: random.Random, scene: Scene) -> None:
    scene.writers.alone(f"TRUNCATE TABLE docs.{chance.choice(('order_line', 'order_tag', 'tag', 'category'))}")


_FAULTS: list[Callable[[random.Random, Scene], None]] = [
    _kill_a_worker,
    _kill_a_worker,
    _kill_a_worker,
    _kill_everything,
    _cut_all_connections,
    _hold_all_connections,
    _kill_sessions,
    _rotate_the_binlog,
    _kill_mysql,
    _kill_redis,
    _pause_redis,
    _pause_a_worker,
    _alter_what_no_view_uses,
    _widen_a_column,
    _truncate_a_child,
]
