"""The list of implementations. A new one is a module beside this file and one line in IMPLEMENTATIONS."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from projectors.derived import DerivedRows
from projectors.views import View
from viewtail.changes.tables import Table

# By the argument of Entity that declares it. Imported when a declaration has it: most programs need none of them.
IMPLEMENTATIONS = {
    "columns_by": "projectors.derived.cells",
    "related": "projectors.derived.documents",
    "values": "projectors.derived.groups",
}


def derived_rows(
    view: View, table: Table, describe: Callable[[str, str], Table], names: frozenset[str] | None
) -> DerivedRows | None:
    """How the rows of a view are made of several; None: they are the table's own.

    Args:
        table: the entity's.
        describe: gives another table by schema and name; raises DeclarationError for one that is missing.
        names: the columns that the declaration names; None: its functions may ask for any.
    """
    for argument, module in IMPLEMENTATIONS.items():
        if getattr(view.entity, argument):
            rows: DerivedRows = import_module(module).rows_of(view, table, describe, names)
            return rows
    return None
