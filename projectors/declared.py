"""Views as viewtail's own tables keep them: how each is declared, and what it is bound to."""

from __future__ import annotations

from collections.abc import Iterable

from offsets.views import DeclaredView
from projectors.binding import declaration_hash, shows_all
from projectors.stores.registry import store_of
from projectors.views import BoundView


def declared(view: BoundView) -> DeclaredView:
    """The row of a view."""
    store = store_of(view.view)
    has_columns = store.keeps_every_change and shows_all(view.view)
    return DeclaredView(
        id=view.id,
        copy=view.copy,
        fingerprint=view.fingerprint,
        declaration=declaration_hash(view.view),
        version_kind=view.view.entity.version or "binlog",  # the kind of all versions that are no column's
        place={"entity": view.table.full_name, **store.place(view)},
        columns=[column for column in view.table.columns if column.name in view.needed] if has_columns else None,
    )


def all_declared(views: Iterable[BoundView]) -> list[DeclaredView]:
    """The rows of these views."""
    return [declared(view) for view in views]
