"""What other tools keep for readers before viewtail does: rows, as such a tool writes them, with no versions."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import redis
from elasticsearch import Elasticsearch, NotFoundError
from elasticsearch.helpers import bulk

from stack import Server
from tests.support.running import Run, addresses

SCHEMA, STORE = "shop_kept", "shop_views"
INDEX, ALIAS = "person_v7", "person"
ROWS = 3000
TABLES = f"""
CREATE DATABASE {SCHEMA};
CREATE DATABASE {STORE};
CREATE TABLE {SCHEMA}.user (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  name VARCHAR(64) NOT NULL,
  email VARCHAR(100) NULL,
  visits INT NOT NULL DEFAULT 0,
  about JSON NULL
);
CREATE TABLE {STORE}.by_email (
  id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  email VARCHAR(100) NULL,
  synced_at DATETIME NULL,
  KEY email (email)
)
"""
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash, RedisJson, RedisSet, SearchIndex, Topic

user = Entity("{SCHEMA}.user")
views = [
    IndexTable("by_email", user, value="email"),
    RedisHash("person", user, fields=["name", "email", "visits"]),
    RedisJson("card", user, fields=["name", "visits", "about"]),
    SearchIndex("{ALIAS}", user, fields={{"name": "keyword", "email": "keyword", "visits": "long"}}),
]
"""
MAPPING = {
    "name": {"type": "keyword"},
    "email": {"type": "keyword"},
    "visits": {"type": "long"},
    "_meta": {"type": "object", "enabled": False},
}


