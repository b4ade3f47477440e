"""The view class of Elasticsearch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from projectors.views import Entity, RowFunction, View, column_names
from viewtail.changes.errors import DeclarationError


@dataclass(frozen=True, slots=True, init=False)
class SearchIndex(View):
    """An Elasticsearch document per entity.

    `fields`: a list of columns (mapping derived from the column types), or a dict of field to Elasticsearch
    type ('text') or mapping ({'type': 'text', 'analyzer': 'english'}). With `document`, a function of the row
    that returns a dict (or None for "not in the view"), `fields` must be such a dict: the index is strict.
    """

    store: ClassVar[str] = "elasticsearch"

    fields: tuple[str, ...]
    mapping: Mapping[str, Mapping[str, Any]]  # only of fields whose mapping the user gave

    def __init__(
        self,
        name: str,
        entity: Entity,
        *,
        fields: Sequence[str] | Mapping[str, str | Mapping[str, Any]],
        document: RowFunction | None = None,
        columns: Sequence[str] = (),
        where: RowFunction | None = None,
        previous: SearchIndex | None = None,
        push: bool = False,
        unmasked: str | Sequence[str] = (),
    ) -> None:
        self._set(name, entity, where, document, columns, push, unmasked)
        label = f"SearchIndex({name!r})"
        mapping = _mapping(fields, label) if isinstance(fields, Mapping) else {}
        names = column_names(tuple(fields), f"{label}: fields")
        if not names:
            raise DeclarationError(f"{label}: fields names at least one field")
        if document is not None and not mapping:
            raise DeclarationError(f"{label}: with document=FUNCTION, fields must be a dict of field to type")
        self._put(fields=names, mapping=mapping)
        self._set_previous(previous)

    @property
    def shown(self) -> tuple[str, ...]:
        return () if self.document is not None else self.fields

    @property
    def particulars(self) -> dict[str, Any]:
        mapping = {field: dict(given) for field, given in self.mapping.items()}
        return {"document": self.document, "mapping": mapping, "fields": self.fields}

    def refuses(self, document: Mapping[str, Any]) -> str | None:
        """Name a field that the strict index does not declare."""
        declared = {field.split(".")[0] for field in self.fields}
        unknown = sorted({name.split(".")[0] for name in document} - declared)
        if not unknown:
            return None
        return f"document returned the field {unknown[0]}, which the view does not declare; add it to its fields"


def _mapping(fields: Mapping[str, str | Mapping[str, Any]], label: str) -> dict[str, Mapping[str, Any]]:
    return {field: _whole(given, f"{label}: field {field!r}") for field, given in fields.items()}


def _whole(given: object, label: str) -> dict[str, Any]:
    """The mapping of a field, with a type name in the place of one spelt out, also of those within it.

    Raises DeclarationError.
    """
    if isinstance(given, str):
        return {"type": given}
    if not isinstance(given, Mapping):
        raise DeclarationError(f"{label}: the mapping is a type name ('text') or a dict, not {type(given).__name__}")
    within = {
        part: {name: _whole(field, f"{label}, {part} {name!r}") for name, field in fields.items()}
        for part, fields in given.items()
        if part in ("properties", "fields") and isinstance(fields, Mapping)
    }
    return {**given, **within}
