"""The access to a store: its settings, and the MySQL server that has viewtail's own tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from ingest.limits import Limits
from offsets import OffsetStore
from offsets.mysql import BackgroundOffsets, MySQLOffsets, OwnSession
from projectors.stores.owners import NOBODY, Claiming
from viewtail.changes.positions import ReadPosition
from viewtail.servers.sessions import Connection, MySQLAddress, open_session


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Everything that a store needs to make its sinks, readers and checks."""

    section: Any  # the store's own settings, of its `section` class
    own: MySQLAddress  # the server of viewtail's own tables
    database: str  # that viewtail's own tables are in
    read_position: ReadPosition  # reads the source's positions
    limits: Limits = field(default_factory=Limits)
    # Lets the next owner of a pipeline find the session.
    mark: Callable[[Connection], None] = lambda _: None
    claimant: Claiming = lambda: NOBODY  # returns the deployment that claims places in the store

    def open_own(self) -> Connection:
        """Open a session on the server of viewtail's own tables; it selects no database, which may not exist yet."""
        connection = open_session(replace(self.own, database=None), role="store")
        self.mark(connection)
        return connection

    def background_offsets(self, pipeline: str) -> OffsetStore:
        """An offset store that saves in the background, on a session of its own."""
        session = OwnSession(self.open_own)
        offsets = MySQLOffsets(session, self.database, pipeline, read_position=self.read_position)
        return BackgroundOffsets(offsets, self.limits.offset_interval_s, session.close)
