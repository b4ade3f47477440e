"""Checks what writing watermarks needs of the source's primary, whatever reads them again."""

from __future__ import annotations

from collections.abc import Iterator

from ingest import Tables
from ingest.left_out import left_out_checks
from viewtail.changes.findings import Finding, expect, fail
from viewtail.servers.facts import facts_of
from viewtail.servers.privileges import Privileges, account, on_database
from viewtail.servers.sessions import Connection, MySQLAddress, value_of

WHERE = "source"
WATERMARK_PRIVILEGES = ("CREATE", "SELECT", "INSERT", "UPDATE")


def watermark_checks(
    connection: Connection, address: MySQLAddress, database: str, tables: Tables = ()
) -> Iterator[Finding]:
    """Whether watermarks can be written on the source's primary, and are in its binlog with what these tables get."""
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
