"""The source there is. A kind of source is a folder in ingest/ and its place here."""

from __future__ import annotations

from ingest.binlog.kind import BinlogKind
from ingest.binlog.kind import BinlogSettings as SourceSettings

__all__ = ["SOURCE", "SourceSettings"]

SOURCE = BinlogKind()
