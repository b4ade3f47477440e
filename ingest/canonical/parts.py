"""The tables of a pattern: which match now, and what they look like as one.

Thousands of tables cost a few questions: information_schema tells all of them, and most are alike to the last detail.
Of each form that is there, one table is described; the pattern's columns are those that all forms have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import pymysql.cursors

from ingest.canonical.rows import CONVERTED, source_errors, user_of
from viewtail.changes.errors import RETRIES, DeclarationError, SourceError, TablesChangedError
from viewtail.changes.patterns import SOURCE, Part, Pattern, pattern_of
from viewtail.changes.tables import Column, Kind, Table, full_name, is_pattern, unlike
from viewtail.servers.facts import facts_of, folds_names
from viewtail.servers.privileges import Privileges
from viewtail.servers.sessions import Connection, quote

UNSEEN = "a table that comes to them is not seen by a user who has no SELECT on the whole schema"
COLUMNS = (
    "column_name, data_type, column_type, is_nullable, character_set_name, character_maximum_length, "
    "numeric_precision, numeric_scale, datetime_precision, generation_expression, collation_name, column_default, "
    "column_comment"
)
COLUMNS_ORDER, KEYS_ORDER = "ordinal_position", "index_name = 'PRIMARY' DESC, index_name, seq_in_index"
KEYS = "index_name, column_name, sub_part, non_unique, index_type = 'BTREE' AND {index_is_used}"
MOST_EXAMPLES = 20
# A MySQL answers with what it had known for a day.
STATISTICS_NOW = "SET /*!80003 information_schema_stats_expiry = 0, */ sql_quote_show_create = 1"
_NAMES_A_QUERY = 500
_TAG = re.compile(r"#(\w+)")
_INTEGERS = ("tinyint", "smallint", "mediumint", "int", "bigint")


@dataclass(frozen=True, slots=True)
class Shape:
    """What information_schema says of a table: rows of its columns, and of its keys, each with two names before it."""

    columns: tuple[tuple[Any, ...], ...]
    keys: tuple[tuple[Any, ...], ...]


def parts_of(connection: Connection, pattern: Pattern) -> list[Part]:
    """The tables that match now, in the order of what the braces have. Raises SourceError where some may be hidden."""
    check_sees_all(connection, pattern)
    parts = []
    for part, kind in _named(connection, pattern, "table_type"):
        if kind != "BASE TABLE":
            raise DeclarationError(
                f"{part.full_name} is {str(kind).lower()}, and tables that are read as one have no history of their "
                "own: ALTER TABLE ... DROP SYSTEM VERSIONING, or give it a name that does not match"
            )
        parts.append(part)
    return sorted(parts, key=lambda part: part.place)


def examples(connection: Connection, tables: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The same tables, with the first one of each schema in the place of a pattern."""
    shown: list[tuple[str, str]] = []
    for schema, name in tables:
        pattern = pattern_of(schema, name)
        if pattern is None:
            shown.append((schema, name))
        else:
            first = {part.schema: part for part, _ in _named(connection, pattern, "NULL")}
            shown += [(part.schema, part.name) for part in [*first.values()][:MOST_EXAMPLES]]
    return shown


def tags_of(comment: str) -> tuple[str, ...]:
    """Return the words behind a # in a column's comment, in capitals and in order."""
    return tuple(sorted({tag.upper() for tag in _TAG.findall(comment)})) if "#" in comment else ()


def check_tags(connection: Connection, table: Table, parts: Iterable[Part]) -> None:
    """Raise TablesChangedError where a table that came after `table` was described has a tag that is not in it.

    Its rows would be read unmasked until the stream says what it is.
    """
    known = {*table.parts}
    fresh = [part[:2] for part in parts if part not in known]
    tags = {column.name.lower(): {*column.stored.tags} for column in table.columns}
    for start in range(0, len(fresh), _NAMES_A_QUERY):
        some = fresh[start : start + _NAMES_A_QUERY]
        sql = (
            "SELECT table_schema, table_name, column_name, column_comment FROM information_schema.columns WHERE "
            f"(table_schema, table_name) IN ({', '.join(['(%s, %s)'] * len(some))}) AND column_comment LIKE %s"
        )
        with source_errors(connection), connection.cursor(pymysql.cursors.Cursor) as cursor:
            cursor.execute(sql, [*(name for names in some for name in names), "%#%"])
            for schema, name, column, comment in cursor.fetchall():
                if not tags.get(column.lower(), {*tags_of(comment)}).issuperset(tags_of(comment)):
                    raise TablesChangedError(
                        f"{full_name(schema, name)} is new, and the comment of its column {column} has a tag that the "
                        f"tables {table.full_name} had not: {RETRIES}"
                    )


