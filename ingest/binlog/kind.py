"""All that is known of the binlog as a kind of source: its settings, present history, checks and grants.

The decoder, the checks and the rest are imported where they are used: every command imports this, few read a binlog.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field

from ingest import FollowedTables, Margin, Orders, SourceAccess, SourceKind, Tables, Versions
from ingest.binlog.coordinates import BEFORE_ALL, BinlogPosition, own
from viewtail.changes.errors import HistoryGoneError
from viewtail.changes.findings import Finding
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.changes.tables import ForeignKey
from viewtail.servers.addresses import MYSQL
from viewtail.servers.facts import facts_of
from viewtail.servers.login import OWN_DATABASE, MySQLUrl, Name, Server
from viewtail.servers.sessions import Connection, MySQLAddress, asking, open_checked, value_of

if TYPE_CHECKING:
    from ingest.binlog.margins import Binlogs
    from ingest.binlog.source import BinlogSource


_FRESH_S = 10.0  # what a server said of its binlogs
_MOST_BEGUN = 64  # binlogs whose beginning is kept in mind


class BinlogSettings(Server):
    """The MySQL server whose binlog is tailed."""

    url: MySQLUrl | None = Field(None, description="mysql://USER:PASSWORD@HOST:PORT[/SCHEMA] of the tailed server")
    primary_url: MySQLUrl | None = Field(
        None, description="its primary, where watermarks are written; by default the tailed server"
    )
    database: Name = Field(OWN_DATABASE, description="database of the watermark table, on the primary")
    server_id: int | None = Field(
        None, ge=1, le=2**32 - 1, description="mysql:// only: replica number to log in with; by default a random one"
    )
    heartbeat_s: float = Field(
        2.0, ge=0.1, le=60, description="mysql:// only: seconds of silence after which the server sends a heartbeat"
    )


@dataclass(frozen=True, slots=True)
class BinlogHistory:
    """The binlogs of the server that is tailed, and the epoch that their versions are of.

    Coordinates can be compared as long as its text is equal.
    """

    access: SourceAccess
    number: int
    identity: str  # of the server, as `ServerFacts.identity` gives it
    base: str  # name of its binlog files, without their number
    epoch: int = 0

    def __str__(self) -> str:
        return f"{self.identity} with binlogs {self.base}.*"

    def at(self, epoch: int) -> BinlogHistory:
        return replace(self, epoch=epoch)

    def check_continues(self, after: Position, before: str) -> None:
        own(after)
        try:
            self.reader({}, {}).check(after)
        except HistoryGoneError as error:
            raise HistoryGoneError(
                f"the source is another server than before: it was {before}, it is {self}. {error}"
            ) from None

    def reader(self, followed: FollowedTables, fits_from: Versions) -> BinlogSource:
        from ingest.binlog.purged import OffsetTable
        from ingest.binlog.source import BinlogSource

        access, settings, limits = self.access, self.access.section, self.access.limits
        return BinlogSource(
            access.address(),
            followed,
            own_schemas=frozenset({settings.database, access.own_database}),
            watermark_schema=settings.database,
            epoch=self.epoch,
            identity=self.identity,
            heartbeat_s=settings.heartbeat_s,
            # Each reader needs a replica number of its own.
            server_id=None if settings.server_id is None else settings.server_id + self.number,
            spool_bytes=limits.spool_bytes,
            max_event_bytes=limits.max_event_bytes,
            offset_table=OffsetTable(access.own, access.own_database),
            fits_from=fits_from,
        )

    def unlogged_keys(self, tables: Tables) -> Sequence[ForeignKey]:
        from ingest.canonical.foreign_keys import cascading_ancestry

        with closing(self.open_session()) as connection:
            if not tables or value_of(connection, facts_of(connection).logs_cascades):
                return ()
            return cascading_ancestry(connection, [*tables])

    def open_session(self) -> Connection:
        from ingest.binlog.continuity import check_identity

        return open_checked(self.access.address(), partial(check_identity, identity=self.identity), role="source")


class BinlogKind(SourceKind):
    """Row events of a MySQL or MariaDB server."""

    section = BinlogSettings
    address = MYSQL
    before_all = BEFORE_ALL
    can_read_back = True
    has_patterns = True
    can_check_offsets = True

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int, str], float] = {}  # by server, epoch and binlog, the oldest answer first
        self._asked: dict[tuple[str | None, int, str | None], tuple[float, Binlogs]] = {}  # by address: when, and what
        self._lock = threading.Lock()

    def read_position(self, text: str | bytes) -> BinlogPosition:
        return BinlogPosition.from_text(text)

    def history(self, access: SourceAccess, pipeline: PipelineId, number: int) -> BinlogHistory:
        from ingest.binlog.continuity import history_of

        with asking(access.address(), role="source") as connection:
            return BinlogHistory(access, number, *history_of(connection))

    def margins(
        self, access: SourceAccess, positions: Mapping[str, Position], lags_s: Mapping[str, float]
    ) -> dict[str, Margin]:
        binlogs = self._binlogs(access.address())
        # Behind a failover the pipeline finds its place in the other server's binlogs within seconds.
        here = {
            name: at
            for name, at in positions.items()
            if isinstance(at, BinlogPosition) and not at.is_of_another_server(binlogs.identity)
        }
        epoch = max((at.epoch for at in here.values()), default=0)
        begun_s = partial(self._begun_s, access, binlogs.identity, epoch)
        found = {file: binlogs.margin(file, begun_s) for file in {at.file for at in here.values()}}
        return {name: margin for name, at in here.items() if (margin := found[at.file]) is not None}

    def _binlogs(self, address: MySQLAddress) -> Binlogs:
        """Ask the server, unless it said so a moment ago: a page may look every second."""
        from ingest.binlog.margins import Binlogs

        which = address.host, address.port, address.unix_socket
        with self._lock:
            asked_at, known = self._asked.get(which, (0.0, None))
        if known is None or time.monotonic() - asked_at > _FRESH_S:
            with asking(address, role="source") as connection:
                known = Binlogs.of(connection)
            with self._lock:
                self._asked[which] = time.monotonic(), known
        return known

    def _begun_s(self, access: SourceAccess, identity: str, epoch: int, file: str) -> float:
        """When a binlog was begun, seconds since 1970: to ask takes a dump connection, and it stays as it is."""
        from ingest.binlog.connection import connect_to
        from ingest.binlog.times import begun_s

        which = identity, epoch, file
        with self._lock:
            known = self._begun.get(which)
        if known is None:
            known = begun_s(connect_to(access.address(), access.section.heartbeat_s, identity), file)
            with self._lock:
                while len(self._begun) >= _MOST_BEGUN:
                    del self._begun[next(iter(self._begun))]
                self._begun[which] = known
        return known

    def why_missing(self, access: SourceAccess, watermark: str) -> str | None:
        from ingest.left_out import why_missing

        return why_missing(access.address(), access.primary(), access.section.database, watermark)

    def is_filtered(self, access: SourceAccess) -> bool:
        from ingest.left_out import is_filtered

        return is_filtered(access.address())

    def checks(self, access: SourceAccess, tables: Tables, orders: Orders, streams: Tables) -> Iterable[Finding]:
        from ingest.binlog import checks

        late = checks.LATE_WITH_A_CLEANER if access.is_cleaned else checks.NEVER
        return checks.checks(access.address(), access.primary(), access.section.database, tables, late)

    def ended(self, access: SourceAccess, tables: Tables) -> None:
        from ingest.binlog import quiet_end

        quiet_end.note(access, frozenset({access.section.database, access.own_database}), tables)

    def grants(self, access: SourceAccess, tables: Tables, streams: Tables) -> Iterator[str]:
        from ingest.binlog import checks
        from ingest.watermarks import WATERMARK_PRIVILEGES, select_grant
        from viewtail.servers.privileges import account, grants

        address, primary = access.address(), access.primary()
        yield f"-- On {address}, whose changes are read:"
        yield f"GRANT {', '.join(name for name, _ in checks.REPLICATION)} ON *.* TO {account(address)};"
        for schema, table in tables:
            yield select_grant(address, schema, table)
        database = access.section.database
        # Who owns viewtail's own tables has all of that already.
        if (_login(primary), database) != (_login(access.own), access.own_database):
            yield from grants(primary, database, WATERMARK_PRIVILEGES, "where watermarks are written")


def _login(address: MySQLAddress) -> tuple[object, ...]:
    return (address.host, address.port, address.unix_socket, address.user)
