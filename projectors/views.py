"""Declarations: what the user writes in views.py, as plain frozen data.

Nothing here talks to a server; whether a declaration can work is decided in projectors/binding.py, where
it meets the described table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from changes.errors import DeclarationError

RowFunction = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, slots=True, init=False)
class Entity:
    """A canonical table and what identifies one of its rows.

    Args:
        table: 'schema.table'.
        key: one or several columns; by default the primary key.
        version: an integer column that rises with every change of a key (event-sourced and cell tables).
        append_only: rows are only ever added, a key's newest row counts; row deletes are archiving and are
            ignored. Needs `version`.
    """

    table: str
    key: tuple[str, ...]  # empty: the primary key
    version: str | None
    append_only: bool

    def __init__(
        self,
        table: str,
        *,
        key: str | Sequence[str] = (),
        version: str | None = None,
        append_only: bool = False,
    ) -> None:
        where = f"Entity({table!r})"
        if not isinstance(table, str) or table.count(".") != 1 or not all(table.split(".")):
            raise DeclarationError(f"{where}: the table is written 'schema.table', e.g. Entity('shop.user')")
        names = _names(key, f"{where}: key")
        if append_only and version is None:
            raise DeclarationError(
                f"{where}: append_only needs version='COLUMN', the column that says which row of a key is the newest"
            )
        object.__setattr__(self, "table", table)
        object.__setattr__(self, "key", names)
        object.__setattr__(self, "version", version)
        object.__setattr__(self, "append_only", append_only)


@dataclass(frozen=True, slots=True, init=False)
class View:
    """What every view has: a name, an entity, and perhaps a condition."""

    store: ClassVar[str]  # 'mysql', 'redis' or 'elasticsearch'

    name: str
    entity: Entity
    where: RowFunction | None  # a row for which it is false is not in the view

    def _set(self, name: str, entity: Entity, where: RowFunction | None) -> None:
        label = f"{type(self).__name__}({name!r})"
        if not isinstance(name, str) or not name:
            raise DeclarationError(f"{label}: the name must be a non-empty string")
        if not isinstance(entity, Entity):
            raise DeclarationError(
                f"{label}: the second argument must be an Entity, not {type(entity).__name__}"
            )
        if where is not None and not callable(where):
            raise DeclarationError(
                f"{label}: where must be a function of the row, e.g. where=lambda row: row['active']"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "entity", entity)
        object.__setattr__(self, "where", where)

    @property
    def id(self) -> str:
        """Unique among the views of one views.py: 'store:name'."""
        return f"{self.store}:{self.name}"


@dataclass(frozen=True, slots=True, init=False)
class IndexTable(View):
    """A MySQL table (value columns, entity key) that answers "which entities have this value?" by itself."""

    store: ClassVar[str] = "mysql"

    values: tuple[str, ...]

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        value: str | Sequence[str],
        where: RowFunction | None = None,
    ) -> None:
        self._set(name, entity, where)
        values = _names(value, f"IndexTable({name!r}): value")
        if not values:
            raise DeclarationError(f"IndexTable({name!r}): value names at least one column")
        object.__setattr__(self, "values", values)


@dataclass(frozen=True, slots=True, init=False)
class RedisHash(View):
    """A Redis hash per entity: the declared fields and `_version`; a NULL is an absent field.

    `key` is a template over the key columns, e.g. 'user:{id}'; by default 'NAME:' and the rendered key.
    """

    store: ClassVar[str] = "redis"

    fields: tuple[str, ...]
    key: str | None

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        fields: Sequence[str],
        key: str | None = None,
        where: RowFunction | None = None,
    ) -> None:
        self._set(name, entity, where)
        names = _names(fields, f"RedisHash({name!r}): fields")
        if not names:
            raise DeclarationError(f"RedisHash({name!r}): fields names at least one column")
        object.__setattr__(self, "fields", names)
        object.__setattr__(self, "key", _template(key, f"RedisHash({name!r})"))


@dataclass(frozen=True, slots=True, init=False)
class RedisJson(View):
    """A JSON document per entity under a Redis string key; `_version` is its first member, a string.

    Either `fields` (columns) or `document` (a function of the row that returns a dict, or None for "not in
    the view"). `columns` names the columns that the function gets; by default those that its source asks for.
    """

    store: ClassVar[str] = "redis"

    fields: tuple[str, ...]
    document: RowFunction | None
    columns: tuple[str, ...]
    key: str | None

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        fields: Sequence[str] = (),
        document: RowFunction | None = None,
        columns: Sequence[str] = (),
        key: str | None = None,
        where: RowFunction | None = None,
    ) -> None:
        self._set(name, entity, where)
        label = f"RedisJson({name!r})"
        names = _names(fields, f"{label}: fields")
        if bool(names) == bool(document):
            raise DeclarationError(f"{label}: give either fields=[...] or document=FUNCTION, one of the two")
        if document is not None and not callable(document):
            raise DeclarationError(f"{label}: document must be a function of the row")
        object.__setattr__(self, "fields", names)
        object.__setattr__(self, "document", document)
        object.__setattr__(self, "columns", _names(columns, f"{label}: columns"))
        object.__setattr__(self, "key", _template(key, label))


@dataclass(frozen=True, slots=True, init=False)
class SearchIndex(View):
    """An Elasticsearch document per entity.

    `fields`: a list of columns (mapping derived from the column types), or a dict of field to Elasticsearch
    type ('text') or mapping ({'type': 'text', 'analyzer': 'english'}). With `document`, a function of the row
    that returns a dict (or None for "not in the view"), `fields` must be such a dict: the index is strict.
    """

    store: ClassVar[str] = "elasticsearch"

    fields: tuple[str, ...]
    mapping: Mapping[str, Mapping[str, Any]]  # of the fields whose mapping the user gave
    document: RowFunction | None
    columns: tuple[str, ...]

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        fields: Sequence[str] | Mapping[str, str | Mapping[str, Any]],
        document: RowFunction | None = None,
        columns: Sequence[str] = (),
        where: RowFunction | None = None,
    ) -> None:
        self._set(name, entity, where)
        label = f"SearchIndex({name!r})"
        mapping: dict[str, Mapping[str, Any]] = {}
        if isinstance(fields, Mapping):
            for field, given in fields.items():
                if isinstance(given, str):
                    mapping[field] = {"type": given}
                elif isinstance(given, Mapping):
                    mapping[field] = dict(given)
                else:
                    raise DeclarationError(
                        f"{label}: field {field!r}: the mapping is a type name ('text') or a dict, "
                        f"not {type(given).__name__}"
                    )
        names = _names(tuple(fields), f"{label}: fields")
        if not names:
            raise DeclarationError(f"{label}: fields names at least one field")
        if document is not None:
            if not callable(document):
                raise DeclarationError(f"{label}: document must be a function of the row")
            if not mapping:
                raise DeclarationError(
                    f"{label}: with document=FUNCTION, fields must be a dict of field to type"
                )
        object.__setattr__(self, "fields", names)
        object.__setattr__(self, "mapping", mapping)
        object.__setattr__(self, "document", document)
        object.__setattr__(self, "columns", _names(columns, f"{label}: columns"))


def _names(given: str | Sequence[str], label: str) -> tuple[str, ...]:
    if isinstance(given, str):
        given = (given,)
    names: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else (given,)
    for name in names:
        if not isinstance(name, str) or not name:
            raise DeclarationError(f"{label}: column names are non-empty strings, not {name!r}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DeclarationError(f"{label}: {', '.join(twice)} is named twice")
    return names


def _template(key: str | None, label: str) -> str | None:
    if key is not None and (not isinstance(key, str) or not key):
        raise DeclarationError(f"{label}: key is a template over the key columns, e.g. key='user:{{id}}'")
    return key
