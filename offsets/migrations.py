"""Tables of an earlier viewtail get the form that schema.py gives them, with their rows.

Each migration adds the new columns, sets them from the old ones, then drops the old ones. It may be cut off after any
statement: as long as the old columns are there, they count, and the next start begins again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pymysql

from offsets.lease import lock_name
from viewtail.changes.errors import RETRIES, StoreUnavailableError
from viewtail.servers.sessions import number_of, quote

WAIT_S = 10  # for another process that migrates, and for statements that use a table


# By table: how columns get the values of those that they took the place of, which are dropped then. The first one named
# says whether that is still to be done; others may be missing, since the first versions did not have them.
_MOVED = {
    "source": "description = CONCAT({server_identity}, ' with binlogs ', {binlog_base}, '.*')",
    # Each pipeline was named as its store, and read the one source.
    "pipeline": "position = IF({binlog_file} IS NULL, NULL, JSON_OBJECT('file', {binlog_file}, 'epoch', {epoch}, "
    "'end', {end_position}, 'start', {start_position}, 'gtid', COALESCE({gtid}, ''), "
    "'gtid_base', COALESCE({gtid_base}, ''), 'server', COALESCE({server_identity}, ''))), store = name",
}


_MISSING = (1049, 1146)  # a database, a table
_VARCHAR = re.compile(r"`\w+` VARCHAR\((\d+)\)")


def table_of(ddl: str) -> str:
    """The table that a CREATE TABLE is of."""
    return ddl.split("`")[1]


def columns(cursor: Any, database: str) -> dict[str, list[str]]:
    """The columns of each table that is there."""
    cursor.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s "
        "ORDER BY ordinal_position",
        (database,),
    )
    found: dict[str, list[str]] = {}
    for table, column in cursor.fetchall():
        found.setdefault(table, []).append(column)
    return found


def visible_columns(cursor: Any, database: str) -> dict[str, list[str]]:
    """As `columns`, for a reader. Raises PyMySQL's error where no table shows because the user may see none."""
    found = columns(cursor, database)
    if not found:
        # information_schema says nothing of what the user may not see. Of a table that is not there either, a
        # statement says whether the user might see it.
        try:
            cursor.execute(f"SELECT 1 FROM {quote(database, 'view')} LIMIT 0")
        except pymysql.err.MySQLError as error:
            if number_of(error) not in _MISSING:
                raise
    return found


def migrate(cursor: Any, database: str, tables: Sequence[str]) -> None:
    """Bring tables that are there into the form that their statements `tables` describe; commits at each ALTER."""
    if not _steps(cursor, database, tables):
        return
    lock = lock_name(database, "migration")
    cursor.execute("SELECT GET_LOCK(%s, %s)", (lock, WAIT_S))
    if cursor.fetchone() != (1,):
        raise StoreUnavailableError(f"another viewtail migrates its tables in {database}; {RETRIES}")
    cursor.execute(f"SET SESSION lock_wait_timeout = {WAIT_S}")
    try:
        # Another process may have done it meanwhile.
        for step in _steps(cursor, database, tables):
            cursor.execute(step)
    finally:
        cursor.execute("SELECT RELEASE_LOCK(%s)", (lock,))
        cursor.fetchall()


def _steps(cursor: Any, database: str, tables: Sequence[str]) -> list[str]:
    present = columns(cursor, database)
    lengths = _lengths(cursor, database)
    steps: list[str] = []
    for ddl in tables:
        name = table_of(ddl)
        table = quote(database, name)
        steps += _columns_added(table, ddl, present[name])
        steps += _columns_widened(table, ddl, lengths.get(name, {}))
        if name in _MOVED:
            steps += _columns_moved(table, _MOVED[name], present[name])
        if name == "view":
            steps += _key_widened(cursor, database, table)
    return steps


def _defined(ddl: str) -> list[tuple[str, str]]:
    """Each column's definition, and its name."""
    return re.findall(r"^  (`(\w+)`.*(?:\n    .*)?),$", ddl, re.MULTILINE)


def _columns_added(table: str, ddl: str, present: Sequence[str]) -> list[str]:
    added = [f"ADD COLUMN {definition}" for definition, name in _defined(ddl) if name not in present]
    return [f"ALTER TABLE {table} {', '.join(added)}"] if added else []


def _lengths(cursor: Any, database: str) -> dict[str, dict[str, int]]:
    """By table and column: how many characters the texts of a fixed bound may have."""
    cursor.execute(
        "SELECT table_name, column_name, character_maximum_length FROM information_schema.columns "
        "WHERE table_schema = %s AND data_type = 'varchar'",
        (database,),
    )
    found: dict[str, dict[str, int]] = {}
    for table, column, length in cursor.fetchall():
        found.setdefault(table, {})[column] = length
    return found


def _columns_widened(table: str, ddl: str, lengths: Mapping[str, int]) -> list[str]:
    """Names grew when topics became sources."""
    widened = [
        f"MODIFY COLUMN {definition}"
        for definition, name in _defined(ddl)
        if (declared := _VARCHAR.match(definition)) and lengths.get(name, int(declared[1])) < int(declared[1])
    ]
    return [f"ALTER TABLE {table} {', '.join(widened)}"] if widened else []


def _columns_moved(table: str, assigned: str, present: Sequence[str]) -> list[str]:
    named = list(dict.fromkeys(re.findall(r"{(\w+)}", assigned)))
    if named[0] not in present:
        return []
    values = assigned.format_map({name: name if name in present else "NULL" for name in named})
    dropped = ", ".join(f"DROP COLUMN {name}" for name in named if name in present)
    return [f"UPDATE {table} SET {values}", "COMMIT", f"ALTER TABLE {table} {dropped}"]


def _key_widened(cursor: Any, database: str, table: str) -> list[str]:
    """Views were one a name; now they are one a name and pipeline."""
    cursor.execute(
        "SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = %s AND table_name = 'view' "
        "AND index_name = 'name_idx'",
        (database,),
    )
    if cursor.fetchone() != (1,):
        return []
    return [f"ALTER TABLE {table} DROP KEY name_idx, ADD UNIQUE KEY name_idx (name, pipeline_id)"]
