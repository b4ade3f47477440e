"""Redis views on a real server: what stands under which key, and what is refused."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from redis.crc import key_slot

import stack.redis
from ingest.binlog.coordinates import BinlogPosition
from projectors.stores.redis.keys import RedisKeys
from projectors.stores.redis.reading import RedisReader
from projectors.stores.redis.sink import RedisSink
from projectors.stores.redis.store import RedisStore
from projectors.stores.redis.swapping import KeySwapping
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.views import BoundView, Entity, Move
from stack.server import Server, free_port
from viewtail.changes.errors import DeclarationError, StoreError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

_tokens = itertools.count(1)


def get(client: redis.Redis, view: BoundView, key: Key) -> tuple[int, dict[str, Any]] | None:
    rows = RedisReader(client, view).rows([key])
    return (rows[0].version, rows[0].content) if rows else None


def column(name: str, kind: Kind, declared: str, **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=True, **more)


ID = column("id", Kind.INTEGER, "bigint")
REGION = column("region", Kind.TEXT, "varchar(40)", charset="utf8mb4", length=40)
CODE = column("code", Kind.BYTES, "binary(2)", length=2)
EMAIL = column("email", Kind.TEXT, "varchar(64)", charset="utf8mb4", length=64)
NOTE = column("note", Kind.TEXT, "varchar(64)", charset="utf8mb4", length=64)


def bound(view: RedisHash | RedisJson, values: Sequence[Column], key: Sequence[Column] = (ID,)) -> BoundView:
    table = Table(schema="shop", name="user", columns=(*key, *values), primary_key=tuple(one.name for one in key))
    needed = tuple(one.name for one in table.columns)
    return BoundView(view=view, table=table, key=tuple(key), values=tuple(values), needed=needed, fingerprint="0" * 64)


def hash_view(values: Sequence[Column], key: Sequence[Column] = (ID,), template: str | None = None) -> BoundView:
    fields = [one.name for one in values]
    return bound(RedisHash(f"h{next(_tokens)}", Entity("shop.user"), fields=fields, key=template), values, key)


def json_view(values: Sequence[Column], key: Sequence[Column] = (ID,), template: str | None = None) -> BoundView:
    fields = [one.name for one in values]
    return bound(RedisJson(f"j{next(_tokens)}", Entity("shop.user"), fields=fields, key=template), values, key)


def document_view() -> BoundView:
    return bound(RedisJson(f"d{next(_tokens)}", Entity("shop.user"), document=lambda row: row), [])


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    found = redis.Redis(port=redis_server.port)
    yield found
    found.flushall()
    found.close()


def sink_of(client: redis.Redis, *views: BoundView, database: str = "viewtail") -> RedisSink:
    port = client.connection_pool.connection_kwargs["port"]
    sink = RedisSink(lambda: redis.Redis(port=port), views, database, "redis", read_position=BinlogPosition.from_text)
    sink.prepare()
    return sink


def write(sink: RedisSink, view: BoundView, writes: dict[Key, Write]) -> list[Parked]:
    return sink.write([ViewWrites(view.id, writes)], None)


EVERY_TYPE: list[tuple[Column, Any, bytes, str]] = [  # value, content of a hash field, JSON
    (
        column("big", Kind.INTEGER, "bigint unsigned"),
        (1 << 64) - 1,
        b"18446744073709551615",
        "18446744073709551615",
    ),
    (column("low", Kind.INTEGER, "bigint"), -(1 << 63), b"-9223372036854775808", "-9223372036854775808"),
    (column("price", Kind.DECIMAL, "decimal(20,5)", scale=5), Decimal("-0.00001"), b"-0.00001", '"-0.00001"'),
    (column("small", Kind.FLOAT, "float"), 1.100000023841858, b"1.100000023841858", "1.100000023841858"),
    (column("wide", Kind.DOUBLE, "double"), 1e-300, b"1e-300", "1e-300"),
    (EMAIL, "it's\r\n$3\r\né😀\0", "it's\r\n$3\r\né😀\0".encode(), '"it\'s\\r\\n$3\\r\\né😀\\u0000"'),
    (EMAIL, "", b"", '""'),
    (column("label", Kind.ENUM, "enum('ä')", labels=("ä",)), "ä", "ä".encode(), '"ä"'),
    (column("raw", Kind.BYTES, "varbinary(9)"), b"\0\xff\xc3\r\n\x80", b"\0\xff\xc3\r\n\x80", '"AP/DDQqA"'),
    (column("day", Kind.DATE, "date"), "0000-00-00", b"0000-00-00", '"0000-00-00"'),
    (
        column("moment", Kind.DATETIME, "datetime(3)"),
        "2024-01-01 00:00:00.000",
        b"2024-01-01 00:00:00.000",
        '"2024-01-01 00:00:00.000"',
    ),
    (
        column("extra", Kind.JSON, "json"),
        '{"a": [1, null, "é"]}',
        '{"a": [1, null, "é"]}'.encode(),
        '{"a": [1, null, "é"]}',
    ),
    (column("vec", Kind.VECTOR, "vector(1)"), b"\0\0\x80?", b"\0\0\x80?", '"AACAPw=="'),
]


@pytest.mark.parametrize(
    ("typed", "value", "content", "json"), EVERY_TYPE, ids=lambda given: getattr(given, "name", "")
)
def test_a_value_of_every_type_arrives_exactly(
    client: redis.Redis, typed: Column, value: Any, content: bytes, json: str
) -> None:
    in_hash, in_json = hash_view([typed, NOTE]), json_view([typed, NOTE])
    sink = sink_of(client, in_hash, in_json)
    for view in (in_hash, in_json):
        assert write(sink, view, {(1,): Write(7, (value, "n")), (2,): Write(7, (value, None))}) == []
    name = typed.name.encode()
    version = b"0000000000000000007"
    assert client.hgetall(f"{in_hash.view.name}:1") == {b"_version": version, name: content, b"note": b"n"}
    assert client.hgetall(f"{in_hash.view.name}:2") == {b"_version": version, name: content}
    shown = client.get(f"{in_json.view.name}:2")
    assert shown == f'{{"_version":"{version.decode()}","{typed.name}":{json},"note":null}}'.encode()
    sink.close()


def test_rows_of_all_kinds_stand_in_one_script(client: redis.Redis) -> None:
    view = hash_view([EMAIL, NOTE])
    sink = sink_of(client, view)
    values = [("a", "b"), (None, "b"), ("a", None), (None, None), None]
    writes: dict[Key, Write] = {(number,): Write(5, values[number % 5]) for number in range(100)}
    assert write(sink, view, writes) == []
    for (number,), (_, shown) in writes.items():
        fields = {} if shown is None else dict(zip(("email", "note"), shown, strict=True))
        wanted = None if shown is None else (5, {name: text.encode() for name, text in fields.items() if text})
        assert get(client, view, (number,)) == wanted
    sink.close()


@pytest.mark.parametrize("make", [hash_view, json_view])
@pytest.mark.parametrize(
    ("template", "key", "redis_key"),
    [
        (None, (7, "a:b{c}", b"\0\xff"), "NAME:7:a%3Ab%7Bc%7D:00ff"),
        ("user:{id}:{region}:{code}", (-7, "é%", b"ab"), "user:-7:é%25:6162"),
        ("u/{code}-{region}:x{id}y", (7, "q-x7", b"ab"), "u/6162-q-x7:x7y"),
        ("[u]*?{id}/{code}.{region}", (0, "", b"  "), "[u]*?0/2020."),
    ],
)
def test_keys_are_made_from_the_template_and_read_back(
    client: redis.Redis, make: Any, template: str | None, key: Key, redis_key: str
) -> None:
    view = make([EMAIL], [ID, REGION, CODE], template)
    redis_key = redis_key.replace("NAME", view.view.name)
    sink = sink_of(client, view)
    client.set("userland", "not ours")
    write(sink, view, {key: Write(5, ("e",)), (*key[:2], b"zz"): Write(5, None)})
    assert client.exists(redis_key)
    assert list(sink.keys_below(view.id, 6)) == [[(key, 5)]]
    found = get(client, view, key)
    assert found is not None
    assert found[0] == 5
    sink.close()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("user:{id}", "region"),
        ("user:{id}:{region}:{name}", "{name}"),
        ("user:{id:>5}:{region}", "{id}"),
        ("user:{id}:{region}:{id}", "once"),
        ("{id}:{region}", "begin with text"),
        ("u{{x}}:{id}:{region}", "brace"),
        ("user:{region}-{id}", "':' between"),
        ("user:{region}{id}", "':' between"),
        ("user:{id", "expected"),
        ("user:{}:{region}", "{}"),
    ],
)
def test_a_template_that_cannot_name_each_entity_is_refused(template: str, said: str) -> None:
    with pytest.raises(DeclarationError) as refusal:
        RedisKeys(hash_view([EMAIL], [ID, REGION], template))
    assert said in str(refusal.value)
    assert "RedisHash('h" in str(refusal.value)


@pytest.mark.parametrize(
    ("one", "other", "could_meet"),
    [
        ("user:{id}", "user:{id}", True),
        ("user:{id}", "users:{id}", False),
        ("user:{id}", "user:x:{id}", False),
        ("user:{id}", "user:{region}", True),
        ("user:a{id}", "user:b{id}", False),
        ("user:{region}", "user:x{region}", True),
        ("user:{region}:a", "user:{id}:b", False),
    ],
)
def test_two_views_that_could_share_a_key_are_refused(
    client: redis.Redis, one: str, other: str, could_meet: bool
) -> None:
    key = {template: [REGION if "region" in template else ID] for template in (one, other)}
    views = [hash_view([EMAIL], key[one], one), json_view([EMAIL], key[other], other)]
    problems = list(RedisStore().problems_between(views))
    if could_meet:
        assert problems[0][0] is views[0] and "belong to both" in problems[0][1]
    else:
        assert not problems
        sink_of(client, *views).close()


@pytest.mark.parametrize("make", [hash_view, json_view])
def test_a_column_named_as_the_version_is_refused(client: redis.Redis, make: Any) -> None:
    with pytest.raises(DeclarationError, match="_version"):
        sink_of(client, make([column("_version", Kind.INTEGER, "int")]))


@pytest.mark.parametrize("make", [hash_view, json_view])
def test_a_tombstone_stands_in_its_keys_slot_for_good_and_goes_when_the_key_comes_back(
    client: redis.Redis, make: Any
) -> None:
    view = make([EMAIL], [REGION])
    sink = sink_of(client, view)
    key: Key = ("a{b}:c",)
    write(sink, view, {key: Write(5, ("e",))})
    (name,) = client.keys(f"{view.view.name}:*")
    write(sink, view, {key: Write(6, None)})
    tombstone = b"{" + name + b"}:t"
    assert client.keys(f"*{view.view.name}:*") == [tombstone]
    assert client.get(tombstone) == b"0000000000000000006"
    assert client.ttl(tombstone) == -1
    assert key_slot(tombstone) == key_slot(name)
    assert get(client, view, key) is None
    write(sink, view, {key: Write(7, ("e",))})
    assert client.keys(f"*{view.view.name}:*") == [name]
    sink.close()


def test_fields_of_an_earlier_declaration_do_not_stay(client: redis.Redis) -> None:
    before = bound(RedisHash("again", Entity("shop.user"), fields=["email", "note"]), [EMAIL, NOTE])
    after = bound(RedisHash("again", Entity("shop.user"), fields=["email"]), [EMAIL])
    sink = sink_of(client, before)
    write(sink, before, {(1,): Write(5, ("e", "stale"))})
    sink.close()
    sink = sink_of(client, after)
    write(sink, after, {(1,): Write(6, ("new",))})
    assert get(client, after, (1,)) == (6, {"email": b"new"})
    sink.close()


def test_a_row_that_has_as_many_fields_as_before_keeps_none_of_them(client: redis.Redis) -> None:
    """Neither a field of another name nor an expiry that somebody set."""
    view = hash_view([EMAIL, NOTE])
    name = RedisKeys(view).redis_key((1,))
    with contextlib.closing(sink_of(client, view)) as sink:
        write(sink, view, {(1,): Write(5, ("e", "n"))})
        client.hdel(name, "note")
        client.hset(name, "earlier", "x")
        client.expire(name, 1_000)
        write(sink, view, {(1,): Write(6, ("e2", "n2"))})
    assert client.hgetall(name) == {b"_version": b"%019d" % 6, b"email": b"e2", b"note": b"n2"}
    client.expire(name, 1_000)
    with contextlib.closing(sink_of(client, view)) as sink:
        write(sink, view, {(1,): Write(7, ("e3", "n3"))})
    assert client.hgetall(name) == {b"_version": b"%019d" % 7, b"email": b"e3", b"note": b"n3"}
    assert client.ttl(name) == -1


def test_among_many_rows_none_keeps_an_expiry(client: redis.Redis) -> None:
    view = hash_view([EMAIL])
    rows = range(150)
    name = RedisKeys(view).redis_key((77,))
    with contextlib.closing(sink_of(client, view)) as sink:
        write(sink, view, {(at,): Write(5, ("e",)) for at in rows})
        client.expire(name, 1_000)
        write(sink, view, {(at,): Write(6, ("e2",)) for at in rows})
    assert client.ttl(name) == -1
    assert get(client, view, (77,)) == (6, {"email": b"e2"})


@pytest.mark.parametrize("most", ["as many as there are", "fewer names", "fewer bytes"])
def test_what_was_written_again_is_not_looked_at_and_all_is_where_names_are_too_many(
    most: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most == "fewer names":
        monkeypatch.setattr("projectors.stores.redis.sink.MOST_NAMES", 30)
    elif most == "fewer bytes":
        monkeypatch.setattr("projectors.stores.redis.sink.MOST_NAME_BYTES", 100)
    view = hash_view([EMAIL], key=[ID, REGION, CODE])
    keys: list[Key] = [
        (at, text, code) for at in range(9) for text in ("é", "😀%", "a:{b}") for code in (b"\xff\n", b"  ")
    ]
    looks: list[int] = []
    with contextlib.closing(sink_of(client, view)) as sink:
        below = sink._below
        monkeypatch.setattr(sink, "_below", lambda *of: (looks.append(len(of[2])), below(*of))[1])
        write(sink, view, dict.fromkeys(keys, Write(5, ("e",))))
        mark = sink.mark_writes(view.id)
        write(sink, view, dict.fromkeys(keys, Write(6, ("e",))))
        assert not any(sink.keys_below(view.id, 6, mark))
        assert looks == [] if most == "as many as there are" else looks, looks
        mark = sink.mark_writes(view.id)
        write(sink, view, dict.fromkeys(keys[1:], Write(7, ("e",))))
        assert [one for page in sink.keys_below(view.id, 7, mark) for one in page] == [(keys[0], 6)]


def test_documents_of_a_function_get_their_version_in_front(client: redis.Redis) -> None:
    view = document_view()
    sink = sink_of(client, view)
    documents: list[Any] = [
        {},
        {"a": 1},
        {"deep": {"_version": "fine"}},
        {"text": '"_version" é😀'},
        {"_version": "no"},
    ]
    writes: dict[Key, Write] = {(at,): Write(9, orjson.dumps(one)) for at, one in enumerate(documents)}
    (parked,) = write(sink, view, writes)
    assert (parked.key, parked.version) == ("4", 9)
    assert "_version" in parked.reason
    for at, document in enumerate(documents[:4]):
        assert get(client, view, (at,)) == (9, document)
        text = client.get(f"{view.view.name}:{at}")
        assert isinstance(text, bytes)
        assert text.startswith(b'{"_version":"0000000000000000009"')
    write(sink, view, {(1,): Write(8, b'{"a":0}'), (0,): Write(10, b'{"b":2}')})
    assert get(client, view, (1,)) == (9, {"a": 1})
    assert get(client, view, (0,)) == (10, {"b": 2})
    sink.close()


FOREIGN = {
    "list": lambda client, name: client.rpush(name, "x"),
    "text": lambda client, name: client.set(name, "hello"),
    "empty text": lambda client, name: client.set(name, ""),
    "set": lambda client, name: client.sadd(name, "x"),
    "hash without a version": lambda client, name: client.hset(name, "a", "b"),
    "hash with another's version": lambda client, name: client.hset(name, "_version", "7"),
    "document with another's version": lambda client, name: client.set(name, '{"_version":"7","a":"1234567890123"}'),
}


@pytest.mark.parametrize("what", sorted(FOREIGN))
@pytest.mark.parametrize("make", [hash_view, json_view])
def test_what_somebody_else_keeps_at_a_key_is_left_alone(client: redis.Redis, make: Any, what: str) -> None:
    view = make([EMAIL])
    sink = sink_of(client, view)
    name = f"{view.view.name}:2"
    FOREIGN[what](client, name)
    before = client.dump(name)
    for values in (("e",), None):
        parked = write(sink, view, {(number,): Write(5, values) for number in range(1, 4)})
        assert [one.key for one in parked] == ["2"]
        assert name in parked[0].reason
    assert client.dump(name) == before
    assert client.exists(f"{{{view.view.name}:1}}:t", f"{view.view.name}:1") == 1
    client.delete(name)
    assert write(sink, view, {(2,): Write(5, ("e",))}) == []
    sink.close()


def test_text_that_is_none_is_parked_and_the_rest_applied(client: redis.Redis) -> None:
    views = [hash_view([EMAIL], [REGION]), json_view([EMAIL], [REGION])]
    sink = sink_of(client, *views)
    for view in views:
        writes: dict[Key, Write] = {(f"k{number}",): Write(5, ("e",)) for number in range(250)}
        writes["k7",] = Write(5, ("\ud800",))
        assert [one.key for one in write(sink, view, writes)] == ["k7"]
        assert len(client.keys(f"{view.view.name}:*")) == 249
    sink.close()


def test_reading_works_with_a_client_that_decodes(client: redis.Redis) -> None:
    views = [hash_view([column("raw", Kind.BYTES, "varbinary(9)")]), json_view([EMAIL])]
    sink = sink_of(client, *views)
    write(sink, views[0], {(1,): Write(5, (b"\xff",))})
    write(sink, views[1], {(1,): Write(5, ("é",))})
    port = client.connection_pool.connection_kwargs["port"]
    for protocol in (2, 3):
        decoding = redis.Redis(port=port, decode_responses=True, protocol=protocol)
        assert get(decoding, views[0], (1,)) == (5, {"raw": b"\xff"})
        assert get(decoding, views[1], (1,)) == (5, {"email": "é"})
        assert get(decoding, views[0], (2,)) is None
        mine = RedisSink(lambda one=decoding: one, views, "viewtail", "redis", read_position=BinlogPosition.from_text)
        mine.prepare()
        assert mine.write([ViewWrites(views[0].id, {(2,): Write(5, (b"\xfe",))})], None) == []
        assert get(client, views[0], (2,)) == (5, {"raw": b"\xfe"})
        assert dict(pair for page in mine.keys_below(views[0].id, 6) for pair in page) == {(1,): 5, (2,): 5}
        client.delete(f"{views[0].view.name}:2")
        mine.close()
    sink.close()


def test_large_documents_are_sent_in_several_scripts(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("projectors.stores.redis.sink.BYTES_A_SCRIPT", 1 << 16)
    view = hash_view([EMAIL])
    sink = sink_of(client, view)
    assert write(sink, view, {(number,): Write(5, ("é" * 10_000,)) for number in range(50)}) == []
    assert all(client.hstrlen(f"{view.view.name}:{number}", "email") == 20_000 for number in range(50))
    for limit in ("BYTES_A_SCRIPT", "MAX_COMMAND_BYTES"):
        monkeypatch.setattr(f"projectors.stores.redis.sink.{limit}", 10_000)
    assert [one.key for one in write(sink, view, {(1,): Write(6, ("x" * 10_000,)), (2,): Write(6, ("x",))})] == ["1"]
    sink.close()


def sent(sink: RedisSink, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What goes to Redis from now on, each time something is sent."""
    found: list[bytes] = []
    send = sink._connection.send_packed_command

    def noted(commands: Sequence[bytes], **options: Any) -> None:
        found.append(b"".join(commands))
        send(commands, **options)

    monkeypatch.setattr(sink._connection, "send_packed_command", noted)
    return found


