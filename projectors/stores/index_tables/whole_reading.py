"""Reads a MySQLTable view: its rows, and where versions count its tombstones as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from projectors.stores import Held, slices
from projectors.stores.index_tables.reading import KEYS_A_QUERY, IndexTableReader
from projectors.stores.index_tables.whole import tombstones_of
from projectors.views import BoundView
from viewtail.changes.tables import Column
from viewtail.changes.writes import Key
from viewtail.servers.literals import beyond, literal, one_of, up_to
from viewtail.servers.sessions import Connection, quote


class WholeReader(IndexTableReader):
    """Reads both tables of one view, on a session of its own."""

    def __init__(self, connection: Connection, database: str, view: BoundView) -> None:
        super().__init__(connection, database, view)
        self._tombstones = _TombstoneReader(connection, database, tombstones_of(view))

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        """What readers see counts: a row beside a newer tombstone, which somebody else wrote, is shown.

        The rows are read first: a row that goes meanwhile has left a tombstone by then, and is looked for once more.
        """
        by_key, tombstones = super().held(keys), self._tombstones.held(keys)
        beside = [key for key, tombstone in tombstones.items() if _is_older(by_key.get(key), tombstone)]
        again = super().held([key for key in beside if key in by_key])
        for key in beside:
            tombstone, row = tombstones[key], again.get(key)
            by_key[key] = tombstone if row is None else _with_version_of(row, tombstone)
        return by_key

    def between(self, after: Key | None, upto: Key | None, newest: int) -> tuple[dict[Key, Any], dict[Key, int]]:
        shown, versions = super().between(after, upto, newest)
        for key, version in self._tombstones.newer(after, upto, newest).items():
            if versions.get(key, 0) < version:
                versions[key] = version
        return shown, versions

    def keys_with(self, values: Sequence[Any], limit: int) -> list[Key]:
        pairs = zip(indexed(self.view), values, strict=False)
        conditions = [f"{quote(column.name)} <=> {literal(value, column)}" for column, value in pairs]
        return self._fetched(conditions, self._stored[: len(self.view.key)], f" LIMIT {limit:d}")

    def _shown(self, values: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return values


class _TombstoneReader(IndexTableReader):
    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        rows = [row for some in slices(keys, KEYS_A_QUERY) for row in self._fetched([one_of(self.view.key, some)])]
        return {row[:-1]: Held(row[-1], None, mark=row[-1]) for row in rows}

    def newer(self, after: Key | None, upto: Key | None, newest: int) -> dict[Key, int]:
        conditions = [f"{self._version} > {newest:d}"]
        conditions += [] if after is None else [beyond(self.view.key, after)]
        conditions += [] if upto is None else [up_to(self.view.key, upto)]
        return {row[:-1]: row[-1] for row in self._fetched(conditions)}


def _is_older(row: Held | None, tombstone: Held) -> bool:
    return row is None or (row.version or 0) < (tombstone.version or 0)


def _with_version_of(row: Held, tombstone: Held) -> Held:
    """A row that may have become newer since the tombstone was read."""
    return replace(row, version=tombstone.version, mark=tombstone.mark) if _is_older(row, tombstone) else row


def indexed(view: BoundView) -> list[Column]:
    """The columns of the first index that is declared."""
    columns = {column.name: column for column in (*view.key, *view.values)}
    first: Sequence[str] = next((names for _, names in getattr(view.view, "indexes", ())), ())
    return [columns[name] for name in first]
