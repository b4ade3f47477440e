"""The index that pgsync really left, some of it damaged: audited, adopted, and kept from there on.

`make adopt-peers` installs pgsync 7.3.0 and runs this, and the same of Debezium's JDBC sink. VIEWTAIL_TEST_PGSYNC names
its program. pytest finds it by its path alone: a machine without that package has no part in it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
from elasticsearch import Elasticsearch

from stack import Server
from tests.support.other_tools import reading
from tests.support.running import Run, addresses, clean_environment, wait_for

SCHEMA, INDEX = "left_synced", "leftmember"
ROWS = 400
TEXT = '{"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}'
VIEWS = f"""
from viewtail import Entity, SearchIndex

member = Entity("{SCHEMA}.member")
text = {TEXT}
views = [SearchIndex("{INDEX}", member, fields={{"id": "long", "name": text, "email": text, "visits": "long"}})]
"""
OTHERWISE = VIEWS.replace('"name": text', '"name": "keyword"')


class Synced:
    """The table, and the index that pgsync keeps."""

    def __init__(self, mysql: Server, redis: Server, search: Server, folder: Path) -> None:
        self.mysql, self._redis, self._search, self._folder = mysql, redis, search, folder
        self.documents = Elasticsearch(search.url, request_timeout=60)

    def ask(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        with (
            pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(sql, arguments or None)
            return list(cursor.fetchall())

    def make(self) -> None:
        self.ask(f"CREATE DATABASE {SCHEMA}")
        self.ask(
            f"CREATE TABLE {SCHEMA}.member (id INT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL, "
            "email VARCHAR(100) NULL, visits INT NOT NULL)"
        )
        rows = ", ".join(
            f"({n}, 'Name {n}', {'NULL' if n % 9 == 0 else repr(f'm{n}@x.org')}, {n % 7})" for n in range(1, ROWS + 1)
        )
        self.ask(f"INSERT INTO {SCHEMA}.member VALUES {rows}")
        nodes = {"table": "member", "columns": ["id", "name", "email", "visits"]}
        (self._folder / "schema.json").write_text(json.dumps([{"database": SCHEMA, "index": INDEX, "nodes": nodes}]))

    def sync(self) -> None:
        """pgsync once: all rows, then what the binlog has since the last time."""
        environment = {
            **clean_environment(),
            "PG_DRIVER": "pymysql",
            "PG_HOST": self.mysql.host,
            "PG_PORT": str(self.mysql.port),
            "PG_USER": "root",
            "PG_PASSWORD": "",
            "OPENSEARCH": "true",  # its client for Elasticsearch speaks to version 7
            "ELASTICSEARCH": "false",
            "ELASTICSEARCH_URL": self._search.url,
            "REDIS_HOST": self._redis.host,
            "REDIS_PORT": str(self._redis.port),
        }
        done = subprocess.run(
            [os.environ["VIEWTAIL_TEST_PGSYNC"], "-c", "schema.json"],
            cwd=self._folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.documents.indices.refresh(index=INDEX)

    def change(self) -> None:
        self.ask(f"UPDATE {SCHEMA}.member SET visits = visits + 1 WHERE id % 5 = 0")
        self.ask(f"INSERT INTO {SCHEMA}.member VALUES (900, 'Late', NULL, 1)")

    def damage(self) -> None:
        """2 missing, 1 extra, 3 wrong."""
        for number in (5, 6):
            self.documents.delete(index=INDEX, id=str(number))
        self.documents.update(index=INDEX, id="7", doc={"name": "else"})
        for number in (8, 10):
            self.documents.update(index=INDEX, id=str(number), doc={"visits": 1000})
        self.documents.index(index=INDEX, id="7001", document={"id": 7001, "name": "stray", "visits": 0})
        self.documents.indices.refresh(index=INDEX)

    def finds(self, number: int) -> bool:
        found = self.documents.search(index=INDEX, query={"ids": {"values": [str(number)]}})
        return bool(found["hits"]["total"]["value"] == 1)

    def end(self) -> None:
        for database in (SCHEMA, "viewtail"):
            self.ask(f"DROP DATABASE IF EXISTS {database}")
        if found := sorted(self.documents.indices.get(index=f"*{INDEX}*", expand_wildcards="all")):
            self.documents.indices.delete(index=",".join(found))


@pytest.fixture
def synced(
    mysql_server: Server, redis_server: Server, elasticsearch_server: Server, tmp_path: Path
) -> Iterator[Synced]:
    made = Synced(mysql_server, redis_server, elasticsearch_server, tmp_path)
    made.end()
    made.make()
    made.sync()
    made.change()
    made.sync()
    yield made
    made.end()


@pytest.mark.parametrize("views", [VIEWS, OTHERWISE], ids=["as it is", "otherwise"])
def test_what_pgsync_left_is_audited_and_adopted(
    views: str, synced: Synced, elasticsearch_server: Server, tmp_path: Path
) -> None:
    print(json.dumps(synced.documents.indices.get(index=INDEX).body, indent=1))
    print(synced.documents.get(index=INDEX, id="9").body)
    run = Run(tmp_path, views, addresses(synced.mysql, None, elasticsearch_server))
    done = run.command("audit", INDEX, "--json", "--again-after", "1s")
    print(done.stdout, done.stderr)
    (view,) = json.loads(done.stdout)["views"]
    assert view["is_equal"], view
    synced.damage()
    done = run.command("audit", INDEX, "--json", "--again-after", "1s")
    (view,) = json.loads(done.stdout)["views"]
    assert view["differing"] == {"missing": 2, "extra": 1, "stale": 0, "wrong": 3}, view
    assert view["fields"] == {"visits": 2, "name": 1}
    options = [] if views == VIEWS else ["--drop-extra"]
    with reading({"index": synced.finds}, range(100, 400)) as missed:
        done = run.command("adopt", INDEX, *options)
        assert done.returncode == 0, done.stdout + done.stderr
        run.start()
        try:
            wait_for("all is well", run.is_filled)
            synced.ask(f"INSERT INTO {SCHEMA}.member VALUES (901, 'New', NULL, 1)")
            synced.ask(f"UPDATE {SCHEMA}.member SET visits = 77 WHERE id = 8")
            synced.ask(f"DELETE FROM {SCHEMA}.member WHERE id = 9")
            wait_for("live changes are right", lambda: shown(synced) == wanted(synced))
        finally:
            run.kill()
    assert not missed
    assert synced.documents.indices.exists_alias(name=INDEX)


def wanted(synced: Synced) -> dict[str, tuple[Any, ...]]:
    return {str(row[0]): row[1:] for row in synced.ask(f"SELECT id, name, email, visits FROM {SCHEMA}.member")}


def shown(synced: Synced) -> dict[str, tuple[Any, ...]]:
    synced.documents.indices.refresh(index=INDEX)
    hits = synced.documents.search(index=INDEX, size=10_000)["hits"]["hits"]
    found = {hit["_id"]: hit["_source"] for hit in hits if hit["_id"] != "7001"}
    return {key: (source["name"], source.get("email"), source["visits"]) for key, source in found.items()}
