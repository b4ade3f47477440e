"""From nothing to `jogchat: 12 views equal their tables`: a MySQL, tables and cells, writers, and `viewtail run`."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any, NoReturn

import pymysql

import stack
from examples.demo import comparing, running, servers
from examples.demo.running import DemoError, Run
from examples.demo.screen import heading, line
from examples.jogchat.views import INDEXED
from viewtail import settings as viewtail_settings
from viewtail.cells import Cells
from viewtail.servers.sessions import PlaceholderCursor

ROWS = 400  # of each table at first
FILL_TIMEOUT_S = 120.0
_NEWEST = (
    "SELECT row_key, body FROM jogchat.cell c WHERE column_name = %s AND ref_key = (SELECT MAX(ref_key) "
    "FROM jogchat.cell d WHERE d.row_key = c.row_key AND d.column_name = c.column_name)"
)


def main() -> int:
    """0: every view equals its table. 1: one does not, or it could not go on. 130: interrupted."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    directory = servers.directory(is_kept=False)
    with ExitStack() as stopping:
        stopping.callback(shutil.rmtree, directory, ignore_errors=True)
        try:
            heading("1  A real MySQL")
            server = stack.mysql.prepare(directory / "mysql")
            server.start()
            stopping.callback(server.stop)
            line(server.url)
            chosen = running.settings([server], "examples.jogchat.views:views")
            connection: Any = stopping.enter_context(closing(pymysql.connect(**_login(server.port))))
            cells = Cells("jogchat.cell", settings=viewtail_settings.load(None, chosen))
            stopping.callback(cells.close)
            writer = _Writer(connection, cells)
            writer.fill()
            run = Run(directory, chosen, stays=False)
            stopping.callback(run.stop)
            return _phases(run, chosen, connection, writer)
        except (DemoError, stack.StackError) as error:
            print(f"\njogchat: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\njogchat: interrupted; everything it started is stopped", file=sys.stderr)
            return 130


def _phases(run: Run, chosen: Mapping[str, str], connection: Any, writer: _Writer) -> int:
    heading("2  Filling the index tables")
    views = [view for view, *_ in _views()]
    for _ in running.fills(run, connection, len(views), FILL_TIMEOUT_S):
        pass
    line(f"{len(views)} views are filled")
    live_s = max(1.0, float(os.environ.get("DEMO_LIVE_S", "10")))
    heading(f"3  Writing for {live_s:.0f} s")
    until = time.monotonic() + live_s
    while time.monotonic() < until:
        writer.write()
    line(f"{writer.cell_count} cells were put, a quarter of them older than what was there; {writer.row_count} rows")
    for view in views:
        running.output_of(["wait", f"mysql:{view}"], chosen)
    heading("4  Looking something up")
    email = writer.last_email
    found = json.loads(running.output_of(["find", "mysql:index_users_email", email, "--json"], chosen))
    line(f"viewtail find mysql:index_users_email {email}: {len(found.get('rows', found))} row")
    heading("5  Every view against its table")
    wrong = [view for view, count, differing in _compared(connection) if not _told(view, count, differing)]
    line("")
    if wrong:
        print(f"jogchat: {', '.join(wrong)} differ")
        return 1
    print(f"jogchat: {len(views)} views equal their tables")
    return 0


def _views() -> Iterator[tuple[str, str, str, bool]]:
    """Name, table, column, and whether it is over cells."""
    for table, columns in INDEXED.items():
        for column in columns:
            yield f"index_{table}_{column}", table, column, False
            yield f"cells_index_{table}_{column}", table, column, True


class _Writer:
    """Writes plain tables and cells, as two deployments of one application would."""

    def __init__(self, connection: Any, cells: Cells) -> None:
        self._connection, self._cells = connection, cells
        self._chance = random.Random(7)
        self._refs: dict[tuple[str, int], int] = {}
        self.row_count = self.cell_count = 0
        self.last_email = ""

    def fill(self) -> None:
        self._execute("CREATE DATABASE jogchat")
        self._cells.create()
        for table, columns in INDEXED.items():
            named = ", ".join(f"{column} VARCHAR(190)" for column in columns)
            self._execute(f"CREATE TABLE jogchat.{table} (id INT PRIMARY KEY, {named}, {_index(columns)})")
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
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)
        self._connection.commit()


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


def _told(view: str, count: int, differing: list[str]) -> bool:
    line(f"{view:<28} {count:>5} rows: {'equal' if not differing else 'DIFFERENT'}")
    for one in differing:
        line(f"    {one}")
    return not differing


def _asked(connection: Any, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        rows = list(cursor.fetchall())
    connection.commit()
    return rows


def _index(columns: tuple[str, ...]) -> str:
    return ", ".join(f"KEY {column}_idx ({column})" for column in columns)


def _login(port: int) -> dict[str, Any]:
    fresh = "SET transaction_isolation = 'READ-COMMITTED'"
    login = {"host": "127.0.0.1", "port": port, "user": "root", "charset": "utf8mb4", "init_command": fresh}
    return {**login, "cursorclass": PlaceholderCursor}  # viewtail's status is read over this session, too


def _interrupt(*_: object) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT):  # a second one must not end the cleaning up
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
