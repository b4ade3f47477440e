"""What the dispatcher promises for events that a healthy server does not send, or sends once in a blue moon."""

from __future__ import annotations

import errno
import io
import struct
from dataclasses import dataclass
from uuid import UUID
from zlib import crc32

import pytest
import structlog

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.source import _watermark_table
from ingest.binlog.table_readers import Wanted
from ingest.canonical.parts import of_parts
from tests.support.events import SOURCE_ID, Stream, user_table
from viewtail.changes.batches import Batch, Followed, TableChangeKind
from viewtail.changes.errors import (
    CorruptEventError,
    HistoryGoneError,
    SourceError,
    SourceUnavailableError,
    ViewtailError,
)
from viewtail.changes.patterns import Part, pattern_of
from viewtail.changes.tables import NamePattern
from viewtail.changes.versions import base_version

FILE = "binlog.000012"
LARGE = "binlog.000077"  # above 4 GiB


def dispatcher(after: BinlogPosition | None = None, followed: Followed | None = None, **options: int) -> Dispatcher:
    followed = followed or Followed(user_table(), ("id", "name"))
    return Dispatcher(
        Wanted(
            followed={(followed.table.schema, followed.table.name): followed},
            watermark=_watermark_table("viewtail"),
            own_schemas=frozenset({"viewtail"}),
            spool_bytes=options.get("spool_bytes", 1 << 20),
            max_event_bytes=options.get("max_event_bytes", 1 << 20),
        ),
        after=after or BinlogPosition(epoch=1, file=FILE, end=4, start=4),
        has_checksums=True,
        large_files=frozenset({LARGE}),
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


@dataclass
class Spooled:
    """A transaction made by hand, twice the memory bound or more."""

    stream: Stream
    row_bytes: int  # of its followed row events, headers and checksums included


def spooled(rows: int = 500, name: bytes = b"x" * 40, start: int = 4) -> Spooled:
    stream = Stream(start)
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    row_bytes = 0
    for number in range(rows):
        row_bytes += len(stream.rows(30, [(number, name)])) - 5
    stream.commit()
    return Spooled(stream, row_bytes)


def rows_of(batches: list[Batch]) -> list[tuple[int, tuple[object, ...]]]:
    return [(kind, row) for batch in batches for _, kind, _, rows, *_ in batch.changes for row in rows]


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
    versions = [change.version for batch in walk(dispatcher(), bytes(stream.data)) for change in batch.changes]
    assert versions == [base_version(1, 12) | end >> 4 for end in ends]
    assert versions == sorted(set(versions))


def test_a_batch_is_as_old_as_its_first_change_whatever_others_committed_before() -> None:
    """viewtail's own transactions of an idle day come in one batch with the change that ends it."""
    stream, second_us = Stream(), 1_000_000
    stream.committed_us -= 100 * second_us
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map(schema="viewtail", name="pipeline")
    stream.commit()
    stream.committed_us += 90 * second_us
    stream.transaction(2, [(1, b"x")])
    stream.committed_us += 10 * second_us
    stream.transaction(3, [(1, b"y")])
    (batch,) = walk(dispatcher(), bytes(stream.data))
    assert len(batch.changes) == 2 and batch.oldest_commit_us == stream.committed_us - 10 * second_us


def test_a_statement_is_as_old_as_itself() -> None:
    stream, second_us = Stream(), 1_000_000
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map(schema="viewtail", name="pipeline")
    stream.commit()
    stream.committed_us += 90 * second_us
    stream.gtid(2)
    stream.query("TRUNCATE TABLE shop.user")
    (batch,) = walk(dispatcher(), bytes(stream.data))
    assert batch.table_changes and batch.oldest_commit_us == stream.committed_us


def test_a_batch_with_rows_is_as_old_as_a_statement_before_them() -> None:
    stream, second_us = Stream(), 1_000_000
    stream.gtid(1)
    stream.query("TRUNCATE TABLE shop.user")
    stream.committed_us += 10 * second_us
    stream.transaction(2, [(1, b"x")])
    (batch,) = walk(dispatcher(), bytes(stream.data))
    assert batch.changes and batch.table_changes
    assert batch.oldest_commit_us == stream.committed_us - 10 * second_us


@pytest.mark.parametrize(("statement", "attribute"), [
    ("TRUNCATE TABLE shop.user", "table_changes"), ("ALTER TABLE shop.user DROP COLUMN name", "halts"),
])  # fmt: skip
def test_statements_are_as_old_as_the_first_that_concerns_a_table(statement: str, attribute: str) -> None:
    """Others' statements come before and behind it, and it counts for its own batch alone."""
    stream, second_us = Stream(), 1_000_000
    for number, each in enumerate(("CREATE DATABASE a", statement, "CREATE DATABASE b"), 1):
        stream.gtid(number)
        stream.query(each)
        stream.committed_us += 10 * second_us
    walker = dispatcher()
    (batch,) = walk(walker, bytes(stream.data))
    assert getattr(batch, attribute) and batch.oldest_commit_us == stream.committed_us - 20 * second_us
    assert walker._transaction.told_gtid is None


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
    ("kind", "name"),
    [(40, "compressed transaction"), (42, "tagged GTID"), (26, "INCIDENT"), (162, "MARIADB_GTID")],
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
    batches = walk(dispatcher(BinlogPosition(epoch=1, file=FILE, end=start, start=start)), bytes(stream.data))
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
        walk(dispatcher(BinlogPosition(epoch=1, file=FILE, end=10_000, start=10_000)), bytes(stream.data))


@pytest.mark.parametrize("file", [LARGE, "binlog.000078"])
def test_a_start_by_set_in_a_file_above_4_gib_is_refused(file: str) -> None:
    """The server leaves out what was seen: a wrap of positions in there would not be counted."""
    stream = Stream()
    stream.event(4, struct.pack("<Q", 4) + file.encode(), position=0)
    stream.transaction(8, [(1, b"one")])
    by_set = BinlogPosition(epoch=1, file="none.000000", end=0, start=0, gtid_base=f"{UUID(bytes=SOURCE_ID)}:1-7")
    if file == LARGE:
        with pytest.raises(HistoryGoneError, match="above 4 GiB"):
            walk(dispatcher(by_set), bytes(stream.data))
    else:
        (batch,) = walk(dispatcher(by_set), bytes(stream.data))
        assert batch.end is not None and batch.end.file == file
        assert batch.end.seen == f"{UUID(bytes=SOURCE_ID)}:1-8"


def resumed(number: int, start: int, end: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file=FILE, end=end, start=start, gtid=f"{UUID(bytes=SOURCE_ID)}:{number}")


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
        "DROP TABLE `shop`.`user`",
        "RENAME TABLE user TO user_old",
        "ALTER TABLE shop.user RENAME TO gone",
        "DROP DATABASE shop",
        "/* savepoint */ DROP TABLE user /* generated by server */",
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
    ("statement", "kind"),
    [
        ("TRUNCATE TABLE user", TableChangeKind.EMPTIED),
        ("/* hello */ truncate user", TableChangeKind.EMPTIED),
        ("/* begin cleanup */ TRUNCATE TABLE shop.user", TableChangeKind.EMPTIED),
        ("-- Commit 12\nTRUNCATE shop.user", TableChangeKind.EMPTIED),
        ("#rollback\nTRUNCATE shop.user;", TableChangeKind.EMPTIED),
        ("TRUNCATE shop.user -- START TRANSACTION", TableChangeKind.EMPTIED),
        ("ALTER TABLE user DROP PARTITION p0", TableChangeKind.THINNED),
        ("ALTER TABLE user EXCHANGE PARTITION p0 WITH TABLE t", TableChangeKind.REPLACED),
    ],
)
def test_a_statement_that_takes_rows_away_is_told_between_the_rows_before_and_after(
    statement: str, kind: TableChangeKind
) -> None:
    stream = Stream()
    stream.transaction(1, [(1, b"one")])
    stream.gtid(2)
    stream.query(statement)
    stream.transaction(3, [(3, b"three")])
    batches = walk(dispatcher(), bytes(stream.data))
    (found,) = [one for batch in batches for one in batch.table_changes]
    before, after = [change.version for batch in batches for change in batch.changes]
    assert found.kind is kind and before < found.version < after


