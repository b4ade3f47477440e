"""`viewtail run --plan`: what the next run would backfill, before it does."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.running import Run, addresses, wait_for

SCHEMA, STORE = "planned", "planned_views"
ROWS = 40_000
ENTITY = f'Entity("{SCHEMA}.user")'
EMAIL = f'IndexTable("planned_email", {ENTITY}, value="email")'
CACHED = f'RedisHash("planned", {ENTITY}, fields=["email"])'


def declared(*views: str) -> str:
    return f"from viewtail import Entity, IndexTable, RedisHash\n\nviews = [{', '.join(views)}]\n"


class Shop:
    """A table, and the command line."""

    def __init__(self, server: Server, cache: Server, folder: Path) -> None:
        self.server = server
        self.execute(
            *(f"DROP DATABASE IF EXISTS {name}" for name in (SCHEMA, STORE)),
            f"CREATE DATABASE {SCHEMA}",
            f"CREATE TABLE {SCHEMA}.user (id INT AUTO_INCREMENT PRIMARY KEY, email VARCHAR(60))",
            f"INSERT INTO {SCHEMA}.user (email) VALUES ('a'), ('b'), ('c'), ('d'), ('e')",
            *[f"INSERT INTO {SCHEMA}.user (email) SELECT email FROM {SCHEMA}.user"] * 13,
            f"DELETE FROM {SCHEMA}.user WHERE id > (SELECT * FROM (SELECT MIN(id) + {2 * ROWS} FROM {SCHEMA}.user) x)",
            f"ANALYZE TABLE {SCHEMA}.user",
        )
        ((self.count,),) = self.execute(f"SELECT COUNT(*) FROM {SCHEMA}.user")
        environment = {**addresses(server, cache), "VIEWTAIL_MYSQL__URL": f"{server.url}/{STORE}"}
        self.run = Run(folder, declared(EMAIL, CACHED), environment)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        session = pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", autocommit=True)
        with closing(session), session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def plan(self) -> dict[str, dict[str, Any]]:
        """By view."""
        done = self.run.command("run", "--plan", "--json")
        assert done.returncode == 0, done.stderr
        return {each["view"]: each for each in json.loads(done.stdout)["backfills"]}

    def said(self) -> str:
        done = self.run.command("run", "--plan")
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(params=["mysql", "mariadb"])
def shop(request: pytest.FixtureRequest, redis_server: Server, tmp_path: Path) -> Iterator[Shop]:
    redis.Redis(port=redis_server.port).flushall()
    found = Shop(request.getfixturevalue(f"{request.param}_server"), redis_server, tmp_path)
    yield found
    found.run.kill()


def test_a_plan_names_what_is_new_changed_and_marked_with_an_estimate_and_starts_nothing(shop: Shop) -> None:
    new = shop.plan()
    assert set(new) == {"mysql:planned_email", "redis:planned"}
    reading = new["redis:planned"]["reading"]
    assert reading["tables"] == [f"{SCHEMA}.user"] and reading["order"] == ["id"]
    assert reading["row_count"] == pytest.approx(shop.count, rel=0.3) and reading["byte_count"] > 1 << 20
    assert reading["is_least"] and 0 < reading["expected_s"] < 60
    said = shop.said()
    assert "redis:planned: it is new. The next run backfills it into Redis." in said
    assert "in order of id, 24,000 a chunk at most. Estimate: at least" in said
    assert "since no backfill into it is recorded" in said and "Nothing was started" in said
    assert not shop.execute(f"SHOW DATABASES LIKE '{STORE}'"), "not even viewtail's own tables"

    shop.run.start()
    wait_for("all is filled", shop.run.is_filled, 60)
    assert shop.plan() == {} and "nothing to backfill: each view is" in shop.said()
    (shop.run.folder / "views.py").write_text(declared(EMAIL, CACHED.replace('"email"', '"nothing"')))
    assert "nothing to backfill: each other view is" in shop.said() and "planned cannot be backfilled" in shop.said()
    (shop.run.folder / "views.py").write_text(declared(EMAIL, CACHED))
    # What a backfill reached is what the next one is expected to.
    took = "filled_at = fill_started_at + INTERVAL 100 SECOND"
    shop.execute(f"UPDATE {STORE}.view SET fill_row_estimate = 50000, {took}")
    (shop.run.folder / "views.py").write_text(declared(EMAIL[:-1] + ", where=lambda row: row['id'] > 9)", CACHED))
    changed = shop.plan()
    assert set(changed) == {"mysql:planned_email"} and "declaration changed" in changed["mysql:planned_email"]["why"]
    reading = changed["mysql:planned_email"]["reading"]
    assert reading["expected_s"] == pytest.approx(reading["row_count"] / 500, rel=0.01) and not reading["is_least"]
    previewed = shop.run.command("preview", "planned_email")
    assert re.search(r"A backfill of the view: .* the last backfill of the view reached 500 rows/s", previewed.stdout)
    (shop.run.folder / "views.py").write_text(declared(EMAIL, CACHED))

    shop.run.stop()
    shop.execute(f"UPDATE {STORE}.view SET state = 'new' WHERE name = 'redis:planned'")
    assert {name: each["why"] for name, each in shop.plan().items()} == {"redis:planned": "it is marked for a backfill"}
    shop.execute(f"UPDATE {STORE}.view SET state = 'filling', fill_row_count = 30000 WHERE name = 'redis:planned'")
    resumed = shop.plan()["redis:planned"]
    assert "goes on" in resumed["why"] and resumed["reading"]["row_count"] < 0.8 * shop.count


def test_a_view_that_does_not_fit_its_table_keeps_no_other_from_being_planned(shop: Shop) -> None:
    (shop.run.folder / "views.py").write_text(declared(EMAIL, CACHED.replace('"email"', '"nothing"')))
    said = shop.said()
    assert "mysql:planned_email: it is new" in said and "redis:planned cannot be backfilled" in said
    listed = json.loads(shop.run.command("run", "--plan", "--json").stdout)
    assert [each["view"] for each in listed["backfills"]] == ["mysql:planned_email"] and len(listed["misfits"]) == 1
    assert shop.run.command("run", "--json").returncode == 2
