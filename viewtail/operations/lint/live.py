"""Reads the definitions of a server's tables, as SHOW CREATE TABLE prints them, and the names of its programs.

It opens no session. What the user may not see is not there for it: `unseen` says which rights are missing.
"""

from __future__ import annotations

from collections.abc import Iterator

import pymysql.cursors

from ingest.canonical.rows import source_errors, user_of
from ingest.sql_words import Name
from viewtail.changes.errors import MisuseError
from viewtail.operations.lint.linting import Linter, SqlFile
from viewtail.operations.lint.schema import Place, Program
from viewtail.servers.privileges import Privileges
from viewtail.servers.sessions import Connection, quote

_TABLES = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = %s "
    "AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY table_name"
)
_PROGRAMS = (
    "SELECT 'trigger', trigger_name FROM information_schema.triggers WHERE trigger_schema = %s "
    "UNION ALL SELECT LOWER(routine_type), routine_name FROM information_schema.routines WHERE routine_schema = %s "
    "UNION ALL SELECT 'event', event_name FROM information_schema.events WHERE event_schema = %s ORDER BY 1, 2"
)
_SEES = {"TRIGGER": "triggers", "EXECUTE": "procedures and functions", "EVENT": "events"}
_ON_SERVER = Place(file="", line=0, statement=0)


def define(linter: Linter, connection: Connection, schema: str, *, is_judged: bool) -> None:
    """Read every table and program of a database into a linter.

    Raises MisuseError where there is no table, or the user sees none.
    """
    with source_errors(connection), connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(_TABLES, (schema,))
        tables = [table for (table,) in cursor.fetchall()]
        if not tables and is_judged:
            raise MisuseError(
                f"{schema} has no table, or the user {user_of(connection)} may see none: check the name (--database), "
                f"or GRANT SELECT ON {quote(schema)}.* to that user"
            )
        for table in tables:
            cursor.execute(f"SHOW CREATE TABLE {quote(schema, table)}")
            _, text = cursor.fetchone() or ("", "")
            linter.define(SqlFile(name="", text=f"USE {quote(schema)};\n{text};"), is_judged=is_judged)
        cursor.execute(_PROGRAMS, (schema,) * 3)
        for kind, name in cursor.fetchall():
            linter.schema.programs.append(Program(kind=kind, name=Name(schema, name), place=_ON_SERVER))


def unseen(connection: Connection, schema: str) -> Iterator[str]:
    """What of a database the user may not see, with the right that is missing."""
    with source_errors(connection):
        missing = Privileges.of(connection).missing(_SEES, schema)
    for right in missing:
        yield (
            f"{_SEES[right]} of {schema} are not looked at: the user {user_of(connection)} may not see them. "
            f"GRANT {right} ON {quote(schema)}.* to that user"
        )
