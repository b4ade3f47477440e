"""A declaration together with its described table: what projections and stores work from."""

from __future__ import annotations

from dataclasses import dataclass

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
