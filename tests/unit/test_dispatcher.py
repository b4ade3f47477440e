"""What the dispatcher promises for events that a healthy server does not send, or sends once in a blue moon."""

from __future__ import annotations

import pytest

from changes.batches import Batch, Followed
from changes.errors import CorruptEventError, HistoryGoneError, SourceError
from changes.positions import Position
from changes.versions import base_version
from ingest.binlog.dispatcher import Dispatcher, DumpEnded
from ingest.binlog.source import _watermark_table
from tests.support.events import SOURCE_ID, Stream, user_table

FILE = "binlog.000012"


def dispatcher(after: Position | None = None, **options: int) -> Dispatcher:
    followed = Followed(user_table(), ("id", "name"))
    return Dispatcher(
        followed={("shop", "user"): followed},
        watermark=_watermark_table("viewtail"),
        own_schemas=frozenset({"viewtail"}),
        after=after or Position(epoch=1, file=FILE, end=4, start=4),
        has_checksums=True,
        spool_bytes=options.get("spool_bytes", 1 << 20),
        max_event_bytes=options.get("max_event_bytes", 1 << 20),
    )


def walk(walker: Dispatcher, data: bytes, piece: int | None = None) -> list[Batch]:
    """Feed the bytes, whole or in pieces, as a socket would."""
    batches: list[Batch] = []
    buffer, filled = bytearray(len(data) + 64), 0
    for at in range(0, len(data), piece or len(data)):
        some = data[at : at + (piece or len(data))]
        buffer[filled : filled + len(some)] = some
        filled += len(some)
        done, before = 0, -1
        while done != before:
            before, done = done, walker.consume(buffer, done, filled)
            batches += walker.batches()
        buffer[: filled - done] = buffer[done:filled]
        filled -= done
    return batches


def rows_of(batches: list[Batch]) -> list[tuple[int, tuple[object, ...]]]:
    return [(kind, row) for batch in batches for _, kind, _, rows in batch.changes for row in rows]


@pytest.mark.parametrize("piece", [None, 1, 7, 97, 1000])
def test_rows_are_the_same_however_the_bytes_arrive(piece: int | None) -> None:
    stream = Stream()
    for number in range(1, 40):
        stream.transaction(number, [(number, b"name %d" % number)])
    batches = walk(dispatcher(), bytes(stream.data), piece)
    assert rows_of(batches) == [(0, (number, f"name {number}")) for number in range(1, 40)]
    assert batches[-1].end is not None and batches[-1].end.end == stream.position
    assert batches[-1].end.gtid.endswith(":39")


def test_versions_rise_and_are_epoch_file_and_end_position() -> None:
    stream = Stream()
    ends = []
    for number in range(1, 200):
        stream.transaction(number, [(1, b"x")])
        ends.append(stream.position - 31)
    versions = [
        change.version for batch in walk(dispatcher(), bytes(stream.data)) for change in batch.changes
    ]
    assert versions == [base_version(1, 12) | end >> 4 for end in ends]
    assert versions == sorted(set(versions))


def test_nothing_leaves_before_its_commit() -> None:
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(30, [(1, b"one")])
    walker = dispatcher()
    assert walk(walker, bytes(stream.data)) == []
    before = len(stream.data)
    stream.commit()
    assert rows_of(walk(walker, bytes(stream.data[before:]))) == [(0, (1, "one"))]


def test_a_transaction_above_the_memory_bound_waits_in_a_file_and_loses_nothing() -> None:
    stream = Stream()
    stream.transaction(1, [(0, b"before")])
    stream.gtid(2)
    stream.query("BEGIN")
    for number in range(1, 500):
        stream.table_map()
        stream.rows(30, [(number, b"x" * 40)])
    stream.commit()
    stream.transaction(3, [(1000, b"after")])
    batches = walk(dispatcher(spool_bytes=2000), bytes(stream.data), 4096)
    assert [row[0] for _, row in rows_of(batches)] == [0, *range(1, 500), 1000]
    ends = [batch.end.gtid[-2:] for batch in batches if batch.end is not None]
    assert ends == [":1", ":2", ":3"]
    assert any(batch.end is None for batch in batches)
    versions = [change.version for batch in batches for change in batch.changes]
    assert versions == sorted(set(versions))


