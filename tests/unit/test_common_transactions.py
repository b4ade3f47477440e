"""The walk that takes in whole transactions of the usual shape gives what the walk event by event gives."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from uuid import UUID
from zlib import crc32

import pytest

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.source import _watermark_table
from ingest.binlog.table_readers import Wanted
from ingest.binlog.transaction_layouts import Openings
from tests.support.events import SOURCE_ID, Stream, user_table
from viewtail.changes.batches import Batch, Followed
from viewtail.changes.errors import ViewtailError

WRITE, UPDATE, DELETE = 30, 31, 32
ALL_AT_ONCE = 1 << 30
BASE = f"{UUID(bytes=SOURCE_ID)}:900-999"


def dispatcher(start: int) -> Dispatcher:
    return Dispatcher(
        Wanted(
            followed={("shop", "user"): Followed(user_table(), ("id", "name"))},
            watermark=_watermark_table("viewtail"),
            own_schemas=frozenset({"viewtail"}),
            spool_bytes=300,
            max_event_bytes=1 << 20,
        ),
        after=BinlogPosition(epoch=1, file="binlog.000012", end=start, start=start, gtid_base=BASE),
        has_checksums=True,
    )


def walk(data: bytes, piece: int, into: list[Batch]) -> None:
    """Feed the bytes in pieces; what was delivered before an error is in `into` too."""
    walker, buffer, filled = dispatcher(_first_position(data)), bytearray(len(data) + 64), 0
    for at in range(0, len(data), piece):
        some = data[at : at + piece]
        buffer[filled : filled + len(some)] = some
        filled += len(some)
        done, before = 0, -1
        while done != before:
            before, done = done, walker.consume(buffer, done, filled)
            into += walker.batches()
        buffer[: filled - done] = buffer[done:filled]
        filled -= done


def _first_position(data: bytes) -> int:
    size, end = struct.unpack_from("<II", data, 14)
    return int(end - size)


def told(batches: list[Batch]) -> tuple[list[object], str, list[int]]:
    """Rows with versions, where it ended and what was seen there, how much of what."""
    rows = [(kind, version, rows) for batch in batches for _, kind, version, rows, *_ in batch.changes]
    end = batches[-1].end if batches else None
    return (
        list(rows),
        end.to_text() if end else "",
        [
            sum(batch.row_count for batch in batches),
            sum(batch.byte_count for batch in batches),
            sum(batch.end is None for batch in batches),  # pieces of large transactions
            sum(len(batch.table_changes) + len(batch.refused) + len(batch.halts) for batch in batches),
        ],
    )


def _usual(stream: Stream, number: int, by: random.Random) -> None:
    name = b"x" * by.randrange(40) if by.random() < 0.9 else None
    kind = by.choice((WRITE, WRITE, UPDATE, DELETE))
    rows = [(number, name)] * by.choice((1, 2, 4))
    stream.transaction(number, rows * 2 if kind == UPDATE else rows, kind)


def _of_another_schema(stream: Stream, number: int, by: random.Random) -> None:
    stream.gtid(number)
    stream.query("BEGIN", database=by.choice(("shop", "a_longer_name", "")), sql_mode=by.choice((None, 8)))
    stream.table_map()
    stream.rows(WRITE, [(number, b"other session")])
    stream.commit()


def _of_two_tables(stream: Stream, number: int, by: random.Random) -> None:
    stream.gtid(number)
    stream.query("BEGIN")
    for table_id, name in by.sample([(7, "user"), (8, "stranger")], 2):
        stream.table_map(table_id=table_id, name=name)
        stream.rows(WRITE, [(number, b"two")], table_id=table_id)
    stream.commit()


def _of_strangers(stream: Stream, number: int, _: random.Random) -> None:
    stream.gtid(number)
    stream.query("BEGIN")
    stream.table_map(table_id=8, name="stranger")
    stream.rows(WRITE, [(number, b"nobody's")], table_id=8)
    stream.commit()


def _rolled_back(stream: Stream, number: int, _: random.Random) -> None:
    stream.gtid(number)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(WRITE, [(number, b"never")])
    stream.query("ROLLBACK")


def _of_a_new_table_map(stream: Stream, number: int, by: random.Random) -> None:
    stream.gtid(number)
    stream.query("BEGIN")
    stream.table_map(table_id=by.choice((7, 9)))
    stream.rows(WRITE, [(number, b"map")], table_id=9)  # whose map is another, or of an earlier transaction
    stream.commit()


def _large(stream: Stream, number: int, _: random.Random) -> None:
    stream.transaction(number, [(number, b"x" * 40)] * 20)


def _invalid_text(stream: Stream, number: int, _: random.Random) -> None:
    stream.transaction(number, [(number, b"\xff")])


def _statement(stream: Stream, number: int, _: random.Random) -> None:
    stream.gtid(number)
    stream.query("CREATE TABLE other (id INT)")


def _of_a_partial_image(stream: Stream, number: int, _: random.Random) -> None:
    stream.gtid(number)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(UPDATE, [(number, b"a"), (number, b"b")], second=0xFD)
    stream.commit()


def _of_an_unknown_end(stream: Stream, number: int, _: random.Random) -> None:
    stream.gtid(number)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(WRITE, [(number, b"end")])
    stream.event(99, bytes(8))  # as long as a commit


def _of_a_partial_update(stream: Stream, number: int, _: random.Random) -> None:
    stream.gtid(number)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(39, [(number, b"partial")])
    stream.commit()


def _anonymous(stream: Stream, number: int, _: random.Random) -> None:
    at = len(stream.data) + 9
    stream.transaction(number, [(number, b"anonymous")])
    length = int.from_bytes(stream.data[at + 5 : at + 9], "little")
    stream.data[at] = 34
    stream.data[at + length - 8 : at + length - 4] = crc32(stream.data[at - 4 : at + length - 8]).to_bytes(4, "little")


def _sent_twice(stream: Stream, number: int, by: random.Random) -> None:
    before = len(stream.data)
    _usual(stream, number, by)
    stream.data += stream.data[before:]


def _of_another_statement(stream: Stream, number: int, _: random.Random) -> None:
    """As long as a BEGIN whose schema's name is longer."""
    for statement, database in (("BEGIN", "twelveletter"), ("TRUNCATE user", "shop")):
        stream.gtid(number)
        stream.query(statement, database=database)
        stream.table_map()
        stream.rows(WRITE, [(number, b"statement")])
        stream.commit()


