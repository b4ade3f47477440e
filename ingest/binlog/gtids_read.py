"""The GTIDs of all transactions that were read, of MySQL and of MariaDB; what is known grows with each batch.

Exact, since it decides where reading goes on upon another server: a transaction too many would be skipped there, one
too few be applied out of its order. It costs next to nothing where numbers follow each other, as they do on a primary.
"""

from __future__ import annotations

import re
import struct

from ingest.binlog.gtid_sets import GtidSet, domain_ends, domains_text
from ingest.binlog.gtids import GTID_BYTES, HAS_TAG, MARIADB, TAG_LENGTH_AT
from ingest.binlog.stream_errors import unreadable
from viewtail.changes.errors import SourceError

_NUMBER_AT = 17
_END_OF_NUMBERS = (1 << 63) - (1 << 32)  # so far from the last one that a run of them has numbers, too
_TAG = re.compile(rb"(?:[a-z_][a-z_0-9]{0,31})?")  # MySQL manual, "GTID Format"


class GtidsRead:
    """MySQL's set up to a place; `base`, grown by the last GTID (gtid_sets.grown), is the same set."""

    def __init__(self, base: str) -> None:
        self._set = GtidSet(base)
        self._server = b""  # the only one of which something was added since `base`: only this interval got longer
        self._interval = [0, 0]
        self.base = base

    def add(self, gtids: bytearray) -> None:
        """Take in what is kept of transactions' GTID events, one behind the other as in the binlog."""
        count, begin, server = len(gtids) // GTID_BYTES, _number(gtids, 0), gtids[1:_NUMBER_AT]
        is_run = _is_run(gtids, count, begin)
        if not self._server and (intervals := self._set.intervals.get((bytes(server), ""))):
            self._server, self._interval = bytes(server), intervals[-1]
        if is_run and server == self._server and begin == self._interval[1] + 1:
            self._interval[1] += count
            return
        if is_run:
            self._set.add((bytes(server), ""), begin, begin + count - 1)
        else:
            self._add_each(gtids)
        self.base, self._server = self.exact(), b""

    def _add_each(self, gtids: bytearray) -> None:
        at = 0
        while at < len(gtids):
            end = at + GTID_BYTES + (gtids[at + TAG_LENGTH_AT] if gtids[at] & HAS_TAG else 0)
            number, tag = _number(gtids, at), bytes(gtids[at + GTID_BYTES : end])
            if end > len(gtids) or not _TAG.fullmatch(tag):
                raise _no_gtid()
            self._set.add((bytes(gtids[at + 1 : at + _NUMBER_AT]), tag.decode("ascii")), number, number)
            at = end

    def exact(self) -> str:
        """The whole set."""
        return str(self._set)


class MariaDBGtidsRead:
    """The last transaction read of each of MariaDB's domains; `base`, grown by the last GTID, is the same set."""

    def __init__(self, base: str) -> None:
        self._ends = domain_ends(base)
        self._growing: set[int] = set()  # domains of which something was added since `base`
        self.base = base

    def add(self, gtids: bytearray) -> None:
        """Take in what is kept of transactions' GTID events, one behind the other as in the binlog."""
        ends = {domain: (server, number) for domain, server, number in MARIADB.iter_unpack(gtids)}
        self._ends |= ends
        self._growing |= ends.keys()
        if len(self._growing) > 1:
            self.base, self._growing = self.exact(), set()

    def exact(self) -> str:
        """The whole set."""
        return domains_text(self._ends)


def _number(gtids: bytearray, at: int) -> int:
    number = int.from_bytes(gtids[at + _NUMBER_AT : at + _NUMBER_AT + 8], "little", signed=True)
    if not 0 < number < _END_OF_NUMBERS:
        raise _no_gtid()
    return number


def _no_gtid() -> SourceError:
    return unreadable("a transaction of the binlog has a GTID that no server gives")


def _is_run(gtids: bytearray, count: int, begin: int) -> bool:
    """Return whether all are of one source without a tag, and their numbers follow each other.

    They are compared byte by byte, all at once: they lie next to each other at equal distances.
    """
    if len(gtids) == GTID_BYTES:
        return gtids[0] < HAS_TAG
    if len(gtids) != count * GTID_BYTES or max(gtids[::GTID_BYTES]) >= HAS_TAG:
        return False
    numbers = struct.pack(f"<{count}q", *range(begin, begin + count))
    has_numbers = all(gtids[_NUMBER_AT + at :: GTID_BYTES] == numbers[at::8] for at in range(8))
    return has_numbers and all(gtids[at::GTID_BYTES].count(gtids[at]) == count for at in range(1, _NUMBER_AT))
