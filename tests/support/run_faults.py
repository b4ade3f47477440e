"""What befalls a `viewtail run`, its connections and servers, in a schedule of faults. Each returns when it is over."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pymysql

from stack import Server
from tests.support.proxy import Proxy
from tests.support.running import Run, wait_for
from tests.support.world import Content, differences


class World(Protocol):
    """The servers."""

    @property
    def mysql(self) -> Server: ...
    @property
    def redis(self) -> Server: ...
    def cursor(self) -> AbstractContextManager[Any]: ...  # of MySQL
    def expected(self) -> Content: ...
    def actual(self) -> Content: ...


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
    @property
    def broken(self) -> list[str]: ...  # statements that may have halted views


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


ALL: list[Callable[[random.Random, Scene], None]] = [
    kill_a_worker,
    kill_a_worker,
    kill_a_worker,
    kill_everything,
    cut_all_connections,
    hold_all_connections,
    kill_sessions,
    rotate_the_binlog,
    kill_mysql,
    kill_redis,
    pause_redis,
    pause_a_worker,
]


# --- What becomes of the views ---


def converge(scene: Scene, what: str, *told_of: str) -> None:
    """Wait until the views show what they are to show; else `told_of` of viewtail's tables are printed."""

    def same() -> bool:
        if replay_what_is_halted(scene):
            return False
        told = differences(scene.world.expected(), scene.world.actual())
        assert not told, json.dumps(told, indent=1, default=str)
        return True

    try:
        wait_for(what, same)
    except AssertionError as error:
        with scene.world.cursor() as cursor:
            for table in told_of:
                cursor.execute(f"SELECT * FROM viewtail.{table}")
                print(f"-- viewtail.{table}", *cursor.fetchall(), sep="\n")
        print(str(error).replace("\\n", "\n"))
        raise


def replay_what_is_halted(scene: Scene) -> bool:
    """Returns whether there is any such view."""
    with scene.world.cursor() as cursor:
        cursor.execute("SELECT name, reason FROM viewtail.view WHERE state = 'halted'")
        halted = dict(cursor.fetchall())
    if halted:
        assert scene.broken, halted
        replayed = scene.run.command("replay", "--yes", *halted)
        print(f"  replayed: {halted} {replayed.stderr}")
    return bool(halted)
