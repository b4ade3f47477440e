"""`viewtail pause`, `resume` and `dead-letters`, with the real command line and real servers."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pymysql
import pytest
import redis

import stack.mysql
from stack import Server
from tests.support.running import Run, addresses, running, wait_for

SCHEMA, NAME = "pausing", "pausing_user"
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash

user, pet = Entity("{SCHEMA}.user"), Entity("{SCHEMA}.pet")


def long_enough(row):
    if row["name"] == "bad":
        raise ValueError("no such name")
    return True


views = [
    IndexTable("user_by_email", user, value="email"),
    IndexTable("pet_by_name", pet, value="name", where=long_enough),
    RedisHash("{NAME}", user, fields=["email"]),
]
"""

pytestmark = [pytest.mark.mysql, pytest.mark.slow]


class Shop:
    """Two tables, and what three views of them show."""

    def __init__(self, mysql: Server, cache: Server) -> None:
        self.mysql = mysql
        self.cache = redis.Redis(port=cache.port)
        self.environment = addresses(mysql, cache)
        self._connection = pymysql.connect(host="127.0.0.1", port=mysql.port, user="root", autocommit=True)
        for statement in (
            f"DROP DATABASE IF EXISTS {SCHEMA}",
            "DROP DATABASE IF EXISTS viewtail",
            f"CREATE DATABASE {SCHEMA}",
            f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, email VARCHAR(60))",
            f"CREATE TABLE {SCHEMA}.pet (id INT PRIMARY KEY, name VARCHAR(60))",
            f"INSERT INTO {SCHEMA}.user VALUES (1, 'a'), (2, 'b')",
            f"INSERT INTO {SCHEMA}.pet VALUES (1, 'Rex')",
        ):
            self.sql(statement)
        self.cache.flushall()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def close(self) -> None:
        self._connection.close()
        self.cache.close()

    def users(self) -> dict[int, str]:
        return dict(self.sql(f"SELECT id, email FROM {SCHEMA}.user"))  # type: ignore[arg-type]

    def indexed(self) -> dict[int, str]:
        return dict(self.sql("SELECT id, email FROM viewtail.user_by_email WHERE email IS NOT NULL"))  # type: ignore[arg-type]

    def pets(self) -> dict[int, str]:
        return dict(self.sql("SELECT id, name FROM viewtail.pet_by_name WHERE name IS NOT NULL"))  # type: ignore[arg-type]

    def hashes(self) -> dict[int, str]:
        found = {}
        for name in self.cache.scan_iter(f"{NAME}:*"):
            if not name.endswith(b":t") and (email := self.cache.hget(name, "email")) is not None:
                found[int(name.rpartition(b":")[2])] = email.decode()
        return found

    def is_equal(self) -> bool:
        assert self.indexed() == self.hashes() == self.users()
        return True


class Writer:
    """Changes users until it is left."""

    def __init__(self, shop: Shop) -> None:
        self._connection = pymysql.connect(host="127.0.0.1", port=shop.mysql.port, user="root", autocommit=True)
        self._stop = threading.Event()
        self.count = 0
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        with self._connection.cursor() as cursor:
            while not self._stop.wait(0.003):
                self.count += 1
                key, email = self.count % 97, f"e{self.count}"
                cursor.execute(f"REPLACE INTO {SCHEMA}.user VALUES (%s, %s)", (key, email))
                if self.count % 5 == 0:
                    cursor.execute(f"DELETE FROM {SCHEMA}.user WHERE id = %s", (self.count * 7 % 97,))

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._connection.close()


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.kill()


@pytest.fixture
def shop(own_mysql: Server, redis_server: Server) -> Iterator[Shop]:
    made = Shop(own_mysql, redis_server)
    yield made
    made.close()


def pipeline(run: Run, name: str) -> dict[str, Any]:
    told = json.loads(run.command("status", "--json").stdout)
    return next(one for one in told["pipelines"] if one["name"] == name)


def state(run: Run, name: str) -> str:
    return str(pipeline(run, name)["state"])


def view(run: Run, name: str) -> dict[str, Any]:
    told = json.loads(run.command("status", "--json").stdout)
    return next(one for pipeline in told["pipelines"] for one in pipeline["views"] if one["name"] == name)


def started(shop: Shop, run: Run) -> None:
    wait_for("the views are filled", lambda: shop.is_equal() and run.is_well())


def recorded(run: Run) -> list[tuple[str, str, str, str]]:
    """What was paused and resumed, the oldest first: kind, view, what, why."""
    past = json.loads(run.command("replays", "--json").stdout)
    kept = [(one["kind"], one["view"], one["what"], one["result"]) for one in reversed(past)]
    return [one for one in kept if one[0] in ("pause", "resume")]


