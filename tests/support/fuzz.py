"""A structure-aware fuzzer of the event parser: real events, mended after each mutation so that they reach it.

    python -m tests.support.fuzz [--inputs 1000000] [--first 0] [--seed 1] [--processes 2]

Each input is a few transactions of a real server's binlog with some of their bytes, lengths, types or order changed;
header, checksum and compression are made right again, so that the damage is met behind them. One in seven is damaged on
the wire instead, where nothing is made right. Every input must end in an error of viewtail's own or in rows, within a
second of processor time (a hang is ended) and in bounded memory, and what comes of it is judged (`_judge_mended`,
`_judge_wire`). A failure prints the input's number: `--seed S --only NUMBER` runs it again, on the same corpus, which
is kept in build/.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import resource
import signal
import struct
import sys
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar
from zlib import crc32

import structlog
import zstandard

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.events import COMPRESSED, IGNORABLE_FLAG, QUERY, TABLE_MAP
from ingest.binlog.gtids import GTID_BYTES
from ingest.binlog.mariadb_events import _compressed_at
from ingest.binlog.mariadb_types import declared
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.row_decoder import Decoder
from ingest.binlog.source import _watermark_table
from ingest.binlog.table_readers import TableReader, TableReaders, Wanted
from ingest.binlog.transaction_layouts import BEGIN_TAIL
from tests.support.fuzz_corpus import HEAD, OWN, Corpus, Key, corpora
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Batch, Followed, Row, Unreadable
from viewtail.changes.errors import TableUnreadableError, ViewtailError
from viewtail.changes.patterns import Part
from viewtail.changes.versions import base_version

SLOWEST_S = 1.0  # of processor time: the machine may have other work
GROWTH_BYTES = 64 << 20  # of what is resident, over all inputs
MOST_BYTES = 768 << 20  # of addresses, for one input, above what the process has: MemoryError is a fault
BLOCKS_AN_INPUT = 0.5  # of memory that Python has handed out: what is kept of each input
_PAYLOAD = 40
_PAYLOAD_BYTES = 1 << 20
_BYTES = (0, 1, 2, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)
_START = 4  # position of the first event
_FILE = "binlog.000001"
_BASE = base_version(1, 1)
_OF_THE_FILE = frozenset({4, 15})  # events that say how those behind them are read
_SIZES = (0, 1, 18, 19, 20, 1 << 31, 0xFFFFFFFF)
_KNOWN = 200  # row events of a table whose rows were compared: most of them come again
_UNKNOWN = frozenset({26, 99, 159, 172, 255})
_READ_AGAIN = ("CorruptEventError", "UncheckedFormatError", "SourceUnavailableError", "WentBackError")


# --- Inputs ---


@dataclass(slots=True, kw_only=True)
class Input:
    """Packets as a server would send them, and what is known of them."""

    corpus: Corpus
    data: bytes
    transactions: Sequence[int]  # of the corpus, in order
    start: int = _START  # position of the first event
    is_truth: bool = False  # the corpus as it is
    ends: list[int] = field(default_factory=list)  # in `data`, of each packet
    places: list[tuple[int, int, int]] = field(default_factory=list)  # owner, start and end in the file, of each event
    damaged: set[int] = field(default_factory=set)  # places in `transactions`
    is_wire: bool = False
    clean: bytes = b""  # before it was damaged on the wire
    is_unseen: bool = False  # in what the quick walk looks at less closely than the general one
    has_file_events: bool = False
    has_unknown: bool = False  # an event whose type no server writes


@dataclass(slots=True)
class _Event:
    owner: int  # place of its transaction in the input; -1: before the first
    content: bytes


class Mutator:
    """Makes inputs of corpora; the nth one is the same for the same seed."""

    def __init__(self, sources: Sequence[Corpus], seed: int) -> None:
        self._corpora = sources
        self._seed = seed

    def input(self, number: int) -> Input:
        chance = random.Random(f"{self._seed}:{number}")
        corpus = self._corpora[number % len(self._corpora)]
        if chance.random() < 0.4:  # a run that the quick walk takes in, from the second or third on
            first = chance.choice(corpus.usual)
            chosen = range(first, min(first + chance.choice((4, 6, 9)), corpus.usual.stop))
        else:
            first = chance.randrange(len(corpus.transactions))
            chosen = range(first, min(first + chance.choice((1, 2, 2, 4)), len(corpus.transactions)))
        made = Input(corpus=corpus, data=b"", transactions=chosen)
        events = [
            _Event(owner, event)
            for owner, transaction in enumerate(chosen)
            for event in corpus.transactions[transaction]
        ]
        if chance.random() < 0.05:
            events[:0] = [_Event(-1, event) for event in corpus.opening]
        made.is_wire = chance.random() < 1 / 7
        if not made.is_wire:
            for _ in range(chance.choice((1, 1, 1, 2, 3))):
                self._mutate(events, made, chance)
            # A set of GTIDs in mid-file is learned by one walk before, by the other behind what was committed.
            made.is_unseen |= -1 in made.damaged
        _pack(events, made, chance)
        if made.is_wire:
            _damage_on_the_wire(made, chance)
        return made

    def _mutate(self, events: list[_Event], made: Input, chance: random.Random) -> None:
        at = chance.randrange(len(events))
        kind = chance.random()
        made.damaged.add(events[at].owner)
        if kind < 0.05:
            place = chance.randrange(len(events))
            made.damaged |= {events[place].owner, events[max(place - 1, 0)].owner}
            events.insert(place, _Event(events[place].owner, events[at].content))
        elif kind < 0.1 and len(events) > 1:
            del events[at]
        elif kind < 0.13:
            other = chance.randrange(len(events))
            made.damaged.add(events[other].owner)
            events[at].content, events[other].content = events[other].content, events[at].content
        elif kind < 0.18:
            event = events[at].content
            made.is_unseen |= event[4] == TABLE_MAP  # the very bytes of one that is known
            events[at].content = event[:4] + bytes([chance.choice(made.corpus.kinds)]) + event[5:]
        else:
            made.is_unseen |= events[at].content[-10:-4] == BEGIN_TAIL
            events[at].content = _damaged(events[at].content, chance)


def _damaged(event: bytes, chance: random.Random) -> bytes:
    head, body = event[:19], event[19:-4]
    if event[4] == _PAYLOAD and chance.random() < 0.7:
        try:
            body = _repacked(body, chance)
        except (zstandard.ZstdError, IndexError, struct.error):  # it was damaged before
            body = _bytes_changed(body, chance)
    elif event[4] in COMPRESSED and chance.random() < 0.7:
        try:
            body = _deflated_again(event[4], body, chance)
        except (zlib.error, ValueError, IndexError):
            body = _bytes_changed(body, chance)
    else:
        body = _bytes_changed(body, chance)
    return head + body + b"\0\0\0\0"


def _deflated_again(kind: int, body: bytes, chance: random.Random) -> bytes:
    """MariaDB's compressed event with what it holds damaged."""
    at = _compressed_at(kind, body, 0)
    _, start = declared(body, at, len(body))
    content = zlib.decompressobj().decompress(body[start:], _PAYLOAD_BYTES)
    length = len(content)
    if chance.random() < 0.2:
        length = chance.choice((0, 1, length + 1, 1 << 31, 0xFFFFFFFF))  # which is a lie
    else:
        content = _bytes_changed(content, chance)
        length = len(content)
    return body[:at] + b"\x84" + struct.pack(">I", length) + zlib.compress(content)


