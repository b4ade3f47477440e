"""Describes a canonical table: its columns and keys, as information_schema shows them now.

It opens no session and decides no transaction."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pymysql
import pymysql.cursors

from ingest.canonical.rows import source_errors, user_of
from ingest.charsets import READABLE
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import TEXTS_IN_BINARY, Column, Kind, Table, full_name, is_pattern, matches
from viewtail.servers.facts import ServerFacts, facts_of, folds_names
from viewtail.servers.sessions import Connection, lacks_rights, quote

_TYPES = {
    Kind.INTEGER: "tinyint smallint mediumint int bigint year bit",
    Kind.TEXT: "char varchar tinytext text mediumtext longtext",
    Kind.BYTES: "binary varbinary tinyblob blob mediumblob longblob",
    Kind.GEOMETRY: "geometry point linestring polygon multipoint multilinestring multipolygon geomcollection "
    "geometrycollection",
}
_KINDS = {name: kind for kind, names in _TYPES.items() for name in names.split()} | {
    kind.value: kind for kind in Kind if kind not in (*_TYPES, Kind.UNSUPPORTED)
}
_OLD_NAMES = {"utf8": "utf8mb3"}  # before MySQL 8.0.30, and MariaDB


def describe(connection: Connection, schema: str, name: str) -> Table:
    """The table as information_schema shows it now. Raises DeclarationError as `Descriptions.table` does."""
    return Descriptions(connection, [(schema, name)]).table(schema, name)


class Descriptions:
    """Tables as information_schema shows them now, asked for together: many cost little more than one."""

    def __init__(self, connection: Connection, tables: Collection[tuple[str, str]]) -> None:
        self._parts = {table: parts_of(connection, *table) for table in tables if is_pattern(table[1])}
        tables = {table for table in tables if table not in self._parts} | {
            (schema, part) for (schema, _), parts in self._parts.items() for part in parts
        }
        self._asked = frozenset(tables)
        if tables and folds_names(connection):  # two of them may be one table
            tables, self._asked = {(schema.lower(), name.lower()) for schema, name in tables}, frozenset()
        self._user = user_of(connection)
        columns = (
            "column_name, data_type, column_type, is_nullable, character_set_name, character_maximum_length, "
            "numeric_precision, numeric_scale, datetime_precision, generation_expression, collation_name, "
            "column_default, column_comment"
        )
        facts = facts_of(connection) if tables else None
        keys = "index_name, column_name, sub_part, non_unique, index_type = 'BTREE' AND {index_is_used}"
        keys_order = "index_name = 'PRIMARY' DESC, index_name, seq_in_index"
        self._tables = _by_table(connection, facts, tables, "tables", "table_type", "table_name")
        self._columns = _by_table(connection, facts, tables, "columns", columns, "ordinal_position")
        self._keys = _by_table(connection, facts, tables, "statistics", keys, keys_order)

    def table(self, schema: str, name: str) -> Table:
        """Raises DeclarationError when there is no such table, when the user may not see it, and for a view."""
        if (parts := self._parts.get((schema, name))) is not None:
            return self._of_pattern(schema, name, parts)
        described, whole = _of(self._tables, schema, name, self._asked), full_name(schema, name)
        columns = _of(self._columns, schema, name, self._asked)
        if not columns or not described:
            raise DeclarationError(
                f"table {whole} does not exist, or the user {self._user} may not see it: check the name, "
                f"or GRANT SELECT ON {quote(schema, name)} to that user"
            )
        schema, name, kind = described[0]
        if kind not in ("BASE TABLE", "SYSTEM VERSIONED"):
            raise DeclarationError(
                f"{whole} is no base table but a {str(kind).lower()}: its changes are not in the binlog. "
                "Name the tables it draws on"
            )
        keys = _of(self._keys, schema, name, self._asked)
        primary, unique = _unique_keys(keys, columns)
        row_end = _row_end(columns, whole) if kind == "SYSTEM VERSIONED" else None
        return Table(
            schema=schema,
            name=name,
            columns=tuple(_column(row[2:]) for row in columns),
            primary_key=tuple(column for column in primary if column != row_end),
            unique_keys=tuple(unique.values()),
            unique_names=tuple(unique),
            row_end=row_end,
            indexes=_indexes(keys),
        )

    def _of_pattern(self, schema: str, pattern: str, parts: Sequence[str]) -> Table:
        """Raises DeclarationError where the tables are not alike, too."""
        if not parts:
            raise DeclarationError(
                f"no table is called {full_name(schema, pattern)}, where each # is a digit, or the user {self._user} "
                f"may see none: check the name, or GRANT SELECT ON {quote(schema)}.* to that user"
            )
        first, *others = [self.table(schema, part) for part in parts]
        for other in others:
            if (difference := _difference(first, other)) is not None:
                raise DeclarationError(
                    f"the tables {full_name(schema, pattern)} are read as one, and {other.full_name} is not like "
                    f"{first.full_name}: {difference}. ALTER one of them, or declare an entity for each kind"
                )
        # A unique key of some of them says nothing of the others' rows.
        unique = {
            name: key
            for name, key in zip(first.unique_names, first.unique_keys, strict=True)
            if all(key in other.unique_keys for other in others)
        }
        return replace(
            first,
            name=pattern,
            parts=tuple(parts),
            unique_names=tuple(unique),
            unique_keys=tuple(unique.values()),
        )


def parts_of(connection: Connection, schema: str, pattern: str) -> list[str]:
    """The names of the tables that match a pattern now, and that the user may see, in order."""
    like = re.sub(r"([\\\\_%])", r"\\\1", pattern).replace("#", "_")
    sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND table_name LIKE %s"
    with source_errors(connection), connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(sql, (schema, like))
        return sorted(name for (name,) in cursor.fetchall() if matches(pattern, name))


def _difference(first: Table, second: Table) -> str | None:
    for before, now in zip_longest(first.columns, second.columns):
        if before != now:
            at = before or now
            assert at is not None
            here, there = (f"{c.name} {c.declared}" if c else "nothing" for c in (before, now))
            return f"where one has {here}, the other has {there}" if here != there else f"column {at.name} differs"
    if first.primary_key != second.primary_key:
        return "it has another primary key"
    return None


def _unique_keys(
    index_rows: Iterable[Any], columns: Iterable[Any]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The primary key, and by name those of the other unique ones that identify every row."""
    nullable = {row[2]: row[5] == "YES" for row in columns}
    keys: dict[str, tuple[str, ...]] = {}
    partial: set[str] = set()  # over an expression, a prefix, or what may be NULL
    for _, _, index, column, prefix, is_not_unique, _ in index_rows:
        if not is_not_unique:
            keys[index] = (*keys.get(index, ()), str(column))
            if column is None or prefix is not None or nullable[column]:
                partial.add(index)
    primary = keys.pop("PRIMARY", ())
    return primary, {index: key for index, key in keys.items() if index not in partial}


