"""SQL literals for MySQL: values in viewtail's forms (docs/types.md) to the text of a statement, and back.

The row renderer of a view is compiled from its columns, since PyMySQL's own escaping costs more than the server's
part of an upsert. It counts on what every session of viewtail sets: utf8mb4, and an sql_mode without
NO_BACKSLASH_ESCAPES. Inside a quoted string only the backslash and the quote are special then; everything else,
NUL included, stands for itself (MySQL manual, "String Literals").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from changes.tables import Column, Kind
from changes.writes import Key, Write
from offsets.session import quote

Rows = Callable[[Iterable[tuple[Key, Write]]], list[str]]

_TEXTS = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET})
_TIMES = frozenset({Kind.DATE, Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})


def literal(value: Any, column: Column) -> str:
    """The literal of one value; NULL for None."""
    if value is None:
        return "NULL"
    text: str = eval(f'f"{_piece("value", column)}"', {**_NAMES, "value": value})
    return text


def compile_rows(key: Sequence[Column], values: Sequence[Column]) -> Rows:
    """A function from (key, (version, values)) pairs to `(key..., values..., version)` row literals, in order."""
    keys = [f"k{at}" for at in range(len(key))]
    names = [f"v{at}" for at in range(len(values))]
    shown = [_piece(name, column) for name, column in zip(keys, key, strict=True)]
    nothing = ["NULL"] * len(values)
    pieces = [f"{{t{at}}}" for at in range(len(values))]
    prepared = "".join(
        f"""
        t{at} = "NULL" if {name} is None else f"{_piece(name, column)}\""""
        for at, (name, column) in enumerate(zip(names, values, strict=True))
    )
    source = f"""
def rows(items, {", ".join(f"{name}={name}" for name in _NAMES)}):
    found = []
    add = found.append
    for ({"".join(f"{name}, " for name in keys)}), (version, values) in items:
        if values is None:
            add(f"({",".join([*shown, *nothing])},{{version}})")
            continue
        {"".join(f"{name}, " for name in names)}= values{prepared}
        add(f"({",".join([*shown, *pieces])},{{version}})")
    return found
"""
    namespace = dict(_NAMES)
    exec(compile(source, "<row literals>", "exec"), namespace)
    rows: Rows = namespace["rows"]
    return rows


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
