"""SELECTs of related rows for many rows at once, each row with what groups it under the row that it belongs to.

A first hop by value needs the values alone; else the server joins from the rows above, which are named by their keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from ingest.canonical.rows import check_numbers, fetch_bounded, select_list
from projectors.derived.tree import Columns, Hop, Node, Numbers, group_columns
from viewtail.changes.batches import Row
from viewtail.changes.tables import Column, Table
from viewtail.changes.writes import Key
from viewtail.servers.literals import rows_with, where_all
from viewtail.servers.sessions import Connection, quote

ROWS_AT_ONCE = 50_000  # of a table, in memory
VALUES_A_QUERY = 6_000  # in a list of keys: with more a MySQL may read the whole table (range_optimizer_max_mem_size)
BYTES_AT_ONCE = 32 << 20


class TooManyRowsError(Exception):
    """More related rows than are read at once: ask for fewer rows' ones."""


def child_rows(connection: Connection, node: Node, groups: Sequence[Key]) -> list[Row]:
    """The rows of a node for some groups, each behind what groups it. Raises TooManyRowsError, source errors."""
    most = ROWS_AT_ONCE + node.limit + 1
    order = ", ".join(f"{quote(column.name)}{' DESC' * descends}" for column, descends in node.order)
    behind = (f" ORDER BY {order}" if order else "") + f" LIMIT {most}"
    rows: list[Row] = []
    for some in _few(groups):
        source, keys = _joined(node.hops, some)
        columns = (*keys, *node.read)
        rows += _rows(connection, f"SELECT {select_list(columns)} FROM {source}{behind}", columns, most - len(rows))
    return rows


def number_rows(connection: Connection, numbers: Numbers, groups: Sequence[Key]) -> list[Row]:
    """The numbers of some groups, each behind its group, and none of one without rows.

    Raises TooManyRowsError, source errors.
    """
    rows: list[Row] = []
    for some in _few(groups):
        rows += _some_numbers(connection, numbers, some)
    return rows


def _few(groups: Sequence[Key]) -> Iterator[Sequence[Key]]:
    count = VALUES_A_QUERY // len(groups[0])
    return (groups[at : at + count] for at in range(0, len(groups), count))


def _some_numbers(connection: Connection, numbers: Numbers, groups: Sequence[Key]) -> list[Row]:
    source, keys = _joined(numbers.hops, groups, "" if numbers.condition is None else numbers.condition.sql)
    names = ", ".join(quote(key.name) for key in keys)
    columns = [replace(column, name=_name("n", at)) for at, (_, column) in enumerate(numbers.numbers)]
    sums = "".join(
        f", {sql} AS {quote(column.name)}" for (sql, _), column in zip(numbers.numbers, columns, strict=True)
    )
    every = (*keys, *columns)
    inner = f"SELECT {names}{sums} FROM {source} GROUP BY {names}"
    statement = f"SELECT {select_list(every)} FROM ({inner}) g"
    return _rows(connection, statement, every, ROWS_AT_ONCE)


def _rows(connection: Connection, statement: str, columns: Sequence[Column], most: int) -> list[Row]:
    rows, is_cut = fetch_bounded(connection, statement, columns, BYTES_AT_ONCE, partial(check_numbers, columns))
    if is_cut or len(rows) >= most:
        raise TooManyRowsError
    return rows


def _joined(hops: Sequence[Hop], groups: Sequence[Key], condition: str = "") -> tuple[str, Columns]:
    """What comes behind FROM, and the columns of it that tell a row's group."""
    first = hops[0]
    keys = group_columns(first)
    if first.is_by_value:
        where = rows_with(first.far_on, groups)
        if len(hops) == 1:
            return f"{_of(first.far)}{where_all(where, condition)}", first.far_on
        keys = first.far_on
        source = _columns_of(first.far, keys, hops[1].near_on, where)
        hops = hops[1:]
    else:
        source = _columns_of(first.near, keys, first.near_on, rows_with(keys, groups))
    named = _named(keys)
    for hop, following in pairwise(hops):
        kept = ", ".join(f"p.{quote(column.name)}" for column in named)
        source = f"SELECT {kept}{_joining('t.', following.near_on)} FROM {_join(source, hop)}"
    return f"{_join(source, hops[-1])}{where_all(condition)}", named


def _columns_of(table: Table, keys: Columns, joining: Columns, where: str) -> str:
    """The SELECT of a table's rows with what groups them, and the values by which further rows are found."""
    named = zip(keys, _named(keys), strict=True)
    selected = ", ".join(f"{quote(column.name)} AS {quote(alias.name)}" for column, alias in named)
    return f"SELECT {selected}{_joining('', joining)} FROM {_of(table)}{where_all(where)}"


def _joining(prefix: str, columns: Columns) -> str:
    return "".join(f", {prefix}{quote(column.name)} AS {quote(_name('j', at))}" for at, column in enumerate(columns))


def _join(source: str, hop: Hop) -> str:
    equal = " AND ".join(f"t.{quote(column.name)} = p.{quote(_name('j', at))}" for at, column in enumerate(hop.far_on))
    return f"({source}) p STRAIGHT_JOIN {_of(hop.far)} t ON {equal}"


def _named(keys: Columns) -> Columns:
    return tuple(replace(column, name=_name("k", at)) for at, column in enumerate(keys))


def _name(kind: str, at: int) -> str:
    """Name a column as no table does."""
    return f"viewtail {kind}{at}"


def _of(table: Table) -> str:
    return quote(table.schema, table.name)
