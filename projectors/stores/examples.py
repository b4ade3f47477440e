"""What `viewtail init` shows of each store: a first view of a real table."""

from __future__ import annotations

from dataclasses import dataclass

from changes.tables import Column, Table
from projectors.views import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The table that the examples are over, and the columns of each."""

    table: Table
    indexed: Column | None  # what people look rows up by
    is_looked_up: bool  # the table has an index of its own on that column
    shown: tuple[Column, ...]
    searched: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One view, as Python and as text."""

    view: View
    declaration: str  # over a variable `entity`
    comment: str
