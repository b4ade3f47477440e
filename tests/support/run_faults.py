"""What befalls a `viewtail run`, its connections and servers, in a schedule of faults. Each returns when it is over."""

from __future__ import annotations

import random
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pymysql

from stack import Server
from tests.support.proxy import Proxy
from tests.support.running import Run


class World(Protocol):
    """The servers."""

    @property
    def mysql(self) -> Server: ...
    @property
    def redis(self) -> Server: ...
    def cursor(self) -> AbstractContextManager[Any]: ...  # of MySQL


class Scene(Protocol):
    """What a fault may act on."""

    @property
    def world(self) -> World: ...
    @property
    def run(self) -> Run: ...
    @property
    def proxy(self) -> Proxy: ...  # between viewtail and MySQL
    @property
    def stores(self) -> tuple[str, ...]: ...  # that have a worker each


def kill_a_worker(chance: random.Random, scene: Scene) -> None:
    scene.run.kill_worker(chance.choice(scene.stores))


def kill_everything(chance: random.Random, scene: Scene) -> None:
    scene.run.kill()
    scene.run.start()


def cut_all_connections(chance: random.Random, scene: Scene) -> None:
    scene.proxy.cut()


def hold_all_connections(chance: random.Random, scene: Scene) -> None:
    scene.proxy.hold()
    time.sleep(chance.uniform(0.1, 1.5))  # how long nothing comes
    scene.proxy.release()


def kill_sessions(chance: random.Random, scene: Scene) -> None:
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


def rotate_the_binlog(chance: random.Random, scene: Scene) -> None:
    with scene.world.cursor() as cursor:
        cursor.execute("FLUSH BINARY LOGS")


def kill_mysql(chance: random.Random, scene: Scene) -> None:
    scene.world.mysql.kill()
    scene.world.mysql.start()


def kill_redis(chance: random.Random, scene: Scene) -> None:
    scene.world.redis.kill()
    scene.world.redis.start()


def pause_redis(chance: random.Random, scene: Scene) -> None:
    scene.world.redis.pause()
    time.sleep(chance.uniform(0.1, 1.0))  # how long it hangs
    scene.world.redis.resume()


def pause_a_worker(chance: random.Random, scene: Scene) -> None:
    """A worker that stands still while the others go on, as where its machine swaps."""
    scene.run.pause_worker(chance.choice(scene.stores), chance.uniform(0.1, 1.5))
