"""A column that changes halts the views that use it; the others of its table and store go on and lose nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.running import Run, addresses, running, wait_for

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash, RedisJson

post = Entity("site.post")


def is_published(row):
    return row["status"] == "publish"


def card(row):
    return {"title": row["title"], "author": row.get("author")}


views = [
    IndexTable("by_slug", post, value="slug"),
    IndexTable("by_author", post, value="author"),
    IndexTable("published", post, value="title", where=is_published),
]
"""
REDIS_VIEWS = """
views += [
    RedisHash("post", post, fields=["title"]),
    RedisJson("card", post, document=card),
    RedisJson("whole", post, document=dict),
]
"""
INDEX_TABLES = {"by_slug": "slug", "by_author": "author", "published": "title"}
ALL = frozenset({"mysql:by_slug", "mysql:by_author", "mysql:published", "redis:post", "redis:card", "redis:whole"})


class Site:
    """A table of posts, and what its views show."""

    def __init__(self, mysql: Server, redis_server: Server | None) -> None:
        self.mysql = mysql
        self.redis = None if redis_server is None else redis.Redis(port=redis_server.port)
        if self.redis is not None:
            self.redis.flushall()
        self.execute(
            "DROP DATABASE IF EXISTS site",
            "DROP DATABASE IF EXISTS viewtail",
            "CREATE DATABASE site",
            "CREATE TABLE site.post (id INT PRIMARY KEY, author INT, status VARCHAR(20), title VARCHAR(40), "
            "slug VARCHAR(40), note INT)",
        )
        for number in range(1, 21):
            self.add(number)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        connection = pymysql.connect(host="127.0.0.1", port=self.mysql.port, user="root", autocommit=True)
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def add(self, number: int) -> None:
        status = "publish" if number % 2 else "draft"
        self.execute(f"INSERT INTO site.post (id, status, title) VALUES ({number}, '{status}', 'title {number}')")

    def should_show(self, view: str, columns: Sequence[str]) -> dict[int, Any]:
        """What the table says; of a column that it has no more, nothing."""
        rows = self.execute("SELECT id, status, title FROM site.post")
        if view == "published":
            return {number: title for number, status, title in rows if status == "publish"}
        if view in INDEX_TABLES:
            return dict(self.execute(f"SELECT id, {INDEX_TABLES[view]} FROM site.post WHERE {INDEX_TABLES[view]} > ''"))
        authors = dict(self.execute("SELECT id, author FROM site.post")) if "author" in columns else {}
        return {
            number: {"title": title} | ({"author": authors.get(number)} if view == "card" else {})
            for number, _, title in rows
        }

    def shows(self, view: str) -> dict[int, Any]:
        if view in INDEX_TABLES:
            column = INDEX_TABLES[view]
            return dict(self.execute(f"SELECT id, {column} FROM viewtail.{view} WHERE {column} > ''"))
        assert self.redis is not None
        found: dict[int, Any] = {}
        for key in self.redis.scan_iter(f"{view}:*"):
            number = key.decode().partition(":")[2]
            if not number.isdecimal():
                continue  # a tombstone
            if view == "post":
                fields: Any = self.redis.hgetall(key)
                found[int(number)] = {"title": fields[b"title"].decode()}
            else:
                document: Any = self.redis.get(key)
                found[int(number)] = json.loads(document)
                del found[int(number)]["_version"]
        return found

    def fills(self, views: frozenset[str]) -> list[tuple[Any, ...]]:
        """When each of these views was filled."""
        names = ", ".join(map(repr, sorted(views)))
        return self.execute(f"SELECT name, filled_at FROM viewtail.view WHERE name IN ({names}) ORDER BY name")

    def equal(self, views: frozenset[str]) -> bool:
        columns = [name for (name, *_) in self.execute("SHOW COLUMNS FROM site.post")]
        for view in views:
            name = view.partition(":")[2]
            assert self.shows(name) == self.should_show(name, columns), view
        return True


@pytest.fixture
def site(mysql_server: Server, redis_server: Server) -> Iterator[Site]:
    made = Site(mysql_server, redis_server)
    yield made
    made.execute("DROP DATABASE site")


def states(run: Run) -> dict[str, str]:
    told = json.loads(run.command("status", "--json").stdout)
    return {view["name"]: view["state"] for pipeline in told["pipelines"] for view in pipeline["views"]}


def started(site: Site, run: Run, views: frozenset[str] = ALL) -> None:
    wait_for("the views are filled", lambda: states(run) == dict.fromkeys(views, "filled"))
    site.execute("UPDATE site.post SET author = 7, slug = CONCAT('slug-', id) WHERE id % 3 = 0")
    wait_for("the views follow", lambda: site.equal(views - {"redis:whole"}))


def others_go_on(site: Site, run: Run, halted: frozenset[str], views: frozenset[str] = ALL) -> None:
    wait_for(
        "these halt and no others",
        lambda: states(run) == dict.fromkeys(views - halted, "filled") | dict.fromkeys(halted, "halted"),
    )
    site.add(100)
    site.execute(
        "UPDATE site.post SET title = 'later' WHERE id IN (3, 30)",
        "UPDATE site.post SET status = 'trash' WHERE id = 5",
        "DELETE FROM site.post WHERE id = 7",
    )
    wait_for("the others go on", lambda: site.equal(views - halted - {"redis:whole"}))
    assert states(run) == dict.fromkeys(views - halted, "filled") | dict.fromkeys(halted, "halted")


