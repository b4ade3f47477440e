"""From nothing to `jogchat: 12 views equal their tables`: a MySQL, tables and cells, writers, and `viewtail run`."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

from examples import comparing, running
from examples.jogchat.views import INDEXED
from examples.screen import heading, line
from examples.stage import Stage, fill, judge, played, stage
from stack.server import Server
from viewtail import settings as viewtail_settings
from viewtail.cells import Cells
from viewtail.demo.process import DemoError

ROWS = 400  # of each table at first
_NEWEST = (
    "SELECT row_key, body FROM jogchat.cell c WHERE column_name = %s AND ref_key = (SELECT MAX(ref_key) "
    "FROM jogchat.cell d WHERE d.row_key = c.row_key AND d.column_name = c.column_name)"
)


def main() -> int:
    """The exit code: 0 when every view equals its table."""
    return played("jogchat", _play)


def _play() -> int:
    with ExitStack() as stopping:
        prepared: list[_Writer] = []

        def prepare(started: Mapping[str, Server]) -> Mapping[str, str]:
            settings = running.settings([*started.values()], "examples.jogchat.views:views")
            cells = Cells("jogchat.cell", settings=viewtail_settings.load(None, settings))
            stopping.callback(cells.close)
            connection = stopping.enter_context(closing(running.connected(started["mysql"])))
            prepared.append(_Writer(connection, cells))
            prepared[0].fill()
            return settings

        with stage({"mysql": "mysql"}, prepare) as on:
            return _phases(on, prepared[0])


def _phases(on: Stage, writer: _Writer) -> int:
    heading("Filling the index tables")
    views = [view for view, *_ in _views()]
    fill(on.run, writer.connection, {f"mysql:{view}": ROWS for view in views})
    live_s = max(1.0, float(os.environ.get("DEMO_LIVE_S", "10")))
    heading(f"Writing for {live_s:.0f} s")
    until = time.monotonic() + live_s
    while time.monotonic() < until:
        writer.write()
    line(f"{writer.cell_count} cells were put, a quarter of them older than what was there; {writer.row_count} rows")
    for view in views:
        running.output_of(["wait", f"mysql:{view}"], on.settings)
    heading("Looking something up")
    email = writer.last_email
    answer = json.loads(running.output_of(["find", "mysql:index_users_email", email, "--json"], on.settings))
    line(f"viewtail find mysql:index_users_email {email}: {len(answer.get('rows', answer))} row")
    heading("Every view against its table")
    if wrong := judge(_compared(writer.connection)):
        raise DemoError(f"these differ: {', '.join(wrong)}")
    return len(views)


def _views() -> Iterator[tuple[str, str, str, bool]]:
    """Name, table, column, and whether it is over cells."""
    for table, columns in INDEXED.items():
        for column in columns:
            yield f"index_{table}_{column}", table, column, False
            yield f"cells_index_{table}_{column}", table, column, True


class _Writer:
    """Writes plain tables and cells, as two deployments of one application would."""

    def __init__(self, connection: Any, cells: Cells) -> None:
        self.connection, self._cells = connection, cells
        self._chance = random.Random(7)
        self._refs: dict[tuple[str, int], int] = {}
        self.row_count = self.cell_count = 0
        self.last_email = ""

    def fill(self) -> None:
        self._execute("CREATE DATABASE jogchat")
        self._cells.create()
        for table, columns in INDEXED.items():
            self._execute(ddl(table, columns))
            for number in range(ROWS):
                self._put(table, number)
                self._insert(table, number)

    def write(self) -> None:
        table, number = self._chance.choice(sorted(INDEXED)), self._chance.randrange(2 * ROWS)
        self._put(table, number)
        if self._chance.random() < 0.2:
            self._execute(f"DELETE FROM jogchat.{table} WHERE id = {number}")
        else:
            self._insert(table, number)

    def _insert(self, table: str, number: int) -> None:
        body = self._body(table, number)
        marks = ", ".join(["%s"] * (len(body) + 1))
        self._execute(f"REPLACE INTO jogchat.{table} (id, {', '.join(body)}) VALUES ({marks})", number, *body.values())
        self.row_count += 1
        self.last_email = body.get("email", self.last_email)

    def _put(self, table: str, number: int) -> None:
        """A newer cell as a rule; now and then one that comes late, under a ref key below the newest."""
        newest = self._refs.get((table, number), 0)
        is_late = newest > 0 and self._chance.random() < 0.25
        ref = newest - self._chance.randint(1, 9) if is_late else newest + 10
        if self._cells.get_cell(str(number), table, ref) is None:
            self._cells.put_cell(str(number), table, ref, self._body(table, number))
            self.cell_count += 1
        self._refs[table, number] = max(ref, newest)

    def _body(self, table: str, number: int) -> dict[str, str]:
        word = f"{self._chance.randrange(1000)}"
        if table == "users":
            return {"username": f"jogger {number}", "email": f"{number}.{word}@example.org"}
        return {"name": f"{table} {number} {word}", "city": self._chance.choice(("Oslo", "Lima", "Kyoto", "Accra"))}

    def _execute(self, statement: str, *values: object) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, values)
        self.connection.commit()


def _compared(connection: Any) -> Iterator[tuple[str, int, list[str]]]:
    """(view, rows compared, differences), by plain SELECTs."""
    for view, table, column, is_over_cells in _views():
        if is_over_cells:
            rows = {key: json.loads(body)[column] for key, body in _asked(connection, _NEWEST, table)}
            index = f"SELECT row_key, {column} FROM viewtail.{view} WHERE {column} IS NOT NULL"
        else:
            rows = {str(key): value for key, value in _asked(connection, f"SELECT id, {column} FROM jogchat.{table}")}
            index = f"SELECT id, {column} FROM viewtail.{view} WHERE {column} IS NOT NULL"
        shown = {str(key): {column: value} for key, value in _asked(connection, index)}
        wanted = {key: {column: value} for key, value in rows.items()}
        yield view, len(wanted), comparing.differences(wanted, shown)


def _asked(connection: Any, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        rows = list(cursor.fetchall())
    connection.commit()
    return rows


def ddl(table: str, columns: tuple[str, ...]) -> str:
    """Return the statement that makes a plain table; its name is the one that the cells have there."""
    named = ",\n".join(f"{column} VARCHAR(190) COMMENT 'As the application writes it'" for column in columns)
    indexes = ",\n".join(f"KEY {column}_idx ({column})" for column in columns)
    return (
        f"-- viewtail: ignore VT102\nCREATE TABLE jogchat.{table} (\n"
        f"id INT PRIMARY KEY COMMENT 'Compact key',\n{named},\n{indexes}\n"
        ") COMMENT 'The newest state of each, as a plain table'"
    )


if __name__ == "__main__":
    sys.exit(main())