def _repacked(body: bytes, chance: random.Random) -> bytes:
    """A compressed transaction with one of its events damaged."""
    fields, packed = _payload_of(body)
    # Bounded: a frame that was damaged before may say that it holds any number of bytes.
    inner = _inner_events(zstandard.ZstdDecompressor().stream_reader(packed).read(_PAYLOAD_BYTES))
    if not inner:
        return body
    at = chance.randrange(len(inner))
    some, kind = inner[at], chance.random()
    if kind < 0.1:  # its header, which nothing mends
        inner[at] = _bytes_changed(some[:19], chance) + some[19:]
    elif kind < 0.2:
        inner[at] = some[:9] + struct.pack("<I", chance.choice(_SIZES)) + some[13:]
    elif kind < 0.9:
        some = some[:19] + _bytes_changed(some[19:], chance)
        inner[at] = some[:9] + struct.pack("<I", len(some)) + some[13:]
    raw = b"".join(inner)
    packed = zstandard.ZstdCompressor().compress(raw)
    if kind >= 0.9:  # a frame that lies about its size (RFC 8878, 3.1.1.1)
        packed = packed[:4] + b"\xe0" + struct.pack("<Q", 1 << chance.choice((8, 24, 31, 40, 60))) + packed[6:]
    return fields(len(packed), len(raw)) + packed


