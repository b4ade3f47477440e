"""The MySQL sink while its server, or another session there, gets in the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pymysql
import pytest

import stack.mysql
from ingest.binlog.coordinates import BinlogPosition
from offsets import schema
from projectors.stores.index_tables import sink as sink_module
from projectors.stores.index_tables import table
from projectors.stores.index_tables.offsets import SharedOffsets
from projectors.stores.index_tables.sink import MySQLSink
from stack.server import Server
from tests.contract.sinks import MySQLOne
from tests.support.asking import ask
from tests.support.missing import missing
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.changes.writes import Key, ViewWrites, Write
from viewtail.servers.sessions import MySQLAddress, open_session

PATIENCE_S = 60  # of whatever waits for what does come, on a busy machine too
LOCK_WAIT_S = 2
IO_TIMEOUT_S = 3
POSITION = BinlogPosition(epoch=1, file="binlog.000007", end=900, start=800, gtid="uuid:5")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that may be harmed; each test leaves it running."""
    found = stack.mysql.start(tmp_path_factory.mktemp("harmed"), options=[f"--innodb-lock-wait-timeout={PATIENCE_S}"])
    yield found
    found.kill()


class Scene:
    """A prepared sink, and other sessions beside it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._others: list[pymysql.Connection[Any]] = []
        self.store = MySQLOne(server, f"fault_{time.monotonic_ns()}")
        self.view = self.store.person
        self.table = f"{self.store.database}.{self.view.view.name}"
        self.sink = self.new_sink()
        self.sink.prepare()

    def new_sink(self, *, io_timeout_s: float = PATIENCE_S, lock_wait_s: int = PATIENCE_S) -> MySQLSink:
        address = MySQLAddress(host="127.0.0.1", port=self.server.port, user="root", io_timeout_s=io_timeout_s)

        def session() -> pymysql.Connection[Any]:
            connection = open_session(address, role="store")
            connection.query(f"SET SESSION innodb_lock_wait_timeout = {lock_wait_s}")
            return connection

        return MySQLSink(session, self.store.database, [self.store.person, self.store.place])

    def become_impatient(self, *, io_timeout_s: float = PATIENCE_S, lock_wait_s: int = PATIENCE_S) -> None:
        """The sink gives up after so long, from now on."""
        self.sink.close()
        self.sink = self.new_sink(io_timeout_s=io_timeout_s, lock_wait_s=lock_wait_s)
        self.sink.prepare()

    def other(self) -> pymysql.Connection[Any]:
        """A session that is rolled back when the scene is over, however its test ended."""
        found = pymysql.connect(host="127.0.0.1", port=self.server.port, user="root")
        self._others.append(found)
        return found

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return ask(self.server, query)

    def share_offsets(self) -> SharedOffsets:
        """An offset store on the sink's connection, as the MySQL pipeline has it; taken."""
        address = MySQLAddress(host="127.0.0.1", port=self.server.port, user="root")
        with closing(open_session(address, role="store")) as connection:
            schema.create(connection, address, self.store.database, schema.STORE_TABLES, role="store")
        offsets = self.sink.offsets("mysql", BinlogPosition.from_text)
        offsets.take()
        return offsets

    def write(self, writes: dict[Key, Write]) -> None:
        assert self.sink.write([ViewWrites(self.view.id, writes)], None) == []

    def commit(self) -> None:
        self.sink.connection.commit()

    def close(self) -> None:
        """First the sessions: one with an open transaction would keep its table from being dropped."""
        for session in self._others:
            if session.open:
                session.close()
        self.sink.close()
        self.store.close()

    def emails(self) -> dict[Key, str | None]:
        return {key: values[0] for key, (_, values) in self.store.shown(self.view).items()}


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    found = Scene(server)
    yield found
    found.close()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.01)


def is_waiting(scene: Scene) -> bool:
    """For a row of this table: the server itself may wait for one of its own."""
    return bool(
        scene.ask(
            "SELECT l.lock_data FROM performance_schema.data_lock_waits w JOIN performance_schema.data_locks l "
            "ON l.engine_lock_id = w.requesting_engine_lock_id "
            f"WHERE CONCAT(l.object_schema, '.', l.object_name) = '{scene.table}'"
        )
    )


def deadlocks(scene: Scene) -> int:
    ((count,),) = scene.ask("SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'")
    return int(count)


def test_rows_that_were_not_committed_are_gone_after_a_crash_and_can_be_written_again(scene: Scene) -> None:
    scene.write({(1,): Write(5, ("durable", "n"))})
    scene.commit()
    batch: dict[Key, Write] = {(1,): Write(6, ("open", "n")), (2,): Write(6, ("open", "n"))}
    scene.write(batch)
    scene.server.kill()
    scene.server.start()
    with pytest.raises(pymysql.err.MySQLError):
        scene.sink.connection.commit()
    with pytest.raises(StoreUnavailableError):
        scene.write(batch)
    assert scene.emails() == {(1,): "durable"}
    scene.sink.prepare()
    scene.write(batch)
    scene.commit()
    assert scene.emails() == {(1,): "open", (2,): "open"}