_USERS = pattern_of("shop", NamePattern("user{account}"))


@pytest.mark.parametrize("opening", ["", " START TRANSACTION"])
def test_a_table_that_comes_to_a_pattern_is_told_ahead_of_its_rows(opening: str) -> None:
    assert _USERS is not None
    several = of_parts(_USERS, [user_table()])
    walker = dispatcher(followed=Followed(several, ("account", "id", "name")))
    stream = Stream()
    stream.gtid(1)
    stream.query(f"CREATE TABLE user7 (id INT PRIMARY KEY, name VARCHAR(40)){opening}")
    if opening:
        stream.table_map(name="user7")
        stream.rows(30, [(1, b"one")])
        stream.commit()
    batches = walk(walker, bytes(stream.data))
    (found,) = [one for batch in batches for one in batch.table_changes]
    assert (found.kind, found.part) == (TableChangeKind.REDEFINED, Part("shop", "user7", ("7",)))
    assert all(found.version < change.version for batch in batches for change in batch.changes)
    assert sum(batch.row_count for batch in batches) == bool(opening)


def test_a_table_that_two_patterns_have_halts_both() -> None:
    followed = []
    for written in ("user{account}", "{kind}_mail", "other{x}"):
        pattern = pattern_of("shop", NamePattern(written))
        assert pattern is not None
        table = of_parts(pattern, [user_table()])
        followed.append(Followed(table, (*pattern.names, "id", "name")))
    walker = dispatcher(followed=followed[0])
    readers = walker._tables
    readers.followed |= {("shop", one.table.name): one for one in followed}
    readers.patterns[:] = followed
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map(name="user_mail")
    stream.rows(30, [(1, b"one")])
    stream.commit()
    batches = walk(walker, bytes(stream.data))
    halts = [halt for batch in batches for halt in batch.halts]
    assert [halt.followed for halt in halts] == followed[:2] and not any(batch.changes for batch in batches)
    assert "shop.user_mail is one of shop.user{account} and of shop.{kind}_mail" in halts[0].reason