def _payload_of(body: bytes) -> tuple[Callable[[int, int], bytes], bytes]:
    def packed(number: int) -> bytes:
        return bytes([number]) if number < 251 else b"\xfc" + number.to_bytes(2, "little")

    def fields(payload: int, events: int) -> bytes:
        made = b""
        for kind, number in ((2, 0), (3, events), (1, payload)):
            value = packed(number)
            made += bytes([kind, len(value)]) + value
        return made + b"\0"

    at = 0
    while body[at]:
        at += 2 + body[at + 1]
    return fields, body[at + 1 :]


def _inner_events(raw: bytes) -> list[bytes]:
    events, at = [], 0
    while at < len(raw):
        size = max(19, HEAD.unpack_from(raw, at)[3])
        events.append(raw[at : at + size])
        at += size
    return events


def _bytes_changed(body: bytes, chance: random.Random) -> bytes:
    made = bytearray(body)
    kind = chance.random()
    if not made or kind < 0.1:
        return bytes(made) + chance.randbytes(chance.choice((1, 4, 100)))
    at = chance.randrange(len(made))
    if kind < 0.2:
        return bytes(made[:at]) if chance.random() < 0.8 else b""
    if kind < 0.3:
        del made[at : at + chance.choice((1, 2, 8))]
    elif kind < 0.4:
        made[at:at] = chance.randbytes(chance.choice((1, 2, 8)))
    elif kind < 0.6:
        made[at] ^= 1 << chance.randrange(8)
    elif kind < 0.85:
        made[at] = chance.choice(_BYTES)
    else:
        for _ in range(chance.choice((2, 4, 16))):
            made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def _pack(events: Sequence[_Event], made: Input, chance: random.Random) -> None:
    """Packets with positions and checksums that are right, but for a position now and then."""
    data = bytearray(_packet(_placed(made.corpus.described, 0), 0))  # as at the beginning of a dump: of no position
    made.ends.append(len(data))
    if not made.is_truth and chance.random() < 0.1:
        made.start = (1 << 32) - chance.randrange(3000)  # where the header's positions begin at 0 again
    position = made.start
    for number, event in enumerate(events):
        size = len(event.content)
        made.places.append((event.owner, position, position + size))
        position += size
        end = position
        if not made.is_wire and chance.random() < 0.005:
            end = chance.choice((0, 4, 1 << 31, 0xFFFFFFFF))
            made.damaged |= {event.owner, event.owner + 1}
            made.is_unseen |= event.content[4] in (QUERY, TABLE_MAP)
        data += _packet(_placed(event.content, end), number + 1)
        made.ends.append(len(data))
        made.has_file_events |= event.content[4] in _OF_THE_FILE
        made.has_unknown |= event.content[4] in _UNKNOWN and not event.content[17] & IGNORABLE_FLAG
    made.data = bytes(data)


