"""Binlogs that are encrypted on the server's disk are read as ever; damaged or missing ones are said to be that."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import stack.mariadb
import stack.mysql
from ingest.binlog.events import MARIADB_START_ENCRYPTION, WRITE_ROWS_V1, XID
from stack import Server
from tests.contract.test_events_of_a_server import Reader, change_at_random
from tests.support import encrypted
from tests.support.binlog_file import WRITE_ROWS, events
from tests.support.running import wait_for
from viewtail.changes.batches import INSERT
from viewtail.changes.errors import HistoryGoneError, ViewtailError

SECRET = "a text that stands in no encrypted file"


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = encrypted.mysql(tmp_path_factory.mktemp("encrypted"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = encrypted.mariadb(tmp_path_factory.mktemp("encrypted"))
    yield server
    server.stop()


def binlogs(server: Server) -> list[Path]:
    return sorted((server.directory / "data").glob("binlog.0*"))


def test_an_encrypted_binlog_of_a_mysql_is_read_as_ever(mysql: Server) -> None:
    reader = Reader(mysql)
    reader.execute(f"INSERT INTO events.t VALUES (1, 1, '[1]', '{SECRET}')")
    change_at_random(reader, random.Random(4), 40)
    reader.execute("FLUSH BINARY LOGS", f"REPLACE INTO events.t VALUES (2, 2, NULL, '{SECRET}')")
    reader.read()
    reader.assert_equal()
    files = [path.read_bytes() for path in binlogs(mysql)]
    assert all(file.startswith(encrypted.MYSQL_MAGIC) and SECRET.encode() not in file for file in files)
    # Resumed in the middle of a file.
    reader.execute("UPDATE events.t SET n = -1 WHERE id < 100")
    reader.read()
    reader.assert_equal()


@pytest.mark.mariadb
def test_an_encrypted_binlog_of_a_mariadb_is_read_as_ever(mariadb: Server) -> None:
    reader = Reader(mariadb)
    reader.execute(f"INSERT INTO events.t VALUES (1, 1, '[1]', '{SECRET}'), (3, 3, NULL, '')")
    reader.execute("SET GLOBAL log_bin_compress = ON", f"REPLACE INTO events.u VALUES ('a', 1, '{SECRET * 4}')")
    reader.execute("FLUSH BINARY LOGS", f"REPLACE INTO events.t VALUES (2, 2, NULL, '{SECRET}')")
    reader.read()
    reader.assert_equal()
    for path in binlogs(mariadb):
        file = path.read_bytes()
        # Behind the format description stands the event that says how all others are encrypted.
        description_bytes = int.from_bytes(file[13:17], "little")
        assert file[4 + description_bytes + 4] == MARIADB_START_ENCRYPTION
        assert SECRET.encode() not in file
    reader.execute("UPDATE events.t SET n = -1")
    reader.read()
    reader.assert_equal()


# --- Damaged or removed ---


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of this module's own, whose files are tampered with."""
    server = stack.mysql.start(tmp_path_factory.mktemp("damaged") / "mysql")
    yield server
    server.stop()


class Unread:
    """Three rows in a binlog of their own that a reader has yet to read, and what comes of reading them."""

    def __init__(self, server: Server) -> None:
        self.reader = Reader(server)
        self.reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, NULL)")
        self.reader.read()
        self.before = binlogs(server)[-1]  # where reading begins
        self.reader.execute(
            "FLUSH BINARY LOGS",
            *(f"INSERT INTO events.t VALUES ({number}, 1, NULL, NULL)" for number in (2, 3, 4)),
        )
        self.file = binlogs(server)[-1]
        self.source = self.reader.source()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read)

    def ids(self) -> list[int]:
        return sorted(number for name, number in self.reader.held if name == "t" and number in (2, 3, 4))

    def start(self) -> None:
        self._thread.start()

    def _read(self) -> None:
        try:
            for batch in self.source.read(self.reader.begin):
                self.reader._apply(batch)
        except ViewtailError as error:
            self.error = error

    def stop(self) -> None:
        self.source.interrupt()
        self._thread.join(20)
        assert not self._thread.is_alive()


