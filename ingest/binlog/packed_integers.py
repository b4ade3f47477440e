"""MySQL's packed integers: one byte, or a byte that says how many follow."""

from __future__ import annotations

Buffer = bytes | bytearray  # what a binlog is read from

_BYTES_BEHIND = {252: 2, 253: 3, 254: 8}


def integer(buffer: Buffer, at: int) -> tuple[int, int]:
    """The integer at `at`, and where the next thing begins. Raises IndexError when there is none, or a part of one."""
    first = buffer[at]
    if first < 251:
        return first, at + 1
    end = at + 1 + _BYTES_BEHIND.get(first, len(buffer))
    if end > len(buffer):
        raise IndexError("no packed integer")
    return int.from_bytes(buffer[at + 1 : end], "little"), end


def written(number: int) -> bytes:
    """A number below 65,536, packed."""
    return bytes((number,)) if number < 251 else b"\xfc" + number.to_bytes(2, "little")