def _placed(event: bytes, end: int) -> bytes:
    whole = event[:9] + struct.pack("<II", len(event), end & 0xFFFFFFFF) + event[17:-4]
    return whole + struct.pack("<I", crc32(whole))


def _packet(event: bytes, number: int) -> bytes:
    return struct.pack("<I", len(event) + 1 | (number & 0xFF) << 24) + b"\0" + event


def _damage_on_the_wire(made: Input, chance: random.Random) -> None:
    made.clean = made.data
    data = bytearray(made.data)
    at = chance.randrange(made.ends[0], len(data))
    kind = chance.random()
    if kind < 0.6:
        data[at] ^= 1 << chance.randrange(8)
    elif kind < 0.8:
        data[at] = chance.choice(_BYTES)
    elif kind < 0.9:
        for _ in range(4):
            data[chance.randrange(made.ends[0], len(data))] = chance.randrange(256)
    elif kind < 0.95:
        lost = range(at, at + chance.choice((1, 2, 30)))
        # A packet that is lost whole leaves no trace in those behind it; TCP loses none.
        if not (at in made.ends and lost.stop in made.ends):
            del data[lost.start : lost.stop]
    else:
        del data[at:]
    made.data = bytes(data)


# --- What comes of an input ---


class FuzzFault(Exception):
    """Something that a parser may not do."""


class Walk(Dispatcher):
    """A walk whose rows are decoded in two ways; remembers how often the quick one was taken."""

    runs_taken = runs_left = transactions_taken = 0  # over all walks
    # Of table maps as the server wrote them, for all walks.
    readers: ClassVar[dict[tuple[bytes, str, object], TableReader]] = {}
    learns = False  # such ones

    def __init__(self, wanted: Wanted, **options: Any) -> None:
        super().__init__(wanted, **options)
        self._common.take = self._counted(self._common.take)  # type: ignore[method-assign]
        self._tables.__class__ = _ReadersThatDecodeTwice

    def _counted(self, take: Callable[[bytearray, int, int], int]) -> Callable[[bytearray, int, int], int]:
        def counted(buffer: bytearray, p: int, filled: int) -> int:
            before = len(self._place.new_gtids)
            end = take(buffer, p, filled)
            if end == p:
                Walk.runs_left += 1
            else:
                Walk.runs_taken += 1
                Walk.transactions_taken += (len(self._place.new_gtids) - before) // GTID_BYTES
            return end

        return counted


class _ReadersThatDecodeTwice(TableReaders):
    @property
    def compile(self) -> Callable[..., TableReader]:  # type: ignore[override]
        return partial(_compiled, self.__dict__["compile"])

    @compile.setter
    def compile(self, compiler: Callable[..., TableReader]) -> None:
        self.__dict__["compile"] = compiler


def _compiled(compiler: Callable[..., TableReader], body: bytes, followed: Followed, *part: Part | None) -> TableReader:
    key = (body, followed.table.full_name, compiler)
    reader = Walk.readers.get(key)
    if reader is None or reader.followed is not followed:
        reader = compiler(body, followed, *part)
        reader.decode = partial(_decode_twice, reader.decoder, set())
        if Walk.learns:
            Walk.readers[key] = reader
    return reader


