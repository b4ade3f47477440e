"""The view class of index tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from changes.errors import DeclarationError
from projectors.stores.index_tables.elements import TYPES, element_column
from projectors.views import Entity, RowFunction, View, column_names

MAX_NAME_LENGTH = 64  # of a table


@dataclass(frozen=True, slots=True, init=False)
class IndexTable(View):
    """A MySQL table (value columns, entity key) that answers "which entities have this value?" by itself.

    With `each`, the type of one value, the column holds a JSON list, and the table has a row for each value of it.
    """

    store: ClassVar[str] = "mysql"
    has_index: ClassVar[bool] = True

    values: tuple[str, ...]
    each: str | None

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        value: str | Sequence[str],
        each: str | None = None,
        where: RowFunction | None = None,
        previous: IndexTable | None = None,
    ) -> None:
        label = f"IndexTable({name!r})"
        self._set(name, entity, where)
        values = column_names(value, f"{label}: value")
        if not values:
            raise DeclarationError(f"{label}: value names at least one column")
        if each is not None and len(values) > 1:
            raise DeclarationError(f"{label}: with each= value names one column, the one that holds the list")
        if each is not None and (not isinstance(each, str) or element_column(values[0], each) is None):
            raise DeclarationError(f"{label}: each is the type of one value of the list, one of {TYPES}, not {each!r}")
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "each", each)
        self._set_previous(previous)

    @property
    def fixed(self) -> dict[str, Any]:
        return {"each": self.each}

    @property
    def shown(self) -> tuple[str, ...]:
        return self.values

    @property
    def particulars(self) -> dict[str, Any]:
        return {} if self.each is None else {"each": self.each}