def _indexes(index_rows: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    indexes: dict[str, tuple[str, ...]] = {}
    ended: set[str] = set()  # at an expression, or by the server
    for _, _, index, column, _, _, is_used in index_rows:
        if column is None or not is_used:
            ended.add(index)
        indexes[index] = (*indexes.get(index, ()), *(() if index in ended else (str(column),)))
    return indexes


_Names = Collection[tuple[str, str]]
_ByTable = dict[tuple[str, str], list[Any]]


def _by_table(
    connection: Connection, facts: ServerFacts | None, tables: _Names, of: str, columns: str, order: str
) -> _ByTable:
    """Rows of one of information_schema's tables, each with schema and table name first. No facts: of no table."""
    by_table: _ByTable = {}
    if facts is None:
        return by_table
    columns = columns.format(index_is_used=facts.index_is_used)
    sql = (
        f"SELECT table_schema, table_name, {columns} FROM information_schema.{of} "
        f"WHERE table_schema IN %s AND table_name IN %s ORDER BY {order}"
    )
    # A plain cursor: the caller's session may give rows in another form.
    with source_errors(connection), connection.cursor(pymysql.cursors.Cursor) as cursor:
        for group in facts.lookups(tables):
            cursor.execute(sql, (sorted({schema for schema, _ in group}), sorted({name for _, name in group})))
            for row in cursor.fetchall():
                by_table.setdefault((row[0], row[1]), []).append(row)
    return by_table


def _of(by_table: _ByTable, schema: str, name: str, asked: _Names) -> list[Any]:
    """The rows of a table. The server may call it otherwise in case, unless that is another one that was asked for."""
    if (schema, name) in by_table:
        return by_table[schema, name]
    others = {key: rows for key, rows in by_table.items() if key not in asked}
    lower = (schema.lower(), name.lower())
    return next((rows for key, rows in others.items() if (key[0].lower(), key[1].lower()) == lower), [])


def _row_end(columns: Sequence[Any], table: str) -> str:
    """The column that ends a row's validity: a declared one, or else MariaDB's hidden one."""
    column = next((row for row in columns if str(row[11]).upper() == "ROW END"), None)
    if column is not None and column[3] != "timestamp":
        raise DeclarationError(
            f"{table} is system-versioned by transaction numbers, and MariaDB writes the changes of such a table into "
            "the binlog as statements, which do not say what rows they changed. Let its period be one of TIMESTAMP(6) "
            "columns"
        )
    return "row_end" if column is None else str(column[2])


_QUOTED = re.compile(r"`((?:[^`]|``)+)`")  # both servers print each column of an expression so


def _column(row: Sequence[Any]) -> Column:
    name, data_type, declared, is_nullable, charset, length, *row = row
    precision, scale, fraction, expression, collation, default, comment = row
    charset = _OLD_NAMES.get(charset, charset)
    declared = declared.removesuffix(" /*M!100301 COMPRESSED*/")
    if data_type in TEXTS_IN_BINARY:  # MariaDB's: as the text that a SELECT gives
        charset, length = "ascii", TEXTS_IN_BINARY[data_type]
    kind = _kind(data_type.lower(), declared, charset)
    return Column(
        name=name,
        kind=kind,
        declared=declared,
        is_nullable=is_nullable == "YES",
        charset=charset,
        collation=collation,
        is_unsigned=" unsigned" in declared and data_type not in ("enum", "set"),
        length=_length(kind, data_type, length, precision),
        precision=int(precision) if kind is Kind.DECIMAL else 0,
        scale=_scale(kind, scale, fraction),
        labels=_labels(declared) if kind in (Kind.ENUM, Kind.SET) else (),
        is_generated=bool(expression),
        made_from=_made_from(expression),
        default=_default(default),
        tags=_tags(comment or ""),
    )


_TAG = re.compile(r"#(\w+)")


def _tags(comment: str) -> tuple[str, ...]:
    return tuple(sorted({tag.upper() for tag in _TAG.findall(comment)})) if "#" in comment else ()


def _length(kind: Kind, data_type: str, length: int | None, precision: int | None) -> int:
    """The length in the type's parentheses, in characters, bytes or bits, if it limits the values."""
    if kind is Kind.INTEGER:
        return int(precision or 0) if data_type == "bit" else 0
    return int(length or 0) if kind not in (Kind.ENUM, Kind.SET, Kind.JSON) else 0


def _scale(kind: Kind, scale: int | None, fraction: int | None) -> int:
    """Digits after the point, of a second too."""
    if kind in (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP):
        return int(fraction or 0)
    return int(scale or 0) if kind is Kind.DECIMAL else 0


def _made_from(expression: str | None) -> frozenset[str] | None:
    """The columns that a generated one's expression names."""
    return frozenset(name.replace("``", "`") for name in _QUOTED.findall(expression)) if expression else None


def _default(shown: str | None) -> str | None:
    """MariaDB quotes a literal, and has the word NULL where MySQL has none."""
    if shown is None or shown == "NULL":
        return None
    is_quoted = len(shown) > 1 and shown[0] == shown[-1] == "'"
    return shown[1:-1].replace("''", "'") if is_quoted else shown


def _kind(data_type: str, declared: str, charset: str | None) -> Kind:
    if declared == "year(2)" or declared.endswith("/* mariadb-5.3 */"):
        return Kind.UNSUPPORTED  # what a SELECT shows is not what is stored
    kind = Kind.TEXT if data_type in TEXTS_IN_BINARY else _KINDS.get(data_type, Kind.UNSUPPORTED)
    is_text = kind in (Kind.TEXT, Kind.ENUM, Kind.SET)
    return Kind.UNSUPPORTED if is_text and charset not in READABLE else kind


def _labels(declared: str) -> tuple[str, ...]:
    """COLUMN_TYPE quotes as append_unescaped (sql/sql_show.cc) does: '' for ', and backslashes for \\ NUL \\n \\r."""
    unescaped = {None: "'", "0": "\0", "n": "\n", "r": "\r"}
    quoted = re.findall(r"'((?:[^'\\]|''|\\.)*)'", declared, re.DOTALL)
    return tuple(re.sub(r"(?s)''|\\(.)", lambda match: unescaped.get(match[1], match[1]), label) for label in quoted)


def is_denied(connection: Connection, schema: str, name: str, columns: Iterable[str]) -> bool:
    """Return whether the user lacks rights on the table or the columns, so that information_schema may hide some."""
    wanted = ", ".join(map(quote, columns)) or "1"
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {wanted} FROM {quote(schema, name)} LIMIT 0")
    except pymysql.err.MySQLError as error:
        return lacks_rights(error)
    return False


def row_estimates(connection: Connection, tables: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The approximate number of rows by (schema, table), from the server's statistics."""
    patterns = {table: parts_of(connection, *table) for table in tables if is_pattern(table[1])}
    asked = {*tables, *((schema, part) for (schema, _), parts in patterns.items() for part in parts)}
    facts = facts_of(connection) if asked else None
    counts = {
        table: int(rows[0][2] or 0)
        for table, rows in _by_table(connection, facts, asked, "tables", "table_rows", "table_name").items()
    }
    for (schema, pattern), parts in patterns.items():
        counts[schema, pattern] = sum(counts.get((schema, part), 0) for part in parts)
    return counts