SHAPES: list[Callable[[Stream, int, random.Random], None]] = [
    _of_another_schema,
    _of_two_tables,
    _of_strangers,
    _rolled_back,
    _large,
    _invalid_text,
    _statement,
    _of_another_statement,
]


FATAL = [
    _of_a_new_table_map,
    _of_a_partial_update,
    _of_a_partial_image,
    _of_an_unknown_end,
    _anonymous,
    _sent_twice,
]


def made(by: random.Random, shapes: list[Callable[[Stream, int, random.Random], None]]) -> Stream:
    # Half of them pass 4 GiB, where positions begin at 0 again.
    stream = Stream(by.choice((4, (1 << 32) - by.randrange(5000))))
    for number in range(1, 40):
        (_usual if by.random() < 0.7 else by.choice(shapes))(stream, number, by)
    return stream


def outcome(data: bytes, piece: int) -> tuple[list[Batch], str]:
    batches: list[Batch] = []
    try:
        walk(data, piece, batches)
    except ViewtailError as error:
        return batches, f"{type(error).__name__}: {error}"
    return batches, ""


@pytest.mark.parametrize("seed", range(40))
def test_whole_transactions_are_read_as_event_by_event(seed: int) -> None:
    by = random.Random(seed)
    data = bytes(made(by, SHAPES if seed % 2 else [*SHAPES, *FATAL]).data)
    by_event, reason = outcome(data, 1)
    for piece in (ALL_AT_ONCE, 5000, 613):
        batches, found = outcome(data, piece)
        assert found == reason, f"pieces of {piece}"
        if reason or any(batch.halts for batch in batches):  # what came with that is not delivered
            rows = told(batches)[0]
            assert rows == told(by_event)[0][: len(rows)]
        else:
            assert told(batches) == told(by_event), f"pieces of {piece}"


@pytest.mark.parametrize("seed", range(40))
def test_damage_never_comes_out_as_rows(seed: int) -> None:
    """One flipped bit anywhere: all the true rows, or an error behind the first of them."""
    by = random.Random(seed)
    data = bytes(made(by, SHAPES).data)
    truth = told(outcome(data, ALL_AT_ONCE)[0])[0]
    for _ in range(40):
        damaged = bytearray(data)
        damaged[by.randrange(len(data))] ^= 1 << by.randrange(8)
        batches, reason = outcome(bytes(damaged), ALL_AT_ONCE)
        rows = told(batches)[0]
        assert rows == truth[: len(rows)]
        # A length that became larger waits for the rest of its event, which the source's own time-out ends.
        assert reason or rows == truth or len(batches) == 0 or batches[-1].end is not None


def test_one_shape_is_learned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    for number in range(1, 100):
        stream.transaction(number, [(number, b"name")])
    learned: list[int] = []
    learn = Openings.learn

    def count(self: Openings, buffer: bytearray, gtid_at: int, begin_at: int) -> None:
        learned.append(gtid_at)
        learn(self, buffer, gtid_at, begin_at)

    monkeypatch.setattr(Openings, "learn", count)
    batches, _ = outcome(bytes(stream.data), ALL_AT_ONCE)
    assert sum(batch.row_count for batch in batches) == 99
    assert learned == [0]
