"""The view classes of MySQL tables: indexes, and whole tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from projectors.stores.index_tables import computed
from projectors.stores.index_tables.elements import TYPES, element_column
from projectors.views import BoundView, Entity, RowFunction, View, column_names
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind

MAX_NAME_LENGTH = 64  # of a table, a column or an index
VERSION = "version"
INVISIBLE_VERSION = "viewtail_version"
MOST_COLUMNS = 16  # of an index


@dataclass(frozen=True, slots=True, init=False)
class TableView(View):
    """What views that are MySQL tables have: a column with the version of each row."""

    store: ClassVar[str] = "mysql"
    has_index: ClassVar[bool] = True
    function: ClassVar[str] = "of"

    version_column: str


def version_of(view: BoundView) -> str:
    """The column with the versions of a view's table."""
    assert isinstance(view.view, TableView)
    return view.view.version_column


@dataclass(frozen=True, slots=True, init=False)
class IndexTable(TableView):
    """A MySQL table (value columns, entity key) that answers "which entities have this value?" by itself.

    With `each`, the type of one value, the column holds a JSON list, and the table has a row for each value of it.
    With `of`, a function of the row, the value columns are the view's own: `values` is a dict of name to MySQL type,
    and the function returns the value, or of several columns a dict or a tuple. With `each` too it returns a list, and
    `value` names its column. `columns` are those of the row that it gets; by default those that its source asks for.
    """

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
        self._put(version_column=VERSION)
        if values is not None:
            self._set_made(label, _made(values, f"{label}: values"), value, each)
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

    @property
    def _no_values(self) -> str:
        if self.document is not None:
            return "with of= write values={'NAME': 'TYPE'}: the columns that it makes"
        return "value names at least one column"

    def _set_values(self, label: str, values: tuple[str, ...], each: str | None) -> None:
        if not values:
            raise DeclarationError(f"{label}: {self._no_values}")
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


@dataclass(frozen=True, slots=True, init=False)
class MySQLTable(TableView):
    """A MySQL table with a row for each entity, whose columns are those of the entity, with their types.

    Its primary key is the entity's key. Nothing else is in it but an invisible column, `viewtail_version`.

    Args:
        columns: the columns' names, in their order; by default all of the entity's. The key's are always in it. With
            `of`, a dict of the columns beside the key to their MySQL types.
        of: a function of the row that returns a dict by column name.
        indexes: by name, the columns of each index beside the primary key. None of them is unique.
        auto_increment: the column that gives out numbers once the table is released: the first of the key or of an
            index.
        where: a row for which it is false is not in the table.
    """

    shows_table: ClassVar[bool] = True
    has_key_apart: ClassVar[bool] = True

    names: tuple[str, ...]  # as declared; (): all
    made: tuple[Column, ...]  # the columns that `of` computes
    indexes: tuple[tuple[str, tuple[str, ...]], ...]
    auto_increment: str | None

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        columns: Sequence[str] | Mapping[str, str] = (),
        of: RowFunction | None = None,
        indexes: Mapping[str, Sequence[str]] | None = None,
        auto_increment: str | None = None,
        where: RowFunction | None = None,
        previous: MySQLTable | None = None,
        unmasked: str | Sequence[str] = (),
    ) -> None:
        label = f"MySQLTable({name!r})"
        self._set(name, entity, where, of, unmasked=unmasked)
        if entity.sources:
            raise DeclarationError(
                f"{label}: a whole table is of one server, with the columns and the key that its table has there. "
                "Declare one for each of sources=, in a deployment of its own each; or an IndexTable over all of them"
            )
        if isinstance(columns, Mapping) != (of is not None):
            raise DeclarationError(
                f"{label}: of= makes the columns that columns={{'NAME': 'SQL TYPE'}} names: give both, or neither and "
                "columns=['NAME', ...] of the entity"
            )
        names, made = _names_or_made(columns, f"{label}: columns")
        if auto_increment is not None and not isinstance(auto_increment, str):
            raise DeclarationError(f"{label}: auto_increment is a column's name, not {auto_increment!r}")
        self._put(version_column=INVISIBLE_VERSION, names=names, made=made, auto_increment=auto_increment)
        self._put(indexes=_indexes(indexes, f"{label}: indexes"))
        self._set_previous(previous)

    @property
    def shown(self) -> tuple[str, ...]:
        return self.names

    @property
    def computed(self) -> tuple[Column, ...]:
        return self.made

    def computed_values(self, made: Any) -> tuple[Any, ...] | None:
        return computed.values_by_name(made, self.made)

    @property
    def particulars(self) -> dict[str, Any]:
        if not self.made:
            return {}
        return {"document": self.document, "values": [[column.name, column.declared] for column in self.made]}


def _names_or_made(
    columns: Sequence[str] | Mapping[str, str], label: str
) -> tuple[tuple[str, ...], tuple[Column, ...]]:
    if isinstance(columns, Mapping):
        return (), _made(columns, label, computed.whole_table_column)
    return column_names(columns, label), ()


def _indexes(given: Any, label: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise DeclarationError(f"{label} is a dict of index name to columns, {{'email_idx': ['email']}}, not {given!r}")
    indexes: list[tuple[str, tuple[str, ...]]] = []
    for name, columns in given.items():
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH or name.upper() == "PRIMARY":
            raise DeclarationError(f"{label} has names of 1 to {MAX_NAME_LENGTH} characters, not {name!r}")
        if name.casefold() in [other.casefold() for other, _ in indexes]:
            raise DeclarationError(f"{label}: {name} is there twice: MySQL compares these names without case")
        names = column_names(columns, f"{label}: {name}")
        if not 0 < len(names) <= MOST_COLUMNS:
            raise DeclarationError(f"{label}: {name} has 1 to {MOST_COLUMNS} columns, not {len(names)}")
        indexes.append((name, names))
    return tuple(indexes)


def _made(
    values: Any, label: str, column_of: Callable[[str, str], Column | None] = computed.value_column
) -> tuple[Column, ...]:
    if not isinstance(values, Mapping) or not values:
        raise DeclarationError(f"{label} is a dict of column name to MySQL type, {{'email': 'VARCHAR(254)'}}")
    made = []
    for name in column_names(tuple(values), label):
        declared = values[name]
        column = column_of(name, declared) if isinstance(declared, str) else None
        if column is None:
            types = computed.TYPES if column_of is computed.value_column else computed.TYPES_OF_WHOLE
            raise DeclarationError(f"{label}: the type of {name} is one of {types}, and not {declared!r}")
        made.append(column)
    return tuple(made)
