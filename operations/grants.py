"""The rights that viewtail needs, as the statements that grant them and no more.

Made from settings and declarations alone: no server is asked, since nobody may be able to log in yet. The checks ask
for the same rights, by the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ingest.binlog.checks import REPLICATION, WATERMARK_PRIVILEGES
from operations.check import Servers, tuple_of
from projectors.stores.index_tables import checks as mysql_checks
from projectors.views import View
from servers.privileges import account, on_database
from servers.sessions import MySQLAddress, quote


def statements(servers: Servers, views: Sequence[View]) -> list[str]:
    """GRANT statements, each group behind a comment that names its server; the users must exist."""
    tables = sorted({tuple_of(view.entity.table) for view in views})
    source, primary, store = servers.source, servers.primary, servers.store
    lines = [f"-- On {source}, whose changes are read:"]
    lines += [f"GRANT {', '.join(name for name, _ in REPLICATION)} ON *.* TO {account(source)};"]
    lines += [f"GRANT SELECT ON {quote(schema, table)} TO {account(source)};" for schema, table in tables]
    if _key(primary) != _key(store) or servers.watermark_database != servers.store_database:
        lines += _database(
            primary, servers.watermark_database, WATERMARK_PRIVILEGES, "where watermarks are written"
        )
    lines += _database(
        store, servers.store_database, mysql_checks.PRIVILEGES, "where index tables and offsets are kept"
    )
    return lines


def _database(address: MySQLAddress, database: str, privileges: Sequence[str], what: str) -> Iterator[str]:
    yield f"-- On {address}, {what}:"
    yield f"GRANT {', '.join(privileges)} ON {on_database(database)} TO {account(address)};"


def _key(address: MySQLAddress) -> tuple[object, ...]:
    return (address.host, address.port, address.unix_socket, address.user)