def test_a_broken_connection_is_never_replaced_in_silence(scene: Scene) -> None:
    scene.write({(1,): Write(5, ("open", "n"))})
    scene.ask(f"KILL {scene.sink.connection.thread_id()}")
    with pytest.raises(StoreUnavailableError):
        scene.write({(2,): Write(5, ("later", "n"))})
    # An offset saved now would say that key 1 is durable.
    with pytest.raises(StoreUnavailableError):
        _ = scene.sink.connection
    with pytest.raises(StoreUnavailableError):
        scene.write({(2,): Write(5, ("later", "n"))})
    scene.sink.prepare()
    scene.commit()
    assert scene.emails() == {}


def test_a_hung_server_is_given_up_after_the_timeout_and_used_again_when_it_wakes(scene: Scene) -> None:
    batch: dict[Key, Write] = {(1,): Write(6, ("hung", "n"))}
    scene.become_impatient(io_timeout_s=IO_TIMEOUT_S)
    scene.server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            scene.write(batch)
        assert time.monotonic() - began < IO_TIMEOUT_S + 5
    finally:
        scene.server.resume()
    _until_written(scene, batch)
    assert scene.emails() == {(1,): "hung"}


def _until_written(scene: Scene, batch: dict[Key, Write]) -> None:
    """As the pipeline does it: prepare and write until it holds."""
    deadline = time.monotonic() + 30
    while True:
        try:
            scene.sink.prepare()
            scene.write(batch)
            scene.commit()
            return
        except StoreUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def _deadlock(scene: Scene, write: Callable[[], object], release: bool) -> Any:
    """Have a write of key 1 and then others lose a deadlock against a session that changed more; its future."""
    # What goes wrong ends the session before the pool waits for the write, which waits for the session.
    with ThreadPoolExecutor(1) as pool, closing(scene.other()) as other, other.cursor() as cursor:
        cursor.execute(f"UPDATE {scene.table} SET note = 'theirs' WHERE id >= 2")
        future = pool.submit(write)
        wait_for(lambda: is_waiting(scene), "the sink to wait for key 2")
        cursor.execute(f"UPDATE {scene.table} SET note = 'theirs' WHERE id = 1")
        if release:
            other.commit()
        future.exception()  # waits
        other.rollback()
    return future


def test_a_deadlock_is_tried_again_in_place(scene: Scene) -> None:
    scene.write({(number,): Write(5, ("old", "n")) for number in range(1, 200)})
    scene.commit()
    before = deadlocks(scene)
    batch: dict[Key, Write] = {(1,): Write(6, ("new", "n")), (2,): Write(6, ("new", "n"))}
    future = _deadlock(scene, lambda: scene.write(batch), release=True)
    assert future.exception() is None
    wait_for(lambda: deadlocks(scene) == before + 1, "the server to count the deadlock")
    scene.commit()
    assert scene.emails()[1,] == scene.emails()[2,] == "new"


def test_a_deadlock_at_the_head_of_a_flight_loses_neither_rows_nor_offset(scene: Scene) -> None:
    # The server rolls back the statement that lost, and executes those behind it in a transaction of their own.
    offsets = scene.share_offsets()
    scene.write({(number,): Write(5, ("old", "n")) for number in range(1, 200)})
    scene.commit()
    people: dict[Key, Write] = {(number,): Write(6, ("new", "n")) for number in range(1, 1_601)}
    people[1_601,] = Write(6, ("x" * 201, "longer than the column"))
    places: dict[Key, Write] = {("DE", number): Write(6, ("Ulm",)) for number in range(3)}
    writes = [ViewWrites(scene.view.id, people), ViewWrites(scene.store.place.id, places)]
    before = deadlocks(scene)
    future = _deadlock(scene, lambda: scene.sink.write(writes, POSITION), release=True)
    assert [one.key for one in future.result()] == ["1601"]
    wait_for(lambda: deadlocks(scene) == before + 1, "the server to count the deadlock")
    assert scene.emails() == {(number,): "old" for number in range(1, 200)}
    offsets.save(POSITION)
    assert scene.emails() == {(number,): "new" for number in range(1, 1_601)}
    assert len(scene.store.shown(scene.store.place)) == 3
    assert offsets.take().position == POSITION