@pytest.mark.parametrize(
    ("statement", "kinds"),
    [
        ("ALTER TABLE user ADD COLUMN age INT", [TableChangeKind.EXTENDED]),
        ("ALTER TABLE user ADD COLUMN age INT, DROP COLUMN name", []),
        ("ALTER TABLE user ADD COLUMN name VARCHAR(40)", []),
        ("ALTER TABLE user ADD INDEX i (name)", []),
        ("ALTER TABLE other.user ADD COLUMN age INT", []),
    ],
)
def test_a_column_is_told_that_was_not_there_when_the_table_was_described(
    statement: str, kinds: list[TableChangeKind]
) -> None:
    stream = Stream()
    stream.gtid(1)
    stream.query(statement)
    stream.transaction(2, [(2, b"two")])
    batches = walk(dispatcher(), bytes(stream.data))
    assert [one.kind for batch in batches for one in batch.table_changes] == kinds


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


@pytest.mark.parametrize("spool_bytes", [1 << 20, 150, 1], ids=["in memory", "half", "spooled"])
def test_what_a_rollback_in_the_binlog_takes_back_is_not_delivered(spool_bytes: int) -> None:
    """In row format the rows before it are of transactional tables only: others are committed by themselves."""
    stream = Stream()
    stream.transaction(1, [(1, b"one")])
    stream.gtid(2)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(30, [(2, b"kept")])
    stream.query("SAVEPOINT `a b`")
    stream.table_map()
    for number in range(3, 9):
        stream.rows(30, [(number, b"gone")])
    stream.query("SAVEPOINT c")
    stream.rows(30, [(9, b"\xff")])
    stream.query("ROLLBACK TO `A b`")
    stream.table_map()
    stream.rows(30, [(10, b"kept")])
    stream.commit()
    stream.gtid(3)
    stream.query("BEGIN")
    stream.table_map()
    for number in range(11, 20):
        stream.rows(30, [(number, b"gone"), (number + 100, b"\xff")])
    stream.query("ROLLBACK")
    stream.transaction(4, [(20, b"after")])
    for step in (None, 1, 300):
        batches = walk(dispatcher(spool_bytes=spool_bytes), bytes(stream.data), step)
        assert [row[0] for _, row in rows_of(batches)] == [1, 2, 10, 20]
        assert not [found for batch in batches for found in (*batch.halts, *batch.refused)]
        assert batches[-1].end is not None and batches[-1].end.end == stream.position


