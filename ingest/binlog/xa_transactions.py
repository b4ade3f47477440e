"""How transactions end: by a commit, by a rollback that stands in the binlog, or in two steps (XA).

The rows of an XA transaction stand where it was prepared; they are delivered where it was committed, with that version,
which they share. Until then no batch ends behind the transaction before it, so that a restart reads it again.
"""

from __future__ import annotations

import re
import struct

import structlog

from changes.errors import SourceError
from changes.positions import Position
from ingest.binlog.gtids import GTID_BYTES, committed_us, gtid_text
from ingest.binlog.open_transaction import End, Mark, Prepared, XaName
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.row_events import CarefulRows
from ingest.binlog.spool import Spool

_log = structlog.get_logger("viewtail.source")

_XA_NAME = re.compile(
    r"XA\s+(?:COMMIT|ROLLBACK)\s+X'((?:[0-9a-f]{2})*)',X'((?:[0-9a-f]{2})*)',(\d+)\Z", re.IGNORECASE
)
_PREPARE = struct.Struct(
    "<?III"
).unpack_from  # in one phase?, format, bytes of the global and of the branch part
_MANY_PREPARED = 100


class Transactions(CarefulRows):
    """Moves what the open transaction holds to where it belongs."""

    def _commit(self, log_pos: int) -> None:
        """A transaction ended at `log_pos` and is to be delivered."""
        end: End = (
            self._file,
            (self._wraps << 32) + log_pos,
            self._txn_start,
            self._gtid,
        )
        self._branch_at = -1  # the walk does not tell each place where one begins
        self._tables.clear()  # a row event that stands behind it without a table map is of no transaction
        if self._spool is not None:
            self._big_end, self._spool_is_committed = end, True
            return
        self._refused += self._open_refused
        self._open_refused = []
        self._committed = len(self._changes)
        self._committed_bytes += self._held_bytes
        self._held_bytes = 0
        self._end = end
        self._gtids += self._gtid

    def _note_seen(self) -> None:
        """What was committed is in the set of what was seen from now on."""
        if self._gtids:
            self._first_gtid = self._first_gtid or self._gtids[:GTID_BYTES]
            if self._seen is not None:
                self._seen.add(self._gtids)
            self._gtids.clear()

    def _in_transaction(self) -> bool:
        """Whether the open transaction began with BEGIN: a statement inside it does not end it."""
        return self._begun_at == self._txn_start

    def _savepoint(self, name: str) -> None:
        """Remember what the open transaction holds, to come back to."""
        if self._savepoints and next(iter(self._savepoints))[0] != self._txn_start:
            self._savepoints.clear()
        self._savepoints[self._txn_start, name.lower()] = Mark(
            change_count=len(self._changes) - self._committed,
            refused_count=len(self._open_refused),
            held_bytes=self._held_bytes,
            piece_count=0 if self._spool is None else self._spool.count,
        )

    def _roll_back(self) -> None:
        """Forget what the open transaction holds: in row format a rollback stands behind transactional rows only."""
        nothing = Mark(change_count=0, refused_count=0, held_bytes=0, piece_count=0)
        self._take_back(nothing)

    def _roll_back_to(self, name: str) -> None:
        """Forget what the open transaction holds since a savepoint, which stays."""
        mark = self._savepoints.get((self._txn_start, name.lower()))
        if mark is None:
            self._halt_touched("a rollback to a savepoint that is not in the binlog stands there")
        else:
            self._take_back(mark)

    def _take_back(self, mark: Mark) -> None:
        if self._is_in_pieces:
            self._halt_touched("a rollback stands behind rows that were delivered already")
            return
        if self._spool is not None and self._spool.count > mark.piece_count:
            # What was in memory then went into the file since.
            self._changes[self._committed :], self._open_refused, _ = self._spool.cut(mark.piece_count)
            if not mark.piece_count:
                self._spool.close()
                self._spool = None
        del self._changes[self._committed + mark.change_count :]
        del self._open_refused[mark.refused_count :]
        self._held_bytes = mark.held_bytes

    def _halt_touched(self, why: str) -> None:
        """Halt every followed table that the open transaction has a table map of; forget what it held."""
        touched = {plan.followed.table.full_name: plan.followed for plan in self._tables.values() if plan}
        for followed in touched.values():
            self._halt(
                followed,
                self._version(self._last_pos),
                f"{why}. Fill the views again: viewtail replay VIEW",
            )
        if self._spool is not None:
            self._spool.close()
            self._spool = None
        self._held_bytes = 0
        self._open_refused = []
        del self._changes[self._committed :]

    def _resume_position(self, end: End | Position) -> Position:
        """The position to go on from when all up to `end` is durable: before the oldest prepared transaction."""
        base = "" if self._seen is None else self._seen.base
        for prepared in self._prepared.values():
            end, base = prepared.before, prepared.gtid_base
            break
        if isinstance(end, Position):
            return end
        file, end_position, start, gtid = end
        return Position(
            epoch=self._epoch,
            file=file,
            end=end_position,
            start=start,
            gtid=gtid_text(gtid),
            gtid_base=base,
            server=self._server,
        )

    def _spill(self, committed: int, held_bytes: int, event_bytes: int) -> int:
        """Make room for an event: what the open transaction holds goes into a file.

        `held_bytes` count the event already; returns the bytes held afterwards. An event that is alone stays.
        """
        if held_bytes == event_bytes:
            return held_bytes
        if self._spool is None:
            self._spool = Spool()
        self._spool.append(self._changes[committed:], self._open_refused, held_bytes - event_bytes)
        del self._changes[committed:]
        self._open_refused = []
        return event_bytes

    # -- XA -----------------------------------------------------------------------------------------------------

    def _prepare(self, buffer: Buffer, b: int, rows_end: int, log_pos: int) -> None:
        """XA PREPARE, or XA COMMIT ... ONE PHASE, which is a commit like any other."""
        is_one_phase, number, global_bytes, branch_bytes = _PREPARE(buffer, b)
        at = b + 13 + global_bytes
        if is_one_phase:
            self._commit(log_pos)
            return
        if at + branch_bytes != rows_end:
            raise SourceError(
                f"the XA PREPARE event at {self.place} is malformed; the pipeline stops before it"
            )
        name = (number, bytes(buffer[b + 13 : at]), bytes(buffer[at:rows_end]))
        if self._spool is not None:
            self._halt_too_large_prepared()
        self._note_seen()
        # One without followed rows is kept as well: its commit must be told from one whose rows were never seen.
        self._prepared[name] = Prepared(
            changes=self._changes[self._committed :],
            refused=self._open_refused,
            held_bytes=self._held_bytes,
            before=self._end or self._last_end,
            gtid_base="" if self._seen is None else self._seen.exact(),
            at_us=committed_us(self._gtid),
        )
        if len(self._prepared) % _MANY_PREPARED == 0:
            _log.warning(
                "XA transactions wait for their commit", count=len(self._prepared), position=self.place
            )
        del self._changes[self._committed :]
        self._open_refused, self._held_bytes = [], 0
        self._commit(log_pos)

    def _bound_prepared(self) -> None:
        """Of an XA transaction that is known to end prepared, no more is kept than may wait."""
        if self._held_bytes > self._spool_bytes:
            self._halt_too_large_prepared()

    def _halt_too_large_prepared(self) -> None:
        self._halt_touched(
            f"an XA transaction holds more than run.spool_bytes ({self._spool_bytes}), which must wait in memory for "
            "its commit. Raise that setting"
        )

    def _decide(self, statement: str, log_pos: int, *, is_kept: bool) -> None:
        """XA COMMIT or XA ROLLBACK of a branch that was prepared before."""
        name = _xa_name(statement)
        prepared = None if name is None else self._prepared.pop(name, None)
        if prepared is None and is_kept:
            self._halt_all(
                "an XA transaction was committed whose rows stand before the place where reading began",
                log_pos,
            )
        elif prepared is not None and is_kept:
            version = self._version(log_pos)
            self._changes += [change._replace(version=version) for change in prepared.changes]
            self._open_refused += [refused._replace(version=version) for refused in prepared.refused]
            self._held_bytes += prepared.held_bytes
            self._mark_loud()
        self._commit(log_pos)

    def _halt_all(self, why: str, log_pos: int) -> None:
        for followed in list(self._followed.values()):
            self._halt(followed, self._version(log_pos), f"{why}. Fill the views again: viewtail replay VIEW")


def _xa_name(statement: str) -> XaName | None:
    found = _XA_NAME.match(statement)
    if found is None:
        return None
    return int(found[3]), bytes.fromhex(found[1]), bytes.fromhex(found[2])