def test_a_paused_pipeline_stands_still_over_kills_and_restarts_and_loses_nothing(shop: Shop, tmp_path: Path) -> None:
    with running(tmp_path, VIEWS, shop.environment) as run, Writer(shop) as writer:
        wait_for("the views are filled", lambda: state(run, "redis") == "running" and shop.hashes())
        done = run.command("pause", "--pipeline", "redis", "--reason", "its disk is exchanged")
        assert done.returncode == 0 and "viewtail resume --pipeline redis" in done.stdout
        wait_for("it is paused", lambda: state(run, "redis") == "paused")

        stands, shown, before = pipeline(run, "redis"), shop.hashes(), writer.count
        assert stands["paused"]["reason"] == "its disk is exchanged" and "@" in stands["paused"]["by"]
        wait_for("the other pipeline goes on", lambda: writer.count > before + 300 and shop.indexed())
        again = run.command("pause", "--pipeline", "redis")
        assert again.returncode == 0 and "is paused already" in again.stdout

        run.kill_worker("redis")
        wait_for("another process has it", lambda: run.workers().get("redis"))
        wait_for("it is paused there too", lambda: state(run, "redis") == "paused")
        run.kill()
        wait_for("nobody runs it", lambda: state(run, "redis") == "down")
        assert "paused since" in run.command("status").stdout
        run.start()
        wait_for("it is paused after a restart", lambda: state(run, "redis") == "paused")
        wait_for("the other pipeline goes on there", lambda: state(run, "mysql") == "running")
        now = pipeline(run, "redis")
        assert now["position"] == stands["position"] and now["lag_s"] > stands["lag_s"] > 0
        assert shop.hashes() == shown
        assert "paused since" in run.command("status").stdout

        done = run.command("resume", "--pipeline", "redis")
        assert done.returncode == 0 and stands["position"] in done.stdout
        wait_for("it runs", lambda: state(run, "redis") == "running")
        # Killed before it has caught up, and paused once more.
        run.kill_worker("redis")
        assert run.command("pause", "--all").returncode == 0
        wait_for("both are paused", lambda: state(run, "redis") == state(run, "mysql") == "paused")
        assert run.command("resume", "--all").returncode == 0
        running_already = run.command("resume", "--all")
        assert running_already.returncode == 0 and "is not paused" in running_already.stdout
        both = ["pipeline mysql", "pipeline redis"]
        assert [(kind, what, why) for kind, _, what, why in recorded(run)] == [
            ("pause", "pipeline redis", "its disk is exchanged"), ("resume", "pipeline redis", ""),
            *(("pause", what, "") for what in both), *(("resume", what, "") for what in both),
        ]  # fmt: skip
        assert [view(run, f"redis:{NAME}")["state"], view(run, "mysql:user_by_email")["state"]] == ["filled"] * 2
        writer.stop()
        wait_for("the views equal the table", shop.is_equal)
        assert "backfilling" not in run.log.rpartition("pipeline paused")[2], "it went on at its offset"
        wait_for("all is well", run.is_well)


def test_status_exits_1_for_a_paused_pipeline_only_once_it_is_behind(shop: Shop, tmp_path: Path) -> None:
    with running(tmp_path, VIEWS, shop.environment) as run:
        started(shop, run)
        assert run.command("pause", "--pipeline", "mysql").returncode == 0
        wait_for("it is paused", lambda: state(run, "mysql") == "paused")
        assert run.command("status").returncode == 0
        waited = run.command("wait", "user_by_email", "--within", "1")
        assert waited.returncode == 1 and "viewtail resume --pipeline mysql" in waited.stderr
        shop.sql("UPDATE viewtail.pipeline SET paused_at = paused_at - INTERVAL 61 SECOND WHERE name = 'mysql'")
        told = run.command("status")
        assert told.returncode == 1 and "viewtail resume --pipeline mysql" in told.stdout
        assert "must be backfilled again" not in told.stdout
        assert "next for 30.0 days at least (binlog_expire_logs_seconds)" in told.stdout
        remark = run.command("get", "user_by_email", "1")
        assert remark.returncode == 0 and "its pipeline is paused" in remark.stderr


