"""Canonical rows: what a table looks like, and its rows as SELECT gives them, in the same form as from the binlog."""

from ingest.canonical.rows import fetch_rows, select_list, select_of
from ingest.canonical.tables import Descriptions, describe, is_denied

__all__ = ["Descriptions", "describe", "fetch_rows", "is_denied", "select_list", "select_of"]
