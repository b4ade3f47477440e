"""Finds what a server leaves out of its binlog, and a replica of what it applies: by filters and settings.

What is left out nobody who reads the binlog can miss: no error, no gap. So it is asked of the server. A server filters
rows by the database of their table, and statements by the session's default database (MySQL's manual, "Evaluation of
Database-Level Replication and Binary Logging Options"). Everything is read, nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pymysql
import pymysql.cursors

from offsets import watermarks
from offsets.watermarks import WATERMARK
from viewtail.changes.errors import ViewtailError
from viewtail.changes.findings import Finding, fail, ok, warn
from viewtail.servers.facts import MARIADB, ServerFacts, facts_of
from viewtail.servers.privileges import account, on_database
from viewtail.servers.sessions import Connection, MySQLAddress, asking, lacks_rights, value_of

WHERE = "source"
BINLOG, REPLICATE = "binlog", "replicate"  # kinds of filters: of all that is logged, of what a replica applies
_WHAT = "filters"
_RULES = ("do_db", "ignore_db", "do_table", "ignore_table", "wild_do_table", "wild_ignore_table")
_BY_DATABASE = ("do_db", "ignore_db")
_MY_CNF = "in my.cnf, then restart the server"


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of one kind, each as the server lists it: 'do_db', 'ignore_db', and so on."""

    kind: str  # BINLOG or REPLICATE
    rules: Mapping[str, Sequence[str]]

    def __str__(self) -> str:
        """Write the filters as my.cnf has them."""
        each = ((rule.replace("_", "-"), name) for rule, names in self.rules.items() for name in names)
        return " ".join(f"{self.kind}-{rule}={name}" for rule, name in each)

    def of_statements(self) -> Filters:
        """Return those that judge a statement by the session's default database: the others judge it by its tables."""
        return Filters(self.kind, {rule: names for rule, names in self.rules.items() if rule in _BY_DATABASE})

    def keep(self, schema: str, table: str) -> bool:
        """Return whether rows of a table get through: by database, then by the table's name, then by wildcards."""
        if not self._keep_database(schema):
            return False
        name = f"{schema}.{table}"
        for does, leaves in (("do_table", "ignore_table"), ("wild_do_table", "wild_ignore_table")):
            if self._match(does, name):
                return True
            if self._match(leaves, name):
                return False
        return not self.rules.get("do_table") and not self.rules.get("wild_do_table")

    def _keep_database(self, schema: str) -> bool:
        """Say whether a database is kept: a list of those to be kept overrules that of those to leave out."""
        if kept := self.rules.get("do_db"):
            return schema in kept
        return schema not in self.rules.get("ignore_db", ())

    def _match(self, rule: str, name: str) -> bool:
        return any(_fits(listed, name, rule) for listed in self.rules.get(rule, ()))


