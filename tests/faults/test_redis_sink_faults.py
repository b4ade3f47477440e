"""The Redis sink while its server fails, loses what it had, or is set up so that it would."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import stack.redis
from ingest.binlog.coordinates import BinlogPosition
from projectors.stores.redis.sink import RedisSink
from stack.server import Server
from tests.contract.sinks import RedisHashOne
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.changes.writes import Key, ViewWrites, Write

TIMEOUT_S = 2


def position(end: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000007", end=end, start=end - 100, gtid="uuid:5")


class Scene:
    """A prepared sink on a server that may be harmed."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.store = RedisHashOne(server, "fault")
        self.view = self.store.person
        self.sink = self.sink_as()
        self.sink.prepare()

    def sink_as(self, **login: Any) -> RedisSink:
        def client() -> redis.Redis:
            return redis.Redis(port=self.server.port, socket_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0), **login)

        return RedisSink(
            client,
            [self.store.person, self.store.place],
            "faults",
            "redis",
            read_position=BinlogPosition.from_text,
        )

    @property
    def client(self) -> redis.Redis:
        return self.store.client()

    def write(self, writes: dict[Key, Write], upto: BinlogPosition | None = None) -> None:
        assert self.sink.write([ViewWrites(self.view.id, writes)], upto) == []

    def emails(self) -> dict[Key, str | None]:
        return {key: values[0] for key, (_, values) in self.store.shown(self.view).items()}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = stack.redis.start(tmp_path_factory.mktemp("harmed"))
    yield found
    found.kill()


@pytest.fixture
def scene(server: Server) -> Iterator[Scene]:
    client = redis.Redis(port=server.port)
    client.flushall()
    client.config_resetstat()
    found = Scene(server)
    yield found
    found.sink.close()


def test_what_was_sent_ahead_is_waited_for_by_its_push_alone(scene: Scene) -> None:
    writes = [ViewWrites(scene.view.id, {(1,): Write(5, ("sent", "n"))})]
    send = scene.sink.sender(writes)
    assert send is not None
    assert scene.emails() == {}, "nothing is sent yet"
    send()
    scene.sink.push(writes)
    assert scene.emails() == {(1,): "sent"}
    calls = scene.client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls == 1, "once is enough"
    scene.write({(1,): Write(6, ("later", "n"))})
    assert scene.emails() == {(1,): "later"}, "no answer was left for the next one"


def test_what_could_not_be_sent_ahead_makes_its_push_begin_anew(scene: Scene) -> None:
    writes = [ViewWrites(scene.view.id, {(1,): Write(5, ("sent", "n"))})]
    send = scene.sink.sender(writes)
    assert send is not None
    scene.sink._connection._sock.shutdown(socket.SHUT_RDWR)
    with pytest.raises(redis.ConnectionError):
        send()
    with pytest.raises(StoreUnavailableError, match="the connection broke"):
        scene.sink.push(writes)  # whatever became of the server must be looked at first
    assert scene.emails() == {}
    scene.sink.prepare()
    scene.sink.push(writes)
    assert scene.emails() == {(1,): "sent"}


def test_an_answer_that_nobody_waited_for_is_not_taken_for_another_one_s(scene: Scene) -> None:
    send = scene.sink.sender([ViewWrites(scene.view.id, {(1,): Write(5, ("sent", "n"))})])
    assert send is not None
    send()
    others = [ViewWrites(scene.view.id, {(2,): Write(5, ("other", "n"))})]
    with pytest.raises(StoreUnavailableError):
        scene.sink.push(others)
    scene.sink.prepare()
    scene.sink.push(others)
    assert scene.emails() == {(1,): "sent", (2,): "other"}


def test_scripts_that_were_flushed_before_rows_were_sent_ahead_are_loaded_again(scene: Scene) -> None:
    writes = [ViewWrites(scene.view.id, {(1,): Write(5, ("sent", "n"))})]
    send = scene.sink.sender(writes)
    assert send is not None
    scene.client.script_flush()
    send()
    scene.sink.push(writes)
    assert scene.emails() == {(1,): "sent"}


def test_what_an_idle_connection_may_not_take_at_once_is_not_sent_ahead(scene: Scene) -> None:
    most = {(key,): Write(5, ("x" * 200, "n")) for key in range(100)}
    assert scene.sink.sender([ViewWrites(scene.view.id, most)]) is None
    scene.sink.close()
    assert scene.sink.sender([ViewWrites(scene.view.id, {(1,): Write(5, ("sent", "n"))})]) is None


def test_a_hung_server_is_given_up_after_the_timeout_and_used_again_when_it_wakes(scene: Scene) -> None:
    scene.write({(1,): Write(5, ("old", "n"))})
    scene.server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            scene.write({(1,): Write(6, ("new", "n"))})
        with pytest.raises(StoreUnavailableError):
            scene.sink.prepare()
        assert time.monotonic() - began < 6 * TIMEOUT_S
    finally:
        scene.server.resume()
    scene.sink.prepare()
    scene.write({(1,): Write(6, ("new", "n"))})
    assert scene.emails() == {(1,): "new"}


def test_a_server_that_comes_back_empty_has_no_witness(scene: Scene) -> None:
    scene.write({(1,): Write(5, ("e", "n"))}, upto=position(500))
    assert scene.sink.witness(position(500)) == position(500)
    scene.server.kill()
    for file in (scene.server.directory / "data").rglob("*"):
        if file.is_file():
            file.unlink()
    scene.server.start()
    with pytest.raises(StoreUnavailableError):
        scene.sink.witness(position(500))
    scene.sink.prepare()
    assert scene.sink.witness(position(500)) is None


