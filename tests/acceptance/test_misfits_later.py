"""A view that fits its table no more once a pipeline has run: it is halted or waited for, and the others go on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, running, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]
VIEWS = """\
from viewtail import Entity, IndexTable, RedisHash

views = [
    IndexTable("by_name", Entity("later.person"), value="name"),
    IndexTable("by_price", Entity("later.item"), value="price"),
    RedisHash("items", Entity("later.item"), fields=["price"]),
]
"""
SET_UP = (
    "DROP DATABASE IF EXISTS viewtail",
    "DROP DATABASE IF EXISTS later",
    "CREATE DATABASE later",
    "CREATE TABLE later.person (id INT PRIMARY KEY, name VARCHAR(20) NOT NULL, rev INT NOT NULL)",
    "CREATE TABLE later.item (id INT PRIMARY KEY, price INT NOT NULL)",
    "INSERT INTO later.person VALUES (1, 'a', 1)",
    "INSERT INTO later.item VALUES (1, 10)",
    "DROP USER IF EXISTS later, standby",
    "CREATE USER later, standby",
    "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO later, standby",
    "GRANT ALL ON viewtail.* TO later, standby",
    "GRANT SELECT ON later.person TO later, standby",
    "GRANT SELECT ON later.item TO later, standby",
)
SESSIONS = "SELECT id FROM information_schema.processlist WHERE user = '{}'"


class Later:
    """A run whose user may lose a table from sight."""

    def __init__(self, mysql: Server, cache: Server, run: Run) -> None:
        self.mysql, self.run = mysql, run
        self._client: Any = redis.Redis(port=cache.port)

    def set(self, number: int) -> None:
        ask(self.mysql, f"UPDATE later.person SET name = 'n{number}'")
        ask(self.mysql, f"UPDATE later.item SET price = {number}")

    def names(self) -> list[tuple[Any, ...]]:
        return ask(self.mysql, "SELECT name FROM viewtail.by_name WHERE name IS NOT NULL")

    def prices(self) -> list[tuple[Any, ...]]:
        return ask(self.mysql, "SELECT price FROM viewtail.by_price WHERE price IS NOT NULL")

    def cached(self) -> object:
        return self._client.hget("items:1", "price")

    def states(self) -> dict[str, tuple[str, str]]:
        found = ask(
            self.mysql,
            "SELECT pipeline.name, state, COALESCE(error, '') FROM viewtail.pipeline_status "
            "JOIN viewtail.pipeline ON pipeline.id = pipeline_id",
        )
        return {name: (state, error) for name, state, error in found}

    def end_sessions(self, user: str = "later") -> None:
        """All of that viewtail's."""
        for (session,) in ask(self.mysql, SESSIONS.format(user)):
            with suppress(pymysql.err.OperationalError):  # it has ended itself
                ask(self.mysql, f"KILL {session}")


@pytest.fixture
def later(mysql_server: Server, redis_server: Server, tmp_path: Path) -> Iterator[Later]:
    for statement in SET_UP:
        ask(mysql_server, statement)
    environment = addresses(mysql_server, redis_server) | {"VIEWTAIL_SOURCE__USER": "later"}
    with running(tmp_path, VIEWS, environment) as run:
        found = Later(mysql_server, redis_server, run)
        wait_for("they are filled", lambda: found.prices() == [(10,)] and found.cached() == b"10")
        wait_for("all is well", run.is_well)
        yield found


@pytest.mark.parametrize("begins_again", ["in its process", "in another process"])
def test_a_table_that_is_not_to_be_seen_halts_a_pipeline_that_begins_again_and_ends_nothing(
    later: Later, begins_again: str
) -> None:
    """Nothing tells whether the table is as it was, so that its view is not halted; the pipeline waits, by name."""
    before = later.run.workers()
    ask(later.mysql, "REVOKE SELECT ON later.person FROM later")
    if begins_again == "in its process":
        later.end_sessions()
    else:
        assert later.run.kill_worker("mysql")

    def said() -> str:
        state, error = later.states()["mysql"]
        return error if state == "halted" else ""

    wait_for("it says what it misses", lambda: "later.person" in said())
    later.set(20)
    wait_for("the other store goes on", lambda: later.cached() == b"20")
    assert later.names() == [("a",)]
    done = later.run.command("status")
    assert done.returncode == 1 and "later.person" in done.stdout
    ask(later.mysql, "GRANT SELECT ON later.person TO later")
    wait_for("it goes on where it was", lambda: later.names() == [("n20",)] and later.prices() == [(20,)])
    wait_for("all is well", later.run.is_well)
    if begins_again == "in its process":
        assert later.run.workers() == before
    assert later.run.stop() == 0


def test_a_views_py_that_fits_nothing_halts_what_begins_again_and_ends_nothing(later: Later) -> None:
    file = later.run.folder / "views.py"
    file.write_text(VIEWS.replace('value="name"', 'value="nickname"'))
    assert later.run.kill_worker("mysql")
    wait_for("it says what is wrong", lambda: "nickname" in later.states()["mysql"][1])
    later.set(30)
    wait_for("the other store goes on", lambda: later.cached() == b"30")
    file.write_text(VIEWS)
    assert later.run.kill_worker("mysql")
    wait_for("it goes on where it was", lambda: later.names() == [("n30",)] and later.prices() == [(30,)])
    assert later.run.stop() == 0


def test_what_a_standby_misses_is_not_said_of_the_pipeline_that_another_process_runs(
    later: Later, tmp_path: Path
) -> None:
    """Its user, and so its rights, are others; whose lease it is says how the pipeline is."""
    folder = tmp_path / "standby"
    folder.mkdir()
    with running(folder, VIEWS, later.run.environment() | {"VIEWTAIL_SOURCE__USER": "standby"}) as standby:
        waiting = f"{SESSIONS.format('standby')} AND state = 'User lock'"
        wait_for("it stands by", lambda: len(ask(later.mysql, waiting)) == 2)
        before = standby.workers()
        ask(later.mysql, "REVOKE SELECT ON later.person FROM standby")
        later.end_sessions("standby")
        wait_for("it misses the table", lambda: "later.person" in standby.log)
        seen = set[str]()
        until = time.monotonic() + 8  # longer than the longest pause between two of its attempts
        while time.monotonic() < until:
            seen.add(later.states()["mysql"][0])
            time.sleep(0.02)
        assert seen == {"running"}
        assert standby.workers() == before, "it tries no more, and would say nothing in any case"
    later.set(40)
    wait_for("the first one goes on", lambda: later.names() == [("n40",)] and later.prices() == [(40,)])
    assert later.run.stop() == 0


@pytest.mark.parametrize("is_again", [False, True])
def test_what_only_the_process_of_a_store_can_see_ends_all_with_code_2(later: Later, is_again: bool) -> None:
    """No restart mends it, also of one that has run: it is told, and not tried again for ever."""
    file = later.run.folder / "views.py"
    wrong = VIEWS.replace('Entity("later.person")', 'Entity("later.person", version="rev")')
    if is_again:
        file.write_text(wrong)
        assert later.run.kill_worker("mysql")
    else:
        assert later.run.stop() == 0
        file.write_text(wrong)
        later.run.start()
    assert later.run.process is not None
    assert later.run.process.wait(60) == 2
    later.run.process = None
    assert "by_name" in later.run.log.rpartition("viewtail: error:")[2]
