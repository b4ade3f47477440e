"""Owns the form of viewtail's own tables: its version, and the numbered steps from each version to the next.

The table `schema_version` has a row for each version that a database came to. schema.py describes the present version:
a new database gets that at once. A change of a table is a change there and a step here, at the end of STEPS, with a
test that it leads from tests/recorded to what schema.py says; steps are never changed once they were released.

A step may be cut off after any of its statements and begin again, so each is written so that it can. The table
`watermark` has no steps: on a source it belongs to several deployments, which may be of several versions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pymysql

from offsets.lease import lock_name
from viewtail.changes.errors import RETRIES, StoreError, StoreUnavailableError
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import number_of, quote

Step: TypeAlias = Callable[[Any, str], None]  # takes a cursor and the database

FIRST = 1  # the version of viewtail 0.2.0
_INCOMPLETE = 0  # not all tables are made yet
WAIT_S = 10  # for another process that migrates, and for statements that use a table

_MISSING = (1049, 1146)  # a database, a table


def _to_2(cursor: Any, database: str) -> None:
    """Fan-outs are durable, and unique keys are called so."""
    for table in _indexed(cursor, database, "name_idx"):
        if table in ("source", "pipeline", "view"):
            cursor.execute(f"ALTER TABLE {quote(database, table)} RENAME INDEX name_idx TO name_key")
    cursor.execute(f"""
