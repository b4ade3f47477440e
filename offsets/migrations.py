"""Tables of an earlier viewtail get the form that schema.py gives them, with their rows.

New columns are added, then filled from the old ones, then the old ones are dropped. Each statement may be the last one
that is executed: as long as the old columns are there they are what counts, and the next start begins again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from changes.errors import RETRIES, StoreUnavailableError
from offsets.lease import lock_name
from servers.sessions import quote

WAIT_S = 10  # for another process that migrates, and for statements that use a table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moved:
    """Columns that took the place of others."""

    old: Mapping[
        str, str
    ]  # by column that it is made of: the SQL of its part; the first one tells whether it is there
    assigned: str  # SQL of the new values, with {parts}: those of the columns that are there


_MOVED = {
    "source": _Moved(
        old={"server_identity": "server_identity", "binlog_base": "' with binlogs ', binlog_base, '.*'"},
        assigned="description = CONCAT({parts})",
    ),
    "pipeline": _Moved(
        old={
            "binlog_file": "'file', binlog_file",
            "epoch": "'epoch', epoch",
            "end_position": "'end', end_position",
            "start_position": "'start', start_position",
            "gtid": "'gtid', COALESCE(gtid, '')",
            "gtid_base": "'gtid_base', COALESCE(gtid_base, '')",
            "server_identity": "'server', COALESCE(server_identity, '')",
        },
        # Each pipeline was named as its store, and read the one source.
        assigned="position = IF(binlog_file IS NULL, NULL, JSON_OBJECT({parts})), store = name",
    ),
}


_ONE_VIEW_A_PIPELINE = "ALTER TABLE {table} DROP KEY name_idx, ADD UNIQUE KEY name_idx (name, pipeline_id)"


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
    steps: list[str] = []
    for ddl in tables:
        table = table_of(ddl)
        steps += _columns_added(quote(database, table), ddl, present[table])
        if table in _MOVED:
            steps += _columns_moved(quote(database, table), _MOVED[table], present[table])
        if table == "view" and _key_length(cursor, database, table) == 1:
            steps.append(_ONE_VIEW_A_PIPELINE.format(table=quote(database, table)))
    return steps


def _key_length(cursor: Any, database: str, table: str) -> int:
    """Of the key `name_idx`, in columns."""
    cursor.execute(
        "SELECT COUNT(*) FROM information_schema.statistics WHERE table_schema = %s AND table_name = %s "
        "AND index_name = 'name_idx'",
        (database, table),
    )
    return int(cursor.fetchone()[0])


def _columns_added(table: str, ddl: str, present: Sequence[str]) -> list[str]:
    defined = re.findall(r"^  (`(\w+)`.*(?:\n    .*)?),$", ddl, re.MULTILINE)
    added = [f"ADD COLUMN {definition}" for definition, name in defined if name not in present]
    return [f"ALTER TABLE {table} {', '.join(added)}"] if added else []


def _columns_moved(table: str, moved: _Moved, present: Sequence[str]) -> list[str]:
    old = [column for column in moved.old if column in present]
    dropped = [f"ALTER TABLE {table} {', '.join(f'DROP COLUMN {column}' for column in old)}"] if old else []
    if next(iter(moved.old)) not in old:
        return dropped  # they were moved
    assigned = moved.assigned.format(parts=", ".join(moved.old[column] for column in old))
    return [f"UPDATE {table} SET {assigned}", "COMMIT", *dropped]
