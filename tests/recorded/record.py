"""Records what a version of viewtail leaves behind when it is killed: filled views, half a backfill, halted views.

    git worktree add --detach /tmp/old COMMIT
    .venv/bin/python -m tests.recorded.record /tmp/old tests/recorded/NAME

NAME must hold views.py. The version is the checkout's; only its commands are used, against servers of its own. Add NAME
to RECORDINGS in tests/integration/test_upgrade.py. The last argument `rebuilds` records rebuilds instead of half
backfills: one that fills its copy, one amid its swap, one whose former copy is kept.

| NAME | Is |
|---|---|
| 118d1f0 | before positions, pipelines' identities and stores were made open to others; ended by SIGTERM |
| v0.11.0 | 37bfc48, the release before Kafka |
| v0.12.0 | 70b1d77, the release before verify, replay of keys and rebuild |
| rebuilds | 009122a, which has all of these |
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis

import stack.elasticsearch
import stack.mysql
import stack.redis
from tests.support import recording
from tests.support.asking import ask
from tests.support.running import DIED, Run, addresses, clean_environment, wait_for
from tests.support.world import World

ROWS = 40  # in shop.user
HALF_ROWS = 100  # in each table that is left half filled
STOP_AFTER = 30  # rows of those, or a few more
HALVES = {"mysql": "ix_half", "redis": "half", "elasticsearch": "half"}
HALTED = ("mysql:ix_gone", "redis:moved")

TABLES = (
    "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(60), n INT NOT NULL, note VARCHAR(20))",
    "CREATE TABLE shop.gone (id INT PRIMARY KEY, v VARCHAR(20))",
    "CREATE TABLE shop.moved (id INT PRIMARY KEY, v VARCHAR(20))",
    *(f"CREATE TABLE shop.half_{store} (id INT PRIMARY KEY, v VARCHAR(20))" for store in ("mysql", "redis", "search")),
)  # fmt: skip


def make_source(world: World) -> None:
    ask(world.mysql, "CREATE DATABASE shop")
    for statement in TABLES:
        ask(world.mysql, statement)
    users = ",".join(f"({i}, 'e{i}@x', {i}, 'never looked at')" for i in range(1, ROWS + 1))
    ask(world.mysql, f"INSERT INTO shop.user VALUES {users}")
    for table in ("half_mysql", "half_redis", "half_search"):
        rows = ",".join(f"({i}, 'v{i}')" for i in range(1, HALF_ROWS + 1))
        ask(world.mysql, f"INSERT INTO shop.{table} VALUES {rows}")
    for table in ("gone", "moved"):
        ask(world.mysql, f"INSERT INTO shop.{table} VALUES (1, 'a'), (2, 'b')")
    ask(world.mysql, "FLUSH BINARY LOGS")


def change_source(world: World) -> None:
    """Changes that a running viewtail sees: all kinds, and two that halt a view."""
    for statement in (
        "INSERT INTO shop.user VALUES (50, 'é:{}%', 50, NULL), (51, NULL, 51, NULL)",
        "UPDATE shop.user SET email = 'changed', n = n + 1 WHERE id IN (10, 11)",
        "UPDATE shop.user SET email = 'parked' WHERE id = 7",
        "UPDATE shop.user SET id = 60 WHERE id = 12",
        "DELETE FROM shop.user WHERE id IN (5, 20, 51)",
        "ALTER TABLE shop.gone DROP COLUMN v",
        "ALTER TABLE shop.moved RENAME COLUMN v TO w",
        "INSERT INTO shop.gone VALUES (3)",
        "INSERT INTO shop.moved VALUES (3, 'c')",
    ):
        ask(world.mysql, statement)


class OldRun(Run):
    """Of a version without a cleaner: tests switch off the present one's."""

    def environment(self) -> dict[str, str]:
        return {name: value for name, value in super().environment().items() if "CLEANER" not in name}


@contextmanager
def run_with(run: Run, views: str, chosen: str, **environment: str) -> Iterator[None]:
    """A run of those views for which `chosen`, an expression over `view`, holds."""
    (run.folder / "views.py").write_text(f"{views}\nviews = [view for view in views if {chosen}]\n")
    run.start(**environment)
    try:
        yield
    except BaseException:
        print(run.log[-8000:], file=sys.stderr)
        raise
    finally:
        run.kill()


def states(world: World) -> dict[str, str]:
    return {str(name): str(state) for name, state in ask(world.mysql, "SELECT name, state FROM viewtail.view")}