def test_a_witness_survives_a_restart_with_its_rows(scene: Scene) -> None:
    scene.write({(1,): Write(5, ("e", "n"))}, upto=position(500))
    scene.server.stop()  # the log is synced; a kill may lose its last second, rows and witness alike
    scene.server.start()
    scene.sink.prepare()
    assert scene.sink.witness(position(900)) == position(500)
    assert scene.emails() == {(1,): "e"}


def test_a_forgotten_script_is_loaded_again(scene: Scene) -> None:
    scene.client.script_flush()
    scene.write({(number,): Write(5, (f"e{number}", "n")) for number in range(1_000)}, upto=position(500))
    assert len(scene.emails()) == 1_000
    assert scene.sink.witness(position(500)) == position(500)


def test_a_full_server_is_waited_for_and_its_witness_stays_behind(scene: Scene) -> None:
    scene.write({(0,): Write(5, ("e", "n"))}, upto=position(500))
    used = int(scene.client.info("memory")["used_memory"])
    scene.client.config_set("maxmemory", used + 400_000)
    batch: dict[Key, Write] = {(number,): Write(6, ("e" * 200, "n" * 200)) for number in range(5_000)}
    try:
        scene.sink.prepare()
        with pytest.raises(StoreUnavailableError, match="OutOfMemory"):
            scene.write(batch, upto=position(900))
        scene.sink.prepare()
        assert scene.sink.witness(position(900)) == position(500)
    finally:
        scene.client.config_set("maxmemory", 0)
    scene.write(batch, upto=position(900))
    assert len(scene.emails()) == 5_000
    assert scene.sink.witness(position(900)) == position(900)


def test_a_server_that_may_evict_is_refused(scene: Scene) -> None:
    scene.client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        scene.sink.prepare()  # without a limit nothing is evicted
        scene.client.config_set("maxmemory", 100_000_000)
        with pytest.raises(StoreError, match="CONFIG SET maxmemory-policy noeviction"):
            scene.sink.prepare()
    finally:
        scene.client.config_set("maxmemory", 0)
        scene.client.config_set("maxmemory-policy", "noeviction")
    scene.sink.prepare()


def test_a_server_that_did_evict_is_refused_until_somebody_looked(scene: Scene) -> None:
    client = scene.client
    client.config_set("maxmemory-policy", "allkeys-random")
    try:
        for number in range(200):
            client.set(f"filler{number}", "x" * 10_000)
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) - 500_000)
        client.set("one more", "x" * 10_000)
    finally:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
    assert int(client.info("stats")["evicted_keys"]) > 0
    with pytest.raises(StoreError, match="evicted"):
        scene.sink.prepare()
    client.config_resetstat()
    scene.sink.prepare()


def test_a_replica_is_waited_for_to_become_a_primary(scene: Scene) -> None:
    scene.client.replicaof("127.0.0.1", 1)
    try:
        with pytest.raises(StoreUnavailableError, match="ReadOnly"):
            scene.write({(1,): Write(5, ("e", "n"))})
    finally:
        scene.client.replicaof("NO", "ONE")
    scene.sink.prepare()
    scene.write({(1,): Write(5, ("e", "n"))})
    assert scene.emails() == {(1,): "e"}


def test_a_wrong_password_says_so_and_does_not_show_it(scene: Scene) -> None:
    scene.client.acl_setuser("viewer", enabled=True, passwords=["+right"], categories=["+@all"], keys=["*"])
    with pytest.raises(StoreError, match="Check user, password") as refusal:
        scene.sink_as(username="viewer", password="canary").prepare()
    assert "canary" not in str(refusal.value)
    scene.sink_as(username="viewer", password="right").prepare()
    scene.client.acl_deluser("viewer")


@pytest.mark.parametrize("keys", ["viewtail:*", "nothing*"])
def test_missing_permissions_say_so(scene: Scene, keys: str) -> None:
    scene.client.acl_setuser("limited", enabled=True, passwords=["+right"], categories=["+@all"], keys=[keys])
    sink = scene.sink_as(username="limited", password="right")

    def write() -> None:
        sink.prepare()
        sink.write([ViewWrites(scene.view.id, {(1,): Write(5, ("e", "n"))})], None)

    with pytest.raises(StoreError, match="permissions"):
        write()
    sink.close()
    scene.client.acl_deluser("limited")


def test_a_connection_that_was_cut_is_reported_and_made_anew(scene: Scene) -> None:
    scene.write({(1,): Write(5, ("e", "n"))})
    scene.client.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(StoreUnavailableError):
        scene.write({(1,): Write(6, ("f", "n"))}, upto=position(500))
    with pytest.raises(StoreUnavailableError):
        scene.write({(1,): Write(6, ("f", "n"))}, upto=position(500))
    scene.sink.prepare()
    assert scene.sink.witness(position(500)) is None
    scene.write({(1,): Write(6, ("f", "n"))}, upto=position(500))
    assert scene.emails() == {(1,): "f"}


def test_an_answer_that_was_not_read_is_never_taken_for_a_later_one(scene: Scene) -> None:
    # A failure amid several scripts leaves answers on the wire; the next batch must see its own.
    scene.client.rpush(f"{scene.view.view.name}:3", "somebody else's")
    scene.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailableError):
            scene.write({(number,): Write(5, ("e", "n")) for number in range(1_000)})
    finally:
        scene.client.config_set("maxmemory", 0)
    scene.sink.prepare()
    parked = scene.sink.write([ViewWrites(scene.view.id, {(3,): Write(5, ("e", "n"))})], None)
    assert [one.key for one in parked] == ["3"]
    assert scene.sink.write([ViewWrites(scene.view.id, {(4,): Write(5, ("e", "n"))})], None) == []
