"""Counts the sessions that a deployment has on its MySQL servers, and checks that they allow so many.

The numbers are the same for one view and for hundreds: tests/acceptance/test_sessions.py counts them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from ingest import SourceAccess, SourceKind, Tables
from viewtail.changes.counting import counted
from viewtail.changes.errors import ViewtailError
from viewtail.changes.findings import Finding, fail, ok, warn
from viewtail.servers.facts import ServerFacts, facts_of
from viewtail.servers.sessions import Connection, MySQLAddress, asking, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """Sessions by their server: that of the canonical rows, and that of viewtail's own tables and index tables."""

    source: int
    store: int

    def __add__(self, other: Sessions) -> Sessions:
        return Sessions(source=self.source + other.source, store=self.store + other.store)

    def __mul__(self, times: int) -> Sessions:
        return Sessions(source=self.source * times, store=self.store * times)

    @property
    def total(self) -> int:
        """The sessions on one server that is both."""
        return self.source + self.store


PIPELINE = Sessions(
    source=3, store=7
)  # the reader's dump connection, its questions, watermarks; lease, offset, reports
PARTITION = Sessions(source=0, store=5)  # a pipeline of a topic's partition; its reader is a client of the broker
LOOKS = Sessions(source=1, store=2)  # of the cleaner, at what changed a moment ago
CLEANER = LOOKS + Sessions(source=2, store=3)  # and its rounds; of a topic's partitions the first goes round for all
BUSY = Sessions(source=3, store=5)  # more, while four views are backfilled, or the cleaner mends: not both
STANDBY = Sessions(source=0, store=2)  # of each pipeline
WATCH = Sessions(source=2, store=2)  # of each `viewtail run`, now and then; of the store one holds the lock of messages
COMMANDS = Sessions(source=4, store=6)  # status, wait and the like, some at a time


def findings(kind: SourceKind, access: SourceAccess, stores: Mapping[str, Tables]) -> list[Finding]:
    """Return whether the servers let as many in as this deployment needs; nothing of a server that does not answer.

    Args:
        stores: by name, what the source brings their views the changes of.
    """
    try:
        count = sum(len(kind.parts(access, tables)) for tables in stores.values())
        source, store = _asked(access.address()), _asked(access.own)
    except (ViewtailError, pymysql.err.MySQLError):
        return []  # which is a finding already
    each, looks = (PARTITION, LOOKS) if kind.is_shared_out else (PIPELINE, CLEANER)
    running = (each + looks if access.is_cleaned else each) * count
    whole = running + BUSY * len(stores) + STANDBY * len(stores) + WATCH + WATCH + COMMANDS
    # Each source has as many pipelines, and all of them write to one place.
    running, whole = (replace(of, store=of.store * access.count) for of in (running, whole))
    all_count = count * access.count
    if source.identity == store.identity:
        return list(_of("source", source, running.total, whole.total, all_count))
    of_store = _of("mysql", store, running.store, whole.store, all_count)
    return [*_of("source", source, running.source, whole.source, count), *of_store]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limits:
    """The limits of a server, as it says."""

    address: MySQLAddress
    identity: Any
    facts: ServerFacts
    account: str  # that viewtail is logged in as, as SQL
    others: int  # sessions of other users now
    all_users: int
    one_user: int  # 0: none of its own
    is_of_account: bool  # whether that is set for the account alone


def _asked(address: MySQLAddress) -> _Limits:
    with asking(replace(address, database=None), role="source") as connection:
        facts = facts_of(connection)
        own = int(value_of(connection, "SELECT @@SESSION.max_user_connections"))
        of_server = int(value_of(connection, "SELECT @@GLOBAL.max_user_connections"))
        user, _, host = str(value_of(connection, "SELECT CURRENT_USER()")).rpartition("@")
        return _Limits(
            address=address,
            identity=value_of(connection, facts.identity),
            facts=facts,
            account=f"{_text(user)}@{_text(host)}",
            others=_others(connection),
            all_users=int(value_of(connection, "SELECT @@GLOBAL.max_connections")),
            one_user=own,
            is_of_account=own != of_server,
        )


def _text(part: str) -> str:
    return "'" + part.replace("\\", "\\\\").replace("'", "''") + "'"


def _others(connection: Connection) -> int:
    """Sessions of other users. Everybody may list their own; viewtail's are needed anyway."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Threads_connected'")
        _, connected = cursor.fetchone() or ("", 0)
        cursor.execute("SELECT SUBSTRING_INDEX(USER(), '@', 1)")
        (user,) = cursor.fetchone() or ("",)
        cursor.execute("SHOW PROCESSLIST")
        own = sum(int(row[1] == user) for row in cursor.fetchall())
    return int(max(0, int(connected) - own))


def _of(where: str, limits: _Limits, running: int, whole: int, count: int) -> Iterator[Finding]:
    needs = (
        f"this deployment will have {running} sessions there with {counted(count, 'pipelines')}, and "
        f"up to {whole} while views are backfilled, with a standby and some commands"
    )
    room = f"{limits.all_users}, and other users have {limits.others} now; {needs}"
    mend = limits.facts.setting.format(name="max_connections", value=_rounded(limits.others + whole))
    yield _compared(where, "max_connections", room, limits.all_users - limits.others, running, whole, mend)
    if limits.one_user:
        name, mend = (
            "max_user_connections",
            limits.facts.setting.format(name="max_user_connections", value=_rounded(whole)),
        )
        if limits.is_of_account:
            name = f"MAX_USER_CONNECTIONS of {limits.account}"
            mend = f"ALTER USER {limits.account} WITH MAX_USER_CONNECTIONS {_rounded(whole)};"
        yield _compared(where, name, f"{limits.one_user}; {needs}", limits.one_user, running, whole, mend)


def _compared(where: str, what: str, seen: str, room: int, running: int, whole: int, mend: str) -> Finding:
    if room >= whole:
        return ok(where, what, seen)
    why = "the server refuses what is above it (error 1040 or 1203, 1226), to viewtail or to the application"
    return (fail if room < running else warn)(where, what, seen, why, mend)


def _rounded(count: int) -> int:
    """Round up to the next fifty, for some room."""
    return (count // 50 + 1) * 50
