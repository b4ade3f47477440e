"""The foreign keys that delete or change rows of some tables by themselves, as information_schema shows them now.

It opens no session and decides no transaction.
"""

from __future__ import annotations

import pymysql
import pymysql.cursors

from changes.tables import ForeignKey
from ingest.canonical.rows import source_error
from servers.sessions import Connection

_KEYS = """
SELECT r.constraint_name, r.delete_rule, r.update_rule, k.referenced_table_schema, k.referenced_table_name,
  k.column_name, k.referenced_column_name
FROM information_schema.referential_constraints r JOIN information_schema.key_column_usage k
  ON k.constraint_schema = r.constraint_schema AND k.constraint_name = r.constraint_name AND k.table_name = r.table_name
WHERE r.constraint_schema = %s AND r.table_name = %s AND k.table_schema = %s AND k.table_name = %s
  AND (r.delete_rule IN ('CASCADE', 'SET NULL') OR r.update_rule IN ('CASCADE', 'SET NULL'))
ORDER BY r.constraint_name, k.ordinal_position
"""


def cascading_keys(connection: Connection, schema: str, name: str) -> list[ForeignKey]:
    """Those of one table."""
    of_key: dict[str, list[tuple[str, ...]]] = {}
    try:
        with connection.cursor(pymysql.cursors.Cursor) as cursor:
            cursor.execute(_KEYS, (schema, name, schema, name))
            for key, *more in cursor.fetchall():
                of_key.setdefault(key, []).append(tuple(more))
    except pymysql.err.MySQLError as error:
        raise source_error(error, connection) from None
    return [
        ForeignKey(
            name=key,
            table=(schema, name),
            columns=tuple(row[4] for row in rows),
            parent=(rows[0][2], rows[0][3]),
            referenced=tuple(row[5] for row in rows),
            on_delete=rows[0][0],
            on_update=rows[0][1],
        )
        for key, rows in of_key.items()
    ]


def cascading_ancestry(connection: Connection, tables: list[tuple[str, str]]) -> list[ForeignKey]:
    """Those of some tables, of the tables that they refer to, and so on: a cascade goes through all of them."""
    found: list[ForeignKey] = []
    known = set(tables)
    waiting = list(tables)
    while waiting:
        keys = cascading_keys(connection, *waiting.pop())
        found += keys
        waiting += dict.fromkeys(key.parent for key in keys if key.parent not in known)
        known.update(key.parent for key in keys)
    return found
