"""The place in the stream: file, position, how often positions wrapped, and the GTIDs read up to there."""

from __future__ import annotations

from ingest.binlog.coordinates import BinlogPosition, file_number
from ingest.binlog.events import ARTIFICIAL, SILENT
from ingest.binlog.gtid_sets import GtidSet, is_of_mariadb
from ingest.binlog.gtids import GTID_BYTES, GtidTexts, gtid_text
from ingest.binlog.gtids_read import GtidsRead, MariaDBGtidsRead
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.stream_errors import BACKFILL_ALL, WentBackError, unknown
from viewtail.changes.batches import Origin, Refused, RowChanges
from viewtail.changes.errors import HistoryGoneError
from viewtail.changes.versions import MAX_FILE_NUMBER, MAX_POSITION, base_version

BEFORE_ALL = -1  # a last position below all others, below 0 too: an event that ends at 4 GiB has that

# Where a committed transaction ended, and which it was: file, end and start in bytes, first bytes of its GTID event.
TransactionEnd = tuple[str, int, int, Buffer]


class Place:
    """The walk's place (arguments as of Dispatcher)."""

    def __init__(self, after: BinlogPosition, checksum_bytes: int, server: str, large: frozenset[str]) -> None:
        self.file = after.file
        self.base = base_version(after.epoch, file_number(after.file))  # of all versions of the file
        self.last_pos = after.start & 0xFFFFFFFF  # 32 bits, from the last event's header
        self.wraps = after.start >> 32
        self.checksum_bytes = checksum_bytes  # of each event: 4, or 0 where there are none
        self.server_id = 0  # the format description tells
        self._gtid_texts = GtidTexts()
        self._named = (-1, "")  # number and name of the file that was named last
        self.is_mariadb = False  # the format description tells
        # The last saved transaction, until it was read again: it is compared.
        self.saved: BinlogPosition | None = after if after.gtid else None
        self.gtids: GtidsRead | MariaDBGtidsRead | None = None  # None: not known
        if after.gtid_base:
            self.gtids = MariaDBGtidsRead(after.seen) if is_of_mariadb(after.seen) else GtidsRead(after.seen)
        self.new_gtids = bytearray()  # of committed transactions that `gtids` lacks, one after the other
        self.first_new_gtid: Buffer | None = None  # of the batch that is gathered, once it is in `gtids`
        self._epoch, self._server = after.epoch, server
        self._is_by_set = after.is_by_set  # the server says in which file reading begins
        self._large_files = large

    def __str__(self) -> str:
        return f"{self.file}:{self.last_pos}"

    def version(self, log_pos: int) -> int:
        """Return the version of an event whose header says that it ends at `log_pos`."""
        return self.base | self.wraps << 28 | log_pos >> 4

    def in_file(self, log_pos: int) -> int:
        """Bytes from the file's start; a header holds the low 32 bits only."""
        return self.wraps << 32 | log_pos

    def move_to(self, log_pos: int) -> None:
        """An event ended there; some that the server makes up have the position 0."""
        if log_pos or self.last_pos == BEFORE_ALL:
            self.last_pos = log_pos

    def has_wrapped(self, kind: int, log_pos: int, size: int) -> bool:
        """Count a wrap of the header's 32-bit position. Raises WentBackError for any other step back."""
        if log_pos > self.last_pos or kind in ARTIFICIAL:
            return False
        if (self.last_pos + size) & 0xFFFFFFFF != log_pos:
            if log_pos == 0 and kind in SILENT:  # made up by the server
                return False
            raise WentBackError(
                f"positions in {self.file} went back from {self.last_pos} to {log_pos}: versions would fall. "
                f"To go on, {BACKFILL_ALL}"
            )
        self.wraps += 1
        self.last_pos = BEFORE_ALL
        if self.wraps << 32 > MAX_POSITION:
            raise HistoryGoneError(f"{self.file} is above {MAX_POSITION} bytes: versions cannot be made")
        return True

    def check_start(self, file: str) -> bool:
        """Return whether the server names the file in which a read by GTID set begins. Raises HistoryGoneError."""
        is_start, self._is_by_set = self._is_by_set, False
        if is_start and file in self._large_files:
            raise HistoryGoneError(
                f"{file} is above 4 GiB, and what was read is known by its GTIDs only: the positions of what follows "
                f"are not known. For a first start run FLUSH BINARY LOGS on the source; after a failover {BACKFILL_ALL}"
            )
        return is_start

    def enter(self, file: str) -> None:
        """Go on at the beginning of another file."""
        self.base = base_version(self._epoch, file_number(file))
        self.file, self.last_pos, self.wraps = file, 4, 0

    def add_gtids(self) -> None:
        """Add what was committed to the transactions that were read."""
        if self.new_gtids:
            self.first_new_gtid = self.first_new_gtid or self.new_gtids[:GTID_BYTES]
            if self.gtids is not None:
                self.gtids.add(self.new_gtids)
            self.new_gtids.clear()

    def learn_gtids(self, body: bytes) -> None:
        """The PREVIOUS_GTIDS event at a file's beginning lists what all files before it hold."""
        if self.gtids is not None:
            return
        self.add_gtids()
        try:
            self.gtids = GtidsRead(str(GtidSet.decoded(body)))
        except ValueError as error:
            raise unknown(f"the PREVIOUS_GTIDS event at {self} cannot be read: {error}") from None

    def origin_of(self, change: RowChanges | Refused) -> Origin:
        """Return where a change of this stream comes from."""
        transaction, file = change.transaction, change.version >> 32 & MAX_FILE_NUMBER
        if file != self._named[0]:
            self._named = file, f"{self.file.rpartition('.')[0]}.{file:06d}"
        gtid, committed = self._gtid_texts.of(transaction) if transaction else (None, 0)
        return Origin(committed, gtid, self._named[1], change.start, self.server_id)

    def position(self, end: TransactionEnd, gtid_base: str) -> BinlogPosition:
        """The position behind a transaction."""
        file, end_position, start, gtid = end
        return BinlogPosition(
            epoch=self._epoch,
            file=file,
            end=end_position,
            start=start,
            gtid=gtid_text(gtid),
            gtid_base=gtid_base,
            server=self._server,
        )
