"""Has one table of what differs between the servers viewtail works with; an unknown server stops."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pymysql

from viewtail.changes.errors import SourceError

MYSQL = "MySQL"
MARIADB = "MariaDB"
# Of utf8mb4, by the kind of server: they do not pad, so keys that differ in bytes stay two keys.
BINARY_COLLATIONS = {MYSQL: "utf8mb4_0900_bin", MARIADB: "utf8mb4_nopad_bin"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """One kind of server: the names of its identity and its binlog's end, what it logs, how it writes upserts."""

    name: str
    version: tuple[int, int, int]
    identity: str  # a SELECT of one value that names this very server
    status: str  # statement for the binlog's present end: file, position, ...
    executed: str  # a SELECT of one value: all transactions that its binlog holds or held; '' where they have no GTIDs
    select_limit: str  # a statement after which the server ends a SELECT of the session that takes longer than {ms}
    setting: str  # a statement that sets a global variable for good, with {name} and {value}
    index_is_used: str  # a condition on information_schema.statistics: the optimizer may use the index
    grants: str  # a statement for the user's own grants, roles that are active included: {roles}
    status_privilege: str  # what asking for the binlog's end takes, as the server lists it
    read_only: str  # a SELECT of the name of the variable that keeps everybody from writing; NULL where none does
    logs_cascades: str  # a SELECT of one value: whether what a foreign key's cascade changes is in the binlog
    binary_collation: str  # one of BINARY_COLLATIONS
    upsert_alias: str  # after VALUES (...): how ON DUPLICATE KEY UPDATE may name the new row
    new_value: str  # of a column there, with {column} quoted

    def lookups(self, tables: Collection[Any]) -> list[list[Any]]:
        """The tables that one question to information_schema should name: all of them, or on MariaDB one at a time.

        MariaDB looks a table up only where its name is compared with one value; for several it opens all of the schema.
        """
        return [[table] for table in tables] if self.name == MARIADB else [[*tables]] if tables else []


def folds_names(connection: pymysql.Connection[Any]) -> bool | None:
    """Return whether names of tables and databases that differ in case alone are the same to the server.

    None: they may be, in a binlog that it has. A MySQL keeps the setting for life; a MariaDB that tells names apart by
    case may have been started with another one before.
    """
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@lower_case_table_names, VERSION()")
        setting, version = cursor.fetchone() or (0, "")
    return True if setting else None if "mariadb" in version.lower() else False


def limit_selects(connection: pymysql.Connection[Any], seconds: float) -> None:
    """Let the server end each SELECT of a session that takes longer."""
    connection.query(facts_of(connection).select_limit.format(ms=round(seconds * 1000)))


def facts_of(connection: pymysql.Connection[Any]) -> ServerFacts:
    """The facts of the server behind a connection; raises SourceError for one viewtail does not know."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION(), @@version_comment")
        version_text, comment = cursor.fetchone() or ("", "")
    numbers = [int(number) for number in version_text.split("-")[0].split(".")[:3]]
    version = (numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 0)
    is_mariadb = "mariadb" in f"{version_text} {comment}".lower()
    if is_mariadb and version >= (10, 11, 0):
        return ServerFacts(
            name=MARIADB,
            version=version,
            # Its server_uid is made of the network card and the port: it changes with a container, and a copy of the
            # data on one machine shares it. Every server of a topology must have a server_id of its own.
            identity="SELECT CONCAT('mariadb-server-id-', @@server_id)",
            status="SHOW MASTER STATUS",
            executed="SELECT @@GLOBAL.gtid_binlog_pos",
            select_limit="SET SESSION max_statement_time = {ms} * 1e-3",
            setting="SET GLOBAL {name} = {value};  -- and in my.cnf, [mariadbd]: {name} = {value}",
            index_is_used="ignored = 'NO'",
            grants="SHOW GRANTS",
            status_privilege="BINLOG MONITOR",
            # A number in old versions; in new ones a word, of which several keep people from writing.
            read_only="SELECT IF(CONCAT(@@GLOBAL.read_only) NOT IN ('0', 'OFF'), 'read_only', NULL)",
            logs_cascades="SELECT FALSE",
            binary_collation=BINARY_COLLATIONS[MARIADB],
            upsert_alias="",
            new_value="VALUES({column})",
        )
    if not is_mariadb and version >= (8, 4, 0):
        return ServerFacts(
            name=MYSQL,
            version=version,
            identity="SELECT @@server_uuid",
            status="SHOW BINARY LOG STATUS",
            executed="SELECT IF(@@GLOBAL.gtid_mode = 'ON', @@GLOBAL.gtid_executed, '')",
            select_limit="SET SESSION max_execution_time = {ms}",
            setting="SET PERSIST {name} = {value};",
            index_is_used="is_visible = 'YES'",
            grants="SHOW GRANTS FOR CURRENT_USER() USING {roles}",
            status_privilege="REPLICATION CLIENT",
            read_only="SELECT IF(@@GLOBAL.super_read_only, 'super_read_only', "
            "IF(@@GLOBAL.read_only, 'read_only', NULL))",
            # A setting gives cascades back to InnoDB, out of the binlog's sight; it is to go one day.
            logs_cascades="SELECT NOT EXISTS (SELECT 1 FROM performance_schema.global_variables WHERE variable_name = "
            "'innodb_native_foreign_keys' AND variable_value = 'ON')"
            if version >= (9, 6, 0)
            else "SELECT FALSE",
            binary_collation=BINARY_COLLATIONS[MYSQL],
            upsert_alias="AS new",
            new_value="new.{column}",
        )
    raise SourceError(
        f"server {version_text} ({comment}) is not one viewtail can read: it needs MySQL 8.4 or newer, or MariaDB "
        "10.11 or newer"
    )
