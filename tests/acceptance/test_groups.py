"""Numbers over groups of rows in Redis, an index table and Elasticsearch, through a life with every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.indices import Indices
from tests.support.running import Run, addresses, running, wait_for

VIEWS = """
from viewtail import Count, Group, IndexTable, Max, RedisHash, RedisJson, Sum

by_status = Group(
    "grouped.order",
    by=["shop_id", "status"],
    values={
        "orders": Count(),
        "total": Sum("amount"),
        "large": Count(where="amount >= 100 AND NOT note <=> 'gift'"),
        "newest": Max("at"),
    },
)

views = [
    RedisHash("orders", by_status, fields=["orders", "total"]),
    RedisJson("several", by_status, where=lambda row: row["orders"] > 1, document=lambda row: dict(row)),
    IndexTable("groups_by_size", by_status, value=["orders", "large"]),
]
"""
CHANGES = (
    "INSERT INTO grouped.`order` (shop_id, status, amount) VALUES (7, 'paid', 0.1), (7, 'paid', 0.2), (8, 'new', 99)",
    "UPDATE grouped.`order` SET status = 'Paid' WHERE amount = 0.2",
    "UPDATE grouped.`order` SET status = 'sent ' WHERE status = 'paid' AND shop_id = 7",
    "UPDATE grouped.`order` SET shop_id = 9, amount = 200 WHERE shop_id = 8",
    "UPDATE grouped.`order` SET note = 'gift' WHERE shop_id = 9",
    "UPDATE grouped.`order` SET status = NULL WHERE shop_id = 9",
    "DELETE FROM grouped.`order` WHERE shop_id = 7",
    "INSERT INTO grouped.`order` (shop_id, status, amount, at) VALUES (7, 'paid', -5, '2024-02-29 12:00:00')",
)


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    ask(found, "DROP DATABASE IF EXISTS viewtail")
    ask(found, "DROP DATABASE IF EXISTS grouped")
    ask(found, "CREATE DATABASE grouped")
    ask(
        found,
        "CREATE TABLE grouped.`order` (id BIGINT AUTO_INCREMENT PRIMARY KEY, shop_id INT NOT NULL, status VARCHAR(20) "
        "CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci, amount DECIMAL(20,10), note VARCHAR(20), at DATETIME, "
        "KEY (shop_id, status))",
    )
    ask(
        found,
        "INSERT INTO grouped.`order` (shop_id, status, amount, at) VALUES (1, 'paid', 10.5, '2024-01-01'), (1, 'PAID', "
        "100, NULL), (1, 'paid', 100, '2024-01-02'), (2, 'a:b {c}', NULL, NULL), (3, NULL, 7, NULL)",
    )
    ask(found, "FLUSH BINARY LOGS")  # what is read back by time must not begin before the table was made
    return found


def groups(server: Server) -> dict[tuple[int, str], tuple[int, str | None, int, str | None]]:
    """By key: orders, total, large and newest, as SQL says."""
    rows = ask(
        server,
        "SELECT shop_id, MIN(status), COUNT(*), CAST(SUM(amount) AS CHAR), "
        "COALESCE(SUM(amount >= 100 AND NOT note <=> 'gift'), 0), CAST(MAX(at) AS CHAR) FROM grouped.`order` "
        "WHERE status IS NOT NULL GROUP BY shop_id, HEX(status)",
    )
    return {(row[0], row[1]): (row[2], row[3], int(row[4]), row[5]) for row in rows}


def rendered(key: tuple[int, str]) -> str:
    shop, status = key
    return f"{shop}:{status.translate({ord(sign): f'%{ord(sign):02X}' for sign in '%{}:'})}"


def caught_up(run: Run, *views: str) -> None:
    for view in views or ("redis:orders", "redis:several", "mysql:groups_by_size"):
        succeeds(run, "wait", view)


def succeeds(run: Run, *arguments: str) -> str:
    done = run.command(*arguments)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout


def shows_all(server: Server, store: Any) -> bool:
    expected = groups(server)
    hashes = {key: store.hgetall(key) for key in store.keys("orders:*") if key[-2:] != ":t"}
    for of in hashes.values():
        assert of.pop("_version")
    totals: dict[str, Any] = {
        f"orders:{rendered(key)}": {"orders": str(count)} | ({} if total is None else {"total": total})
        for key, (count, total, _, _) in expected.items()
    }
    assert hashes == totals
    documents = {key: json.loads(store.get(key) or "{}") for key in store.keys("several:*") if key[-2:] != ":t"}
    for of in documents.values():
        of.pop("_version", None)
    assert documents == {
        f"several:{rendered(key)}": {
            "shop_id": key[0], "status": key[1], "orders": count, "total": total, "large": large, "newest": newest
        }
        for key, (count, total, large, newest) in expected.items() if count > 1
    }  # fmt: skip
    table = ask(server, "SELECT shop_id, status, orders, large FROM viewtail.groups_by_size WHERE orders > 0")
    assert {(row[0], row[1]): row[2:] for row in table} == {key: (of[0], of[2]) for key, of in expected.items()}
    return True


@pytest.mark.redis
def test_groups_are_filled_kept_compared_and_mended(server: Server, redis_server: Server, tmp_path: Path) -> None:
    store = redis.Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True)
    store.flushall()

    def is_equal() -> bool:
        return shows_all(server, store)

    def settled(run: Run) -> bool:
        caught_up(run)
        return is_equal()

    with running(tmp_path, VIEWS, addresses(server, redis_server)) as run:
        wait_for("it is filled", is_equal)
        wait_for("status says so", run.is_filled)
        for statement in CHANGES:
            ask(server, statement)
            assert settled(run), statement
        assert json.loads(succeeds(run, "get", "redis:orders", "7:paid", "--json"))["content"]["orders"] == "1"
        rows = json.loads(succeeds(run, "find", "groups_by_size", "2", "--json"))["rows"]
        assert [(row["shop_id"], row["status"], row["total"], row["newest"]) for row in rows] == [
            (1, "paid", "110.5000000000", "2024-01-02 00:00:00")
        ]
        since = ask(server, "SELECT UTC_TIMESTAMP()")[0][0].isoformat() + "Z"  # MariaDB counts seconds
        ask(server, "UPDATE grouped.`order` SET amount = 11 WHERE id = 1")
        caught_up(run)
        assert json.loads(succeeds(run, "why", "redis:orders", "1:paid", "--json"))["verdict"] == "current"
        store.delete("orders:1:paid")
        store.copy("orders:1:PAID", "orders:1:pAID")
        found = run.command("verify", "redis:orders")
        assert found.returncode == 1 and "1 extra, 1 missing" in found.stdout, found.stdout
        succeeds(run, "replay", "redis:orders", "--since", since)
        assert "orders:1:paid" in store.keys("orders:*")
        succeeds(run, "verify", "redis:orders", "--repair")
        assert is_equal()
        succeeds(run, "replay", "redis:orders", *(f"--key={key}" for key in ("1:paid", "1:PAID", "5:none")))
        assert is_equal()
        store.delete("orders:1:paid")
        succeeds(run, "replay", "redis:orders", "--where", "amount >= 100")
        assert is_equal(), "all rows of a group count, not those alone that meet the condition"
        ask(server, "TRUNCATE grouped.`order`")
        wait_for("it is empty", is_equal)
        ask(server, "INSERT INTO grouped.`order` (shop_id, status, amount) VALUES (2, 'paid', 1), (2, 'Paid', 2)")
        assert settled(run)
        ask(server, "ALTER TABLE grouped.`order` MODIFY status VARCHAR(30) COLLATE utf8mb4_bin")
        ask(server, "INSERT INTO grouped.`order` (shop_id, status, amount) VALUES (2, 'paid', 100), (2, 'pÄid', 2)")
        wait_for("the collation is another one", is_equal)
        succeeds(run, "rebuild", "redis:orders", "--yes")
        ask(server, "UPDATE grouped.`order` SET status = 'late'")
        assert settled(run)
        for command in (("verify",), ("status",), ("check",), ("preview", "redis:several")):
            succeeds(run, *command)


SEARCHED = """
from viewtail import Count, Group, SearchIndex, Sum

by_day = Group("grouped.order", by="at", values={"orders": Count(), "total": Sum("amount")})
views = [SearchIndex("days", by_day, fields={"at": "date", "orders": "long", "total": "double"})]
"""


@pytest.mark.elasticsearch
def test_groups_are_documents_that_are_searched_by_their_numbers(
    server: Server, elasticsearch_server: Server, tmp_path: Path
) -> None:
    indices = Indices(elasticsearch_server)
    indices.drop(["days"])

    def shown() -> dict[str, dict[str, Any]]:
        return indices.contents(["days"])["elasticsearch:days"]

    with running(tmp_path, SEARCHED, addresses(server, None, elasticsearch_server)) as run:
        wait_for("it is filled", lambda: len(shown()) == 2)
        ask(server, "UPDATE grouped.`order` SET at = '2024-01-02' WHERE amount = 10.5")
        caught_up(run, "elasticsearch:days")
        days = shown()
        assert [(of["orders"], float(of["total"])) for of in days.values()] == [(2, 110.5)], days
        succeeds(run, "verify", "--repair")