CREATE TABLE IF NOT EXISTS {quote(database, "fan_out")} (
  `view_id` SMALLINT UNSIGNED NOT NULL COMMENT 'Its view: view.id',
  `what_hash` BINARY(16) NOT NULL COMMENT 'First half of the SHA-256 of `what`',
  `what` MEDIUMTEXT NOT NULL COMMENT 'The changed rows of another table, as the view names them',
  `changed_table` VARCHAR(160) NOT NULL COMMENT 'For people: that table',
  `changed_key` VARCHAR(1000) NOT NULL COMMENT 'For people: the keys of these rows',
  `version` BIGINT UNSIGNED NOT NULL COMMENT 'Of the change that this pass brings to the entities',
  `committed_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When that was committed',
  `next_version` BIGINT UNSIGNED NULL COMMENT 'Of a change since the pass began: another pass follows; NULL: none does',
  `next_committed_at` TIMESTAMP(6) NULL COMMENT 'When that was committed',
  `page_cursor` MEDIUMTEXT NULL COMMENT 'Where the pass goes on; NULL: at its beginning',
  `done_count` BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'Entities that the pass has written',
  `estimate` BIGINT UNSIGNED NULL COMMENT 'About how many there are; NULL: not known',
  `written_upto` BIGINT UNSIGNED NULL
    COMMENT 'The pass is done, its last page has this version: kept until the store shows a later one',
  `incarnation` VARCHAR(64) NOT NULL DEFAULT '' COMMENT 'Run of the store that the pass began in',
  PRIMARY KEY (`view_id`, `what_hash`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={facts_of(cursor.connection).binary_collation}
  COMMENT='viewtail: Changed rows that many entities depend on, and how many of these are written'""")


def _to_3(cursor: Any, database: str) -> None:
    """One table of many may be paused."""
    cursor.execute(f"""
CREATE TABLE IF NOT EXISTS {quote(database, "view_part")} (
  `id` INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Compact key',
  `view_id` SMALLINT UNSIGNED NOT NULL COMMENT 'Its view: view.id',
  `part` VARCHAR(400) NOT NULL COMMENT 'Values of the braces, rendered as a key is',
  `given` VARCHAR(400) NOT NULL COMMENT 'For people: these values, as --part takes them',
  `table_name` VARCHAR(160) NOT NULL COMMENT 'The table, as schema.table',
  `state` VARCHAR(16) NOT NULL COMMENT 'One of paused or resumed',
  `reason` VARCHAR(1000) NULL COMMENT 'Why it is paused, if one was given',
  `paused_by` VARCHAR(255) NOT NULL COMMENT 'User and host of who paused it',
  `paused_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'Since when it is paused',
  PRIMARY KEY (`id`),
  UNIQUE KEY `view_part_key` (`view_id`, `part`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={facts_of(cursor.connection).binary_collation}
  COMMENT='viewtail: Tables of many that are paused in a view, or resumed and not right yet'""")


def _to_4(cursor: Any, database: str) -> None:
    """Incidents are noted, with whether people were told."""
    cursor.execute(f"""
CREATE TABLE IF NOT EXISTS {quote(database, "pipeline_incident")} (
  `id` INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'Compact key',
  `kind` VARCHAR(16) NOT NULL COMMENT 'One of down, halted, behind, view_halted, parked or margin',
  `pipeline_name` VARCHAR(320) NOT NULL COMMENT 'Name of the pipeline',
  `view_name` VARCHAR(255) NOT NULL DEFAULT '' COMMENT 'Name of the view, as store:name; empty: it is the pipeline',
  `began_at` TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) COMMENT 'When it was first seen',
  `told_at` TIMESTAMP(6) NULL COMMENT 'When people were told; NULL: not yet',
  `over_at` TIMESTAMP(6) NULL COMMENT 'Since when it is not seen any more; NULL: it lasts',
  PRIMARY KEY (`id`),
  UNIQUE KEY `incident_key` (`kind`, `pipeline_name`, `view_name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE={facts_of(cursor.connection).binary_collation}
  COMMENT='viewtail: What is not well, and whether people were told'""")


def _indexed(cursor: Any, database: str, index: str) -> list[str]:
    """The tables that have an index of that name."""
    cursor.execute(
        "SELECT DISTINCT table_name FROM information_schema.statistics WHERE table_schema = %s AND index_name = %s",
        (database, index),
    )
    return [table for (table,) in cursor.fetchall()]


STEPS: Sequence[Step] = (_to_2, _to_3, _to_4)  # the first one leads from FIRST to the version after it


def newest() -> int:
    """The version that this program works with."""
    return FIRST + len(STEPS)


def columns(cursor: Any, database: str) -> dict[str, list[str]]:
    """The columns of each table that is there."""
    cursor.execute(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = %s "
        "ORDER BY ordinal_position",
        (database,),
    )
    by_table: dict[str, list[str]] = {}
    for table, column in cursor.fetchall():
        by_table.setdefault(table, []).append(column)
    return by_table


def are_there(cursor: Any, database: str) -> bool:
    """Return whether a viewtail ever ran with this database, so that its tables can be read.

    Raises StoreError where they have another form than this program knows, PyMySQL's error where the user may not see
    them.
    """
    version = version_of(cursor, database)
    if version is not None and _INCOMPLETE < version < newest():
        raise StoreError(
            f"viewtail's tables in {database} have version {version}, and this viewtail works with version {newest()}. "
            "The next `viewtail run` of it brings them there; until then ask with the viewtail that runs"
        )
    return version not in (None, _INCOMPLETE)


def version_of(cursor: Any, database: str) -> int | None:
    """Read the tables' version; None where viewtail never ran. Raises StoreError for tables that cannot be migrated."""
    version = _noted(cursor, database)
    has_tables = version is None and {"pipeline", "view"} & columns(cursor, database).keys()
    # Asked again behind a look at the tables: who makes them notes their version first.
    if has_tables and (version := _noted(cursor, database)) is None:
        raise StoreError(
            f"the tables in {database} were made by a viewtail from before 0.2.0, which did not note their version: "
            f"they cannot be migrated. Let `viewtail run` fill every view anew: stop what runs with this database, "
            f"DROP DATABASE {quote(database)}; (index tables in it go, too), then start it again. Or name another "
            "database in VIEWTAIL_MYSQL__URL"
        )
    if version is not None and version > newest():
        raise StoreError(
            f"viewtail's tables in {database} have version {version}, and this viewtail knows version {newest()} and "
            "older ones: a newer viewtail has migrated them. Start that one, or a newer one"
        )
    return version


def _noted(cursor: Any, database: str) -> int | None:
    try:
        cursor.execute(f"SELECT MAX(version) FROM {quote(database, 'schema_version')}")
    except pymysql.err.MySQLError as error:
        if number_of(error) not in _MISSING:
            raise
        return None
    (version,) = cursor.fetchone()
    return None if version is None else int(version)


def begin(cursor: Any, database: str) -> None:
    """Note that other tables are about to be made. Who finds one of them must find a version."""
    if _noted(cursor, database) is None:
        _note(cursor, database, _INCOMPLETE)


def finish(cursor: Any, database: str) -> None:
    """Note that all tables are there, as this program makes them."""
    if _noted(cursor, database) == _INCOMPLETE:
        _note(cursor, database, newest())


def _note(cursor: Any, database: str, version: int) -> None:
    cursor.execute(f"INSERT IGNORE INTO {quote(database, 'schema_version')} (version) VALUES (%s)", (version,))
    cursor.connection.commit()


def migrate(cursor: Any, database: str) -> None:
    """Bring the tables from their version to this program's; commits at each step."""
    version = version_of(cursor, database)
    if version in (None, _INCOMPLETE, newest()):
        return
    lock = lock_name(database, "migration")
    cursor.execute("SELECT GET_LOCK(%s, %s)", (lock, WAIT_S))
    if cursor.fetchone() != (1,):
        raise StoreUnavailableError(f"another viewtail migrates its tables in {database}; {RETRIES}")
    cursor.execute(f"SET SESSION lock_wait_timeout = {WAIT_S}")
    try:
        # Another process may have done it meanwhile.
        for number in range(version_of(cursor, database) or FIRST, newest()):
            STEPS[number - FIRST](cursor, database)
            _note(cursor, database, number + 1)
    finally:
        cursor.execute("SELECT RELEASE_LOCK(%s)", (lock,))
        cursor.fetchall()
