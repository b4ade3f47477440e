"""The view class of index tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from changes.errors import DeclarationError
from projectors.views import Entity, RowFunction, View, column_names

MAX_NAME_LENGTH = 64  # of a table


@dataclass(frozen=True, slots=True, init=False)
class IndexTable(View):
    """A MySQL table (value columns, entity key) that answers "which entities have this value?" by itself."""

    store: ClassVar[str] = "mysql"

    values: tuple[str, ...]

    def __init__(
        self, name: str, entity: Entity, *, value: str | Sequence[str], where: RowFunction | None = None
    ) -> None:
        self._set(name, entity, where)
        values = column_names(value, f"IndexTable({name!r}): value")
        if not values:
            raise DeclarationError(f"IndexTable({name!r}): value names at least one column")
        object.__setattr__(self, "values", values)

    @property
    def shown(self) -> tuple[str, ...]:
        return self.values
