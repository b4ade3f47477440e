"""Computes the partition of a key: Kafka's murmur2 of its bytes, the default of Java clients.

Source: org.apache.kafka.common.utils.Utils (murmur2, toPositive)."""

from __future__ import annotations

import struct

_MULTIPLIER, _SEED, _MASK = 0x5BD1E995, 0x9747B28C, 0xFFFFFFFF


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key in a topic with so many partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """The unsigned 32-bit hash of a key."""
    whole = len(key) & ~3
    digest = _SEED ^ len(key)
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        mixed = word * _MULTIPLIER & _MASK
        mixed = (mixed ^ mixed >> 24) * _MULTIPLIER & _MASK
        digest = digest * _MULTIPLIER & _MASK ^ mixed
    if rest := key[whole:]:
        digest = (digest ^ int.from_bytes(rest, "little")) * _MULTIPLIER & _MASK
    digest = (digest ^ digest >> 13) * _MULTIPLIER & _MASK
    return digest ^ digest >> 15
