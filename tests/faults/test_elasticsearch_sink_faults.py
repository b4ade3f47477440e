"""The Elasticsearch sink while its server hangs, dies, is full, loses an index, or what is between them garbles."""

from __future__ import annotations

import http.client
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from elasticsearch import Elasticsearch

from ingest.binlog.coordinates import BinlogPosition
from projectors.stores.elasticsearch import sink as module
from projectors.stores.elasticsearch.reading import IDS_A_PAGE
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from stack.server import HOST, Server
from tests.contract.sinks import ElasticsearchOne, Shown
from tests.support.missing import missing
from tests.support.running import wait_for
from viewtail.changes.errors import StoreError, StoreUnavailableError
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

TIMEOUT_S = 2.0

_numbers = itertools.count(1)


def position(end: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000007", end=end, start=end - 1, gtid="uuid:5")


class Scene:
    """A prepared sink on a server that may be harmed; `url` may lead there by another way."""

    def __init__(self, server: Server, url: str = "") -> None:
        self.server = server
        self.url = url or server.url
        self.store = ElasticsearchOne(server, f"fault_{next(_numbers)}")
        self.view = self.store.person
        self.index = f"viewtail-{self.view.view.name}"
        self.client = self.store.client()
        with closing(self.store.sink(self.view)) as patient:  # a node that just started may take long for an index
            patient.prepare()
        self.sink = self.new_sink()
        self.sink.prepare()

    def new_sink(self) -> ElasticsearchSink:
        url = self.url
        return ElasticsearchSink(
            lambda: Elasticsearch(url, request_timeout=TIMEOUT_S, max_retries=0),
            [self.view],
            "fault",
            read_position=BinlogPosition.from_text,
        )

    def write(self, writes: dict[Key, Write], upto: BinlogPosition | None = None) -> list[Parked]:
        return self.sink.write([ViewWrites(self.view.id, writes)], upto)

    def shown(self) -> Shown:
        return self.store.shown(self.view)

    def indices(self) -> list[str]:
        """Whatever there is of the view, under any name."""
        found = self.client.indices.get(index="*", expand_wildcards="all").body
        return [name for name in found if self.view.view.name in name]

    @contextmanager
    def blocked(self, block: str) -> Iterator[None]:
        self.client.indices.put_settings(index=self.index, settings={block: True})
        try:
            yield
        finally:
            self.client.indices.put_settings(index=self.index, settings={block: None})

    def close(self) -> None:
        self.sink.close()
        self.store.close()
        self.client.close()


@pytest.fixture
def scene(harmed_elasticsearch: Server) -> Iterator[Scene]:
    found = Scene(harmed_elasticsearch)
    yield found
    found.close()


def rows(count: int, version: int, text: str = "e") -> dict[Key, Write]:
    return {(number,): Write(version, (f"{text}{number}", None)) for number in range(count)}


def as_shown(writes: dict[Key, Write]) -> Shown:
    return {key: (version, values) for key, (version, values) in writes.items() if isinstance(values, tuple)}


# --- a server that hangs, or dies ---


@pytest.mark.parametrize("count", [1, 2_500], ids=["one request", "several at once"])
def test_a_hung_server_is_given_up_after_the_timeout_and_doubles_nothing_when_it_wakes(
    scene: Scene, count: int
) -> None:
    batch = rows(count, 6, "hung")
    scene.write({(0,): Write(5, ("old", "n"))}, position(100))
    scene.server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            scene.write(batch, position(200))
        with pytest.raises(StoreUnavailableError):
            scene.sink.prepare()
        assert time.monotonic() - began < 2 * TIMEOUT_S + 3
    finally:
        scene.server.resume()
    newer: dict[Key, Write] = {(0,): Write(8, ("newer", "n"))}

    def written() -> bool:
        scene.sink.prepare()
        return scene.write(batch, position(200)) == [] and scene.write(newer, position(300)) == []

    wait_for("the same write succeeds", written)
    # What was sent while it hung is executed as well, perhaps only now; the versions keep it from winning.
    assert scene.shown() == as_shown(batch | newer)
    assert scene.sink.witness(position(300)) == position(300)


def test_a_server_killed_amid_writes_loses_nothing_that_was_acknowledged(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WITNESS_EVERY_S", 0.05)
    acknowledged = 0
    stop = threading.Event()

    def batch(number: int) -> dict[Key, Write]:
        return {(number * 7 + at,): Write(number, (f"{number}", None)) for at in range(600)}

    def write_on() -> None:
        nonlocal acknowledged
        for number in itertools.count(1):
            if stop.is_set():
                return
            assert scene.write(batch(number), position(number)) == []
            acknowledged = number

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(write_on)
        try:
            wait_for("some batches", lambda: acknowledged >= 20)
            scene.server.kill()
            assert isinstance(future.exception(timeout=30), StoreUnavailableError)
        finally:
            stop.set()
    scene.server.start()
    wait_for("the sink is ready", lambda: scene.sink.prepare() == {})
    kept = scene.sink.witness(position(acknowledged))
    assert kept is not None and 1 < kept.end <= acknowledged + 1
    shown = scene.shown()
    expected: dict[Key, Write] = {}
    for number in range(1, acknowledged + 1):
        expected |= batch(number)
    assert all(shown[key][0] >= version for key, (version, _) in expected.items())
    # As the pipeline does: again from the witness, which may be behind.
    for number in range(kept.end, acknowledged + 2):
        assert scene.write(batch(number), position(number)) == []
    assert scene.shown() == as_shown(expected | batch(acknowledged + 1))


# --- an index that takes no writes ---


@pytest.mark.parametrize(
    "block", ["index.blocks.write", "index.blocks.read_only", "index.blocks.read_only_allow_delete"]
)
def test_a_blocked_index_is_waited_for_and_parks_nothing(
    scene: Scene, block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WITNESS_EVERY_S", 0.0)
    old = rows(1_200, 5)
    assert scene.write(old, position(100)) == []
    batch = rows(1_200, 6, "new") | {(1,): Write(6, None)}
    with scene.blocked(block):
        began = time.monotonic()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match=r"index\.blocks|viewtail goes on by itself"):
                scene.write(batch, position(200))
            with pytest.raises(StoreUnavailableError):
                scene.write({}, position(200))  # the witness alone
            scene.sink.prepare()
        assert time.monotonic() - began < 10, "a block is not waited for inside a write"
        assert scene.sink.witness(position(200)) == position(100)
        assert scene.shown() == as_shown(old)
        found = {pair for page in scene.sink.keys_below(scene.view.id, 6) for pair in page}
        assert len(found) == 1_200
    assert scene.write(batch, position(200)) == []
    assert scene.sink.witness(position(200)) == position(200)
    assert scene.shown() == as_shown(batch)


def test_closing_over_a_blocked_index_leaves_the_witness_behind(scene: Scene) -> None:
    assert scene.write(rows(3, 5), position(100)) == []
    assert scene.write(rows(3, 6), position(200)) == []  # within a second of the first: kept until the close
    with scene.blocked("index.blocks.write"):
        scene.sink.close()
    scene.sink.prepare()
    assert scene.sink.witness(position(200)) == position(100)


# --- an index that goes away ---


def test_an_index_deleted_amid_a_write_is_noticed_and_made_by_no_bulk(scene: Scene) -> None:
    batch = rows(30_000, 5)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(scene.write, batch, position(100))

        def has_some() -> bool:
            stats = scene.client.indices.stats(index=scene.index)["indices"][scene.index]
            return bool(stats["primaries"]["indexing"]["index_total"])

        wait_for("some documents", has_some)
        scene.client.indices.delete(index=scene.index)
        assert isinstance(future.exception(timeout=60), StoreUnavailableError)
    assert scene.indices() == []
    with pytest.raises(StoreUnavailableError):
        scene.write({}, position(100))  # the witness alone
    assert scene.indices() == []
    assert missing(scene.sink) == {scene.view.id}
    mapping = scene.client.indices.get_mapping(index=scene.index)[scene.index]["mappings"]
    assert mapping["dynamic"] == "strict"
    assert scene.write(batch, position(100)) == []
    assert scene.shown() == as_shown(batch)


def test_an_index_that_somebody_made_in_the_place_of_a_deleted_one_is_not_written_to(scene: Scene) -> None:
    assert scene.write(rows(3, 5), position(100)) == []
    scene.client.indices.delete(index=scene.index)
    scene.client.index(index=scene.index, id="theirs", document={"x": 1}, refresh=True)
    with pytest.raises(StoreUnavailableError):
        scene.write(rows(3, 6), position(200))
    (reason,) = scene.sink.prepare().values()
    assert scene.index in reason
    assert scene.client.count(index=scene.index)["count"] == 1


# --- answers that are none ---


class Proxy(ThreadingHTTPServer):
    """Hands every request on that `refuse` gives no answer to, and the answer back through `garble`."""

    daemon_threads = True

    def __init__(self, server: Server) -> None:
        super().__init__((HOST, 0), _Handler)
        self.upstream = server.port
        self.garble: Callable[[bytes], bytes] | None = None
        self.refuse: Callable[[str, bytes], bytes | None] = lambda path, body: None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        if (refusal := self.server.refuse(self.path, body)) is not None:
            self.wfile.write(refusal)
            return
        upstream = http.client.HTTPConnection(HOST, self.server.upstream, timeout=20)
        upstream.request(self.command, self.path, body, dict(self.headers.items()))
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        kept = [(name, value) for name, value in answer.getheaders() if name.lower() in _KEPT]
        raw = _answer(answer.status, content, *kept)
        if self.server.garble is not None:
            raw = self.server.garble(raw)
            self.close_connection = True
        self.wfile.write(raw)

    do_GET = do_PUT = do_DELETE = do_HEAD = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


_KEPT = ("content-type", "content-encoding", "x-elastic-product")


def _answer(status: int, content: bytes, *headers: tuple[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in headers)]
    head = "\r\n".join([*lines, f"content-length: {len(content)}", "", ""])
    return head.encode() + content


def _made(status: int, kind: str, content: bytes) -> Callable[[bytes], bytes]:
    head = (("content-type", kind), ("x-elastic-product", "Elasticsearch"), ("connection", "close"))
    return lambda _: _answer(status, content, *head)


JSON = "application/vnd.elasticsearch+json; compatible-with=9"
GARBLED: dict[str, Callable[[bytes], bytes]] = {
    "cut in its body": lambda raw: raw[:-20],
    "cut in its head": lambda raw: raw[:20],
    "nothing at all": lambda raw: b"",
    "no HTTP": lambda raw: b"\x16\x03\x01\x02\0 SSH-2.0\r\n\r\n\xff",
    "half of some JSON": _made(200, JSON, b'{"items":[{"index":{"sta'),
    "JSON of another shape": _made(200, JSON, b'["secret"]'),
    "a page": _made(200, "text/html", b"<html>secret</html>"),
    "bytes": _made(200, "application/octet-stream", b"\xff\xfe\0"),
    "text that is none": _made(200, "text/plain", b"\xff\xfe\0"),
    "a gateway's page": _made(502, "text/html", b"<html>secret</html>"),
}


@pytest.fixture
def proxied(harmed_elasticsearch: Server) -> Iterator[tuple[Scene, Proxy]]:
    proxy = Proxy(harmed_elasticsearch)
    found = Scene(harmed_elasticsearch, proxy.url)
    yield found, proxy
    proxy.garble = None
    found.close()
    proxy.shutdown()
    proxy.server_close()


@pytest.mark.parametrize("name", GARBLED)
def test_an_answer_that_is_none_acknowledges_nothing(proxied: tuple[Scene, Proxy], name: str) -> None:
    scene, proxy = proxied
    assert scene.write(rows(3, 5), position(100)) == []
    batch = rows(1_200, 6, "secret")
    proxy.garble = GARBLED[name]
    with pytest.raises(StoreUnavailableError) as refusal:
        scene.write(batch, position(200))
    assert "secret" not in str(refusal.value)
    # Nor does anything else that the sink asks end in an error that is not viewtail's.
    for ask in (scene.sink.prepare, scene.new_sink().prepare):
        with pytest.raises((StoreUnavailableError, StoreError)) as refusal:
            ask()
        assert "secret" not in str(refusal.value)
    proxy.garble = None
    scene.sink.prepare()
    kept = scene.sink.witness(position(200))
    assert kept == position(100)
    assert list(itertools.chain(*scene.sink.keys_below(scene.view.id, 6))) == [], "it was written all the same"
    assert scene.write(batch, position(200)) == []
    assert scene.shown() == as_shown(batch)
    assert scene.sink.witness(position(200)) == position(200)


def test_a_sweep_whose_answer_is_none_is_unavailable(proxied: tuple[Scene, Proxy]) -> None:
    scene, proxy = proxied
    count = IDS_A_PAGE + 500
    assert scene.write(rows(count, 5), position(100)) == []
    for garble in GARBLED.values():
        pages = scene.sink.keys_below(scene.view.id, 6)
        assert next(pages)
        proxy.garble = garble
        with pytest.raises(StoreUnavailableError):
            list(pages)
        proxy.garble = None
    assert len(list(itertools.chain(*scene.sink.keys_below(scene.view.id, 6)))) == count


# --- a proxy that takes less than Elasticsearch ---


def take_away(scene: Scene, keys: Iterable[Key]) -> None:
    """As a repair does, of what the documents are now."""
    with closing(scene.store.reader(scene.view)) as reader:
        scene.sink.take_away(scene.view.id, reader.held(list(keys)))


def test_a_repair_is_halved_where_a_proxy_takes_only_short_requests(proxied: tuple[Scene, Proxy]) -> None:
    scene, proxy = proxied
    right = rows(60, 7, "right")
    assert scene.write(rows(60, 1 << 60, "wrong")) == []
    take_away(scene, right)
    proxy.refuse = lambda path, body: (
        _answer(413, b"<html>", ("content-type", "text/html")) if len(body) > 3_000 else None
    )
    too_long: dict[Key, Write] = {(7,): Write(7, ("x" * 4_000, None))}
    (letter,) = scene.write(right | too_long)
    assert letter.key == "7" and "more than Elasticsearch takes" in letter.reason
    assert scene.shown() == {key: shown for key, shown in as_shown(right).items() if key != (7,)}


def test_a_repair_waits_while_the_server_is_too_busy(proxied: tuple[Scene, Proxy]) -> None:
    scene, proxy = proxied
    right = rows(60, 7, "right")
    assert scene.write(rows(60, 1 << 60, "wrong")) == []
    take_away(scene, right)
    tries = itertools.count(1)
    proxy.refuse = lambda path, body: _answer(429, b"{}") if "_bulk" in path and next(tries) < 3 else None
    assert scene.write(right) == []
    assert scene.shown() == as_shown(right) and next(tries) > 3
