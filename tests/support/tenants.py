"""Tables of tenants that are one entity, with views in several stores, and whether they are equal to the tables."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, running, wait_for

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash

invoice = Entity("app.org{account_id:int}_invoice", key=["account_id", "allowed_id"])
member = Entity("tenant_{tenant}.user")
views = [
    IndexTable("invoice_by_number", invoice, value="number"),
    RedisHash("invoice", invoice, fields=["number", "account_id"]),
    IndexTable("member_by_email", member, value="email"),
]
"""
INVOICE = "(allowed_id BIGINT UNSIGNED PRIMARY KEY, number VARCHAR(20), note VARCHAR(20))"
USER = "(id INT PRIMARY KEY, email VARCHAR(40))"


class Tenants:
    """`viewtail run` over tables of tenants."""

    def __init__(self, mysql: Server, redis_server: Server, run: Run) -> None:
        self.mysql, self.run = mysql, run
        self.redis = redis.Redis(host="127.0.0.1", port=redis_server.port)

    def ask(self, *statements: str) -> Sequence[Any]:
        """The rows of the last one."""
        return [ask(self.mysql, statement) for statement in statements][-1]

    def create(self, account: int, rows: int = 3) -> None:
        self.ask(f"CREATE TABLE app.org{account}_invoice {INVOICE}")
        self.add(account, *range(1, rows + 1))

    def add(self, account: int, *numbers: int) -> None:
        if numbers:
            rows = ", ".join(f"({number}, 'n{account}-{number}', 'x')" for number in numbers)
            self.ask(f"INSERT INTO app.org{account}_invoice (allowed_id, number, note) VALUES {rows}")

    def accounts(self) -> list[int]:
        names = self.ask(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'app' AND table_type = 'BASE TABLE' "
            "AND table_name RLIKE '^org(0|[1-9][0-9]*)_invoice$'"
        )
        return sorted(int(str(name)[3:].partition("_")[0]) for (name,) in names)

    def rows(self, *but: int) -> dict[tuple[int, int], str]:
        """Of each account, but these, its invoices."""
        return {
            (account, number): text
            for account in self.accounts()
            if account not in but
            for number, text in self.ask(f"SELECT allowed_id, number FROM app.org{account}_invoice")
        }

    def shown(self) -> dict[tuple[int, int], str]:
        rows = self.ask(
            "SELECT account_id, allowed_id, number FROM viewtail.invoice_by_number WHERE number IS NOT NULL"
        )
        return {(account, number): text for account, number, text in rows}

    def shown_in_redis(self) -> dict[tuple[int, int], str]:
        found = {}
        for name in self.redis.scan_iter(match="invoice:*"):
            _, account, number = name.decode().split(":")
            fields = self.redis.hgetall(name)
            assert fields[b"account_id"].decode() == account
            found[int(account), int(number)] = fields[b"number"].decode()
        return found

    def is_equal(self) -> bool:
        rows = self.rows()
        assert self.shown() == rows
        assert self.shown_in_redis() == rows
        return True

    def states(self) -> dict[str, str]:
        pipelines = json.loads(self.run.command("status", "--json").stdout)["pipelines"]
        return {view["name"]: f"{view['state']} {view['reason']}" for one in pipelines for view in one["views"]}


@contextmanager
def tenants(
    mysql: Server,
    redis_server: Server,
    folder: Path,
    views: str = VIEWS,
    accounts: Sequence[int] = (1, 2, 10),
    settings: Mapping[str, str] | None = None,
    user: str = USER,
) -> Iterator[Tenants]:
    """Some accounts with three invoices each, two tenants with a schema of their own, and all of it filled."""
    for name in ("viewtail", "app", "tenant_a", "tenant_b", "tenant_c"):
        ask(mysql, f"DROP DATABASE IF EXISTS {name}")
    for name in ("app", "tenant_a", "tenant_b"):
        ask(mysql, f"CREATE DATABASE {name}")
    redis.Redis(host="127.0.0.1", port=redis_server.port).flushall()
    run = Run(folder, views, {**addresses(mysql, redis_server), **(settings or {})})
    world = Tenants(mysql, redis_server, run)
    for account in accounts:
        world.create(account)
    for name in ("a", "b"):
        world.ask(f"CREATE TABLE tenant_{name}.user {user}")
        world.ask(f"INSERT INTO tenant_{name}.user (id, email) VALUES (1, '{name}@x')")
    with running(folder, views, {**addresses(mysql, redis_server), **(settings or {})}) as run:
        world.run = run
        wait_for("all is filled", run.is_filled)
        yield world
