"""Describes a canonical table: its columns and keys, as information_schema shows them now.

It opens no session and decides no transaction."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pymysql
import pymysql.cursors

from ingest.canonical.parts import (
    COLUMNS,
    COLUMNS_ORDER,
    KEYS,
    KEYS_ORDER,
    STATISTICS_NOW,
    Shape,
    described_parts,
    of_parts,
    rows_of_parts,
    tags_of,
)
from ingest.canonical.rows import source_errors, user_of
from ingest.charsets import READABLE
from viewtail.changes.errors import DeclarationError
from viewtail.changes.patterns import Part, pattern_of
from viewtail.changes.tables import TEXTS_IN_BINARY, Column, Kind, Table, full_name, is_pattern
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
        self._connection, self._user = connection, user_of(connection)
        tables = {table for table in tables if not any(map(is_pattern, table))}
        self._asked = frozenset(tables)
        if tables and folds_names(connection):  # two of them may be one table
            tables, self._asked = {(schema.lower(), name.lower()) for schema, name in tables}, frozenset()
        facts = facts_of(connection) if tables else None
        self._tables = _by_table(connection, facts, tables, "tables", "table_type", "table_name")
        self._columns = _by_table(connection, facts, tables, "columns", COLUMNS, COLUMNS_ORDER)
        self._keys = _by_table(connection, facts, tables, "statistics", KEYS, KEYS_ORDER)

    def has(self, schema: str, name: str) -> bool:
        """Return whether there is such a table."""
        return bool(_of(self._tables, schema, name, self._asked))

    def table(self, schema: str, name: str) -> Table:
        """Raises DeclarationError when there is no such table, when the user may not see it, and for a view."""
        if (pattern := pattern_of(schema, name)) is not None:
            return described_parts(self._connection, pattern, _of_shape)
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
        row_end = _row_end(columns, whole) if kind == "SYSTEM VERSIONED" else None
        return _described(schema, name, columns, _of(self._keys, schema, name, self._asked), row_end)


def _described(schema: str, name: str, columns: Sequence[Any], keys: Sequence[Any], row_end: str | None) -> Table:
    primary, unique = _unique_keys(keys, columns)
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


def with_part(connection: Connection, table: Table, part: Part) -> Table:
    """A pattern as it was described, and one of its tables as that is now. Raises DeclarationError.

    One that is gone again changes nothing."""
    table = table.stored  # the part is described without masks
    assert table.pattern is not None
    now = Descriptions(connection, [(part.schema, part.name)])
    if not now.has(part.schema, part.name):
        return table
    of_both = of_parts(table.pattern, [table.without_braces(), now.table(part.schema, part.name)], table.parts)
    return replace(of_both, lacking={**table.lacking, **of_both.lacking})


def _of_shape(part: Part, shape: Shape) -> Table:
    return _described(part.schema, part.name, shape.columns, shape.keys, None)


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
        tags=tags_of(comment or ""),
    )


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


def next_number(connection: Connection, table: Table) -> int:
    """The number that the table would give its next row; of several tables the largest one, 0 where none gives any."""
    connection.query(STATISTICS_NOW)
    asked = {(part.schema, part.name) for part in table.each}
    rows = _by_table(connection, facts_of(connection), asked, "tables", "auto_increment", "table_name").values()
    return max((int(row[2] or 0) for of_table in rows for row in of_table), default=0)


def row_estimates(connection: Connection, tables: Collection[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """The approximate number of rows by (schema, table), from the server's statistics; of a pattern that of all."""
    patterns = {table: pattern for table in tables if (pattern := pattern_of(*table)) is not None}
    asked = {table for table in tables if table not in patterns}
    facts = facts_of(connection) if asked else None
    counts = {
        table: int(rows[0][2] or 0)
        for table, rows in _by_table(connection, facts, asked, "tables", "table_rows", "table_name").items()
    }
    return counts | {table: sum(rows_of_parts(connection, pattern).values()) for table, pattern in patterns.items()}


def sizes_now(
    connection: Connection, tables: Collection[tuple[str, str]]
) -> dict[tuple[str, str], tuple[int, int | None]]:
    """By (schema, table) about how many rows there are, and bytes, None of a pattern: as the server counts now."""
    connection.query(STATISTICS_NOW)
    rows, facts = row_estimates(connection, tables), facts_of(connection)
    asked = {table for table in tables if pattern_of(*table) is None}
    found = _by_table(connection, facts, asked, "tables", "data_length", "table_name")
    return {table: (count, int(found[table][0][2] or 0) if table in found else None) for table, count in rows.items()}
