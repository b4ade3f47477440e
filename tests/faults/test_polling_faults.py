"""Polling: whatever is killed, every view equals its table afterwards, and no entity ever went backward.

One seed is one schedule: `VIEWTAIL_TEST_SEED=7 pytest tests/faults/test_polling_faults.py` runs the seventh alone. A
run of all tests takes two of twenty; `make polling` takes them all. In every second one the ids
cross 2^63; in every third one there are several tables, by a pattern, and others join them meanwhile.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pymysql
import pytest

from stack import Server
from tests.support import slices
from tests.support.asking import ask
from tests.support.polled import COLUMNS, VIEWS, Polled, polling
from tests.support.running import wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]
SEEDS = slices.seeds(2, "VIEWTAIL_TEST_SEEDS")
LOAD_S = 8.0
WRITERS = 6
OF_PATTERN = VIEWS.replace("bank.account", "bank.account_##")
MOST_TABLES = 6


@pytest.mark.parametrize("seed", SEEDS)
def test_views_of_a_polled_table_equal_it_after_any_schedule_of_faults(
    seed: int, mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    print(f"seed {seed}: rerun with VIEWTAIL_TEST_SEED={seed}")
    chance = random.Random(seed)
    views, tables = (OF_PATTERN, ["account_00", "account_01"]) if seed % 3 == 0 else (VIEWS, ["account"])
    with polling(mysql_server, redis_server, tmp_path, views, tables) as polled:
        wait_for("they are filled", polled.is_equal)
        if seed % 2:
            ask(mysql_server, f"ALTER TABLE bank.{tables[0]} AUTO_INCREMENT = {(1 << 63) - 300}")
        with watching(polled) as fallen:
            try:
                with writing(polled, seed) as committed:
                    faults(chance, polled)
                    wait_for("much is written, on a busy machine too", lambda: sum(committed) > 100)
            finally:
                if not mysql_server.is_running():
                    mysql_server.start()
            wait_for("views equal the table", lambda: _same(polled))
        assert fallen == []
        if seed % 2:
            far = f"SELECT COUNT(*) FROM bank.{tables[0]} WHERE event_id > 9223372036854775807"
            assert ask(mysql_server, far)[0][0] > 0
        assert len(tables) == 1 or len(polled.tables) > 2
        wait_for("all is well", polled.run.is_well)


def _same(polled: Polled) -> bool:
    assert polled.is_equal(), polled.differences()
    return True


def faults(chance: random.Random, polled: Polled) -> None:
    """At random moments for LOAD_S seconds; the server is killed once."""
    deadline, is_killed = time.monotonic() + LOAD_S, False
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(0.3, 1.0))  # the moment of the fault; nothing is awaited here
        fault = chance.choice(("worker", "all", "sessions", "server"))
        print(f"  {fault}")
        if len(polled.tables) > 1 and len(polled.tables) < MOST_TABLES and chance.random() < 0.7:
            name = f"account_{len(polled.tables):02}"
            print(f"  {name}")
            ask(polled.mysql, f"CREATE TABLE bank.{name} {COLUMNS}")
            polled.tables.append(name)
        if fault == "worker":
            polled.run.kill_worker(chance.choice(("mysql", "redis")))
        elif fault == "all":
            polled.run.kill()
            polled.run.start()
        elif fault == "sessions":
            with suppress(pymysql.err.MySQLError):
                for (number,) in ask(
                    polled.mysql, "SELECT id FROM information_schema.processlist WHERE user = 'poller'"
                ):
                    with suppress(pymysql.err.MySQLError):  # it ended by itself
                        ask(polled.mysql, f"KILL {number}")
        elif not is_killed:
            is_killed = True
            polled.mysql.kill()
            polled.mysql.start()


@contextmanager
def writing(polled: Polled, seed: int) -> Iterator[list[int]]:
    """Writers of entities of their own: single rows, several at once, rollbacks, transactions of up to 5 seconds."""
    stop, committed = threading.Event(), [0] * WRITERS

    def transaction(session: pymysql.Connection, chance: random.Random, number: int, version: int) -> int:  # type: ignore[type-arg]
        with session.cursor() as cursor:
            for _ in range(chance.choice((1, 1, 3))):
                table = chance.choice(polled.tables)
                rows = [
                    f"('w{number}.{table}.{chance.randrange(30)}', {version + at}, {chance.randrange(1000)})"
                    for at in range(1, 1 + chance.choice((1, 1, 20)))
                ]
                version += len(rows)
                cursor.execute(f"INSERT INTO bank.{table} (entity_id, version, balance) VALUES {', '.join(rows)}")
                stop.wait(chance.choice((0, 0, 0, 0.01, 0.2)) if chance.random() > 0.01 else 5)
        session.rollback() if chance.random() < 0.2 else session.commit()
        committed[number] += 1
        return version

    def write(number: int) -> None:
        chance, version = random.Random(seed * 100 + number), 0
        while not stop.is_set():
            try:
                at = {"host": "127.0.0.1", "port": polled.mysql.port, "user": "root"}
                with closing(pymysql.connect(**at)) as session:  # type: ignore[arg-type]
                    while not stop.is_set():
                        version = transaction(session, chance, number, version)
            except pymysql.err.MySQLError:  # the server was killed; what it had committed stays
                version += 1_000
                stop.wait(0.1)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield committed
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def watching(polled: Polled) -> Iterator[list[str]]:
    """What readers saw fall."""
    stop, fallen, newest = threading.Event(), list[str](), dict[str, int]()

    def watch() -> None:
        while not stop.wait(0.05):
            with suppress(pymysql.err.MySQLError):
                for entity, version in ask(polled.mysql, "SELECT entity_id, version FROM viewtail.account_by_balance"):
                    if version < newest.get(entity, 0):
                        fallen.append(f"{entity}: {newest[entity]}, then {version}")
                    newest[entity] = version

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield fallen
    finally:
        stop.set()
        thread.join()
        assert newest
