"""`viewtail adopt` of what is made of several rows, of groups, and of many tables as one entity, on both servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.other_tools import reading
from tests.support.running import Run, addresses, wait_for

VIEWS = """
from viewtail import Count, Entity, Group, IndexTable, Many, RedisHash, RedisJson, Sum

basket = Entity("kinds.basket", related={
    "lines": Many("kinds.line", by="basket_id", order_by="id"),
    "line_count": Count("kinds.line", by="basket_id"),
})
sold = Group("kinds.line", by="basket_id", values={"lines": Count(), "amount": Sum("amount")})
invoice = Entity("kinds_org{account:int}.invoice", key=["account", "id"])


def document(row):
    return {"note": row["note"], "count": row["line_count"], "amounts": [line["amount"] for line in row["lines"]]}


views = [
    RedisJson("basket", basket, document=document),
    RedisHash("sold", sold, fields=["lines", "amount"]),
    IndexTable("basket_size", basket, value=["line_count"]),
    RedisHash("invoice", invoice, fields=["number"]),
    IndexTable("invoice_number", invoice, value="number"),
]
"""
NAMES = ("basket", "sold", "basket_size", "redis:invoice", "invoice_number")
STORE = "kinds_views"
BASKETS = 200
Shown = dict[str, dict[Any, Any]]  # by view and key


class Kinds:
    """Baskets with their lines, invoices of two accounts, and what another tool made of them."""

    def __init__(self, server: Server, redis_server: Server) -> None:
        self.server, self.redis = server, redis.Redis(port=redis_server.port, decode_responses=True)
        self.end()
        for database in ("kinds", "kinds_org1", "kinds_org2", STORE):
            self.ask(f"CREATE DATABASE {database}")
        self.ask("CREATE TABLE kinds.basket (id INT PRIMARY KEY, note VARCHAR(20))")
        self.ask("CREATE TABLE kinds.line (id INT PRIMARY KEY, basket_id INT NOT NULL, amount INT, KEY (basket_id))")
        self.ask("INSERT INTO kinds.basket VALUES " + ", ".join(f"({n}, 'note {n}')" for n in range(1, BASKETS + 1)))
        lines = [(10 * n + at, n, at) for n in range(1, BASKETS + 1) for at in range(1 + n % 3)]
        self.ask(f"INSERT INTO kinds.line VALUES {', '.join(map(str, lines))}")
        for account in (1, 2):
            self.account(account)
        self.ask(f"CREATE TABLE {STORE}.basket_size (id INT PRIMARY KEY, line_count BIGINT)")
        self.ask(
            f"CREATE TABLE {STORE}.invoice_number (account BIGINT NOT NULL, id INT NOT NULL, number VARCHAR(20), "
            "PRIMARY KEY (account, id))"
        )
        self.copy()

    def ask(self, statement: str) -> Any:
        return ask(self.server, statement)

    def account(self, account: int) -> None:
        self.ask(f"CREATE DATABASE IF NOT EXISTS kinds_org{account}")
        self.ask(f"CREATE TABLE kinds_org{account}.invoice (id INT PRIMARY KEY, number VARCHAR(20) NOT NULL)")
        rows = ", ".join(f"({n}, 'n{account}-{n}')" for n in range(1, 61))
        self.ask(f"INSERT INTO kinds_org{account}.invoice VALUES {rows}")

    def wanted(self, accounts: tuple[int, ...] = (1, 2)) -> Shown:
        amounts: dict[int, list[int]] = {}
        for basket, amount in self.ask("SELECT basket_id, amount FROM kinds.line ORDER BY id"):
            amounts.setdefault(basket, []).append(amount)
        baskets = dict(self.ask("SELECT id, note FROM kinds.basket"))
        invoices = {
            (account, number): text
            for account in accounts
            for number, text in self.ask(f"SELECT id, number FROM kinds_org{account}.invoice")
        }
        return {
            "basket": {
                n: {"note": note, "count": len(amounts.get(n, [])), "amounts": amounts.get(n, [])}
                for n, note in baskets.items()
            },
            "sold": {n: {"lines": str(len(of)), "amount": str(sum(of))} for n, of in amounts.items()},
            "basket_size": {n: len(amounts.get(n, [])) for n in baskets},
            "invoice": {f"{account}:{number}": {"number": text} for (account, number), text in invoices.items()},
            "invoice_number": invoices,
        }

    def copy(self) -> None:
        """As another tool writes them."""
        wanted = self.wanted()
        asked = self.redis.pipeline(transaction=False)
        for n, document in wanted["basket"].items():
            asked.set(f"basket:{n}", json.dumps(document))
        for view in ("sold", "invoice"):
            for n, fields in wanted[view].items():
                asked.hset(f"{view}:{n}", mapping=fields)
        asked.execute()
        self.ask(f"INSERT INTO {STORE}.basket_size VALUES {', '.join(map(str, wanted['basket_size'].items()))}")
        rows = ", ".join(str((*key, text)) for key, text in wanted["invoice_number"].items())
        self.ask(f"INSERT INTO {STORE}.invoice_number VALUES {rows}")

    def damage(self) -> None:
        """In each view 1 missing, 1 extra, 1 wrong."""
        self.redis.delete("basket:3", "sold:3", "invoice:1:3")
        self.redis.set("basket:9001", '{"note": "stray", "count": 0, "amounts": []}')
        self.redis.set("basket:4", '{"note": "else", "count": 2, "amounts": [0, 1]}')
        self.redis.hset("sold:9001", mapping={"lines": "1", "amount": "1"})
        self.redis.hset("sold:4", "amount", "77")
        self.redis.hset("invoice:3:1", "number", "stray")
        self.redis.hset("invoice:2:4", "number", "else")
        self.ask(f"DELETE FROM {STORE}.basket_size WHERE id = 3")
        self.ask(f"INSERT INTO {STORE}.basket_size VALUES (9001, 1)")
        self.ask(f"UPDATE {STORE}.basket_size SET line_count = 77 WHERE id = 4")
        self.ask(f"DELETE FROM {STORE}.invoice_number WHERE account = 1 AND id = 3")
        self.ask(f"INSERT INTO {STORE}.invoice_number VALUES (3, 1, 'stray')")
        self.ask(f"UPDATE {STORE}.invoice_number SET number = 'else' WHERE account = 2 AND id = 4")

    def shown(self) -> Shown:
        names = {view: list(self.redis.scan_iter(f"{view}:*", 1000)) for view in ("sold", "invoice")}
        found: Shown = {view: {} for view in ("basket", "sold", "invoice")}
        for name in self.redis.scan_iter("basket:*", 1000):
            if "note" in (document := json.loads(self.redis.get(name) or "{}") if "{" not in name else {}):
                found["basket"][int(name.split(":")[1])] = {f: v for f, v in document.items() if f != "_version"}
        for view, keys in names.items():
            for name in keys:
                fields = self.redis.hgetall(name) if "{" not in name else {}
                key: Any = name.partition(":")[2]
                if fields:
                    found[view][int(key) if view == "sold" else key] = {f: v for f, v in fields.items() if f[0] != "_"}
        sizes = f"SELECT id, line_count FROM {STORE}.basket_size WHERE line_count IS NOT NULL"
        numbers = f"SELECT account, id, number FROM {STORE}.invoice_number WHERE number IS NOT NULL"
        found["basket_size"] = dict(self.ask(sizes))
        found["invoice_number"] = {row[:2]: row[2] for row in self.ask(numbers)}
        return found

    def end(self) -> None:
        for database in ("kinds", "kinds_org1", "kinds_org2", "kinds_org4", STORE):
            self.ask(f"DROP DATABASE IF EXISTS {database}")
        self.redis.flushall()


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def kinds(request: pytest.FixtureRequest, redis_server: Server) -> Iterator[Kinds]:
    made = Kinds(request.getfixturevalue(f"{request.param}_server"), redis_server)
    yield made
    made.end()


def test_derived_views_groups_and_patterns_are_taken_over(kinds: Kinds, redis_server: Server, tmp_path: Path) -> None:
    environ = addresses(kinds.server, redis_server) | {"VIEWTAIL_MYSQL__URL": f"{kinds.server.url}/{STORE}"}
    run = Run(tmp_path, VIEWS, environ)
    done = run.command("audit", *NAMES, "--again-after", "1s")
    assert done.returncode == 0, done.stdout + done.stderr
    kinds.damage()
    done = run.command("audit", *NAMES, "--again-after", "1s", "--json")
    found = {view["view"]: view["differing"] for view in json.loads(done.stdout)["views"]}
    assert len(found) == 5
    for view, differing in found.items():
        assert differing == {"missing": 1, "extra": 1, "stale": 0, "wrong": 1}, view
    reads = {
        "basket": lambda number: kinds.redis.exists(f"basket:{number}") == 1,
        "sold": lambda number: kinds.redis.hget(f"sold:{number}", "lines") is not None,
    }
    with reading(reads, range(10, BASKETS)) as missed:
        done = run.command("adopt", *NAMES, "--drop-extra")
        assert done.returncode == 0, done.stdout + done.stderr
        assert kinds.shown() == kinds.wanted()
        run.start()
        try:
            wait_for("all is well", run.is_filled)
            live_changes_are_kept(kinds)
        finally:
            run.kill()
    assert not missed


def live_changes_are_kept(kinds: Kinds) -> None:
    kinds.ask("INSERT INTO kinds.line VALUES (9000, 5, 40), (9001, 300, 1)")
    kinds.ask("INSERT INTO kinds.basket VALUES (300, 'late')")
    kinds.ask("UPDATE kinds.line SET basket_id = 7 WHERE basket_id = 8")
    kinds.ask("DELETE FROM kinds.basket WHERE id = 9")
    kinds.ask("UPDATE kinds_org1.invoice SET number = 'new' WHERE id = 5")
    kinds.account(4)
    wanted = kinds.wanted(accounts=(1, 2, 4))

    def is_shown() -> bool:
        shown = kinds.shown()
        for view, rows in wanted.items():
            assert shown[view] == rows, view
        return True

    wait_for("live changes are shown", is_shown)
