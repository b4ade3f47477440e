"""A first views.py: real tables and columns of a schema, chosen so that each kind of view has an example.

The views were bound to the tables, so they work; the user may find better ones.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pymysql

from ingest.canonical import describe
from ingest.canonical.tables import row_estimates
from projectors.binding import bind
from projectors.related import Many, One, Relations
from projectors.stores import Choice, Example
from projectors.stores.registry import STORES
from viewtail.changes.errors import DeclarationError, MisuseError, nearest
from viewtail.changes.masks import ANY_SECRET
from viewtail.changes.tables import Column, Kind, Table, names_of
from viewtail.operations.first_related import declared, references, with_related
from viewtail.servers.facts import folds_names
from viewtail.servers.sessions import quote

MAX_TABLES_LOOKED_AT = 200
MAX_INDEXED_LENGTH = 500  # characters; four bytes each, and the key, fit into an index
FIELDS_SHOWN = 4
MOST_OTHERS = 20  # tables that are named besides

_SYSTEM = ("mysql", "information_schema", "performance_schema", "sys", "ndbinfo")
_PLAIN = (Kind.INTEGER, Kind.DECIMAL, Kind.TEXT, Kind.ENUM, Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP)


def schema_of(tables: Sequence[str]) -> str | None:
    """Return the schema that the first table with one names: shop of shop.user."""
    return next((names[0] for table in tables if (names := names_of(table)) is not None), None)


def schema_to_look_at(connection: pymysql.Connection[Any], named: str | None, own: Sequence[str]) -> str:
    """The schema named, or the only one there is besides the server's and viewtail's own. Raises MisuseError."""
    known = _schemas(connection)
    if folds_names(connection):
        named, own = named and named.lower(), [name.lower() for name in own]
    if named is None:
        return _only_one([name for name in known if name not in own])
    if named in known:
        return named
    why = f"--schema {named}: there is no such schema with tables that this user can see"
    raise MisuseError(why + (nearest(named, known) or f"; there are {', '.join(known) or 'none'}"))


def _schemas(connection: pymysql.Connection[Any]) -> list[str]:
    """Return the schemas, without the server's own."""
    query = "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_type = 'BASE TABLE' ORDER BY 1"
    return [name for name in _names(connection, query) if name not in _SYSTEM]


def _only_one(schemas: Sequence[str]) -> str:
    if not schemas:
        raise MisuseError("this user can see no schema with tables; GRANT SELECT on one of them to the user")
    if len(schemas) > 1:
        raise MisuseError(f"which schema? Say --schema NAME; this user can see {', '.join(schemas)}")
    return schemas[0]


def _names(connection: pymysql.Connection[Any], query: str, *arguments: object) -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(query, arguments)
        return [str(name) for (name,) in cursor.fetchall()]


def choose(
    connection: pymysql.Connection[Any], schema: str, named: Sequence[str] = ()
) -> tuple[list[Choice], list[str]]:
    """The tables that examples are made of, and the others that can have views. Raises MisuseError without any.

    Args:
        named: tables of the schema; none: the one on which examples are best shown, a filled one before an empty one.
    """
    wanted = _wanted(connection, schema, named)
    choices = _possible(connection, schema, wanted)
    if not choices:
        raise MisuseError(
            f"no table of {schema} can have a view: each needs a primary key and a column that viewtail reads; "
            "say another --schema, or write views.py by hand"
        )
    filled = {name for name, choice in choices.items() if _has_rows(connection, choice.table)}
    names = wanted or [max(choices, key=lambda name: (name in filled, _shows(choices[name])))]
    others = sorted(
        (name not in filled, choice.table.full_name) for name, choice in choices.items() if name not in names
    )
    return _related(connection, schema, choices, names), [name for _, name in others]


def _related(
    connection: pymysql.Connection[Any], schema: str, choices: dict[str, Choice], names: Sequence[str]
) -> list[Choice]:
    """The choices of these names with what belongs to their rows in other tables."""
    tables = {name: choice.table for name, choice in choices.items()}
    known = references(connection, schema, tables)
    counts = {name: rows for (_, name), rows in row_estimates(connection, [(schema, name) for name in tables]).items()}
    return [with_related(choices[name], tables, known, counts) for name in names]


def _possible(connection: pymysql.Connection[Any], schema: str, wanted: Sequence[str]) -> dict[str, Choice]:
    """Return the tables that can have views, in order. Raises MisuseError for one that is wanted and cannot."""
    choices = {}
    for name in _table_names(connection, schema, wanted):
        try:
            choices[name] = _choice_of(connection, schema, name)
        except DeclarationError as error:
            if name in wanted:
                raise MisuseError(f"--table {name}: {error}") from None
    return choices


def _shows(choice: Choice) -> int:
    """Return how well examples are shown on it."""
    return 4 * choice.is_looked_up + 2 * (choice.indexed is not None) + len(choice.searched)


def _wanted(connection: pymysql.Connection[Any], schema: str, named: Sequence[str]) -> list[str]:
    """Return the named tables, with or without their schema. Raises MisuseError for one that is not there."""
    query = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE'"
    known = _names(connection, query, schema) if named else []
    tables = []
    for given in named:
        names = names_of(given)
        name = names[1] if given not in known and names is not None and names[0] == schema else given
        if name not in known:
            near = nearest(name, known)
            raise MisuseError(f"--table {given}: {schema} has no such table that this user can see{near}")
        tables.append(name)
    return list(dict.fromkeys(tables))