def test_a_deadlock_that_is_given_up_leaves_nothing_of_its_flight(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "DEADLOCK_ATTEMPTS", 1)
    offsets = scene.share_offsets()
    scene.write({(number,): Write(5, ("old", "n")) for number in range(1, 200)})
    scene.commit()
    people: dict[Key, Write] = {(number,): Write(6, ("new", "n")) for number in range(1, 1_601)}
    places: dict[Key, Write] = {("DE", 1): Write(6, ("Ulm",))}
    writes = [ViewWrites(scene.view.id, people), ViewWrites(scene.store.place.id, places)]
    future = _deadlock(scene, lambda: scene.sink.write(writes, POSITION), release=True)
    assert isinstance(future.exception(), StoreUnavailableError)
    scene.sink.prepare()
    scene.commit()
    assert set(scene.emails().values()) == {"old"}
    assert scene.store.shown(scene.store.place) == {}
    assert offsets.take().position is None
    assert scene.sink.write(writes, POSITION) == []
    offsets.save(POSITION)
    assert set(scene.emails().values()) == {"new"}
    assert offsets.take().position == POSITION


def test_a_deadlock_that_took_earlier_writes_with_it_is_reported(scene: Scene) -> None:
    scene.write({(number,): Write(5, ("old", "n")) for number in range(1, 200)})
    scene.commit()
    scene.write({(-1,): Write(6, ("earlier piece", "n"))})
    batch: dict[Key, Write] = {(1,): Write(6, ("new", "n")), (2,): Write(6, ("new", "n"))}
    future = _deadlock(scene, lambda: scene.write(batch), release=True)
    assert isinstance(future.exception(), StoreUnavailableError)
    scene.commit()
    assert scene.emails()[1,] == "old"
    assert (-1,) not in scene.emails()


def test_a_lock_that_does_not_come_free_rolls_everything_back(scene: Scene) -> None:
    scene.become_impatient(lock_wait_s=LOCK_WAIT_S)
    scene.write({(1,): Write(5, ("old", "n"))})
    scene.commit()
    other = scene.other()
    with other.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {scene.table} WHERE id = 1 FOR UPDATE")
        scene.write({(0,): Write(6, ("first", "n"))})
        with pytest.raises(StoreUnavailableError, match="1205"):
            scene.write({(1,): Write(6, ("new", "n"))})
    other.rollback()
    scene.commit()
    assert scene.emails() == {(1,): "old"}
    scene.write({(0,): Write(6, ("first", "n")), (1,): Write(6, ("new", "n"))})
    scene.commit()
    assert scene.emails() == {(0,): "first", (1,): "new"}


def test_two_writers_of_the_same_keys_end_with_the_newest(scene: Scene) -> None:
    second = scene.new_sink()
    second.prepare()
    failed: list[BaseException] = []

    def run(sink: MySQLSink, versions: range) -> None:
        try:
            for version in versions:
                keys = range(600) if version % 2 else range(599, -1, -1)
                writes: dict[Key, Write] = {(key,): Write(version, (f"v{version}", "n")) for key in keys}
                sink.write([ViewWrites(scene.view.id, writes)], None)
                sink.connection.commit()
        except BaseException as error:
            failed.append(error)

    threads = [
        threading.Thread(target=run, args=(sink, versions))
        for sink, versions in ((scene.sink, range(10, 50, 2)), (second, range(11, 51, 2)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    second.close()
    assert failed == []
    assert set(scene.emails().values()) == {"v49"}


def test_a_reader_that_holds_the_table_delays_a_new_shape_for_a_bounded_time(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "DDL_WAIT_S", 1)
    scene.ask(f"ALTER TABLE {scene.table} DROP COLUMN note, DROP INDEX {table.INDEX}")
    reader = scene.other()
    with reader.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {scene.table}")
        with pytest.raises(StoreUnavailableError, match="1205"):
            scene.sink.prepare()
    reader.rollback()
    scene.sink.prepare()
    scene.write({(1,): Write(5, ("e", "n"))})
    scene.commit()
    assert scene.emails() == {(1,): "e"}


def test_a_dropped_table_is_missing_until_it_is_made_again(scene: Scene) -> None:
    assert missing(scene.sink) == frozenset()
    scene.ask(f"DROP TABLE {scene.table}")
    with pytest.raises(StoreUnavailableError, match=r"1146.*creates it again and backfills"):
        scene.write({(1,): Write(5, ("e", "n"))})
    assert missing(scene.sink) == {scene.view.id}
    scene.sink.prepare()
    assert missing(scene.sink) == frozenset()


def test_no_error_quotes_a_value(scene: Scene) -> None:
    scene.ask(f"ALTER TABLE {scene.table} DROP COLUMN note, DROP INDEX {table.INDEX}")
    with pytest.raises(StoreUnavailableError, match="1054") as refusal:
        scene.write({(1,): Write(5, ("very secret", "very secret"))})
    assert "secret" not in str(refusal.value)
    assert refusal.value.__suppress_context__


def test_a_sink_whose_login_is_refused_says_so(scene: Scene) -> None:
    address = MySQLAddress(host="127.0.0.1", port=scene.server.port, user="nobody", password="canary")
    sink = MySQLSink(lambda: open_session(address, role="store"), scene.store.database, [scene.view])
    with pytest.raises(StoreError, match="1045") as refusal:
        sink.prepare()
    assert "canary" not in str(refusal.value)
