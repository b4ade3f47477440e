"""A sample of a table's rows, without reading the table.

A small table is read whole. Of a larger one, where the key by which it is read in pages begins with a number: the rows
at or behind random numbers between the smallest and the largest. Where keys have gaps, several numbers lead to one row:
then longer runs of rows behind such numbers, and at last its first rows. Elsewhere: its first rows and its last.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from ingest.canonical.rows import expressions_of, fetch_rows, select_of
from viewtail.changes.batches import Row
from viewtail.changes.tables import Column, Kind, Table
from viewtail.servers.literals import where_all
from viewtail.servers.sessions import Connection, quote

MOST_TABLES = 20  # of a pattern
ROUNDS = 5  # of random numbers
LONGER = 4  # times as long as in the round before are the runs of rows behind them


def sampled(connection: Connection, table: Table, names: Sequence[str], count: int, only: str = "") -> list[Row]:
    """Read at most `count` different rows that meet the condition `only`, with the columns of these names."""
    if table.parts:
        return _of_some_parts(connection, table, names, count, only)
    by_name = {column.name: column for column in table.columns}
    columns = [by_name[name] for name in names]
    paging = [by_name[name] for name in table.paging_key if name not in table.of_braces]
    selected = select_of(table, expressions_of(table, columns), "")
    every = where_all(only)
    rows_by_text: dict[str, Row] = {}

    def read(behind: str) -> None:
        for row in fetch_rows(connection, f"{selected} {behind}", columns):
            rows_by_text[repr(row)] = row

    read(f"{every} {_in_order(paging, 'ASC')} LIMIT {count + 1:d}")
    if len(rows_by_text) > count:
        rows_by_text.clear()
        for behind in _behind(connection, table, paging, count, only):
            read(behind)
            if len(rows_by_text) >= count:
                break
    connection.commit()
    return list(rows_by_text.values())[:count]


def _of_some_parts(connection: Connection, table: Table, names: Sequence[str], count: int, only: str) -> list[Row]:
    parts = random.sample(table.parts, min(len(table.parts), MOST_TABLES))
    a_table = -(-count // len(parts))
    return [row for part in parts for row in sampled(connection, table.at(part), names, a_table, only)][:count]


def _behind(connection: Connection, table: Table, paging: Sequence[Column], count: int, only: str) -> Iterator[str]:
    first, every = quote(paging[0].name), where_all(only)
    if paging[0].kind is not Kind.INTEGER:
        yield f"{every} {_in_order(paging, 'ASC')} LIMIT {(count + 1) // 2:d}"
        if count > 1:
            yield f"{every} {_in_order(paging, 'DESC')} LIMIT {count // 2:d}"
        return
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT MIN({first}), MAX({first}) FROM {quote(table.schema, table.name)}")
        (least, most) = cursor.fetchone() or (None, None)
    if least is None or most is None:
        return
    run = 1
    for _ in range(ROUNDS):
        for _ in range(-(-count // run)):
            number = random.randint(int(least), int(most))
            yield f"{where_all(only, f'{first} >= {number:d}')} {_in_order(paging, 'ASC')} LIMIT {run:d}"
        run *= LONGER
    yield f"{every} {_in_order(paging, 'ASC')} LIMIT {count:d}"


def _in_order(paging: Sequence[Column], order: str) -> str:
    return f"ORDER BY {', '.join(f'{quote(column.name)} {order}' for column in paging)}"
