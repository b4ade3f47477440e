"""A structure-aware fuzzer of the event parser: real events, mended after each mutation so that they reach it.

    python -m tests.support.fuzz [--inputs 1000000] [--seed 1]

Each input is a few transactions of a real server's binlog with some of their bytes, lengths, types or order changed;
header, checksum and compression are made right again, so that the damage is met behind them. Every input must end in an
error of viewtail's own or in rows, within a second of processor time (a hang is ended), and memory must not grow. A
failure prints the input's number:
`--seed S --only NUMBER` runs it again.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from zlib import crc32

import pymysql
import structlog
import zstandard

import stack.mysql
from changes.batches import Followed
from changes.errors import ViewtailError
from changes.positions import Position
from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.refusals import DumpEnded
from ingest.binlog.source import _watermark_table
from ingest.canonical import describe
from offsets.session import MySQLAddress, open_session
from stack import Server

SLOWEST_S = 1.0  # of processor time: the machine may have other work
GROWTH_BYTES = 64 << 20  # over all inputs
_HEAD = struct.Struct("<IBIIIH")
_PAYLOAD = 40
_PAYLOAD_BYTES = 1 << 20
_KINDS = (2, 4, 13, 15, 16, 19, 26, 30, 31, 32, 33, 35, 38, 39, 40, 42, 99, 255)
_BYTES = (0, 1, 2, 0x7F, 0x80, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF)

_STATEMENTS = (
    """CREATE TABLE fuzz.t (id INT PRIMARY KEY, n DECIMAL(20,5), j JSON, v VARCHAR(300), e ENUM('a','b'),
       s SET('x','y'), d DATETIME(3), m TIMESTAMP(6) NULL, k TIME(2), y YEAR, b BIT(12), f DOUBLE, x BINARY(5),
       w BLOB)""",
    """CREATE TABLE fuzz.c (id INT PRIMARY KEY, a VARCHAR(50) CHARACTER SET gbk, b TEXT CHARACTER SET utf16,
       c CHAR(20) CHARACTER SET sjis, d VARCHAR(20) CHARACTER SET ucs2, e ENUM('ä','č') CHARACTER SET latin2,
       f VARCHAR(20) CHARACTER SET gb18030, g SET('x','y') CHARACTER SET utf32, h VARCHAR(9) CHARACTER SET eucjpms)""",
    "CREATE TABLE fuzz.u (a VARCHAR(20), b BIGINT UNSIGNED, v VARCHAR(20) CHARACTER SET latin1, PRIMARY KEY (a, b))",
)
_ROW = (
    "({}, 1.5, '{{\"a\": [1, 2.5, null, {{\"k\": \"text\"}}], \"b\": true}}', 'some text', 'a', 'x,y', "
    "'2024-01-02 03:04:05.678', '2024-01-02 03:04:05', '-12:00:01.5', 2024, b'101', 1e10, 'ab', 'blob')"
)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Transactions as lists of whole events (header and checksum included), and how to read them."""

    transactions: Sequence[Sequence[bytes]]
    followed: dict[tuple[str, str], Followed]
    start: int


def corpus_of(server: Server) -> Corpus:
    """Write every kind of transaction into a binlog of its own, and take its events from the file."""
    connection: Any = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    with connection.cursor() as cursor:
        for statement in (
            "DROP DATABASE IF EXISTS fuzz",
            "CREATE DATABASE fuzz",
            *_STATEMENTS,
            "FLUSH BINARY LOGS",
        ):
            cursor.execute(statement)
        for compression in ("OFF", "ON"):
            cursor.execute(f"SET binlog_transaction_compression = {compression}")
            for partial in ("", "PARTIAL_JSON"):
                cursor.execute(f"SET binlog_row_value_options = '{partial}'")
                for statement in _changes(compression + partial):
                    cursor.execute(statement)
        cursor.execute("SHOW BINARY LOG STATUS")
        file = cursor.fetchone()[0]
        cursor.execute("SELECT @@datadir")
        (folder,) = cursor.fetchone()
    connection.close()
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    with open_session(address, role="source") as session:
        tables = [describe(session, "fuzz", name) for name in ("t", "u", "c")]
    followed = {
        ("fuzz", table.name): Followed(table, tuple(column.name for column in table.columns))
        for table in tables
    }
    return Corpus(_transactions(Path(folder, file).read_bytes()), followed, 4)


