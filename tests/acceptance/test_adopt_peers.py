"""What pgsync and Debezium's JDBC sink leave behind, some of it damaged: audited, and adopted while it is read.

Neither runs here, since each needs minutes and a broker. What they leave is made in the form that each documents: for
pgsync a concrete index with dynamic mapping, keys as `_id`, `_meta` in each document; for the JDBC sink a table that
it created (schema.evolution=basic, primary.key.mode=record_key), with BIGINT for numbers and LONGTEXT for texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from elasticsearch import Elasticsearch
from elasticsearch.helpers import bulk

from stack import Server
from tests.support.other_tools import reading
from tests.support.running import Run, addresses, wait_for

SCHEMA, STORE, INDEX = "peers_left", "peers_views", "member"
ROWS = 1500
VIEWS = f"""
from viewtail import Entity, IndexTable, SearchIndex

member = Entity("{SCHEMA}.member")
text = {{"type": "text", "fields": {{"keyword": {{"type": "keyword", "ignore_above": 256}}}}}}
views = [
    IndexTable("member_sink", member, value=["name", "email", "visits"]),
    SearchIndex("{INDEX}", member, fields={{"id": "long", "name": text, "email": text, "visits": "long"}}),
]
"""
NAMES = ("member_sink", INDEX)


class World:
    def __init__(self, mysql: Server, search: Server) -> None:
        self.mysql, self.documents = mysql, Elasticsearch(search.url, request_timeout=60)

    def ask(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        with (
            pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(sql, arguments or None)
            return list(cursor.fetchall())

    def make(self) -> None:
        for database in (SCHEMA, STORE):
            self.ask(f"CREATE DATABASE {database}")
        self.ask(
            f"CREATE TABLE {SCHEMA}.member (id INT UNSIGNED NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL, "
            "email VARCHAR(100) NULL, visits INT NOT NULL DEFAULT 0)"
        )
        emails = {n: f"'m{n}@x.org'" if n % 9 else "NULL" for n in range(1, ROWS + 1)}
        values = ", ".join(f"({n}, 'Name {n}', {email}, {n % 7})" for n, email in emails.items())
        self.ask(f"INSERT INTO {SCHEMA}.member VALUES {values}")
        self.sink()
        self.sync()

    def sink(self) -> None:
        """As Debezium's JDBC sink does."""
        self.ask(
            f"CREATE TABLE {STORE}.member_sink (id BIGINT NOT NULL, name LONGTEXT NOT NULL, email LONGTEXT NULL, "
            "visits INT NOT NULL, PRIMARY KEY (id))"
        )
        self.ask(f"INSERT INTO {STORE}.member_sink SELECT id, name, email, visits FROM {SCHEMA}.member")
        self.ask(f"DELETE FROM {STORE}.member_sink WHERE id IN (5, 6)")
        self.ask(f"UPDATE {STORE}.member_sink SET name = REPEAT('x', 60) WHERE id = 7")
        self.ask(f"UPDATE {STORE}.member_sink SET visits = visits + 1 WHERE id IN (8, 10)")
        self.ask(f"INSERT INTO {STORE}.member_sink VALUES (7001, 'stray', NULL, 0)")

    def sync(self) -> None:
        """As pgsync does."""
        rows = self.ask(f"SELECT id, name, email, visits FROM {SCHEMA}.member WHERE id NOT IN (5, 6)")
        rows = [(*row[:3], row[3] + (row[0] in (8, 10))) for row in rows] + [(7001, "stray", None, 0)]
        names = ("id", "name", "email", "visits")
        bulk(
            self.documents,
            [{"_index": INDEX, "_id": str(row[0]), **dict(zip(names, row, strict=True)), "_meta": {}} for row in rows],
            refresh=True,
        )

    def readers(self) -> dict[str, Callable[[int], bool]]:
        def finds_row(number: int) -> bool:
            return bool(self.ask(f"SELECT 1 FROM {STORE}.member_sink WHERE id = %s", number))

        def finds_document(number: int) -> bool:
            found = self.documents.search(index=INDEX, query={"ids": {"values": [str(number)]}})
            return bool(found["hits"]["total"]["value"] == 1)

        return {"table": finds_row, "index": finds_document}


