"""Which source's positions the commands and pipelines read."""

from __future__ import annotations

from changes.positions import ReadPosition
from ingest.binlog.coordinates import BinlogPosition

read_position: ReadPosition = BinlogPosition.from_text
