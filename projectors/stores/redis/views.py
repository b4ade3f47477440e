"""The view classes of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from changes.errors import DeclarationError
from projectors.views import Entity, RowFunction, View, column_names


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
        names = column_names(fields, f"RedisHash({name!r}): fields")
        if not names:
            raise DeclarationError(f"RedisHash({name!r}): fields names at least one column")
        object.__setattr__(self, "fields", names)
        object.__setattr__(self, "key", _template(key, f"RedisHash({name!r})"))

    @property
    def shown(self) -> tuple[str, ...]:
        return self.fields

    @property
    def particulars(self) -> dict[str, Any]:
        return {"template": self.key}


@dataclass(frozen=True, slots=True, init=False)
class RedisJson(View):
    """A JSON document per entity under a Redis string key; `_version` is its first member, a string.

    Either `fields` (columns) or `document` (a function of the row that returns a dict, or None for "not in
    the view"). `columns` names the columns that the function gets; by default those that its source asks for.
    """

    store: ClassVar[str] = "redis"

    fields: tuple[str, ...]
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
        self._set(name, entity, where, document, columns)
        label = f"RedisJson({name!r})"
        names = column_names(fields, f"{label}: fields")
        if bool(names) == bool(document):
            raise DeclarationError(f"{label}: give either fields=[...] or document=FUNCTION, one of the two")
        object.__setattr__(self, "fields", names)
        object.__setattr__(self, "key", _template(key, label))

    @property
    def shown(self) -> tuple[str, ...]:
        return self.fields

    @property
    def particulars(self) -> dict[str, Any]:
        return {"template": self.key, "document": self.document}


def _template(key: str | None, label: str) -> str | None:
    if key is not None and (not isinstance(key, str) or not key):
        raise DeclarationError(f"{label}: key is a template over the key columns, e.g. key='user:{{id}}'")
    return key
