"""The pure parts of a DataStore: ids, homes, what an index holds, and what is refused."""

from __future__ import annotations

from urllib.parse import quote
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewtail.changes.bodies import MAX_BODY_BYTES, decoder
from viewtail.changes.errors import DeclarationError, MisuseError
from viewtail.datastore import DataStore, Index
from viewtail.entities.datastore.properties import home_of_id, home_of_value, id_of, is_same, new_id, plain, values_of
from viewtail.entities.datastore.store import CODEC
from viewtail.servers.addresses import MYSQL, parse
from viewtail.settings import load

URLS = ["mysql://db0:3306/ff", "mysql://db1:3306/ff"]
TEXTS = {"a": "VARCHAR(255)", "b": "BIGINT"}


def test_ids_are_uuids_of_version_7_and_rise() -> None:
    ids = [new_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert {(one.version, one.variant) for one in ids} == {(7, "specified in RFC 4122")}
    assert ids[0].int >> 80 <= ids[-1].int >> 80


def test_an_id_is_taken_in_three_forms_and_nothing_else_is() -> None:
    one = new_id()
    assert id_of(one) == id_of(one.bytes) == id_of(str(one)) == one
    for wrong in (b"short", "no id", 7, None):
        with pytest.raises(MisuseError, match="an id is a UUID"):
            id_of(wrong)


@given(st.binary(min_size=16, max_size=16), st.integers(1, 64))
def test_an_id_has_one_home(entity_id: bytes, count: int) -> None:
    assert 0 <= home_of_id(entity_id, count) < count
    assert home_of_id(entity_id, count) == home_of_id(bytes(UUID(bytes=entity_id).bytes), count)


def test_what_an_index_holds() -> None:
    assert values_of(TEXTS, {"a": "x", "b": 5}) == ("x", 5)
    assert values_of(TEXTS, {"a": True, "b": -(1 << 63)}) == ("true", -(1 << 63))
    assert values_of(TEXTS, {"a": 1.5, "b": 0}) == ("1.5", 0)
    assert values_of(TEXTS, {"a": "ä" * 300, "b": 0}) == ("ä" * 255, 0)
    for absent in ({"a": "x"}, {"a": None, "b": 5}, {"a": "x", "b": None}):
        assert values_of(TEXTS, absent) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("a", ["x"], "a list or an object is not indexed"),
        ("b", True, "is an integer, not a truth value"),
        ("b", 5.0, "is an integer, not a floating-point number"),
        ("b", "5", "is an integer, not a text"),
        ("b", 1 << 63, r"from -2\^63 to 2\^63-1"),
    ],
)
def test_what_no_index_can_hold_is_refused_by_name(name: str, value: object, said: str) -> None:
    index = Index(table="by_a", properties=TEXTS)
    store = DataStore(mysql_shards=URLS, indexes=[index])
    asked = {"a": "x", "b": 5, name: value}
    with pytest.raises(ValueError, match=f"^{name}: .*{said}"):
        values_of(TEXTS, asked)
    with pytest.raises(MisuseError, match=f"index by_a cannot have this entity: {name}: .*{said}"):
        store.put(asked)
    with pytest.raises(MisuseError, match=f"by_a: {name}: .*{said}"):
        index.get_all(store, **asked)


@pytest.mark.parametrize("value", [["x"], {"x": 1}, "5", True, 1.5, 1 << 63])
def test_what_was_put_before_an_index_that_cannot_hold_it_is_not_in_the_index(value: object) -> None:
    store = DataStore(mysql_shards=URLS[:1], indexes=[Index(table="by_b", properties=["b"])])
    typed = DataStore(mysql_shards=URLS[:1], indexes=[Index(table="by_b", properties={"b": "BIGINT"})])
    row = {"id": new_id().bytes, "body": {"b": value}}
    for one, is_in in ((store, not isinstance(value, list | dict)), (typed, False)):
        ((view,),) = [one.views_of(name) for name in one.shards()]
        assert view.where is not None and view.where(row) is is_in


def test_values_are_compared_with_their_kind() -> None:
    assert is_same({"a": 1, "b": [2]}, {"b": [2], "a": 1})
    for other in (True, 1.0, "1", None):
        assert not is_same(1, other)
    assert plain((1, UUID(int=0))) == [1, "00000000-0000-0000-0000-000000000000"]
    with pytest.raises(MisuseError, match="no JSON can be made"):
        plain({1, 2})