def test_a_rollback_to_a_savepoint_that_was_not_seen_halts_what_it_touched() -> None:
    stream = Stream()
    for number in (1, 2):
        stream.gtid(number)
        stream.query("BEGIN")
        if number == 1:
            stream.query("SAVEPOINT s")  # another transaction's
        stream.table_map()
        stream.rows(30, [(number, b"one")])
        if number == 2:
            stream.query("ROLLBACK TO s")
        stream.commit()
    batches = walk(dispatcher(), bytes(stream.data))
    (halt,) = (halt for batch in batches for halt in batch.halts)
    assert "savepoint" in halt.reason
    assert [row[0] for _, row in rows_of(batches)] in ([], [1])


def test_an_error_packet_and_an_end_packet_end_the_walk() -> None:
    stream = Stream()
    stream.packet(b"\xff\xd4\x04#HY000Could not find first log file name in binary log index file")
    with pytest.raises(HistoryGoneError, match="Could not find first log file name"):
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


def test_a_statement_is_not_quiet_though_its_session_was_in_viewtails_database() -> None:
    """It may be about any table: TRUNCATE TABLE shop.user, behind USE viewtail."""
    stream = Stream()
    stream.gtid(1)
    stream.query("TRUNCATE TABLE shop.other", database="viewtail")
    (batch,) = walk(dispatcher(), bytes(stream.data))
    assert not batch.is_quiet


def test_pieces_of_a_spooled_transaction_count_the_bytes_of_their_events() -> None:
    made = spooled(60_000)
    batches = walk(dispatcher(spool_bytes=2000), bytes(made.stream.data), 1 << 16)
    assert len(batches) > 4
    assert sum(batch.byte_count for batch in batches) == made.row_bytes
    assert 0 < batches[0].byte_count <= 2000
    assert all(batch.byte_count > 0 for batch in batches if batch.row_count)
    assert max(batch.byte_count for batch in batches) < 2 << 20


def test_a_transaction_that_was_in_a_file_comes_in_pieces_of_a_mebibyte() -> None:
    made = spooled(30_000, b"x" * 150)
    batches = walk(dispatcher(spool_bytes=3 << 20), bytes(made.stream.data), 1 << 16)
    sizes = [batch.byte_count for batch in batches]
    assert sum(sizes) == made.row_bytes and 6 <= len(sizes) <= 8
    assert max(sizes) <= 1 << 20
    versions = [change.version for batch in batches for change in batch.changes]
    assert versions == sorted(versions) and sum(batch.row_count for batch in batches) == 30_000


def test_changes_of_one_version_and_the_rows_refused_among_them_are_in_one_piece() -> None:
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    for number in range(150):  # each event has 100 rows, and every tenth one that cannot be read
        names = [b"\xff" if number % 10 == 0 and at == 50 else b"x" * 200 for at in range(100)]
        stream.rows(30, [(number * 100 + at, name) for at, name in enumerate(names)])
    stream.commit()
    batches = walk(dispatcher(spool_bytes=2 << 20), bytes(stream.data), 1 << 16)
    seen = [{one.version for one in [*batch.changes, *batch.refused]} for batch in batches]
    in_order = [version for found in seen for version in sorted(found)]
    assert in_order == sorted(set(in_order)) and len(in_order) == 150
    assert [len(found) > 0 for found in seen].count(True) >= 4
    assert sum(len(batch.refused) for batch in batches) == 15
    assert len(rows_of(batches)) == 150 * 100 - 15


def test_refused_rows_of_a_spooled_transaction_come_with_its_pieces() -> None:
    stream = Stream()
    stream.transaction(1, [(0, b"before")])
    stream.gtid(2)
    stream.query("BEGIN")
    stream.table_map()
    for number in range(1, 200):
        stream.rows(30, [(number, b"\xff" if number in (2, 150, 199) else b"x" * 40)])
    stream.commit()
    for number in range(3, 6):
        stream.transaction(number, [(1000 + number, b"after")])
    batches = walk(dispatcher(spool_bytes=2000), bytes(stream.data))
    first_end = next(at for at, batch in enumerate(batches) if batch.end is not None)
    last_piece = max(at for at, batch in enumerate(batches) if batch.end is None)
    refused_at = [(refused.rows[0][0], at) for at, batch in enumerate(batches) for refused in batch.refused]
    assert [number for number, _ in refused_at] == [2, 150, 199]
    assert all(first_end < at <= last_piece for _, at in refused_at)
    assert len(rows_of(batches)) == 1 + 196 + 3


