"""Redis sets on a real server: which set an entity is in, and what is refused."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import redis

from ingest.binlog.coordinates import BinlogPosition
from projectors.stores.leaving import Holds, Retired
from projectors.stores.redis.leaving import RedisLeftover, RedisTraces, place_of
from projectors.stores.redis.set_reading import SetReader
from projectors.stores.redis.sink import RedisSink
from projectors.stores.redis.store import RedisStore
from projectors.stores.redis.swapping import KeySwapping
from projectors.stores.redis.views import RedisHash, RedisSet, RedisSortedSet
from projectors.views import BoundView, Entity, Move
from stack.server import Server
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

_tokens = itertools.count(1)

ID = Column(name="id", kind=Kind.INTEGER, declared="bigint", is_nullable=False)
REGION = Column(name="region", kind=Kind.TEXT, declared="varchar(40)", is_nullable=False, charset="utf8mb4", length=40)


def column(name: str, kind: Kind, declared: str, **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=True, **more)


COMPANY = column("company_id", Kind.INTEGER, "bigint")
SCORE = column("score", Kind.INTEGER, "bigint")
ROLE = column("role", Kind.TEXT, "varchar(40)", charset="utf8mb4", length=40)


def bound(view: RedisSet | RedisHash, values: tuple[Column, ...], key: tuple[Column, ...] = (ID,)) -> BoundView:
    columns = tuple(dict.fromkeys((*key, *values)))
    table = Table(schema="shop", name="user", columns=columns, primary_key=tuple(one.name for one in key))
    needed = tuple(one.name for one in columns)
    return BoundView(view=view, table=table, key=key, values=values, needed=needed, fingerprint="0" * 64)


def by_company() -> BoundView:
    name = f"s{next(_tokens)}"
    return bound(RedisSet(name, Entity("shop.user"), key=f"company{name}:{{company_id}}:users"), (COMPANY,))


def scored(score: Column) -> BoundView:
    name = f"z{next(_tokens)}"
    view = RedisSortedSet(name, Entity("shop.user"), key=f"company{name}:{{company_id}}:users", score=score.name)
    return bound(view, (COMPANY, score))


@pytest.fixture
def client(redis_server: Server) -> Iterator[redis.Redis]:
    found = redis.Redis(port=redis_server.port, decode_responses=True)
    yield found
    found.flushall()
    found.close()


def sink_of(client: redis.Redis, *views: BoundView) -> RedisSink:
    port = client.connection_pool.connection_kwargs["port"]
    sink = RedisSink(lambda: redis.Redis(port=port), views, "viewtail", "redis", read_position=BinlogPosition.from_text)
    sink.prepare()
    return sink


def reader_of(client: redis.Redis, view: BoundView) -> SetReader:
    return SetReader(redis.Redis(port=client.connection_pool.connection_kwargs["port"]), view)


def write(sink: RedisSink, view: BoundView, writes: dict[Key, Write]) -> list[Parked]:
    return sink.write([ViewWrites(view.id, writes)], None)


def users(client: redis.Redis, view: BoundView, company: object) -> set[str]:
    found: Any = client.smembers(f"company{view.view.name}:{company}:users")
    return set(found)


def test_an_entity_is_in_the_set_that_its_row_names_and_leaves_it_when_it_joins_another(client: redis.Redis) -> None:
    view = by_company()
    sink = sink_of(client, view)
    write(sink, view, {(1,): Write(5, (7,)), (2,): Write(5, (7,)), (3,): Write(5, (8,)), (4,): Write(5, (None,))})
    assert (users(client, view, 7), users(client, view, 8)) == ({"1", "2"}, {"3"})
    write(sink, view, {(1,): Write(6, (8,)), (3,): Write(6, None), (4,): Write(6, (9,))})
    assert (users(client, view, 7), users(client, view, 8), users(client, view, 9)) == ({"2"}, {"1"}, {"4"})
    write(sink, view, {(1,): Write(7, (None,))})
    assert users(client, view, 8) == set()
    write(sink, view, {(1,): Write(6, (7,)), (3,): Write(5, (8,)), (2,): Write(4, (8,))})
    assert (users(client, view, 7), users(client, view, 8)) == ({"2"}, set())


def test_a_set_may_be_named_by_key_columns_and_texts_and_members_are_rendered_keys(client: redis.Redis) -> None:
    name = f"s{next(_tokens)}"
    declared = RedisSet(name, Entity("shop.user"), key=f"{name}.of:{{role}}:{{region}}")
    view = bound(declared, (ROLE, REGION), (REGION, ID))
    sink = sink_of(client, view)
    write(sink, view, {("a:b", 1): Write(5, ("r{}%", "a:b")), ("ä", 2): Write(5, ("", "ä"))})
    assert client.smembers(f"{name}.of:r%7B%7D%25:a%3Ab") == {"a%3Ab:1"}
    assert client.smembers(f"{name}.of::ä") == {"ä:2"}
    reader = reader_of(client, view)
    assert reader.keys_with(["r{}%", "a:b"], 10) == [("a:b", 1)]
    assert reader.rows([("ä", 2)])[0].content == {"set": f"{name}.of::ä", "member": "ä:2"}
    assert sorted(row.key for page in reader.pages() for row in page) == [("a:b", 1), ("ä", 2)]
    reader.close()


@pytest.mark.parametrize(
    ("score", "value", "seen"),
    [
        (column("n", Kind.INTEGER, "bigint"), -(1 << 53), -float(1 << 53)),
        (column("n", Kind.INTEGER, "bigint unsigned", is_unsigned=True), 1 << 63, float(1 << 63)),
        (column("n", Kind.DECIMAL, "decimal(10,2)", precision=10, scale=2), Decimal("-1.50"), -1.5),
        (column("n", Kind.DOUBLE, "double"), 1e300, 1e300),
        (column("n", Kind.FLOAT, "float"), 1.2345677614212036, 1.2345677614212036),
        (column("n", Kind.DATE, "date"), "1970-01-02", 86_400.0),
        (column("n", Kind.DATETIME, "datetime(3)", scale=3), "1969-12-31 23:59:59.500", -0.5),
        (column("n", Kind.TIMESTAMP, "timestamp(6)", scale=6), "2024-01-02 03:04:05.000001", 1_704_164_645.000001),
    ],
)
def test_scores_are_numbers_and_moments_are_seconds_since_1970(
    client: redis.Redis, score: Column, value: Any, seen: float
) -> None:
    view = scored(score)
    sink = sink_of(client, view)
    assert write(sink, view, {(1,): Write(5, (7, value)), (2,): Write(5, (7, None))}) == []
    assert client.zrange(f"company{view.view.name}:7:users", 0, -1, withscores=True) == [("1", seen)]
    reader = reader_of(client, view)
    held = reader.held([(1,)])[1,]
    assert held.content == reader.form_of((1,), (7, value))
    assert held.content["score"] == seen
    reader.close()


def test_a_score_that_changes_moves_the_member_in_its_set(client: redis.Redis) -> None:
    view = scored(column("n", Kind.INTEGER, "int"))
    sink = sink_of(client, view)
    write(sink, view, {(key,): Write(5, (7, key)) for key in (1, 2, 3)})
    write(sink, view, {(1,): Write(6, (7, 10))})
    reader = reader_of(client, view)
    assert reader.keys_with([7], 10) == [(2,), (3,), (1,)]
    assert reader.keys_with([7], 1) == [(2,)]
    reader.close()


@pytest.mark.parametrize(
    ("score", "value", "reason"),
    [
        (column("n", Kind.INTEGER, "bigint"), (1 << 53) + 1, "beyond 2^53"),
        (column("n", Kind.DATE, "date"), "0000-00-00", "a date that does not exist"),
        (column("n", Kind.DATETIME, "datetime"), "2024-02-31 00:00:00", "a date that does not exist"),
    ],
)
def test_a_value_that_is_no_score_parks_its_key_and_no_other(
    client: redis.Redis, score: Column, value: Any, reason: str
) -> None:
    view = scored(score)
    fine = 1 if score.kind is Kind.INTEGER else "2024-01-01" + " 00:00:00" * (score.kind is Kind.DATETIME)
    writes: dict[Key, Write] = {(key,): Write(5, (7, fine)) for key in range(250)}
    writes[7,] = Write(5, (7, value))
    (letter,) = write(sink_of(client, view), view, writes)
    assert letter.key == "7"
    assert reason in letter.reason
    assert client.zcard(f"company{view.view.name}:7:users") == 249


def test_what_viewtail_did_not_write_is_left_alone_and_parks_its_entities(client: redis.Redis) -> None:
    view = by_company()
    sink = sink_of(client, view)
    write(sink, view, {(1,): Write(5, (7,)), (2,): Write(5, (7,))})
    client.set(f"company{view.view.name}:8:users", "a text")
    client.hset(f"{view.view.name}:3", "field", "of somebody else's")
    letters = write(sink, view, {(1,): Write(6, (8,)), (2,): Write(6, (9,)), (3,): Write(6, (9,))})
    assert sorted(letter.key for letter in letters) == ["1", "3"]
    assert f"company{view.view.name}:8:users" in letters[0].reason
    assert (users(client, view, 7), users(client, view, 9)) == ({"1"}, {"2"})
    assert client.get(f"company{view.view.name}:8:users") == "a text"


def test_damage_is_seen_and_the_next_write_mends_it(client: redis.Redis) -> None:
    view = scored(column("n", Kind.INTEGER, "int"))
    sink = sink_of(client, view)
    write(sink, view, {(key,): Write(5, (7, key)) for key in range(1, 7)})
    name, own = f"company{view.view.name}:7:users", view.view.name
    client.zrem(name, "1")
    client.zadd(name, {"2": 99, "77": 1, "no key": 1, "007": 1, "6": 6})
    client.zadd(name, {b"\xff\xfe": 1})
    client.delete(f"{own}:3")
    client.set(f"{own}:3", "a text")
    client.hset(f"{own}:4", "_version", "x")
    client.zadd(f"company{view.view.name}:8:users", {"5": 5})
    reader = reader_of(client, view)
    wanted = {(key,): Write(5, (7, key)) for key in range(1, 7)}
    assert reader.unequal(wanted) == [(1,), (2,), (3,), (4,)]
    assert {key for page in reader.shown_keys() for key in page} == {(key,) for key in (1, 2, 3, 4, 5, 6)}
    assert {key for page in reader.orphans() for key in page} == {(3,), (5,), (77,)}
    assert set(reader.foreign) == {f"member {member!r} of {name!r}" for member in ("007", "no key", "\udcff\udcfe")}
    held = reader.held([(3,), (4,), (5,), (77,)])
    assert {key: (one.version, bool(one.fault)) for key, one in held.items()} == {
        (3,): (None, True),
        (4,): (None, True),
        (5,): (5, True),
        (77,): (None, True),
    }
    sink.take_away(view.id, held)
    newer = {key: Write(6, values) for key, (_, values) in wanted.items()}
    assert write(sink, view, newer) == [] and reader.unequal(newer) == [] and reader.held([(77,)]) == {}
    assert client.zrange(f"company{view.view.name}:8:users", 0, -1) == []
    for member, score in (("1", 1), ("2", 2), ("3", 3), ("5", 5), ("77", None), ("no key", 1)):
        assert client.zscore(name, member) == score
    reader.close()


def test_nothing_is_taken_away_that_changed_since_it_was_seen(client: redis.Redis) -> None:
    view = by_company()
    sink = sink_of(client, view)
    write(sink, view, {(1,): Write(5, (7,)), (2,): Write(5, (7,)), (3,): Write(5, None)})
    reader = reader_of(client, view)
    held = reader.held([(1,), (2,), (3,)])
    write(sink, view, {(2,): Write(6, (8,))})
    sink.take_away(view.id, held)
    assert {key: one.version for key, one in reader.held([(1,), (3,)]).items()} == {(1,): 0}
    assert (users(client, view, 7), users(client, view, 8)) == ({"1"}, {"2"})
    reader.close()


def test_a_declaration_with_another_template_moves_each_entity_when_it_is_written_again(client: redis.Redis) -> None:
    view = by_company()
    write(sink_of(client, view), view, {(1,): Write(5, (7,))})
    other = bound(RedisSet(view.view.name, Entity("shop.user"), key="firm:{company_id}"), (COMPANY,))
    write(sink_of(client, other), other, {(1,): Write(6, (7,))})
    assert users(client, view, 7) == set()
    assert client.smembers("firm:7") == {"1"}


def test_a_sweep_finds_the_entities_that_are_in_a_set(client: redis.Redis) -> None:
    view = by_company()
    sink = sink_of(client, view)
    write(sink, view, {(1,): Write(5, (7,)), (2,): Write(5, (None,)), (3,): Write(9, (7,))})
    assert [pair for page in sink.keys_below(view.id, 9) for pair in page] == [((1,), 5)]


def test_scripts_that_redis_forgot_are_loaded_again(client: redis.Redis) -> None:
    view = by_company()
    hashes = bound(RedisHash(f"h{next(_tokens)}", Entity("shop.user"), fields=["role"]), (ROLE,))
    sink = sink_of(client, view, hashes)
    client.script_flush()
    sink.write([ViewWrites(view.id, {(1,): Write(5, (7,))}), ViewWrites(hashes.id, {(1,): Write(5, ("a",))})], None)
    assert users(client, view, 7) == {"1"}
    assert client.hget(f"{hashes.view.name}:1", "role") == "a"


def problems(*views: BoundView) -> str:
    store = RedisStore()
    found = [problem for view in views for problem in store.problems(view)]
    return "\n".join(found or [problem for _, problem in store.problems_between(views)])


def test_declarations_that_cannot_work_are_refused() -> None:
    user = Entity("shop.user")
    json = column("j", Kind.JSON, "json")
    assert "no exact equality" in problems(bound(RedisSet("v", user, key="s:{j}"), (json,)))
    run_into = RedisSet("v", user, key="s:{role}{company_id}")
    assert "could run into each other" in problems(bound(run_into, (ROLE, COMPANY)))
    assert "must begin with text" in problems(bound(RedisSet("v", user, key="{role}"), (ROLE,)))
    assert "could have the key of an entity" in problems(bound(RedisSet("v", user, key="v:{company_id}"), (COMPANY,)))
    assert "it must be a number" in problems(
        bound(RedisSortedSet("v", user, key="s:{company_id}", score="role"), (COMPANY, ROLE))
    )
    one, other = (bound(RedisSet(name, user, key="s:{company_id}"), (COMPANY,)) for name in ("v", "w"))
    assert "could belong to both" in problems(one, other)
    hashes = bound(RedisHash("s", user, fields=["role"]), (ROLE,))
    assert "could belong to both" in problems(one, hashes)


def test_a_set_that_becomes_a_sorted_one_needs_other_names() -> None:
    user, store = Entity("shop.user"), RedisStore()
    sets = bound(RedisSet("s", user, key="company:{company_id}"), (COMPANY,))
    ranks = bound(RedisSortedSet("s", user, key="company:{company_id}", score="score"), (COMPANY, SCORE))
    elsewhere = bound(RedisSortedSet("s", user, key="rank:{company_id}", score="score"), (COMPANY, SCORE))
    for one, other in ((sets, ranks), (ranks, sets)):
        assert "another type of value" in str(store.no_copy_from(other, store.place(one)))
    assert store.no_copy_from(elsewhere, store.place(sets)) is store.no_copy_from(sets, store.place(sets)) is None


def retired(view: BoundView, **others: BoundView) -> Retired:
    def place(of: BoundView) -> dict[str, Any]:
        return {"entity": "shop.user", **place_of(of)}

    there = {f"redis:{name}": [place(of)] for name, of in others.items()}
    return Retired(name=view.view.name, places=[place(view)], others=there, read_by=[])


@pytest.mark.parametrize("make", [by_company, lambda: scored(SCORE)])
def test_a_forgotten_set_view_goes_with_its_members_and_leaves_what_it_did_not_add(
    client: redis.Redis, make: Callable[[], BoundView]
) -> None:
    view = make()
    sink, company = sink_of(client, view), f"company{view.view.name}:7:users"
    row = (7, 1)[: len(view.values)]
    write(sink, view, {(number,): Write(5, row) for number in range(250)} | {(250,): Write(5, None)})
    if len(view.values) == 1:
        client.sadd(company, "a stranger")
    else:
        client.zadd(company, {"a stranger": 1})
    left = RedisLeftover(redis.Redis(port=client.connection_pool.connection_kwargs["port"]), retired(view), "viewtail")
    assert left.look().count == 251
    left.drop(lambda _: None)
    assert left.look().count == 0 and set(client.scan_iter()) == {company}
    members: Any = client.smembers(company) if len(view.values) == 1 else client.zrange(company, 0, -1)
    assert set(members) == {"a stranger"}
    left.close()


def test_members_stay_where_another_view_has_the_sets_of_a_forgotten_one(client: redis.Redis) -> None:
    view = by_company()
    assert isinstance(view.view, RedisSet)
    heir = bound(RedisSet("heir", Entity("shop.user"), key=view.view.key), (COMPANY,))
    sink = sink_of(client, view, heir)
    write(sink, view, {(1,): Write(5, (7,))})
    write(sink, heir, {(1,): Write(5, (7,))})
    left = RedisLeftover(
        redis.Redis(port=client.connection_pool.connection_kwargs["port"]), retired(view, heir=heir), "viewtail"
    )
    assert any("which view redis:heir has" in line for line in left.look().left)
    left.drop(lambda _: None)
    assert users(client, view, 7) == {"1"} and client.exists("heir:1") and not client.exists(f"{view.view.name}:1")
    left.close()


def test_an_erased_entity_is_looked_for_in_every_set_of_the_view(client: redis.Redis) -> None:
    view = by_company()
    sink, name = sink_of(client, view), view.view.name
    write(sink, view, {(1,): Write(5, (7,))})
    client.sadd(f"company{name}:8:users", "1")
    client.sadd(f"company{name}:9:users", "2")
    traces = RedisTraces(redis.Redis(port=client.connection_pool.connection_kwargs["port"]), view)
    before = {one.place: (one.holds, one.version) for one in traces.of((1,))}
    assert before == {
        f"Redis key {name}:1": (Holds.VALUES, 5),
        f"Redis key {{{name}:1}}:t": (Holds.NOTHING, None),
        f"Redis set company{name}:7:users": (Holds.VALUES, 5),
        f"Redis set company{name}:8:users": (Holds.FOREIGN, None),
    }
    write(sink, view, {(1,): Write(6, None)})
    assert {one.place: one.holds for one in traces.of((1,))} == {
        f"Redis key {name}:1": Holds.NOTHING,
        f"Redis key {{{name}:1}}:t": Holds.TOMBSTONE,
        f"Redis set company{name}:7:users": Holds.NOTHING,
        f"Redis set company{name}:8:users": Holds.FOREIGN,
    }
    traces.close()


def beside(view: BoundView, copy: int = 2) -> BoundView:
    return replace(view, copy=copy, is_beside=True)


def held_of(client: redis.Redis, view: BoundView, *keys: int) -> list[tuple[int | None, Any] | None]:
    reader = reader_of(client, view)
    found = reader.held([(key,) for key in keys])
    reader.close()
    return [(held.version, held.content) if (held := found.get((key,))) else None for key in keys]


@pytest.mark.parametrize("make", [by_company, lambda: scored(SCORE)])
def test_a_copy_beside_touches_no_set_and_the_swap_moves_each_entity_with_what_its_set_had_of_it(
    client: redis.Redis, make: Callable[[], BoundView]
) -> None:
    live = make()
    new, former = beside(live), beside(live, 1)
    is_sorted = len(live.values) == 2

    def values(company: int | None, score: int = 1) -> tuple[Any, ...]:
        return (company, score) if is_sorted else (company,)

    def members(company: int) -> dict[str, float]:
        name = f"company{live.view.name}:{company}:users"
        found: Any = client.zrange(name, 0, -1, withscores=True) if is_sorted else client.smembers(name)
        return dict(found) if is_sorted else dict.fromkeys(found, 1.0)

    sink = sink_of(client, live, new)
    write(sink, live, {(key,): Write(5, values(7)) for key in (1, 2, 3, 4, 6)} | {(5,): Write(5, None)})
    (client.zrem if is_sorted else client.srem)(f"company{live.view.name}:7:users", "6")  # damage goes along
    write(sink, new, {(1,): Write(6, values(8, 3)), (2,): Write(6, values(7, 4)), (3,): Write(6, None)})
    write(sink, new, {(2,): Write(7, values(7, 4)), (5,): Write(6, values(7)), (6,): Write(6, values(7))})
    client.set(f"company{live.view.name}:9:users", "a text of somebody else's")
    assert len(write(sink, new, {(2,): Write(8, values(9))})) == 1, "what no set can have parks its entity beside too"
    before = dict.fromkeys("1234", 1.0)
    assert members(7) == before and members(8) == {}
    assert held_of(client, new, 1, 3, 4) == [
        (6, held_of(client, new, 1)[0][1]), (6, None), None,  # type: ignore[index]
    ]  # fmt: skip
    swapping = KeySwapping(redis.Redis(port=client.connection_pool.connection_kwargs["port"]), "viewtail")

    def moved(was_live: BoundView, coming: BoundView, upto: int) -> None:
        move = Move(copy=coming.copy, former=was_live.copy, upto=upto)
        assert swapping.swap(was_live, coming, upto) is False
        assert swapping.move(replace(was_live, is_beside=True, move=move), threading.Event(), lambda _: None)

    after = {"2": 4.0 if is_sorted else 1.0, "5": 1.0, "6": 1.0}
    for _ in range(2):  # a second time it finds all done
        moved(live, new, 9)
        assert members(7) == after and members(8) == {"1": 3.0 if is_sorted else 1.0}
        assert [one and one[0] for one in held_of(client, live, 1, 2, 3, 4, 5, 6)] == [6, 7, 6, 9, 6, 6]
        assert [one and one[0] for one in held_of(client, former, 1, 2, 3, 4, 5, 6)] == [5, 5, 5, 5, 5, 5]
    sink = sink_of(client, live, former)
    write(sink, live, {(2,): Write(10, None)})
    write(sink, former, {(2,): Write(10, None)})
    moved(replace(live, copy=2), former, 11)
    del before["2"]
    assert members(7) == before and members(8) == {}
    rest = list(client.scan_iter(match=f"{{{live.view.name}:*}}:*"))
    swapping.drop(live, new)
    assert members(7) == before
    assert {name for name in rest if name.endswith((":2", ":2t"))} and not list(client.scan_iter(match="*}:2*"))
    reader = reader_of(client, live)
    assert [len(page) for page in reader.orphans() if page] == []
    reader.close()
    sink.close()
    swapping.close()


@pytest.mark.parametrize("make", [by_company, lambda: scored(SCORE)])
def test_nothing_is_pushed_while_two_copies_change_places(client: redis.Redis, make: Callable[[], BoundView]) -> None:
    live = make()
    ahead = sink_of(client, replace(live, is_pushed=True))
    port = client.connection_pool.connection_kwargs["port"]
    swapping = KeySwapping(redis.Redis(port=port), "viewtail")

    def pushed(key: int, version: int) -> int | None:
        ahead.push([ViewWrites(live.id, {(key,): Write(version, (7, 1)[: len(live.values)])})])
        return (held_of(client, live, key)[0] or (None,))[0]

    assert pushed(1, 2) == 2
    assert not swapping.swap(live, replace(live, copy=2, is_beside=True), 9), "entities are to be moved one by one"
    assert pushed(1, 4) == 2
    assert pushed(2, 4) is None, "the move would take it for a row that the other copy lacks"
    move = Move(copy=2, former=1, upto=9)
    assert swapping.move(replace(live, is_beside=True, move=move), threading.Event(), lambda _: None)
    assert [pushed(key, 12) for key in (1, 2)] == [12, 12]
    swapping.close()
    ahead.close()
