"""MariaDB's events made by hand: what no server can be asked to write, and forms that must be told apart."""

from __future__ import annotations

import struct
import zlib

import pytest

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.mariadb_types import uncompressed
from ingest.binlog.source import _watermark_table
from ingest.binlog.table_readers import Wanted
from tests.support.events import Stream, user_table
from viewtail.changes.batches import Batch, Followed
from viewtail.changes.binary_texts import inet6_text
from viewtail.changes.errors import SourceError

FILE = "binlog.000012"
V1 = 7  # a row event's type, less this, is that of its first version


class MariaDB(Stream):
    """A stream of MariaDB's events."""

    def begin(self, number: int, flags: int = 0x0C, more: bytes = bytes(6)) -> None:
        self.event(162, struct.pack("<QIB", number, 3, flags) + more)

    def rows_v1(self, kind: int, rows: list[tuple[int, bytes]], head: bytes = b"\x02\x03") -> bytes:
        body = struct.pack("<IHH", 7, 0, 1) + head + (head[1:] if kind == 31 else b"")
        for number, name in rows:
            body += b"\0" + struct.pack("<q", number) + bytes([len(name)]) + name
        return body

    def compressed(self, kind: int, body: bytes, at: int, length: int | None = None) -> None:
        head = b"\x84" + struct.pack(">I", len(body) - at if length is None else length)
        self.event(kind, body[:at] + head + zlib.compress(body[at:]))


def walk(stream: Stream, max_event_bytes: int = 1 << 20, spool_bytes: int = 1 << 20) -> list[Batch]:
    dispatcher = Dispatcher(
        Wanted(
            followed={("shop", "user"): Followed(user_table(), ("id", "name"))},
            watermark=_watermark_table("viewtail"),
            own_schemas=frozenset({"viewtail"}),
            spool_bytes=spool_bytes,
            max_event_bytes=max_event_bytes,
        ),
        after=BinlogPosition(epoch=1, file=FILE, end=4, start=4),
        has_checksums=True,
    )
    described = struct.pack("<H50sIB", 4, b"10.11.18-MariaDB", 0, 19) + bytes(171) + b"\1"
    # Its position means nothing, as that of any event made up at the beginning of a dump.
    stream.data[:0] = Stream().event(15, described, position=0)
    batches, at, is_stopped = [], 0, True
    while is_stopped:
        at = dispatcher.consume(stream.data, at, len(stream.data))
        is_stopped = dispatcher.is_stopped
        batches += list(dispatcher.batches())
    assert at == len(stream.data)
    return batches


def rows_of(batches: list[Batch]) -> list[tuple[int, tuple[int, str]]]:
    return [(change.kind, row) for batch in batches for change in batch.changes for row in change.rows]


@pytest.mark.parametrize("spool_bytes", [1 << 20, 1])
def test_compressed_rows_of_either_version_are_those_of_the_plain_event(spool_bytes: int) -> None:
    stream = MariaDB()
    stream.begin(1)
    stream.table_map()
    stream.event(23, stream.rows_v1(30, [(1, b"plain")]))
    stream.compressed(166, stream.rows_v1(30, [(2, b"first"), (3, b"x")]), 10)
    body = stream.rows_v1(30, [(4, b"second")])
    stream.compressed(169, body[:8] + b"\x02\x00" + body[8:], 12)
    stream.compressed(167, stream.rows_v1(31, [(4, b"second"), (4, b"third")]), 11)
    stream.compressed(168, stream.rows_v1(32, [(2, b"first")]), 10)
    stream.commit()
    batches = walk(stream, spool_bytes=spool_bytes)
    assert rows_of(batches) == [
        (0, (1, "plain")), (0, (2, "first")), (0, (3, "x")), (0, (4, "second")),
        (1, (4, "second")), (1, (4, "third")), (2, (2, "first")),
    ]  # fmt: skip
    assert batches[-1].end is not None
    assert (batches[-1].end.gtid, batches[-1].end.end) == ("3-1-1", stream.position)
    versions = [change.version for batch in batches for change in batch.changes]
    assert versions == sorted(set(versions))


@pytest.mark.parametrize(
    ("start", "length", "why"),
    [
        (b"\x84\0\0\0\x05", None, "shorter or longer"),
        (b"\x84\0\0\0\xff", None, "shorter or longer"),
        (b"\x94\0\0\0\x09", None, "first byte is 0x94"),
        (b"\x80", None, "first byte is 0x80"),
        (b"\x87", 0, "first byte"),
        (b"", 0, "cannot be decompressed"),
    ],
)
def test_a_compressed_event_that_is_not_what_it_says_stops_the_stream(
    start: bytes, length: int | None, why: str
) -> None:
    stream = MariaDB()
    stream.begin(1)
    stream.table_map()
    body = stream.rows_v1(30, [(1, b"name")])
    stream.event(166, body[:10] + start + zlib.compress(body[10:])[:length])
    with pytest.raises(SourceError, match=why):
        walk(stream)


