"""The tables of the stream: which are followed, how the rows of each table map are read, and which had to halt."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import structlog

from ingest.binlog.events import Event
from ingest.binlog.open_transaction import OpenTransaction
from ingest.binlog.own_forms import form_of
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.partial_json import PartialUpdates
from ingest.binlog.place import Place
from ingest.binlog.row_decoder import Decoder, compile_decoder
from ingest.binlog.stream_errors import rows_without_map
from ingest.binlog.table_map import TableMap, names, parse
from ingest.binlog.transaction_layouts import RowsHead, rows_head
from viewtail.changes.batches import Followed, Halt, Row, TableChange
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.patterns import Part

_log = structlog.get_logger("viewtail.source")

_TABLE_ID = struct.Struct("<IH").unpack_from
_MOST_READERS = 10_000
NO_EXTRA_DATA = b"\x02\x00"
_TWO_PATTERNS = (
    "the table {table} is one of {patterns}, and a row belongs to one entity; give the table another name, or the "
    "entities names that tell them apart"
)


# What a kind of change and its rows are to a reader of current rows only.
CurrentRows: TypeAlias = "Callable[[int, list[Row]], Iterator[tuple[int, list[Row]]]]"


@dataclass(slots=True, eq=False)
class TableReader:
    """The reader of one table map's rows."""

    followed: Followed
    decoder: Decoder
    decode: Callable[[Any, int, int], list[Row]]
    write_image: bytes  # what a full image's WRITE or DELETE event has between table flags and rows
    update_image: bytes
    table_map: TableMap
    current: CurrentRows | None = None  # of a system-versioned table
    part: Part | None = None  # which of a pattern's tables it is
    rows_head: RowsHead = field(init=False)
    partial: PartialUpdates | None = None  # made when the first such update is read

    def __post_init__(self) -> None:
        self.rows_head = rows_head(self.write_image, self.update_image)


class OwnTable:
    """Stands for a table of viewtail's own. False, like None, which stands for all other tables."""

    def __bool__(self) -> Literal[False]:
        return False


OWN_TABLE = OwnTable()


