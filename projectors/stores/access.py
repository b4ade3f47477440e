"""How a store is reached: its settings, and the MySQL server of viewtail's own tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ingest.limits import Limits
from offsets import OffsetStore
from offsets.mysql import BackgroundOffsets, MySQLOffsets, OwnSession
from projectors.stores.owners import Claiming
from viewtail.changes.positions import ReadPosition
from viewtail.servers.sessions import Connection, MySQLAddress, open_session


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a store is given to make its sinks, readers and checks with."""

    section: Any  # the store's own settings, of its `section` class
    own: MySQLAddress  # of viewtail's own tables
    database: str  # of viewtail's own tables
    read_position: ReadPosition  # of the source
    limits: Limits = field(default_factory=Limits)
    # Lets the next owner of a pipeline find the session.
    mark: Callable[[Connection], None] = lambda _: None
    claimant: Claiming = lambda: None  # who claims places in the store

    def open_own(self) -> Connection:
        """A session on the server of viewtail's own tables; no database is selected, it may not exist yet."""
        connection = open_session(replace(self.own, database=None), role="store")
        self.mark(connection)
        return connection

    def background_offsets(self, pipeline: str) -> OffsetStore:
        """An offset that is saved behind the pipeline's back, on a session of its own."""
        session = OwnSession(self.open_own)
        offsets = MySQLOffsets(session, self.database, pipeline, read_position=self.read_position)
        return BackgroundOffsets(offsets, self.limits.offset_interval_s, session.close)
