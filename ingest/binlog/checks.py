"""Checks what the binlog source needs of its server: settings, privileges, and what to know of the tables followed.

Everything is read, nothing is tried or changed. Whether another replica uses the same server_id cannot be seen here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysql.constants import ER

from ingest import Tables
from ingest.canonical import is_denied
from ingest.canonical.foreign_keys import cascading_ancestry
from ingest.canonical.parts import UNSEEN, examples
from ingest.left_out import left_out_checks, unasked_checks
from ingest.watermarks import select_check, watermark_checks
from viewtail.changes.errors import SourceError
from viewtail.changes.findings import Finding, expect, fail, ok, warn
from viewtail.changes.patterns import pattern_of
from viewtail.changes.tables import ForeignKey, full_name
from viewtail.servers.asking import findings
from viewtail.servers.facts import MARIADB, MYSQL, ServerFacts, facts_of
from viewtail.servers.privileges import Privileges, account
from viewtail.servers.sessions import Connection, MySQLAddress, lacks_rights, quote

DAY_S = 86_400
MIN_PACKET = 16 << 20
_WHERE = "source"
_URL = "VIEWTAIL_SOURCE__URL"

REPLICATION = (
    ("REPLICATION SLAVE", "it is what reading the binlog asks for"),
    ("REPLICATION CLIENT", "it is what asking for the binlog's end asks for"),
)


@dataclass(frozen=True, slots=True)
class Required:
    """A global variable that must have one value."""

    name: str
    value: str
    why: str
    mend: str = ""  # what else than setting it
    only: str | None = None  # the one kind of server that has it


_RESTART = "start the server with it (my.cnf, [mysqld]): it cannot be set while it runs"

_GTID_STEPS = (
    "SET PERSIST enforce_gtid_consistency = 'ON'; SET PERSIST gtid_mode = 'OFF_PERMISSIVE'; "
    "SET PERSIST gtid_mode = 'ON_PERMISSIVE'; SET PERSIST gtid_mode = 'ON';"
)

REQUIRED = (
    Required("log_bin", "ON", "without a binlog there are no changes to follow", f"log_bin = binlog; {_RESTART}"),
    Required("binlog_format", "ROW", "statements do not say which rows they changed"),
    Required("binlog_row_image", "FULL", "a partial image lacks the columns that views show"),
    Required("binlog_row_metadata", "FULL", "without names, signs and character sets values cannot be read exactly"),
    Required("gtid_mode", "ON", "GTIDs tell the same transaction on resuming", _GTID_STEPS, MYSQL),
    Required("enforce_gtid_consistency", "ON", "gtid_mode needs it", only=MYSQL),
    Required("binlog_order_commits", "ON", "without it commits become visible in another order", only=MYSQL),
)  # fmt: skip


# What becomes of views where rows change without row events.
NEVER = "would miss it"
LATE_WITH_A_CLEANER = (
    "have it late: the cleaner looks for such rows when a row of {parent} goes, which takes SELECT on that table, and "
    "finds the others in its rounds; topics miss it"
)


def checks(
    source: MySQLAddress, primary: MySQLAddress, database: str, tables: Tables, late: str = NEVER
) -> Iterator[Finding]:
    """Every finding; a server that does not answer is one. `database` is that of the watermark table."""
    is_primary = (primary.host, primary.port, primary.unix_socket) == (source.host, source.port, source.unix_socket)

    def of_source(connection: Connection) -> Iterator[Finding]:
        yield ok(_WHERE, "reachable", source)
        yield from server_checks(connection)
        yield from privilege_checks(connection, source, tables)
        shown = examples(connection, tables)
        yield from left_out_checks(connection, source, database, shown, is_primary=is_primary)
        yield from prepared_checks(connection, source)
        yield from cascade_checks(connection, source, shown, late)

    yield from findings(_WHERE, source, "source", _URL, of_source)

    def of_primary(connection: Connection) -> Iterator[Finding]:
        yield from watermark_checks(connection, primary, database, examples(connection, tables))
        if not is_primary:
            yield from unasked_checks(connection, primary)

    yield from findings(_WHERE, primary, "source", _URL, of_primary)


def server_checks(connection: Connection) -> Iterator[Finding]:
    """Version and settings of the tailed server."""
    try:
        facts = facts_of(connection)
    except SourceError as error:
        mend = "use MySQL 8.4 or newer, or MariaDB 10.11 or newer"
        yield fail(_WHERE, "version", str(error), "older servers and others write another binlog", mend)
        return
    yield ok(_WHERE, "version", f"{facts.name} {'.'.join(map(str, facts.version))}")
    variables = {str(name).lower(): str(value) for name, value in _rows(connection, "SHOW GLOBAL VARIABLES")}
    for required in REQUIRED:
        if required.only not in (None, facts.name):
            continue
        seen = variables.get(required.name, "") or "(empty)"
        mend = required.mend or facts.setting.format(name=required.name, value=f"'{required.value}'")
        yield expect(seen.upper() == required.value, _WHERE, required.name, seen, required.why, mend)
    yield from _limits(facts, variables)
    if facts.name == MARIADB:  # its servers have no number of their own but the one that is configured
        number = variables.get("server_id", "")
        why = "viewtail knows the server again by it: another one with the same number passes for this one"
        mend = "SET GLOBAL server_id = 17;  -- a number of its own for each server, also in my.cnf, [mariadbd]"
        is_own = number not in ("0", "1")
        yield _advised(is_own, "server_id", number if is_own else f"{number} (the default)", why, mend)


def _advised(is_met: bool, what: str, seen: object, why: str, mend: str) -> Finding:
    return ok(_WHERE, what, seen) if is_met else warn(_WHERE, what, seen, why, mend)


def _rows(connection: Connection, sql: str, *arguments: object) -> Sequence[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments)
        rows: Sequence[Any] = cursor.fetchall()
    return rows


def _limits(facts: ServerFacts, variables: dict[str, str]) -> Iterator[Finding]:
    checksum = variables.get("binlog_checksum", "") or "(empty)"
    expire_s = int(variables.get("binlog_expire_logs_seconds", "0") or 0)
    packet = int(variables.get("max_allowed_packet", "0") or 0)
    away = "a viewtail or store that is away for longer must have every view backfilled again"
    large = "row events and statements larger than this are refused by the server"
    unnoticed = "corrupt bytes on the wire would not be noticed"
    for name, seen, is_met, why, value in (
        ("binlog_checksum", checksum, checksum.upper() == "CRC32", unnoticed, "'CRC32'"),
        ("binlog_expire_logs_seconds", expire_s or "0 (never)", not 0 < expire_s < DAY_S, away, 7 * DAY_S),
        ("max_allowed_packet", packet, packet >= MIN_PACKET, large, 64 << 20),
    ):
        mend = facts.setting.format(name=name, value=value)
        yield _advised(is_met, name, seen, why, mend)


def privilege_checks(connection: Connection, address: MySQLAddress, tables: Tables) -> Iterator[Finding]:
    """Check what the user may do on the tailed server, and with the tables that views are of."""
    held = Privileges.of(connection)
    facts = facts_of(connection)
    for name, why in REPLICATION:
        is_held = not held.missing([facts.status_privilege if name == "REPLICATION CLIENT" else name])
        mend = f"GRANT {name} ON *.* TO {account(address)};"
        yield expect(is_held, _WHERE, name, "granted" if is_held else "not granted", why, mend)
    for schema, table in tables:
        why = "new views are backfilled from the table, and find reads it"
        pattern = pattern_of(schema, table)
        if pattern is not None and pattern.only is None:
            is_granted = not held.missing(("SELECT",), pattern.sample.schema)
            yield select_check(address, schema, table, UNSEEN, is_granted=is_granted)
        elif (may_select := _may_select(connection, *_named(schema, table))) is not None:  # else a finding of its views
            yield select_check(address, schema, table, why, is_granted=may_select)


def _named(schema: str, table: str) -> tuple[str, str]:
    """The names as the server has them."""
    pattern = pattern_of(schema, table)
    return (schema, table) if pattern is None or pattern.only is None else pattern.only[:2]


def _may_select(connection: Connection, schema: str, table: str) -> bool | None:
    """Say whether the server lets the user read the table; None when there is no such table."""
    try:
        _rows(connection, f"SELECT * FROM {quote(schema, table)} LIMIT 0")
    except pymysql.err.MySQLError as error:
        if error.args[:1] in [(ER.BAD_DB_ERROR,), (ER.NO_SUCH_TABLE,)]:
            return None
        if not lacks_rights(error):
            raise
        return False
    return True


def prepared_checks(connection: Connection, address: MySQLAddress) -> Iterator[Finding]:
    """XA transactions that are prepared now: their rows stand before the place where a first run begins to read."""
    what = "XA RECOVER"
    why = (
        "one that was prepared before the first run halts every view at its commit; one that stays prepared keeps "
        "offsets, and the binlogs they need, from moving on"
    )
    try:
        if facts_of(connection).name == MARIADB:
            names = [str(row[3]) for row in _rows(connection, "XA RECOVER FORMAT = 'SQL'")]
        else:
            names = [_xid(row[0], row[1], row[3]) for row in _rows(connection, "XA RECOVER CONVERT XID")]
    except pymysql.err.MySQLError as error:
        if error.args[:1] not in [(1227,), (1401,)]:
            raise
        mend = f"GRANT XA_RECOVER_ADMIN ON *.* TO {account(address)};"
        seen = "not known which are prepared: the user may not ask, which is fine where nobody uses XA"
        yield warn(_WHERE, what, seen, why, mend)
        return
    seen = f"{len(names) or 'no'} prepared transactions"
    mend = f"XA RECOVER lists them: XA COMMIT or XA ROLLBACK each, e.g. XA ROLLBACK {names[0]}" if names else ""
    yield _advised(not names, what, seen, why, mend)


def _xid(number: int, global_bytes: int, data: str) -> str:
    """Write an XA transaction's name as XA COMMIT takes it; `data` is '0x', then both parts in hexadecimal."""
    parts = data[2:]
    return f"X'{parts[: 2 * global_bytes]}',X'{parts[2 * global_bytes :]}',{number}"


