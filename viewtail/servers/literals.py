"""SQL text for MySQL: values in viewtail's forms (docs/types.md) as literals, and back; pages by key, rows by key.

The literals count on what every session of viewtail sets: utf8mb4, and an sql_mode without NO_BACKSLASH_ESCAPES. Inside
a quoted string only the backslash and the quote are special then; everything else, NUL included, stands for itself
(MySQL manual, "String Literals"). A collation may take other keys for equal ones: whoever asks by key compares what
comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from viewtail.changes.tables import Column, Kind
from viewtail.servers.sessions import quote

_TEXTS = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET})
_LISTED = frozenset({Kind.BYTES, Kind.TEXT, Kind.DECIMAL, Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})
_TIMES = frozenset({Kind.DATE, Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})


def literal(value: Any, column: Column) -> str:
    """The literal of one value; NULL for None."""
    if value is None:
        return "NULL"
    if column.kind in _TEXTS:
        escaped = value.replace("\\", "\\\\").replace("'", "''")
        return f"'{escaped}'"
    if column.kind in _TIMES:
        return f"'{value}'"
    if column.kind is Kind.BYTES:
        return f"X'{value.hex()}'"
    if column.kind is Kind.DECIMAL:
        return f"{value:f}"
    if column.kind in (Kind.FLOAT, Kind.DOUBLE):
        # With an exponent, so that MySQL reads a DOUBLE and not a DECIMAL (which has no -0).
        text = repr(value)
        return text if "e" in text else text + "e0"
    return f"{value}"


def equals(columns: Sequence[Column], values: Sequence[Any]) -> str:
    """The condition that columns have these values."""
    pairs = zip(columns, values, strict=True)
    return " AND ".join(f"{quote(column.name)} = {literal(value, column)}" for column, value in pairs)


def exactly(column: Column, value: str | int) -> str:
    """The condition that a column of integers or texts has this value and no other, whatever its collation says."""
    same = rows_with([column], [[value]])
    if column.kind is Kind.INTEGER:
        return same
    assert isinstance(value, str)
    return f"{same} AND CAST(CONVERT({quote(column.name)} USING utf8mb4) AS BINARY) = X'{value.encode().hex()}'"


def beyond(columns: Sequence[Column], after: Sequence[Any]) -> str:
    """The condition `(columns) > (after)`, expanded: MySQL reads far too much for the row constructor."""
    return _compared(columns, after, ">", ">")


def up_to(columns: Sequence[Column], last: Sequence[Any]) -> str:
    """The condition `(columns) <= (last)`, expanded as `beyond` is."""
    return _compared(columns, last, "<", "<=")


def within(columns: Sequence[Column], first: Sequence[Any], last: Sequence[Any]) -> str:
    """The condition that keys are from `first` to `last`, both included."""
    same = 0  # leading columns with one value, and only those behind them have a range
    while same < len(columns) - 1 and first[same] == last[same]:
        same += 1
    fixed = [equals(columns[:same], first[:same])] if same else []
    behind = columns[same:]
    return " AND ".join([*fixed, _compared(behind, first[same:], ">", ">="), up_to(behind, last[same:])])


def _compared(columns: Sequence[Column], bound: Sequence[Any], differs: str, ends: str) -> str:
    """Comparison with a key: the first column that differs decides, by one operator, and the last one by another."""
    pairs = [(quote(column.name), literal(value, column)) for column, value in zip(columns, bound, strict=True)]
    name, value = pairs[-1]
    condition = f"{name} {ends} {value}"
    for name, value in reversed(pairs[:-1]):
        condition = f"({name} {differs} {value} OR ({name} = {value} AND {condition}))"
    if len(pairs) == 1:
        return condition
    # The first column's bound by itself lets the optimizer begin, or end, its range at the right place.
    name, value = pairs[0]
    return f"{name} {differs}= {value} AND {condition}"


def one_of(columns: Sequence[Column], keys: Sequence[Sequence[Any]]) -> str:
    """The condition for the rows with one of these keys."""
    return _with_one_of(columns, keys, literal)


def where_all(*conditions: str) -> str:
    """' WHERE ...' for all of these conditions that are none of them ''; '' where all are."""
    given = [f"({condition})" for condition in conditions if condition]
    return f" WHERE {' AND '.join(given)}" if given else ""


def rows_with(columns: Sequence[Column], keys: Sequence[Sequence[Any]]) -> str:
    """The condition for the rows of a canonical table that have one of these keys, whatever their texts are.

    A text that a column's character set cannot hold is no error: it is that of another key there, with question marks.
    """
    return _with_one_of(columns, keys, _own_text)


def _equal(columns: Sequence[Column], key: Sequence[Any], text_of: Callable[[Any, Column], str]) -> str:
    pairs = zip(columns, key, strict=True)
    return f"({' AND '.join(f'{quote(column.name)} = {text_of(value, column)}' for column, value in pairs)})"


def _with_one_of(
    columns: Sequence[Column], keys: Sequence[Sequence[Any]], text_of: Callable[[Any, Column], str]
) -> str:
    """A list where it means the same: a server reads that in a hundredth of the time of a thousand conditions."""
    if not keys or not all(map(_is_listed, columns)):
        return " OR ".join(_equal(columns, key, text_of) for key in keys)
    if len(columns) == 1:
        (column,) = columns
        is_integer = column.kind is Kind.INTEGER
        return f"{quote(column.name)} IN ({', '.join(str(v) if is_integer else text_of(v, column) for (v,) in keys)})"
    names = ", ".join(quote(column.name) for column in columns)
    rows = (", ".join(map(text_of, key, columns)) for key in keys)
    return f"({names}) IN ({', '.join(f'({row})' for row in rows)})"


def _is_listed(column: Column) -> bool:
    """Whether IN compares with a column's literals as `=` does, and by its index. A YEAR or ENUM may be otherwise."""
    return column.kind in _LISTED or (column.kind is Kind.INTEGER and "int" in column.declared.lower())


def _own_text(value: Any, column: Column) -> str:
    text = literal(value, column)
    if column.charset is None or column.charset == "utf8mb4" or text.isascii():
        return text
    return f"CONVERT({text} USING {column.charset}) COLLATE {column.collation}"


def selected(column: Column) -> str:
    """The SELECT expression that PyMySQL gives back in viewtail's form."""
    name = quote(column.name)
    if column.kind in _TIMES:
        return f"CAST({name} AS CHAR)"  # PyMySQL makes date objects, which know no zero dates
    if column.kind is Kind.FLOAT:
        return f"{name} * 1e0"  # a FLOAT by itself prints 6 digits
    if column.declared.startswith("bit"):
        return f"{name} + 0"
    return name
