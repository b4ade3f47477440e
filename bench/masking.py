"""What masks cost: the same rows drained by a view of plain columns and by one whose columns are masked.

Each has a database of its own. The hashed text has 64 characters, so that both write values of one length; and the
plain ones come in no order, as addresses do and hashes always: an index takes rows in its own order in less time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from bench.lines import Line, by_turns
from bench.setting import ROWS_A_TRANSACTION, Place, Setting, Sizes, say

COST = 0.10  # of drain speed
_FAR = 2_654_435_761  # odd: each number has another one, far from its neighbour's
_TABLE = "CREATE TABLE bench.person (id BIGINT PRIMARY KEY, email VARCHAR(64) NOT NULL, phone VARCHAR(20), birth DATE)"
_VIEWS = """from viewtail import Entity, IndexTable


def of(**more):
    return [IndexTable("person", Entity("bench.person", **more), value=["email", "phone", "birth"])]


plain = of()
masked = of(masked={"email": "hash", "phone": "last4", "birth": "year"})
"""


@dataclass(eq=False)
class Masking:
    """The measurements, and what they gave."""

    setting: Setting
    sizes: Sizes
    rounds: int
    lines: list[Line] = field(default_factory=list)

    def measure(self) -> None:
        settings = {name: self._deployment(name) for name in ("plain", "masked")}
        (self.setting.folder / "views.py").write_text(_VIEWS)
        databases = [f"DROP DATABASE IF EXISTS {name}" for name in ("bench", *settings)]
        self.setting.run(*databases, "CREATE DATABASE bench", _TABLE, "DO 1")
        for setting in settings.values():  # of an empty table: what follows is only the stream
            setting.measured("fill", "mysql")
        place = self._written()
        work = f"drain {self.sizes.bulk:,} rows in 500s to MySQL, three columns masked"
        line = Line(work, "rows/s", "not masked", 1 - COST)
        self.lines.append(line)
        for number in range(self.rounds):
            say(f"masks, round {number + 1} of {self.rounds}")
            by_turns(line, *(partial(self._drain, settings[name], name, place) for name in settings))

    def _deployment(self, name: str) -> Setting:
        return self.setting.having(
            VIEWTAIL_VIEWS=f"views:{name}",
            VIEWTAIL_MYSQL__URL=f"{self.setting.mysql.url}/{name}",
            VIEWTAIL_MASKS__SECRET="a secret of the bench alone",
            VIEWTAIL_CLEANER__SHARE="0",
        )

    def _written(self) -> Place:
        place = self.setting.place()
        connection = self.setting.connect()
        with connection.cursor() as cursor:
            for first in range(0, self.sizes.bulk, ROWS_A_TRANSACTION):
                rows = ",".join(_row(number) for number in range(first, first + ROWS_A_TRANSACTION))
                cursor.execute(f"INSERT INTO bench.person VALUES {rows}")
        connection.close()
        self.setting.place()
        return place

    def _drain(self, setting: Setting, database: str, place: Place) -> float:
        """Into an empty index table: rows/s. Raises when rows are missing afterwards."""
        rows = self.sizes.bulk
        setting.run(f"DROP TABLE IF EXISTS {database}.person", "DO 1")
        seconds = setting.measured("drain", "mysql", str(rows), place[0], str(place[1]))["seconds"]
        whole = "email REGEXP '^[0-9a-f]{64}$'" if database == "masked" else "email LIKE '%@example.org'"
        (count,) = setting.run(f"SELECT COUNT(*) FROM {database}.person WHERE {whole}")
        if count != rows:
            raise RuntimeError(f"{database}: {count:,} rows of {rows:,} arrived")
        return rows / seconds


def _row(number: int) -> str:
    email = f"person.{number * _FAR % 2**32}".ljust(52, "x") + "@example.org"
    return f"({number}, '{email}', '{number:08}', '19{number % 100:02}-02-03')"
