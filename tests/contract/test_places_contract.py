"""What every store promises that several deployments may share: a place is one deployment's, and another is refused."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer

from projectors.stores import Sink, Swapping, publisher
from projectors.stores.elasticsearch import sink as search_sink
from projectors.stores.elasticsearch.leaving import SearchLeftover
from projectors.stores.elasticsearch.places import SearchPlaces
from projectors.stores.elasticsearch.swapping import AliasSwapping
from projectors.stores.leaving import Found, Leftover, Retired
from projectors.stores.owners import NOBODY, Claimant, Places
from projectors.stores.redis import holding
from projectors.stores.redis import sink as redis_sink
from projectors.stores.redis.leaving import RedisLeftover
from projectors.stores.redis.leaving import place_of as redis_place
from projectors.stores.redis.places import RedisPlaces
from projectors.stores.redis.swapping import KeySwapping
from projectors.stores.topics import consuming
from projectors.stores.topics.admin import Topics
from projectors.stores.topics.leaving import TopicLeftover
from projectors.stores.topics.places import TopicPlaces
from projectors.stores.topics.rules import transactional_id
from tests.contract.sinks import SHARED_SERVERS, STORES, ElasticsearchOne, KafkaOne, RedisOne, Store, of_view
from tests.contract.test_sink_contract import position
from viewtail.changes.errors import FencedError, StoreError, StoreUnavailableError
from viewtail.changes.findings import Level
from viewtail.changes.writes import Write
from viewtail.operations import check

pytestmark = pytest.mark.one_in(2)
# How a topic is delivered has no part in whose it is.
SHARED = [name for name in sorted(STORES) if name.startswith(("elasticsearch", "kafka", "redis"))]
SHARED.remove("kafka_at_least_once")
_tokens = itertools.count(1)


class Deployments:
    """Two of them, each with sinks of its own for the same views."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.views = [store.person.id, store.place.id]
        self._sinks: list[Sink] = []

    def claimant(self, name: str, had: bool = False) -> Claimant:
        return Claimant(id=name * 16, title=f"deployment-{name} on db:3306", ours=frozenset(self.views if had else ()))

    def sink(self, claimant: Claimant | None, *views: Any) -> Any:
        sink: Any = self.store.sink(*views)
        sink._claiming = lambda: claimant or NOBODY
        self._sinks.append(sink)
        return sink

    def begun(self, name: str, *views: Any, had: bool = False) -> tuple[Any, dict[str, str]]:
        sink = self.sink(self.claimant(name, had), *views)
        return sink, self.prepared(sink)

    @staticmethod
    def prepared(sink: Any) -> dict[str, str]:
        """As a pipeline does it: again, where the store does not answer for a moment."""
        deadline = time.monotonic() + 60
        while True:
            try:
                refused: dict[str, str] = sink.prepare()
                return refused
            except (StoreUnavailableError, FencedError):
                if time.monotonic() > deadline:
                    raise

    def write(self, sink: Sink, version: int) -> None:
        if publisher(sink) is not None:
            sink.write([], position(version))
        sink.write([of_view(self.store.person, {(1,): Write(version, ("a", "b"))})], position(version + 1))

    def newest(self) -> tuple[Any, int]:
        """What a reader of `person` finds last: its key and version."""
        if isinstance(self.store, KafkaOne):
            return self.store.published(self.store.person)[-1][:2]
        ((key, (version, _)),) = self.store.shown(self.store.person).items()
        return key, version

    def places(self, name: str, had: bool = False) -> Places:
        claimant, store = self.claimant(name, had), self.store
        if isinstance(store, RedisOne):
            return RedisPlaces(store.client(), claimant, "places")
        if isinstance(store, ElasticsearchOne):
            return SearchPlaces(store.client(), claimant)
        assert isinstance(store, KafkaOne)
        return TopicPlaces(store.client(), claimant, transactional_id(store._database, "kafka"))

    def swapping(self, name: str) -> Swapping:
        claimant, store = self.claimant(name), self.store
        if isinstance(store, RedisOne):
            return KeySwapping(store.client(), f"contract_{store._token}", lambda: claimant)
        assert isinstance(store, ElasticsearchOne)
        return AliasSwapping(store.client(), lambda: claimant)

    def leftover(self, name: str, had: bool = False) -> Leftover:
        """Of `person`, which that deployment does not declare any more."""
        claimant, store, view = self.claimant(name, had), self.store, self.store.person.view
        place = redis_place(self.store.person) if isinstance(store, RedisOne) else {}
        retired = Retired(name=view.name, places=[place], others={}, read_by=())
        if isinstance(store, RedisOne):
            return RedisLeftover(store.client(), retired, "places", claimant)
        if isinstance(store, ElasticsearchOne):
            return SearchLeftover(store.client(), view.id, retired, claimant)
        assert isinstance(store, KafkaOne)
        return TopicLeftover(store.client(), retired, claimant)

    def forgotten(self, name: str, had: bool = False) -> Found:
        """Drop it; returns what that deployment leaves there."""
        with closing(self.leftover(name, had)) as left:
            told: list[int] = []
            of_others = list(left.of_others())
            left.drop(told.append)
            found = left.look()
            assert of_others == list(found.left)
            return replace(found, count=sum(told))

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()
        for name in ("1a", "2b"):
            for view in self.views:
                self.places(name).release(view)


