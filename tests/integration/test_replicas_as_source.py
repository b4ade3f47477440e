"""A replica as the source, which does not have in its binlog what it applies: who is told, and of what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stack.mariadb
import stack.mysql
from ingest.left_out import left_out_checks, why_missing
from stack import Server
from tests.support.asking import ask
from tests.support.running import wait_for
from viewtail.changes.findings import Finding, Level
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]
KINDS: dict[str, Any] = {"mysql": stack.mysql, "mariadb": stack.mariadb}
OPTIONS = {"mysql": ["--server-id=78", "--log-replica-updates=OFF"], "mariadb": ["--server-id=78"]}


def begin(kind: str, replica: Server, primary: Server) -> None:
    if kind == "mysql":
        executed = ask(primary, "SELECT @@GLOBAL.gtid_executed")[0][0].replace("\n", "")
        statements = [
            "RESET BINARY LOGS AND GTIDS",
            f"SET GLOBAL gtid_purged = '{executed}'",
            (
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {primary.port}, "
                "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1"
            ),
            "START REPLICA",
        ]
    else:
        (position,) = ask(primary, "SELECT @@GLOBAL.gtid_binlog_pos")[0]
        statements = [
            f"SET GLOBAL gtid_slave_pos = '{position}'",
            (
                f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {primary.port}, MASTER_USER = 'root', "
                "MASTER_USE_GTID = slave_pos"
            ),
            "START SLAVE",
        ]
    for statement in statements:
        ask(replica, statement)


def findings(server: Server, user: str, *, is_primary: bool = False) -> dict[str, Finding]:
    address = MySQLAddress(host="127.0.0.1", port=server.port, user=user)
    with open_session(address, role="source") as connection:
        found = left_out_checks(connection, address, "viewtail", [("shop", "item")], is_primary=is_primary)
        return {one.what: one for one in found if one.level is not Level.OK}


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_that_does_not_log_what_it_applies_is_named_by_check_and_by_who_waits(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    primary: Server = request.getfixturevalue(f"{kind}_server")
    replica: Server = KINDS[kind].start(tmp_path / "replica", options=OPTIONS[kind])
    tailed, marks = (MySQLAddress(host="127.0.0.1", port=one.port, user="root") for one in (replica, primary))

    def why() -> str:
        return why_missing(tailed, marks, "viewtail", "nobody's") or ""

    try:
        ask(replica, "CREATE USER few")
        ask(replica, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO few")
        assert findings(replica, "few") == {} and "that is no replica. Let VIEWTAIL_SOURCE__PRIMARY_URL be" in why()
        begin(kind, replica, primary)
        wait_for("it replicates", lambda: "does not log what it applies (log_replica_updates is OFF)" in why())
        found = findings(replica, "root")
        assert {name: one.level for name, one in found.items()} == {
            "watermarks in the binlog": Level.FAIL,
            "changes of shop.item in the binlog": Level.FAIL,
        }
        assert all("log_replica_updates = ON" in one.mend for one in found.values())
        # Of two primaries of each other one is read: what is committed on it is in its binlog.
        assert why_missing(tailed, tailed, "viewtail", "nobody's") is None
        (told,) = findings(replica, "root", is_primary=True).values()
        assert told.level is Level.WARN and told.what == "changes of shop.item in the binlog"
        if kind == "mariadb":
            ask(primary, "CREATE DATABASE IF NOT EXISTS replicated")
            wait_for("it applied something", lambda: ask(replica, "SHOW DATABASES LIKE 'replicated'"))
            (told,) = findings(replica, "few").values()
            assert told.mend.startswith("GRANT REPLICA MONITOR ON *.* TO") and "log_slave_updates=OFF" in told.why
        ask(replica, "STOP REPLICA" if kind == "mysql" else "STOP SLAVE")
        assert "its replication is stopped" in why()
        assert why_missing(marks, marks, "viewtail", "nobody's") is None
    finally:
        replica.kill()
        if kind == "mariadb":
            ask(primary, "DROP DATABASE IF EXISTS replicated")
