"""Checks what polling needs of its server: rights, readable locks, and tables whose ids rise."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

import pymysql

from ingest import Orders, SourceAccess, Tables
from ingest.canonical.parts import UNSEEN, parts_of
from ingest.poll.polled_table import auto_increment
from ingest.poll.writers import why_unreadable
from ingest.watermarks import select_check
from viewtail.changes.findings import Finding, expect, fail, ok, warn
from viewtail.changes.patterns import pattern_of
from viewtail.changes.tables import full_name
from viewtail.servers.asking import findings
from viewtail.servers.facts import MARIADB, facts_of
from viewtail.servers.privileges import Privileges
from viewtail.servers.sessions import TEMPORARY_NUMBERS, Connection, MySQLAddress, number_of

_WHERE = "source"
_URL = "VIEWTAIL_SOURCE__URL"
_CHANNELS = "SELECT CHANNEL_NAME FROM performance_schema.replication_connection_configuration"


def checks(access: SourceAccess, tables: Tables, orders: Orders) -> Iterator[Finding]:
    """All findings; an unreachable server is one."""
    address = access.address()
    ask = partial(_of_server, address=address, tables=tables, orders=orders, wait_s=access.section.poll_wait_s)
    yield from findings(_WHERE, address, "source", _URL, ask)


def _of_server(
    connection: Connection, address: MySQLAddress, tables: Tables, orders: Orders, wait_s: float | None
) -> Iterator[Finding]:
    yield ok(_WHERE, "reachable", "yes")
    held = Privileges.of(connection)
    for schema, table in tables:
        pattern = pattern_of(schema, table)
        of = (schema, table) if pattern is None else (pattern.sample.schema,)
        is_missing = bool(held.missing(("SELECT",), *of))
        why = "its rows cannot be read" if pattern is None else UNSEEN
        yield select_check(address, schema, table, why, is_granted=not is_missing)
        if is_missing:
            continue  # information_schema does not show its columns either
        names = [(schema, table)] if pattern is None else [part[:2] for part in parts_of(connection, pattern)]
        for name in names:
            yield _ids(connection, *name, orders.get((schema, table), ()))
    yield _is_primary(connection)
    yield _locks(connection, wait_s)


def _ids(connection: Connection, schema: str, table: str, orders: Collection[str]) -> Finding:
    what = f"ids of {full_name(schema, table)}"
    column = auto_increment(connection, schema, table)
    why = "a row that is given a lower id than others later would be missed"
    if column is None:
        mend = "poll tables with an AUTO_INCREMENT column: Entity(..., order='COLUMN'); or tail the binlog"
        return fail(_WHERE, what, "no AUTO_INCREMENT column", why, mend)
    declared = sorted(orders)
    seen = f"AUTO_INCREMENT {column}" + (
        f", and views.py says order={', '.join(map(repr, declared))}" if declared else ""
    )
    if not declared:
        seen += ", and no entity says order="
    mend = f"Entity({full_name(schema, table)!r}, ..., order={column!r})"
    return expect(declared == [column], _WHERE, what, seen, why, mend)


def _is_primary(connection: Connection) -> Finding:
    """Warn about a replica: its applier writes the rows, and it does not know who got an id on the primary."""
    what, mend = "is no replica", "set VIEWTAIL_SOURCE__URL to its primary"
    why = "rows reach it in another order than that of their ids, and nothing there says which are still to come"
    is_fed = is_replica(connection)
    if is_fed is None:
        is_mariadb = facts_of(connection).name == MARIADB
        mend = "GRANT REPLICA MONITOR ON *.*, or know it" if is_mariadb else "GRANT SELECT ON performance_schema.*"
        return warn(_WHERE, what, "not known: the user may not ask", why, mend)
    return expect(not is_fed, _WHERE, what, "a replica" if is_fed else "none", why, mend)


def is_replica(connection: Connection) -> bool | None:
    """Return whether the server's rows come from a primary or from group members; None if the user may not ask."""
    is_mariadb = facts_of(connection).name == MARIADB
    try:
        with connection.cursor() as cursor:
            # In MySQL a user who may read metadata locks can read this table, which also lists group members.
            cursor.execute("SHOW REPLICA STATUS" if is_mariadb else _CHANNELS)
            if cursor.fetchone() is not None:
                return True
            cursor.execute("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'")
            galera = cursor.fetchone()
            return galera is not None and galera[1] in ("ON", "1")
    except pymysql.err.MySQLError as error:
        if number_of(error) in TEMPORARY_NUMBERS or not connection.open:
            raise
        return None


def _locks(connection: Connection, wait_s: float | None) -> Finding:
    what, why_not = "who may still bring a row", why_unreadable(connection, facts_of(connection))
    if why_not is None:
        return ok(_WHERE, what, "metadata locks can be read")
    why = "a lower id may be committed after a higher one"
    if wait_s is None:
        mend = f"{why_not}; or accept the risk with VIEWTAIL_SOURCE__POLL_WAIT_S"
        return fail(_WHERE, what, "metadata locks cannot be read", why, mend)
    seen = f"not known: a row whose transaction takes longer than {wait_s:g} s is missed"
    return warn(_WHERE, what, seen, why, why_not)