@pytest.fixture(params=SHARED)
def two(request: pytest.FixtureRequest) -> Iterator[Deployments]:
    server = request.getfixturevalue(SHARED_SERVERS[request.param])
    store = STORES[request.param](server, f"places{next(_tokens)}")
    found = Deployments(store)
    yield found
    found.close()
    store.close()


def test_a_place_that_another_deployment_has_is_refused_by_name(two: Deployments) -> None:
    first, refused = two.begun("1a")
    assert refused == {}
    _, refused = two.begun("2b")
    assert set(refused) == set(two.views)
    for view, why in refused.items():
        assert "deployment-1a on db:3306" in why
        assert f"viewtail replay {view} --take-over" in why
    assert two.prepared(first) == {}
    two.write(first, 1000)
    assert two.store.shown(two.store.person) == {(1,): (1000, ("a", "b"))}


def test_a_look_from_outside_says_the_same_and_claims_nothing(two: Deployments) -> None:
    looking = two.places("2b")
    assert looking.refusal(two.store.person) is None
    first, refused = two.begun("1a")
    assert refused == {}
    assert "deployment-1a" in (looking.refusal(two.store.person) or "")
    assert two.places("1a").refusal(two.store.person) is None
    assert two.prepared(first) == {}


def test_a_place_of_an_earlier_viewtail_is_who_s_that_had_it(two: Deployments) -> None:
    earlier = two.sink(None)
    assert two.prepared(earlier) == {}
    two.write(earlier, 1000)
    earlier.close()
    _, refused = two.begun("2b", two.store.person)
    assert "does not say which" in refused[two.store.person.id]
    assert two.places("2b").refusal(two.store.person) == refused[two.store.person.id]
    assert two.places("1a", had=True).refusal(two.store.person) is None
    heir, refused = two.begun("1a", had=True)
    assert refused == {}
    witness = heir.witness(position(1))
    assert witness is not None and witness.end == 1001, "it goes on from there"
    _, refused = two.begun("2b")
    assert "deployment-1a" in refused[two.store.person.id]


