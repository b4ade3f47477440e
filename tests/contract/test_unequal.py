"""`unequal` answers as `held` and `form_of` do, however a store finds it out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis import Redis

from projectors.stores import GuardedSink, ViewReader
from stack.server import Server
from tests.contract.sinks import (
    GUARDED,
    SHARED_SERVERS,
    ElasticsearchOne,
    GuardedStore,
    RedisHashOne,
    RedisJsonOne,
    of_view,
)
from viewtail.changes.versions import WIDTH
from viewtail.changes.writes import Key, Write

_tokens = itertools.count(1)
_bases = itertools.count(1)
KEYS: list[Key] = [(number,) for number in range(8)]
TEXTS = st.none() | st.sampled_from(["", "a", "b", "é", "1", "NULL", '"}', "\x00", "\ud800"]) | st.text(max_size=3)
WRITES = st.dictionaries(
    st.sampled_from(KEYS), st.builds(Write, st.integers(1, 3), st.none() | st.tuples(TEXTS, TEXTS)), max_size=8
)
many = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(params=["elasticsearch", "mysql", "redis_hash", "redis_json"])  # others' are what reading says
def store(request: pytest.FixtureRequest) -> Iterator[GuardedStore]:
    yield from _made(request, request.param)


@pytest.fixture
def redis_store(request: pytest.FixtureRequest) -> Iterator[GuardedStore]:
    yield from _made(request, request.param)


def _made(request: pytest.FixtureRequest, name: str) -> Iterator[GuardedStore]:
    shared = SHARED_SERVERS.get(name)
    server: Server | None = request.getfixturevalue(shared) if shared else None
    store = GUARDED[name](server, f"u{next(_tokens)}")
    yield store
    store.close()


@pytest.fixture
def asked(store: GuardedStore) -> Iterator[tuple[GuardedSink, ViewReader]]:
    sink, reader = store.sink(), store.reader(store.person)
    sink.prepare()
    yield sink, reader
    reader.close()
    sink.close()


def answers(reader: ViewReader, wanted: dict[Key, Write]) -> list[Key]:
    """What `unequal` says, which is what the reading of every key says."""
    by_reading = sorted(ViewReader.unequal(reader, wanted))
    assert sorted(reader.unequal(wanted)) == by_reading
    return by_reading


@many
@given(stored=WRITES, wanted=WRITES)
def test_unequal_says_what_reading_every_key_says(
    store: GuardedStore, asked: tuple[GuardedSink, ViewReader], stored: dict[Key, Write], wanted: dict[Key, Write]
) -> None:
    sink, reader = asked
    base = 10 * next(_bases)  # above all that the store has

    def lifted(writes: dict[Key, Write]) -> dict[Key, Write]:
        return {key: Write(base + version, values) for key, (version, values) in writes.items()}

    parked = sink.write([of_view(store.person, lifted(stored))], None)
    store.finish(sink)
    answers(reader, lifted(wanted))
    refused = {letter.key for letter in parked}
    equal = {key: write for key, write in lifted(stored).items() if str(key[0]) not in refused}
    assert answers(reader, equal) == []


def test_unequal_says_it_of_more_keys_than_a_store_is_asked_for_at_once(
    store: GuardedStore, asked: tuple[GuardedSink, ViewReader]
) -> None:
    sink, reader = asked
    written: dict[Key, Write] = {(number,): Write(5, (f"e{number}", "n")) for number in range(2_500)}
    assert sink.write([of_view(store.person, written)], None) == []
    store.finish(sink)
    assert answers(reader, written) == []
    other = {(number,): Write(5, ("other", "n")) for number in (0, 999, 1_000, 2_499, 3_000)}
    assert answers(reader, written | other) == list(other)


VERSION = b"%019d" % 5
Damage = Callable[[Redis, str, str], object]  # to the row and the tombstone of an entity
ANY: dict[str, Damage] = {
    "nothing": lambda client, row, mark: None,
    "a list": lambda client, row, mark: (client.delete(row), client.lpush(row, "x")),
    "a string": lambda client, row, mark: client.set(row, "x"),
    "an empty string": lambda client, row, mark: client.set(row, ""),
    "a hash": lambda client, row, mark: (client.delete(row), client.hset(row, "email", "e")),
    "gone": lambda client, row, mark: client.delete(row),
    "a tombstone beside it": lambda client, row, mark: client.set(mark, VERSION),
    "a list beside it": lambda client, row, mark: client.lpush(mark, "x"),
    "a tombstone in its place": lambda client, row, mark: (client.delete(row), client.set(mark, VERSION)),
    "a tombstone that is none": lambda client, row, mark: (client.delete(row), client.set(mark, "x")),
    "a newer tombstone": lambda client, row, mark: (client.delete(row), client.set(mark, "9" * WIDTH)),
    "a list in its place": lambda client, row, mark: (client.delete(row), client.lpush(mark, "x")),
}
HASH: dict[str, Damage] = {
    "another value": lambda client, row, mark: client.hset(row, "email", "x"),
    "a field too many": lambda client, row, mark: client.hset(row, "more", "x"),
    "a field too few": lambda client, row, mark: client.hdel(row, "note"),
    "an empty value": lambda client, row, mark: client.hset(row, "note", ""),
    "no version": lambda client, row, mark: client.hdel(row, "_version"),
    "a short version": lambda client, row, mark: client.hset(row, "_version", "5"),
    "a version of letters": lambda client, row, mark: client.hset(row, "_version", "x" * WIDTH),
    "a larger version": lambda client, row, mark: client.hset(row, "_version", "9" * WIDTH),
    "a smaller version": lambda client, row, mark: client.hset(row, "_version", "0" * WIDTH),
}


def _document(text: bytes) -> Damage:
    return lambda client, row, mark: client.set(row, text.replace(b"VERSION", VERSION))


JSON: dict[str, Damage] = {
    "another value": _document(b'{"_version":"VERSION","email":"x","note":"n"}'),
    "a number": _document(b'{"_version":"VERSION","email":1,"note":"n"}'),
    "a member too many": _document(b'{"_version":"VERSION","email":"e","note":"n","more":1}'),
    "spaces in front": _document(b'{ "_version":"VERSION","email":"e","note":"n"}'),
    "spaces behind": _document(b'{"_version":"VERSION", "email":"e","note":"n"}'),
    "another order": _document(b'{"_version":"VERSION","note":"n","email":"e"}'),
    "a second version": _document(b'{"_version":"VERSION","email":"e","note":"n","_version":"9"}'),
    "no version": _document(b'{"email":"e","note":"n"}'),
    "a larger version": _document(b'{"_version":"9999999999999999999","email":"e","note":"n"}'),
    "a smaller version": _document(b'{"_version":"0000000000000000000","email":"e","note":"n"}'),
    "its end is missing": _document(b'{"_version":"VERSION","email":"e"'),
}
DAMAGE = {"redis_hash": ANY | HASH, "redis_json": ANY | JSON}


@pytest.mark.parametrize(
    ("redis_store", "what"), [(kind, what) for kind in DAMAGE for what in DAMAGE[kind]], indirect=["redis_store"]
)
def test_unequal_says_what_reading_says_of_damage_in_redis(redis_store: GuardedStore, what: str) -> None:
    assert isinstance(redis_store, RedisHashOne | RedisJsonOne)
    sink, reader, client = redis_store.sink(), redis_store.reader(redis_store.person), redis_store.client()
    sink.prepare()
    written: dict[Key, Write] = {(number,): Write(5, ("e", "n")) for number in range(3)}
    assert sink.write([of_view(redis_store.person, written)], None) == []
    name = f"{redis_store.person.view.name}:1"
    DAMAGE["redis_hash" if isinstance(redis_store, RedisHashOne) else "redis_json"][what](client, name, f"{{{name}}}:t")
    assert set(answers(reader, written)) <= {(1,)}
    for wanted in (Write(5, None), Write(4, None), Write(5, ("e", None)), Write(5, ("x", "n")), Write(4, ("e", "n"))):
        answers(reader, written | {(1,): wanted})
    for opened in (reader, sink, client):
        opened.close()


DOCUMENTS: dict[str, dict[str, object]] = {
    "nothing": {"email": "e", "note": "n"},
    "another order": {"note": "n", "email": "e"},
    "another value": {"email": "x", "note": "n"},
    "a field too few": {"email": "e"},
    "a null": {"email": "e", "note": None},
    "a number": {"email": 1, "note": "n"},
    "a number of many digits": {"email": 10**30, "note": "n"},
    "a list": {"email": ["e"], "note": "n"},
    "a tombstone": {"viewtail_deleted": True},
    "a tombstone with more": {"viewtail_deleted": True, "email": "e"},
    "no tombstone": {"viewtail_deleted": False, "email": "e", "note": "n"},
}


@pytest.mark.parametrize("version", [4, 5, 6])
@pytest.mark.parametrize("what", DOCUMENTS)
def test_unequal_says_what_reading_says_of_damage_in_elasticsearch(
    elasticsearch_server: Server, what: str, version: int
) -> None:
    store = ElasticsearchOne(elasticsearch_server, f"u{next(_tokens)}")
    sink, reader, client = store.sink(), store.reader(store.person), store.client()
    sink.prepare()
    written: dict[Key, Write] = {(number,): Write(version + (number != 1), ("e", "n")) for number in range(3)}
    assert sink.write([of_view(store.person, {**written, (1,): Write(1, ("before", "n"))})], None) == []
    index = f"viewtail-{store.person.view.name}"
    client.index(index=index, id="1", document=DOCUMENTS[what], version=5, version_type="external")
    found = answers(reader, written)
    assert set(found) <= {(1,)}
    assert (version < 5) <= ((1,) in found), "a newer version is told"
    for wanted in (Write(5, None), Write(5, ("e", None)), Write(5, ("x", "n"))):
        answers(reader, {**written, (1,): wanted})
    for opened in (reader, sink, client, store):
        opened.close()
