"""A place in a source's stream of changes, always between two transactions.

What it is made of is the source's own matter: above the source a position is compared, kept as text, and shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import orjson


class Position(Protocol):
    """Equal positions are equal objects. `str` of one is what people read."""

    @property
    def epoch(self) -> int:
        """The number of the source's history."""

    @property
    def version(self) -> int:
        """The version of the newest change up to here; it never decreases along the stream."""

    @property
    def order(self) -> tuple[int, ...]:
        """Orders positions of one source as the stream does: several may be of one version."""

    def to_text(self) -> str:
        """One line, for offsets and witnesses; the source's `ReadPosition` is the inverse."""

    def details(self) -> Mapping[str, str]:
        """Other facts that people may search for, by name."""


class FieldsAsText:
    """The text of a position that is a dataclass of numbers and texts: its fields as JSON."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Any]]

    def to_text(self) -> str:
        """One line of JSON."""
        return orjson.dumps(self).decode()

    @classmethod
    def from_text(cls, text: str | bytes) -> Self:
        """The inverse of `to_text`; raises ValueError on anything else. What has a default may be missing."""
        given = orjson.loads(text)
        try:
            wanted = [field for field in fields(cls) if field.default is MISSING or field.name in given]
            return cls(**{field.name: _TYPES[str(field.type)](given[field.name]) for field in wanted})
        except (KeyError, TypeError) as error:
            raise ValueError(f"not the text of a position: {error!r}") from None


_TYPES: Mapping[str, Callable[[Any], object]] = {"int": int, "str": str}

ReadPosition: TypeAlias = "Callable[[str | bytes], Position]"  # raises ValueError for what is no position's text
