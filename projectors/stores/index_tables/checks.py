"""Checks the MySQL server of index tables and offsets. Reads only, changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

from viewtail.changes.errors import SourceError
from viewtail.changes.findings import Finding, expect, fail, ok, warn
from viewtail.servers.asking import findings
from viewtail.servers.facts import facts_of
from viewtail.servers.privileges import Privileges, account, on_database
from viewtail.servers.sessions import Connection, MySQLAddress, value_of

PRIVILEGES = ("CREATE", "ALTER", "DROP", "INDEX", "SELECT", "INSERT", "UPDATE", "DELETE")
_WHERE = "mysql"


def checks(address: MySQLAddress, database: str, *, has_views: bool) -> list[Finding]:
    """Check the connection, the version, the database and the rights in it; `has_views`: index tables are kept there
    too."""
    variable = "VIEWTAIL_MYSQL__URL, or VIEWTAIL_SOURCE__URL"
    return findings(_WHERE, address, "store", variable, lambda session: _asked(session, address, database, has_views))


def rights_to_swap(address: MySQLAddress) -> list[str]:
    """The optional right that a swap of index tables uses, as comments: the operator decides."""
    return [f"-- Optional, {_TO_SWAP}:", f"-- {_grant_process(address)}"]


_TO_SWAP = "for viewtail rebuild of index tables, which waits for transactions that are older than the copy"


def _grant_process(address: MySQLAddress) -> str:
    return f"GRANT PROCESS ON *.* TO {account(address)};"


def _asked(connection: Connection, address: MySQLAddress, database: str, has_views: bool) -> Iterator[Finding]:
    try:
        facts = facts_of(connection)
    except SourceError as error:
        why = "viewtail does not know how to write to it"
        mend = "use MySQL 8.4 or newer, or MariaDB 10.11 or newer"
        yield fail(_WHERE, "version", error, why, mend)
        return
    yield ok(_WHERE, "version", f"{facts.name} {'.'.join(map(str, facts.version))}")
    if variable := value_of(connection, facts.read_only):
        why = "index tables and offsets are written there"
        mend = (
            f"VIEWTAIL_MYSQL__URL=mysql://USER:PASSWORD@PRIMARY:3306/DATABASE, or there: SET GLOBAL {variable} = OFF;"
        )
        yield fail(_WHERE, "writable", f"{address} is read-only: {variable} is ON", why, mend)
    yield from _database(connection, address, database)
    if has_views:
        yield _process(connection, address)
    if value_of(connection, "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit") != 1:
        name = "innodb_flush_log_at_trx_commit"
        why = (
            "a crash of the server may take back offsets and rows it had acknowledged; both go together, and changes "
            "are applied again. A topic of documents is filled again where a fan-out was taken back"
        )
        yield warn(_WHERE, name, "not 1", why, facts.setting.format(name=name, value=1))


def _process(connection: Connection, address: MySQLAddress) -> Finding:
    if not Privileges.of(connection).missing(["PROCESS"]):
        return ok(_WHERE, "PROCESS", "granted")
    why = (
        f"it is {_TO_SWAP}. Without it such a transaction (REPEATABLE READ, open since before) finds too few rows "
        "after a swap. Nothing else needs it"
    )
    return warn(_WHERE, "PROCESS", "not granted", why, _grant_process(address))


def _database(connection: Connection, address: MySQLAddress, database: str) -> Iterator[Finding]:
    exists = value_of(connection, "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = %s", database)
    missing = Privileges.of(connection).missing(PRIVILEGES, database)
    seen = f"not granted: {', '.join(missing)}" if missing else "granted"
    mend = f"GRANT {', '.join(PRIVILEGES)} ON {on_database(database)} TO {account(address)};"
    yield expect(not missing, _WHERE, f"rights on {database}.*", seen, "index tables and offsets are kept there", mend)
    if not missing:
        yield ok(_WHERE, f"database {database}", "exists" if exists else "missing; `run` creates it")
