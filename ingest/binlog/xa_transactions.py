"""XA transactions: their rows stand where they were prepared, and are delivered with the position of XA COMMIT.

Until then no batch ends behind the transaction before the oldest prepared one, so that a restart reads it again.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

import structlog

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.events import Event
from ingest.binlog.gtids import committed_us
from ingest.binlog.place import TransactionEnd
from ingest.binlog.walk import Walk
from viewtail.changes.batches import Refused, RowChanges
from viewtail.changes.errors import SourceError

_log = structlog.get_logger("viewtail.source")

_XA_NAME = re.compile(r"(?i)XA\s+(?:COMMIT|ROLLBACK)\s+X'((?:[0-9a-f]{2})*)',X'((?:[0-9a-f]{2})*)',(\d+)\Z")
_PREPARE = struct.Struct("<?III")  # in one phase?, format, bytes of the global and of the branch part
_MANY_PREPARED = 100

XaName = tuple[int, bytes, bytes]  # format, global part, branch part


@dataclass(frozen=True, slots=True)
class Prepared:
    """An XA transaction that waits for its XA COMMIT or XA ROLLBACK."""

    changes: list[RowChanges]
    refused: list[Refused]
    held_bytes: int
    before: TransactionEnd | BinlogPosition  # reading must begin again there to read it
    gtid_base: str  # GTIDs that were read up to there
    at_us: int  # when it was prepared, microseconds since 1970


class XaTransactions:
    """The prepared transactions of one walk, in the order in which they were prepared."""

    def __init__(self, walk: Walk, after: BinlogPosition) -> None:
        self._walk = walk
        self._prepared: dict[XaName, Prepared] = {}
        self.delivered: TransactionEnd | BinlogPosition = after  # end of the last one that was handed over

    @property
    def waiting(self) -> tuple[int, int]:
        """The number that wait for their commit, and when the oldest was prepared (microseconds)."""
        oldest = next(iter(self._prepared.values()), None)
        return (0, 0) if oldest is None else (len(self._prepared), oldest.at_us)

    def prepare(self, event: Event) -> None:
        """XA PREPARE, or XA COMMIT ... ONE PHASE, which is a commit like any other."""
        walk, transaction, place = self._walk, self._walk.transaction, self._walk.place
        is_one_phase, number, global_bytes, branch_bytes = _PREPARE.unpack_from(event.buffer, event.start)
        if is_one_phase:
            walk.commit(event.log_pos)
            return
        branch_at = event.start + _PREPARE.size + global_bytes
        if branch_at + branch_bytes != event.end:
            raise SourceError(f"the XA PREPARE event at {place} is malformed; the pipeline stops before it")
        global_part = bytes(event.buffer[event.start + _PREPARE.size : branch_at])
        if transaction.spool is not None:
            self._halt_too_large()
        place.add_gtids()
        before, gtid_base = transaction.end or self.delivered, place.gtids.exact() if place.gtids else ""
        # One without followed rows is kept too: its commit must differ from one whose rows were never read.
        self._prepared[number, global_part, bytes(event.buffer[branch_at : event.end])] = Prepared(
            *transaction.taken_out(), before, gtid_base, committed_us(transaction.gtid)
        )
        if len(self._prepared) % _MANY_PREPARED == 0:
            count, position = len(self._prepared), str(place)
            _log.warning("XA transactions wait for their commit", count=count, position=position)
        walk.commit(event.log_pos)

    def commit(self, statement: str, log_pos: int) -> None:
        """XA COMMIT: the rows of a prepared transaction join the open one."""
        transaction = self._walk.transaction
        if (prepared := self._take(statement)) is None:
            why = "an XA transaction was committed whose rows stand before the place where reading began"
            self._walk.halt(self._walk.tables.followed.values(), log_pos, why)
        else:
            version = self._walk.place.version(log_pos)
            transaction.changes += [
                change._replace(version=version, transaction=transaction.gtid) for change in prepared.changes
            ]
            transaction.refused += [
                refused._replace(version=version, transaction=transaction.gtid) for refused in prepared.refused
            ]
            transaction.held_bytes += prepared.held_bytes
            transaction.mark_foreign()
        self._walk.commit(log_pos)

    def roll_back(self, statement: str, log_pos: int) -> None:
        """XA ROLLBACK: a prepared transaction is dropped."""
        self._take(statement)
        self._walk.commit(log_pos)

    def _take(self, statement: str) -> Prepared | None:
        match = _XA_NAME.match(statement)
        if match is None:
            return None
        name = int(match[3]), bytes.fromhex(match[1]), bytes.fromhex(match[2])
        return self._prepared.pop(name, None)

    def check_size(self) -> None:
        """Halt the tables of a transaction that will be prepared, when it is too large to wait in memory."""
        if self._walk.transaction.held_bytes > self._walk.transaction.spool_bytes:
            self._halt_too_large()

    def _halt_too_large(self) -> None:
        self._walk.halt_touched(
            f"an XA transaction holds more than run.spool_bytes ({self._walk.transaction.spool_bytes}), which must "
            "wait in memory for its commit. Raise that setting"
        )

    def resume_position(self, end: TransactionEnd) -> BinlogPosition:
        """The position to go on from when all up to `end` is durable: before the oldest prepared transaction."""
        gtids = self._walk.place.gtids
        resume: TransactionEnd | BinlogPosition = end
        gtid_base = "" if gtids is None else gtids.base
        if (oldest := next(iter(self._prepared.values()), None)) is not None:
            resume, gtid_base = oldest.before, oldest.gtid_base
        return resume if isinstance(resume, BinlogPosition) else self._walk.place.position(resume, gtid_base)
