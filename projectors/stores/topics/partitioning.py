"""Which partition a key is in: Kafka's murmur2 of its bytes, as Java clients have it by default.

Source: org.apache.kafka.common.utils.Utils (murmur2, toPositive).
"""

from __future__ import annotations

import struct

_MULTIPLIER, _SEED, _MASK = 0x5BD1E995, 0x9747B28C, 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """Of so many."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """Unsigned, 32 bits."""
    whole = len(key) & ~3
    found = _SEED ^ len(key)
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        mixed = word * _MULTIPLIER & _MASK
        mixed = (mixed ^ mixed >> 24) * _MULTIPLIER & _MASK
        found = found * _MULTIPLIER & _MASK ^ mixed
    if rest := key[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    found = (found ^ found >> 13) * _MULTIPLIER & _MASK
    return found ^ found >> 15