def _decode_twice(decoder: Decoder, known: set[bytes], buffer: Buffer, start: int, end: int) -> list[Row]:
    """The rows, which the other code that is generated for this table must give too."""
    if (content := bytes(buffer[start:end])) in known:
        return decoder.decode(buffer, start, end)
    try:
        rows = decoder.decode(buffer, start, end)
    except TableUnreadableError:
        try:
            decoder.decode_carefully(buffer, start, end)
        except TableUnreadableError:
            raise
        raise FuzzFault("rows that cannot be read can be read carefully") from None
    except UnicodeDecodeError:
        careful = decoder.decode_carefully(buffer, start, end)
        if not any(isinstance(value, Unreadable) for row in careful for value in row):
            raise FuzzFault("of a text that is invalid nothing is unreadable") from None
        raise
    if repr(decoder.decode_carefully(buffer, start, end)) != repr(rows):
        raise FuzzFault("decode and decode_carefully differ")
    if len(known) < _KNOWN:
        known.add(content)
    return rows


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a walk gave."""

    rows: dict[Key, list[tuple[int, int, str]]]  # by table: kind, version, rows
    halts: set[Key]
    others: str  # what else was told, where nothing was refused
    refused: int  # rows with invalid texts
    error: str
    walked: int  # bytes

    @property
    def row_count(self) -> int:
        return sum(map(len, self.rows.values()))


def dispatcher(corpus: Corpus, spool_bytes: int, start: int = _START) -> Walk:
    wanted = Wanted(
        followed=corpus.followed,
        watermark=_watermark_table(OWN),
        own_schemas=frozenset({OWN}),
        spool_bytes=spool_bytes,
        max_event_bytes=1 << 20,
    )
    after = BinlogPosition(epoch=1, file=_FILE, end=start, start=start)
    return Walk(wanted, after=after, has_checksums=True)


def feed(made: Input, data: bytes, spool_bytes: int, ends: Sequence[int] = ()) -> Outcome:
    """Read an input, or other bytes in its place, as a whole or in pieces that end there."""
    walker = dispatcher(made.corpus, spool_bytes, made.start)
    buffer = bytearray(data + bytes(64))
    batches: list[Batch] = []
    at, error = 0, ""
    try:
        for end in ends or (len(data),):
            is_stopped = True
            while is_stopped:
                at = walker.consume(buffer, at, end)
                is_stopped = walker.is_stopped
                some = list(walker.batches())
                if ends:
                    _must_be_of_one_transaction(some)
                batches += some
    except ViewtailError as failure:
        error = f"{type(failure).__name__}: {failure}"
    return _outcome(batches, error, at)


def _must_be_of_one_transaction(batches: Sequence[Batch]) -> None:
    """Event by event a batch is what one commit committed: nothing of it may stand before where that begins."""
    for batch in batches:
        if batch.end is not None and batch.end.file == _FILE:
            first = _BASE + (batch.end.start >> 4)
            if any(change.version < first for change in batch.changes):
                raise FuzzFault("rows come with the commit of another transaction")


def _outcome(batches: Sequence[Batch], error: str, walked: int) -> Outcome:
    rows: dict[Key, list[tuple[int, int, str]]] = {}
    for batch in batches:
        for followed, kind, version, some, *_ in batch.changes:
            if kind == UPDATE and len(some) % 2:
                raise FuzzFault("an update of an odd number of rows")
            # repr tells -0.0 from 0.0, and NaN equals itself
            rows.setdefault(_key(followed), []).append((kind, version, repr(some)))
        for mark in batch.watermarks:
            rows.setdefault((OWN, "watermark"), []).append((0, mark.version, mark.token))
    end = batches[-1].end if batches else None
    counts = [
        sum(batch.row_count for batch in batches),
        sum(batch.byte_count for batch in batches),
        sum(batch.end is None for batch in batches),
        sum(len(batch.table_changes) for batch in batches),
    ]
    return Outcome(
        rows=rows,
        halts={_key(halt.followed) for batch in batches for halt in batch.halts},
        # The set that was seen is told in more than one way.
        others=f"{replace(end, gtid_base='')} {end.seen if end.gtid_base else ''} {counts}" if end else "",
        refused=sum(len(batch.refused) for batch in batches),
        error=error,
        walked=walked,
    )


def _key(followed: Followed) -> Key:
    return followed.table.schema, followed.table.name


# --- What may come of it ---


class Truth:
    """What the corpus's own transactions come to; that it is what the server answers is seen here."""

    def __init__(self, corpus: Corpus) -> None:
        whole = _undamaged(corpus, range(len(corpus.transactions)))
        found = feed(whole, whole.data, 1 << 20)
        if found.error or found.halts or found.refused or found.walked != len(whole.data):
            raise FuzzFault(f"{corpus.name}: a server's own events: {found.error or found.halts or found}")
        self.rows = _by_owner(found, whole)
        # The rows of an XA transaction are those of another one.
        self.is_alone = [not any(b"XA COMMIT" in event for event in transaction) for transaction in corpus.transactions]
        for key, rows in corpus.rows.items():
            held = _held(corpus, key)
            if sorted(map(repr, rows)) != sorted(map(repr, held)):
                raise FuzzFault(f"{corpus.name}: the rows of {key} are not those that the server answers")


