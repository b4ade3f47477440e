"""The real command line with MariaDB as its source: filled, kept under load and over kills; what `check` says of it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

import stack.mariadb
from stack import Server
from tests.support.running import Run, addresses, running, wait_for
from viewtail.changes.errors import SourceError
from viewtail.servers.facts import facts_of

pytestmark = pytest.mark.mariadb

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash, RedisJson

user = Entity("shop.user")
views = [
    IndexTable("ix_email", user, value="email"),
    IndexTable("ix_seen_from", user, value=["seen_from", "session"]),
    IndexTable("ix_number", user, value="d", each="INT UNSIGNED"),
    RedisHash("user", user, fields=["email", "about", "seen_at"]),
    RedisJson("price", Entity("shop.price"), fields=["amount"]),
]
"""
TABLES = (
    "CREATE DATABASE shop",
    """CREATE TABLE shop.user (id UUID PRIMARY KEY, email VARCHAR(60) CHARACTER SET utf8mb4, seen_from INET6,
       about TEXT COMPRESSED CHARACTER SET latin1, seen_at DATETIME(3), session UUID, hidden INT INVISIBLE, d JSON)""",
    "CREATE TABLE shop.price (id INT PRIMARY KEY, amount DECIMAL(40, 35)) WITH SYSTEM VERSIONING",
)


def connect(server: Server) -> Any:
    return pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True, charset="utf8mb4")


def rows(server: Server, query: str) -> list[tuple[Any, ...]]:
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


@pytest.fixture
def mariadb(tmp_path: Path) -> Iterator[Server]:
    server = stack.mariadb.start(tmp_path / "mariadb")
    with connect(server) as connection, connection.cursor() as cursor:
        for statement in TABLES:
            cursor.execute(statement)
    yield server
    server.kill()


class Writer(threading.Thread):
    """Changes rows at random, in transactions that are compressed or not, until stopped."""

    def __init__(self, server: Server, seed: int) -> None:
        super().__init__(daemon=True)
        self._server, self._chance = server, random.Random(seed)
        self.stopping = threading.Event()
        self.committed = 0

    def run(self) -> None:
        while not self.stopping.is_set():
            try:
                with connect(self._server) as connection, connection.cursor() as cursor:
                    while not self.stopping.is_set():
                        self._transaction(cursor)
                        self.committed += 1
            except pymysql.err.MySQLError:  # it was killed
                self.stopping.wait(0.05)

    def _transaction(self, cursor: Any) -> None:
        chance = self._chance
        cursor.execute(f"SET GLOBAL log_bin_compress = {chance.choice(('ON', 'OFF'))}")
        cursor.execute("BEGIN")
        for _ in range(chance.choice((1, 2, 20))):
            number = chance.randrange(100)
            user = f"'0000000{number % 10}-0000-{chance.choice('14')}000-8000-0000000000{number // 10}0'"
            about = chance.choice(("é", "x" * 400, "", "short"))
            match chance.randrange(6):
                case 0 | 1:
                    cursor.execute(
                        f"REPLACE INTO shop.user (id, email, seen_from, about, seen_at, session, d) VALUES "
                        f"({user}, 'e{chance.random()}ü', '::{number}', '{about}', NOW(3), UUID(), "
                        f"'[{number}, {number % 7}, {number % 7}]')"
                    )
                case 2:
                    cursor.execute(f"UPDATE shop.user SET email = CONCAT(email, 1) WHERE id > {user} LIMIT 5")
                case 3:
                    cursor.execute(f"DELETE FROM shop.user WHERE id = {user}")
                case 4:
                    cursor.execute(f"REPLACE INTO shop.price VALUES ({number}, {chance.random()})")
                case _:
                    cursor.execute(f"DELETE FROM shop.price WHERE id = {number}")
        cursor.execute(chance.choice(("COMMIT", "COMMIT", "ROLLBACK")))


def expected(server: Server) -> dict[str, Any]:
    users = rows(server, "SELECT id, email, seen_from, about, seen_at, session FROM shop.user")
    lists = rows(server, "SELECT id, d FROM shop.user")
    prices = rows(server, "SELECT id, CAST(amount AS CHAR) FROM shop.price")
    return {
        "ix_email": {(key, email) for key, email, *_ in users},
        "ix_number": {(key, number) for key, text in lists for number in json.loads(text)},
        "ix_seen_from": {(key, seen_from, session) for key, _, seen_from, _, _, session in users},
        "user": {
            f"user:{key}": {
                "email": email,
                "about": about,
                "seen_at": seen_at.isoformat(" ", timespec="milliseconds"),
            }
            for key, email, _, about, seen_at, _ in users
        },
        "price": {f"price:{key}": {"amount": amount} for key, amount in prices},
    }


