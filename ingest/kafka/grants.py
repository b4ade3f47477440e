"""What the users of a Kafka source must be allowed: at the brokers, and on the server with the canonical rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from changes.published import POSITIONS
from ingest import SourceAccess
from ingest.watermarks import WATERMARK_PRIVILEGES
from servers.privileges import account
from servers.privileges import grants as grants_on
from servers.sessions import quote


def grants(access: SourceAccess, topics: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """The statements for MySQL; for Kafka, whose rights no SQL gives, comments that say which."""
    group = access.section.group or f"viewtail.{access.own_database}"
    yield "-- On the Kafka cluster whose topics are read: READ, DESCRIBE and DESCRIBE_CONFIGS on"
    yield f"-- the topics {', '.join(sorted({*topics.values(), POSITIONS}))},"
    yield f"-- and READ on the groups that begin with {group}."
    address, primary = access.address(), access.primary()
    if access.section.fill_from == "table":
        yield f"-- On {address}, which has the canonical rows:"
        for schema, table in topics:
            yield f"GRANT SELECT ON {quote(schema, table)} TO {account(address)};"
    yield from grants_on(primary, access.section.database, WATERMARK_PRIVILEGES, "where watermarks are written")