def _changes(name: str) -> list[str]:
    return [
        f"REPLACE INTO fuzz.t VALUES {_ROW.format(1)}, {_ROW.format(2)}, (3{', NULL' * 13})",
        "UPDATE fuzz.t SET n = n + 1, j = JSON_SET(j, '$.a[1]', 'other', '$.new', 1.25) WHERE id < 3",
        "UPDATE fuzz.t SET j = JSON_REMOVE(j, '$.b', '$.a[0]'), v = REPEAT('v', 250)",
        "REPLACE INTO fuzz.u VALUES ('ä', 18446744073709551615, 'é'), ('b', 2, NULL)",
        "REPLACE INTO fuzz.c VALUES (1, '中文', '😀é', 'かな', 'é', 'č', '😀', 'x,y', '漢字')",
        "REPLACE INTO fuzz.c VALUES (2, 'a', 'b' ,'c', 'd', 'ä', 'e', '', 'f')",
        "BEGIN", "DELETE FROM fuzz.u", "DELETE FROM fuzz.c", "SAVEPOINT s",
        f"REPLACE INTO fuzz.t VALUES {_ROW.format(4)}", "COMMIT",
        f"XA START '{name}'", f"REPLACE INTO fuzz.t VALUES {_ROW.format(5)}", f"XA END '{name}'",
        f"XA PREPARE '{name}'", f"XA COMMIT '{name}'",
        "SET SESSION gtid_next = 'AUTOMATIC:tag'", "DELETE FROM fuzz.t WHERE id = 5",
        "SET SESSION gtid_next = AUTOMATIC", "ALTER TABLE fuzz.u COMMENT 'x'",
    ]  # fmt: skip


def _transactions(data: bytes) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    at = 4
    while at < len(data):
        size = _HEAD.unpack_from(data, at)[3]
        kind = data[at + 4]
        if kind in (33, 34, 42):
            found.append([])
        if found:
            found[-1].append(data[at : at + size])
        at += size
    return found


class Mutator:
    """Makes inputs of a corpus; the nth one is the same for the same seed."""

    def __init__(self, corpus: Corpus, seed: int) -> None:
        self._corpus = corpus
        self._seed = seed

    def input(self, number: int) -> bytes:
        """Packets as a server would send them."""
        chance = random.Random(f"{self._seed}:{number}")
        first = chance.randrange(len(self._corpus.transactions))
        events = [
            event
            for transaction in self._corpus.transactions[first : first + chance.choice((1, 2, 2, 4))]
            for event in transaction
        ]
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            self._mutate(events, chance)
        return _packets(events, self._corpus.start, chance)

    def _mutate(self, events: list[bytes], chance: random.Random) -> None:
        at = chance.randrange(len(events))
        kind = chance.random()
        if kind < 0.05:
            events.insert(chance.randrange(len(events)), events[at])
        elif kind < 0.1 and len(events) > 1:
            del events[at]
        elif kind < 0.13:
            other = chance.randrange(len(events))
            events[at], events[other] = events[other], events[at]
        elif kind < 0.18:
            events[at] = events[at][:4] + bytes([chance.choice(_KINDS)]) + events[at][5:]
        else:
            events[at] = _damaged(events[at], chance)


def _damaged(event: bytes, chance: random.Random) -> bytes:
    head, body = event[:19], event[19:-4]
    if event[4] == _PAYLOAD and chance.random() < 0.7:
        try:
            body = _repacked(body, chance)
        except (zstandard.ZstdError, IndexError, struct.error):  # it was damaged before
            body = _bytes_changed(body, chance)
    else:
        body = _bytes_changed(body, chance)
    return head + body + b"\0\0\0\0"


def _repacked(body: bytes, chance: random.Random) -> bytes:
    """A compressed transaction with one of its events damaged."""
    fields, packed = _payload_of(body)
    # Bounded: a frame that was damaged before may say that it holds any number of bytes.
    inner = _inner_events(zstandard.ZstdDecompressor().stream_reader(packed).read(_PAYLOAD_BYTES))
    if not inner:
        return body
    at = chance.randrange(len(inner))
    some = inner[at][:19] + _bytes_changed(inner[at][19:], chance)
    inner[at] = some[:9] + struct.pack("<I", len(some)) + some[13:]
    raw = b"".join(inner)
    packed = zstandard.ZstdCompressor().compress(raw)
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
        size = max(19, _HEAD.unpack_from(raw, at)[3])
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
        return bytes(made[:at])
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


