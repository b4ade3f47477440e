"""Whatever comes, goes or is killed, every view of many tables equals them afterwards, and none shows what was passed.

Tables of tenants are created in every way, renamed, swapped, truncated, altered one by one, dropped and created again,
beside writers, commands and faults of processes and servers. One seed is one schedule: `VIEWTAIL_TEST_SEED=7 pytest
tests/faults/test_tenant_schedules.py` runs the seventh alone. A run of all tests takes two of twenty, `make
tenant-schedules` takes 200. Beside every third are search documents too, and beside every fourth the cleaner. A table
may lose a column that views use, which halts them; another statement mends that, and they are replayed.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql
import pytest

from projectors.failpoints import STEPS
from stack import Server
from tests.support import run_faults, slices
from tests.support.forked import Background
from tests.support.proxy import Proxy
from tests.support.running import CLEANING, Run, addresses, running, wait_for
from tests.support.tenant_world import (
    ACCOUNTS,
    IDS,
    INVOICE,
    TENANTS,
    USER,
    VIEWS,
    WITH_SEARCH,
    TenantWatcher,
    TenantWorld,
    TenantWriters,
    table_of,
)
from tests.support.world import differences

LOAD_S = 5.0
AT_FIRST = 8  # accounts
SEEDS = slices.seeds(20, "VIEWTAIL_TEST_SEEDS")
OF_INVOICES = ("mysql:tn_number", "mysql:tn_even", "mysql:tn_whole", "redis:tn_invoice")
ENDED = {0, 1, 2}  # done, or refused with a reason: a server was away, or another command was in the way


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault may act on."""

    world: TenantWorld
    run: Run
    proxy: Proxy  # between viewtail and MySQL
    stores: tuple[str, ...]
    broken: list[str] = field(default_factory=list)  # statements that may have halted views
    commands: list[tuple[str, Background]] = field(default_factory=list)

    @property
    def views(self) -> tuple[str, ...]:
        """Those of invoices."""
        return OF_INVOICES if self.world.elasticsearch is None else (*OF_INVOICES, "elasticsearch:tn_invoice")


@contextmanager
def _begun(seed: int, mysql_server: Server, request: pytest.FixtureRequest, folder: Path) -> Iterator[Scene]:
    """Tables, and a run that has begun."""
    redis_server = request.getfixturevalue("redis_server")
    search = request.getfixturevalue("elasticsearch_server") if seed % 3 == 0 else None
    world = TenantWorld(mysql=mysql_server, redis=redis_server, elasticsearch=search)
    world.make(random.Random(seed), range(AT_FIRST))
    with Proxy(mysql_server.port) as proxy:
        environment = addresses(mysql_server, redis_server, search) | (CLEANING if seed % 4 == 1 else {})
        environment["VIEWTAIL_RUN__CHUNK_ROWS"] = "50"
        environment["VIEWTAIL_SOURCE__URL"] = mysql_server.url.replace(f":{mysql_server.port}", f":{proxy.port}")
        with running(folder, VIEWS if search is None else WITH_SEARCH, environment) as run:
            stores = ("mysql", "redis") if search is None else ("mysql", "redis", "elasticsearch")
            yield Scene(world=world, run=run, proxy=proxy, stores=stores)