@pytest.mark.parametrize("event", ["GTID", "table map", "rows", "commit"])
def test_a_flipped_byte_is_found_by_its_checksum(event: str) -> None:
    stream = Stream()
    for number in range(1, 30):
        stream.transaction(number, [(number, b"name")])
    good = len(stream.data)
    stream.transaction(30, [(30, b"name")])
    starts = [good]
    for _ in range(4):
        starts.append(starts[-1] + 4 + int.from_bytes(stream.data[starts[-1] : starts[-1] + 3], "little"))
    at = starts[["GTID", "BEGIN", "table map", "rows", "commit"].index(event)]
    stream.data[at + 5 + 19 + 3] ^= 0x40
    stream.transaction(31, [(31, b"name")])
    stream.data += bytes(5000)  # so that the quick walk looks ahead
    with pytest.raises(CorruptEventError, match="checksum"):
        walk(dispatcher(), bytes(stream.data))


def test_an_unknown_event_stops_the_stream_unless_it_may_be_ignored() -> None:
    stream = Stream()
    stream.event(99, b"whatever", flags=0x80)
    stream.transaction(1, [(1, b"one")])
    assert rows_of(walk(dispatcher(), bytes(stream.data))) == [(0, (1, "one"))]
    stream = Stream()
    stream.event(99, b"whatever")
    with pytest.raises(SourceError, match="unknown type 99"):
        walk(dispatcher(), bytes(stream.data))


@pytest.mark.parametrize(
    ("kind", "name"), [(40, "TRANSACTION_PAYLOAD"), (42, "GTID_TAGGED"), (26, "INCIDENT")]
)
def test_events_that_this_version_cannot_read_stop_the_stream_by_name(kind: int, name: str) -> None:
    stream = Stream()
    stream.event(kind, bytes(60))
    with pytest.raises(SourceError, match=name):
        walk(dispatcher(), bytes(stream.data))


def test_rows_without_their_table_map_are_fatal() -> None:
    stream = Stream()
    stream.rows(30, [(1, b"one")])
    with pytest.raises(SourceError, match="no table map"):
        walk(dispatcher(), bytes(stream.data))


def test_a_table_map_of_an_earlier_transaction_does_not_serve_a_later_one() -> None:
    stream = Stream()
    stream.transaction(1, [(1, b"one")])
    stream.gtid(2)
    stream.query("BEGIN")
    stream.rows(30, [(2, b"two")])
    with pytest.raises(SourceError, match="no table map"):
        walk(dispatcher(), bytes(stream.data))


def test_positions_beyond_4_gib_are_counted_and_versions_go_on_rising() -> None:
    start = (1 << 32) - 300
    stream = Stream(start)
    stream.gtid(1)
    stream.query("BEGIN")
    for number in range(1, 20):
        stream.table_map()
        stream.rows(30, [(number, b"name")])
    stream.commit()
    batches = walk(dispatcher(Position(epoch=1, file=FILE, end=start, start=start)), bytes(stream.data))
    assert [row[0] for _, row in rows_of(batches)] == list(range(1, 20))
    versions = [change.version for batch in batches for change in batch.changes]
    assert versions == sorted(set(versions))
    assert batches[-1].end is not None
    assert (batches[-1].end.start, batches[-1].end.end) == (start, stream.position)
    assert stream.position > 1 << 32


def test_positions_that_go_back_stop_the_stream() -> None:
    stream = Stream(10_000)
    stream.transaction(1, [(1, b"one")])
    stream.position = 4
    stream.transaction(2, [(2, b"two")])
    with pytest.raises(HistoryGoneError, match="went back"):
        walk(dispatcher(Position(epoch=1, file=FILE, end=10_000, start=10_000)), bytes(stream.data))


def resumed(number: int, start: int, end: int) -> Position:
    import uuid

    return Position(epoch=1, file=FILE, end=end, start=start, gtid=f"{uuid.UUID(bytes=SOURCE_ID)}:{number}")


def test_resuming_reads_the_last_transaction_again_and_delivers_only_what_follows() -> None:
    stream = Stream()
    stream.transaction(5, [(5, b"five")])
    end = stream.position
    stream.transaction(6, [(6, b"six")])
    assert rows_of(walk(dispatcher(resumed(5, 4, end)), bytes(stream.data))) == [(0, (6, "six"))]


@pytest.mark.parametrize(("number", "longer"), [(6, 0), (5, 16), (5, -16)])
def test_a_history_that_is_not_the_one_that_was_read_is_refused(number: int, longer: int) -> None:
    stream = Stream()
    stream.transaction(5, [(5, b"five")])
    end = stream.position
    stream.transaction(6, [(6, b"six")])
    with pytest.raises(HistoryGoneError, match="not the one that was read"):
        walk(dispatcher(resumed(number, 4, end + longer)), bytes(stream.data))


