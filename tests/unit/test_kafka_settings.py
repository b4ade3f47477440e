"""A source that is Kafka: which settings it has, which topics hold which tables, and what a role does."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingest.kafka.group import Group
from ingest.kafka.topics import idle, topics_of
from projectors.stores.redis.views import RedisHash
from projectors.stores.topics.views import Topic
from projectors.views import Entity
from viewtail.changes.errors import MisuseError, SettingsError
from viewtail.roles import Role, views_of
from viewtail.settings import Settings, load
from viewtail.sources import read_position

KAFKA = "kafka://me:pw@broker:9092,other:9093"
USER = Entity("shop.user")
TOPIC, HASH = Topic("shop.user", USER), RedisHash("user", USER, fields=["name"])


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings(**environ: str) -> Settings:
    return load(None, {f"VIEWTAIL_{name}": value for name, value in environ.items()})


def test_the_scheme_of_the_address_says_which_kind_of_source_it_is() -> None:
    assert not settings(SOURCE__URL="mysql://db").source_kind.is_shared_out
    loaded = settings(SOURCE__URL=KAFKA, MYSQL__URL="mysql://you@store/views")
    assert loaded.source_kind.is_shared_out
    client = loaded.source.client()
    assert (client["bootstrap.servers"], client["sasl.username"]) == ("broker:9092,other:9093", "me")
    assert loaded.source_schema is None


def test_canonical_rows_are_where_index_tables_are_unless_an_address_says_otherwise() -> None:
    loaded = settings(SOURCE__URL=KAFKA, MYSQL__URL="mysql://you:pw@store/views")
    source = loaded.source_address()
    assert (source.host, source.user, source.password, source.database) == ("store", "you", "pw", None)
    assert loaded.primary_address() == source
    assert loaded.store_address().database == loaded.store_database == "views"
    apart = settings(
        SOURCE__URL=KAFKA,
        SOURCE__CANONICAL_URL="mysql://reader:secret@replica",
        SOURCE__PRIMARY_URL="mysql://writer@primary",
        MYSQL__URL="mysql://you@store/views",
    )
    assert (apart.source_address().host, apart.source_address().user) == ("replica", "reader")
    assert (apart.primary_address().host, apart.store_address().host) == ("primary", "store")
    alone = settings(SOURCE__URL=KAFKA, SOURCE__CANONICAL_URL="mysql://db")
    assert (alone.store_address().host, alone.store_address().database) == ("db", "viewtail")


def test_without_a_mysql_server_the_error_says_which_setting_is_missing() -> None:
    with pytest.raises(SettingsError, match="VIEWTAIL_MYSQL__URL"):
        settings(SOURCE__URL=KAFKA).source_address()


@pytest.mark.parametrize(
    ("url", "name", "value"),
    [
        ("mysql://db", "TOPICS", "a.b"),
        ("mysql://db", "CANONICAL_URL", "mysql://db"),
        ("mysql://db", "GROUP", "mine"),
        ("mysql://db", "SASL_MECHANISM", "PLAIN"),
        (KAFKA, "HEARTBEAT_S", "3"),
        (KAFKA, "SERVER_ID", "3"),
    ],
)
def test_a_setting_of_the_other_kind_of_source_is_refused_by_name(url: str, name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name.lower()):
        settings(**{"SOURCE__URL": url, f"SOURCE__{name}": value})


@pytest.mark.parametrize("url", ["kafka://", "redis://db", "kafka://broker/path", "http://broker"])
def test_what_is_no_source_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(SOURCE__URL=url.replace("://", "://me:cAnArY@"))
    assert "cAnArY" not in str(caught.value)


def test_topics_are_called_as_their_tables_unless_a_setting_says_otherwise() -> None:
    tables = [("shop", "user"), ("shop", "order"), ("shop", "item")]
    given = settings(SOURCE__URL=KAFKA, SOURCE__TOPICS="dbz.shop.user, shop.order=orders ").source.topics
    assert topics_of(tables, given) == {
        ("shop", "user"): "dbz.shop.user",
        ("shop", "order"): "orders",
        ("shop", "item"): "shop.item",
    }
    assert topics_of([("shop", "user")], ["webshop.user"]) == {("shop", "user"): "shop.user"}, "behind a dot alone"
    for wrong in ("=orders", "shop.order=", "a=b=c"):
        with pytest.raises(SettingsError, match=r"SCHEMA\.TABLE=TOPIC"):
            settings(SOURCE__URL=KAFKA, SOURCE__TOPICS=wrong)


def test_a_topic_of_no_table_is_told_as_a_slip() -> None:
    tables = [("shop", "user"), ("shop", "order")]
    given = ["shop.usr=users", "shop.user=shop.order", "dbz.shop.order", "elsewhere", "shop.user"]
    assert idle(tables, given) == ["shop.usr=users", "elsewhere", "shop.user"]
    assert idle(tables, []) == []


def test_users_choose_how_soon_a_projector_that_hangs_is_left_behind() -> None:
    options = '{"session.timeout.ms": 20000}'
    for given, taken in (("{}", 6_000), (options, 20_000)):
        client = settings(SOURCE__URL=KAFKA, SOURCE__OPTIONS=given).source.client()
        group = Group(client, "views", "viewtail@host:1", ["shop.user"], lambda _: None, lambda _: None)
        assert (group.settings["session.timeout.ms"], group.settings["group.id"]) == (taken, "views")


@pytest.mark.parametrize(
    ("group", "options", "why"),
    [
        ("KAFKA", '{"linger.mss": 5}', "linger.mss"),
        ("KAFKA", '{"batch.size": "much"}', "batch.size"),
        ("SOURCE", '{"session.timeout.mss": 5}', "session.timeout.mss"),
    ],
)
def test_a_setting_that_librdkafka_does_not_have_is_refused_by_name(group: str, options: str, why: str) -> None:
    with pytest.raises(SettingsError, match=f"VIEWTAIL_{group}__OPTIONS.*librdkafka refuses it.*{why}"):
        settings(SOURCE__URL=KAFKA, KAFKA__URL=KAFKA, **{f"{group}__OPTIONS": options})


def test_a_role_chooses_the_views_of_a_run() -> None:
    binlog, kafka = settings(SOURCE__URL="mysql://db"), settings(SOURCE__URL=KAFKA, MYSQL__URL="mysql://db")
    both = [TOPIC, HASH]
    assert views_of(Role.ALL, binlog, both) == both
    assert views_of(Role.TAIL, binlog, both) == [TOPIC]
    assert views_of(Role.PROJECT, binlog, both) == views_of(Role.PROJECT, kafka, both) == [HASH]
    assert views_of(Role.ALL, kafka, both) == [HASH], "what is read from Kafka is not published there again"
    for role, loaded, views in ((Role.TAIL, kafka, both), (Role.TAIL, binlog, [HASH]), (Role.PROJECT, kafka, [TOPIC])):
        with pytest.raises(MisuseError, match="--role"):
            views_of(role, loaded, views)


def test_a_position_of_either_kind_is_read_from_its_text() -> None:
    kafka = '{"epoch":1,"topic":"t","topic_id":"7-9","partition":0,"offset":4,"version":9}'
    binlog = '{"epoch":1,"file":"b.000001","end":4,"start":4,"gtid":""}'
    assert [str(read_position(text)) for text in (kafka, binlog)] == ["t/0:4", "b.000001:4"]
    with pytest.raises(ValueError):
        read_position("{}")
