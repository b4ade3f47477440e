"""A MySQL server that replicates another one, and may take its place."""

from __future__ import annotations

from typing import Any

import pymysql

from stack import Server
from tests.support.asking import ask


class Node:
    """One server of a chain."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return ask(self.server, query)

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.rows(statement)

    def begin_anew(self, *databases: str) -> None:
        """It replicates nothing, and has nothing of these databases, and no history."""
        self.server.start()
        self.execute("STOP REPLICA", "RESET REPLICA ALL", "SET GLOBAL super_read_only = OFF")
        self.execute("CHANGE REPLICATION FILTER REPLICATE_WILD_IGNORE_TABLE = ()")
        for database in databases:
            self.execute(f"DROP DATABASE IF EXISTS {database}")
        self.execute("RESET BINARY LOGS AND GTIDS")

    def replicate(self, other: Node) -> None:
        self.execute(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {other.server.port}, "
            "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, "
            "SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 1000",
            "START REPLICA",
        )

    def promote(self) -> None:
        self.execute("STOP REPLICA", "RESET REPLICA ALL")

    def has_all_of(self, other: Node) -> None:
        executed = other.rows("SELECT @@GLOBAL.gtid_executed")[0][0].replace("\n", "")
        found = self.rows(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', 20)")
        assert found == [(0,)], self.rows("SHOW REPLICA STATUS")

    def purge(self) -> None:
        self.execute("FLUSH BINARY LOGS")
        self.execute(f"PURGE BINARY LOGS TO '{self.rows('SHOW BINARY LOGS')[-1][0]}'")

    def end_sessions(self) -> None:
        """End all sessions of clients but this one: who wrote here has to come again."""
        for (number,) in self.rows(
            "SELECT processlist_id FROM performance_schema.threads WHERE processlist_id <> CONNECTION_ID() "
            "AND processlist_command IN ('Query', 'Sleep', 'Execute')"
        ):
            try:
                self.execute(f"KILL {number}")
            except pymysql.err.MySQLError:
                continue  # it ended by itself
