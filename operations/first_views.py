"""A first views.py: real tables and columns of a schema, chosen so that each kind of view has an example.

The views were bound to the tables, so they work; the user may find better ones.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import pymysql

from changes.errors import DeclarationError, MisuseError, nearest
from changes.tables import Column, Kind, Table
from ingest.canonical import describe
from projectors.binding import bind
from projectors.stores import Choice, Example
from projectors.stores.registry import STORES
from servers.facts import folds_names

MAX_TABLES_LOOKED_AT = 200
MAX_INDEXED_LENGTH = 500  # characters; four bytes each, and the key, fit into an index
FIELDS_SHOWN = 4
MOST_OTHERS = 20  # tables that are named besides

_SYSTEM = ("mysql", "information_schema", "performance_schema", "sys", "ndbinfo")
_PLAIN = (Kind.INTEGER, Kind.DECIMAL, Kind.TEXT, Kind.ENUM, Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP)


def schema_to_look_at(connection: pymysql.Connection[Any], named: str | None, own: Sequence[str]) -> str:
    """The schema named, or the only one there is besides the server's and viewtail's own. Raises MisuseError."""
    query = "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_type = 'BASE TABLE' ORDER BY 1"
    known = [name for name in _names(connection, query) if name not in _SYSTEM]
    if folds_names(connection):
        named, own = named and named.lower(), [name.lower() for name in own]
    if named is not None:
        if named in known:
            return named
        why = f"--schema {named}: there is no such schema with tables that this user can see"
        raise MisuseError(why + (nearest(named, known) or f"; there are {', '.join(known) or 'none'}"))
    others = [name for name in known if name not in own]
    if not others:
        raise MisuseError("this user can see no schema with tables; GRANT SELECT on one of them to the user")
    if len(others) > 1:
        raise MisuseError(f"which schema? Say --schema NAME; this user can see {', '.join(others)}")
    return others[0]


def _names(connection: pymysql.Connection[Any], query: str, *arguments: object) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(query, arguments)
        return [str(name) for (name,) in cursor.fetchall()]


def choose(connection: pymysql.Connection[Any], schema: str) -> tuple[Choice, list[str]]:
    """The table that examples are best shown on, and the others that can have views. Raises MisuseError without any."""
    best: tuple[int, Choice] | None = None
    found = []
    for name in _table_names(connection, schema):
        try:
            table = describe(connection, schema, name)
        except DeclarationError:
            continue
        choice = _choice(table, _indexed(connection, table))
        if not examples(choice):
            continue
        found.append(table.full_name)
        score = 4 * choice.is_looked_up + 2 * (choice.indexed is not None) + len(choice.searched)
        if best is None or score > best[0]:
            best = (score, choice)
    if best is None:
        raise MisuseError(
            f"no table of {schema} can have a view: each needs a primary key and a column that viewtail reads; "
            "say another --schema, or write views.py by hand"
        )
    return best[1], [name for name in found if name != best[1].table.full_name]


def _table_names(connection: pymysql.Connection[Any], schema: str) -> list[str]:
    return _names(
        connection,
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE' "
        f"ORDER BY table_name LIMIT {MAX_TABLES_LOOKED_AT}",
        schema,
    )


def _indexed(connection: pymysql.Connection[Any], table: Table) -> list[str]:
    """First columns of the table's own indexes, those of unique ones first: what people look rows up by."""
    return _names(
        connection,
        "SELECT column_name FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s "
        "AND index_name <> 'PRIMARY' AND seq_in_index = 1 AND column_name IS NOT NULL ORDER BY non_unique, index_name",
        table.schema,
        table.name,
    )


def _choice(table: Table, indexed: Sequence[str]) -> Choice:
    others = [column for column in table.columns if column.name not in table.primary_key]
    short = {column.name: column for column in filter(_is_short_text, others)}
    looked_up = [short[name] for name in indexed if name in short]
    shown = list(filter(_is_plain, others))
    return Choice(
        table=table,
        indexed=next(iter((*looked_up, *short.values())), None),
        is_looked_up=bool(looked_up),
        shown=tuple(shown[:FIELDS_SHOWN]),
        searched=tuple(column for column in shown if column.kind is Kind.TEXT)[:2],
    )


def _is_plain(column: Column) -> bool:
    return column.kind in _PLAIN and not column.name.startswith("_")


def _is_short_text(column: Column) -> bool:
    is_char = column.declared.lower().startswith(("varchar", "char"))
    return column.kind is Kind.TEXT and is_char and column.length <= MAX_INDEXED_LENGTH


def examples(choice: Choice) -> list[Example]:
    """One view of each store that the table has columns for."""
    found = [store.example(choice) for store in STORES]
    return [example for example in found if example is not None and _can_be_bound(example, choice.table)]


def _can_be_bound(example: Example, table: Table) -> bool:
    try:
        bind([example.view], lambda *_: table)
    except DeclarationError:
        return False
    return True


def views_py(choice: Choice, others: Sequence[str], stores: Sequence[str]) -> str:
    """The text of views.py; views of stores without an address are there as comments."""
    key = _on_a_line(", ".join(choice.table.primary_key))
    classes = sorted({"Entity", *(type(example.view).__name__ for example in examples(choice))})
    lines = [
        '"""The views that viewtail keeps: edit freely, then run `viewtail check`.',
        "",
        "The next `viewtail run` backfills a view whose declaration changed; docs/types.md has the values.",
        '"""',
        "",
        f"from viewtail import {', '.join(classes)}",
        "",
        f"# A canonical table; its rows are known by their primary key ({key}).",
        f"entity = Entity({choice.table.full_name!r})",
        *_comment_on(others),
        "",
        "views = [",
    ]
    for example in examples(choice):
        if example.view.store in stores:
            lines += [f"    # {example.comment}", f"    {example.declaration}"]
        else:
            variable = f"VIEWTAIL_{example.view.store.upper()}__URL"
            lines += [f"    # {example.comment} (set {variable} first)", f"    # {example.declaration}"]
    return "\n".join([*lines, "]", ""])


def _on_a_line(text: str) -> str:
    """A name may have a line break in it, which would end a comment."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _comment_on(others: Sequence[str]) -> list[str]:
    if not others:
        return []
    more = [f"and {len(others) - MOST_OTHERS} more"] if len(others) > MOST_OTHERS else []
    shown = _on_a_line(", ".join([*others[:MOST_OTHERS], *more]))
    text = f"Other tables that can have views, each as an Entity of its own: {shown}"
    return textwrap.wrap(
        text, 110, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )
