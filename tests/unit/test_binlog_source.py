"""What the binlog source keeps, and what it does not, from one read and one connection to the next."""

from __future__ import annotations

import errno
import struct
import tempfile

import pytest
import structlog

from ingest.binlog import source as module
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.source import BinlogSource
from tests.support.events import Stream, user_table
from viewtail.changes.batches import Batch, Followed
from viewtail.changes.errors import HistoryGoneError, SourceUnavailableError
from viewtail.servers.sessions import MySQLAddress

BEGIN = BinlogPosition(epoch=1, file="binlog.000012", end=4, start=4)


class Dump:
    """In place of a connection: a stream's bytes from a position on; then it is lost, or reading interrupted."""

    data = b""
    later: tuple[bytes, ...] = ()  # what the server wrote by the time of the following connections
    opened = 0
    source: BinlogSource

    def __init__(self, _address: MySQLAddress, _file: str, position: int, **_: object) -> None:
        self.has_checksums = True
        self.large_files: frozenset[str] = frozenset()
        self.folds_names = False
        self.clock_ahead_us = 0
        self._at = 0
        while self._at < len(Dump.data):
            length = int.from_bytes(Dump.data[self._at : self._at + 3], "little")
            size, end = struct.unpack_from("<II", Dump.data, self._at + 14)
            if end - size == position:
                break
            self._at += 4 + length
        Dump.opened += 1

    def has_data(self) -> bool:
        return self._at < len(Dump.data)

    def receive_into(self, target: memoryview) -> int:
        some = Dump.data[self._at : self._at + min(len(target), 4096)]
        if not some:
            if not Dump.later:
                Dump.source.interrupt()
            else:
                Dump.data += Dump.later[0]
                Dump.later = Dump.later[1:]
            raise SourceUnavailableError("the connection is lost")
        target[: len(some)] = some
        self._at += len(some)
        return len(some)

    def shut_down(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> BinlogSource:
    monkeypatch.setattr(module, "DumpConnection", Dump)
    made = BinlogSource(
        MySQLAddress(host="127.0.0.1", port=1, user="nobody"),
        {("shop", "user"): Followed(user_table(), ("id", "name"))},
        watermark_schema="viewtail",
        own_schemas=frozenset({"viewtail"}),
        epoch=1,
        spool_bytes=2000,
    )
    monkeypatch.setattr("viewtail.changes.retrying.Reaction.pause_s", lambda self, attempt: 0.0)
    monkeypatch.setattr(Dump, "source", made, raising=False)
    monkeypatch.setattr(Dump, "opened", 0)
    monkeypatch.setattr(Dump, "later", ())
    return made


def _told(batches: list[Batch]) -> tuple[list[int], int]:
    """The ids of all rows, and how many halts."""
    ids = [row[0] for batch in batches for change in batch.changes for row in change.rows]
    return ids, sum(len(batch.halts) for batch in batches)


def _stream_with_a_halt() -> Stream:
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    for first in (0, 45):  # above the memory bound: batches of its own
        stream.rows(30, [(number, b"x" * 40) for number in range(first, first + 45)])
    stream.commit()
    stream.transaction(2, [(100, b"two")])
    stream.gtid(3)
    stream.query("DROP TABLE user")
    stream.transaction(4, [(101, b"four")])
    return stream


def test_a_halt_that_was_delivered_comes_again_when_the_batch_was_not_applied(
    source: BinlogSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dump, "data", bytes(_stream_with_a_halt().data))
    first = _told(list(source.read(BEGIN)))
    assert first == (list(range(90)), 1)
    assert _told(list(source.read(BEGIN))) == first


def test_a_halted_table_stays_unread_after_a_reconnect_of_the_same_read(
    source: BinlogSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = _stream_with_a_halt()
    monkeypatch.setattr(Dump, "data", bytes(stream.data))
    before = len(stream.data)
    stream.transaction(5, [(102, b"five")])
    monkeypatch.setattr(Dump, "later", (bytes(stream.data[before:]),))
    batches = list(source.read(BEGIN))
    assert _told(batches) == (list(range(90)), 1)
    assert Dump.opened == 2
    assert batches[-1].end is not None and batches[-1].end.end == stream.position


def test_a_full_disk_is_tried_again_until_there_is_room_and_nothing_is_lost(
    source: BinlogSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream()
    stream.gtid(1)
    stream.query("BEGIN")
    stream.table_map()
    for number in range(500):
        stream.rows(30, [(number, b"x" * 40)])
    stream.commit()
    monkeypatch.setattr(Dump, "data", bytes(stream.data))
    real, failures = tempfile.TemporaryFile, iter([errno.ENOSPC, errno.EIO, 0])

    def made(**arguments: str) -> object:
        if number := next(failures):
            raise OSError(number, "the disk is full, or broken")
        return real(**arguments)

    monkeypatch.setattr("ingest.binlog.spool.tempfile.TemporaryFile", made)
    with structlog.testing.capture_logs() as logs:
        batches = list(source.read(BEGIN))
    assert _told(batches)[0] == list(range(500))
    assert batches[-1].end is not None and Dump.opened == 3
    assert ["free space in" in log["error"] for log in logs] == [True, True]


def test_an_event_that_fails_its_checksum_in_the_same_bytes_each_time_ends_in_a_halt_that_names_the_place(
    source: BinlogSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream()
    stream.transaction(1, [(1, b"one")])
    stream.transaction(2, [(2, b"two")])
    data = bytearray(stream.data)
    data[-6] ^= 1
    monkeypatch.setattr(Dump, "data", bytes(data))
    told: list[Batch] = []
    with pytest.raises(HistoryGoneError, match="viewtail replay --new-history") as caught:
        told.extend(source.read(BEGIN))
    assert f"event XID after binlog.000012:{stream.position - 31} fails" in str(caught.value)
    assert Dump.opened < 10


def test_an_event_that_fails_its_checksum_in_other_bytes_each_time_is_read_again_until_it_comes_whole(
    source: BinlogSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream()
    stream.transaction(1, [(1, b"one")])
    data = bytes(stream.data)

    def harmed(dump: Dump, *arguments: object, **named: object) -> None:
        bad = bytearray(data)
        if Dump.opened < 20:
            bad[-6] ^= Dump.opened + 1
        monkeypatch.setattr(Dump, "data", bytes(bad))
        real(dump, *arguments, **named)  # type: ignore[arg-type]

    real = Dump.__init__
    monkeypatch.setattr(Dump, "__init__", harmed)
    assert _told(list(source.read(BEGIN)))[0] == [1]
    assert Dump.opened > 20