def _packets(events: Sequence[bytes], position: int, chance: random.Random) -> bytes:
    made = bytearray()
    for number, event in enumerate(events):
        size = len(event)
        position += size
        end = position if chance.random() < 0.98 else chance.choice((0, 4, 1 << 31, 0xFFFFFFFF))
        whole = event[:9] + struct.pack("<II", size, end) + event[17:-4]
        whole += struct.pack("<I", crc32(whole)) if chance.random() < 0.99 else b"\0\0\0\0"
        made += struct.pack("<I", size + 1 | (number & 0xFF) << 24) + b"\0" + whole
    return bytes(made)


def feed(corpus: Corpus, data: bytes, spool_bytes: int) -> int:
    """Read an input; how many rows came of it. Raises ViewtailError, as a source would."""
    walker = Dispatcher(
        followed=corpus.followed,
        watermark=_watermark_table("viewtail"),
        own_schemas=frozenset({"viewtail"}),
        after=Position(epoch=1, file="binlog.000001", end=corpus.start, start=corpus.start),
        has_checksums=True,
        spool_bytes=spool_bytes,
        max_event_bytes=1 << 20,
    )
    buffer = bytearray(data + bytes(64))
    at, is_stopped, rows = 0, True, 0
    try:
        while is_stopped:
            at = walker.consume(buffer, at, len(data))
            is_stopped = walker.is_stopped
            rows += sum(batch.row_count for batch in walker.batches())
    except DumpEnded:
        pass  # an error packet: the source tells of it
    return rows


class Hang(BaseException):
    """An input took longer than it may: not an Exception, so that nothing in viewtail catches it."""


def _hangs(_signal: int, _frame: FrameType | None) -> None:
    raise Hang


def fuzz(corpus: Corpus, seed: int, numbers: range, show: Callable[[str], None]) -> list[str]:
    """Run these inputs; what was wrong with some of them."""
    mutator = Mutator(corpus, seed)
    faults: list[str] = []
    refused = rows = 0
    most = 0
    began = time.monotonic()
    handler = signal.signal(signal.SIGPROF, _hangs)
    for number in numbers:
        data = mutator.input(number)
        signal.setitimer(signal.ITIMER_PROF, SLOWEST_S)
        try:
            rows += feed(corpus, data, spool_bytes=600 if number % 3 == 0 else 1 << 20)
        except ViewtailError:
            refused += 1
        except Exception as error:  # the very thing that is looked for
            faults.append(f"input {number}: {type(error).__name__}: {error}")
        except Hang:
            faults.append(f"input {number}: took more than {SLOWEST_S} s")
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        if number - numbers.start == min(
            len(numbers) // 10, 20_000
        ):  # caches and memos have their size by now
            most = _resident_bytes() + GROWTH_BYTES
        if most and number % 100 == 0 and _resident_bytes() > most:
            faults.append(
                f"input {number} or one of the 100 before it: memory grew by {GROWTH_BYTES >> 20} MiB"
            )
            most = _resident_bytes() + GROWTH_BYTES
        if number % 50_000 == 49_999:
            rate = (number + 1 - numbers.start) / (time.monotonic() - began)
            show(
                f"{number + 1:,} inputs, {rate:,.0f}/s, {refused:,} refused, {rows:,} rows, {len(faults)} faults"
            )
    signal.signal(signal.SIGPROF, handler)
    show(f"{len(numbers):,} inputs: {refused:,} refused, {rows:,} rows, {len(faults)} faults")
    return faults


def _resident_bytes() -> int:
    """What is kept, not the most that ever was: that may be from before."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory() as folder:
        server = stack.mysql.start(Path(folder) / "mysql")
        try:
            corpus = corpus_of(server)
        finally:
            server.stop()
    if arguments.only is not None:
        feed(
            corpus,
            Mutator(corpus, arguments.seed).input(arguments.only),
            600 if arguments.only % 3 == 0 else 1 << 20,
        )
        return 0
    faults = fuzz(corpus, arguments.seed, range(arguments.inputs), print)
    print(*faults[:50], sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