def test_of_two_that_claim_a_place_at_once_one_gets_it(two: Deployments) -> None:
    refused: dict[str, dict[str, str]] = {}
    start = threading.Barrier(2)

    def begin(name: str) -> None:
        sink = two.sink(two.claimant(name))
        start.wait(20)
        refused[name] = two.prepared(sink)

    threads = [threading.Thread(target=begin, args=(name,)) for name in ("1a", "2b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert refused.keys() == {"1a", "2b"}
    for view in two.views:
        assert sum(view in why for why in refused.values()) == 1, refused


@pytest.mark.parametrize("two", ["kafka"], indirect=True)
def test_nobody_takes_a_topic_while_an_open_transaction_may_hide_its_owner(
    two: Deployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(two.store, KafkaOne)
    monkeypatch.setattr(consuming, "ASK_WITHIN_S", 2.0)
    Topics(two.store.client()).make_positions("viewtail_positions")
    name = f"killed.{two.store.person.id}"
    killed = Producer({**two.store.client(), "transactional.id": f"viewtail.{name}", "transaction.timeout.ms": 300_000})
    killed.init_transactions(20)
    killed.begin_transaction()
    killed.produce("viewtail_positions", b"{}", name.encode(), 0)
    killed.flush(20)
    first, second = two.sink(two.claimant("1a")), two.sink(two.claimant("2b"))
    for sink in (first, second):
        with pytest.raises(StoreUnavailableError, match="another pipeline's transaction is open"):
            sink.prepare()
    killed.abort_transaction(20)
    assert set(two.prepared(second)) == set(two.views)
    assert two.prepared(first) == {}


def test_who_lost_a_place_notices_before_it_writes_again(two: Deployments, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = two.begun("1a")
    two.write(first, 1000)
    _, refused = two.begun("2b")
    assert set(refused) == set(two.views)
    for module in (redis_sink, search_sink):
        monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    places = two.places("2b")
    places.take_over(two.store.person, "taken over from deployment-1a by ada@shop")
    with pytest.raises((StoreUnavailableError, FencedError)):
        two.write(first, 2000)
    refused = two.prepared(first)
    assert set(refused) == {two.store.person.id}
    assert "deployment-2b" in refused[two.store.person.id]
    assert "by ada@shop" in refused[two.store.person.id]
    places.clear(two.store.person)
    second, refused = two.begun("2b")
    assert set(refused) == {two.store.place.id}
    two.write(second, 500)  # though what the first had written was newer
    assert two.newest() == ((1,), 500)


def test_who_took_a_place_over_loses_it_again_though_both_databases_are_called_the_same(
    two: Deployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (redis_sink, search_sink):
        monkeypatch.setattr(module, "LOOK_EVERY_S", 0.0)
    first, refused = two.begun("1a")
    assert refused == {}
    two.write(first, 500)
    two.places("2b").take_over(two.store.person, "taken over from deployment-1a by ada@shop")
    second, refused = two.begun("2b", two.store.person)
    assert refused == {}
    two.write(second, 1000)
    two.places("1a").take_over(two.store.person, "taken over from deployment-2b by ben@shop")
    with pytest.raises((StoreUnavailableError, FencedError)):
        two.write(second, 2000)
    assert "deployment-1a" in two.prepared(second)[two.store.person.id]
    assert two.prepared(first) == {}


def test_a_view_that_is_forgotten_leaves_what_another_deployment_has_in_its_place(two: Deployments) -> None:
    first, _ = two.begun("1a", two.store.person)
    two.write(first, 1000)
    _, refused = two.begun("2b", two.store.person)
    assert set(refused) == {two.store.person.id}
    found = two.forgotten("2b")
    assert (found.count, list(found.dropped)) == (0, [])
    assert "belongs to the deployment deployment-1a on db:3306" in found.left[0]
    assert two.newest() == ((1,), 1000)
    two.places("2b").take_over(two.store.person, "taken over from deployment-1a by ada@shop")
    found = two.forgotten("1a")
    assert found.count == 0 and "deployment-2b" in found.left[0]
    assert two.newest() == ((1,), 1000)
    found = two.forgotten("2b")
    assert found.count > 0 and not found.left
    assert two.places("3c").refusal(two.store.person) is None or not isinstance(two.store, KafkaOne)


def test_a_view_that_is_forgotten_leaves_what_a_viewtail_wrote_that_noted_no_owner(two: Deployments) -> None:
    earlier = two.sink(None, two.store.person)
    assert two.prepared(earlier) == {}
    two.write(earlier, 1000)
    _, refused = two.begun("2b", two.store.person)
    assert "does not say which" in refused[two.store.person.id]
    found = two.forgotten("2b")
    assert found.count == 0 and "not this deployment" in found.left[0]
    assert two.newest() == ((1,), 1000)
    assert two.forgotten("1a", had=True).count > 0


def test_who_writes_ahead_of_the_pipeline_is_given_no_view_that_was_taken_over(two: Deployments) -> None:
    if isinstance(two.store, KafkaOne):  # nobody writes a topic ahead of its pipeline
        assert publisher(two.sink(None)) is not None
        return
    first, _ = two.begun("1a")
    two.write(first, 1000)
    ahead = two.sink(two.claimant("1a"), *(replace(one, is_pushed=True) for one in (two.store.person, two.store.place)))
    assert ahead.attach() == set(two.views)
    two.places("2b").take_over(two.store.person, "taken over from deployment-1a by ada@shop")
    assert ahead.attach() == {two.store.place.id}


def test_a_copy_whose_number_the_new_owner_has_too_stays_when_the_former_one_drops_its_own(two: Deployments) -> None:
    if isinstance(two.store, KafkaOne):
        assert publisher(two.sink(None)) is not None, "it has no copies"
        return
    person = two.store.person
    live, beside = replace(person, copy=person.copy + 1), replace(person, copy=person.copy + 1, is_beside=True)
    _, refused = two.begun("1a", live)
    assert refused == {}
    two.places("2b").take_over(person, "taken over from deployment-1a by ada@shop")
    two.places("2b").clear(person)
    mine, refused = two.begun("2b", person)
    assert refused == {}
    two.write(mine, 1000)
    with closing(two.swapping("1a")) as former:
        for do in (former.drop, lambda live, kept: former.swap(live, kept, 9)):
            with pytest.raises(StoreError, match="deployment-2b"):
                do(live, replace(person, is_beside=True))
    assert two.newest() == ((1,), 1000)
    building = two.sink(two.claimant("2b"), beside)
    assert two.prepared(building) == {}
    building.write([of_view(beside, {(1,): Write(2000, ("c", "d"))})], None)
    with closing(two.swapping("1a")) as former, pytest.raises(StoreError, match="deployment-2b"):
        former.drop(person, beside)
    with closing(two.store.reader(beside)) as reader, closing(two.swapping("2b")) as ours:  # type: ignore[attr-defined]
        assert reader.held([(1,)])[1,].version == 2000
        ours.drop(person, beside)


def test_a_released_place_is_free(two: Deployments) -> None:
    first, _ = two.begun("1a")
    first.close()
    for view in two.views:
        two.places("2b").release(view)  # it is not its own
    _, refused = two.begun("2b")
    assert set(refused) == set(two.views)
    for view in two.views:
        two.places("1a").release(view)
    if isinstance(two.store, ElasticsearchOne):  # an index is of versions that another deployment's may be below
        _, refused = two.begun("2b")
        assert "does not say which" in refused[two.store.person.id]
        two.store.close()
    assert two.places("2b").refusal(two.store.person) is None
    _, refused = two.begun("2b")
    assert refused == {}
    assert set(two.prepared(first)) == set(two.views)


def test_who_released_a_place_may_have_it_again_with_what_it_holds(two: Deployments) -> None:
    first, _ = two.begun("1a")
    two.write(first, 1000)
    first.close()
    for view in two.views:
        two.places("1a").release(view)
    assert two.places("1a").own(two.store.person) is None
    if not isinstance(two.store, KafkaOne):  # the versions there could be above all that another deployment writes
        _, refused = two.begun("2b", two.store.person)
        assert "does not say which" in refused[two.store.person.id]
        assert two.places("2b").refusal(two.store.person) is not None
    assert two.places("1a").refusal(two.store.person) is None
    first, refused = two.begun("1a")
    assert refused == {}
    two.write(first, 2000)
    assert two.newest() == ((1,), 2000)


def test_two_whose_databases_are_called_the_same_keep_their_own_positions(two: Deployments) -> None:
    first, refused = two.begun("1a", two.store.person)
    assert refused == {}
    two.write(first, 1000)
    second, refused = two.begun("2b", two.store.place)
    assert refused == {}
    if not isinstance(two.store, ElasticsearchOne):  # there it is in each index
        assert second.witness(position(1)) is None
    second.write([], position(7))
    two.write(first, 2000)  # nobody fenced it
    assert _end(first) == 2001
    assert two.prepared(first) == two.prepared(second) == {}
    assert (_end(first), _end(second)) == (2001, 7)


@pytest.mark.parametrize("two", [name for name in SHARED if name.startswith("redis")], indirect=True)
def test_a_look_that_did_not_see_every_key_says_so(two: Deployments, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(two.store, RedisOne)
    with two.store.client() as client:
        client.mset({f"other:{at}": "" for at in range(200)})
    looking = two.places("2b")
    assert looking.refusal(two.store.person) is None
    assert looking.remark is None
    monkeypatch.setattr(holding, "STEPS_OF_A_SAMPLE", 1)
    monkeypatch.setattr(holding, "KEYS_A_STEP", 1)
    (found,) = check._place_of(looking, two.store.person)
    assert found.level is Level.WARN and "no owner is noted" in found.seen
    two.begun("2b")
    assert list(check._place_of(looking, two.store.person)) == [], "its own is not looked for"


def _end(sink: Any) -> int:
    sink.settle()
    found = sink.witness(position(10_000))
    assert found is not None
    end: int = found.end
    return end