def fill_and_follow(world: World, run: Run, views: str) -> None:
    redis.Redis(port=world.redis.port).set("user:7", "not viewtail's")
    with run_with(run, views, "'half' not in view.name"):
        wait_for("all views are filled", lambda: set(states(world).values()) == {"filled"})
        change_source(world)
        wait_for("two views are halted", lambda: sorted(halted(world)) == sorted(HALTED))
        ask(world.mysql, "ALTER TABLE shop.moved RENAME COLUMN w TO v")
        ask(world.mysql, "INSERT INTO shop.user VALUES (70, 'last', 70, NULL)")
        wait_for("the last change is in every store", lambda: is_everywhere(world, "last"))
        parked = ask(world.mysql, "SELECT rendered_key FROM viewtail.dead_letter")
        assert parked == [("7",)], parked


def halted(world: World) -> list[str]:
    return [name for name, state in states(world).items() if state == "halted"]


def is_everywhere(world: World, email: str) -> bool:
    client = redis.Redis(port=world.redis.port, decode_responses=True)
    found, _ = recording.documents(world, "viewtail-user").get("70", ({}, 0))
    in_mysql = ask(world.mysql, "SELECT email FROM viewtail.ix_email WHERE id = 70")
    return bool(in_mysql and in_mysql[0][0] == client.hget("user:70", "email") == found.get("email") == email)


def fill_half(world: World, run: Run, views: str, store: str) -> None:
    """Kill a pipeline amid a backfill, which reads one row a chunk."""
    name = f"{store}:{HALVES[store]}"
    with run_with(run, views, f"view.store == {store!r}"):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                found = ask(world.mysql, f"SELECT fill_row_count FROM viewtail.view WHERE name = '{name}'")
            except Exception as error:
                raise AssertionError(f"{name}: not begun") from error
            if found and found[0][0] >= STOP_AFTER:
                break
            time.sleep(0.002)
        run.kill()
    found = ask(world.mysql, f"SELECT state, fill_row_count, fill_key FROM viewtail.view WHERE name = '{name}'")
    state, count, key = found[0]
    assert state == "filling" and STOP_AFTER <= count < HALF_ROWS * 0.8 and key, f"{name}: {found}"


def leave_rebuilds(world: World, run: Run, views: str) -> None:
    """One in each store, each at another step."""
    not_half = "'half' not in view.name"
    with run_with(run, views, not_half):
        done = run.command("rebuild", "elasticsearch:user", timeout_s=60)
        assert done.returncode == 0, done.stderr
    die_in_rebuild(run, views, "redis", "redis:document", "in swapping:1")
    die_in_rebuild(run, views, "mysql", "mysql:ix_email", f"after chunk:{STOP_AFTER // 2}")
    stages = dict(ask(world.mysql, "SELECT view_name, stage FROM viewtail.rebuild"))
    assert stages == {"elasticsearch:user": "kept", "redis:document": "swapping", "mysql:ix_email": "building"}, stages
    found = ask(world.mysql, "SELECT state, fill_row_count FROM viewtail.view WHERE name = 'mysql:ix_email~2'")
    assert found[0][0] == "filling" and 0 < found[0][1] < ROWS * 0.8, found


def die_in_rebuild(run: Run, views: str, store: str, view: str, step: str) -> None:
    """The process of the store dies at the step, and with it everything else."""
    with run_with(run, views, f"'half' not in view.name and view.store == {store!r}", VIEWTAIL_FAILPOINT=step):
        command = run.background("rebuild", view)
        try:
            wait_for(f"{view} is at {step}", lambda: DIED in run.log, 60)
        finally:
            run.kill()
            command.kill()
            command.wait()
    (run.folder / "run.log").unlink()


def main() -> int:
    checkout, into = Path(sys.argv[1]).resolve(), Path(sys.argv[2])
    is_of_rebuilds = sys.argv[3:] == ["rebuilds"]
    views = (into / "views.py").read_text()
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        world = World(
            mysql=stack.mysql.start(at / "mysql"),
            redis=stack.redis.start(at / "redis"),
            elasticsearch=stack.elasticsearch.start(at / "elasticsearch"),
        )
        try:
            environment = {
                **addresses(world.mysql, world.redis, world.elasticsearch),
                "VIEWTAIL_RUN__CHUNK_ROWS": "1",
                "PYTHONPATH": str(checkout),
            }
            where = subprocess.run(
                [sys.executable, "-c", "import viewtail; print(viewtail.__file__)"],
                cwd=at, env={**clean_environment(), **environment}, capture_output=True, text=True, check=True,
            ).stdout.strip()  # fmt: skip
            assert Path(where).is_relative_to(checkout), f"{where} would be recorded"
            run = (Run if is_of_rebuilds else OldRun)(at, views, environment)
            make_source(world)
            fill_and_follow(world, run, views)
            if is_of_rebuilds:
                leave_rebuilds(world, run, views)
            else:
                for store in HALVES:
                    fill_half(world, run, views, store)
            recording.dump(world, into)
        finally:
            for server in (world.mysql, world.redis, world.elasticsearch):
                server.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
