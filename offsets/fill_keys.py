"""Keeps the last key of a chunk as JSON, with the order of its rows and how many rows the view shows by then."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

import orjson


class FillKey(NamedTuple):
    """The last key that was kept; without a key where nothing is kept."""

    key: tuple[Any, ...] | None
    row_order: str
    kept_count: int


def key_text(key: tuple[Any, ...], row_order: str, kept_count: int) -> str:
    """Write a chunk's last key."""
    return orjson.dumps({"order": row_order, "key": key, "kept": kept_count}, default=tagged).decode()


def key_from_text(text: str | None) -> FillKey:
    """The inverse of `key_text`."""
    if text is None:
        return FillKey(None, "", 0)
    kept = orjson.loads(text)
    return FillKey(tuple(untagged(kept["key"])), kept["order"], kept["kept"])


def tagged(value: bytes | Decimal) -> dict[str, str]:
    """Mark a part of a key that JSON has no form for."""
    return {"hex": value.hex()} if isinstance(value, bytes) else {"decimal": f"{value:f}"}


def untagged(value: Any) -> Any:
    """The inverse of `tagged`, also of the parts of lists."""
    if isinstance(value, list):
        return [untagged(part) for part in value]
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if "hex" in value else Decimal(value["decimal"])
    return value