def test_an_event_that_is_too_large_once_decompressed_halts_its_table() -> None:
    stream = MariaDB()
    stream.begin(1)
    stream.table_map()
    body = stream.rows_v1(30, [(number, b"x" * 200) for number in range(100)])
    stream.compressed(166, body, 10)
    stream.commit()
    (batch,) = walk(stream, max_event_bytes=5000)
    assert "run.max_event_bytes" in batch.halts[0].reason and rows_of([batch]) == []


def test_a_compressed_statement_is_judged_like_a_plain_one() -> None:
    stream = MariaDB()
    stream.begin(1, 0x29)
    body = struct.pack("<IIBHH", 1, 0, 4, 0, 0) + b"shop\0DROP TABLE user"
    stream.compressed(165, body, 13 + 5)
    stream.begin(2)
    stream.table_map()
    stream.event(23, stream.rows_v1(30, [(1, b"name")]))
    stream.commit()
    batches = walk(stream)
    (halt,) = [halt for batch in batches for halt in batch.halts]
    assert "DROP" in halt.reason and rows_of(batches) == []


@pytest.mark.parametrize("extra", [b"\x02", b"\x08" + bytes(8)], ids=["start", "rollback"])
@pytest.mark.parametrize("group", [b"", bytes(8)])
def test_an_alter_that_is_begun_or_rolled_back_changes_nothing(extra: bytes, group: bytes) -> None:
    stream = MariaDB()
    stream.begin(1, 0x29 | (2 if group else 0), group + extra)
    stream.query("ALTER TABLE shop.user DROP COLUMN name")
    assert not [halt for batch in walk(stream) for halt in batch.halts]
    stream = MariaDB()
    stream.begin(1, 0x29 | (2 if group else 0), group + b"\x04" + bytes(8))
    stream.query("ALTER TABLE shop.user DROP COLUMN name")
    assert len([halt for batch in walk(stream) for halt in batch.halts]) == 1


def test_what_says_how_a_file_is_encrypted_is_read_on_from() -> None:
    stream = MariaDB()
    stream.event(164, bytes(17))
    stream.begin(1)
    stream.table_map()
    stream.event(23, stream.rows_v1(30, [(1, b"one")]))
    stream.commit()
    assert rows_of(walk(stream)) == [(0, (1, "one"))]


def test_a_value_of_a_compressed_column_must_be_what_it_says() -> None:
    raw = zlib.compressobj(wbits=-15)
    packed = raw.compress(b"some text") + raw.flush()
    assert uncompressed(b"\x89\x09" + packed) == b"some text"
    assert uncompressed(b"\x82\x00\x09" + zlib.compress(b"some text")) == b"some text"
    assert (uncompressed(b""), uncompressed(b"\0plain")) == (b"", b"plain")
    for wrong in (
        b"\x89\x08" + packed,
        b"\x89\x0a" + packed,
        b"\x99\x09" + packed,
        b"\x89",
        b"\x81\x09" + packed,
    ):
        with pytest.raises(IndexError):
            uncompressed(wrong)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("0 0 0 0 0 0 0 0", "::"),
        ("0 0 0 0 0 0 0 1", "::1"),
        ("1 0 0 0 0 0 0 0", "1::"),
        ("1 0 2 3 4 5 6 7", "1::2:3:4:5:6:7"),
        ("1 0 0 2 0 0 0 3", "1:0:0:2::3"),
        ("0 0 1 0 0 2 3 4", "::1:0:0:2:3:4"),
        ("0 0 0 0 0 0 102 304", "::1.2.3.4"),
        ("0 0 0 0 0 ffff 102 304", "::ffff:1.2.3.4"),
        ("1 2 3 4 5 6 7 8", "1:2:3:4:5:6:7:8"),
    ],
)
def test_an_inet6_is_shown_as_the_server_does(words: str, shown: str) -> None:
    raw = b"".join(int(word, 16).to_bytes(2, "big") for word in words.split())
    assert inet6_text(raw) == shown


@pytest.mark.parametrize("kind", [34, 42, 159, 172, 200, 255])
def test_a_type_that_mariadb_has_not_stops_the_stream(kind: int) -> None:
    stream = MariaDB()
    stream.event(kind, bytes(30))
    with pytest.raises(SourceError, match="one viewtail cannot read"):
        walk(stream)