def cut_in_a_transaction(name: bytes, *, started_at_s: int, position: int = 0) -> Stream:
    """A file that ends behind a row, and the next one's beginning and its first transaction."""
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(30, [(1, name)])
    stream.event(4, bytes(8) + b"binlog.000013", position=position)
    stream.position = 4
    stream.event(15, struct.pack("<H50sI41xB", 4, b"9.7.0", started_at_s, 1))
    stream.transaction(2, [(2, b"two")])
    return stream


@pytest.mark.parametrize("name", [b"one", b"\xff"], ids=["row", "refused row"])
def test_a_file_that_ends_without_a_commit_stops_the_stream(name: bytes) -> None:
    for stream in (
        cut_in_a_transaction(name, started_at_s=0),
        cut_in_a_transaction(name, started_at_s=1_700_000_000, position=500),
    ):
        with pytest.raises(SourceError, match="inside a transaction"):
            walk(dispatcher(), bytes(stream.data))


@pytest.mark.parametrize("spool_bytes", [1 << 20, 1])
@pytest.mark.parametrize("name", [b"one", b"\xff"], ids=["row", "refused row"])
def test_what_a_server_did_not_finish_when_it_died_is_left_out(name: bytes, spool_bytes: int) -> None:
    stream = cut_in_a_transaction(name, started_at_s=1_700_000_000)
    batches = walk(dispatcher(spool_bytes=spool_bytes), bytes(stream.data))
    assert rows_of(batches) == [(0, (2, "two"))]
    assert not [refused for batch in batches for refused in batch.refused]


WATERMARK_COLUMNS = (b"id", b"token")


@pytest.mark.parametrize("fault", ["no names", "partial image", "invalid token"])
@pytest.mark.parametrize("spool_bytes", [1 << 20, 1], ids=["in memory", "spooled"])
def test_a_watermark_that_cannot_be_read_is_skipped_and_the_next_one_counts(fault: str, spool_bytes: int) -> None:
    stream = Stream()
    for number, is_good in enumerate([True, False, True]):
        stream.gtid(number)
        stream.query("BEGIN")
        stream.table_map(9, "viewtail", "watermark", True, is_good or fault != "no names", WATERMARK_COLUMNS)
        bad_token = fault == "invalid token" and not is_good
        bitmap = 0xFD if fault == "partial image" and not is_good else 0xFF
        stream.rows(30, [(number, b"\xff" if bad_token else b"token %d" % number)], 9, bitmap)
        stream.commit()
        stream.transaction(10 + number, [(number, b"name")])
    with structlog.testing.capture_logs() as logs:
        batches = walk(dispatcher(spool_bytes=spool_bytes), bytes(stream.data))
    assert [mark.token for batch in batches for mark in batch.watermarks] == ["token 0", "token 2"]
    assert [row[0] for _, row in rows_of(batches)] == [0, 1, 2]
    assert not [found for batch in batches for found in (*batch.halts, *batch.refused)]
    (told,) = [log for log in logs if log["log_level"] == "warning"]
    assert "FULL" in told["mend"] and "\xff" not in str(told)


def test_the_last_batch_of_a_spooled_transaction_is_not_quiet() -> None:
    stream = Stream()
    stream.transaction(0, [(1, b"before")])
    stream.data += spooled(start=stream.position).stream.data
    batches = walk(dispatcher(spool_bytes=2000), bytes(stream.data))
    assert batches[-1].end is not None and not batches[-1].changes
    assert not [batch for batch in batches if batch.is_quiet]


