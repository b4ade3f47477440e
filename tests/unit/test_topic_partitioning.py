"""The partition of a key is the one that Kafka's Java clients choose."""

from __future__ import annotations

import pytest

from projectors.stores.topics.partitioning import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "found"),
    [  # of Kafka's UtilsTest
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_it_is_murmur2(key: bytes, found: int) -> None:
    assert murmur2(key) == found & 0xFFFFFFFF
    assert partition_of(key, 7) == (found & 0x7FFFFFFF) % 7
