"""`viewtail forget VIEW`, killed at each step: the same command again leaves nothing of it, and nothing else goes."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from elasticsearch import Elasticsearch

from projectors.failpoints import DROP_STEPS
from stack import Server
from tests.support import forked
from tests.support.asking import ask
from tests.support.running import Run, addresses, wait_for

SCHEMA, OWN, ROWS = "forget_killed", "forget_killed_own", 450  # several scripts' worth of Redis keys
ENTITY = f'from viewtail import *\n\nuser = Entity("{SCHEMA}.user")\n'
STAYS = 'RedisHash("stays", user, fields=["name"], key="killed:{id}:more")'
GONE = (
    'IndexTable("killed_by_name", user, value="name")',
    'RedisHash("killed", user, fields=["name"])',
    'SearchIndex("killed", user, fields={"name": "text"})',
)
pytestmark = [pytest.mark.mysql, pytest.mark.slow]


class World:
    """Three views that are not declared any more, one that is, and what is not viewtail's."""

    def __init__(self, folder: Path, mysql: Server, redis_server: Server, elasticsearch: Server) -> None:
        self.mysql = mysql
        self.redis: Any = redis.Redis(port=redis_server.port)
        self.elastic = Elasticsearch(elasticsearch.url)
        self.environment = {
            **addresses(mysql, redis_server, elasticsearch),
            "VIEWTAIL_MYSQL__URL": f"{mysql.url}/{OWN}",
        }
        for database in (SCHEMA, OWN):
            self.ask(f"DROP DATABASE IF EXISTS {database}")
        self.ask(f"CREATE DATABASE {SCHEMA}")
        self.ask(f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, name VARCHAR(40))")
        rows = ", ".join(f"({number}, 'n{number}')" for number in range(ROWS))
        self.ask(f"INSERT INTO {SCHEMA}.user VALUES {rows}")
        self.clean()
        self.run = Run(folder, f"{ENTITY}views = [{', '.join((*GONE, STAYS))}]\n", self.environment)

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return ask(self.mysql, statement)

    def clean(self) -> None:
        self.redis.flushall()
        self.elastic.options(ignore_status=404).indices.delete(index="viewtail-killed,viewtail-killed-too")

    def state(self) -> tuple[set[str], set[str], set[str], set[str]]:
        """Tables that are no views' bookkeeping, Redis keys, indices, and the views that are known."""
        tables = self.ask(f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{OWN}'")
        keys = {name.decode() for name in self.redis.scan_iter() if not name.startswith(b"viewtail:")}
        indices = set(self.elastic.indices.get(index="viewtail-killed*"))
        known = {name for (name,) in self.ask(f"SELECT name FROM {OWN}.view")}
        return {name for (name,) in tables if "killed" in name}, keys, indices, known

    def forget(self, view: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return forked.command(("forget", view, "--yes"), self.run.folder, {**self.run.environment(), **environment})


@pytest.fixture
def world(tmp_path: Path, mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Iterator[World]:
    found = World(tmp_path, mysql_server, redis_server, elasticsearch_server)
    found.run.start()
    try:
        filled = f"SELECT COUNT(*) FROM {OWN}.view WHERE state = 'filled'"
        wait_for("the views are filled", lambda: found.ask(filled) == [(len(GONE) + 1,)], 60)
        found.ask(f"DELETE FROM {SCHEMA}.user WHERE id < 150")
        wait_for("tombstones are there", lambda: found.redis.exists("{killed:149}:t"))
        assert found.run.stop() == 0
        (tmp_path / "views.py").write_text(f"{ENTITY}views = [{STAYS}]\n")
        found.ask(f"CREATE TABLE {OWN}.killed_by_names (id INT PRIMARY KEY)")
        found.redis.set("killed:9001", "of another program")
        found.redis.set("{killed:9001}:t", "of another program")
        found.elastic.index(index="viewtail-killed-too", id="1", document={"a": 1}, refresh=True)
        yield found
    finally:
        found.run.kill()
        found.clean()


def test_a_killed_forget_is_finished_by_the_same_command_and_touches_nothing_else(world: World) -> None:
    others = {f"killed:{number}:more" for number in range(150, ROWS)}
    others |= {f"{{killed:{number}:more}}:t" for number in range(150)}
    foreign = {"killed:9001", "{killed:9001}:t"}
    steps = [(view, f"{step}:1") for view in ("mysql:killed_by_name", "elasticsearch:killed") for step in DROP_STEPS]
    steps += [("redis:killed", f"{step}:{often}") for step, often in zip(DROP_STEPS, (1, 2, 1), strict=True)]
    before = world.state()
    for view, step in steps:
        killed = world.forget(view, VIEWTAIL_FAILPOINT=step)
        assert killed.returncode == -signal.SIGKILL, (step, killed.stderr)
        tables, keys, indices, known = world.state()
        assert view in known, "its bookkeeping goes last"
        assert others | foreign <= keys and "killed_by_names" in tables and "viewtail-killed-too" in indices
        kept = world.run.command("status", "--json").stdout
        assert view in kept
    assert world.state() != before
    for view in sorted({view for view, _ in steps}):
        done = world.forget(view)
        assert done.returncode == 0, done.stderr
    assert world.state() == ({"killed_by_names"}, others | foreign, {"viewtail-killed-too"}, {"redis:stays"})


def test_a_view_that_is_declared_again_after_a_killed_forget_stays_halted_until_its_replay(world: World) -> None:
    assert world.forget("redis:killed", VIEWTAIL_FAILPOINT="after drop:2").returncode == -signal.SIGKILL
    (world.run.folder / "views.py").write_text(f"{ENTITY}views = [{GONE[1]}, {STAYS}]\n")
    refused = world.forget("redis:killed")
    assert refused.returncode == 2 and "is declared in views.py" in refused.stderr
    world.run.start()
    told = wait_for(
        "status tells", lambda: _has(world.run.command("status").stdout, "viewtail forget began to drop it")
    )
    assert "viewtail replay" in told
    assert world.run.command("replay", "--yes", "redis:killed").returncode == 0
    wait_for("it is whole again", lambda: world.redis.hget("killed:449", "name") == b"n449")
    wait_for("it is whole again", lambda: len(list(world.redis.scan_iter("killed:???"))) == ROWS - 150)


def _has(text: str, words: str) -> str:
    flat = " ".join(text.split())
    assert words in flat, flat
    return flat
