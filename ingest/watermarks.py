"""Checks and grants that several kinds of source share: of watermarks on the primary, and of reading tables."""

from __future__ import annotations

from collections.abc import Iterator

from ingest import Tables
from ingest.left_out import left_out_checks
from viewtail.changes.findings import Finding, expect, fail
from viewtail.changes.patterns import pattern_of
from viewtail.changes.tables import full_name
from viewtail.servers.facts import facts_of
from viewtail.servers.privileges import Privileges, account, on_database
from viewtail.servers.sessions import Connection, MySQLAddress, quote, value_of

WHERE = "source"
WATERMARK_PRIVILEGES = ("CREATE", "SELECT", "INSERT", "UPDATE")


def select_grant(address: MySQLAddress, schema: str, table: str) -> str:
    """The statement that grants SELECT on a table, or on the whole schema where a pattern stands for several."""
    return f"GRANT SELECT ON {_on(schema, table)} TO {account(address)};"


def _on(schema: str, table: str) -> str:
    pattern = pattern_of(schema, table)
    if pattern is None:
        return quote(schema, table)
    return f"{quote(pattern.likes[0])}.*" if pattern.only is None else quote(*pattern.only[:2])


def select_check(address: MySQLAddress, schema: str, table: str, why: str, *, is_granted: bool) -> Finding:
    """Say whether the user may SELECT what `select_grant` grants."""
    pattern = pattern_of(schema, table)
    if pattern is None:
        what = full_name(schema, table)
    else:
        what = f"{schema}.*" if pattern.only is None else full_name(*pattern.only[:2])
    seen = "granted" if is_granted else "not granted"
    return expect(is_granted, WHERE, f"SELECT on {what}", seen, why, select_grant(address, schema, table))


def watermark_checks(
    connection: Connection, address: MySQLAddress, database: str, tables: Tables = ()
) -> Iterator[Finding]:
    """Check that watermarks can be written on the source's primary, and are in its binlog with these tables' rows."""
    why = "a backfill begins with a watermark row, which must come through the stream of changes"
    if variable := value_of(connection, facts_of(connection).read_only):
        mend = (
            f"VIEWTAIL_SOURCE__PRIMARY_URL=mysql://USER:PASSWORD@PRIMARY:3306, or there: SET GLOBAL {variable} = OFF;"
        )
        yield fail(WHERE, "primary is writable", f"{address} is read-only: {variable} is ON", why, mend)
        return
    missing = Privileges.of(connection).missing(WATERMARK_PRIVILEGES, database, "watermark")
    seen = f"not granted: {', '.join(missing)}" if missing else "can be written"
    mend = f"GRANT {', '.join(WATERMARK_PRIVILEGES)} ON {on_database(database)} TO {account(address)};"
    yield expect(not missing, WHERE, f"watermarks in {database}", seen, why, mend)
    yield from left_out_checks(connection, address, database, tables, is_primary=True)
