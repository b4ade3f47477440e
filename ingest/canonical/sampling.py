"""A sample of a table's rows, without reading the table.

Where the key by which the table is read in pages begins with a number: the rows at or behind random numbers between the
smallest and the largest. Elsewhere: its first rows and its last.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from changes.batches import Row
from changes.tables import Column, Kind, Table
from ingest.canonical.rows import fetch_rows, select_list
from servers.sessions import Connection, quote


def sampled(connection: Connection, table: Table, names: Sequence[str], count: int) -> list[Row]:
    """At most `count` different rows, with the columns of these names."""
    by_name = {column.name: column for column in table.columns}
    columns = [by_name[name] for name in names]
    paging = [by_name[name] for name in table.paging_key]
    selected = f"SELECT {select_list(columns)} FROM {quote(table.schema, table.name)}"
    found: dict[str, Row] = {}
    for behind in _statements(connection, table, paging, count):
        for row in fetch_rows(connection, f"{selected} {behind}", columns):
            found[repr(row)] = row
    connection.commit()
    return list(found.values())[:count]


def _statements(connection: Connection, table: Table, paging: Sequence[Column], count: int) -> list[str]:
    first = quote(paging[0].name)
    if paging[0].kind is not Kind.INTEGER:
        ends = [(half, order) for half, order in (((count + 1) // 2, "ASC"), (count // 2, "DESC")) if half]
        return [f"ORDER BY {', '.join(_ordered(paging, order))} LIMIT {half}" for half, order in ends]
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT MIN({first}), MAX({first}) FROM {quote(table.schema, table.name)}")
        (least, most) = cursor.fetchone() or (None, None)
    if least is None or most is None:
        return []
    at = sorted({random.randint(int(least), int(most)) for _ in range(count)})
    order = ", ".join(_ordered(paging, "ASC"))
    return [f"WHERE {first} >= {number:d} ORDER BY {order} LIMIT 1" for number in at]


def _ordered(paging: Sequence[Column], order: str) -> list[str]:
    return [f"{quote(column.name)} {order}" for column in paging]