@pytest.mark.one_in(10)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_view_equals_the_tables_of_all_tenants_after_any_schedule_of_faults(
    seed: int, mysql_server: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    print(f"seed {seed}: rerun with VIEWTAIL_TEST_SEED={seed}")
    with _begun(seed, mysql_server, request, tmp_path) as scene, TenantWatcher(scene.world) as watcher:
        world, run = scene.world, scene.run
        writers = TenantWriters(world, seed)
        if seed % 2:
            wait_for("the views are filled", world.is_filled)
        writers.start()
        try:
            faults = _faults(random.Random(seed), seed, scene)
            wait_for("much is written", lambda: writers.committed > 300)
        finally:
            writers.stop()
            scene.proxy.release()
        _converge(scene)
        said = [f"{arguments}: {_end_of(command)}" for arguments, command in scene.commands]
        _converge(scene)
        wait_for("all is well", lambda: not run_faults.replay_what_is_halted(scene) and run.is_filled())
        _rebuild_what_was_begun(scene)
        assert run.stop() == 0
        assert not differences(world.expected(), world.actual())
    print(f"  {writers.committed} transactions, {watcher.looks} looks, {watcher.changes} changes seen")
    print(f"  {dict(Counter(faults))}", *said, sep="\n  ")
    assert watcher.failures == []
    assert watcher.looks > 50 and watcher.changes > 100


def _converge(scene: Scene) -> None:
    run_faults.converge(scene, "every view equals the tables", "view", "dead_letter", "operator_run")


def _rebuild_what_was_begun(scene: Scene) -> None:
    """Copies that killed commands left beside are finished by the same command."""
    with scene.world.cursor() as cursor:
        cursor.execute("SELECT name FROM viewtail.view WHERE name LIKE '%~%'")
        begun = {name.partition("~")[0] for (name,) in cursor.fetchall()}
    for view in begun:

        def is_done(view: str = view) -> bool:
            done = scene.run.command("rebuild", view, "--yes")
            assert done.returncode == 0, done.stdout + done.stderr
            return True

        wait_for(f"{view} is rebuilt", is_done)


def _end_of(command: Background) -> str:
    """What a command beside came to; one that waits for a process that was killed is killed too."""
    try:
        _, errors = command.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        command.kill()
        _, errors = command.communicate()
        return f"killed: {errors[-300:]}"
    assert "Traceback" not in errors, errors
    assert command.returncode in ENDED, errors
    return f"{command.returncode} {errors[-300:].strip() if command.returncode else ''}"


def _faults(chance: random.Random, seed: int, scene: Scene) -> list[str]:
    """Tables come and go, and things fail, for LOAD_S seconds; each seed has a failpoint of its own in one restart."""
    deadline = time.monotonic() + LOAD_S
    done: list[str] = []
    is_restarted = False
    while time.monotonic() < deadline or len(done) < 12:
        time.sleep(chance.uniform(0.05, 0.4))  # the moment of the fault; nothing is awaited here
        if not is_restarted and chance.random() < 0.1:
            is_restarted = True
            step = f"{STEPS[seed % len(STEPS)]}:{chance.randint(1, 6)}"
            done.append(f"killed at {step}")
            assert scene.run.stop() in (0, -signal.SIGTERM)  # the latter while Python itself was starting
            scene.run.start(VIEWTAIL_FAILPOINT=step)
            continue
        fault = chance.choice(chance.choice((_TABLES, _TABLES, run_faults.ALL, _COMMANDS)))
        done.append(fault.__name__.strip("_"))
        print(f"  {done[-1]}")
        fault(chance, scene)
    if is_restarted:
        scene.run.stop()
        scene.run.start()
    return done


# -- tables that come and go -----------------------------------------------------------------------------------------


def _create(chance: random.Random, scene: Scene) -> None:
    """In one of the ways that there are."""
    with scene.world.cursor() as cursor:
        there = scene.world.accounts(cursor)
        absent = sorted({*range(ACCOUNTS)} - {*there})
        if not absent:
            return
        account = chance.choice(absent)
        other = chance.choice([*there, None])
        with scene.world.held(account, *([] if other is None else [other])):
            _create_one(chance, scene, cursor, account, other)


def _create_one(chance: random.Random, scene: Scene, cursor: Any, account: int, other: int | None) -> None:
    way = "plain" if other is None else chance.choice(("plain", "like", "select", "staged"))
    table, rows = table_of(account), chance.sample(range(IDS), chance.choice((0, 3, 20)))
    if way == "select" and other is not None:
        cursor.execute(f"CREATE TABLE {table} {INVOICE} {_rows_of(scene, table_of(other), account)}")
    elif way == "staged":
        cursor.execute("DROP TABLE IF EXISTS app.staged")
        cursor.execute(f"CREATE TABLE app.staged {INVOICE}")
        scene.world.insert(cursor, "app.staged", account, rows)
        cursor.execute(f"RENAME TABLE app.staged TO {table}")
    else:
        cursor.execute(f"CREATE TABLE {table} {INVOICE if way == 'plain' else f'LIKE {table_of(other or 0)}'}")
        scene.world.insert(cursor, table, account, rows)


def _rows_of(scene: Scene, table: str, account: int) -> str:
    """A SELECT of another's rows as this account's."""
    n = scene.world.number()
    columns = f"allowed_id, CONCAT('{account}-', allowed_id, '-{n}') AS number, {n} AS n, note"
    return f"SELECT {columns} FROM {table}"


def _drop(chance: random.Random, scene: Scene) -> None:
    """One or several in one statement; one may come back at once."""
    with scene.world.cursor() as cursor:
        there = scene.world.accounts(cursor)
        gone = chance.sample(there, max(0, min(len(there) - 2, chance.choice((1, 1, 3)))))
        if not gone:
            return
        with scene.world.held(*gone):
            cursor.execute(f"DROP TABLE {', '.join(map(table_of, gone))}")
            if chance.random() < 0.4:
                cursor.execute(f"CREATE TABLE {table_of(gone[0])} {INVOICE}")
                scene.world.insert(cursor, table_of(gone[0]), gone[0], chance.sample(range(IDS), 5))


def _truncate(chance: random.Random, scene: Scene) -> None:
    with scene.world.cursor() as cursor:
        account = chance.choice(scene.world.accounts(cursor))
        with scene.world.held(account):
            cursor.execute(f"TRUNCATE TABLE {table_of(account)}")
            if chance.random() < 0.5:
                scene.world.insert(cursor, table_of(account), account, chance.sample(range(IDS), 5))


def _rename_away(chance: random.Random, scene: Scene) -> None:
    with scene.world.cursor() as cursor:
        there = scene.world.accounts(cursor)
        if len(there) < 4:
            return
        account = chance.choice(there)
        with scene.world.held(account):
            cursor.execute(f"DROP TABLE IF EXISTS app.away{account}_invoice")
            cursor.execute(f"RENAME TABLE {table_of(account)} TO app.away{account}_invoice")


def _rename_back(chance: random.Random, scene: Scene) -> None:
    """As the same account, or as another one."""
    with scene.world.cursor() as cursor:
        away = scene.world.accounts(cursor, "away")
        absent = sorted({*range(ACCOUNTS)} - {*scene.world.accounts(cursor)})
        if not away or not absent:
            return
        old, account = chance.choice(away), chance.choice(absent)
        with scene.world.held(account):
            n = scene.world.number()
            text = f"CONCAT('{account}-', allowed_id, '-{n}')"
            cursor.execute(f"UPDATE app.away{old}_invoice SET number = {text}, n = {n}")
            cursor.connection.commit()
            cursor.execute(f"RENAME TABLE app.away{old}_invoice TO {table_of(account)}")


def _swap(chance: random.Random, scene: Scene) -> None:
    """Two tenants get each other's rows, in one statement."""
    with scene.world.cursor() as cursor:
        there = scene.world.accounts(cursor)
        if len(there) < 2:
            return
        pair = chance.sample(there, 2)
        with scene.world.held(*pair):
            moves = []
            for account, other in (pair, pair[::-1]):
                new, old = f"app.new{account}", f"app.old{account}"
                cursor.execute(f"DROP TABLE IF EXISTS {new}, {old}")
                cursor.execute(f"CREATE TABLE {new} LIKE {table_of(other)}")
                cursor.execute(
                    f"INSERT INTO {new} (allowed_id, number, n, note) {_rows_of(scene, table_of(other), account)}"
                )
                moves += [f"{table_of(account)} TO {old}", f"{new} TO {table_of(account)}"]
            cursor.connection.commit()
            cursor.execute(f"RENAME TABLE {', '.join(moves)}")


def _alter_online(chance: random.Random, scene: Scene) -> None:
    """As gh-ost does: a copy with the same rows takes the table's place."""
    with scene.world.cursor() as cursor:
        account = chance.choice(scene.world.accounts(cursor))
        with scene.world.held(account):
            ghost, old = f"app._org{account}_gho", f"app._org{account}_del"
            cursor.execute(f"DROP TABLE IF EXISTS {ghost}, {old}")
            cursor.execute(f"CREATE TABLE {ghost} LIKE {table_of(account)}")
            cursor.execute(f"ALTER TABLE {ghost} ADD COLUMN more_{time.monotonic_ns()} INT FIRST")
            columns = "allowed_id, number, n, note"
            cursor.execute(f"INSERT INTO {ghost} ({columns}) SELECT {columns} FROM {table_of(account)}")
            cursor.connection.commit()
            cursor.execute(f"RENAME TABLE {table_of(account)} TO {old}, {ghost} TO {table_of(account)}")


def _alter_all(chance: random.Random, scene: Scene) -> None:
    """One by one, while they are written to."""
    column = f"more_{time.monotonic_ns()}"
    what = chance.choice(
        (
            f"ADD COLUMN {column} INT",
            f"ADD COLUMN {column} VARCHAR(10) DEFAULT 'x' FIRST",
            f"MODIFY number VARCHAR({chance.randint(81, 160)}) NOT NULL",
            f"MODIFY note VARCHAR({chance.randint(21, 60)})",
        )
    )
    with scene.world.cursor() as cursor:
        for account in scene.world.accounts(cursor):
            try:
                cursor.execute(f"ALTER TABLE {table_of(account)} {what}")
            except pymysql.err.DataError:
                continue  # a text in it is longer


def _a_schema_comes_or_goes(chance: random.Random, scene: Scene) -> None:
    tenant = chance.choice(TENANTS)
    with scene.world.cursor() as cursor, scene.world.held(tenant):
        there = scene.world.tenants(cursor)
        if tenant not in there:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS tenant_{tenant}")
            cursor.execute(f"CREATE TABLE {table_of(tenant)} {USER}")
            scene.world.insert(cursor, table_of(tenant), tenant, chance.sample(range(IDS), 5))
        elif len(there) > 1:
            cursor.execute(f"DROP DATABASE tenant_{tenant}")


def _break_and_mend(chance: random.Random, scene: Scene) -> None:
    """One table loses a column that views use, and gets it again; nobody sees what was between."""
    wait_for("the declarations have fitted once: else it is a mistake in them", scene.world.is_known)
    with scene.world.cursor() as cursor:
        account = chance.choice(scene.world.accounts(cursor))
        with scene.world.held(account):
            table = table_of(account)
            scene.broken.append(f"ALTER TABLE {table} DROP COLUMN number")
            cursor.execute(scene.broken[-1])
            time.sleep(chance.choice((0.0, 0.4)))
            n = scene.world.number()
            cursor.execute(f"ALTER TABLE {table} ADD COLUMN number VARCHAR(40) NOT NULL DEFAULT ''")
            cursor.execute(f"UPDATE {table} SET number = CONCAT('{account}-', allowed_id, '-{n}'), n = {n}")


# -- commands beside --------------------------------------------------------------------------------------------------


def _replay_one_tenant(chance: random.Random, scene: Scene) -> None:
    _command(scene, "replay", chance.choice(scene.views), "--part", f"account_id={chance.randrange(ACCOUNTS)}", "--yes")


def _verify_one_tenant(chance: random.Random, scene: Scene) -> None:
    _command(scene, "verify", chance.choice(scene.views), "--part", f"account_id={chance.randrange(ACCOUNTS)}")


def _forget_one_tenant(chance: random.Random, scene: Scene) -> None:
    """It is refused, unless the tenant has no table."""
    _command(scene, "forget", chance.choice(scene.views), "--part", f"account_id={chance.randrange(ACCOUNTS)}")


def _replay_all(chance: random.Random, scene: Scene) -> None:
    _command(scene, "replay", chance.choice(scene.views), "--yes")


def _rebuild(chance: random.Random, scene: Scene) -> None:
    _command(scene, "rebuild", chance.choice(scene.views), "--yes")


def _command(scene: Scene, *arguments: str) -> None:
    scene.commands.append((" ".join(arguments), scene.run.background(*arguments)))


_TABLES: list[Callable[[random.Random, Scene], None]] = [
    _create,
    _create,
    _create,
    _create,
    _drop,
    _drop,
    _truncate,
    _rename_away,
    _rename_back,
    _rename_back,
    _swap,
    _alter_online,
    _alter_all,
    _alter_all,
    _a_schema_comes_or_goes,
    _break_and_mend,
]
_COMMANDS: list[Callable[[random.Random, Scene], None]] = [
    _replay_one_tenant,
    _verify_one_tenant,
    _forget_one_tenant,
    _replay_all,
    _rebuild,
]
