"""SQL literals for MySQL: values in viewtail's forms (docs/types.md) to the text of a query, and back.

They count on what every session of viewtail sets: utf8mb4, and an sql_mode without NO_BACKSLASH_ESCAPES. Inside a
quoted string only the backslash and the quote are special then; everything else, NUL included, stands for itself
(MySQL manual, "String Literals").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from changes.tables import Column, Kind
from servers.sessions import quote

_TEXTS = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET})
_TIMES = frozenset({Kind.DATE, Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})


def literal(value: Any, column: Column) -> str:
    """The literal of one value; NULL for None."""
    if value is None:
        return "NULL"
    text: str = eval(f'f"{_piece("value", column)}"', {**_NAMES, "value": value})
    return text


def equals(columns: Sequence[Column], values: Sequence[Any]) -> str:
    """The condition that columns have these values."""
    pairs = zip(columns, values, strict=True)
    return " AND ".join(f"{quote(column.name)} = {literal(value, column)}" for column, value in pairs)


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


def _piece(name: str, column: Column) -> str:
    """What stands in the generated f-string (quoted by \") for a value that is not NULL."""
    if column.kind in _TEXTS:
        return f"'{{{name}.replace(BACKSLASH, BACKSLASHES).replace(QUOTE, QUOTES)}}'"
    if column.kind in _TIMES:
        return f"'{{{name}}}'"
    if column.kind is Kind.BYTES:
        return f"X'{{{name}.hex()}}'"
    if column.kind is Kind.DECIMAL:
        return f"{{{name}:f}}"
    if column.kind in (Kind.FLOAT, Kind.DOUBLE):
        return f"{{double({name})}}"
    return f"{{{name}}}"


def _double(value: float) -> str:
    """With an exponent, so that MySQL reads a DOUBLE and not a DECIMAL (which has no -0)."""
    text = repr(value)
    return text if "e" in text else text + "e0"


_NAMES: dict[str, Any] = {
    "BACKSLASH": "\\",
    "BACKSLASHES": "\\\\",
    "QUOTE": "'",
    "QUOTES": "''",
    "double": _double,
}
