"""Which transactions a reader has seen, as a set of GTIDs that grows with each batch.

Exact, since it decides where reading goes on upon another server: a transaction too many would be skipped there, one
too few be applied out of its order. It costs next to nothing where numbers follow each other, as they do on a primary.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from changes.gtid_sets import GtidSet, Source
from ingest.binlog.gtids import GTID_BYTES

_NUMBER_AT = 17


class Seen:
    """The set up to a place; `base`, grown by the last GTID (gtid_sets.grown), is the same."""

    def __init__(self, base: str) -> None:
        self._set = GtidSet(base)
        self._growing: Source | None = None  # the only source of which something was added since `base`
        self.base = base

    def add(self, gtids: Sequence[bytearray]) -> None:
        """Take in what is kept of transactions' GTID events, in the order of the binlog."""
        if not gtids:
            return
        first = gtids[0]
        source = _source(first)
        begin = _number(first)
        if not _is_run(gtids, begin):
            for gtid in gtids:
                number = _number(gtid)
                self._set.add(_source(gtid), number, number)
            self._rebase()
            return
        intervals = self._set.intervals.get(source)
        is_grown = intervals is not None and intervals[-1][1] + 1 == begin
        self._set.add(source, begin, begin + len(gtids) - 1)
        if not is_grown or (self._growing is not None and self._growing != source):
            self._rebase()
        else:
            self._growing = source

    def _rebase(self) -> None:
        self.base, self._growing = self.exact(), None

    def exact(self) -> str:
        """The whole set."""
        return str(self._set)


def _source(gtid: bytearray) -> Source:
    return bytes(gtid[1:_NUMBER_AT]), gtid[GTID_BYTES:].decode("ascii", "replace")


def _number(gtid: bytearray) -> int:
    return int.from_bytes(gtid[_NUMBER_AT : _NUMBER_AT + 8], "little", signed=True)


def _is_run(gtids: Sequence[bytearray], begin: int) -> bool:
    """Whether all are of one source, and their numbers follow each other.

    Compared byte by byte over all of them: they lie next to each other at equal distances.
    """
    count = len(gtids)
    if count == 1:
        return True
    joined = b"".join(gtids)
    if len(joined) != count * GTID_BYTES:  # some have tags
        return False
    numbers = struct.pack(f"<{count}q", *range(begin, begin + count))
    return all(joined[_NUMBER_AT + at :: GTID_BYTES] == numbers[at::8] for at in range(8)) and all(
        joined[at::GTID_BYTES].count(joined[at]) == count for at in range(1, _NUMBER_AT)
    )
