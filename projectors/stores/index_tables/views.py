"""The view class of index tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from projectors.stores.index_tables import computed
from projectors.stores.index_tables.elements import TYPES, element_column
from projectors.views import Entity, RowFunction, View, column_names
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind

MAX_NAME_LENGTH = 64  # of a table


@dataclass(frozen=True, slots=True, init=False)
class IndexTable(View):
    """A MySQL table (value columns, entity key) that answers "which entities have this value?" by itself.

    With `each`, the type of one value, the column holds a JSON list, and the table has a row for each value of it.
    With `of`, a function of the row, the value columns are the view's own: `values` is a dict of name to MySQL type,
    and the function returns the value, or of several columns a dict or a tuple. With `each` too it returns a list, and
    `value` names its column. `columns` are those of the row that it gets; by default those that its source asks for.
    """

    store: ClassVar[str] = "mysql"
    has_index: ClassVar[bool] = True
    function: ClassVar[str] = "of"

    values: tuple[str, ...]
    each: str | None
    made: tuple[Column, ...]  # the value columns that `of` computes; (): the columns are the table's

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        value: str | Sequence[str] = (),
        values: Mapping[str, str] | None = None,
        of: RowFunction | None = None,
        columns: str | Sequence[str] = (),
        each: str | None = None,
        where: RowFunction | None = None,
        previous: IndexTable | None = None,
        push: bool = False,
        unmasked: str | Sequence[str] = (),
    ) -> None:
        label = f"IndexTable({name!r})"
        self._set(name, entity, where, of, columns, push, unmasked)
        if values is not None:
            self._set_made(label, _made(values, label), value, each)
        else:
            self._set_values(label, column_names(value, f"{label}: value"), each)
        self._set_previous(previous)

    def _set_made(self, label: str, made: tuple[Column, ...], value: object, each: str | None) -> None:
        if self.document is None:
            raise DeclarationError(
                f"{label}: values= is for a function that makes them: give of=, or name columns of "
                "the table with value="
            )
        if value or each is not None:
            raise DeclarationError(
                f"{label}: values= names all value columns; leave value= out, and for a row for each value of a list "
                "write value='NAME', each='TYPE', of=FUNCTION"
            )
        self._put(values=tuple(column.name for column in made), each=None, made=made)

    def _set_values(self, label: str, values: tuple[str, ...], each: str | None) -> None:
        if not values:
            raise DeclarationError(f"{label}: value names at least one column")
        if self.document is not None and each is None:
            raise DeclarationError(f"{label}: of= makes values of declared types: values={{{values[0]!r}: 'TYPE'}}")
        if each is not None and len(values) > 1:
            raise DeclarationError(f"{label}: with each= value names one column, the one that holds the list")
        if each is not None and (not isinstance(each, str) or element_column(values[0], each) is None):
            raise DeclarationError(f"{label}: each is the type of one value of the list, one of {TYPES}, not {each!r}")
        of_list = Column(name=values[0], kind=Kind.JSON, declared="json", is_nullable=True)
        self._put(values=values, each=each, made=() if self.document is None else (of_list,))

    @property
    def fixed(self) -> dict[str, Any]:
        return {"each": self.each}

    @property
    def refusing(self) -> tuple[str, ...]:
        return () if self.each is None else ("each",)

    @property
    def shown(self) -> tuple[str, ...]:
        return () if self.made else self.values

    @property
    def computed(self) -> tuple[Column, ...]:
        return self.made

    def computed_values(self, made: Any) -> tuple[Any, ...]:
        if self.each is None:
            return computed.values_of(made, self.made)
        element = element_column(self.values[0], self.each)
        assert element is not None
        return computed.list_of(made, element)

    @property
    def particulars(self) -> dict[str, Any]:
        declared: dict[str, Any] = {} if self.each is None else {"each": self.each}
        if self.made:
            declared |= {"document": self.document, "values": [[column.name, column.declared] for column in self.made]}
        return declared


def _made(values: Mapping[str, str], label: str) -> tuple[Column, ...]:
    if not isinstance(values, Mapping) or not values:
        raise DeclarationError(f"{label}: values is a dict of column name to MySQL type, {{'email': 'VARCHAR(254)'}}")
    made = []
    for name in column_names(tuple(values), f"{label}: values"):
        declared = values[name]
        column = computed.value_column(name, declared) if isinstance(declared, str) else None
        if column is None:
            raise DeclarationError(
                f"{label}: values: the type of {name} is one of {computed.TYPES}, and not {declared!r}"
            )
        made.append(column)
    return tuple(made)
