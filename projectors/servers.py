"""The servers of a deployment: how each is reached, and within which limits. What it keeps on them is in catalog.py."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import pymysql

from ingest import SourceAccess, SourceKind
from ingest.limits import Limits
from projectors.stores import Store
from projectors.stores.access import Access
from viewtail.changes.masks import NO_SECRET, Masks
from viewtail.changes.pipelines import DEFAULT_SOURCE, PipelineId
from viewtail.changes.positions import ReadPosition
from viewtail.servers.facts import limit_selects
from viewtail.servers.sessions import Connection, MySQLAddress, asking, open_session, session_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """How each server is reached. Addresses are asked for at each session: a password file may have changed by then.

    Args:
        kind: all that is known of the source.
        source: how the source is reached. Raises SettingsError where its address is not set.
        own: the server of index tables and of viewtail's own tables, the database included.
        store: how a store is reached. Raises SettingsError where its address is not set.
        source_name: which of several sources it is; DEFAULT_SOURCE: the one that has no name.
        database: that of index tables and of viewtail's own tables.
        watermarks_in: the database on the source's primary that watermarks are written in.
        limits: what a pipeline holds between reading and writing.
        is_cleaned: whether a cleaner looks after the views.
        masks: which columns are masked, beside those that declarations name, and the secret of hashes.
        mark: notes the owner's lease in its sessions, so that the next owner finds them.
    """

    kind: SourceKind
    source: Callable[[], SourceAccess]
    own: Callable[[], MySQLAddress]
    store: Callable[[Store], Access]
    database: str
    watermarks_in: str
    read_position: ReadPosition
    limits: Limits
    is_cleaned: bool
    source_name: str = DEFAULT_SOURCE
    masks: Masks = NO_SECRET
    mark: Callable[[Connection], None] = lambda _: None

    def keeps(self, pipeline: str) -> bool:
        """Return whether the pipeline of that name reads this source, or a topic where topics are read."""
        return self.kind.keeps(self.source_name, pipeline)

    @property
    def named_source(self) -> str:
        """The name of the source; '' where it has none."""
        return "" if self.source_name == DEFAULT_SOURCE else self.source_name

    def concerns(self, pipeline: str) -> bool:
        """Return whether what is done with a view's rows is done with those of that pipeline: a view without sources=
        may have been kept from the binlog and from topics."""
        return self.source_name in (DEFAULT_SOURCE, PipelineId.parse(pipeline).source)

    def open_source(self) -> Connection:
        """A session on the server with the canonical rows."""
        return open_session(self.source().address(), role="source")

    def open_primary(self) -> Connection:
        """A session where watermarks are written: the source's primary."""
        return open_session(self.source().primary(), role="source")

    def open_limited(self, seconds: float) -> Connection:
        """A session on the source for SELECTs that may take long: the server ends one after so many seconds."""
        address = self.source().address()
        connection = open_session(address, role="source")
        try:
            limit_selects(connection, seconds)
        except pymysql.err.MySQLError as error:
            connection.close()
            raise session_error(error, address, "source") from None
        return connection

    def open_own(self) -> Connection:
        """A session on the server of viewtail's own tables; no database is selected, it may not exist yet."""
        connection = open_session(replace(self.own(), database=None), role="store")
        self.mark(connection)
        return connection

    def is_filtered(self) -> bool:
        """Return whether statements that put other rows into tables may be missing from what the source tells."""
        return self.kind.is_filtered(self.source())

    def asking_own(self) -> AbstractContextManager[Connection]:
        """Such a session for a few questions; what fails meanwhile is a ViewtailError."""
        return asking(replace(self.own(), database=None), role="store")
