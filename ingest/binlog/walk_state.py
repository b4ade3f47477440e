"""What is known at one place of a walk through a binlog, and how a table's halt is noted there.

Position, tables, the open transaction, what is committed but not delivered yet. `rare_events.py` and `dispatcher.py`
move it on; nothing here reads an event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import structlog
import zstandard

from changes.batches import Followed, Halt, Refused, Row, RowChanges, TableChange
from changes.mariadb_gtids import is_position
from changes.positions import Position, file_number
from changes.versions import base_version
from ingest.binlog.gtids import GTID_BYTES
from ingest.binlog.mariadb_history import MariaDBSeen
from ingest.binlog.packed import Buffer
from ingest.binlog.partial_json import PartialUpdates
from ingest.binlog.payload import Payload
from ingest.binlog.row_decoder import Decoder
from ingest.binlog.seen import Seen
from ingest.binlog.shapes import Openings, RowsHead, rows_head
from ingest.binlog.spool import Spool
from ingest.binlog.table_map import TableMap

_log = structlog.get_logger("viewtail.source")

PACKET_HEAD_BYTES = 24  # packet length and sequence, status byte, event header
_PIECE_BYTES = (
    1 << 20
)  # of a spooled transaction: they are written while the processor still has them in its cache
BEFORE_ALL = -1  # a last position below each, 0 too, which an event that ends at 4 GiB has


@dataclass(slots=True, eq=False)
class Plan:
    """How the rows of one table map are read."""

    followed: Followed
    decoder: Decoder
    decode: Callable[[Any, int, int], list[Row]]
    write_image: bytes  # what a full image's WRITE or DELETE event has between table flags and rows
    update_image: bytes
    table_map: TableMap
    rows_head: RowsHead = field(init=False)
    partial: PartialUpdates | None = None  # made when the first such update is seen

    def __post_init__(self) -> None:
        self.rows_head = rows_head(self.write_image, self.update_image)


class Own:
    """In place of a plan: a table of viewtail's own. Falsy, like None, which stands for everybody else's."""

    def __bool__(self) -> Literal[False]:
        return False


OWN = Own()


# Where a committed transaction ended, and which it was: file, end and start in bytes, GTID event's first bytes.
End = tuple[str, int, int, Buffer]
XaName = tuple[int, bytes, bytes]  # format, global part, branch part


@dataclass(slots=True, kw_only=True, eq=False)
class Compressed:
    """A compressed transaction while its events are walked."""

    payload: Payload
    start: int  # of its event in the file, in bytes
    length: int
    log_pos: int  # the header's end position
    done: int = 0  # bytes of the events that were walked


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How much the open transaction held at a savepoint, or at its beginning."""

    change_count: int
    refused_count: int
    held_bytes: int
    piece_count: int  # of those in the spool; the other counts are of what was in memory


@dataclass(slots=True, kw_only=True, eq=False)
class Prepared:
    """An XA transaction between its PREPARE and what becomes of it."""

    changes: list[RowChanges]
    refused: list[Refused]
    held_bytes: int
    before: End | Position  # where reading must begin again to see it
    gtid_base: str  # what had been seen there
    at_us: int  # when it was prepared, microseconds since 1970


def _seen(text: str) -> Seen | MariaDBSeen:
    return MariaDBSeen(text) if is_position(text) else Seen(text)