def truths_of(sources: Sequence[Corpus]) -> dict[str, Truth]:
    """By the corpus' name; what was counted and kept of walks is forgotten."""
    Walk.readers, Walk.learns = {}, True
    found = {corpus.name: Truth(corpus) for corpus in sources}
    Walk.learns = False
    Walk.runs_taken = Walk.runs_left = Walk.transactions_taken = 0
    return found


def _undamaged(corpus: Corpus, chosen: range) -> Input:
    made = Input(corpus=corpus, data=b"", transactions=chosen, is_wire=True, is_truth=True)
    events = [_Event(at, event) for at, number in enumerate(chosen) for event in corpus.transactions[number]]
    _pack(events, made, random.Random(1))
    return made


def _by_owner(found: Outcome, made: Input) -> list[list[tuple[Key, int, str]]]:
    """The changes of each transaction of the input, a table behind the other; a version tells whose one is."""
    seen: list[list[tuple[Key, int, str]]] = [[] for _ in made.transactions]
    last_places = [(end >> 4, owner) for owner, _, end in made.places]
    for key in sorted(found.rows):
        for kind, version, rows in found.rows[key]:
            at = min(bisect_left(last_places, (version - _BASE, -1)), len(last_places) - 1)
            if (owner := last_places[at][1]) >= 0:
                seen[owner].append((key, kind, rows))
    return seen


def _held(corpus: Corpus, key: Key) -> list[Row]:
    """What a table holds that was empty, behind all that the server wrote."""
    data = _undamaged(corpus, range(corpus.written)).data
    walker, held = dispatcher(corpus, 1 << 20), dict[Any, Row]()
    walker.consume(bytearray(data + bytes(64)), 0, len(data))
    for batch in walker.batches():
        for followed, kind, _, rows, *_ in batch.changes:
            if _key(followed) == key:
                _apply(held, followed, kind, rows)
    return list(held.values())


def _apply(held: dict[Any, Row], followed: Followed, kind: int, rows: Sequence[Row]) -> None:
    at = [followed.columns.index(name) for name in followed.table.primary_key]
    gone, come = {INSERT: ([], rows), UPDATE: (rows[::2], rows[1::2]), DELETE: (rows, [])}[kind]
    for row in gone:
        held.pop(tuple(row[place] for place in at), None)
    for row in come:
        held[tuple(row[place] for place in at)] = row


def judge(made: Input, truth: Truth, spool_bytes: int) -> Outcome:
    """Read an input; raises FuzzFault when what comes of it may not be, and whatever else a walk raises."""
    found = feed(made, made.data, spool_bytes)
    (_judge_wire if made.is_wire else _judge_mended)(made, truth, found, spool_bytes)
    return found


