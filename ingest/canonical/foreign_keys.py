"""Reads the foreign keys that delete or change rows of a table by themselves, as the server has them now.

Their columns are in information_schema, their rules are read from SHOW CREATE TABLE: MariaDB hides
information_schema.referential_constraints from a user who may only SELECT, and answers as if there were none. This
module opens no session and decides no transaction."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pymysql
import pymysql.cursors
from pymysql.constants import ER

from ingest.canonical.rows import source_errors
from viewtail.changes.tables import ForeignKey
from viewtail.servers.sessions import Connection, lacks_rights, number_of, quote

_COLUMNS = (
    "SELECT constraint_name, referenced_table_schema, referenced_table_name, column_name, referenced_column_name "
    "FROM information_schema.key_column_usage WHERE table_schema = %s AND table_name = %s "
    "AND referenced_table_name IS NOT NULL ORDER BY constraint_name, ordinal_position"
)
_CHANGE_ROWS = ("CASCADE", "SET NULL")
_RULE = "CASCADE|SET NULL|SET DEFAULT|RESTRICT|NO ACTION"
_RULES = rf"(?: ON DELETE (?P<on_delete>{_RULE}))?(?: ON UPDATE (?P<on_update>{_RULE}))?"
_NOT_THERE = (ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE)


def cascading_keys(connection: Connection, schema: str, name: str) -> list[ForeignKey]:
    """The cascading keys of one table; empty if the table does not exist, or the user may not see it."""
    of_key: dict[str, list[tuple[str, ...]]] = {}
    # A plain cursor: the caller's session may give rows in another form.
    with source_errors(connection), connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(_COLUMNS, (schema, name))
        for key, *more in cursor.fetchall():
            of_key.setdefault(key, []).append(tuple(more))
        created = _created(cursor, schema, name) if of_key else ""
    keys = [_foreign_key(created, (schema, name), key, rows) for key, rows in of_key.items()]
    return [key for key in keys if key.on_delete in _CHANGE_ROWS or key.on_update in _CHANGE_ROWS]


def _created(cursor: pymysql.cursors.Cursor, schema: str, name: str) -> str:
    """The table's CREATE TABLE; '' if the user may not see all of it."""
    try:
        cursor.execute(f"SHOW CREATE TABLE {quote(schema, name)}")
        return str((cursor.fetchone() or ("", ""))[1])
    except pymysql.err.MySQLError as error:
        if number_of(error) in _NOT_THERE or lacks_rights(error):
            return ""
        raise


def _foreign_key(created: str, table: tuple[str, str], name: str, rows: Sequence[tuple[str, ...]]) -> ForeignKey:
    schemas, tables, columns, referenced = zip(*rows, strict=True)
    parent = schemas[0], tables[0]
    of = f"(?:{_written(parent[0])}[.])?{_written(parent[1])}"
    clause = f"CONSTRAINT {_written(name)} FOREIGN KEY {_list(columns)} REFERENCES {of} {_list(referenced)}{_RULES}"
    match = re.search(clause, created)
    # If the statement does not show the rules, assume that they change rows: a needless check does no harm.
    on_delete, on_update = (match["on_delete"], match["on_update"]) if match else ("CASCADE", "CASCADE")
    return ForeignKey(
        name=name,
        table=table,
        columns=columns,
        parent=parent,
        referenced=referenced,
        on_delete=on_delete or "RESTRICT",
        on_update=on_update or "RESTRICT",
    )


def _list(names: Sequence[str]) -> str:
    return rf"\({', '.join(map(_written, names))}\)"


def _written(name: str) -> str:
    """A pattern for a name in the statement: MariaDB does not double the backticks in a key's parts."""
    return f"`(?:{re.escape(name)}|{re.escape(name.replace('`', '``'))})`"


def cascading_ancestry(connection: Connection, tables: list[tuple[str, str]]) -> list[ForeignKey]:
    """The cascading keys of some tables, of the tables that they refer to, and so on: a cascade goes through all of
    them."""
    all_keys: list[ForeignKey] = []
    known = set(tables)
    waiting = list(tables)
    while waiting:
        keys = cascading_keys(connection, *waiting.pop())
        all_keys += keys
        waiting += dict.fromkeys(key.parent for key in keys if key.parent not in known)
        known.update(key.parent for key in keys)
    return all_keys