def rows_of_parts(connection: Connection, pattern: Pattern) -> dict[Part, int]:
    """About how many rows each of them has, from the server's statistics."""
    return {part: int(rows or 0) for part, rows in _named(connection, pattern, "table_rows")}


def rows_about(connection: Connection, part: Part) -> int:
    """About how many rows one table has, by the server's statistics; 0 where it is gone."""
    sql = "SELECT table_rows FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    with source_errors(connection), connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(STATISTICS_NOW)
        cursor.execute(sql, part[:2])
        row = cursor.fetchone()
    return int((row and row[0]) or 0)


def exists(connection: Connection, part: Part) -> bool:
    """Return whether there is such a table now."""
    sql = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
    with source_errors(connection), connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(sql, part[:2])
        return cursor.fetchone() is not None


def check_sees_all(connection: Connection, pattern: Pattern) -> None:
    """Raise SourceError if the user may not see all tables that match, or that will."""
    if pattern.only is not None:  # which is missed where it is not seen
        return
    schema = pattern.sample.schema
    with source_errors(connection):
        missing = Privileges.of(connection).missing(("SELECT",), schema)
    if missing:
        raise SourceError(
            f"{pattern.full_name} are read as one, and {UNSEEN}: GRANT SELECT ON {on_schemas(pattern)} to the "
            "source's user"
        )


def on_schemas(pattern: Pattern) -> str:
    """All tables of the schemas that match, as GRANT takes it: there _ and % are wildcards."""
    like, _ = pattern.likes
    return f"{quote(like)}.*"


def _named(connection: Connection, pattern: Pattern, column: str) -> Iterator[tuple[Part, Any]]:
    where, values = _like(pattern)
    sql = (
        f"SELECT table_schema, table_name, {column} FROM information_schema.tables "
        f"WHERE {where} AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED')"
    )
    folds = folds_names(connection)
    with source_errors(connection), connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(sql, values)
        for schema, name, value in cursor.fetchall():
            if (part := pattern.part(schema, name, folds_names=folds)) is not None:
                yield part, value


def _like(pattern: Pattern) -> tuple[str, tuple[str, str]]:
    """A condition that all names meet that match, and its values. Where a name is known, `=` asks for that alone."""
    (schema, name), likes = pattern.sample[:2], pattern.likes
    of_schema = ("LIKE", likes[0]) if pattern.has_schemas else ("=", schema)
    of_name = ("LIKE", likes[1]) if is_pattern(pattern.name) else ("=", name)
    return f"table_schema {of_schema[0]} %s AND table_name {of_name[0]} %s", (of_schema[1], of_name[1])


# --- What they look like -----------------------------------------------------------------------------------------


def described_parts(connection: Connection, pattern: Pattern, describe: Callable[[Part, Shape], Table]) -> Table:
    """All tables of a pattern as one. Raises DeclarationError where there are none."""
    parts = parts_of(connection, pattern)
    if not parts and (table := pattern.only) is not None:
        user = user_of(connection)
        raise DeclarationError(
            f"table {table.full_name} does not exist on the source {pattern.source[0]}, or the user {user} may not see "
            f"it: check the name, or GRANT SELECT ON {quote(table.schema, table.name)} to that user"
        )
    if not parts:
        raise DeclarationError(
            f"no table is called {pattern.full_name}, so nobody knows its columns: check the name, or begin when "
            f"there is one. Each {{name}} is a text there, {{name:int}} a number without zeros before it, # a digit"
        )
    by_shape: dict[Shape, Part] = {}
    for part, shape in _shapes(connection, pattern, parts):
        by_shape.setdefault(shape, part)
    return of_parts(pattern, [describe(part, shape) for shape, part in by_shape.items()], parts)


def _shapes(connection: Connection, pattern: Pattern, parts: Collection[Part]) -> Iterator[tuple[Part, Shape]]:
    keys = dict(_rows_by_table(connection, pattern, "statistics", KEYS, KEYS_ORDER))
    known = {(part.schema, part.name): part for part in parts}
    same: dict[Any, Any] = {}
    for name, rows in _rows_by_table(connection, pattern, "columns", COLUMNS, COLUMNS_ORDER):
        if (part := known.get(name)) is not None:
            shape = Shape(rows, keys.get(name, ()))
            yield part, same.setdefault(shape, shape)