def _judge_mended(made: Input, truth: Truth, found: Outcome, spool_bytes: int) -> None:
    """Nothing is left unread, all ways of reading agree, and what is not damaged comes as it is."""
    if not found.error and found.walked != len(made.data):
        raise FuzzFault(f"{len(made.data) - found.walked} bytes are left unread, without an error")
    if made.has_unknown and not made.is_unseen and not found.error:
        raise FuzzFault("an event of an unknown type is skipped")
    if not made.is_unseen:
        by_event = feed(made, made.data, spool_bytes, made.ends)
        # What was committed is looked at later in one of them, so a wrong GTID there gives way to another error.
        if found.error != by_event.error and not (found.error and "has a GTID that no" in by_event.error):
            raise FuzzFault(f"as a whole: {found.error or 'rows'}; event by event: {by_event.error or 'rows'}")
        _must_be_equal(found, by_event, "as a whole, and event by event")
    if found.error or found.halts or found.refused or made.has_file_events:
        return
    seen = _by_owner(found, made)
    for owner, number in enumerate(made.transactions):
        if owner not in made.damaged and truth.is_alone[number] and seen[owner] != truth.rows[number]:
            raise FuzzFault(f"transaction {owner} of the input is not damaged, and its rows are others")


def _judge_wire(made: Input, truth: Truth, found: Outcome, spool_bytes: int) -> None:
    """Rows are true ones, and an error is one behind which they are read again; no view halts."""
    clean = feed(made, made.clean, spool_bytes)
    if found.error and not found.error.startswith(_READ_AGAIN):
        raise FuzzFault(f"bytes that were harmed on the wire are no reason to stop: {found.error}")
    if not found.halts <= clean.halts or found.refused > clean.refused:
        raise FuzzFault(f"bytes that were harmed on the wire halt {found.halts}")
    for key, rows in found.rows.items():
        if rows != clean.rows.get(key, [])[: len(rows)]:
            raise FuzzFault(f"rows of {key} that were harmed on the wire come as true ones")
    if not found.error and found.walked == len(made.clean) == len(made.data):
        _must_be_equal(found, clean, "harmed on the wire, and as it was")


def _must_be_equal(one: Outcome, other: Outcome, what: str) -> None:
    halted = one.halts | other.halts
    if not one.error and not halted:
        if (one.rows, one.others, one.refused) != (other.rows, other.others, other.refused):
            raise FuzzFault(f"{what}: it comes to different rows or ends")
        return
    for key, rows in one.rows.items():  # what came with the error is not delivered
        if rows != other.rows.get(key, [])[: len(rows)]:
            raise FuzzFault(f"{what}: rows of {key} differ")


# --- Runs ---


class Hang(BaseException):
    """An input took longer than it may: not an Exception, so that nothing in viewtail catches it."""


