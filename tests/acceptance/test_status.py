"""`viewtail status` and `viewtail replay`, on a real server, with the real command line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pymysql
import pytest
import redis

import stack.mysql
import stack.redis
from stack.server import Server
from tests.support import forked
from tests.support.forked import clean_environment

VIEWTAIL = str(Path(sys.executable).with_name("viewtail"))
VIEWS = """
from viewtail import Entity, IndexTable

user = Entity("shop.user")
pet = Entity("shop.pet")
views = [IndexTable("user_by_email", user, value="email"), IndexTable("pet_by_name", pet, value="name")]
"""
TABLES = (
    "DROP DATABASE IF EXISTS viewtail",
    "DROP DATABASE IF EXISTS shop",
    "CREATE DATABASE shop",
    "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(100))",
    "CREATE TABLE shop.pet (id INT PRIMARY KEY, name VARCHAR(100))",
    "INSERT INTO shop.user VALUES (1, 'ada@example.org'), (2, 'grace@example.org')",
    "INSERT INTO shop.pet VALUES (1, 'Rex')",
)

pytestmark = [pytest.mark.mysql, pytest.mark.slow]


class Shop:
    """A server with two tables, and a folder with views of them."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.folder = folder
        self.server = server
        self.environment = {
            **clean_environment(),
            "VIEWTAIL_SOURCE__URL": server.url,
            "VIEWTAIL_METRICS__PORT": "0",
        }
        self.connection = pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True)
        for statement in TABLES:
            self.sql(statement)
        (folder / "views.py").write_text(VIEWS)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def viewtail(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return forked.command(arguments, self.folder, self.environment)

    def status(self) -> dict[str, Any]:
        done = self.viewtail("status", "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["is_well"] == (done.returncode == 0)
        return found

    def views(self) -> dict[str, str]:
        """State by view."""
        return {view["name"]: view["state"] for one in self.status()["pipelines"] for view in one["views"]}

    def index(self, table: str) -> set[tuple[Any, ...]]:
        value = {"user_by_email": "email", "pet_by_name": "name"}[table]
        return set(self.sql(f"SELECT id, {value} FROM viewtail.{table} WHERE {value} IS NOT NULL"))

    @contextmanager
    def running(self) -> Iterator[None]:
        with (self.folder / "run.log").open("ab") as log:
            process = subprocess.Popen([VIEWTAIL, "run"], env=self.environment, cwd=self.folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0, (self.folder / "run.log").read_text()

    def until(self, is_so: Callable[[], bool], timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_so():
            assert time.monotonic() < deadline, (self.folder / "run.log").read_text()[-3000:]
            time.sleep(0.1)

    def until_filled(self) -> None:
        self.until(lambda: list(self.views().values()) == ["filled", "filled"])


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Where viewtail has its default database, which nobody else's test may drop."""
    server = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.kill()


@pytest.fixture
def shop(own_mysql: Server, tmp_path: Path) -> Iterator[Shop]:
    folder = tmp_path / "shop"
    folder.mkdir()
    shop = Shop(own_mysql, folder)
    yield shop
    shop.connection.close()


def test_status_says_how_it_is_before_during_and_after_a_run(shop: Shop) -> None:
    before = shop.viewtail("status")
    assert before.returncode == 1
    assert "viewtail has not run yet" in before.stdout
    assert "viewtail run" in before.stdout

    with shop.running():
        shop.until_filled()
        shop.until(lambda: shop.viewtail("status").returncode == 0)
        during = shop.viewtail("status").stdout
        assert [line.split()[:2] for line in during.splitlines() if line.startswith("mysql ")] == [["mysql", "running"]]
        assert "mysql:user_by_email" in during

    after = shop.viewtail("status")
    assert after.returncode == 1
    assert "down" in after.stdout
    assert "viewtail was stopped. Start it: viewtail run" in " ".join(after.stdout.split())
    shop.sql("UPDATE viewtail.pipeline_status SET state = 'running'")  # as a kill leaves it
    killed = shop.viewtail("status")
    assert "no viewtail runs this pipeline, though one did" in " ".join(killed.stdout.split())
    shop.sql("UPDATE viewtail.pipeline_status SET updated_at = updated_at - INTERVAL 2 MINUTE")
    assert "Start one: viewtail run" in shop.viewtail("status").stdout
    (down,) = json.loads(shop.viewtail("status", "--json").stdout)["pipelines"]
    assert down["state"] == "down" and 120 < down["lag_s"] < 180, "as old as what may wait"


def test_a_declared_view_that_no_run_has_seen_is_told(shop: Shop) -> None:
    with shop.running():
        shop.until_filled()
        (shop.folder / "views.py").write_text(VIEWS + 'views.append(IndexTable("pet_by_id", pet, value="name"))\n')
        shop.until(lambda: bool(shop.status()["members"]))
        (member,) = shop.status()["members"]
        commands = ("status",), ("wait", "pet_by_id", "--within", "0.3"), ("why", "pet_by_id", "1")
        done = {command[0]: shop.viewtail(*command) for command in commands}
    restart = f"The viewtail that runs ({member['name']}) does not keep it: it was started with an older views.py"
    for name, said in done.items():
        assert said.returncode != 0 and restart in said.stdout + said.stderr, (name, said.stdout, said.stderr)
    assert "mysql:pet_by_id is declared, but no run has seen it yet" in done["status"].stdout
    assert "Start one" in shop.viewtail("why", "pet_by_id", "1").stderr, "none runs any more"


def test_the_rows_of_a_view_are_those_that_it_shows(shop: Shop) -> None:
    (shop.folder / "views.py").write_text(
        VIEWS.replace('user, value="email")', 'user, value="email", where=lambda row: row["id"] == 2)')
    )
    with shop.running():
        shop.until_filled()
        (pipeline,) = shop.status()["pipelines"]
        assert {view["name"]: view["row_count"] for view in pipeline["views"]} == {
            "mysql:user_by_email": 1,
            "mysql:pet_by_name": 1,
        }
        assert shop.index("user_by_email") == {(2, "grace@example.org")}


def test_a_view_that_is_taken_out_is_told_and_not_listed(shop: Shop) -> None:
    with shop.running():
        shop.until_filled()
    views = shop.folder / "views.py"
    views.write_text(VIEWS.replace(', IndexTable("pet_by_name", pet, value="name")', ""))
    with shop.running():
        shop.until(lambda: shop.viewtail("status").returncode == 0)
        assert shop.views() == {"mysql:user_by_email": "filled"}
        assert shop.status()["retired"] == ["mysql:pet_by_name"]
        told = shop.viewtail("status").stdout
        assert "view mysql:pet_by_name is not declared any more" in told
        assert "viewtail forget mysql:pet_by_name" in told


def test_a_view_that_is_taken_out_can_be_forgotten_and_its_data_kept(shop: Shop) -> None:
    with shop.running():
        shop.until_filled()
        declared = shop.viewtail("forget", "pet_by_name")
        assert declared.returncode == 2 and "is declared in views.py" in declared.stderr
        (shop.folder / "views.py").write_text(VIEWS.replace(', IndexTable("pet_by_name", pet, value="name")', ""))
        kept = shop.viewtail("forget", "pet_by_name")
        assert kept.returncode == 2 and "the running viewtail still keeps view mysql:pet_by_name" in kept.stderr
    with shop.running():
        shop.until(lambda: shop.viewtail("status").returncode == 0)
        shop.sql(
            "INSERT INTO viewtail.dead_letter (view_id, key_hash, rendered_key, version, reason) "
            "SELECT id, 'x', '7', 1, 'a reason' FROM viewtail.view"
        )
        assert shop.viewtail("forget", "pet_by_nam").returncode == 2
        unasked = shop.viewtail("forget", "pet_by_name")
        assert unasked.returncode == 2 and "Nobody can be asked" in unasked.stderr
        assert shop.status()["retired"] == ["mysql:pet_by_name"]
        done = shop.viewtail("forget", "pet_by_name", "--keep-data")
        assert done.returncode == 0 and "DROP TABLE `viewtail`.`pet_by_name`" in done.stdout
        assert shop.status()["retired"] == []
        assert shop.sql("SELECT v.name FROM viewtail.dead_letter d JOIN viewtail.view v ON v.id = view_id") == [
            ("mysql:user_by_email",)
        ]
        assert shop.sql("SELECT COUNT(*) FROM viewtail.dead_letter") == [(1,)]
        assert shop.index("pet_by_name") == {(1, "Rex")}
        assert "mysql:pet_by_name" not in shop.viewtail("status").stdout
        again = shop.viewtail("forget", "pet_by_name")
        assert again.returncode == 2 and "viewtail knows no view 'pet_by_name'" in again.stderr


def test_two_runs_with_the_same_settings_share_a_machine(shop: Shop) -> None:
    """The second stands by although the first has the port of the metrics, and serves them when it has taken over."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shop.environment["VIEWTAIL_METRICS__PORT"] = str(port)

    def lag_is_served() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
                return b'viewtail_pipeline_running{pipeline="mysql"} 1.0' in answer.read()
        except URLError:  # nobody has the port at the moment
            return False

    def is_said(words: str) -> bool:
        return words in (shop.folder / "run.log").read_text()

    with ExitStack() as second:
        with shop.running():
            shop.until_filled()
            shop.until(lag_is_served)
            second.enter_context(shop.running())
            shop.until(lambda: is_said("metrics wait") and is_said("another viewtail runs this pipeline"))
        shop.sql("INSERT INTO shop.pet VALUES (9, 'Leo')")
        shop.until(lambda: (9, "Leo") in shop.index("pet_by_name"))
        shop.until(lag_is_served)


def test_a_halted_view_is_told_and_after_its_replay_follows_its_table_again(shop: Shop) -> None:
    with shop.running():
        shop.until_filled()
        shop.sql("RENAME TABLE shop.pet TO shop.old_pet")
        shop.until(lambda: shop.views()["mysql:pet_by_name"] == "halted")
        told = shop.viewtail("status")
        assert told.returncode == 1
        assert "RENAME" in told.stdout
        assert "viewtail replay" in told.stdout

        shop.sql("CREATE TABLE shop.pet LIKE shop.old_pet")
        shop.sql("INSERT INTO shop.pet VALUES (7, 'Bello')")
        done = shop.viewtail("replay", "--yes", "pet_by_name")
        assert done.returncode == 0, done.stderr
        assert "begins to backfill it within a few seconds" in done.stdout
        shop.until_filled()
        assert shop.index("pet_by_name") == {(7, "Bello")}

        shop.sql("INSERT INTO shop.pet VALUES (8, 'Mia')")
        shop.sql("UPDATE shop.user SET email = NULL WHERE id = 1")
        shop.until(lambda: shop.index("pet_by_name") == {(7, "Bello"), (8, "Mia")})
        shop.until(lambda: shop.index("user_by_email") == {(2, "grace@example.org")})
        shop.until(lambda: shop.status()["is_well"])  # its last report may be of the moment before


def test_a_pipeline_that_restarts_by_itself_never_says_stopped(shop: Shop) -> None:
    with shop.running():
        shop.until_filled()
        shop.sql("CREATE TABLE shop.said (id INT AUTO_INCREMENT PRIMARY KEY, state VARCHAR(20))")
        for when in ("INSERT", "UPDATE"):
            shop.sql(
                f"CREATE TRIGGER viewtail.said_{when} AFTER {when} ON viewtail.pipeline_status FOR EACH ROW "
                "INSERT INTO shop.said (state) VALUES (NEW.state)"
            )
        shop.sql("RENAME TABLE shop.pet TO shop.old_pet")
        shop.until(lambda: shop.views()["mysql:pet_by_name"] == "halted")
        shop.sql("RENAME TABLE shop.old_pet TO shop.pet")
        assert shop.viewtail("replay", "--yes", "pet_by_name").returncode == 0  # the pipeline follows its table again
        shop.until_filled()
        assert "stopped" not in [state for (state,) in shop.sql("SELECT state FROM shop.said")]
    assert shop.sql("SELECT state FROM shop.said ORDER BY id DESC LIMIT 1") == [("stopped",)]


def test_a_view_that_views_py_declares_otherwise_by_now_is_backfilled_by_a_restart_not_by_a_replay(shop: Shop) -> None:
    with shop.running():
        shop.until_filled()
        shop.sql("ALTER TABLE shop.pet DROP COLUMN name, ADD COLUMN label VARCHAR(100)")
        shop.until(lambda: shop.views()["mysql:pet_by_name"] == "halted")
        (shop.folder / "views.py").write_text(VIEWS.replace('value="name"', 'value="label"'))
        done = shop.viewtail("replay", "--yes", "pet_by_name")
        assert done.returncode == 1
        assert "not marked" in done.stderr and "Start `viewtail run` again" in done.stderr
        assert shop.views()["mysql:pet_by_name"] == "halted"
    assert "viewtail was stopped. Start it: viewtail run" in shop.viewtail("status").stdout
    shop.sql("INSERT INTO shop.pet (id, label) VALUES (8, 'Mia')")
    with shop.running():
        shop.until_filled()
        assert shop.sql("SELECT id, label FROM viewtail.pet_by_name WHERE label IS NOT NULL") == [(8, "Mia")]


def test_a_replay_mends_what_was_changed_behind_viewtails_back(shop: Shop) -> None:
    with shop.running():
        shop.until_filled()
    shop.sql("UPDATE viewtail.user_by_email SET email = 'wrong' WHERE id = 1")
    shop.sql("INSERT INTO viewtail.user_by_email VALUES (99, 'nobody', 1)")
    shop.sql("DELETE FROM viewtail.user_by_email WHERE id = 2")
    done = shop.viewtail("replay", "--yes", "mysql:user_by_email")
    assert "the next `viewtail run` backfills it" in done.stdout
    with shop.running():
        shop.until_filled()
        assert shop.index("user_by_email") == {(1, "ada@example.org"), (2, "grace@example.org")}


def test_a_dropped_index_table_is_made_and_filled_again_by_a_replay(shop: Shop) -> None:
    with shop.running():
        shop.until_filled()
        shop.sql("DROP TABLE viewtail.pet_by_name")
        shop.sql("INSERT INTO shop.pet VALUES (8, 'Mia')")
        assert shop.viewtail("replay", "--yes", "pet_by_name").returncode == 0
        shop.until(lambda: shop.viewtail("status").returncode == 0 and shop.views()["mysql:pet_by_name"] == "filled")
        shop.sql("INSERT INTO shop.pet VALUES (9, 'Leo')")
        shop.until(lambda: shop.index("pet_by_name") == {(1, "Rex"), (8, "Mia"), (9, "Leo")})


def test_a_history_that_does_not_continue_halts_until_a_new_one_is_begun(shop: Shop) -> None:
    with shop.running():
        shop.until_filled()
        refused = shop.viewtail("replay", "--new-history")
        assert refused.returncode == 1
        assert "pipeline mysql is running" in refused.stderr

    shop.sql("UPDATE shop.user SET email = 'ada@example.com' WHERE id = 1")
    shop.sql("RESET BINARY LOGS AND GTIDS")
    shop.sql("DELETE FROM shop.user WHERE id = 2")
    with shop.running():
        shop.until(lambda: "replay --new-history" in shop.viewtail("status").stdout)
        assert shop.index("user_by_email") == {(1, "ada@example.org"), (2, "grace@example.org")}
        begun = shop.viewtail("replay", "--new-history")
        assert begun.returncode == 0, begun.stderr
        assert "epoch 2" in begun.stdout
        shop.until_filled()
        shop.sql("INSERT INTO shop.user VALUES (3, 'lin@example.org')")
        shop.until(lambda: shop.index("user_by_email") == {(1, "ada@example.com"), (3, "lin@example.org")})


def test_a_replay_that_cannot_be_is_refused(shop: Shop) -> None:
    for arguments, said in (
        (["replay"], "name the views to replay"),
        (["replay", "--all", "pet_by_name"], "name the views to replay"),
        (["replay", "pet_by_nam"], "did you mean pet_by_name?"),
        (["replay", "--new-history", "pet_by_name"], "--new-history"),
    ):
        done = shop.viewtail(*arguments)
        assert done.returncode == 2, arguments
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_store_that_outlived_the_offsets_is_not_left_behind_in_silence(shop: Shop, tmp_path: Path) -> None:
    store = stack.redis.start(tmp_path / "redis")
    shop.environment["VIEWTAIL_REDIS__URL"] = store.url
    declared = VIEWS.replace("IndexTable", "RedisHash").replace('value="email"', 'fields=["email"]')
    (shop.folder / "views.py").write_text(declared.replace('value="name"', 'fields=["name"]'))
    assert shop.viewtail("replay", "--new-history").returncode == 0  # the first history has epoch 1
    assert shop.viewtail("replay", "--new-history").returncode == 0
    with redis.Redis.from_url(store.url) as client:
        with shop.running():
            shop.until_filled()
        shop.sql("DROP DATABASE viewtail")
        shop.sql("UPDATE shop.user SET email = 'ada@example.com' WHERE id = 1")
        with shop.running():
            shop.until(lambda: "replay --new-history" in shop.viewtail("status").stdout)
            begun = shop.viewtail("replay", "--new-history")
            assert "epoch 3" in begun.stdout, begun.stderr
            shop.until_filled()
            assert client.hget("user_by_email:1", "email") == b"ada@example.com"
            shop.sql("UPDATE shop.user SET email = 'ada@example.net' WHERE id = 1")
            shop.until(lambda: client.hget("user_by_email:1", "email") == b"ada@example.net")
    store.kill()