def test_small_commands_go_together_however_many_they_are(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    views = [json_view([NOTE]) for _ in range(100)]
    sink = sink_of(client, *views)
    found = sent(sink, monkeypatch)
    assert sink.write([ViewWrites(view.id, {(1,): Write(1, ("small",))}) for view in views], None) == []
    assert [get(client, view, (1,)) for view in views] == [(1, {"note": "small"})] * 100
    assert len(found) < 20, [len(one) for one in found]
    sink.close()


def test_a_large_command_is_sent_alone(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = json_view([NOTE]), json_view([NOTE])
    sink = sink_of(client, small, large)
    found = sent(sink, monkeypatch)
    writes = [(small, "small"), (large, "x" * 100_000), (small, "last")]
    sink.write(
        [ViewWrites(view.id, {(number,): Write(1, (text,))}) for number, (view, text) in enumerate(writes)], None
    )
    assert [len(one) > 100_000 for one in found] == [False, True, False]
    assert get(client, large, (1,)) == (1, {"note": "x" * 100_000})
    assert get(client, small, (2,)) == (1, {"note": "last"})
    sink.close()


def test_deployments_on_one_redis_have_witnesses_of_their_own(client: redis.Redis) -> None:
    names = ["shop", "blog", "a:redis", "a%3Aredis", "{a}", "ä"]
    sinks = [sink_of(client, hash_view([EMAIL]), database=name) for name in names]
    for at, sink in enumerate(sinks):
        assert sink.witness(place(1)) is None
        sink.write([], place(1_000 + at))
    assert [sink.witness(place(1)) for sink in sinks] == [place(1_000 + at) for at in range(len(sinks))]
    for sink in sinks:
        sink.close()


def test_a_witness_that_is_none_is_named_with_what_to_do(client: redis.Redis) -> None:
    sink = sink_of(client, hash_view([EMAIL]), database="shop:1")
    sink.write([], place(500))
    assert client.get("viewtail:shop%3A1:redis:witness") == place(500).to_text().encode()
    client.set("viewtail:shop%3A1:redis:witness", "garbage")
    with pytest.raises(StoreError, match="redis-cli DEL viewtail:shop%3A1:redis:witness"):
        sink.witness(place(500))
    sink.close()


def place(end: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000001", end=end, start=400)


def test_a_cluster_is_refused(tmp_path: Path) -> None:
    # Its bus would take the port 10000 above, which the kernel may have given to an outgoing connection.
    cluster = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    server = stack.redis.start(tmp_path, options=[*cluster, "--appendonly", "no"])
    sink = RedisSink(
        lambda: redis.Redis(port=server.port),
        [hash_view([EMAIL])],
        "viewtail",
        "redis",
        read_position=BinlogPosition.from_text,
    )
    with pytest.raises(StoreError, match="Cluster"):
        sink.prepare()
    sink.close()
    server.kill()


@pytest.mark.parametrize("make", [lambda: hash_view([EMAIL]), lambda: json_view([EMAIL])])
def test_nothing_is_pushed_while_two_copies_change_places(client: redis.Redis, make: Callable[[], BoundView]) -> None:
    live = make()
    ahead = sink_of(client, replace(live, is_pushed=True))
    port = client.connection_pool.connection_kwargs["port"]
    swapping = KeySwapping(redis.Redis(port=port), "viewtail")

    def pushed(key: int, version: int) -> int | None:
        ahead.push([ViewWrites(live.id, {(key,): Write(version, (f"e{version}",))})])
        return (get(redis.Redis(port=port), live, (key,)) or (None,))[0]

    assert pushed(1, 2) == 2
    assert not swapping.swap(live, replace(live, copy=2, is_beside=True), 9), "entities are to be moved one by one"
    assert pushed(1, 4) == 2
    assert pushed(2, 4) is None, "the move would take it for a row that the other copy lacks"
    move = Move(copy=2, former=1, upto=9)
    assert swapping.move(replace(live, is_beside=True, move=move), threading.Event(), lambda _: None)
    assert [pushed(key, 12) for key in (1, 2)] == [12, 12]
    swapping.close()
    ahead.close()
