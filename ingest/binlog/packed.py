"""MySQL's packed integers: one byte, or a byte that says how many follow."""

from __future__ import annotations

_BYTES_BEHIND = {252: 2, 253: 3, 254: 8}


def integer(buffer: bytes | bytearray, at: int) -> tuple[int, int]:
    """The integer at `at`, and where the next thing begins. Raises IndexError when there is none, or a part of one."""
    first = buffer[at]
    if first < 251:
        return first, at + 1
    end = at + 1 + _BYTES_BEHIND.get(first, len(buffer))
    if end > len(buffer):
        raise IndexError("no packed integer")
    return int.from_bytes(buffer[at + 1 : end], "little"), end
