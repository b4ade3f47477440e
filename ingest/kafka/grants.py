"""The rights that the users of a Kafka source need: on the brokers, and on the server with the canonical rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ingest import SourceAccess
from ingest.kafka.topics import groups_of
from ingest.watermarks import WATERMARK_PRIVILEGES
from viewtail.changes.published import POSITIONS
from viewtail.servers.acls import TO_CONSUME, Right, commands
from viewtail.servers.privileges import account
from viewtail.servers.privileges import grants as grants_on
from viewtail.servers.sessions import quote


def grants(access: SourceAccess, topics: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """The commands for Kafka, and the statements for MySQL."""
    rights = [
        Right(operations=("DescribeConfigs", "Read"), of="topic", names=tuple(sorted(set(topics.values())))),
        Right(operations=("Read",), of="topic", names=(POSITIONS,)),
        Right(operations=("Read",), of="group", names=(groups_of(access),), pattern="prefixed"),
        TO_CONSUME,
    ]
    yield from commands(access.section, "whose topics are read", rights)
    address, primary = access.address(), access.primary()
    if access.section.fill_from == "table":
        yield f"-- On {address}, which has the canonical rows:"
        for schema, table in topics:
            yield f"GRANT SELECT ON {quote(schema, table)} TO {account(address)};"
    yield from grants_on(primary, access.section.database, WATERMARK_PRIVILEGES, "where watermarks are written")
