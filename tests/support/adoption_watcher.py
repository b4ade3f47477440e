"""Readers of what another tool keeps, while viewtail takes it over: whether what is right goes away or back."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import pymysql
import redis
from elasticsearch import ApiError, NotFoundError, TransportError

from tests.support.other_tools import ALIAS, SCHEMA, STORE, OtherTool

Values = tuple[Any, ...]
Shown = dict[str, dict[int, Values]]  # by place and key
MOVING = range(200, 390)  # ids of rows that change all the while
NEW = 20_000  # ids of rows that come and go are above
_AWAY = (pymysql.err.MySQLError, redis.RedisError, ApiError, TransportError, OSError)
_NUMBER = re.compile(r"w(\d+)")


def wanted(tool: OtherTool) -> Shown:
    """What the table says that the places show."""
    rows = tool.rows("TRUE")
    return {
        "table": {n: (email,) for n, _, email, *_ in rows if email is not None},
        "hash": {n: (name, email, visits) for n, name, email, visits, _ in rows},
        "card": {n: (name, visits, json.loads(about)) for n, name, _, visits, about in rows},
        "index": {n: (name, email, visits) for n, name, email, visits, _ in rows},
    }


def shown(tool: OtherTool, places: Iterable[str]) -> Shown:
    """All that readers find there."""

    def table() -> dict[int, Values]:
        rows = tool.ask(f"SELECT id, email FROM {STORE}.by_email WHERE email IS NOT NULL")
        return {row[0]: row[1:] for row in rows}

    def keys(prefix: str, read: Callable[[int], Values | None]) -> dict[int, Values]:
        numbers = [
            int(name.partition(b":")[2]) for name in tool.redis.scan_iter(f"{prefix}:*", 1000) if b"{" not in name
        ]
        return {number: values for number in numbers if (values := read(number)) is not None}

    def index() -> dict[int, Values]:
        tool.documents.indices.refresh(index=ALIAS)
        hits = tool.documents.search(index=ALIAS, size=10_000)["hits"]["hits"]
        return {int(hit["_id"]): _of_document(hit["_source"]) for hit in hits}

    one = readers(tool)
    whole = {"table": table, "hash": lambda: keys("person", one["hash"]), "card": lambda: keys("card", one["card"])}
    return {place: {**whole, "index": index}[place]() for place in places}


def readers(tool: OtherTool) -> dict[str, Callable[[int], Values | None]]:
    """By place, what a reader finds of an entity; None: nothing."""

    def row(number: int) -> Values | None:
        found = tool.ask(f"SELECT email FROM {STORE}.by_email WHERE id = %s AND email IS NOT NULL", number)
        return found[0] if found else None

    def fields(number: int) -> Values | None:
        found = {name.decode(): value.decode() for name, value in tool.redis.hgetall(f"person:{number}").items()}
        return (found["name"], found.get("email"), int(found["visits"])) if "name" in found else None

    def card(number: int) -> Values | None:
        found = json.loads(tool.redis.get(f"card:{number}") or "{}")
        return (found["name"], found["visits"], found.get("about")) if "name" in found else None

    def document(number: int) -> Values | None:
        try:
            source = tool.documents.get(index=ALIAS, id=str(number)).body["_source"]
        except NotFoundError:
            return None
        return _of_document(source) if "name" in source else None

    return {"table": row, "hash": fields, "card": card, "index": document}


def _of_document(source: Mapping[str, Any]) -> Values:
    return source["name"], source.get("email"), source["visits"]


class AdoptionWatcher:
    """Reads entities of `places` in a thread each, as long as it is entered.

    Rows of `fixed` do not change: once a reader found one as its row is, it is so for good. Those of MOVING have a
    number that grows: no reader may find a smaller one than before.
    """

    def __init__(self, tool: OtherTool, places: Iterable[str], fixed: Iterable[int]) -> None:
        self._reads = {place: read for place, read in readers(tool).items() if place in {*places}}
        self._wanted, self._fixed = wanted(tool), [*fixed]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=each) for each in self._reads.items()]
        self.counts = dict.fromkeys(self._reads, 0)
        self.went_away: list[str] = []

    def __enter__(self) -> AdoptionWatcher:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, place: str, read: Callable[[int], Values | None]) -> None:
        right, newest = set[int](), dict[int, int]()
        at = 0
        while not self._stop.wait(0.005):
            at += 1
            numbers = self._fixed if at % 2 else MOVING
            number = numbers[at * 37 % len(numbers)]
            try:
                values = read(number)
            except _AWAY:  # its server, for a while
                continue
            self.counts[place] += 1
            if at % 2 == 0:
                now = _progress(place, values)
                if now < newest.get(number, 0):
                    self.went_away.append(f"{place} {number}: {now} after {newest[number]}")
                newest[number] = now
            elif values == self._wanted[place].get(number):
                right.add(number)
            elif number in right:
                self.went_away.append(f"{place} {number}: {values}")


def _progress(place: str, values: Values | None) -> int:
    if values is None:
        return 0
    if place != "table":
        return int(values[1 if place == "card" else 2])
    number = _NUMBER.match(values[0])
    return int(number[1]) if number else 0


@contextmanager
def application(tool: OtherTool) -> Iterator[list[int]]:
    """Changes rows all the while, and waits for the server while that is away; yields what it committed."""
    stop, committed = threading.Event(), list[int]()

    def work() -> None:
        at = 0
        while not stop.wait(0.01):
            at += 1
            number = MOVING[at * 17 % len(MOVING)]
            changed = f"UPDATE {SCHEMA}.user SET visits = visits + 1, email = %s WHERE id = %s"
            with suppress(pymysql.err.MySQLError):
                tool.ask(changed, f"w{at}", number)
                if at % 10 == 0:
                    tool.insert([NEW + at])
                    tool.ask(f"DELETE FROM {SCHEMA}.user WHERE id = %s", NEW + at - 100)
                committed.append(at)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield committed
    finally:
        stop.set()
        thread.join()