@pytest.mark.parametrize("own", [True, False])
def test_a_batch_that_ends_inside_an_open_transaction_forgets_nothing_of_it(own: bool) -> None:
    stream = Stream()
    stream.transaction(1, [(1, b"one")])
    stream.gtid(2)
    stream.query("BEGIN")
    stream.table_map(9, "viewtail" if own else "shop", "pipeline" if own else "other")
    walker = dispatcher()
    (first,) = walk(walker, bytes(stream.data))
    before = len(stream.data)
    stream.rows(30, [(1, b"one")], 9)
    stream.commit()
    (second,) = walk(walker, bytes(stream.data[before:]))
    assert (first.is_quiet, second.is_quiet) == (False, own)
    before = len(stream.data)
    stream.gtid(3)
    stream.query("BEGIN")
    stream.table_map(9, "viewtail", "pipeline")
    stream.rows(30, [(1, b"one")], 9)
    stream.commit()
    (third,) = walk(walker, bytes(stream.data[before:]))
    assert third.is_quiet


def test_a_statement_in_an_open_transaction_is_not_forgotten_at_a_batch_s_end() -> None:
    stream = Stream()
    stream.transaction(1, [(1, b"one")])
    stream.gtid(2)
    stream.query("BEGIN")
    stream.query("INSERT INTO other VALUES (1)")
    walker = dispatcher()
    walk(walker, bytes(stream.data))
    before = len(stream.data)
    stream.commit()
    (told,) = walk(walker, bytes(stream.data[before:]))
    assert not told.is_quiet


@pytest.mark.parametrize("kind", [5, 13, 14], ids=["INTVAR", "RAND", "USER_VAR"])
def test_what_stands_before_a_statement_for_it_is_read_past(kind: int) -> None:
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.event(kind, bytes(9))
    stream.query("INSERT INTO other VALUES (NULL)", reached=("beside",))
    stream.commit()
    stream.transaction(2, [(2, b"two")])
    assert rows_of(walk(dispatcher(), bytes(stream.data))) == [(0, (2, "two"))]


@pytest.mark.parametrize("reached", [("beside", "shop"), None], ids=["told", "not told"])
def test_a_change_in_statement_format_halts_the_tables_of_the_databases_that_it_reached(
    reached: tuple[str, ...] | None,
) -> None:
    """Where a statement used more than can be listed, that is every one."""
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.query("INSERT INTO beside.other VALUES (1)", database="beside", reached=reached)
    stream.commit()
    (halt,) = (halt for batch in walk(dispatcher(), bytes(stream.data)) for halt in batch.halts)
    assert halt.followed.table.name == "user"


@pytest.mark.parametrize(("kind", "flags"), [(29, 0x80), (5, 0), (99, 0x80)])
def test_an_event_above_the_bound_that_holds_no_rows_is_read_past(kind: int, flags: int) -> None:
    stream = Stream()
    large = stream.event(kind, bytes(60), flags=flags)
    stream.data.clear()
    stream.transaction(1, [(1, b"one")])
    walker = dispatcher()
    walker.halt_too_large(large[5:], len(large) - 5)
    assert rows_of(walk(walker, bytes(stream.data))) == [(0, (1, "one"))]


@pytest.mark.parametrize("kind", [2, 19, 33, 40, 99])
def test_an_event_above_the_bound_that_may_matter_to_any_table_stops_the_stream(kind: int) -> None:
    large = Stream().event(kind, bytes(60))
    with pytest.raises(SourceError, match="max_event_bytes"):
        dispatcher().halt_too_large(large[5:], len(large) - 5)


def test_rows_above_the_bound_without_their_table_map_are_fatal() -> None:
    large = Stream().rows(30, [(1, b"one")])
    with pytest.raises(SourceError, match="no table map"):
        dispatcher().halt_too_large(large[5:], len(large) - 5)


class FullDisk:
    """A temporary file that fails where it is told to."""

    def __init__(self, failing: str) -> None:
        self._file = io.BytesIO()
        self._failing = failing

    def __getattr__(self, name: str) -> object:
        if name == self._failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        return getattr(self._file, name)


@pytest.mark.parametrize("failing", ["open", "write", "seek", "read"])
def test_a_full_disk_is_waited_out_and_says_where_to_make_room(failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**_: object) -> FullDisk:
        if failing == "open":
            raise OSError(errno.ENOSPC, "No space left on device")
        return FullDisk(failing)

    monkeypatch.setattr("ingest.binlog.spool.tempfile.TemporaryFile", made)
    with pytest.raises(SourceUnavailableError, match=r"temporary file .*No space left.*free space in /.*TMPDIR"):
        walk(dispatcher(spool_bytes=2000), bytes(spooled().stream.data))