def test_a_partial_row_image_halts_the_table_and_names_the_setting() -> None:
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(30, [(1, b"one")], bitmap=0xFD)
    stream.commit()
    stream.transaction(2, [(2, b"two")])
    batches = walk(dispatcher(), bytes(stream.data))
    assert rows_of(batches) == []
    (halt,) = [halt for batch in batches for halt in batch.halts]
    assert "binlog_row_image = 'FULL'" in halt.reason and "shop.user" in halt.reason


def test_invalid_text_refuses_that_row_and_no_other() -> None:
    stream = Stream()
    stream.transaction(1, [(1, b"one"), (2, b"\xff\xfe"), (3, b"three")])
    (batch,) = walk(dispatcher(), bytes(stream.data))
    assert [row[0] for _, row in rows_of([batch])] == [1, 3]
    (refused,) = batch.refused
    assert refused.rows[0][0] == 2 and "name" in refused.reason and "\\xff" not in refused.reason


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE TABLE user",
        "DROP TABLE `shop`.`user`",
        "RENAME TABLE user TO user_old",
        "ALTER TABLE user DROP PARTITION p0",
        "ALTER TABLE user EXCHANGE PARTITION p0 WITH TABLE t",
        "ALTER TABLE shop.user RENAME TO gone",
        "/* hello */ truncate user",
        "DROP DATABASE shop",
        "INSERT INTO user VALUES (1)",
        "UPDATE user SET name = 'x'",
    ],
)
def test_a_statement_that_changes_rows_without_row_events_halts_the_table(statement: str) -> None:
    stream = Stream()
    stream.transaction(1, [(1, b"one")])
    stream.gtid(2)
    stream.query(statement)
    stream.transaction(3, [(3, b"three")])
    batches = walk(dispatcher(), bytes(stream.data))
    assert len([halt for batch in batches for halt in batch.halts]) == 1
    assert batches[-1].end is not None and batches[-1].end.gtid.endswith(":3")


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE TABLE users",
        "DROP TABLE other.user",
        "ALTER TABLE user ADD COLUMN age INT",
        "CREATE INDEX i ON user (name)",
        "GRANT SELECT ON shop.user TO x",
        "DROP DATABASE shopping",
    ],
)
def test_other_statements_are_read_past(statement: str) -> None:
    stream = Stream()
    stream.gtid(1)
    stream.query(statement, database="other" if "other" in statement else "shop")
    stream.transaction(2, [(2, b"two")])
    batches = walk(dispatcher(), bytes(stream.data))
    assert rows_of(batches) == [(0, (2, "two"))]
    assert not [halt for batch in batches for halt in batch.halts]


def test_a_rolled_back_transaction_in_the_binlog_halts_what_it_touched() -> None:
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(30, [(1, b"one")])
    stream.query("ROLLBACK")
    batches = walk(dispatcher(), bytes(stream.data))
    assert rows_of(batches) == []
    assert "rollback" in batches[0].halts[0].reason


def test_an_error_packet_and_an_end_packet_end_the_walk() -> None:
    stream = Stream()
    stream.packet(b"\xff\xd4\x04#HY000Could not find first log file name in binary log index file")
    with pytest.raises(DumpEnded):
        walk(dispatcher(), bytes(stream.data))
    stream = Stream()
    stream.packet(b"\xfe\0\0\0\0")
    with pytest.raises(CorruptEventError, match="ended the dump"):
        walk(dispatcher(), bytes(stream.data))


def test_a_stream_of_viewtails_own_writes_is_quiet_and_others_are_not() -> None:
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map(9, schema="viewtail", name="pipeline")
    stream.rows(30, [(1, b"one")], table_id=9)
    stream.commit()
    walker = dispatcher()
    (quiet,) = walk(walker, bytes(stream.data))
    before = len(stream.data)
    stream.gtid(2)
    stream.query("BEGIN")
    stream.table_map(10, schema="shop", name="other")
    stream.rows(30, [(1, b"one")], table_id=10)
    stream.commit()
    (told,) = walk(walker, bytes(stream.data[before:]))
    assert (quiet.is_quiet, told.is_quiet) == (True, False)
    assert rows_of([quiet, told]) == []