def test_a_paused_view_gets_nothing_while_others_go_on_and_is_backfilled_when_it_is_resumed(
    shop: Shop, tmp_path: Path
) -> None:
    with running(tmp_path, VIEWS, shop.environment) as run:
        started(shop, run)
        assert "is not paused; it is filled" in run.command("resume", "user_by_email").stdout
        done = run.command("pause", "user_by_email", "--reason", "a reader is moved")
        assert done.returncode == 0, done.stderr
        wait_for("its process has seen it", lambda: "view paused" in run.log)
        shop.sql(f"UPDATE {SCHEMA}.user SET email = 'c' WHERE id = 1")
        shop.sql(f"DELETE FROM {SCHEMA}.user WHERE id = 2")
        shop.sql(f"INSERT INTO {SCHEMA}.pet VALUES (2, 'Leo')")
        wait_for("others go on", lambda: 2 in shop.pets() and shop.hashes() == {1: "c"})
        assert shop.indexed() == {1: "a", 2: "b"}
        told = view(run, "mysql:user_by_email")
        assert (told["state"], told["paused"]["reason"]) == ("paused", "a reader is moved")
        assert run.command("status").returncode == 0
        read = run.command("find", "user_by_email", "c")
        assert read.returncode == 1 and "is paused and gets no changes, since" in read.stderr  # nothing is found
        assert "a reader is moved" in read.stderr

        asked = run.command("why", "user_by_email", "1")
        assert asked.returncode == 1 and "PAUSED: " in asked.stdout, asked.stderr
        assert "viewtail resume mysql:user_by_email" in asked.stdout
        shop.sql(f"UPDATE {SCHEMA}.user SET email = 'a' WHERE id = 1")
        asked = run.command("why", "user_by_email", "1")
        assert asked.returncode == 0 and "CURRENT: " in asked.stdout, asked.stderr
        assert "; but the view gets no changes: it is paused since" in asked.stdout, asked.stdout
        assert "a reader is moved" in asked.stdout
        shop.sql(f"UPDATE {SCHEMA}.user SET email = 'c' WHERE id = 1")
        waited = run.command("wait", "user_by_email")
        assert waited.returncode == 1 and "viewtail resume mysql:user_by_email" in waited.stderr

        assert "is paused already" in run.command("pause", "user_by_email").stdout
        replayed = run.command("replay", "--yes", "user_by_email")
        assert replayed.returncode == 1 and "viewtail resume" in replayed.stderr
        assert run.stop() == 0
        # A new declaration does not end the pause.
        (tmp_path / "views.py").write_text(
            VIEWS.replace('user, value="email"', 'user, value="email", where=lambda row: row["id"] < 9')
        )
        run.start()
        wait_for("the others are kept", lambda: state(run, "mysql") == "running")
        shop.sql(f"INSERT INTO {SCHEMA}.pet VALUES (3, 'Mia')")
        wait_for("others go on", lambda: 3 in shop.pets())
        assert view(run, "mysql:user_by_email")["state"] == "paused" and shop.indexed() == {1: "a", 2: "b"}

        shop.sql(f"INSERT INTO {SCHEMA}.user VALUES (9, 'left out')")
        shop.sql(f"ANALYZE TABLE {SCHEMA}.user")
        done = run.command("resume", "user_by_email")
        assert done.returncode == 0 and "backfilled in place, about 2 rows" in done.stdout
        waited = run.command("wait", "user_by_email", "--within", "20")
        assert waited.returncode == 0, waited.stderr
        assert shop.indexed() == {1: "c"}, "what waits for a view waits for its backfill"
        assert recorded(run) == [
            ("pause", "mysql:user_by_email", "the view", "a reader is moved"),
            ("resume", "mysql:user_by_email", "the view", ""),
        ]
        shop.sql(f"INSERT INTO {SCHEMA}.user VALUES (3, 'd')")
        wait_for("it gets changes", lambda: shop.indexed() == {1: "c", 3: "d"})
        wait_for("all is well", run.is_well)


def test_a_halted_view_is_not_paused_and_a_view_may_be_paused_and_resumed_while_nothing_runs(
    shop: Shop, tmp_path: Path
) -> None:
    with running(tmp_path, VIEWS, shop.environment) as run:
        started(shop, run)
        shop.sql(f"RENAME TABLE {SCHEMA}.pet TO {SCHEMA}.old_pet")
        wait_for("it is halted", lambda: view(run, "mysql:pet_by_name")["state"] == "halted")
        done = run.command("pause", "pet_by_name", "user_by_email")
        assert done.returncode == 1 and "it is halted" in done.stderr and "mysql:user_by_email: paused" in done.stdout
        assert view(run, "mysql:pet_by_name")["state"] == "halted"
        assert "not paused, but halted" in run.command("resume", "pet_by_name").stderr
        shop.sql(f"RENAME TABLE {SCHEMA}.old_pet TO {SCHEMA}.pet")
        assert run.command("replay", "--yes", "pet_by_name").returncode == 0
        wait_for("it is back", lambda: view(run, "mysql:pet_by_name")["state"] == "filled")
        assert run.stop() == 0
        shop.sql(f"UPDATE {SCHEMA}.user SET email = 'z' WHERE id = 1")
        done = run.command("resume", "user_by_email")
        assert done.returncode == 0 and "the next `viewtail run` does it" in done.stdout
        run.start()
        wait_for("it is filled", lambda: shop.is_equal() and run.is_well())
        for wrong in (
            ["pause"],
            ["pause", "user_by_email", "--all"],
            ["resume", "--pipeline", "redi"],
            ["pause", "user_by_email", "--reason", "a line\nand another"],
            ["pause", "user_by_email", "--reason", "\x1b[31mred"],
            ["pause", "user_by_email", "--reason", "x" * 1001],
            ["replay", "user_by_email", "--all"],
        ):
            refused = run.command(*wrong)
            assert refused.returncode == 2 and "viewtail: error" in refused.stderr
        assert view(run, "mysql:user_by_email")["state"] == "filled"


