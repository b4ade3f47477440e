"""All that is known of polling as a kind of source: its settings, present history, checks and grants."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pymysql
import structlog
from pydantic import Field

from ingest import FollowedTables, Orders, SourceAccess, SourceKind, Tables, Versions
from ingest.poll.position import BEFORE_ALL, PollPosition, own
from offsets import watermarks
from viewtail.changes.batches import Followed
from viewtail.changes.errors import DeclarationError, HistoryGoneError, SourceError
from viewtail.changes.findings import Finding
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.changes.tables import ForeignKey
from viewtail.servers.addresses import MYSQL
from viewtail.servers.facts import facts_of
from viewtail.servers.login import MySQLUrl, Server
from viewtail.servers.sessions import (
    Connection,
    MySQLAddress,
    asking,
    open_checked,
    open_session,
    session_error,
    value_of,
)

if TYPE_CHECKING:
    from ingest.poll.polled_table import PolledTable
    from ingest.poll.source import PollSource
    from ingest.poll.writers import Writers

_log = structlog.get_logger("viewtail.source")

_SETTLE_TICK_S = 0.05
_TEXT = "polled tables of "


class PollSettings(Server):
    """The MySQL server whose tables are polled."""

    url: MySQLUrl | None = Field(None, description="mysql://USER:PASSWORD@HOST:PORT[/SCHEMA] of the server")
    poll_s: float = Field(0.1, ge=0.005, le=60, description='mode = "poll" only: seconds between two looks at a table')
    poll_wait_s: float | None = Field(
        None,
        gt=0,
        le=86_400,
        description='mode = "poll" only, where the server does not say who may still bring a row: how long the longest '
        "transaction takes, at most. A row of one that takes longer is MISSED",
    )


@dataclass(frozen=True, slots=True)
class PollHistory:
    """The tables of one server."""

    access: SourceAccess
    identity: str
    epoch: int = 0

    def __str__(self) -> str:
        return f"{_TEXT}{self.identity}"

    def at(self, epoch: int) -> PollHistory:
        return replace(self, epoch=epoch)

    def check_continues(self, after: Position, before: str) -> None:
        own(after)
        raise HistoryGoneError(
            f"the source is another one than before: it was {before}, it is {self}. Whether every row that was read is "
            "there, under its id, nobody can tell. Set the source back, or begin a new history: viewtail replay "
            "--new-history"
        )

    def reader(self, followed: FollowedTables, fits_from: Versions) -> PollSource:
        from ingest.poll.source import PollSource

        section, own = self.access.section, replace(self.access.own, database=None)
        orders = {name: _order_of(table) for name, table in followed.items()}
        return PollSource(
            followed,
            orders,
            open_source=self.open_session,
            open_own=lambda: open_session(own, role="source"),
            marks=watermarks.tokens_in(self.access.own_database),
            writers=self._writers,
            epoch=self.epoch,
            every_s=section.poll_s,
        )

    def settled(self, followed: Iterable[Followed], within_s: float) -> PollPosition:
        deadline = time.monotonic() + within_s
        with closing(self.open_session()) as connection:
            connection.autocommit(True)
            writers = self._writers(connection)
            tables = _checked(connection, followed)
            while waiting := [table for table in tables if table.ids is None]:
                for table in waiting:
                    table.look(connection, writers)
                if time.monotonic() > deadline:
                    raise _still_open(waiting, within_s)
                time.sleep(_SETTLE_TICK_S)
        return PollPosition(0, 0, {table.name: (table.passed or 0, ()) for table in tables})

    def from_first_rows(self, followed: Iterable[Followed]) -> PollPosition:
        return PollPosition(0, 0, {table.full_name: (0, ()) for polled in followed for table in polled.table.each})

    def _writers(self, connection: Connection) -> Writers:
        return writers_on(connection, self.access.address(), self.access.section.poll_wait_s)

    def unlogged_keys(self, tables: Tables) -> Sequence[ForeignKey]:
        return ()  # rows are only ever added

    def open_session(self) -> Connection:
        return open_checked(self.access.address(), self._check_identity, role="source")

    def _check_identity(self, connection: Connection) -> None:
        present = value_of(connection, facts_of(connection).identity)
        if present != self.identity:
            raise HistoryGoneError(
                f"the source's address leads to another server than before: {present}, not {self.identity}. Whether "
                "every row that was read is there, under its id, nobody can tell. Set it back, or begin a new "
                "history: viewtail replay --new-history"
            )


def _checked(connection: Connection, followed: Iterable[Followed]) -> list[PolledTable]:
    """Each table, which is there as it was described."""
    from ingest.poll.polled_table import polled

    tables = [table for each in followed for table in polled(each, _order_of(each), BEFORE_ALL)]
    for table in tables:
        table.check(connection)
    return tables


def _still_open(waiting: Iterable[PolledTable], within_s: float) -> SourceError:
    names = ", ".join(table.name for table in waiting)
    return SourceError(
        f"transactions that were open {within_s:.0f} s ago, and may bring rows into {names}, have not ended yet. "
        "Repeat the command when they have"
    )


def _order_of(followed: Followed) -> str:
    if followed.order is None:
        name = followed.table.full_name
        raise DeclarationError(
            f"{name} is polled, and no entity says by which column: "
            f"Entity({name!r}, ..., version='COLUMN', append_only=True, order='event_id')"
        )
    return followed.order


def writers_on(connection: Connection, address: MySQLAddress, wait_s: float | None) -> Writers:
    """Make the Writers of the server behind a connection; a wait that is accepted where it does not show them.

    Raises SourceError where neither is there.
    """
    from ingest.poll import checks
    from ingest.poll.writers import BoundedWait, why_unreadable, writers_of

    try:
        facts = facts_of(connection)
        is_replica = checks.is_replica(connection)
    except pymysql.err.MySQLError as error:
        raise session_error(error, address, "source") from None
    if is_replica:
        raise SourceError(
            "the source is a replica, or one of a group: rows reach it in another order than that of their ids, "
            "and who may still bring one it does not know. Set VIEWTAIL_SOURCE__URL to its primary"
        )
    why = why_unreadable(connection, facts)
    if why is None:
        return writers_of(facts)
    if wait_s is None:
        raise SourceError(f"polling cannot tell who may still bring a row: {why}. `viewtail check` says more")
    _log.warning("a row whose transaction takes longer is missed", seconds=wait_s, because=why)
    return BoundedWait(wait_s)


class PollKind(SourceKind):
    """Tables whose rows are only ever added, read by their ids."""

    section = PollSettings
    address = MYSQL
    before_all = BEFORE_ALL
    has_watermarks = False
    has_patterns = polls = True

    def read_position(self, text: str | bytes) -> PollPosition:
        return PollPosition.from_text(text)

    def history(self, access: SourceAccess, pipeline: PipelineId, number: int) -> PollHistory:
        with asking(access.address(), role="source") as connection:
            return PollHistory(access, value_of(connection, facts_of(connection).identity))

    def risk(self, access: SourceAccess) -> str | None:
        wait_s = access.section.poll_wait_s
        if wait_s is None:
            return None
        from ingest.poll.writers import why_unreadable

        with asking(access.address(), role="source") as connection:
            why = why_unreadable(connection, facts_of(connection))
        return why and (
            f"VIEWTAIL_SOURCE__POLL_WAIT_S accepts that a row is MISSED, in every view, if its transaction takes "
            f"longer than {wait_s:g} s. To miss none: {why}"
        )

    def checks(self, access: SourceAccess, tables: Tables, orders: Orders, streams: Tables) -> Iterable[Finding]:
        from ingest.poll import checks

        return checks.checks(access, tables, orders)

    def grants(self, access: SourceAccess, tables: Tables, streams: Tables) -> Iterator[str]:
        from ingest.watermarks import select_grant
        from viewtail.servers.privileges import account

        address = access.address()
        yield f"-- On {address}, whose tables are polled:"
        for schema, table in tables:
            yield select_grant(address, schema, table)
        yield f"GRANT SELECT ON performance_schema.* TO {account(address)};"
        instead = f"INSTALL SONAME 'metadata_lock_info'; GRANT PROCESS ON *.* TO {account(address)};"
        yield f"-- On MariaDB in place of the last one: {instead}"