@pytest.mark.parametrize(
    ("alter", "halted"),
    [
        ("RENAME COLUMN slug TO post_name", {"mysql:by_slug", "redis:whole"}),
        ("DROP COLUMN author", {"mysql:by_author", "redis:card", "redis:whole"}),
        ("MODIFY status VARBINARY(20)", {"mysql:published", "redis:whole"}),
        (
            "DROP COLUMN author, CHANGE slug post_name VARCHAR(40), DROP COLUMN note",
            {"mysql:by_author", "mysql:by_slug", "redis:card", "redis:whole"},
        ),
    ],
)
def test_a_column_that_changes_halts_the_views_that_use_it_and_the_others_equal_their_table(
    alter: str, halted: set[str], site: Site, redis_server: Server, tmp_path: Path
) -> None:
    with running(tmp_path, VIEWS + REDIS_VIEWS, addresses(site.mysql, redis_server)) as run:
        started(site, run)
        fills = site.fills(ALL - halted)
        site.add(30)
        site.execute(
            "UPDATE site.post SET title = 'just before' WHERE id = 9",
            f"ALTER TABLE site.post {alter}",
            "UPDATE site.post SET title = 'just behind' WHERE id = 11",
        )
        others_go_on(site, run, frozenset(halted))
        assert site.fills(ALL - halted) == fills, "nothing was filled again"
        assert run.stop() == 0


def test_a_view_that_halted_beside_others_comes_back_by_its_replay_alone(site: Site, tmp_path: Path) -> None:
    with running(tmp_path, VIEWS, addresses(site.mysql)) as run:
        views = frozenset(view for view in ALL if view.startswith("mysql"))
        started(site, run, views)
        site.execute("ALTER TABLE site.post RENAME COLUMN author TO writer, MODIFY status VARBINARY(20)")
        site.execute("ALTER TABLE site.post MODIFY status VARCHAR(20)")
        others_go_on(site, run, frozenset({"mysql:by_author", "mysql:published"}), views)
        assert run.command("replay", "--yes", "published").returncode == 0
        wait_for("it is filled again", lambda: states(run)["mysql:published"] == "filled")
        site.execute("UPDATE site.post SET status = 'publish', title = 'again' WHERE id < 5")
        wait_for("it follows", lambda: site.equal(views - {"mysql:by_author"}))
        assert states(run)["mysql:by_author"] == "halted", "nobody asked for that one"
        assert run.stop() == 0


def test_check_says_which_columns_the_functions_of_a_view_use(site: Site, redis_server: Server, tmp_path: Path) -> None:
    more = 'views += [IndexTable("typo", post, value="title", where=lambda row: row["state"])]'
    run = Run(tmp_path, VIEWS + REDIS_VIEWS + more, addresses(site.mysql, redis_server))
    told = run.command("check").stdout
    for line in (
        "mysql:by_slug: fits its table",
        "mysql:published: fits its table; its functions use status",
        "redis:card: fits its table; its functions use author, title",
        "redis:whole: fits its table; uses every column of it, for viewtail does not look into type objects",
        "mysql:typo: its functions ask for state, which site.post has not; did you mean status?",
    ):
        assert line in told


def test_on_mariadb_a_column_that_changes_halts_the_views_that_use_it(mariadb_server: Server, tmp_path: Path) -> None:
    site = Site(mariadb_server, None)
    views = frozenset(view for view in ALL if view.startswith("mysql"))
    with running(tmp_path, VIEWS, addresses(mariadb_server)) as run:
        started(site, run, views)
        site.execute("ALTER TABLE site.post RENAME COLUMN slug TO post_name, DROP COLUMN note")
        others_go_on(site, run, frozenset({"mysql:by_slug"}), views)
        assert run.stop() == 0


MADE = """
from viewtail import Entity, IndexTable
views = [IndexTable(f"by_{name}", Entity("site.made"), value=name) for name in ("twice", "more", "other")]
"""


def test_a_generated_column_that_is_defined_anew_halts_only_what_uses_it_or_a_column_made_from_it(
    site: Site, mysql_server: Server, tmp_path: Path
) -> None:
    site.execute(
        "CREATE TABLE site.made (id INT PRIMARY KEY, a INT, twice INT AS (a * 2) STORED, "
        "more INT AS (twice + 1) STORED, other INT AS (a + 100) STORED)",
        "INSERT INTO site.made (id, a) VALUES (1, 1)",
    )
    with running(tmp_path, MADE, addresses(mysql_server)) as run:
        wait_for("the views are filled", lambda: set(states(run).values()) == {"filled"})
        site.execute(
            "ALTER TABLE site.made MODIFY twice INT AS (a * 3) STORED", "INSERT INTO site.made (id, a) VALUES (2, 2)"
        )
        wait_for(
            "the other view goes on",
            lambda: site.execute("SELECT other FROM viewtail.by_other ORDER BY id") == [(101,), (102,)],
        )
        assert states(run) == {"mysql:by_twice": "halted", "mysql:by_more": "halted", "mysql:by_other": "filled"}
