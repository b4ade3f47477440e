"""The settings [run]: how much a pipeline holds at once, and what it does about a changed declaration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from viewtail.servers.login import Group


class Limits(Group):
    """Bounds what `viewtail run` holds at once, and says what it does about a changed declaration.

    The defaults keep a pipeline below 150 MiB.
    """

    batch_rows: int = Field(24000, ge=1, le=100_000, description="rows written to a store at once, at most")
    batch_bytes: int = Field(2 << 20, ge=4096, le=256 << 20, description="bytes of binlog events written at once")
    waiting_bytes: int = Field(4 << 20, ge=4096, le=1 << 30, description="bytes read ahead while a store is busy")
    spool_bytes: int = Field(
        4 << 20, ge=4096, le=1 << 30, description="bytes of one open transaction kept in memory, the rest in a file"
    )
    max_event_bytes: int = Field(256 << 20, ge=1 << 20, le=1 << 30, description="a larger row event halts its views")
    chunk_rows: int = Field(24_000, ge=1, le=100_000, description="rows of one chunk of a backfill, in 8 MiB at most")
    fan_out_above: int = Field(
        1_000,
        ge=1,
        le=100_000,
        description="entities that are written at once for a changed row they depend on; more are written page by page",
    )
    offset_interval_s: float = Field(
        1.0, ge=0.05, le=60, description="seconds between saved offsets of Redis and Elasticsearch"
    )
    on_change: Literal["in_place", "beside"] = Field(
        "in_place",
        description="where a view whose declaration changed is backfilled: beside, readers keep the old copy",
    )

    def with_at_most(self, rows: int) -> Limits:
        """The same with batches of at most so many rows."""
        return self.model_copy(update={"batch_rows": min(self.batch_rows, rows)})
