"""Decides whether a server's history continues what was read: by its identity, or for another server by sets of GTIDs.

The server is asked on the very connection that the changes will come from. Its history may not continue for two
reasons: it lacks transactions that were read, and views show what it never had; or it purged some that were not read.
"""

from __future__ import annotations

from typing import Any

import pymysql

from ingest import Committed
from ingest.binlog.coordinates import file_number
from ingest.binlog.gtid_sets import domain_ends, domains_text, is_of_mariadb, mariadb_gtids
from ingest.binlog.stream_errors import BACKFILL_ALL, PurgedError
from viewtail.changes.errors import AnotherServerError, HistoryGoneError, SourceError
from viewtail.changes.versions import parts_of
from viewtail.servers.facts import MARIADB, ServerFacts, facts_of
from viewtail.servers.sessions import SNAPSHOT, value_of

_SHOWN = 200  # characters of a set, in a message


def history_of(connection: pymysql.Connection[Any]) -> tuple[str, str]:
    """Return the server's identity, and the name of its binlogs without their number.

    Raises SourceError where it writes no binlog.
    """
    facts = facts_of(connection)
    file = value_of(connection, facts.status)
    if not file:
        raise SourceError("the source writes no binlog. Start it with --log-bin; `viewtail check` says more")
    file_number(file)
    return value_of(connection, facts.identity), file.rsplit(".", 1)[0]


def check_identity(connection: pymysql.Connection[Any], identity: str) -> None:
    """Raises AnotherServerError when the server behind the connection is not the one that was read."""
    present = value_of(connection, facts_of(connection).identity)
    if present != identity:
        raise AnotherServerError(
            f"the source's address leads to another server than before: {present}, not {identity}; whether it "
            "continues what was read is looked at now"
        )


def check_sets(connection: pymysql.Connection[Any], seen: str) -> None:
    """Raises HistoryGoneError unless the server has all of `seen`, and still has all that is not in it."""
    if is_of_mariadb(seen) != (facts_of(connection).name == MARIADB):
        raise HistoryGoneError(
            "divergent history: the source is MySQL where MariaDB was read, or the other way round; their GTIDs cannot "
            f"be compared. To go on, {BACKFILL_ALL}"
        )
    if is_of_mariadb(seen):
        lacked, purged = _mariadb_differences(connection, seen)
    else:
        lacked = value_of(connection, "SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed)", seen)
        purged = value_of(connection, "SELECT GTID_SUBTRACT(@@GLOBAL.gtid_purged, %s)", seen)
    if lacked:
        raise HistoryGoneError(
            f"divergent history: the source that is there now lacks transactions that were read ({_short(lacked)}), so "
            "views show what it never had. Where it is a replica that has not caught up yet, they come, and reading "
            f"goes on by itself; otherwise point viewtail back at the server it read, or {BACKFILL_ALL}"
        )
    if purged:
        raise PurgedError(
            f"history gone: the source purged transactions that were not read ({_short(purged)}), so the views cannot "
            f"be brought up to date from the stream. Point viewtail at a server that still has them, or {BACKFILL_ALL}"
        )


def _mariadb_differences(connection: pymysql.Connection[Any], seen: str) -> tuple[str, str]:
    """Return what was read and the server never had, and what it purged and was not read; '' where there is nothing.

    The place at which the oldest binlog begins shows what was purged.
    """
    state = value_of(connection, "SELECT @@GLOBAL.gtid_binlog_state") or ""
    begin = _mariadb_purged(connection)
    has = {(domain, server): number for domain, server, number in mariadb_gtids(state)}
    read, kept = domain_ends(seen), domain_ends(begin)
    lacked = {domain: last for domain, last in read.items() if has.get((domain, last[0]), -1) < last[1]}
    purged = {domain: last for domain, last in kept.items() if read.get(domain, (0, 0))[1] < last[1]}
    return domains_text(lacked), domains_text(purged)


def purged(connection: pymysql.Connection[Any]) -> str:
    """The set of all transactions that the server had, and that its binlogs do not hold any more."""
    if facts_of(connection).name == MARIADB:
        return _mariadb_purged(connection)
    return str(value_of(connection, "SELECT @@GLOBAL.gtid_purged") or "").replace("\n", "")


def _mariadb_purged(connection: pymysql.Connection[Any]) -> str:
    oldest = next(iter(binlog_sizes(connection)), "")
    return str(value_of(connection, "SELECT BINLOG_GTID_POS(%s, 4)", oldest) or "")


def executed(connection: pymysql.Connection[Any]) -> str:
    """The set of all transactions that the server's binlogs hold or held; '' where they have no GTIDs."""
    return str(value_of(connection, facts_of(connection).executed) or "").replace("\n", "")


def binlog_sizes(connection: pymysql.Connection[Any]) -> dict[str, int]:
    """The server's binlogs from the oldest on, with their bytes."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        return {row[0]: row[1] for row in cursor.fetchall()}


def shows(cursor: Any, changes: Committed, facts: ServerFacts) -> bool:
    """Return whether the snapshot of the cursor's transaction, from now on, shows these changes and all before them.

    A change can be read from the binlog before any SELECT shows it: its commit goes on in the engine, and may wait for
    a replica. A position does not tell: while an XA transaction is prepared it stays before it.
    MySQL says what was executed behind the engine's commit, and not as of the snapshot: a new one is taken behind the
    answer. MariaDB says of the snapshot itself where in the binlog it was taken, always between two transactions. So
    the version's position, which is in the last change, tells it as well as the transaction's end.
    """
    if facts.name == MARIADB:
        cursor.execute("SHOW STATUS LIKE 'Binlog_snapshot_%'")
        status = {str(name).lower(): value for name, value in cursor.fetchall()}
        file, end = status.get("binlog_snapshot_file"), status.get("binlog_snapshot_position")
        if not file or end is None:
            raise SourceError("the server does not say where in its binlog a snapshot was taken (Binlog_snapshot_file)")
        _, number, position = parts_of(changes.version)
        return (file_number(file), int(end)) >= (number, position)
    if None in changes.gtids:
        raise SourceError("a change has no GTID, so nobody can tell when a SELECT shows it: SET PERSIST gtid_mode = ON")
    gtids = ",".join(sorted(gtid for gtid in changes.gtids if gtid is not None))
    cursor.execute("SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)", (gtids,))
    (is_executed,) = cursor.fetchone()
    if is_executed:
        cursor.execute(SNAPSHOT)  # ends the one before
    return bool(is_executed)


def _short(text: str) -> str:
    text = text.replace("\n", "")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
