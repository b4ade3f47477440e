"""The view classes of Redis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, ClassVar

from projectors.views import Entity, RowFunction, View, column_names
from viewtail.changes.errors import DeclarationError

GENERATION = "generation"  # in a key template: the number of the copy that a key is of


@dataclass(frozen=True, slots=True, init=False)
class _RedisView(View):
    store: ClassVar[str] = "redis"

    fields: tuple[str, ...]
    key: str | None

    @property
    def shown(self) -> tuple[str, ...]:
        return self.fields

    @property
    def particulars(self) -> dict[str, Any]:
        return {"template": self.key}

    @property
    def fixed(self) -> dict[str, Any]:
        return {"key": self.key}

    def _set_fields(self, label: str, fields: Sequence[str], key: str | None) -> None:
        if key is not None and (not isinstance(key, str) or not key):
            raise DeclarationError(f"{label}: key is a template over the key columns, e.g. key='user:{{id}}'")
        self._put(fields=column_names(fields, f"{label}: fields"), key=key)


@dataclass(frozen=True, slots=True, init=False)
class RedisHash(_RedisView):
    """A Redis hash per entity: the declared fields and `_version`; a NULL is an absent field.

    `key` is a template over the key columns, e.g. 'user:{id}'; by default 'NAME:' and the rendered key. With
    `{generation}`, e.g. 'user:{generation}:{id}', each copy of the view has keys of its own, and the key
    'user:generation' says which number readers put there; a key column of that name is taken for itself.
    """

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        fields: Sequence[str],
        key: str | None = None,
        where: RowFunction | None = None,
        previous: RedisHash | None = None,
        push: bool = False,
        unmasked: str | Sequence[str] = (),
    ) -> None:
        self._set(name, entity, where, push=push, unmasked=unmasked)
        self._set_fields(f"RedisHash({name!r})", fields, key)
        if not self.fields:
            raise DeclarationError(f"RedisHash({name!r}): fields names at least one column")
        self._set_previous(previous)


@dataclass(frozen=True, slots=True, init=False)
class RedisJson(_RedisView):
    """A JSON document per entity under a Redis string key; `_version` is its first member, a string.

    Either `fields` (columns) or `document` (a function of the row that returns a dict, or None for "not in
    the view"). `columns` names the columns that the function gets; by default those that its source asks for.
    """

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
        previous: RedisJson | None = None,
        push: bool = False,
        unmasked: str | Sequence[str] = (),
    ) -> None:
        self._set(name, entity, where, document, columns, push, unmasked)
        self._set_fields(f"RedisJson({name!r})", fields, key)
        if bool(self.fields) == bool(document):
            raise DeclarationError(
                f"RedisJson({name!r}): give either fields=[...] or document=FUNCTION, one of the two"
            )
        self._set_previous(previous)

    @property
    def particulars(self) -> dict[str, Any]:
        return {"template": self.key, "document": self.document}


@dataclass(frozen=True, slots=True, init=False)
class RedisSet(View):
    """Redis sets whose members are entities, by their rendered keys.

    `key` is a template over any columns, e.g. 'company:{company_id}:users': an entity is a member of the set that its
    row names, of no other, and of none where one of these columns is NULL. `{generation}` is no column, but what it is
    for RedisHash.
    """

    store: ClassVar[str] = "redis"
    has_index: ClassVar[bool] = True
    needs_all_values: ClassVar[bool] = True

    key: str

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        key: str,
        where: RowFunction | None = None,
        previous: RedisSet | None = None,
        push: bool = False,
        unmasked: str | Sequence[str] = (),
    ) -> None:
        self._set(name, entity, where, push=push, unmasked=unmasked)
        self._set_key(key)
        self._set_previous(previous)

    def _set_key(self, key: str) -> None:
        label, example = f"{type(self).__name__}({self.name!r})", "e.g. key='company:{company_id}:users'"
        if not isinstance(key, str) or not key:
            raise DeclarationError(f"{label}: key is a template over the columns that name an entity's set, {example}")
        names = [name for name in _placeholders(key) if name != GENERATION]
        if not names:
            raise DeclarationError(f"{label}: the key template {key!r} names no column in braces, {example}")
        column_names(names, f"{label}: key")
        self._put(key=key)

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that name the set, in the template's order."""
        return tuple(name for name in _placeholders(self.key) if name != GENERATION)

    @property
    def has_generation(self) -> bool:
        """Return whether each copy of the view has sets of its own."""
        return GENERATION in _placeholders(self.key)

    @property
    def fixed(self) -> dict[str, Any]:
        return {"key": self.key}

    @property
    def shown(self) -> tuple[str, ...]:
        return self.named

    @property
    def particulars(self) -> dict[str, Any]:
        return {"template": self.key}


@dataclass(frozen=True, slots=True, init=False)
class RedisSortedSet(RedisSet):
    """The same as RedisSet, with sorted sets: `score` is the column, a number or a moment, that orders the members."""

    score: str

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        key: str,
        score: str,
        where: RowFunction | None = None,
        previous: RedisSortedSet | None = None,
        push: bool = False,
        unmasked: str | Sequence[str] = (),
    ) -> None:
        self._set(name, entity, where, push=push, unmasked=unmasked)
        self._set_key(key)
        if not isinstance(score, str) or not score:
            raise DeclarationError(f"RedisSortedSet({name!r}): score is the name of one column")
        self._put(score=score)
        self._set_previous(previous)

    @property
    def shown(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.named, self.score)))

    @property
    def particulars(self) -> dict[str, Any]:
        return {"template": self.key, "score": self.score}


def _placeholders(template: str) -> tuple[str, ...]:
    """The names in its braces; none where it is no template."""
    try:
        return tuple(name for _, name, *_ in Formatter().parse(template) if name is not None)
    except ValueError:
        return ()
