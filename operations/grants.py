"""The rights that viewtail needs, as the statements that grant them and no more.

Made from settings and declarations alone: no server is asked, since nobody may be able to log in yet. The checks ask
for the same rights, by the same names.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingest.binlog.checks import REPLICATION, WATERMARK_PRIVILEGES
from operations.check import Servers
from projectors.views import View
from servers.privileges import account, grants
from servers.sessions import MySQLAddress, quote


def statements(servers: Servers, views: Sequence[View]) -> list[str]:
    """GRANT statements, each group behind a comment that names its server; the users must exist."""
    tables = sorted({view.entity.schema_and_table for view in views})
    source, primary = servers.source, servers.primary
    lines = [f"-- On {source}, whose changes are read:"]
    lines += [f"GRANT {', '.join(name for name, _ in REPLICATION)} ON *.* TO {account(source)};"]
    lines += [f"GRANT SELECT ON {quote(schema, table)} TO {account(source)};" for schema, table in tables]
    granted = {(_key(access.own), access.database) for _, access in servers.stores}  # below
    if (_key(primary), servers.watermark_database) not in granted:
        what = "where watermarks are written"
        lines += grants(primary, servers.watermark_database, WATERMARK_PRIVILEGES, what)
    for one, access in servers.stores:
        lines += one.grants(access)
    return lines


def _key(address: MySQLAddress) -> tuple[object, ...]:
    return (address.host, address.port, address.unix_socket, address.user)