def test_a_row_of_an_index_is_in_one_deployment_alone() -> None:
    index = Index("by_user", ["user_id"], shard_on="user_id")
    datastore = DataStore([f"mysql://db{number}:3306/ff" for number in range(3)], [index, Index("by_day", ["day"])])
    assert len(datastore.shards()) == 9
    for number in range(50):
        entity_id, entity = new_id(), {"user_id": number, "day": "monday"}
        home = home_of_id(entity_id.bytes, 3)
        held = {"by_user": [], "by_day": []}
        for target in range(3):
            for view in datastore.views_of(f"{home}.{target}"):
                assert view.where is not None
                if view.where({"id": entity_id.bytes, "body": entity}):
                    held[view.name].append(target)
        assert held == {"by_user": [home_of_value(str(number), 3)], "by_day": [home]}
        for view in datastore.views_of(f"{(home + 1) % 3}.0"):
            assert view.where is not None
            with pytest.raises(ValueError, match="and its id is one of shard"):
                view.where({"id": entity_id.bytes, "body": entity})


def test_without_shard_on_a_shard_is_a_deployment() -> None:
    assert list(DataStore(URLS, [Index("by_day", ["day"])]).shards()) == ["0.0", "1.1"]


def test_two_datastores_on_the_same_servers_share_no_database_of_viewtail() -> None:
    def own(*databases: str) -> set[str]:
        index = Index("by_user", ["user_id"], shard_on="user_id")
        datastore = DataStore([f"mysql://db0:3306/{quote(name, safe='')}" for name in databases], [index])
        found = {name: datastore.settings_of(name, load(None, {})) for name in datastore.shards()}
        return {settings.source.database for settings in found.values()} | {
            parse(settings.mysql.url.get_secret_value(), MYSQL).path for settings in found.values()
        }

    assert own("ff0", "ff1") == {
        f"viewtail_from_{source}_to_{target}_ff{target}" for source in (0, 1) for target in (0, 1)
    }
    for first, second in (
        (("ff0", "ff1"), ("gg0", "gg1")),
        (("f" * 63 + "0", "f" * 63 + "1"), ("f" * 63 + "2", "f" * 63 + "3")),
        (("50%", "ä b"), ("50", "ä+b")),
    ):
        assert len(own(*first) | own(*second)) == 8 and not own(*first) & own(*second)
        assert all(len(name) <= 64 for name in own(*first))


def test_an_entity_that_no_index_would_have_is_refused_and_the_largest_other_one_is_not() -> None:
    datastore = DataStore(URLS, [Index("by_day", ["day"])])
    largest = {"text": "a" * (MAX_BODY_BYTES - len('{"text":""}'))}
    assert decoder(CODEC)(datastore._body(largest)) == largest
    with pytest.raises(MisuseError, match="has 4,194,305 bytes as JSON, and may have 4,194,304"):
        datastore._body({"text": largest["text"] + "a"})


def test_the_time_to_wait_is_of_all_deployments_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = 100.0, []

    def waits_four_seconds(*_: object, within_s: float, **__: object) -> None:
        nonlocal now
        given.append(within_s)
        now += 4.0

    monkeypatch.setattr("viewtail.entities.datastore.store.monotonic", lambda: now)
    monkeypatch.setattr("viewtail.waiting.wait_for_all", waits_four_seconds)
    index = Index("by_user", ["user_id"], shard_on="user_id")
    datastore = DataStore([f"mysql://db{number}:3306/ff" for number in range(4)], [index], settings=load(None, {}))
    datastore._wait(0, within_s=10.0)
    assert given == [10.0, 6.0, 2.0, 0.0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Index("by user", ["a"]), "letters, digits and _"),
        (lambda: Index("i", "user_id"), "a list of names"),
        (lambda: Index("i", []), "a list of names"),
        (lambda: Index("i", ["id"]), "no name of a property"),
        (lambda: Index("i", {"a": "JSON"}), "the type of a is one of"),
        (lambda: Index("i", ["a"], shard_on="b"), "shard_on is one of the properties"),
        (lambda: DataStore([]), "a list of addresses"),
        (lambda: DataStore(["mysql://db0:3306"]), "names no database"),
        (lambda: DataStore(["postgres://db0/x"]), "mysql_shards[0]"),
        (lambda: DataStore([URLS[0], "mysql://ann:secret@db0:3306/ff"]), "one database"),
        (lambda: DataStore(URLS, [Index("i", ["a"]), Index("i", ["b"])]), "two indexes have one table"),
        (lambda: DataStore(URLS, ["i"]), "a list of Index"),  # type: ignore[list-item]
    ],
)
def test_a_declaration_that_cannot_work_is_refused(make: object, said: str) -> None:
    with pytest.raises(DeclarationError) as found:
        make()  # type: ignore[operator]
    assert said in str(found.value) and "secret" not in str(found.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, float("-inf")], {"a": {"b": float("nan")}}])
def test_a_number_that_json_has_not_is_refused_and_never_becomes_null(value: object) -> None:
    with pytest.raises(MisuseError, match="a number is infinite or not a number"):
        plain({"name": value})


@pytest.mark.parametrize(
    ("value", "said"), [({1: 2}, "key must be str"), ("\ud800", "UTF-8"), (1 << 70, "64-bit"), (object(), "object")]
)
def test_what_is_no_json_is_told(value: object, said: str) -> None:
    with pytest.raises(MisuseError, match=said):
        plain({"name": value})
