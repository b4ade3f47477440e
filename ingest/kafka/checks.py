"""Checks, and grants, what the Kafka source needs of its topics, and of the server with the canonical rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from ingest import SourceAccess, Tables
from ingest.kafka.place import Place
from ingest.kafka.topics import groups_of, idle
from ingest.watermarks import WATERMARK_PRIVILEGES, select_check, select_grant, watermark_checks
from viewtail.changes.counting import counted
from viewtail.changes.errors import ViewtailError, once
from viewtail.changes.findings import Finding, expect, fail, ok, warn
from viewtail.changes.published import POSITIONS
from viewtail.changes.tables import full_name
from viewtail.servers.acls import TO_CONSUME, Right, commands
from viewtail.servers.asking import findings
from viewtail.servers.brokers import SOURCE, Broker
from viewtail.servers.privileges import Privileges
from viewtail.servers.privileges import grants as grants_on
from viewtail.servers.sessions import Connection, MySQLAddress

_WHERE = "source"
_ABSENT = "not there, or the user may not see it"
_URL = "VIEWTAIL_SOURCE__CANONICAL_URL"


def checks(access: SourceAccess, topics: Mapping[tuple[str, str], str], tables: Tables) -> Iterator[Finding]:
    """All findings; an unreachable server is one. `topics` are those of the streams, `tables` have the rows."""
    yield from _of_broker(access, topics)
    source, primary, database = access.address(), access.primary(), access.section.database
    is_read = access.section.fill_from == "table"

    def of_source(connection: Connection) -> Iterator[Finding]:
        yield ok(_WHERE, "canonical rows" if is_read else "form of the tables", source)
        yield from _readable(connection, source, tables if is_read else [])

    yield from findings(_WHERE, source, "source", _URL, of_source)
    yield from findings(_WHERE, primary, "source", _URL, partial(watermark_checks, address=primary, database=database))


def _of_broker(access: SourceAccess, topics: Mapping[tuple[str, str], str]) -> Iterator[Finding]:
    try:
        broker = Broker(access.section.client(), SOURCE)
        partitions = broker.partitions()
    except ViewtailError as error:
        mend = "start Kafka, or set VIEWTAIL_SOURCE__URL"
        yield fail(_WHERE, "reachable", once(error), "no change can be read", mend)
        return
    yield ok(_WHERE, "reachable", "yes")
    for entry in idle(list(topics), access.section.topics):
        why, mend = "no view has a row of such a table", "correct it in VIEWTAIL_SOURCE__TOPICS, or leave it out"
        yield warn(_WHERE, f"VIEWTAIL_SOURCE__TOPICS {entry}", "of no view's table", why, mend)
    for (schema, table), topic in topics.items():
        count = partitions.get(topic)
        of = f"changes of {full_name(schema, table)}" if schema else "whole rows"
        seen = _ABSENT if count is None else f"{counted(count, 'partitions')}, {of}"
        mend = "run the process that publishes it: viewtail run --role tail"
        mend += "; or set VIEWTAIL_SOURCE__TOPICS" if schema else ", with the Topic of this name in its views.py"
        yield expect(count, _WHERE, f"topic {topic}", seen, "the views of its rows get no changes", mend)
        if count is not None and access.section.fill_from == "topic":
            yield _fillable(broker, topic, count)
    if POSITIONS in partitions:
        yield ok(_WHERE, f"topic {POSITIONS}", "there: quiet partitions make progress")
    else:
        why = "without it views are not filled from their tables, but from what the topics hold of them"
        mend = "nothing, where another program writes the topics; else: viewtail run --role tail, and READ on it"
        yield warn(_WHERE, f"topic {POSITIONS}", _ABSENT, why, mend)


def _fillable(broker: Broker, topic: str, partitions: int) -> Finding:
    """Check that new views can be filled from a topic: all its rows must be there."""
    what = f"topic {topic} fills views"
    try:
        topic_id = broker.id_of(topic)
        for number in range(partitions):
            Place(broker, topic, topic_id, number).beginning()
    except ViewtailError as error:
        return fail(_WHERE, what, once(error), "new views of its table halt", "VIEWTAIL_SOURCE__FILL_FROM=table")
    return ok(_WHERE, what, "from its beginning")


def _readable(connection: Connection, address: MySQLAddress, tables: Tables) -> Iterator[Finding]:
    held = Privileges.of(connection)
    for schema, table in tables:
        is_granted = not held.missing(["SELECT"], schema, table)
        yield select_check(address, schema, table, "backfills read its rows", is_granted=is_granted)


def grants(access: SourceAccess, topics: Mapping[tuple[str, str], str], tables: Tables) -> Iterator[str]:
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
        for schema, table in tables:
            yield select_grant(address, schema, table)
    yield from grants_on(primary, access.section.database, WATERMARK_PRIVILEGES, "where watermarks are written")
