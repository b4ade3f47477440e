"""The sources there are: how one is asked for its present history, and how its positions are read.

A new source is a folder in ingest/ and its place here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pymysql

from changes.batches import Followed
from changes.errors import ViewtailError
from changes.pipelines import PipelineId
from changes.positions import Position, ReadPosition
from ingest.binlog.continuity import ServerHistory, check_identity, history_of
from ingest.binlog.coordinates import BEFORE_ALL, BinlogPosition
from ingest.binlog.source import BinlogSource
from projectors.stores.registry import STORES, store_named
from servers.sessions import Connection, open_session, session_error

if TYPE_CHECKING:
    from viewtail.settings import Settings

read_position: ReadPosition = BinlogPosition.from_text


@dataclass(frozen=True, slots=True)
class BinlogHistory:
    """The binlogs of the server that is tailed, and the epoch that their versions are of."""

    settings: Settings
    pipeline: PipelineId
    server: ServerHistory
    epoch: int = 0

    def reader(
        self, followed: Mapping[tuple[str, str], Followed], fits_from: Mapping[tuple[str, str], int]
    ) -> BinlogSource:
        """A reader for the pipeline, not connected yet."""
        settings, pipeline = self.settings, self.pipeline
        server_id = settings.source.server_id
        if server_id is not None:  # each reader needs a number of its own
            server_id += len(STORES) * pipeline.partition + STORES.index(store_named(pipeline.store))
        return BinlogSource(
            settings.source_address(),
            followed,
            own_schemas=frozenset({settings.source.database, settings.store_database}),
            watermark_schema=settings.source.database,
            epoch=self.epoch,
            identity=self.server.identity,
            heartbeat_s=settings.source.heartbeat_s,
            server_id=server_id,
            spool_bytes=settings.run.spool_bytes,
            max_event_bytes=settings.run.max_event_bytes,
            fits_from=fits_from,
        )

    def open_session(self) -> Connection:
        """A session on the server whose changes are read; raises AnotherServerError where the address leads elsewhere.

        Rows of another server do not belong to the versions of this one's history.
        """
        connection = open_session(self.settings.source_address(), role="source")
        try:
            check_identity(connection, self.server.identity)
        except (ViewtailError, pymysql.err.MySQLError) as error:
            connection.close()
            if isinstance(error, ViewtailError):
                raise
            raise session_error(error, self.settings.source_address(), "source") from None
        return connection


def history_now(settings: Settings, pipeline: PipelineId) -> BinlogHistory:
    """The binlogs of the tailed server as they are now, for a pipeline."""
    with closing(open_session(settings.source_address(), role="source")) as connection:
        return BinlogHistory(settings, pipeline, history_of(connection))


def source_now(settings: Settings) -> tuple[str, Position]:
    """The tailed server as it describes itself, and a position before all of its own."""
    return str(history_now(settings, PipelineId.of(STORES[0].name)).server), BEFORE_ALL
