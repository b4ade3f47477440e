"""What a MySQL's binlog holds, as MySQL's own mysqlbinlog reads it: the truth that a published log is compared with.

Nothing of viewtail is imported: a mistake of its own cannot excuse itself here. Only integers, plain texts and NULL.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import stack.mysql
from stack import Server
from tests.support.asking import ask

Row = tuple[Any, ...]
Place = tuple[str, int]  # a binlog file, and bytes from its start


@dataclass(frozen=True, slots=True)
class Change:
    """What one row event did to one key."""

    place: int  # file number << 32 | end of the event >> 4: as versions, less the epoch
    key: Row
    before: Row | None
    after: Row | None

    @property
    def op(self) -> str:
        return "c" if self.before is None else "d" if self.after is None else "u"


def end_of(server: Server) -> Place:
    """Where the binlog ends now."""
    file, end, *_ = ask(server, "SHOW BINARY LOG STATUS")[0]
    return str(file), int(end)


def place(at: Place) -> int:
    """As `Change.place` has it."""
    return int(at[0].rpartition(".")[2]) << 32 | at[1] >> 4


class Truth:
    """The row events behind a place, of the tables of one schema."""

    def __init__(self, server: Server, schema: str, begin: Place, table: str | None = None) -> None:
        """`table`: of that one only."""
        self._events: dict[str, list[tuple[int, list[tuple[Row | None, Row | None]]]]] = {}
        for file, text in _texts(server, begin):
            for end, name, rows in _events(text, schema, table):
                at = place((file, end))
                events = self._events.setdefault(name, [])
                if events and events[-1][0] == at:  # one event, as mysqlbinlog shows its rows
                    events[-1][1].extend(rows)
                else:
                    events.append((at, rows))

    def images(self, table: str) -> list[Row]:
        """Every row as it was written, in order."""
        return [after for _, rows in self._events.get(table, []) for _, after in rows if after is not None]

    def changes(
        self, table: str, key: Callable[[Row], Row], shows: Callable[[Row], bool] = lambda _: True
    ) -> list[Change]:
        """The changes of one table: those of one key in one event are one, from its first before to its last after."""
        found: list[Change] = []
        for at, rows in self._events.get(table, []):
            first: dict[Row, Row | None] = {}
            last: dict[Row, Row | None] = {}
            for before, after in rows:
                old = before if before is not None and shows(before) else None
                new = after if after is not None and shows(after) else None
                if old is not None and (new is None or key(old) != key(new)):
                    first.setdefault(key(old), old)
                    last[key(old)] = None
                if new is not None:
                    first.setdefault(key(new), old if old is not None and key(old) == key(new) else None)
                    last[key(new)] = new
            found += [Change(at, one, first[one], last[one]) for one in first if first[one] or last[one]]
        return found


def _texts(server: Server, begin: Place) -> Iterator[tuple[str, str]]:
    """By file, what mysqlbinlog shows of it from `begin` on."""
    files = [str(row[0]) for row in ask(server, "SHOW BINARY LOGS")]
    for number, file in enumerate(files[files.index(begin[0]) :]):
        start = [f"--start-position={begin[1]}"] if number == 0 else []
        argv = [*stack.mysql.tool("mysqlbinlog"), "--no-defaults", "-v", "--base64-output=DECODE-ROWS", *start]
        done = subprocess.run(
            [*argv, str(server.directory / "data" / file)], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        yield file, done.stdout


_HEADER = re.compile(r"^#\d{6} .*end_log_pos (\d+) .*(Write_rows|Update_rows|Delete_rows)")
_STATEMENT = re.compile(r"^### (INSERT INTO|UPDATE|DELETE FROM) `(.+)`\.`(.+)`$")
_VALUE = re.compile(r"^###   @\d+=(.*)$")
Found = tuple[int, str, list[tuple[Row | None, Row | None]]]


def _events(text: str, schema: str, only: str | None) -> Iterator[Found]:  # noqa: C901
    """The rows of each statement that mysqlbinlog shows; the header of their event stands before them."""
    ends: list[int] = []  # of the events whose rows come next
    is_in_rows = False
    images: dict[str, list[Any]] = {}
    current: list[Any] = []
    table, is_ours = "", False

    def row() -> list[Found]:
        if not is_ours or not images:
            return []
        before = tuple(images["WHERE"]) if "WHERE" in images else None
        after = tuple(images["SET"]) if "SET" in images else None
        assert len(ends) == 1, "mysqlbinlog does not say which rows are of which event: let statements be smaller"
        return [(ends[0], table, [(before, after)])]

    for line in text.splitlines():
        if found := _HEADER.match(line):
            if is_in_rows:
                yield from row()
                images, ends, is_in_rows = {}, [], False
            ends.append(int(found[1]))
        elif found := _STATEMENT.match(line):
            yield from row()
            is_ours = found[2] == schema and only in (None, found[3])
            table, images, is_in_rows = found[3], {}, True
        elif line in ("### SET", "### WHERE"):
            current = images[line[4:]] = []
        elif found := _VALUE.match(line):
            if is_ours:
                current.append(_value(found[1]))
        elif images:
            yield from row()
            images = {}
    yield from row()


def _value(text: str) -> Any:
    if text == "NULL":
        return None
    if text.startswith("'"):
        return text[1:-1]
    number = text.partition(" ")[0]
    return float(number) if "." in number else int(number)