def compile_reader(body: bytes, followed: Followed, part: Part | None = None) -> TableReader:
    """The reader for a table map of MySQL; raises TableUnreadableError."""
    table_map = parse(body)
    followed = form_of(table_map, followed)
    decoder = compile_decoder(table_map, followed, part=part)
    write_image, update_image = NO_EXTRA_DATA + decoder.write_image, NO_EXTRA_DATA + decoder.update_image
    return TableReader(followed, decoder, decoder.decode, write_image, update_image, table_map, part=part)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The part of a binlog that is wanted, and how much of it may be held."""

    followed: Mapping[tuple[str, str], Followed]  # by (schema, table): what to decode
    watermark: Followed  # the watermark table; its rows become `Batch.watermarks`
    own_schemas: frozenset[str]  # viewtail's own databases: changes of theirs alone make a batch quiet
    fits_from: Mapping[tuple[str, str], int] = field(default_factory=dict)  # not followed up to this version
    spool_bytes: int  # of row events of one open transaction, in memory
    max_event_bytes: int  # a larger row event halts its table's views


class TableReaders:
    """The readers of one walk. `folds_names` is as of Dispatcher."""

    def __init__(self, place: Place, transaction: OpenTransaction, wanted: Wanted, *, folds_names: bool | None) -> None:
        self._place, self._transaction = place, transaction
        self.folds_names = folds_names
        self.followed = {self._key(*names): followed for names, followed in wanted.followed.items()}
        self.patterns = [followed for followed in self.followed.values() if followed.table.pattern is not None]
        self.watermark = wanted.watermark
        self._own_schemas = frozenset(map(self._folded, wanted.own_schemas))
        self._fits_from = wanted.fits_from
        self.compile = compile_reader
        self.by_body: dict[bytes, TableReader | OwnTable | None] = {}
        self.by_id: dict[int, TableReader | OwnTable | None] = {}  # of the open transaction's table maps
        self.has_watermarks = False
        self.halted: set[Followed] = set()  # rows of theirs that are gathered are dropped on delivery
        self.halts: list[Halt] = []  # for the next batch, as are the table changes
        self.table_changes: list[TableChange] = []
        self.last_statements: dict[Followed, str] = {}  # that may have changed the table, for messages

    def reader(self, body: bytes, version: int) -> TableReader | OwnTable | None:
        """The reader for a table map that is not in `by_body`; None for a table nobody follows."""
        schema, _ = key = self._key(*names(body))
        followed, part = self._followed(key, version)
        reader: TableReader | OwnTable | None = None
        if key == self._key(self.watermark.table.schema, self.watermark.table.name):
            self.has_watermarks = True
            try:
                reader = self.compile(body, self.watermark)
            except TableUnreadableError as error:
                self.skip_watermark(str(error))
                return None  # not remembered: the log gets a line for each one that is skipped
        elif followed is not None:
            if self._is_before_it_fits(followed, version):
                return None  # not remembered: later ones are followed
            try:
                reader = self.compile(body, followed, part)
            except TableUnreadableError as error:
                last = self.last_statements.get(followed)
                why = f"{error}. The last statement about the table: {last}" if last else str(error)
                self.halt(followed, version, why, error.columns)
        elif schema in self._own_schemas:
            reader = OWN_TABLE
        if len(self.by_body) >= _MOST_READERS:
            self.by_body.clear()
        self.by_body[body] = reader
        return reader

    def _followed(self, key: tuple[str, str], version: int) -> tuple[Followed | None, Part | None]:
        """What is followed by the name of a table, or is one of many; where it is of several, all of these halt."""
        followed = self.followed.get(key)
        if followed is not None and followed.table.pattern is None:
            return followed, None
        found = [*self._having(key)]
        if len(found) > 1:
            names = " and of ".join(several.table.full_name for several, _ in found)
            for several, part in found:
                self.halt(several, version, _TWO_PATTERNS.format(table=part.full_name, patterns=names))
            found = [(several, part) for several, part in found if several.described not in self.halted]
        return found[0] if found else (None, None)

    def _having(self, key: tuple[str, str]) -> Iterator[tuple[Followed, Part]]:
        for several in self.patterns:
            pattern = several.table.pattern
            if pattern is not None and (part := pattern.part(*key, folds_names=self.folds_names)) is not None:
                yield several, part

    def _folded(self, name: str) -> str:
        return name.lower() if self.folds_names else name

    def _key(self, schema: str, name: str) -> tuple[str, str]:
        return self._folded(schema), self._folded(name)

    def add(self, body: Buffer, version: int) -> TableReader | OwnTable | None:
        """A table map of the open transaction; returns its reader."""
        body, (low, high) = bytes(body), _TABLE_ID(body)
        reader = self.by_body[body] if body in self.by_body else self.reader(body, version)
        self.by_id[low | high << 32] = reader
        return reader

    def of_event(self, event: Event) -> TableReader | OwnTable | None:
        """The reader for a row event. Raises SourceError when its table map is missing."""
        low, high = _TABLE_ID(event.buffer, event.start)
        try:
            return self.by_id[low | high << 32]
        except KeyError:
            rows_without_map(event.kind, str(self._place))

    def halt(self, followed: Followed, version: int, reason: str, columns: frozenset[str] | None = None) -> None:
        """Stop decoding a table; its views that need these columns halt with the next batch. None: all of them."""
        followed = followed.described
        if followed is self.watermark:
            self.skip_watermark(reason)
            return
        if self._is_before_it_fits(followed, version):
            return
        reason = f"{followed.table.full_name} at {self._place}: {reason}"
        self._transaction.mark_told()
        self.halts.append(Halt(followed, version, reason, columns))
        self.halted.add(followed)
        self.followed.pop(self._key(followed.table.schema, followed.table.name), None)
        self.patterns = [several for several in self.patterns if several is not followed]
        self.by_body.clear()
        for identity, reader in self.by_id.items():
            if reader and reader.followed.described is followed:
                self.by_id[identity] = None

    def _is_before_it_fits(self, followed: Followed, version: int) -> bool:
        """Return whether the table is not followed there. An XA transaction's branch counts where it is committed."""
        if self._transaction.is_branch:
            return False
        return version <= self._fits_from.get((followed.table.schema, followed.table.name), 0)

    def skip_watermark(self, reason: str) -> None:
        """Leave out one watermark event: no view has rows of it, and the next one may be readable."""
        _log.warning(
            "watermark skipped: it cannot be read",
            position=str(self._place),
            reason=reason,
            mend="SET GLOBAL binlog_row_metadata = 'FULL'; SET GLOBAL binlog_row_image = 'FULL'; backfills wait for a "
            "watermark that can be read",
        )
