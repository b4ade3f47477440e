"""Two servers under one view: whatever is killed, cut or hangs, the view has the rows of both afterwards.

In a second view a key is of one server at a time: of a row on both, the other one's is parked, and of one that moved
nothing is.

One seed is one schedule: `VIEWTAIL_TEST_SEED=7 pytest tests/faults/test_server_schedules.py` runs the seventh alone. A
run of all tests takes one of twenty; `make servers` takes 200. Rows move between the servers meanwhile.
"""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from pathlib import Path

import pymysql
import pytest

from stack import Server
from tests.support import slices
from tests.support.asking import ask
from tests.support.running import CLEANING
from tests.support.several_servers import WITH_SEARCH, Servers, servers, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.elasticsearch, pytest.mark.slow]

LOAD_S = 6.0
KEYS = 40
PIPELINES = ("eu.0.mysql", "eu.0.redis", "us.0.mysql", "us.0.redis", "eu.0.elasticsearch")
SEEDS = slices.seeds(1, "VIEWTAIL_TEST_SERVER_SEEDS")


class Writer(threading.Thread):
    """Inserts, changes and deletes rows, and moves them to the other server."""

    def __init__(self, world: Servers, seed: int) -> None:
        super().__init__(daemon=True)
        self._world, self._chance = world, random.Random(seed)
        self.is_over = threading.Event()
        self.written = 0

    def run(self) -> None:
        while not self.is_over.is_set():
            try:
                self._write()
                self.written += 1
            except pymysql.err.MySQLError:  # a server is away
                time.sleep(0.1)

    def _write(self) -> None:
        chance, names = self._chance, ["eu", "us"]
        chance.shuffle(names)
        one, other = (self._world.servers[name] for name in names)
        key, email = chance.randint(1, KEYS), f"{chance.random()}@x"
        match chance.randint(0, 9):
            case 0 | 1:
                ask(one, f"DELETE FROM shop.user WHERE id = {key}")
            case 2 | 3:  # a row that moves, first gone or first there
                move = [
                    partial(ask, one, f"DELETE FROM shop.user WHERE id = {key}"),
                    partial(ask, other, f"REPLACE INTO shop.user VALUES ({key}, '{email}', '')"),
                ]
                chance.shuffle(move)
                for step in move:
                    step()
            case 4 if chance.random() < 0.05:
                ask(one, "TRUNCATE TABLE shop.user")
            case _:
                ask(one, f"REPLACE INTO shop.user VALUES ({key}, '{email}', '')")


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_view_has_the_rows_of_both_servers_after_any_schedule_of_faults(
    seed: int,
    mysql_server: Server,
    mariadb_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
    tmp_path: Path,
) -> None:
    print(f"seed {seed}: rerun with VIEWTAIL_TEST_SEED={seed}")
    chance = random.Random(seed)
    cleaned = CLEANING if seed % 2 else {}
    with servers(
        mysql_server, mariadb_server, redis_server, tmp_path, WITH_SEARCH, cleaned, elasticsearch_server
    ) as world:
        writer = Writer(world, seed)
        writer.start()
        try:
            _faults(chance, world)
            wait_for("much is written, on a busy machine too", lambda: writer.written > 100)
        finally:
            writer.is_over.set()
            writer.join(60)
            world.cut.release()
            world.cut.lead_to(mariadb_server.port)
            for server in (mariadb_server, redis_server):
                if not server.is_running():
                    server.start()
        wait_for("both are in the view", world.is_equal)
        wait_for("each key is in the other one once", world.is_once)
        assert all(view["state"] == "filled" for each in world.pipelines().values() for view in each["views"])


def _faults(chance: random.Random, world: Servers) -> None:
    deadline = time.monotonic() + LOAD_S
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(0.3, 1.2))  # the moment of the fault; nothing is awaited here
        fault = chance.choice(FAULTS)
        print(f"  {fault.__name__}")
        fault(chance, world)


def _kill_a_worker(chance: random.Random, world: Servers) -> None:
    world.run.kill_worker(chance.choice(PIPELINES))


def _kill_everything(chance: random.Random, world: Servers) -> None:
    world.run.kill()
    world.run.start()


def _cut_us(chance: random.Random, world: Servers) -> None:
    world.cut.cut()


def _hold_us(chance: random.Random, world: Servers) -> None:
    world.cut.hold()
    time.sleep(chance.uniform(0.1, 1.5))  # how long it hangs
    world.cut.release()


def _kill_us(chance: random.Random, world: Servers) -> None:
    world.servers["us"].kill()
    time.sleep(chance.uniform(0, 1.0))  # how long it is away
    world.servers["us"].start()


def _rotate(chance: random.Random, world: Servers) -> None:
    ask(world.servers[chance.choice(("eu", "us"))], "FLUSH BINARY LOGS")


def _drop_the_table(chance: random.Random, world: Servers) -> None:
    if chance.random() < 0.3:
        ask(world.servers["eu"], f"DROP TABLE IF EXISTS viewtail.{chance.choice(('user_by_email', 'user_once'))}")


def _kill_redis(chance: random.Random, world: Servers) -> None:
    world.redis_server.kill()
    time.sleep(chance.uniform(0, 1.0))  # how long it is away
    world.redis_server.start()


FAULTS = (
    _kill_a_worker,
    _kill_everything,
    _cut_us,
    _hold_us,
    _kill_us,
    _kill_redis,
    _rotate,
    _drop_the_table,
)
