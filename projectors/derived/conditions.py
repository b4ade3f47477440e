"""Conditions over a table's columns, as SQL in declarations."""

from __future__ import annotations

from dataclasses import dataclass

from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Table


@dataclass(frozen=True, slots=True)
class Condition:
    """Which rows of a table count."""

    sql: str  # over the table's own column names, quoted
    columns: tuple[Column, ...]  # that it depends on


def condition_of(text: str, table: Table) -> Condition:
    """Read a condition. Raises DeclarationError for anything but plain comparisons of the table's columns."""
    raise DeclarationError(f"where={text!r} of {table.full_name} is not read yet")
