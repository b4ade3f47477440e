"""Shows what a declaration would change: a sample of rows, projected as views.py says now, beside what readers find.

Nothing is written. A row that changed a moment ago may differ because its pipeline has not come to it yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from ingest.canonical.sampling import sampled
from offsets.mysql import transaction
from projectors.catalog import Catalog
from projectors.every_change import projections_for
from projectors.projection import followed_tables
from projectors.read_and_written import as_live
from projectors.stores import Store, Unfit
from projectors.stores.access import Access
from projectors.stores.registry import store_of
from projectors.views import BoundView
from viewtail.changes.batches import Row
from viewtail.changes.errors import MisuseError
from viewtail.changes.rendering import render_key
from viewtail.changes.writes import Key
from viewtail.servers.literals import where_all
from viewtail.servers.sessions import Connection, quote

Content = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One entity that the declaration would change. None: the view does not show it."""

    key: str  # rendered
    before: Content | None
    after: Content | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The preview of a sample."""

    row_count: int
    differences: list[Difference]
    refused: dict[str, str]  # by rendered key: why it could not be projected
    has_place: bool  # False: the store has no place of the view yet, so nothing of it

    @property
    def same_count(self) -> int:
        return self.row_count - len(self.differences) - len(self.refused)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One entity: its row, what the view is to show of it, and what readers find. None: nothing."""

    key: str  # rendered
    row: Content  # the columns that the view needs, masked where the declaration says so
    wanted: Content | None
    shown: Content | None
    refused: str | None  # why it could not be projected

    @property
    def is_right(self) -> bool:
        return self.refused is None and self.wanted == self.shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Some entities of a view, and whether its store has a place of it."""

    entities: list[Sampled]
    has_place: bool


def preview(catalog: Catalog, view: BoundView, count: int) -> Preview:
    """Preview `count` rows at most. Raises MisuseError for a view of a store that keeps every change."""
    sample = sampled_entities(catalog, view, count)
    entities = sample.entities
    differences = [
        Difference(key=entity.key, before=entity.shown, after=entity.wanted)
        for entity in entities
        if entity.refused is None and not entity.is_right
    ]
    refused = {entity.key: entity.refused for entity in entities if entity.refused is not None}
    return Preview(row_count=len(entities), differences=differences, refused=refused, has_place=sample.has_place)


def sampled_entities(catalog: Catalog, view: BoundView, count: int) -> Sample:
    """Read a sample of entities, on both sides. Raises MisuseError for a view of a store that keeps every change."""
    store = store_of(view.view)
    if store.keeps_every_change:
        raise MisuseError(f"view {view.id} is a topic: it shows changes, and its earlier ones stay as they are")
    with (
        closing(catalog.session()) as session,
        transaction(session, "reading where a view is") as cursor,
    ):
        view = replace(view, copy=as_live(cursor, catalog.database, view).copy)
    with closing(catalog.servers.open_source()) as connection:
        rows = _sample(connection, view, count)
    wanted, refused = _wanted(store, view, rows)
    found = _found(store, catalog.access(store), view, list(wanted))
    shown = found or {}
    names = [column.name for column in view.table.columns if column.name in view.needed]
    of_key = {key: dict(zip(names, row, strict=True)) for key, row in zip(_keys(view, rows), rows, strict=True)}
    entities = [
        Sampled(
            key=(name := render_key(key, view.key)),
            row=of_key.get(key, {}),
            wanted=content,
            shown=shown.get(key),
            refused=refused.get(name),
        )
        for key, content in wanted.items()
    ]
    return Sample(entities=entities, has_place=found is not None)


def _sample(connection: Connection, view: BoundView, count: int) -> list[Row]:
    if view.derived is None:
        return sampled(connection, view.table, view.needed, count, view.condition)
    columns = [column for column in view.table.columns if column.name in view.needed]
    behind = f" ORDER BY {', '.join(quote(column.name) for column in view.key)} LIMIT {count:d}"
    return view.derived.fetch(connection, columns, where_all(view.condition), behind)


def _found(store: Store, access: Access, view: BoundView, keys: list[Key]) -> dict[Key, Content] | None:
    """Return what readers find, whatever the declaration that made it; None where the store has no place of it."""
    present = store.as_stored(access, view)
    if present is None:
        return None
    with closing(store.reader(access, present)) as reader:
        return {row.key: store.printable(present, row.content) for row in reader.rows(keys)}


def _wanted(store: Store, view: BoundView, rows: list[Row]) -> tuple[dict[Key, Content | None], dict[str, str]]:
    """Return what the view is to show of these rows, by key, and the rendered keys that it cannot, with the reasons."""
    projected = projections_for(store, [view], followed_tables([view])).of_rows(view.id, rows, 0)
    wanted: dict[Key, Content | None] = dict.fromkeys(_keys(view, rows))
    refused = {letter.key: letter.reason for letter in projected.parked}
    for of_view in projected.writes:
        for key, (_, values) in of_view.writes.items():
            try:
                wanted[key] = None if values is None else store.content(view, key, values)
            except Unfit as error:
                refused[render_key(key, view.key)] = str(error)
    return wanted, refused


def _keys(view: BoundView, rows: list[Row]) -> list[Key]:
    names = [column.name for column in view.table.columns if column.name in view.needed]
    at = [names.index(column.name) for column in view.key]
    return [tuple(row[place] for place in at) for row in rows]