@pytest.fixture
def unread(plain: Server) -> Iterator[Unread]:
    made = Unread(plain)
    yield made
    made.stop()
    made.reader.execute("RESET BINARY LOGS AND GTIDS")


def second_row(file: Path) -> tuple[int, int]:
    """Where the row event of the second of the rows begins and ends."""
    ends = [0, *(event.end for event in events(file))]
    kinds = [event.type for event in events(file)]
    at = [number for number, kind in enumerate(kinds) if kind == WRITE_ROWS][1]
    return ends[at], ends[at + 1]


def test_a_binlog_that_is_damaged_on_disk_is_never_read_past_and_its_place_is_told(unread: Unread) -> None:
    """The server sends the bytes as they are; they may be whole the next time, if a disk fails now and then."""
    whole = unread.file.read_bytes()
    start, end = second_row(unread.file)
    unread.file.write_bytes(whole[: end - 6] + bytes((whole[end - 6] ^ 1,)) + whole[end - 5 :])
    unread.start()
    wait_for("it was tried again", lambda: unread.source.progress.reconnect_count > 2)
    told = unread.source.progress.trouble or ""
    assert f"WRITE_ROWS after {unread.file.name}:{start} fails its checksum" in told
    assert unread.ids() in ([], [2])
    unread.file.write_bytes(whole)
    wait_for("all rows have come", lambda: unread.ids() == [2, 3, 4])
    assert unread.error is None


def test_a_binlog_that_the_server_cannot_read_stops_the_pipeline_with_the_place(unread: Unread) -> None:
    whole = unread.file.read_bytes()
    start, _ = second_row(unread.file)
    unread.file.write_bytes(whole[: start + 9] + b"\xff\xff\xff\x7f" + whole[start + 13 :])
    unread.start()
    wait_for("it has stopped", lambda: unread.error is not None)
    assert isinstance(unread.error, HistoryGoneError)
    assert unread.file.name in str(unread.error) and "viewtail replay --new-history" in str(unread.error)
    assert unread.ids() in ([], [2])


@pytest.mark.parametrize("which", ["before", "file"])
def test_a_binlog_that_was_removed_under_the_server_stops_the_pipeline_with_the_place(
    unread: Unread, which: str
) -> None:
    file = unread.before if which == "before" else unread.file
    file.unlink()
    unread.start()
    wait_for("it has stopped", lambda: unread.error is not None)
    assert isinstance(unread.error, HistoryGoneError)
    assert f"cannot continue from {file.name}:" in str(unread.error)
    assert "viewtail replay --new-history" in str(unread.error)
    assert unread.ids() == []


@pytest.mark.mariadb
def test_a_transaction_that_a_server_did_not_finish_when_it_died_is_left_out(tmp_path: Path) -> None:
    """MariaDB leaves its rows in the binlog. (MySQL cuts them off as it recovers.)"""
    server = stack.mariadb.start(tmp_path / "mariadb")
    try:
        reader = Reader(server)
        reader.execute("INSERT INTO events.t VALUES (1, 1, NULL, 'x')")
        reader.read()
        reader.execute("INSERT INTO events.t VALUES (2, 1, NULL, 'cut'), (3, 1, NULL, 'cut')")
        server.kill()
        file = binlogs(server)[-1]
        *_, rows, commit = events(file)
        assert (rows.type, commit.type) == (WRITE_ROWS_V1, XID)
        os.truncate(file, rows.end)
        server.start()
        # Rolled back where a server dies at that moment; this one had committed it before.
        reader.execute("DELETE FROM events.t WHERE n = 1 AND id > 1", "INSERT INTO events.t VALUES (4, 4, NULL, 'x')")
        reader.read()
        reader.assert_equal()
        assert ("t", 4) in reader.held
        inserted = [
            row for batch in reader.batches for change in batch.changes if change.kind == INSERT for row in change.rows
        ]
        assert not {2, 3} & {row[0] for row in inserted}
    finally:
        server.kill()
