"""64 clients at once move money between accounts; each command is sent once or twice. No balance is ever negative."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pymysql

from examples.bank.accounts import TABLE, bank
from examples.screen import heading, line
from examples.stage import played, stage, verified
from stack.server import Server
from viewtail.demo.process import DemoError
from viewtail.entities import Command, CommandWorker, EventSourced, RefusedError

CLIENTS = 64
ACCOUNTS = 20
SENT_TWICE = 0.2  # of the commands


def main() -> int:
    """The exit code: 0 when every view equals its table, and the books do."""
    return played("bank", _play)


def _play() -> int:
    seconds = float(os.environ.get("BANK_LIVE_S", "10"))
    with stage({"mysql": "mysql", "redis": "redis"}, _prepared) as on:
        on.wait_until_well()
        accounts = bank()
        told = _live(accounts, seconds)
        _check(on.servers["mysql"], told)
        return verified(on, count=2)


def _prepared(servers: Mapping[str, Server]) -> Mapping[str, str]:
    settings = {
        "VIEWTAIL_SOURCE__URL": servers["mysql"].url,
        "VIEWTAIL_REDIS__URL": servers["redis"].url,
        "VIEWTAIL_VIEWS": "examples.bank.views:views",
    }
    os.environ.update(settings)  # the library reads them too
    bank().create()
    return settings


def _live(accounts: EventSourced, seconds: float) -> Counter[str]:
    """What the clients were told, by account: the cents that came and went. And counts of answers."""
    heading(f"{CLIENTS} clients, {ACCOUNTS} accounts, {seconds:.0f} s")
    told: Counter[str] = Counter()
    lock, until = threading.Lock(), time.monotonic() + seconds
    with accounts.worker() as worker, ThreadPoolExecutor(CLIENTS) as clients:
        for client in [clients.submit(_client, worker, until, told, lock, number) for number in range(CLIENTS)]:
            client.result()
    done = told.pop("done")
    line(f"{done:,} commands done ({done / seconds:,.0f}/s), {told.pop('refused'):,} refused: not enough money")
    line(f"{told.pop('repeated'):,} were sent again under their id, and got their first answer")
    return told


def _client(worker: CommandWorker, until: float, told: Counter[str], lock: threading.Lock, seed: int) -> None:
    chance, mine = random.Random(seed), Counter[str]()
    while time.monotonic() < until:
        name, cents = chance.choice(["deposit", "withdraw", "withdraw"]), chance.randint(1, 500)
        entity = f"account {chance.randrange(ACCOUNTS)}"
        command = Command(entity_id=entity, command_id=str(uuid.uuid4()), name=name, request={"cents": cents})
        try:
            answer = worker.submit(command).result()
        except RefusedError:
            mine["refused"] += 1
            continue
        mine["done"] += 1
        mine[entity] += cents if name == "deposit" else -cents
        if chance.random() < SENT_TWICE:
            again = worker.submit(command).result()
            if (again.response, again.version, again.is_repeated) != (answer.response, answer.version, True):
                raise AssertionError("the same command got another answer")
            mine["repeated"] += 1
    with lock:
        told.update(mine)


def _check(mysql: Server, told: Counter[str]) -> None:
    """Against the table, read with plain SQL."""
    heading("The books")
    with closing(pymysql.connect(host=mysql.host, port=mysql.port, user="root")) as connection:
        (negative,) = _one(connection, f"SELECT COUNT(*) FROM {TABLE} WHERE state->'$.balance' < 0")
        (gaps,) = _one(
            connection,
            f"SELECT COUNT(*) FROM (SELECT entity_id FROM {TABLE} GROUP BY entity_id "
            "HAVING COUNT(*) <> MAX(version) OR MIN(version) <> 1) found",
        )
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT entity_id, state->'$.balance' FROM {TABLE} a WHERE version = "
                f"(SELECT MAX(version) FROM {TABLE} b WHERE b.entity_id = a.entity_id)"
            )
            balances = {entity: int(balance) for entity, balance in cursor.fetchall()}
    line(f"{len(balances)} accounts, {sum(balances.values()):,} cents; {negative} negative balances in all events")
    wrong = [entity for entity in {*balances, *told} if balances.get(entity, 0) != told[entity]]
    if negative or gaps or wrong:
        raise DemoError(
            f"{negative} balances below 0, {gaps} accounts with gaps, {len(wrong)} not as clients were told"
        )


def _one(connection: pymysql.Connection[Any], statement: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()


if __name__ == "__main__":
    sys.exit(main())