def _fits(rule: str, name: str, of: str) -> bool:
    if not of.startswith("wild"):
        return rule == name
    wildcards = {"%": ".*", "_": "."}
    parts = re.findall(r"\\.|.", rule, re.DOTALL)
    return (
        re.fullmatch("".join(wildcards.get(part) or re.escape(part[-1]) for part in parts), name, re.DOTALL) is not None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """The rules by which one server leaves something out."""

    filters: Sequence[Filters] = ()  # that there are
    is_logging: bool = True  # it writes a binlog
    is_replica: bool | None = False  # None: it may be, and the user may not ask
    is_relogging: bool = True  # it logs what it applies as a replica
    halt: str | None = None  # why nothing arrives at a replica

    def why(self, schema: str, table: str) -> str | None:
        """Why rows of a table that are committed on it are not in its binlog; None: they are."""
        if not self.is_logging:
            return "it writes no binlog"
        return self._filter(BINLOG, schema, table)

    def why_applied(self, schema: str, table: str) -> str | None:
        """Why rows of a table that come from its primary are not in its binlog; None: they are."""
        if self.is_logging and self.is_replica and not self.is_relogging:
            return "it is a replica that does not log what it applies (log_replica_updates is OFF)"
        return self.why(schema, table) or self._filter(REPLICATE, schema, table)

    def _filter(self, kind: str, schema: str, table: str) -> str | None:
        return next((str(each) for each in self.filters if each.kind == kind and not each.keep(schema, table)), None)

    @property
    def of_statements(self) -> Sequence[Filters]:
        """The filters by which statements may be missing, whatever table they are of."""
        return [kept for filters in self.filters if (kept := filters.of_statements()).rules]

    def mend(self, schema: str) -> str:
        """Say what to change where it leaves tables of a schema out."""
        if self.is_replica and not self.is_relogging:
            return f"log_replica_updates = ON (MariaDB: log_slave_updates) {_MY_CNF}; or read its primary instead"
        return f"let it keep {schema} {_MY_CNF}"


def left_out(connection: Connection) -> LeftOut | None:
    """Read what the server behind a session leaves out; None: the user may not ask. Raises PyMySQL's errors."""
    facts = facts_of(connection)
    variables = _variables(connection)
    try:
        status = _binlog_status(connection, facts)
    except pymysql.err.MySQLError as error:
        if lacks_rights(error):
            return None
        raise
    shown = _channels(connection, facts)
    channels = shown or []
    is_replica = None if shown is None and variables.get("gtid_slave_pos") else bool(channels)
    filters = _filters(status, [variables] if is_replica is None else channels)
    relogging = variables.get("log_replica_updates", variables.get("log_slave_updates", "ON"))
    return LeftOut(
        filters=[kept for kept in filters if kept.rules],
        is_logging=status is not None,
        # One whose threads are both stopped may have been promoted.
        is_replica=is_replica and any(map(_is_running, channels)),
        is_relogging=relogging in ("ON", "1"),
        halt=_halt_of_all(channels),
    )


def _variables(connection: Connection) -> dict[str, str]:
    """The server's settings of replication."""
    names = ["gtid_slave_pos", "log_replica_updates", "log_slave_updates", *(f"replicate_{rule}" for rule in _RULES)]
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES WHERE Variable_name IN %s", (names,))
        return {str(name).lower(): str(value) for name, value in cursor.fetchall()}


def _binlog_status(connection: Connection, facts: ServerFacts) -> Sequence[str] | None:
    """File, place and filters of the binlog; None of a server that writes none."""
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(facts.status)
        return cursor.fetchone()


def _filters(status: Sequence[str] | None, replicas: Iterable[Mapping[str, str]]) -> Iterator[Filters]:
    """Read the binlog's filters, which are in its status, and those of what is applied, which `replicas` tell."""
    if status:
        yield Filters(BINLOG, _lists({"do_db": status[2], "ignore_db": status[3]}))
    for variables in replicas:
        yield Filters(REPLICATE, _lists({rule: variables.get(f"replicate_{rule}") for rule in _RULES}))


def _lists(texts: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    """The server gives a comma-separated list of each."""
    lists = {
        rule: tuple(name.strip() for name in (text or "").split(",") if name.strip()) for rule, text in texts.items()
    }
    return {rule: names for rule, names in lists.items() if names}


def _channels(connection: Connection, facts: ServerFacts) -> list[dict[str, str]] | None:
    """Read what a replica says of each of its channels; of no replica, none; None: the user may not ask."""
    try:
        with connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute("SHOW ALL SLAVES STATUS" if facts.name == MARIADB else "SHOW REPLICA STATUS")
            rows = [{str(name).lower(): str(value or "") for name, value in row.items()} for row in cursor.fetchall()]
    except pymysql.err.MySQLError as error:
        if lacks_rights(error):
            return None
        raise
    return rows


def _state(channel: Mapping[str, str], thread: str) -> str | None:
    return channel.get(f"replica_{thread}_running") or channel.get(f"slave_{thread}_running")


def _is_running(channel: Mapping[str, str]) -> bool:
    return {_state(channel, "io"), _state(channel, "sql")} != {"No"}


def _halt_of_all(channels: Sequence[Mapping[str, str]]) -> str | None:
    """Judge several channels, of which nobody knows which leads to the primary: while one runs, rows may come by it."""
    halts = [_halt(channel) for channel in channels]
    return halts[0] if halts and None not in halts else None


def _halt(channel: Mapping[str, str]) -> str | None:
    for thread in ("io", "sql"):
        if _state(channel, thread) == "No":
            error = channel.get(f"last_{thread}_error")
            return f"its replication is stopped (the {thread.upper()} thread{f': {error}' if error else ''})"
    return None


# -- what `check` says ------------------------------------------------------------------------------------------------


def left_out_checks(
    connection: Connection,
    address: MySQLAddress,
    database: str,
    tables: Collection[tuple[str, str]],
    *,
    is_primary: bool,
) -> Iterator[Finding]:
    """Check that the binlog has watermarks, which are in `database`, and the changes of these tables.

    On the primary watermarks are committed, and so are the tables' rows, unless it is a replica of another server too.
    """
    left = left_out(connection)
    if left is None or not left.is_logging:
        return  # a finding of its own
    why_left = left.why if is_primary else left.why_applied
    if (why := why_left(database, WATERMARK)) is not None:
        yield fail(
            WHERE,
            "watermarks in the binlog",
            f"{address} leaves {database}.{WATERMARK} out: {why}",
            "viewtail finds its place in the stream by them: without them no new view is ever filled, and wait, why, "
            "verify, replay and rebuild cannot tell what a view has",
            _mend_watermarks(left, why_left, address, database, tables),
        )
    yield from _changes_left_out(left, address, tables, is_primary=is_primary)
    yield _statements(left, {database, *(schema for schema, _ in tables)})
    if left.is_replica is None:
        yield _may_be_a_replica(left, address)


def _changes_left_out(
    left: LeftOut, address: MySQLAddress, tables: Collection[tuple[str, str]], *, is_primary: bool
) -> Iterator[Finding]:
    for schema, whys in _by_schema(left, tables).items():
        for reason, names in whys.items():
            of = f"{schema}.{names[0]}" if len(names) == 1 else f"{schema} ({len(names)} tables)"
            seen, name = f"{address} leaves them out: {reason}", f"changes of {of} in the binlog"
            if is_primary and left.why(schema, names[0]) is None:
                lost = "views see what is committed on it, and never what it applies as a replica of another server"
                yield warn(WHERE, name, seen, lost, left.mend(schema))
            else:
                yield fail(WHERE, name, seen, "views never see them", left.mend(schema))


def _may_be_a_replica(left: LeftOut, address: MySQLAddress) -> Finding:
    why = "it may be a replica: how far it is behind its primary, and whether it stands, decides when changes come"
    if not left.is_relogging:
        why += ", and with log_slave_updates=OFF a replica logs nothing of what it applies"
    mend = f"GRANT REPLICA MONITOR ON *.* TO {account(address)};"
    return warn(WHERE, "replication", "not known: the user may not ask", why, mend)


def unasked_checks(connection: Connection, address: MySQLAddress) -> Iterator[Finding]:
    """Check that the user may ask a server that is not the source, and needs no rights to read its binlog."""
    if left_out(connection) is None:
        lost = "a server that leaves databases out of its binlog leaves their changes out of every view, in silence"
        mend = f"GRANT REPLICATION CLIENT ON *.* TO {account(address)};"
        yield warn(WHERE, f"{_WHAT} on {address}", "not known: the user may not ask", lost, mend)


def _by_schema(left: LeftOut, tables: Collection[tuple[str, str]]) -> dict[str, dict[str, list[str]]]:
    by_schema: dict[str, dict[str, list[str]]] = {}
    for schema, table in sorted(tables):
        if (why := left.why_applied(schema, table)) is not None:
            by_schema.setdefault(schema, {}).setdefault(why, []).append(table)
    return by_schema


def _statements(left: LeftOut, schemas: Collection[str]) -> Finding:
    if not left.of_statements:
        return ok(WHERE, _WHAT, "none")
    return warn(
        WHERE,
        _WHAT,
        " ".join(map(str, left.of_statements)),
        "the server filters rows by their own database, but statements by the session's default database: TRUNCATE, "
        "DROP, ALTER and RENAME of a table of yours are missing from the binlog where they are run from a database "
        "that is left out (USE other; TRUNCATE TABLE shop.item). Its old rows then stay in every view until the "
        "cleaner's next round, and topics keep them",
        f"take the filters out, {_MY_CNF}; or run such statements behind USE {' or '.join(sorted(schemas))}, and leave "
        "the cleaner on; after one: viewtail verify --repair",
    )


def _mend_watermarks(
    left: LeftOut,
    why_left: Callable[[str, str], str | None],
    address: MySQLAddress,
    database: str,
    tables: Collection[tuple[str, str]],
) -> str:
    mend = left.mend(database)
    kept = sorted({schema for schema, _ in tables if why_left(schema, WATERMARK) is None})
    if not kept:
        return mend
    return (
        f"{mend}; or put the watermarks into a database that it keeps: VIEWTAIL_SOURCE__DATABASE={kept[0]}, and GRANT "
        f"CREATE, SELECT, INSERT, UPDATE ON {on_database(kept[0])} TO {account(address)};"
    )


def is_logged(connection: Connection, schema: str, table: str) -> bool:
    """Return whether rows of a table that are committed on that server are in its binlog; False if it does not say."""
    left = left_out(connection)
    return left is not None and left.why(schema, table) is None


def is_filtered(address: MySQLAddress) -> bool:
    """Return whether statements may be missing from a server's binlog. False where it does not say."""
    with suppress(ViewtailError), asking(address, role="source") as connection:
        left = left_out(connection)
        return left is not None and bool(left.of_statements)
    return False


# -- what who waits says ----------------------------------------------------------------------------------------------


def why_missing(tailed: MySQLAddress | None, primary: MySQLAddress, database: str, name: str) -> str | None:
    """Why the watermark of that name, committed on the primary, does not come through the stream, and what to do.

    None where nothing speaks against it, or a server does not say: it may come yet. `tailed`: the server that is read;
    None: somebody else reads it.
    """
    with suppress(ViewtailError), asking(primary, role="source") as on_primary:
        left = left_out(on_primary)
        if left is not None and (why := left.why(database, WATERMARK)) is not None:
            return _said(primary, database, why)
        if tailed is not None:
            identity = str(value_of(on_primary, facts_of(on_primary).identity))
            return _why_missing_on(tailed, identity, primary, database, name)
    return None


def _why_missing_on(
    tailed: MySQLAddress, primary_identity: str, primary: MySQLAddress, database: str, name: str
) -> str | None:
    with asking(tailed, role="source") as connection:
        left = left_out(connection)
        if left is None:
            return None
        if str(value_of(connection, facts_of(connection).identity)) == primary_identity:
            return None
        if (why := left.why_applied(database, WATERMARK)) is not None:
            return _said(tailed, database, why)
        what = f"what is committed on {primary} does not come to {tailed}, whose binlog is read"
        if left.halt is not None:
            return f"{what}: {left.halt}. Start it again"
        if left.is_replica is False and not _is_there(connection, database, name):
            return (
                f"{what}: that is no replica. Let VIEWTAIL_SOURCE__PRIMARY_URL be its primary, or remove that setting"
            )
    return None


def _said(address: MySQLAddress, database: str, why: str) -> str:
    return (
        f"{address} leaves {database}.{WATERMARK} out of its binlog: {why}. So no watermark comes through the stream, "
        "and nobody can tell what a view has. `viewtail check` says what to change"
    )


def _is_there(connection: Connection, database: str, name: str) -> bool:
    """Return whether the watermark's row is there; True where it may not be asked."""
    try:
        return watermarks.is_there(connection, database, name)
    except pymysql.err.MySQLError as error:
        return lacks_rights(error)