class WalkState:
    """One connection's walk, as far as it has come.

    Args:
        followed: by (schema, table): the tables to decode.
        watermark: the watermark table; its rows become `Batch.watermarks`.
        own_schemas: viewtail's own databases; a stream of nothing else is `is_quiet`.
        after: the position to go on from; where it names a transaction, that one is read again and compared.
        has_checksums: whether events end with four bytes of CRC-32.
        spool_bytes: bytes of followed row events of one open transaction kept in memory.
        max_event_bytes: a larger row event is not received, and halts its table's views.
        large_files: where a start by set would not know its place: what the server leaves out may hide a wrap.
        unchecked_formats: format descriptions that have no checksum.
        server: identity of the server, for positions.
        fits_from: by (schema, table): up to this version it is not followed, whatever becomes of it.
    """

    def __init__(
        self,
        *,
        followed: Mapping[tuple[str, str], Followed],
        watermark: Followed,
        own_schemas: frozenset[str],
        after: Position,
        has_checksums: bool,
        spool_bytes: int,
        max_event_bytes: int,
        large_files: frozenset[str] = frozenset(),
        unchecked_formats: frozenset[bytes] = frozenset(),
        server: str = "",
        fits_from: Mapping[tuple[str, str], int] = MappingProxyType({}),
    ) -> None:
        self._followed = dict(followed)
        self._watermark = watermark
        self._own_schemas = own_schemas
        self._spool_bytes = spool_bytes
        self.max_event_bytes = max_event_bytes
        self._epoch, self._server = after.epoch, server
        self._verifying: Position | None = after if after.gtid else None
        self._file = after.file
        self._base = base_version(after.epoch, file_number(after.file))
        self._last_pos = after.start & 0xFFFFFFFF  # header's 32 bits of the last event's end
        self._wraps = after.start >> 32
        self._checksum_bytes = 4 if has_checksums else 0
        self._memo: dict[bytes, Plan | Own | None] = {}
        self._tables: dict[int, Plan | Own | None] = {}
        self._changes: list[RowChanges] = []
        self._committed = 0  # how many of _changes belong to committed transactions
        self._committed_bytes = 0
        self._held_bytes = 0  # of followed row events of the open transaction
        self._txn_start = after.start
        self._gtid: Buffer = bytearray(GTID_BYTES)
        self._gtids = (
            bytearray()
        )  # of committed transactions that are not in `_seen` yet, one after the other
        self._seen = _seen(after.seen) if after.gtid_base else None
        self._first_gtid: Buffer | None = None  # of the batch that is gathered, once it is in `_seen`
        self._begun_at = -1  # _txn_start of the transaction whose BEGIN was read last
        self._branch_at = -1  # _txn_start of the XA transaction that was begun last
        self._end: End | None = None
        self._big_end: End | None = None
        self._open_refused: list[Refused] = []
        self._loud: Buffer | None = None  # _gtid of the last transaction that `_mark_loud` was told of
        self._watermark_was_seen = False
        self._refused: list[Refused] = []
        self._halts: list[Halt] = []
        self._table_changes: list[TableChange] = []
        self._last_statements: dict[Followed, str] = {}  # that may have changed the table, for messages
        self._halted: set[Followed] = set()  # what is still gathered of them is dropped on delivery
        self._spool: Spool | None = None
        self._spool_is_committed = False
        self._compressed: Compressed | None = None  # above `spool_bytes`: `batches` walks it
        self._savepoints: dict[tuple[int, str], Mark] = {}  # by _txn_start of their transaction, and name
        self._is_cut = False  # a file ended inside the open transaction
        self._is_in_pieces = False  # a part of the open transaction was delivered before its end was seen
        self._prepared: dict[XaName, Prepared] = {}  # in the order in which they were prepared
        self._is_by_set = after.is_by_set  # the server says in which file reading begins
        self._large_files = large_files
        self._unchecked_formats = unchecked_formats
        self._fits_from = fits_from
        self._last_end: End | Position = after  # of the last transaction that was handed over
        self._openings = Openings()
        self._decompressor = zstandard.ZstdDecompressor()
        self.is_quiet = True

    @property
    def place(self) -> str:
        """Where reading is, for messages."""
        return f"{self._file}:{self._last_pos}"

    @property
    def _most_held(self) -> int:
        """Bytes of row events of the open transaction that are kept in memory: fewer once it is in a file."""
        return self._spool_bytes if self._spool is None else min(self._spool_bytes, _PIECE_BYTES)

    @property
    def prepared(self) -> tuple[int, int]:
        """How many XA transactions wait for what becomes of them, and when the oldest was prepared (microseconds)."""
        for oldest in self._prepared.values():
            return len(self._prepared), oldest.at_us
        return 0, 0

    @property
    def has_checksums(self) -> bool:
        """Whether events end with a checksum, as the last format description said."""
        return self._checksum_bytes > 0

    def _version(self, log_pos: int) -> int:
        return self._base | self._wraps << 28 | log_pos >> 4

    def _halt(
        self, followed: Followed, version: int, reason: str, columns: frozenset[str] | None = None
    ) -> None:
        """Stop decoding a table; its views learn of it with the next batch."""
        if followed is self._watermark:
            self._skip_watermark(reason)
            return
        if self._is_before_it_fits(followed, version):
            return
        place = f"{followed.table.full_name} at {self._file}:{self._last_pos}"
        self._halts.append(Halt(followed, version, f"{place}: {reason}", columns))
        self._halted.add(followed)
        self._followed.pop((followed.table.schema, followed.table.name), None)
        self._memo.clear()
        for identity, plan in self._tables.items():
            if plan and plan.followed is followed:
                self._tables[identity] = None

    def _is_before_it_fits(self, followed: Followed, version: int) -> bool:
        """Whether it is not followed there. A branch of an XA transaction counts where it is committed."""
        if self._branch_at == self._txn_start:
            return False
        return version <= self._fits_from.get((followed.table.schema, followed.table.name), 0)

    def _skip_watermark(self, reason: str) -> None:
        """One watermark event that cannot be read: no view has rows of it, and the next one may be as it should be."""
        _log.warning(
            "watermark skipped: it cannot be read",
            position=self.place,
            reason=reason,
            mend="SET GLOBAL binlog_row_metadata = 'FULL'; SET GLOBAL binlog_row_image = 'FULL'; fills wait for a "
            "watermark that can be read",
        )

    def _mark_loud(self) -> None:
        """The open transaction is not viewtail's own, though no table map says so."""
        self.is_quiet = False
        self._loud = self._gtid