@pytest.fixture
def world(mysql_server: Server, elasticsearch_server: Server) -> Iterator[World]:
    made = World(mysql_server, elasticsearch_server)
    made.make()
    yield made
    for database in (SCHEMA, STORE):
        made.ask(f"DROP DATABASE {database}")
    found = sorted(made.documents.indices.get(index=f"*{INDEX}*", expand_wildcards="all"))
    made.documents.indices.delete(index=",".join(found))


@pytest.fixture
def run(world: World, elasticsearch_server: Server, tmp_path: Path) -> Iterator[Run]:
    environ = addresses(world.mysql, None, elasticsearch_server)
    environ["VIEWTAIL_MYSQL__URL"] = f"{world.mysql.url}/{STORE}"
    made = Run(tmp_path, VIEWS, environ)
    yield made
    if made.process is not None:
        made.stop()


def test_what_peers_left_is_audited_and_adopted(run: Run, world: World) -> None:
    done = run.command("audit", *NAMES, "--json", "--again-after", "1s", timeout_s=200)
    assert done.returncode == 1, done.stdout + done.stderr
    found = {view["view"]: view for view in json.loads(done.stdout)["views"]}
    table, index = found["mysql:member_sink"], found[f"elasticsearch:{INDEX}"]
    assert table["differing"] == {"missing": 2, "extra": 1, "stale": 0, "wrong": 3}
    assert table["fields"] == {"visits": 2, "name": 1}
    assert index["differing"] == {"missing": 2, "extra": 1, "stale": 0, "wrong": 2}
    assert index["fields"] == {"visits": 2}
    assert index["undeclared"] == ["_meta"]
    assert not index["remarks"]
    with reading(world.readers(), range(100, 1100)) as missed:
        done = run.command("adopt", *NAMES, "--json", timeout_s=400)
        assert done.returncode == 0, done.stdout + done.stderr
        for view in json.loads(done.stdout)["views"]:
            assert view["is_adopted"], view
            assert view["extra_left"] == 1, view
        run.start()
        wait_for("all is well", run.is_filled)
        world.ask(f"INSERT INTO {SCHEMA}.member VALUES (9000, 'New', NULL, 1)")
        for finds in world.readers().values():
            wait_for("the new row", lambda finds=finds: finds(9000))  # type: ignore[misc]
    assert not missed
    assert world.ask(f"SELECT name, visits FROM {STORE}.member_sink WHERE id IN (7, 8)") == [
        ("Name 7", 0),
        ("Name 8", 1),
    ]
    aliases = world.documents.indices.get_alias(name=INDEX)
    assert list(aliases) == [f"viewtail-{INDEX}"]
    columns = world.ask(
        "SELECT column_name, column_type FROM information_schema.columns WHERE table_schema = %s AND table_name = "
        "'member_sink' ORDER BY ordinal_position",
        STORE,
    )
    assert columns == [
        ("id", "int unsigned"),
        ("name", "varchar(64)"),
        ("email", "varchar(100)"),
        ("visits", "int"),
        ("version", "bigint unsigned"),
    ]


def test_what_cannot_be_adopted_is_refused_and_nothing_is_changed(run: Run, world: World) -> None:
    views = VIEWS.replace('"name": text', '"name": "keyword"').replace(', "visits"])', "])")
    (run.folder / "views.py").write_text(views)
    before = world.documents.indices.get(index="*", expand_wildcards="all").body
    for name, said in ((INDEX, "another mapping"), ("member_sink", "columns that the view has not: visits")):
        for options in ((), ("--dry-run",)):
            done = run.command("adopt", name, *options)
            assert done.returncode == 1, done.stdout + done.stderr
            assert said in done.stderr
    (run.folder / "views.py").write_text(VIEWS)
    world.ask(f"UPDATE {STORE}.member_sink SET name = REPEAT('x', 300) WHERE id = 7")
    done = run.command("adopt", "member_sink")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "column name is longtext, and varchar(64) as declared" in done.stderr
    assert world.ask(f"SELECT LENGTH(name) FROM {STORE}.member_sink WHERE id = 7") == [(300,)]
    assert world.documents.indices.get(index="*", expand_wildcards="all").body == before
    assert "version" not in [row[0] for row in world.ask(f"SHOW COLUMNS FROM {STORE}.member_sink")]