def cascade_checks(
    connection: Connection, address: MySQLAddress, tables: Tables, late: str = NEVER
) -> Iterator[Finding]:
    """Foreign keys that change rows of followed tables without row events: where InnoDB does it by itself.

    `late` says what becomes of the views then.
    """
    facts = facts_of(connection)
    if _rows(connection, facts.logs_cascades)[0][0]:
        return
    keys = cascading_ancestry(connection, [*tables])
    for key in keys:
        if key.table in tables:
            yield _unlogged(facts, key, late)
    if late != NEVER:
        parents = dict.fromkeys(key.parent for key in keys if key.parent not in tables)
        yield from (_unseen(address, parent) for parent in parents if is_denied(connection, *parent, ()))


def _unlogged(facts: ServerFacts, key: ForeignKey, late: str) -> Finding:
    can_log = facts.name == MYSQL and facts.version >= (9, 6, 0)
    way_out = "start the server with innodb_native_foreign_keys=OFF" if can_log else "use MySQL 9.6 or newer"
    return warn(
        _WHERE,
        f"foreign key {full_name(*key.table)}.{key.name}",
        f"ON DELETE {key.on_delete} ON UPDATE {key.on_update}",
        f"{facts.name} does not log what this key's cascades change here, so views "
        f"{late.format(parent=full_name(*key.parent))}",
        f"delete and update the child rows in the application (ON DELETE RESTRICT), or {way_out}",
    )


def _unseen(address: MySQLAddress, parent: tuple[str, str]) -> Finding:
    return warn(
        _WHERE,
        f"SELECT on {full_name(*parent)}",
        "not granted",
        "foreign keys refer to it, and what cascades from its rows, and from tables that it refers to, the cleaner "
        "finds in its rounds only",
        f"GRANT SELECT ON {quote(*parent)} TO {account(address)};",
    )
