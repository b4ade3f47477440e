"""A declaration together with its described table: what projections and sinks work from."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from changes.errors import DeclarationError
from changes.tables import Column, Table
from projectors.views import View


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundView:
    """A view whose declaration was found to work with the table as it is now."""

    view: View
    table: Table
    key: tuple[Column, ...]  # of the entity, in key order
    values: tuple[Column, ...]  # columns the view shows, as declared; () for document functions
    needed: tuple[str, ...]  # every column the projection reads: key, values, version, function's columns
    fingerprint: str  # hex; differs when the view's content would

    @property
    def id(self) -> str:
        return self.view.id


def bind(views: Sequence[View], describe: Callable[[str, str], Table]) -> list[BoundView]:
    """Each view with its table; raises DeclarationError."""
    tables: dict[str, Table] = {}
    bound = []
    for view in views:
        name = view.entity.table
        if name not in tables:
            tables[name] = describe(*name.split("."))
        bound.append(_bind(view, tables[name]))
    return bound


def _bind(view: View, table: Table) -> BoundView:
    key = tuple(_column(view, table, name) for name in (view.entity.key or table.primary_key))
    if not key:
        raise DeclarationError(f"view {view.id}: {table.full_name} has no primary key; name one: key=...")
    document = getattr(view, "document", None)
    shown = () if document else (getattr(view, "values", ()) or getattr(view, "fields", ()))
    values = tuple(_column(view, table, name) for name in shown)
    names = {column.name for column in (*key, *values)}
    if view.entity.version:
        names.add(view.entity.version)
    if view.where or document:
        names.update(getattr(view, "columns", ()) or [column.name for column in table.columns])
    needed = tuple(column.name for column in table.columns if column.name in names)
    told = repr(
        (view.id, view.entity, shown, getattr(view, "mapping", None), getattr(view, "key", None), [c.declared for c in values])
    ) + _source(view.where) + _source(document)
    return BoundView(
        view=view, table=table, key=key, values=values, needed=needed, fingerprint=hashlib.sha256(told.encode()).hexdigest()
    )


def _column(view: View, table: Table, name: str) -> Column:
    column = table.column(name)
    if column is None:
        raise DeclarationError(f"view {view.id}: {table.full_name} has no column {name}")
    return column


def _source(function: Callable[..., Any] | None) -> str:
    return "" if function is None else inspect.getsource(function)