def _rows_by_table(
    connection: Connection, pattern: Pattern, of: str, columns: str, order: str
) -> Iterator[tuple[tuple[str, str], tuple[Any, ...]]]:
    """The rows of each table, with '' for its names; equal ones are one object, and they are not all held at once."""
    where, values = _like(pattern)
    columns = columns.format(index_is_used=facts_of(connection).index_is_used)
    sql = (
        f"SELECT table_schema, table_name, {columns} FROM information_schema.{of} "
        f"WHERE {where} ORDER BY table_schema, table_name, {order}"
    )
    same: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    with source_errors(connection), connection.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute(sql, values)
        for (schema, name), rows in groupby(cursor, key=itemgetter(0, 1)):
            of_table = tuple(("", "", *row[2:]) for row in rows)
            yield (schema, name), same.setdefault(of_table, of_table)


def of_parts(pattern: Pattern, tables: Sequence[Table], parts: Sequence[Part] = ()) -> Table:
    """Several tables of a pattern as one, with the columns that all of them have, each as wide as the widest."""
    first = tables[0]
    _check_names(pattern, tables)
    _check_keys(pattern, tables)
    names = dict.fromkeys(column.name for table in tables for column in table.columns)
    common = {name: _common(name, tables) for name in names}
    unique = _common_unique(tables)
    braces = pattern.names
    return replace(
        first,
        schema=pattern.schema,
        name=pattern.name,
        columns=(*pattern.columns, *(column for column, _ in common.values() if column is not None)),
        primary_key=_behind(braces, first.primary_key),
        unique_names=tuple(name for name, _ in unique),
        unique_keys=tuple(_behind(braces, key) for _, key in unique),
        indexes=_common_indexes(braces, tables),
        pattern=pattern,
        parts=tuple(parts),
        lacking={name: why for name, (column, why) in common.items() if column is None},
    )


def _behind(names: tuple[str, ...], key: tuple[str, ...]) -> tuple[str, ...]:
    return (*names, *key) if key else ()


def _common_unique(tables: Sequence[Table]) -> list[tuple[str, tuple[str, ...]]]:
    """A unique key of some of them says nothing of the others' rows."""
    first, *others = tables
    return [
        (name, key)
        for name, key in zip(first.unique_names, first.unique_keys, strict=True)
        if all(key in other.unique_keys for other in others)
    ]


def _check_keys(pattern: Pattern, tables: Sequence[Table]) -> None:
    first, *others = tables
    for other in others:
        if other.primary_key != first.primary_key:
            raise DeclarationError(
                f"the tables {pattern.full_name} are read as one, and the primary key of {other.full_name} is "
                f"({', '.join(other.primary_key)}), that of {first.full_name} ({', '.join(first.primary_key)}). "
                "ALTER one of them"
            )


def _check_names(pattern: Pattern, tables: Iterable[Table]) -> None:
    names = {name.lower() for name in pattern.names}
    for table in tables:
        for column in table.columns:
            if pattern.source and column.name.lower() == SOURCE:
                raise DeclarationError(
                    f"{table.full_name} has a column {column.name}, as the column with the source's name is called; "
                    "rename that of the table"
                )
            if column.name.lower() in names:
                raise DeclarationError(
                    f"{table.full_name} has a column {column.name}, as the braces of {pattern.full_name} are called; "
                    "give the braces another name"
                )


def _common(name: str, tables: Sequence[Table]) -> tuple[Column | None, str]:
    """A column as all tables have it; else None, and which table has it otherwise."""
    widest: Column | None = None
    for table in tables:
        column = table.column(name)
        if column is None:
            return None, f"{table.full_name} has no column {name}"
        if widest is not None:
            why = unlike(widest, column) if len(widest.labels) <= len(column.labels) else unlike(column, widest)
            if why is None and widest.charset != column.charset and not {widest.charset, column.charset} <= CONVERTED:
                why = f"its character set is {column.charset}, not {widest.charset}"
            if why is not None:
                return None, f"{table.full_name} has another column {name} than {tables[0].full_name}: {why}"
            column = _wider(widest, column)
        widest = column
    return widest, ""


def _wider(one: Column, other: Column) -> Column:
    wide = max((one, other), key=_width)
    tags = tuple(sorted({*one.tags, *other.tags}))  # people's data in one of them is masked in all
    return replace(wide, is_nullable=one.is_nullable or other.is_nullable, tags=tags)


def _width(column: Column) -> tuple[int, ...]:
    word = column.declared.lower().partition("(")[0].partition(" ")[0]
    rank = _INTEGERS.index(word) if column.kind is Kind.INTEGER and word in _INTEGERS else 0
    return rank, column.length, column.precision, len(column.labels), column.charset == "utf8mb4"


def _common_indexes(names: tuple[str, ...], tables: Sequence[Table]) -> Mapping[str, tuple[str, ...]]:
    first, *others = tables
    return {
        name: (*names, *columns)
        for name, columns in first.indexes.items()
        if all(other.indexes.get(name) == columns for other in others)
    }
