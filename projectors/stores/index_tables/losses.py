"""Notices that somebody emptied an index table, by TRUNCATE for instance, while nothing else tells it.

viewtail takes no two rows away at once that are as far apart as the first and the last one: a deleted entity leaves a
tombstone. So where both ends of a table are gone, and nothing says why, its rows are. The server's own data about a
table cannot tell that: its CREATE_TIME changes with an ALTER and with OPTIMIZE, and with no TRUNCATE."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from projectors.stores.index_tables.lists import element_of, entities_of
from projectors.stores.index_tables.table import table_name
from projectors.stores.index_tables.whole import is_whole, tombstones_of
from projectors.stores.owners import LOOK_EVERY_S
from projectors.views import BoundView
from viewtail.changes.writes import Key
from viewtail.servers.literals import one_of, selected
from viewtail.servers.sessions import quote

Read = Callable[[str], list[tuple[Any, ...]]]


class Losses:
    """What was seen last at the ends of the tables that readers see. Not thread-safe."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._ends: dict[str, frozenset[Key]] = {}  # by view
        self._looked_at = 0.0  # monotonic
        self.found: frozenset[str] = frozenset()  # the views that lost their rows, until `reported`

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._looked_at >= LOOK_EVERY_S

    def look(self, views: Iterable[BoundView], read: Read) -> frozenset[str]:
        """Look at the tables of these views; returns those that lost their rows. `read` raises if a table is gone."""
        self._looked_at = time.monotonic()
        for view in views:
            now, before = frozenset(read(_ends(self._database, view))), self._ends.get(view.id, frozenset())
            if before and not now & before and not read(_kept(self._database, view, list(before))):
                self.found |= {view.id}
            self._ends[view.id] = now
        return self.found

    def reported(self, views: Iterable[str]) -> None:
        """These views are filled again: what their tables had is forgotten."""
        self.found = frozenset()
        for view in views:
            self._ends.pop(view, None)


def _ends(database: str, view: BoundView) -> str:
    """The SELECT of the first and the last key that readers see. It needs the view's other table, too."""
    keys = ", ".join(map(selected, view.key))
    order = ", ".join(quote(column.name) for column in view.key)
    backwards = ", ".join(f"{quote(column.name)} DESC" for column in view.key)
    table = quote(database, table_name(view))
    ends = [f"(SELECT {keys} FROM {table} ORDER BY {by} LIMIT 1)" for by in (order, backwards)]
    if (other := _other(view)) is not None:
        ends.append(f"(SELECT {keys} FROM {quote(database, table_name(other))} LIMIT 0)")
    return " UNION ALL ".join(ends)


def _kept(database: str, view: BoundView, keys: list[Key]) -> str:
    """The SELECT that finds a row if one of these keys is there, or if viewtail itself took it away."""
    among = one_of(view.key, keys)
    kept = f"SELECT 1 FROM {quote(database, table_name(view))} WHERE {among}"
    if (other := _other(view)) is None:
        return f"{kept} LIMIT 1"
    lists = [f"COALESCE(JSON_LENGTH({quote(column.name)}), 0) = 0" for column in other.values]
    where = " AND ".join([f"({among})", *lists])
    return f"({kept} LIMIT 1) UNION ALL (SELECT 1 FROM {quote(database, table_name(other))} WHERE {where} LIMIT 1)"


def _other(view: BoundView) -> BoundView | None:
    """The second table of a view: that of tombstones, or of lists, as a view with one row per entity."""
    if is_whole(view):
        return tombstones_of(view)
    return None if element_of(view) is None else entities_of(view)
