"""The GTIDs of all transactions that were read; the set grows with each batch.

Exact, since it decides where reading goes on upon another server: a transaction too many would be skipped there, one
too few be applied out of its order. It costs next to nothing where numbers follow each other, as they do on a primary.
"""

from __future__ import annotations

import re
import struct

from changes.errors import SourceError
from ingest.binlog.gtid_sets import GtidSet, Source
from ingest.binlog.gtids import GTID_BYTES, HAS_TAG, TAG_LENGTH_AT

_NUMBER_AT, _NUMBER_END = 17, 25
_SOURCE_BYTES = 16
_END_OF_NUMBERS = (1 << 63) - (1 << 32)  # so far from the last one that a run of them has numbers, too
_TAG = re.compile(rb"(?:[a-z_][a-z_0-9]{0,31})?")  # MySQL manual, "GTID Format"


class GtidsRead:
    """The set up to a place; `base`, grown by the last GTID (gtid_sets.grown), is the same set."""

    def __init__(self, base: str) -> None:
        self._set = GtidSet(base)
        self._growing: Source | None = None  # the only source of which something was added since `base`
        self._interval = [0, 0]  # the last of the source that grows
        self._next = b""  # source and number that only make it longer
        self.base = base

    def add(self, gtids: bytearray) -> None:
        """Take in what is kept of transactions' GTID events, one behind the other as in the binlog."""
        if gtids[1:_NUMBER_END] == self._next and len(gtids) == GTID_BYTES and gtids[0] < HAS_TAG:
            self._grow(self._next[:_SOURCE_BYTES], self._interval[1] + 1)
            return
        count = len(gtids) // GTID_BYTES
        begin = _number(gtids, 0)
        if not _is_run(gtids, count, begin):
            self._add_each(gtids)
            return
        if not 0 < begin < _END_OF_NUMBERS:
            raise _no_gtid()
        source = (bytes(gtids[1:_NUMBER_AT]), "")
        intervals = self._set.intervals.get(source)
        is_grown = intervals is not None and intervals[-1][1] + 1 == begin
        self._set.add(source, begin, begin + count - 1)
        if not is_grown or (self._growing is not None and self._growing != source):
            self._rebase()
        else:
            self._growing = source
            self._interval = self._set.intervals[source][-1]
            self._grow(source[0], self._interval[1])

    def _add_each(self, gtids: bytearray) -> None:
        at = 0
        while at < len(gtids):
            end = at + GTID_BYTES + (gtids[at + TAG_LENGTH_AT] if gtids[at] & HAS_TAG else 0)
            number, tag = _number(gtids, at), bytes(gtids[at + GTID_BYTES : end])
            if not 0 < number < _END_OF_NUMBERS or end > len(gtids) or not _TAG.fullmatch(tag):
                raise _no_gtid()
            source = (bytes(gtids[at + 1 : at + _NUMBER_AT]), tag.decode("ascii"))
            self._set.add(source, number, number)
            at = end
        self._rebase()

    def _grow(self, server: bytes, last: int) -> None:
        self._interval[1] = last
        self._next = server + (last + 1).to_bytes(8, "little")

    def _rebase(self) -> None:
        self.base, self._growing, self._next = self.exact(), None, b""

    def exact(self) -> str:
        """The whole set."""
        return str(self._set)


def _number(gtids: bytearray, at: int) -> int:
    return int.from_bytes(gtids[at + _NUMBER_AT : at + _NUMBER_AT + 8], "little", signed=True)


def _no_gtid() -> SourceError:
    return SourceError(
        "a transaction of the binlog has a GTID that no server gives; the pipeline stops before it. Look at it with "
        "mysqlbinlog -v; to go on behind it: viewtail replay --new-history"
    )


def _is_run(gtids: bytearray, count: int, begin: int) -> bool:
    """Whether all are of one source without a tag, and their numbers follow each other.

    Compared byte by byte over all of them: they lie next to each other at equal distances.
    """
    if len(gtids) != count * GTID_BYTES or max(gtids[::GTID_BYTES]) >= HAS_TAG:
        return False
    if count == 1:
        return True
    numbers = struct.pack(f"<{count}q", *range(begin, begin + count))
    return all(gtids[_NUMBER_AT + at :: GTID_BYTES] == numbers[at::8] for at in range(8)) and all(
        gtids[at::GTID_BYTES].count(gtids[at]) == count for at in range(1, _NUMBER_AT)
    )
