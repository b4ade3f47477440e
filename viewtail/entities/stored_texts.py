"""Checks texts that go into a table as a program gives them: keys, and JSON that comes back as it was.

A text that MySQL would refuse, cut or change is refused here, before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import orjson


class NotJsonError(ValueError):
    """A value that JSON cannot hold, or MySQL's cannot hold as it is."""


def is_key(value: object, most: int) -> bool:
    """Return whether it is a text of 1 to `most` characters without NUL or lone surrogates."""
    return isinstance(value, str) and 1 <= len(value) <= most and _is_text(value)


def _is_text(value: str) -> bool:
    return "\0" not in value and (value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value))


def as_json(value: Any, option: int = orjson.OPT_SORT_KEYS) -> bytes:
    """The JSON text of a value, members in order. Raises NotJsonError; its text has no part of the value."""
    try:
        text = orjson.dumps(value, option=option)
    except (TypeError, ValueError, RecursionError) as error:  # orjson's own is a TypeError
        raise NotJsonError(str(error) or type(error).__name__) from None
    if b"null" in text and not _is_finite(value):
        raise NotJsonError("a number is infinite or not a number")
    return text


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    if is_dataclass(value):  # which orjson takes for an object
        return all(_is_finite(getattr(value, field.name, None)) for field in fields(value))
    return True
