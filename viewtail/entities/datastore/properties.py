"""Compares properties of entities, and says on which shard an entity is: pure functions for writers and readers."""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import orjson

from viewtail.changes.errors import MisuseError
from viewtail.entities.stored_texts import NotJsonError, as_json

LONGEST_TEXT = 255  # characters of a text in an index; of a longer one the first ones, and the entity decides
_TEXT = f"VARCHAR({LONGEST_TEXT})"
# Of the types that can be named for a property, what its values are.
KINDS: Mapping[str, type] = {_TEXT: str, "BIGINT": int}
DEFAULT_TYPE = _TEXT


class UnfitValueError(ValueError):
    """A value that an index cannot hold."""


def new_id() -> UUID:
    """A UUID of version 7: ids of later entities are larger, to the millisecond."""
    random = secrets.randbits(74)
    milliseconds = time.time_ns() // 1_000_000
    return UUID(int=milliseconds << 80 | 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | random & (1 << 62) - 1)


def id_of(given: object) -> UUID:
    """An id as a user gives it: a UUID, its 16 bytes, or its text. Raises MisuseError."""
    try:
        if isinstance(given, UUID):
            return given
        if isinstance(given, bytes) and len(given) == 16:
            return UUID(bytes=given)
        if isinstance(given, str):
            return UUID(given)
    except ValueError:
        pass
    raise MisuseError(f"an id is a UUID, its 16 bytes or its text, not this {type(given).__name__}")


def plain(value: object) -> Any:
    """A value as it comes back from the store: JSON's kinds alone. Raises MisuseError."""
    try:
        return orjson.loads(as_json(value, option=0))
    except NotJsonError as error:
        raise MisuseError(f"no JSON can be made of this {type(value).__name__}: {error}") from None


def indexed(value: object, kind: str) -> str | int | None:
    """The form of a property's value in an index; None if there is none. Raises UnfitValueError."""
    if value is None:
        return None
    if isinstance(value, list | dict):
        raise UnfitValueError("a property that is a list or an object is not indexed")
    if KINDS[kind] is int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise UnfitValueError(f"a property that is a {kind} in the index is an integer, not {_json_kind(value)}")
        if not -(1 << 63) <= value < 1 << 63:
            raise UnfitValueError(f"a property that is a {kind} in the index is from -2^63 to 2^63-1")
        return value
    return text_of(value)[:LONGEST_TEXT]


def values_of(properties: Mapping[str, str], entity: Mapping[str, Any]) -> tuple[str | int, ...] | None:
    """An entity's row in an index over these properties; None if it lacks one of them. Raises UnfitValueError."""
    row: list[str | int] = []
    for name, kind in properties.items():
        try:
            value = indexed(entity.get(name), kind)
        except UnfitValueError as error:
            raise UnfitValueError(f"{name}: {error}") from None
        if value is None:
            return None
        row.append(value)
    return tuple(row)


def _json_kind(value: object) -> str:
    if isinstance(value, bool):
        return "a truth value"
    return "a floating-point number" if isinstance(value, float) else "a text"


def text_of(value: object) -> str:
    """Return a text that is equal for equal values, and quick to compare: a text as it is, other values as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def is_same(value: object, other_value: object) -> bool:
    """Return whether two plain values are equal and of one kind: 1, 1.0 and true are not."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) == orjson.dumps(other_value, option=orjson.OPT_SORT_KEYS)


def home_of_id(entity_id: bytes, shard_count: int) -> int:
    """The shard on which an entity lives for good."""
    return zlib.crc32(entity_id) % shard_count


def home_of_value(value: str | int, shard_count: int) -> int:
    """The shard on which an index that is spread by this property has its rows."""
    return zlib.crc32(str(value).encode()) % shard_count