def actual(store: Server, client: redis.Redis[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "ix_email": set(rows(store, "SELECT id, email FROM maria_views.ix_email WHERE email IS NOT NULL")),
        "ix_number": set(rows(store, "SELECT id, d FROM maria_views.ix_number")),
        "ix_seen_from": set(
            rows(
                store,
                "SELECT id, seen_from, session FROM maria_views.ix_seen_from WHERE session IS NOT NULL",
            )
        ),
        "user": {},
        "price": {},
    }
    for key in client.scan_iter("user:*"):
        content = {name.decode(): value.decode() for name, value in client.hgetall(key).items()}
        assert content.pop("_version")
        found["user"][key.decode()] = content
    for key in client.scan_iter("price:*"):
        content = json.loads(client.get(key) or b"{}")
        content.pop("_version")
        found["price"][key.decode()] = content
    return found


@pytest.mark.parametrize("store", ["mariadb", "mysql"])
def test_views_of_mariadb_tables_are_filled_and_kept(
    store: str, mariadb: Server, mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    target = mariadb if store == "mariadb" else mysql_server
    client = redis.Redis(port=redis_server.port)
    client.flushall()
    with connect(target) as connection, connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS maria_views")
    writer = Writer(mariadb, 1)
    writer.start()
    wait_for("rows to fill from", lambda: writer.committed > 50)
    folder = tmp_path / "run"
    folder.mkdir()
    environment = addresses(mariadb, redis_server) | {
        "VIEWTAIL_MYSQL__URL": f"{target.url}/maria_views",
        "VIEWTAIL_RUN__SPOOL_BYTES": "4096",
        "VIEWTAIL_RUN__CHUNK_ROWS": "10",
    }
    with running(folder, VIEWS, environment) as run:
        wait_for("the views are filled", run.is_well)
        if target is mariadb:  # one of the two is enough to see that kills lose nothing
            run.kill_worker("redis")
            run.kill_worker("mysql")
            wait_for("more is written", lambda seen=writer.committed: writer.committed > seen + 50)
            mariadb.kill()
            mariadb.start()
        wait_for("more is written", lambda seen=writer.committed: writer.committed > seen + 50)
        writer.stopping.set()
        writer.join()
        wanted = expected(mariadb)
        assert len(wanted["user"]) > 10 and len(wanted["price"]) > 10
        wait_for("views and tables are equal", lambda: actual(target, client) == wanted)
        wait_for("all is well", run.is_well)
        if target is mariadb:
            _operated(run, mariadb, client)
            assert actual(target, client) == expected(mariadb)
        assert run.stop() == 0


def _operated(run: Run, server: Server, client: redis.Redis[bytes]) -> None:
    """One pass over verify, why, wait and rebuild."""

    def done(*arguments: str, code: int = 0) -> str:
        found = run.command(*arguments)
        assert found.returncode == code, f"{arguments}: {found.stdout}{found.stderr}"
        return found.stdout

    told = json.loads(done("verify", "--json"))
    assert told["failed"] == {} and len(told["views"]) == 5
    assert all(one["is_equal"] and one["rows"] and one["proven_through"] for one in told["views"])

    ((key,),) = rows(server, "SELECT MIN(id) FROM shop.user")
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE shop.user SET email = 'awaited' WHERE id = '{key}'")
        cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
        (gtid,) = cursor.fetchone()
    assert "has it" in done("wait", "redis:user", key, "--gtid", gtid)
    assert client.hget(f"user:{key}", "email") == b"awaited"
    assert "has it" in done("wait", "mysql:ix_email", key)
    assert rows(server, f"SELECT email FROM maria_views.ix_email WHERE id = '{key}'") == [("awaited",)]

    found = json.loads(done("why", "redis:user", key, "--json"))
    assert (found["verdict"], found["last_change"]["op"], found["last_change"]["gtid"]) == ("current", "update", gtid)
    client.hset(f"user:{key}", "email", "damaged")
    with connect(server) as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE maria_views.ix_email SET email = 'damaged' WHERE id = '{key}'")
    for view in ("redis:user", "mysql:ix_email"):
        found = json.loads(done("why", view, key, "--json", code=1))
        assert found["verdict"] == "wrong" and found["next"].startswith("viewtail ")
    damaged = json.loads(done("verify", "redis:user", "mysql:ix_email", "--json", code=1))["views"]
    assert [[one["key"] for one in view["entities"]] for view in damaged] == [[key], [key]]

    done("rebuild", "redis:user")
    assert client.hget(f"user:{key}", "email") == b"awaited"
    done("rebuild", "redis:user", "--rollback")
    assert client.hget(f"user:{key}", "email") == b"damaged"
    done("rebuild", "redis:user")
    done("rebuild", "redis:user", "--abort", "--yes")
    assert "equal after 1 repaired" in done("verify", "mysql:ix_email", "--repair")
    done("verify")


# -- check --------------------------------------------------------------------------------------------------------

WRONG = (
    "--binlog-format=MIXED",
    "--binlog-row-metadata=NO_LOG",
    "--binlog-row-image=MINIMAL",
    "--binlog-checksum=NONE",
    "--binlog-expire-logs-seconds=60",
    "--max-allowed-packet=1M",
)
PASSWORD = "cAnArY-p4ss"


def findings(run: Run) -> list[dict[str, str]]:
    done = run.command("check", "--json")
    told = json.loads(done.stdout)
    assert done.returncode == (0 if told["is_well"] else 1), done.stdout
    found: list[dict[str, str]] = told["findings"]
    return found


def test_check_asks_what_mariadb_has_and_prints_the_sql_that_mends_it(tmp_path: Path) -> None:
    server = stack.mariadb.start(tmp_path / "mariadb", options=WRONG)
    try:
        with connect(server) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.user (id UUID PRIMARY KEY, email VARCHAR(50))")
            cursor.execute(f"CREATE USER 'viewtail'@'%' IDENTIFIED BY '{PASSWORD}'")
            cursor.execute("CREATE ROLE reader")
            cursor.execute("GRANT SELECT ON shop.user TO reader")
            cursor.execute("GRANT reader TO 'viewtail'@'%'")
            cursor.execute("SET DEFAULT ROLE reader FOR 'viewtail'@'%'")
        views = "from viewtail import *\nviews = [IndexTable('i', Entity('shop.user'), value='email')]"
        url = f"mysql://viewtail:{PASSWORD}@{server.host}:{server.port}"
        run = Run(tmp_path, views, {"VIEWTAIL_SOURCE__URL": url})
        bad = [one for one in findings(run) if one["level"] != "ok"]
        told = {one["what"]: one["level"] for one in bad}
        assert told == {
            "binlog_format": "fail", "binlog_row_metadata": "fail", "binlog_row_image": "fail",
            "server_id": "warn", "binlog_checksum": "warn", "binlog_expire_logs_seconds": "warn",
            "max_allowed_packet": "warn", "REPLICATION SLAVE": "fail", "REPLICATION CLIENT": "fail",
            "watermarks in viewtail": "fail", "rights on viewtail.*": "fail", "PROCESS": "warn",
        }  # fmt: skip
        with connect(server) as connection, connection.cursor() as cursor:
            for one in bad:
                for statement in one["mend"].partition("--")[0].split(";"):
                    if statement.strip():
                        cursor.execute(statement)
        assert [one for one in findings(run) if one["level"] != "ok"] == []
    finally:
        server.kill()


def test_check_names_the_foreign_keys_whose_cascades_are_not_logged(mariadb: Server, tmp_path: Path) -> None:
    with connect(mariadb) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE shop.parent (id INT PRIMARY KEY)")
        cursor.execute(
            "CREATE TABLE shop.child (id INT PRIMARY KEY, parent INT, CONSTRAINT of_parent FOREIGN KEY (parent) "
            "REFERENCES shop.parent (id) ON DELETE CASCADE)"
        )
    views = "from viewtail import *\nviews = [IndexTable('i', Entity('shop.child'), value='parent')]"
    run = Run(tmp_path, views, {"VIEWTAIL_SOURCE__URL": mariadb.url})
    (found,) = [one for one in findings(run) if "of_parent" in one["what"]]
    assert found["level"] == "warn" and "MariaDB does not log" in found["why"]


def test_a_server_that_is_too_old_is_refused_with_what_is_needed() -> None:
    class Old:
        def cursor(self) -> Any:
            return self

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None: ...

        def execute(self, _: str) -> None: ...

        def fetchone(self) -> tuple[str, str]:
            return "10.6.20-MariaDB", "Debian"

    with pytest.raises(SourceError, match=r"10\.6\.20.*MariaDB 10\.11"):
        facts_of(Old())  # type: ignore[arg-type]