def test_metrics_show_what_is_paused(shop: Shop, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def served(line: str) -> bool:
        with suppress(URLError, OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
            return line in page.read().decode().splitlines()
        return False

    with running(tmp_path, VIEWS, {**shop.environment, "VIEWTAIL_METRICS__PORT": str(port)}) as run:
        started(shop, run)
        wait_for("nothing is paused", lambda: served('viewtail_pipeline_paused{pipeline="redis"} 0.0'))
        assert run.command("pause", "--pipeline", "redis").returncode == 0
        assert run.command("pause", "user_by_email").returncode == 0
        wait_for("the pipeline is shown", lambda: served('viewtail_pipeline_paused{pipeline="redis"} 1.0'))
        wait_for("the view is shown", lambda: served('viewtail_paused_views{pipeline="mysql"} 1.0'))
        assert served('viewtail_pipeline_running{pipeline="redis"} 0.0')
        wait_for("lag grows", lambda: not served('viewtail_lag_seconds{pipeline="redis"} 0.0'))


def test_a_frozen_owner_of_a_paused_pipeline_is_followed_by_one_that_keeps_it_paused(
    shop: Shop, tmp_path: Path
) -> None:
    with running(tmp_path, VIEWS, shop.environment) as run:
        started(shop, run)
        assert run.command("pause", "--pipeline", "redis").returncode == 0
        wait_for("it is paused", lambda: state(run, "redis") == "paused")
        second = Run(tmp_path, VIEWS, shop.environment)
        second.start()
        frozen = run.workers()["redis"]
        os.kill(frozen, signal.SIGSTOP)
        try:
            shop.sql(f"INSERT INTO {SCHEMA}.user VALUES (7, 'g')")
            wait_for("the second says so", lambda: run.log.count("pipeline paused") >= 2)
            assert state(run, "redis") == "paused" and 7 not in shop.hashes()
        finally:
            os.kill(frozen, signal.SIGCONT)
        assert run.command("resume", "--pipeline", "redis").returncode == 0
        wait_for("nothing is lost", shop.is_equal)
        second.kill()


def test_dead_letters_are_listed_with_their_cause_shown_and_dropped(shop: Shop, tmp_path: Path) -> None:
    with running(tmp_path, VIEWS, shop.environment) as run:
        started(shop, run)
        shop.sql(f"INSERT INTO {SCHEMA}.pet VALUES (2, 'bad'), (3, 'bad'), (4, 'Leo')")
        wait_for("the good one is there", lambda: 4 in shop.pets())
        listed = json.loads(run.command("dead-letters", "list", "--json").stdout)
        assert listed["count"] == 2 and {letter["key"] for letter in listed["letters"]} == {"2", "3"}
        (version,) = {letter["version"] for letter in listed["letters"]}
        assert isinstance(version, str) and int(version) > 1 << 53
        assert "the newest 1 of 2" in run.command("dead-letters", "list", "pet_by_name", "--limit", "1").stderr
        shown = run.command("dead-letters", "show", "pet_by_name", "2")
        assert shown.returncode == 0 and "ValueError" in shown.stdout and "refused   once" in shown.stdout
        assert "bad" not in shown.stdout, "no row values"
        assert run.command("dead-letters", "show", "pet_by_name", "4").returncode == 1
        assert "viewtail dead-letters list mysql:pet_by_name" in run.command("status").stdout

        unasked = run.command("dead-letters", "drop", "pet_by_name", "2")
        assert unasked.returncode == 2 and "--yes" in unasked.stderr
        dropped = run.command("dead-letters", "drop", "pet_by_name", "2", "4", "--yes")
        assert dropped.returncode == 1 and "1 dead letter forgotten" in dropped.stdout and "'4'" in dropped.stderr
        assert run.command("dead-letters", "drop", "pet_by_name", "--yes").returncode == 0
        assert "no dead letters of view" in run.command("dead-letters", "list", "pet_by_name").stderr
        wait_for("all is well", run.is_well)
        why = run.command("why", "pet_by_name", "2")
        assert why.returncode == 1 and "PARKED" in why.stdout and "without a dead letter" in why.stdout, why.stdout
        shop.sql(f"UPDATE {SCHEMA}.pet SET name = 'Mia' WHERE id = 2")
        wait_for("it is applied", lambda: shop.pets().get(2) == "Mia")
