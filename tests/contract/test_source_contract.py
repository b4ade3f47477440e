"""What every Source promises: the binlog of a real server, a topic of a real broker, and the scripted fake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pymysql
import pytest

from ingest import BackfillAgain, GoOn, ReadAgain, Source
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from ingest.kafka.place import Place
from ingest.kafka.position import KafkaPosition
from ingest.kafka.progress import ProgressFeed
from ingest.kafka.source import KafkaSource
from ingest.limits import Limits
from ingest.read_ahead import ReadAhead
from stack import Server
from tests.support.events import user_table
from tests.support.fake_source import FakeSource
from tests.support.published import Topic, change, messages
from viewtail.changes.batches import INSERT, Batch, Followed, RowChanges
from viewtail.changes.errors import HistoryGoneError
from viewtail.changes.positions import Position, ReadPosition
from viewtail.servers.brokers import SOURCE, Broker
from viewtail.servers.sessions import MySQLAddress, open_session

TRANSACTIONS = 12


@dataclass
class Case:
    """A source with TRANSACTIONS transactions behind `begin`, the nth inserting row n."""

    source: Source
    begin: Position
    purge: Callable[[], None]  # make the changes after `begin` unavailable
    read_position: ReadPosition


def _fake() -> Case:
    begin = BinlogPosition(epoch=1, file="binlog.000001", end=100, start=100)
    followed = Followed(user_table(), ("id", "name"))
    batches = []
    for number in range(TRANSACTIONS):
        end = BinlogPosition(
            epoch=1,
            file="binlog.000001",
            end=200 + 100 * number,
            start=100 + 100 * number,
            gtid=f"u:{number}",
        )
        change = RowChanges(followed, INSERT, end.version, [(number, "x")])
        batches.append(Batch(changes=[change], end=end, row_count=1, byte_count=100, oldest_commit_us=1))
    source = FakeSource(begin, batches)

    def purge() -> None:
        source.purged_up_to = source.now()

    return Case(source, begin, purge, BinlogPosition.from_text)


def _binlog(server: Server) -> Case:
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    with connection.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS source_contract")
        cursor.execute("CREATE DATABASE source_contract")
        cursor.execute("CREATE TABLE source_contract.t (id INT PRIMARY KEY, name VARCHAR(20))")
    session = open_session(address, role="source")
    table = describe(session, "source_contract", "t")
    session.close()
    source = BinlogSource(
        address,
        {("source_contract", "t"): Followed(table, ("id", "name"))},
        watermark_schema="viewtail",
        own_schemas=frozenset({"viewtail"}),
        epoch=1,
    )
    begin = source.now()
    with connection.cursor() as cursor:
        for number in range(TRANSACTIONS):
            cursor.execute(f"INSERT INTO source_contract.t VALUES ({number}, 'x')")

    def purge() -> None:
        with connection.cursor() as cursor:
            cursor.execute("FLUSH BINARY LOGS")
            while True:  # MariaDB keeps a file for a while that somebody read
                cursor.execute("SHOW BINARY LOGS")
                files = [row[0] for row in cursor.fetchall()]
                if len(files) == 1:
                    break
                cursor.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")

    return Case(source, begin, purge, BinlogPosition.from_text)


def _kafka(server: Server) -> Case:
    table = user_table()
    topic = Topic(server, "source.contract")
    broker = Broker(topic.client, SOURCE)
    place = Place(broker, topic.name, broker.id_of(topic.name), 0)
    source = KafkaSource(topic.client, place, ProgressFeed(topic.client), Followed(table, ("id", "name")), epoch=1)
    begin = source.now()
    for number in range(TRANSACTIONS):
        topic.publish(messages(table, [change("insert", number, 100 + number, after=(number, "x"))]))
    return Case(
        source, begin, lambda: topic.delete_before(broker.end_offsets(topic.name, 1)[0]), KafkaPosition.from_text
    )


@pytest.fixture(params=["mysql", "mariadb", "kafka", "fake"])
def case(request: pytest.FixtureRequest) -> Case:
    if request.param == "fake":
        return _fake()
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return _kafka(server) if request.param == "kafka" else _binlog(server)


Piece = tuple[list[int], Position]  # the ids of a batch's rows, and its end


def read(source: Source, after: Position, count: int) -> list[Piece]:
    """Batches until `count` rows have come."""
    pieces: list[Piece] = []
    with ReadAhead(source, after, Limits(batch_rows=1)) as batches:
        for batch in batches:
            if batch is None:
                continue
            assert batch.end is not None
            pieces.append(([row[0] for change in batch.changes for row in change.rows], batch.end))
            if sum(len(ids) for ids, _ in pieces) >= count:
                break
    return pieces


def ids_of(pieces: list[Piece]) -> list[int]:
    return [number for ids, _ in pieces for number in ids]


def test_transactions_come_whole_and_in_order(case: Case) -> None:
    pieces = read(case.source, case.begin, TRANSACTIONS)
    assert ids_of(pieces) == list(range(TRANSACTIONS))
    versions = [end.version for _, end in pieces]
    assert versions == sorted(set(versions))


def test_reading_after_any_position_gives_exactly_the_rest(case: Case) -> None:
    seen = 0
    for ids, end in read(case.source, case.begin, TRANSACTIONS):
        seen += len(ids)
        if seen < TRANSACTIONS:
            assert ids_of(read(case.source, end, TRANSACTIONS - seen)) == list(range(seen, TRANSACTIONS))


def test_a_position_kept_as_text_reads_on_from_the_same_place(case: Case) -> None:
    (ids, end), *_ = read(case.source, case.begin, 1)
    if len(ids) < TRANSACTIONS:
        again = case.read_position(end.to_text())
        assert ids_of(read(case.source, again, TRANSACTIONS - len(ids))) == list(range(len(ids), TRANSACTIONS))
    assert case.read_position(end.to_text()) == end


def test_interrupt_ends_a_read_that_waits(case: Case) -> None:
    reading = threading.Thread(target=lambda: list(_drained(case.source)), daemon=True)
    reading.start()
    while reading.is_alive():
        case.source.interrupt()
        reading.join(0.05)
    assert not reading.is_alive()


def _drained(source: Source) -> Iterator[Batch]:
    yield from source.read(source.now())


def test_history_that_is_gone_is_said_and_never_jumped_over(case: Case) -> None:
    case.source.check(case.begin)
    case.purge()
    with pytest.raises(HistoryGoneError):
        case.source.check(case.begin)
    with pytest.raises(HistoryGoneError):
        read(case.source, case.begin, 1)


def test_a_store_that_kept_everything_goes_on_at_the_offset(case: Case) -> None:
    offset = case.source.now()
    assert case.source.resume(offset, offset) == GoOn(offset, offset.version)


def test_a_store_that_kept_less_is_read_for_again_from_there(case: Case) -> None:
    offset = read(case.source, case.begin, TRANSACTIONS)[-1][1]
    found = case.source.resume(offset, case.begin)
    assert isinstance(found, ReadAgain) and found.position == case.begin


def test_a_store_that_lost_what_the_source_purged_is_backfilled_again(case: Case) -> None:
    offset = read(case.source, case.begin, TRANSACTIONS)[-1][1]
    case.purge()
    found = case.source.resume(offset, case.begin)
    assert isinstance(found, BackfillAgain) and found.position == offset


def test_a_store_of_a_later_epoch_is_not_written_over(case: Case) -> None:
    """Every write would be refused there as older, and nobody would see why."""
    offset = case.source.now()
    assert isinstance(offset, BinlogPosition | KafkaPosition)
    later = replace(offset, epoch=offset.epoch + 1)
    with pytest.raises(HistoryGoneError, match="epoch 2"):
        case.source.resume(offset, later)