@pytest.mark.parametrize("others", [0, 1, 100], ids=["nothing else", "one other table's row", "many"])
def test_a_spooled_transaction_may_cross_4_gib(others: int) -> None:
    start = (1 << 32) - 9000
    stream = Stream(start)
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    stream.table_map(9, name="other")
    ends = []
    for number in range(200):
        for _ in range(others):  # rows that nobody follows are not in the spool, but count
            stream.rows(30, [(1, b"x" * 100)], 9)
        stream.rows(30, [(number, b"x" * 40)])
        ends.append(stream.position)
    stream.commit()
    end = stream.position
    stream.transaction(2, [(1000, b"after")])
    after = BinlogPosition(epoch=1, file=FILE, end=start, start=start)
    batches = walk(dispatcher(after, spool_bytes=2000), bytes(stream.data), 4096)
    assert [row[0] for _, row in rows_of(batches)] == [*range(200), 1000]
    versions = [change.version for batch in batches for change in batch.changes]
    assert versions[:-1] == [base_version(1, 12) | each >> 4 for each in ends]
    told = [batch.end for batch in batches if batch.end is not None]
    assert [(each.start, each.end) for each in told] == [(start, end), (end, stream.position)]


@pytest.mark.parametrize("spool_bytes", [1, 100], ids=["both spooled", "one in memory"])
def test_a_wrap_that_none_of_the_followed_rows_shows_is_not_missed(spool_bytes: int) -> None:
    """Two followed rows, above 4 GiB of others between them: the second's header counts on from the first's."""
    stream = Stream(1 << 20)
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    stream.table_map(9, name="other")
    stream.rows(30, [(1, b"one")])
    ends = [stream.position]
    walker = dispatcher(BinlogPosition(epoch=1, file=FILE, end=1 << 20, start=1 << 20), spool_bytes=spool_bytes)
    batches = walk(walker, bytes(stream.data))
    while stream.position < (1 << 32) + (2 << 20):
        size = 1 << 30
        stream.position += size
        head = struct.pack("<IBIIIH", 1, 30, 1, size, stream.position & 0xFFFFFFFF, 0)
        walker.halt_too_large(head + struct.pack("<IH", 9, 0), size)
    before = len(stream.data)
    stream.rows(30, [(2, b"two")])
    ends.append(stream.position)
    stream.commit()
    batches += walk(walker, bytes(stream.data[before:]))
    versions = [change.version for batch in batches for change in batch.changes]
    assert versions == [base_version(1, 12) | end >> 4 for end in ends]


@pytest.mark.parametrize("quick", [True, False])
def test_an_event_that_ends_at_4_gib_exactly_counts_as_a_wrap(quick: bool) -> None:
    probe = Stream(0)
    probe.gtid(1)
    probe.query("BEGIN")
    probe.table_map()
    probe.rows(30, [(1, b"one")])
    start = (1 << 32) - probe.position
    stream = Stream(start)
    stream.transaction(1, [(1, b"one")])
    stream.transaction(2, [(2, b"two")])
    walker = dispatcher(BinlogPosition(epoch=1, file=FILE, end=start, start=start))
    batches = walk(walker, bytes(stream.data), None if quick else 1)
    versions = [change.version for batch in batches for change in batch.changes]
    assert versions[0] == base_version(1, 12) | 1 << 28 and versions == sorted(set(versions))
    assert batches[-1].end is not None and batches[-1].end.end == stream.position


def test_an_event_above_the_bound_that_crosses_4_gib_counts_as_a_wrap() -> None:
    start = (1 << 32) - 300
    stream = Stream(start)
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    walker = dispatcher(BinlogPosition(epoch=1, file=FILE, end=start, start=start))
    walk(walker, bytes(stream.data))
    large = stream.rows(30, [(number, b"x" * 40) for number in range(20)])
    end = stream.position
    walker.halt_too_large(large[5:69], len(large) - 5)
    before = len(stream.data)
    stream.commit()
    stream.transaction(2, [(2, b"two")])
    batches = walk(walker, bytes(stream.data[before:]))
    assert end > 1 << 32 and batches[-1].end is not None and batches[-1].end.end == stream.position
    (halt,) = [halt for batch in batches for halt in batch.halts]
    assert halt.version == base_version(1, 12) | end >> 4


