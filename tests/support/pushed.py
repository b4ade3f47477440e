"""A bank whose worker pushes to views in MySQL and Redis, in this process, beside a `viewtail run` that fills them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import Run, addresses, in_this_process, running, wait_for
from viewtail import settings
from viewtail.entities import Answer, Command, CommandWorker, EventSourced

VIEWS = """
import orjson

from viewtail import Entity, IndexTable, RedisHash, RedisJson, RedisSet

account = Entity("bank.account", key="entity_id", version="version", append_only=True, order="event_id")


def balance(row):
    return row["state"]["balance"]


def shown(row):
    return {"balance": row["state"]["balance"], "by": row["command_name"], "at": row["committed_at"]}


def is_open(row):
    return not row["state"].get("is_closed")


views = [
    IndexTable("account_by_balance", account, values={"balance": "BIGINT"}, of=balance, where=is_open, push=True),
    IndexTable("account_by_tag", account, value="tags", each="VARCHAR(20)", of=lambda row: row["state"]["tags"],
               push=True),
    RedisJson("account", account, document=shown, where=is_open, push=True),
    RedisHash("account_state", account, fields=["state", "command_id"], push=True),
    RedisSet("by_balance", account, key="balance:{command_name}", push=True),
    IndexTable("account_by_command", account, value="command_id"),
]
"""


def deposit(state: Any, request: Any) -> tuple[Any, Any]:
    state = state or {"balance": 0, "tags": []}
    balance = state["balance"] + request["amount"]
    return {"balance": balance}, {**request.get("more", {}), "balance": balance, "tags": [f"t{balance}", "all"]}


def close(state: Any, _: Any) -> tuple[Any, Any]:
    return None, {**state, "is_closed": True}


class Pushed:
    """Args:
    run: of the views.
    """

    def __init__(self, mysql: Server, cache: Server, run: Run, environment: Mapping[str, str]) -> None:
        self.mysql, self.run = mysql, run
        self.redis = redis.Redis(host="127.0.0.1", port=cache.port)
        handlers = {"deposit": deposit, "close": close}
        self.accounts = EventSourced("bank.account", handlers, settings=settings.load(None, dict(environment)))
        self.sent = 0

    def command(self, entity: str, amount: int = 1, name: str = "deposit", **more: Any) -> Command:
        self.sent += 1
        request = {"amount": amount, "more": more}
        return Command(entity_id=entity, command_id=f"c{self.sent}", name=name, request=request)

    def send(self, worker: CommandWorker, entity: str, amount: int = 1, **more: Any) -> Answer:
        return worker.submit(self.command(entity, amount, **more)).result(20)

    def client(self) -> pymysql.Connection[Any]:
        """A session beside the worker's."""
        return pymysql.connect(host="127.0.0.1", port=self.mysql.port, user="root")

    def wait_until_filled(self) -> None:
        """All views, by pipelines that run."""
        of_views = "SELECT DISTINCT state FROM viewtail.view"
        wait_for("the views are filled", lambda: self.run.is_well() and ask(self.mysql, of_views) == [("filled",)])

    # -- what the views show --------------------------------------------------------------------------------------

    def indexed(self, entity: str) -> tuple[Any, int] | None:
        """Its balance and the version of it."""
        rows = ask(self.mysql, f"SELECT balance, version FROM viewtail.account_by_balance WHERE entity_id = '{entity}'")
        return (rows[0][0], rows[0][1] // 2) if rows else None

    def unpushed(self, entity: str) -> int | None:
        rows = ask(self.mysql, f"SELECT version FROM viewtail.account_by_command WHERE entity_id = '{entity}'")
        return rows[0][0] // 2 if rows else None

    def document(self, entity: str) -> Any:
        return json.loads(self.redis.get(f"account:{entity}") or b"null")

    def everything(self, entity: str) -> tuple[Any, ...]:
        """All that the pushed views have of it, as it is stored."""
        tags = ask(self.mysql, f"SELECT * FROM viewtail.account_by_tag WHERE entity_id = '{entity}' ORDER BY 1, 2")
        places = ("deposit", "close")
        return (
            ask(self.mysql, f"SELECT * FROM viewtail.account_by_balance WHERE entity_id = '{entity}'"),
            tags,
            ask(self.mysql, f"SELECT * FROM viewtail.account_by_tag__version WHERE entity_id = '{entity}'"),
            self.redis.get(f"account:{entity}"),
            self.redis.get(f"{{account:{entity}}}:t"),
            self.redis.hgetall(f"account_state:{entity}"),
            [self.redis.sismember(f"balance:{name}", entity) for name in places],
        )

    def shows(self, entity: str, balance: int, version: int) -> bool:
        """Whether both stores do."""
        found = (self.document(entity) or {}).get("balance")
        assert (self.indexed(entity), found) == ((balance, version), balance)
        return True

    def wait_until_shown(self, entity: str, balance: int, version: int, within_s: float = 20) -> None:
        wait_for(f"{entity} is shown", lambda: self.shows(entity, balance, version), within_s)


@contextmanager
def pushed(
    mysql: Server,
    cache: Server,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    views: str = VIEWS,
    more: Mapping[str, str] | None = None,
) -> Iterator[Pushed]:
    """Views of an account that is there, filled; the run goes on. Workers of this process push to them."""
    environment = {**addresses(mysql, cache), **(more or {})}
    for database in ("bank", "viewtail"):
        ask(mysql, f"DROP DATABASE IF EXISTS {database}")
    redis.Redis(host="127.0.0.1", port=cache.port).flushall()
    EventSourced("bank.account", {}, settings=settings.load(None, environment)).create()
    with running(folder, views, environment) as run:
        in_this_process(run, monkeypatch)
        found = Pushed(mysql, cache, run, environment)
        monkeypatch.setenv("VIEWTAIL_VIEWS", "none:views")  # this worker pushes nothing
        before = EventSourced(
            "bank.account",
            found.accounts.handlers,
            settings=settings.load(None, {**environment, "VIEWTAIL_VIEWS": "none:views"}),
        )
        monkeypatch.delenv("VIEWTAIL_VIEWS")
        with before.worker() as worker:
            found.send(worker, "first", 7)
        found.wait_until_shown("first", 7, 1, 60)
        found.wait_until_filled()
        yield found


@contextmanager
def held(worker: CommandWorker) -> Iterator[None]:
    """Nothing is pushed meanwhile; what is handed over waits."""
    pushers: Any = worker._pushes._pushing
    is_over = threading.Event()
    before = [pusher._push for pusher in pushers]
    for pusher, push in zip(pushers, before, strict=True):

        def waits(handed: Any, push: Any = push) -> None:
            is_over.wait(30)
            push(handed)

        pusher._push, pusher._send = waits, lambda _: None
    try:
        yield
    finally:
        for pusher, push in zip(pushers, before, strict=True):
            pusher._push = push
            del pusher._send
        is_over.set()
