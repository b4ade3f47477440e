"""A table of events that is polled, with views of it in MySQL and Redis, and whether they are equal to it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, running

VIEWS = """
from viewtail import Entity, IndexTable, RedisJson

account = Entity("bank.account", key="entity_id", version="version", append_only=True, order="event_id")
views = [
    IndexTable("account_by_balance", account, value="balance"),
    RedisJson("account", account, fields=["balance"], key="account:{entity_id}"),
]
"""
COLUMNS = (
    "(event_id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, entity_id VARCHAR(40) NOT NULL, "
    "version BIGINT UNSIGNED NOT NULL, balance INT, UNIQUE (entity_id, version))"
)


class Polled:
    """Args:
    tables: of which views are, as one.
    """

    def __init__(self, mysql: Server, redis_server: Server, run: Run, tables: Sequence[str] = ("account",)) -> None:
        self.mysql, self.run, self.tables = mysql, run, [*tables]
        self.redis = redis.Redis(host="127.0.0.1", port=redis_server.port)

    def event(self, entity: str, version: int, balance: int, table: str = "account") -> str:
        return f"INSERT INTO bank.{table} (entity_id, version, balance) VALUES ('{entity}', {version}, {balance})"

    def add(self, entity: str, version: int, balance: int, table: str = "account") -> None:
        ask(self.mysql, self.event(entity, version, balance, table))

    def newest(self) -> list[tuple[str, int]]:
        """Of each entity its newest balance."""
        rows = [
            row
            for table in self.tables
            for row in ask(self.mysql, f"SELECT entity_id, version, balance FROM bank.{table}")
        ]
        return sorted({entity: balance for entity, _, balance in sorted(rows)}.items())

    def differences(self) -> dict[str, object]:
        """Of each entity that a view does not show as the table has it: what the table has, and the views."""
        rows = dict(self.newest())
        index = dict(ask(self.mysql, "SELECT entity_id, balance FROM viewtail.account_by_balance"))
        found: dict[str, object] = {}
        for name, balance in rows.items():
            document = json.loads(self.redis.get(f"account:{name}") or b"{}").get("balance")
            if (index.get(name), document) != (balance, balance):
                found[name] = (balance, index.get(name), document)
        return found

    def is_equal(self) -> bool:
        rows = self.newest()
        index = ask(self.mysql, "SELECT entity_id, balance FROM viewtail.account_by_balance WHERE balance IS NOT NULL")
        found = self.redis.mget([f"account:{name}" for name, _ in rows])
        documents = [json.loads(text or b"{}").get("balance") for text in found]
        return sorted(index) == rows and documents == [balance for _, balance in rows]


@contextmanager
def polling(
    mysql: Server,
    redis_server: Server,
    folder: Path,
    views: str = VIEWS,
    tables: Sequence[str] = ("account",),
    settings: Mapping[str, str] | None = None,
) -> Iterator[Polled]:
    """`viewtail run` over these tables, each with 50 entities, by users that have the rights which polling needs."""
    for statement in (
        "DROP DATABASE IF EXISTS viewtail",
        "DROP DATABASE IF EXISTS bank",
        "CREATE DATABASE bank",
        "CREATE DATABASE viewtail",
        *(f"CREATE TABLE bank.{table} {COLUMNS}" for table in tables),
        "DROP USER IF EXISTS poller, keeper",
        "CREATE USER poller IDENTIFIED BY 'p'",
        "CREATE USER keeper IDENTIFIED BY 'k'",
        "GRANT SELECT ON bank.* TO poller",
        "GRANT SELECT ON performance_schema.* TO poller",
        "GRANT ALL ON viewtail.* TO keeper",
    ):
        ask(mysql, statement)
    redis.Redis(host="127.0.0.1", port=redis_server.port).flushall()
    at = f"127.0.0.1:{mysql.port}"
    all_settings = {
        **addresses(mysql, redis_server),
        "VIEWTAIL_SOURCE__URL": f"mysql://poller:p@{at}",
        "VIEWTAIL_SOURCE__MODE": "poll",
        "VIEWTAIL_MYSQL__URL": f"mysql://keeper:k@{at}/viewtail",
        **(settings or {}),
    }
    for table in tables:
        rows = ", ".join(f"('{table}.{number}', 1, {number})" for number in range(50))
        ask(mysql, f"INSERT INTO bank.{table} (entity_id, version, balance) VALUES {rows}")
    with running(folder, views, all_settings) as run:
        yield Polled(mysql, redis_server, run, tables)