@pytest.mark.parametrize("name", [b"name", b"\xff"], ids=["row", "refused"])
@pytest.mark.parametrize("piece", [None, 1])
def test_a_transaction_whose_end_is_missing_stops_the_stream(name: bytes, piece: int | None) -> None:
    """Its rows would come with the commit of the next one, by whichever walk."""
    stream = Stream()
    stream.transaction(1, [(0, b"before")])
    stream.gtid(2)
    stream.query("BEGIN")
    stream.table_map()
    stream.rows(30, [(1, name)])
    for number in range(3, 6):
        stream.transaction(number, [(number, b"name")])
    with pytest.raises(SourceError, match="begins inside another one"):
        walk(dispatcher(), bytes(stream.data), piece)


def test_a_row_event_behind_a_commit_is_of_no_transaction() -> None:
    stream = Stream()
    for number in range(1, 5):
        stream.transaction(number, [(number, b"name")])
        more = Stream(stream.position)
        more.rows(30, [(9, b"name")])
        with pytest.raises(SourceError, match="no table map in its transaction"):
            walk(dispatcher(), bytes(stream.data + more.data))


def test_a_row_event_without_a_position_stops_the_stream() -> None:
    """It would have the least version there is."""
    stream = Stream()
    stream.transaction(1, [(1, b"name")])
    stream.gtid(2)
    stream.query("BEGIN")
    stream.table_map()
    row = stream.rows(30, [(2, b"name")])
    at = len(stream.data) - len(row) + 5
    stream.data[at + 13 : at + 17] = bytes(4)
    stream.data[-4:] = struct.pack("<I", crc32(stream.data[at:-4]))
    stream.commit()
    with pytest.raises(HistoryGoneError, match="went back"):
        walk(dispatcher(), bytes(stream.data))


def test_an_empty_table_map_in_the_place_of_a_usual_one_is_refused() -> None:
    stream = Stream()
    stream.transaction(1, [(1, b"name")])
    stream.gtid(2)
    stream.query("BEGIN")
    stream.event(19, b"")
    stream.rows(30, [(2, b"name")])
    stream.commit()
    with pytest.raises(ViewtailError):
        walk(dispatcher(), bytes(stream.data))


def test_a_gtid_whose_number_no_server_gives_stops_the_stream() -> None:
    for number in (-5, 0, (1 << 63) - 1):
        stream = Stream()
        stream.transaction(number, [(1, b"name")])
        after = BinlogPosition(epoch=1, file=FILE, end=4, start=4, gtid_base=f"{UUID(bytes=SOURCE_ID)}:1-9")
        with pytest.raises(SourceError, match="that no server gives"):
            walk(dispatcher(after), bytes(stream.data))


def test_a_null_bit_of_a_column_without_nulls_counts_for_no_row() -> None:
    """Rows of the same bits are read by code of their own once they were seen often."""
    stream = Stream()
    for number in range(1, 40):
        stream.gtid(number)
        stream.query("BEGIN")
        stream.table_map()
        row = b"\x01" + struct.pack("<q", number) + b"\x04name"
        stream.event(30, struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02\xff" + row)
        stream.commit()
    batches = walk(dispatcher(), bytes(stream.data))
    assert rows_of(batches) == [(0, (number, "name")) for number in range(1, 40)]
    assert not [halt for batch in batches for halt in batch.halts]


@pytest.mark.parametrize("name", [b"name", b"\xff"], ids=["row", "refused"])
@pytest.mark.parametrize("usual", [0, 3])
def test_an_update_of_an_odd_number_of_rows_halts_its_table(usual: int, name: bytes) -> None:
    stream = Stream()
    for number in range(1, usual + 1):
        stream.transaction(number, [(number, b"name")])
    stream.transaction(9, [(9, b"name"), (9, b"new"), (10, name)], kind=31)
    batches = walk(dispatcher(), bytes(stream.data))
    (halt,) = [halt for batch in batches for halt in batch.halts]
    assert "without what became of it" in halt.reason
    assert not [change for batch in batches for change in batch.changes if change.kind == 1]
