"""The GTIDs of all transactions that were read, of MySQL and of MariaDB; what is known grows with each batch.

Exact, since it decides where reading goes on upon another server: a transaction too many would be skipped there, one
too few be applied out of its order. It costs next to nothing where numbers follow each other, as they do on a primary.
"""

from __future__ import annotations

import re
import struct

from changes.errors import SourceError
from ingest.binlog.gtid_sets import GtidSet, Source
from ingest.binlog.gtids import GTID_BYTES, HAS_TAG, TAG_LENGTH_AT, gtid_text
from ingest.binlog.mariadb_gtids import GtidPosition

_NUMBER_AT = 17
_END_OF_NUMBERS = (1 << 63) - (1 << 32)  # so far from the last one that a run of them has numbers, too
_TAG = re.compile(rb"(?:[a-z_][a-z_0-9]{0,31})?")  # MySQL manual, "GTID Format"


class GtidsRead:
    """The set up to a place; `base`, grown by the last GTID (gtid_sets.grown), is the same set."""

    def __init__(self, base: str) -> None:
        self._set = GtidSet(base)
        self._growing: Source | None = None  # the only source of which something was added since `base`
        self.base = base

    def add(self, gtids: bytearray) -> None:
        """Take in what is kept of transactions' GTID events, one behind the other as in the binlog."""
        count, begin = len(gtids) // GTID_BYTES, _number(gtids, 0)
        if not _is_run(gtids, count, begin):
            self._add_each(gtids)
            return
        source = (bytes(gtids[1:_NUMBER_AT]), "")
        intervals = self._set.intervals.get(source)
        is_next = intervals is not None and intervals[-1][1] + 1 == begin
        self._set.add(source, begin, begin + count - 1)
        if is_next and self._growing in (None, source):
            self._growing = source
        else:
            self._rebase()

    def _add_each(self, gtids: bytearray) -> None:
        at = 0
        while at < len(gtids):
            end = at + GTID_BYTES + (gtids[at + TAG_LENGTH_AT] if gtids[at] & HAS_TAG else 0)
            number, tag = _number(gtids, at), bytes(gtids[at + GTID_BYTES : end])
            if end > len(gtids) or not _TAG.fullmatch(tag):
                raise _no_gtid()
            self._set.add((bytes(gtids[at + 1 : at + _NUMBER_AT]), tag.decode("ascii")), number, number)
            at = end
        self._rebase()

    def _rebase(self) -> None:
        self.base, self._growing = self.exact(), None

    def exact(self) -> str:
        """The whole set."""
        return str(self._set)


class MariaDBGtidsRead:
    """What was read of each domain; `base`, grown by the last GTID (gtid_sets.grown), is the same."""

    def __init__(self, base: str) -> None:
        self._position = GtidPosition(base)
        self._growing: bytes | None = None  # the only domain of which something was added since `base`
        self.base = base

    def add(self, gtids: bytearray) -> None:
        """Take in what is kept of transactions' GTID events, one behind the other as in the binlog."""
        domain = bytes(gtids[1:5])
        if _are_alike(gtids, len(gtids) // GTID_BYTES, 5):
            self._position.add(gtid_text(gtids[-GTID_BYTES:]))
            if self._growing in (None, domain):
                self._growing = domain
                return
        else:
            for at in range(0, len(gtids), GTID_BYTES):
                self._position.add(gtid_text(gtids[at : at + GTID_BYTES]))
        self.base, self._growing = self.exact(), None

    def exact(self) -> str:
        """The whole place."""
        return str(self._position)


def _number(gtids: bytearray, at: int) -> int:
    number = int.from_bytes(gtids[at + _NUMBER_AT : at + _NUMBER_AT + 8], "little", signed=True)
    if not 0 < number < _END_OF_NUMBERS:
        raise _no_gtid()
    return number


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
    has_numbers = all(gtids[_NUMBER_AT + at :: GTID_BYTES] == numbers[at::8] for at in range(8))
    return has_numbers and _are_alike(gtids, count, _NUMBER_AT)


def _are_alike(gtids: bytearray, count: int, end: int) -> bool:
    """Whether all have the same bytes between the first, which holds flags, and `end`."""
    return all(gtids[at::GTID_BYTES].count(gtids[at]) == count for at in range(1, end))
