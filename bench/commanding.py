"""Commands to event-sourced entities, in a process of their own: what callers of a worker get, and bare statements.

`python -m bench.commanding worker ENTITIES CALLERS SECONDS` has a worker handle what so many callers send, each one
command after the other; `one ENTITIES SECONDS` handles a command a transaction by hand, on one connection; `insert
ENTITIES ROWS SECONDS` inserts ready-made events, so many a transaction; `create` makes the table. Prints one line of
JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
import uuid
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from viewtail import settings
from viewtail.entities import Command, EventSourced
from viewtail.servers.sessions import Connection, open_session

TABLE = "bench.account"
_WARM_S = 1.5  # before anything counts
_ROW = "('{entity}', {version}, '{command}', 'deposit', '{request}', '{response}', '{state}')"
_COLUMNS = "(entity_id, version, command_id, command_name, request, response, state)"


def deposit(state: Any, request: Any) -> tuple[Any, Any]:
    """A handler: reads and writes a state of a few members."""
    before = state or {"owner": "somebody", "balance": 0}
    after = {**before, "balance": before["balance"] + request["amount"], "last": request}
    return {"balance": after["balance"]}, after


@dataclass
class Found:
    """What was done while it counted."""

    began: float = 0.0  # when it began to count
    until: float = 0.0
    delays_ms: list[float] = field(default_factory=list)
    _processor_s: float = 0.0

    def start(self, seconds: float) -> None:
        self.began = time.perf_counter() + _WARM_S
        self.until = self.began + seconds

    def add(self, sent: float, count: int = 1) -> bool:
        """Commands that were sent together and are done now; whether there is time for more."""
        now = time.perf_counter()
        if now < self.began:
            self._processor_s = time.process_time()
            return True
        if now < self.until:
            self.delays_ms += [(now - sent) * 1000] * count
        return now < self.until

    def told(self) -> dict[str, float]:
        took = sorted(self.delays_ms)
        return {
            "rate": len(took) / (self.until - self.began),
            "p50_ms": took[len(took) // 2],
            "p99_ms": took[int(len(took) * 0.99)],
            "processor_us": (time.process_time() - self._processor_s) * 1e6 / len(took),
        }


async def by_worker(entities: int, callers: int, seconds: float) -> Found:
    """As a server of requests calls it: coroutines that wait for their commands."""
    found, run = Found(), uuid.uuid4().hex[:12]
    accounts = EventSourced(TABLE, {"deposit": deposit})

    async def call(number: int) -> None:
        chance, at, more = random.Random(number), 0, True
        while more:
            at += 1
            entity = f"e{chance.randrange(entities)}"
            command = Command(
                entity_id=entity, command_id=f"{run}.{number}.{at}", name="deposit", request={"amount": at}
            )
            sent = time.perf_counter()
            answer = await worker.answer(command)
            more = found.add(sent)
            assert not answer.is_repeated

    with accounts.worker() as worker:
        found.start(seconds)
        await asyncio.gather(*map(call, range(callers)))
    return found


def by_hand(connection: Connection, entities: int, seconds: float) -> Found:
    """What a program does without the library: reads the newest state, writes the event, commits."""
    found, run, at, more = Found(), uuid.uuid4().hex[:12], 0, True
    chance = random.Random(1)
    found.start(seconds)
    with connection.cursor() as cursor:
        while more:
            at += 1
            sent = time.perf_counter()
            entity, name, request = f"e{chance.randrange(entities)}", f"{run}.{at}", {"amount": at}
            cursor.execute(f"SELECT response FROM {TABLE} WHERE entity_id = %s AND command_id = %s", (entity, name))
            assert cursor.fetchone() is None, "it was handled before"
            cursor.execute(
                f"SELECT version, state FROM {TABLE} WHERE entity_id = %s ORDER BY version DESC LIMIT 1", (entity,)
            )
            version, state = cursor.fetchone() or (0, "null")
            response, state = deposit(orjson.loads(state), request)
            cursor.execute(
                f"INSERT INTO {TABLE} {_COLUMNS} VALUES (%s, %s, %s, %s, %s, %s, %s)",
                (
                    entity,
                    version + 1,
                    name,
                    "deposit",
                    *(orjson.dumps(one).decode() for one in (request, response, state)),
                ),
            )
            connection.commit()
            more = found.add(sent)
    return found


def by_insert(connection: Connection, entities: int, rows: int, seconds: float) -> Found:
    """The same events, ready-made: statements that only have to be sent, into the same table."""
    found, run, more = Found(), uuid.uuid4().hex[:12], True
    _, state = deposit(None, {"amount": 5})
    texts = [orjson.dumps(text).decode() for text in ({"amount": 5}, {"balance": 5}, state)]
    chance, versions = random.Random(1), dict[int, int]()
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT entity_id, MAX(version) FROM {TABLE} GROUP BY entity_id")
        versions = {int(name[1:]): version for name, version in cursor.fetchall()}
        statements = []
        for number in range(int((seconds + _WARM_S) * _MOST_RATE / rows)):
            some = []
            for at in range(rows):
                entity = chance.randrange(entities)
                versions[entity] = versions.get(entity, 0) + 1
                some.append(_values(f"e{entity}", versions[entity], f"{run}.{number}.{at}", texts))
            statements.append(f"INSERT INTO {TABLE} {_COLUMNS} VALUES {', '.join(some)}".encode())
        found.start(seconds)
        for statement in statements:
            sent = time.perf_counter()
            cursor.execute(statement)
            connection.commit()
            more = found.add(sent, rows)
            if not more:
                break
    if more:
        raise RuntimeError(f"{len(statements) * rows:,} ready-made events were not enough for {seconds:g} s")
    return found


_MOST_RATE = 100_000  # events a second


def _values(entity: str, version: int, command: str, texts: list[str]) -> str:
    request, response, state = texts
    return _ROW.format(entity=entity, version=version, command=command, request=request, response=response, state=state)


def main() -> None:
    what, *rest = sys.argv[1:]
    if what == "create":
        EventSourced(TABLE, {}).create()
        print("{}", flush=True)
        return
    if what == "worker":
        found = asyncio.run(by_worker(int(rest[0]), int(rest[1]), float(rest[2])))
    else:
        address = replace(settings.load(None, os.environ).primary_address(), database=None)
        with closing(open_session(address, role="store")) as connection:
            if what == "one":
                found = by_hand(connection, int(rest[0]), float(rest[1]))
            else:
                found = by_insert(connection, int(rest[0]), int(rest[1]), float(rest[2]))
    print(json.dumps(found.told()), flush=True)


if __name__ == "__main__":
    main()