class OtherTool:
    """Writes all views after the table, as their declarations would, each in the plain form of its store."""

    def __init__(self, mysql: Server, redis_server: Server, search: Server | None) -> None:
        """Without `search` there is no index."""
        self.mysql, self.search = mysql, search
        self.redis = redis.Redis(port=redis_server.port)
        if search is not None:
            self.documents = Elasticsearch(search.url, request_timeout=60)

    def connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True)

    def ask(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(sql, arguments or None)
            return list(cursor.fetchall())

    def insert(self, numbers: Iterable[int]) -> None:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO {SCHEMA}.user VALUES (%s, %s, %s, %s, %s)",
                [(n, f"name {n}", f"u{n}@example.org" if n % 10 else None, n % 50, f'{{"n": {n}}}') for n in numbers],
            )

    def make(self, rows: int = ROWS) -> None:
        """The tables, the rows and the index; then all views."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in TABLES.split(";"):
                cursor.execute(statement)
        self.insert(range(1, rows + 1))
        if self.search is not None:
            self.documents.indices.create(
                index=INDEX, settings={"number_of_replicas": 0}, mappings={"properties": MAPPING}, aliases={ALIAS: {}}
            )
        self.copy("TRUE")

    def rows(self, condition: str) -> list[tuple[Any, ...]]:
        return self.ask(f"SELECT id, name, email, visits, about FROM {SCHEMA}.user WHERE {condition}")

    def copy(self, condition: str) -> None:
        """Write these rows into each view."""
        rows = self.rows(condition)
        self.copy_keys(rows)
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.executemany(
                f"REPLACE INTO {STORE}.by_email VALUES (%s, %s, NOW())", [(row[0], row[2]) for row in rows]
            )
        self.copy_documents(rows)

    def copy_documents(self, rows: Iterable[tuple[Any, ...]]) -> None:
        if self.search is None:
            return
        documents = [
            {"_index": ALIAS, "_id": str(n), "name": name, "email": email, "visits": visits, "_meta": {"by": "tool"}}
            for n, name, email, visits, _ in rows
        ]
        bulk(self.documents, documents, require_alias=None)
        self.documents.indices.refresh(index=ALIAS)

    def copy_keys(self, rows: Iterable[tuple[Any, ...]]) -> None:
        asked = self.redis.pipeline(transaction=False)
        for n, name, email, visits, about in rows:
            fields = {"name": name, "email": email, "visits": visits}
            asked.hset(f"person:{n}", mapping={field: value for field, value in fields.items() if value is not None})
            asked.set(f"card:{n}", json.dumps({"about": json.loads(about), "name": name, "visits": visits}))
        asked.execute()

    def remove(self, number: int) -> None:
        """From each view."""
        self.redis.delete(f"person:{number}", f"card:{number}")
        self.ask(f"DELETE FROM {STORE}.by_email WHERE id = %s", number)
        if self.search is not None:
            self.documents.options(ignore_status=404).delete(index=ALIAS, id=str(number), refresh=True)

    def damage(self) -> None:
        """In each view: 3 missing (11, 12, 13), 2 extra (9001, 9002), 3 wrong (21, 22, 23)."""
        for number in (11, 12, 13):
            self.remove(number)
        self.insert((9001, 9002))
        self.copy("id > 9000")
        self.ask(f"DELETE FROM {SCHEMA}.user WHERE id > 9000")
        for number in (21, 22, 23):
            self.redis.hset(f"person:{number}", "email", "other@example.org")
            self.redis.set(f"card:{number}", json.dumps({"name": "other", "visits": number, "about": {"n": number}}))
            self.ask(f"UPDATE {STORE}.by_email SET email = 'other@example.org' WHERE id = %s", number)
            if self.search is not None:
                self.documents.update(index=ALIAS, id=str(number), doc={"email": "other@example.org"}, refresh=True)

    def readers(self) -> dict[str, Callable[[int], bool]]:
        """By place, whether a reader finds an entity there."""

        def finds_row(number: int) -> bool:
            shown = "email IS NOT NULL OR id % 10 = 0"  # what has neither is a tombstone
            return bool(self.ask(f"SELECT 1 FROM {STORE}.by_email WHERE id = {number:d} AND ({shown})"))

        def finds_document(number: int) -> bool:
            try:
                return "name" in self.documents.get(index=ALIAS, id=str(number)).body["_source"]
            except NotFoundError:
                return False

        of_search = {} if self.search is None else {"index": finds_document}
        return {
            **of_search,
            "table": finds_row,
            "hash": lambda number: self.redis.hget(f"person:{number}", "name") is not None,
            "document": lambda number: "name" in json.loads(self.redis.get(f"card:{number}") or "{}"),
        }

    def indices(self) -> list[str]:
        return sorted(self.documents.indices.get(index="*person*", expand_wildcards="all"))

    def end(self) -> None:
        """Nothing of it is left, nor of what viewtail made of it."""
        for database in (SCHEMA, STORE):
            self.ask(f"DROP DATABASE IF EXISTS {database}")
        if self.search is not None and (found := self.indices()):
            self.documents.indices.delete(index=",".join(found))
        self.redis.flushall()

    @contextmanager
    def following(self, lag_s: float = 0.3) -> Iterator[None]:
        """Rows change all the while, and the tool brings each into the views a moment later."""
        stop = threading.Event()

        def work() -> None:
            at = 0
            while not stop.is_set():
                at += 1
                number = 1000 + at % 500
                self.ask(
                    f"UPDATE {SCHEMA}.user SET visits = visits + 1, name = CONCAT('n', %s) WHERE id = %s", at, number
                )
                time.sleep(lag_s)
                self.copy(f"id = {number}")

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def run_of(folder: Path, tool: OtherTool, redis_server: Server, search: Server | None, views: str = VIEWS) -> Run:
    """The command line over all of that."""
    environ = addresses(tool.mysql, redis_server, search)
    environ["VIEWTAIL_MYSQL__URL"] = f"{tool.mysql.url}/{STORE}"
    return Run(folder, views, environ)


@contextmanager
def reading(reads: Mapping[str, Callable[[int], bool]], numbers: range) -> Iterator[list[str]]:
    """Read entities that are there all the while, in a thread for each place; yields what was missed."""
    missed, counts, stop = list[str](), dict.fromkeys(reads, 0), threading.Event()

    def work(place: str, finds: Callable[[int], bool]) -> None:
        while not stop.wait(0.01):
            number = numbers[counts[place] * 37 % len(numbers)]
            if not finds(number):
                missed.append(f"{place} {number}")
            counts[place] += 1

    threads = [threading.Thread(target=work, args=each) for each in reads.items()]
    for thread in threads:
        thread.start()
    try:
        yield missed
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert min(counts.values()) > 20