def _hangs(_signal: int, _frame: FrameType | None) -> None:
    raise Hang


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """One input that asks for very much gets a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Memory:
    """What is kept from input to input, in bytes and in Python's own blocks."""

    def __init__(self, inputs: int) -> None:
        self._settled = min(inputs // 5, 20_000)  # caches and memos have their size by then
        self._resident = self._blocks = 0

    def grown(self, done: int) -> str:
        """What is wrong after so many inputs."""
        if done < self._settled:
            return ""
        if done == self._settled:
            self._note()
        if done % 100 == 0 and _resident_bytes() > self._resident + GROWTH_BYTES:
            self._note()
            return f"it, or one of the 100 before it: memory grew by {GROWTH_BYTES >> 20} MiB"
        return ""

    def kept(self, done: int) -> str:
        """What is wrong at the end."""
        gc.collect()
        kept = (sys.getallocatedblocks() - self._blocks) / max(1, done - self._settled)
        return f"memory: {kept:.2f} blocks are kept of each input" if kept > BLOCKS_AN_INPUT else ""

    def _note(self) -> None:
        gc.collect()
        self._resident, self._blocks = _resident_bytes(), sys.getallocatedblocks()


def fuzz(
    sources: Sequence[Corpus], seed: int, numbers: range, show: Callable[[str], None] = lambda _: None
) -> Iterator[str]:
    """Run these inputs; gives what was wrong with some of them, and at the end with all."""
    mutator, memory = Mutator(sources, seed), Memory(len(numbers))
    handler = signal.signal(signal.SIGPROF, _hangs)
    refused = rows = 0
    began = time.monotonic()
    try:
        truths = truths_of(sources)
        with _bounded_memory():
            for done, number in enumerate(numbers):
                made = mutator.input(number)
                signal.setitimer(signal.ITIMER_PROF, SLOWEST_S)
                try:
                    found = judge(made, truths[made.corpus.name], spool_of(number))
                    refused += bool(found.error)
                    rows += found.row_count
                    fault = ""
                except Exception as error:  # the very thing that is looked for
                    fault = f"{type(error).__name__}: {error}"
                except Hang:
                    fault = f"took more than {SLOWEST_S} s"
                finally:
                    signal.setitimer(signal.ITIMER_PROF, 0)
                if fault := fault or memory.grown(done):
                    yield f"input {number}: {fault}"
                if done % 25_000 == 24_999:
                    rate = (done + 1) / (time.monotonic() - began)
                    show(f"up to {number:,}: {rate:,.0f}/s, {refused:,} refused, {rows:,} row events")
        if kept := memory.kept(len(numbers)):
            yield kept
    except FuzzFault as fault_of_all:
        yield str(fault_of_all)
    finally:
        signal.signal(signal.SIGPROF, handler)
    show(
        f"{len(numbers):,} inputs: {refused:,} refused, {rows:,} row events; {Walk.transactions_taken:,} transactions "
        f"in {Walk.runs_taken:,} quick runs, {Walk.runs_left:,} left to the general walk"
    )


def spool_of(number: int) -> int:
    """The memory bound under which an input is read."""
    return 600 if number % 3 == 0 else 1 << 20


def _resident_bytes() -> int:
    """What is kept, not the most that ever was: that may be from before."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def long_walk(corpus: Corpus, rounds: int) -> float:
    """The server's transactions again and again through one walk: how many blocks of memory are kept of each round."""
    walker = dispatcher(corpus, 2000)
    position, settled, blocks = _START, rounds // 3, 0
    described = _packet(_placed(corpus.described, 0), 0)
    walker.consume(bytearray(described + bytes(64)), 0, len(described))
    for done in range(rounds):
        if done == settled:
            gc.collect()
            blocks = sys.getallocatedblocks()
        for transaction in corpus.transactions[: corpus.written]:
            data = bytearray()
            for event in transaction:
                position += len(event)
                data += _packet(_placed(event, position), 0)
            at, is_stopped, size = 0, True, len(data)
            while is_stopped:
                at = walker.consume(data + bytes(64), at, size)
                is_stopped = walker.is_stopped
                for batch in walker.batches():
                    if batch.halts:
                        raise FuzzFault(f"a server's own events: {batch.halts[0].reason}")
    gc.collect()
    return (sys.getallocatedblocks() - blocks) / (rounds - settled)


def _run(sources: Sequence[Corpus], seed: int, numbers: range) -> list[str]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    return list(fuzz(sources, seed, numbers, partial(print, flush=True)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=int, help="run one input, and show what it comes to")
    arguments = parser.parse_args()
    sources = corpora()
    if arguments.only is not None:
        made = Mutator(sources, arguments.seed).input(arguments.only)
        found = judge(made, truths_of(sources)[made.corpus.name], spool_of(arguments.only))
        print(found.error or f"{found.row_count} row events", sorted(found.halts))
        return 0
    last, count = arguments.first + arguments.inputs, arguments.processes
    step = -(-arguments.inputs // count)
    pieces = [range(at, min(at + step, last)) for at in range(arguments.first, last, step)]
    with multiprocessing.get_context("fork").Pool(count) as pool:
        found = pool.map(partial(_run, sources, arguments.seed), pieces)
    faults = [fault for piece in found for fault in piece]
    print(f"{arguments.inputs:,} inputs, seed {arguments.seed}: {len(faults)} faults", *faults[:50], sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
