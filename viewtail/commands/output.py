"""Prints records: JSON for programs, a table for people. Versions are strings in JSON (2^53)."""

from __future__ import annotations

import base64
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from rich.text import Text  # imported where a table is printed: most commands print none


def print_json(content: Any) -> None:
    """One indented JSON value on stdout."""
    option = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    sys.stdout.buffer.write(orjson.dumps(content, default=_json, option=option))
    sys.stdout.buffer.flush()


def print_remark(remark: str | None) -> None:
    """A line on stderr, when there is something to know."""
    if remark:
        print(f"viewtail: {remark}", file=sys.stderr)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a table on a terminal, and tab-separated with a heading otherwise."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[shown(row.get(name)) for name in names] for row in rows]
    if sys.stdout.isatty():
        print_table(names, cells)
        return
    for line in (names, *cells):
        print("\t".join(cell.replace("\t", " ").replace("\n", " ") for cell in line))


def beside(own: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """Put what viewtail knows of a record before its content, with a _ where the content has that name too."""
    return {f"_{name}" if name in content else name: value for name, value in own.items()} | dict(content)


def print_table(titles: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Collection[str] = ()) -> None:
    """A table on a terminal: long cells are folded; columns with a title in `right` are aligned there."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold", justify="right" if title in right else "left")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    Console().print(table)


def shown(value: Any) -> str:
    """A value for a person: text as it is, bytes in hexadecimal behind 0x, NULL as a word."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, dict | list):
        return orjson.dumps(value, default=_json).decode()
    return str(value)


def _json(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(type(value).__name__)