def _choice_of(connection: pymysql.Connection[Any], schema: str, name: str) -> Choice:
    """Raise DeclarationError for a table that can have no view."""
    table = describe(connection, schema, name)
    choice = _choice(table, _indexed(connection, table))
    if not examples(choice):
        raise DeclarationError("it can have no view: it needs a primary key and a column that viewtail reads")
    return choice


def _has_rows(connection: pymysql.Connection[Any], table: Table) -> bool:
    try:
        with connection.cursor() as cursor:
            return bool(cursor.execute(f"SELECT 1 FROM {quote(table.schema, table.name)} LIMIT 1"))
    except pymysql.err.MySQLError:
        return False  # it has rows for nobody who may not read it


def _table_names(connection: pymysql.Connection[Any], schema: str, first: Sequence[str]) -> list[str]:
    """Return names in order, but these before the others, and those without rows behind, by the server's estimate."""
    names = _names(
        connection,
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_type = 'BASE TABLE' "
        f"ORDER BY COALESCE(table_rows, 0) = 0, table_name LIMIT {MAX_TABLES_LOOKED_AT}",
        schema,
    )
    return list(dict.fromkeys((*first, *sorted(names))))


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
    by_store = [store.example(replace(choice, related=())) for store in STORES]
    return [example for example in by_store if example is not None and _can_be_bound(example, choice.table)]


def documents(choice: Choice) -> list[Example]:
    """One view of each store that shows what belongs to the rows in other tables."""
    by_store = [store.document_example(choice) for store in STORES]
    return [example for example in by_store if example is not None]


def _can_be_bound(example: Example, table: Table) -> bool:
    try:
        bind([example.view], lambda *_: table, ANY_SECRET)
    except DeclarationError:
        return False
    return True


def views_py(choices: Sequence[Choice], others: Sequence[str], stores: Sequence[str]) -> str:
    """The text of views.py; views of stores without an address are there as comments."""
    shown = [(choice, examples(choice), documents(choice)) for choice in choices]
    classes = {type(example.view).__name__ for _, plain, whole in shown for example in (*plain, *whole)}
    classes |= {"Entity"}.union(*(_kinds(choice.related) for choice in choices))
    variables = _variables(choices)
    lines = [
        '"""The views that viewtail keeps: edit freely, then run `viewtail check`.',
        "",
        "The next `viewtail run` backfills a view whose declaration changed; docs/types.md has the values.",
        '"""',
        "",
        f"from viewtail import {', '.join(sorted(classes))}",
        "",
    ]
    for choice, variable in zip(choices, variables, strict=True):
        lines += [
            f"# A canonical table; its rows are known by their primary key ({_keys(choice)}).",
            f"{variable} = Entity({choice.table.full_name!r})",
            *_entity_with_related(choice, variable),
        ]
    lines += [*_comment_on(others), "", "views = ["]
    for (choice, plain, whole), variable in zip(shown, variables, strict=True):
        for example in plain:
            lines += _declared(example, variable, stores, ())
        for example in whole:
            lines += _declared(example, f"{variable}_with_related", stores, choice.missing)
    return "\n".join([*lines, "]", ""])


def _declared(example: Example, variable: str, stores: Sequence[str], missing: Sequence[str]) -> list[str]:
    """The lines of one view, as comments where something is to be done first."""
    declaration = example.declaration.replace(", entity", f", {variable}", 1)
    setting = "" if example.view.store in stores else f" (set VIEWTAIL_{example.view.store.upper()}__URL first)"
    indexes = [f"    # First, on the primary: {_on_a_line(statement)}" for statement in missing]
    is_ready = not setting and not indexes
    return [f"    # {example.comment}{setting}", *indexes, f"    {'' if is_ready else '# '}{declaration}"]


def _entity_with_related(choice: Choice, variable: str) -> list[str]:
    if not choice.related:
        return []
    return [
        "# The same rows with what belongs to them in other tables; take out what you do not need: docs/documents.md.",
        f"{variable}_with_related = Entity(",
        f"    {choice.table.full_name!r},",
        "    related={",
        *(f"        {name!r}: {declared(of, ' ' * 8)}," for name, of in choice.related),
        "    },",
        ")",
    ]


def _kinds(related: Relations) -> set[str]:
    """The classes that relations are written with."""
    below = (of.related for _, of in related if isinstance(of, One | Many))
    return {of.kind for _, of in related}.union(*map(_kinds, below))


def _on_a_line(text: str) -> str:
    """A name may have a line break in it, which would end a comment."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _keys(choice: Choice) -> str:
    return _on_a_line(", ".join(choice.table.primary_key))


def _variables(choices: Sequence[Choice]) -> list[str]:
    """Return what each entity is called in views.py."""
    if len(choices) == 1:
        return ["entity"]
    variables: list[str] = []
    for choice in choices:
        name = "entity_" + re.sub(r"\W", "_", choice.table.name)
        variables.append(name if name not in variables else f"{name}_{len(variables)}")
    return variables


def _comment_on(others: Sequence[str]) -> list[str]:
    if not others:
        return []
    more = [f"and {len(others) - MOST_OTHERS} more"] if len(others) > MOST_OTHERS else []
    shown = _on_a_line(", ".join([*others[:MOST_OTHERS], *more]))
    text = f"Other tables that can have views, each as an Entity of its own: {shown}"
    return textwrap.wrap(
        text, 110, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False
    )
