"""The table of the demo: 300 cities of GeoNames, and an application that goes on changing them."""

from __future__ import annotations

import csv
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql

TRANSACTIONS_PER_SECOND = 100
_REMEMBERED = 10_000  # changes: a hundred seconds of them
_SEED = 7

DDL = """CREATE TABLE {rows}.city (
  id INT UNSIGNED NOT NULL PRIMARY KEY COMMENT 'Number of GeoNames',
  name VARCHAR(200) NOT NULL COMMENT 'As GeoNames has it',
  other_names VARCHAR(400) NOT NULL COMMENT 'In other scripts, separated by commas',
  country CHAR(2) NOT NULL COMMENT 'ISO 3166 code of two letters',
  population INT UNSIGNED NOT NULL COMMENT 'People'
) COMMENT 'The largest cities of GeoNames'"""


@dataclass(frozen=True, slots=True)
class City:
    """What every view shows of a row."""

    country: str
    population: int


Cities = Mapping[int, City]  # by id


def cities() -> list[tuple[int, str, str, str, int]]:
    """(id, name, other names, country, population) of each city of the wheel's own file."""
    lines = Path(__file__).with_name("cities.csv").read_text(encoding="utf-8").splitlines()
    read = csv.DictReader(line for line in lines if not line.startswith("#"))
    return [(int(row["id"]), row["name"], row["other_names"], row["country"], int(row["population"])) for row in read]


def load(connection: pymysql.Connection[Any], rows: str) -> int:
    """Make the table in database `rows`, and fill it; returns how many rows it has."""
    found = cities()
    with connection.cursor() as cursor:
        cursor.execute(DDL.format(rows=rows))
        cursor.executemany(f"INSERT INTO {rows}.city VALUES (%s, %s, %s, %s, %s)", found)
    connection.commit()
    return len(found)


def table(connection: pymysql.Connection[Any], rows: str) -> dict[int, City]:
    """All rows, as committed."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT id, country, population FROM {rows}.city")
        found = {key: City(country, population) for key, country, population in cursor.fetchall()}
    connection.commit()
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """A committed change of a city: it has more people each time."""

    committed_at: float  # monotonic
    key: int
    population: int


class Application:
    """Writes from a thread of its own until `stop`."""

    def __init__(self, connect: Callable[[], pymysql.Connection[Any]], rows: str) -> None:
        self._connect, self._rows = connect, rows
        self._random = random.Random(_SEED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="application", daemon=True)
        self._error: BaseException | None = None
        self._changes: deque[Change] = deque(maxlen=_REMEMBERED)
        self.count = 0  # transactions
        self._thread.start()

    def changes(self) -> list[Change]:
        """The last ones, in their order."""
        self._require_well()
        return [*self._changes.copy()]  # at once: it goes on growing

    def stop(self) -> None:
        """Returns when the last transaction is committed."""
        self._stop.set()
        self._thread.join()
        self._require_well()

    def _require_well(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            connection = self._connect()
            try:
                self._write(connection)
            finally:
                connection.close()
        except BaseException as error:  # raised again in the thread that asks
            self._error = error

    def _write(self, connection: pymysql.Connection[Any]) -> None:
        known = table(connection, self._rows)
        keys, countries = [*known], sorted({city.country for city in known.values()})
        due_at = time.monotonic()
        with connection.cursor() as cursor:
            while not self._stop.is_set():
                key, more = self._random.choice(keys), self._random.randint(1, 5000)
                moves = self._random.random() < 0.1
                cursor.execute(
                    f"UPDATE {self._rows}.city SET population = population + %s, country = COALESCE(%s, country) "
                    "WHERE id = %s",
                    (more, self._random.choice(countries) if moves else None, key),
                )
                cursor.execute(f"SELECT population FROM {self._rows}.city WHERE id = %s", (key,))
                (population,) = cursor.fetchone() or (0,)
                connection.commit()
                self._changes.append(Change(time.monotonic(), key, population))
                self.count += 1
                due_at = max(due_at + 1 / TRANSACTIONS_PER_SECOND, time.monotonic() - 1)
                self._stop.wait(max(0.0, due_at - time.monotonic()))


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a store is behind the table."""

    rows: int
    oldest_s: float  # since the oldest change was committed that it does not show


def behind(found: Cities, changes: Iterable[Change], asked_at: float) -> Behind:
    """`found` was asked for at `asked_at` (monotonic): what was committed later may be missing."""
    oldest: dict[int, float] = {}
    for change in changes:
        shown = found.get(change.key)
        if change.committed_at < asked_at and (shown is None or shown.population < change.population):
            oldest.setdefault(change.key, change.committed_at)
    return Behind(len(oldest), asked_at - min(oldest.values(), default=asked_at))
