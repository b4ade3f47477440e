"""What writing and reading a message takes: microseconds of Python for a row of six ordinary columns.

    PYTHONPATH=. .venv/bin/python -m tests.support.envelope_speed

The best of many rounds, by turns; beside them what parsing the same bytes as JSON takes.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from decimal import Decimal

import orjson

from tests.support.envelopes import ID, ORIGIN, column, envelope, reader
from viewtail.changes.batches import Origin
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import KeptChange

ROWS, ROUNDS = 500, 150


def _table() -> Table:
    columns: tuple[Column, ...] = (
        ID,
        column(Kind.TEXT, "varchar(64)", "name", length=64),
        column(Kind.TEXT, "varchar(64)", "mail", length=64),
        column(Kind.DECIMAL, "decimal(10,2)", "price", precision=10, scale=2),
        column(Kind.DATETIME, "datetime", "at"),
        column(Kind.INTEGER, "int", "n"),
    )
    return Table(schema="shop", name="user", columns=columns, primary_key=("id",))


def _changes() -> dict[str, list[KeptChange]]:
    rows = [
        (n, f"name of {n}", f"user{n}@example.com", Decimal(f"{n}.50"), f"2024-01-{n % 28 + 1:02d} 03:04:05", n % 3)
        for n in range(ROWS)
    ]
    origins = [Origin(*ORIGIN[:3], start, 1) for start in range(0, 100 * ROWS, 100)]
    return {
        "insert": [KeptChange(row[:1], 1, "insert", None, row, ORIGIN) for row in rows],
        "update": [KeptChange(row[:1], 1, "update", row, row, ORIGIN) for row in rows],
        "delete and tombstone": [KeptChange(row[:1], 1, "delete", row, None, ORIGIN) for row in rows],
        "insert, an event each": [
            KeptChange(row[:1], n, "insert", None, row, origin)
            for n, (row, origin) in enumerate(zip(rows, origins, strict=True))
        ],
    }


def _works() -> dict[str, Callable[[], object]]:
    table, works = _table(), dict[str, Callable[[], object]]()
    for has in (False, True):
        made = envelope(table, with_schemas=has)
        for name, changes in _changes().items():
            label = f"{name}, with schemas" if has else name
            values = [value for _, value, _ in made.messages(changes, 0) if value is not None]
            read, loads = reader(table).read, orjson.loads
            works[f"write {label}"] = lambda made=made, changes=changes: made.messages(changes, 0)  # type: ignore[misc]
            works[f"read {label}"] = lambda read=read, values=values: [read(value) for value in values]  # type: ignore[misc]
            works[f"  parse {label}"] = lambda values=values, loads=loads: [loads(value) for value in values]  # type: ignore[misc]
    foreign = [value.replace(b'"sequence":"1"', b'"sequence":null') for value in values_of(table)]
    read = reader(table).read
    works["read Debezium's insert"] = lambda: [read(value) for value in foreign]
    return works


def values_of(table: Table) -> list[bytes]:
    """Messages of inserts."""
    return [value for _, value, _ in envelope(table).messages(_changes()["insert"], 0) if value is not None]


def main() -> None:
    """Prints a line for each."""
    works = _works()
    best = dict.fromkeys(works, 1e9)
    gc.disable()
    for _ in range(ROUNDS):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - began)
    for name, seconds in best.items():
        print(f"{name:45} {seconds / ROWS * 1e6:.2f} us")


if __name__ == "__main__":
    main()
