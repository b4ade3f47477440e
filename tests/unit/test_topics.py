"""What is said about topics without a broker: records of positions, declarations, settings, addresses."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from projectors.binding import bind
from projectors.stores.topics.admin import PresentTopic, config_of, contradictions
from projectors.stores.topics.store import KAFKA, KafkaSettings
from projectors.stores.topics.views import Topic
from projectors.views import Entity, View
from viewtail.changes.errors import DeclarationError, StoreError, StoreUnavailableError
from viewtail.changes.published import Progress, Published, record_key
from viewtail.changes.tables import Column, Kind, Table
from viewtail.changes.versions import MAX_VERSION
from viewtail.servers.addresses import parse
from viewtail.servers.brokers import failed

COLUMNS = (
    Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),
    Column(name="name", kind=Kind.TEXT, declared="varchar(9)", is_nullable=True, charset="utf8mb4", length=9),
    Column(name="rev", kind=Kind.INTEGER, declared="int", is_nullable=False),
)
TABLE = Table(schema="shop", name="user", columns=COLUMNS, primary_key=("id",))
USER = Entity("shop.user")

# --- Records of positions ---

_TEXT = st.text(max_size=20)
_VERSION = st.integers(0, MAX_VERSION)
_PROGRESS = st.builds(
    Progress,
    version=_VERSION,
    ends=st.dictionaries(_TEXT, st.lists(st.integers(0, 1 << 62), max_size=4), max_size=3),
    watermarks=st.dictionaries(_TEXT, _VERSION, max_size=3),
)


@given(
    st.builds(
        Published,
        position=_TEXT,
        fills=st.dictionaries(_TEXT, _TEXT, max_size=3),
        fan_outs=st.dictionaries(_TEXT, st.integers(0, MAX_VERSION), max_size=3),
        progress=st.none() | _PROGRESS,
    )
)
def test_a_record_of_positions_is_read_as_it_was_written(record: Published) -> None:
    assert Published.from_json(record.to_json()) == record


def test_versions_leave_as_texts() -> None:
    record = Published(position="p", progress=Progress(version=MAX_VERSION, ends={}, watermarks={"t": MAX_VERSION - 1}))
    progress = orjson.loads(record.to_json())["progress"]
    assert progress == {"version": str(MAX_VERSION), "ends": {}, "watermarks": {"t": str(MAX_VERSION - 1)}}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"\xff\xfe", b"null", b"7", b"[]", b'"text"', b"{}", b"[" * 5000, b'{"position":"p","fills":7}',
        b'{"position":"p","fills":["a"]}', b'{"position":"p","progress":7}', b'{"position":"p","progress":{}}',
        b'{"position":"p","progress":{"version":"x","ends":{},"watermarks":{}}}',
        b'{"position":"p","progress":{"version":"1","ends":[],"watermarks":{}}}',
        b'{"position":"p","progress":{"version":"1","ends":{"t":7},"watermarks":{}}}',
        b'{"position":"p","progress":{"version":"1","ends":{"t":[null]},"watermarks":{}}}',
        b'{"position":"p","progress":{"version":"' + b"9" * 5000 + b'","ends":{},"watermarks":{}}}',
    ],
)  # fmt: skip
def test_hostile_bytes_in_place_of_a_record_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        Published.from_json(text)


def test_mutated_records_are_read_or_refused_and_nothing_else() -> None:
    chance = random.Random(7)
    progress = Progress(version=9, ends={"a.b": [1, 2]}, watermarks={"t": 3})
    whole = Published(position='{"epoch":1}', fills={"v": "k"}, progress=progress).to_json()
    refused = 0
    for _ in range(5_000):
        text = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            text[chance.randrange(len(text))] = chance.randrange(256)
        try:
            Published.from_json(bytes(text))
        except ValueError:
            refused += 1
    assert 1_000 < refused < 5_000


def test_deployments_that_share_a_cluster_have_records_of_their_own() -> None:
    assert record_key("one", "kafka") != record_key("two", "kafka")


# --- Declarations ---


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("a", {"partitions": 0}, "partitions is a number from 1 to 100,000, not 0"),
        ("a", {"partitions": True}, "partitions is a number"),
        ("a", {"partitions": "3"}, "partitions is a number"),
        ("a", {"compact": "yes"}, "compact is True or False, not 'yes'"),
        ("a", {"schemas": 1}, "schemas is True or False, not 1"),
        ("a", {"delivery": "at_most_once"}, "delivery is 'exactly_once' or 'at_least_once', not 'at_most_once'"),
        ("a", {"delivery": None}, "delivery is 'exactly_once' or 'at_least_once', not None"),
        ("a", {"config": ["retention.ms"]}, "config is a dict of topic settings"),
        ("a", {"config": {"retention.ms": None}}, "'retention.ms': a name and a text or number are expected"),
        ("a", {"config": {7: "x"}}, "7: a name and a text or number are expected"),
        (
            "a",
            {"config": {"cleanup.policy": "delete"}},
            "config has cleanup.policy=delete, and compact=True; leave one out",
        ),
        ("a", {"compact": False, "config": {"cleanup.policy": "compact,delete"}}, "and compact=False; leave one out"),
        ("a", {"fields": [7]}, "fields"),
    ],
)
def test_a_declaration_that_cannot_work_names_the_view_and_what_to_change(
    name: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(DeclarationError, match=re.escape(said)) as refused:
        Topic(name, USER, **arguments)
    assert f"Topic('{name}')" in str(refused.value)


@pytest.mark.parametrize(
    ("views", "said"),
    [
        ([Topic("with blank", USER)], "'with blank' is no name of a topic: it has 1 to 249 letters, digits"),
        ([Topic("ümlaut", USER)], "is no name of a topic"),
        ([Topic("x" * 250, USER)], "is no name of a topic"),
        ([Topic("..", USER)], "'..' is no name of a topic"),
        ([Topic("viewtail_positions", USER)], "the topic viewtail_positions is not for views"),
        ([Topic("__consumer_offsets", USER)], "the topic __consumer_offsets is not for views"),
        ([Topic("a.b", USER), Topic("a_b", USER)], "differs from that of kafka:a.b in '.' and '_' alone"),
        ([Topic("a", USER), Topic("a", USER)], "two views have this store and name"),
        ([Topic("a", USER, fields=["nmae"])], "shop.user has no column nmae; did you mean name?"),
        (
            [Topic("a", Entity("shop.user", key="id", version="rev", append_only=True))],
            "key the topic by the primary key",
        ),
    ],
)
def test_a_view_that_kafka_cannot_hold_is_refused_by_name(views: list[View], said: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(said)) as refused:
        bind(views, lambda *_: TABLE)
    assert f"kafka:{views[-1].name}" in str(refused.value)


def test_without_fields_a_topic_shows_the_whole_table_and_with_them_those_alone() -> None:
    whole, some = bind([Topic("whole", USER), Topic("some", USER, fields=["rev"])], lambda *_: TABLE)
    assert [column.name for column in whole.values] == ["id", "name", "rev"]
    assert [column.name for column in some.values] == ["rev"]
    assert set(some.needed) == {"id", "rev"}


def test_how_a_topic_is_kept_changes_no_message_and_what_it_shows_does() -> None:
    def fingerprint(topic: Topic) -> str:
        return bind([topic], lambda *_: TABLE)[0].fingerprint

    plain = fingerprint(Topic("a", USER))
    kept = Topic("a", USER, partitions=7, compact=False, config={"retention.ms": 5}, delivery="at_least_once")
    assert fingerprint(kept) == plain
    assert fingerprint(Topic("a", USER, fields=["name"])) != plain
    assert fingerprint(Topic("a", USER, schemas=True)) != plain


def test_the_settings_of_a_topic_are_texts_as_kafka_has_them() -> None:
    topic = Topic("a", USER, config={"min.insync.replicas": 2, "preallocate": True, "retention.ms": "5"})
    assert config_of(topic) == {
        "cleanup.policy": "compact", "min.insync.replicas": "2", "preallocate": "true", "retention.ms": "5",
    }  # fmt: skip
    both = Topic("b", USER, config={"cleanup.policy": "delete,compact"})
    assert config_of(both)["cleanup.policy"] == "delete,compact"


def test_a_topic_that_contradicts_its_declaration_is_told_apart_in_each_particular() -> None:
    present = PresentTopic(id="1", partitions=2, config={"cleanup.policy": "compact,delete", "retention.ms": "5"})
    assert list(contradictions(Topic("a", USER, config={"cleanup.policy": "delete,compact"}), present)) == []
    declared = Topic("a", USER, partitions=3, config={"retention.ms": 6, "no.such": 1})
    assert list(contradictions(declared, present)) == [
        "it has 2 partitions, and 3 are declared",
        "its cleanup.policy is compact,delete, and compact is declared",
        "its retention.ms is 5, and 6 is declared",
        "Kafka has no topic setting no.such",
    ]


# --- Settings and addresses ---


def client(**settings: Any) -> dict[str, Any]:
    return KafkaSettings(**settings).client()


def test_an_address_leads_to_every_broker_that_it_names() -> None:
    assert client(url="kafka://one:9093,two,[::1]:9095")["bootstrap.servers"] == "one:9093,two:9092,[::1]:9095"
    assert client(url="kafka://[::1]")["bootstrap.servers"] == "[::1]:9092"
    assert client(url="kafka://one")["security.protocol"] == "PLAINTEXT"


def test_a_login_is_for_every_broker_and_stays_secret() -> None:
    settings = KafkaSettings(url="kafka://ann:p%40ss,w%C3%B6rd@one,two:9093")  # type: ignore[arg-type]
    found = settings.client()
    assert found["bootstrap.servers"] == "one:9092,two:9093"
    assert (found["sasl.username"], found["sasl.password"]) == ("ann", "p@ss,wörd")
    assert (found["sasl.mechanism"], found["security.protocol"]) == ("SCRAM-SHA-512", "SASL_PLAINTEXT")
    assert "p@ss" not in repr(settings) and "p%40ss" not in repr(settings)
    beside = client(url="kafka://one", user="bob", password="beside", sasl_mechanism="PLAIN")
    assert (beside["sasl.username"], beside["sasl.password"], beside["sasl.mechanism"]) == ("bob", "beside", "PLAIN")


def test_a_password_in_a_file_is_read_for_each_client(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("first\n")
    settings = KafkaSettings(url="kafka://ann@one", password_file=file)  # type: ignore[arg-type]
    assert settings.client()["sasl.password"] == "first"
    file.write_text("second\n")
    assert settings.client()["sasl.password"] == "second"


def test_tls_is_on_where_the_address_or_an_option_says_so() -> None:
    assert client(url="kafkas://one")["security.protocol"] == "SSL"
    assert client(url="kafkas://ann:x@one")["security.protocol"] == "SASL_SSL"
    assert client(url="kafka://one", tls=True)["security.protocol"] == "SSL"
    unverified = client(url="kafkas://one", tls_verify=False)
    assert unverified["enable.ssl.certificate.verification"] is False
    assert "enable.ssl.certificate.verification" not in client(url="kafkas://one")


def test_options_come_from_a_variable_as_a_json_object_and_hold_no_secret() -> None:
    assert client(url="kafka://one", options='{"linger.ms": 7}')["linger.ms"] == 7
    for text, said in (
        ("linger.ms=7", "must be a JSON object"), ("[1]", "must be a JSON object"),
        ('{"sasl.password": "hunter2"}', "a secret does not belong here"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said) as caught:
            KafkaSettings(url="kafka://one", options=text)  # type: ignore[arg-type]
        assert "hunter2" not in str(caught.value)


def test_options_are_librdkafkas_and_those_that_promises_rest_on_are_refused() -> None:
    assert client(url="kafka://one", options={"linger.ms": 7})["linger.ms"] == 7
    for name in (
        "acks",
        "bootstrap.servers",
        "enable.idempotence",
        "isolation.level",
        "partitioner",
        "transactional.id",
    ):
        with pytest.raises(ValidationError, match=f"{name}: viewtail sets it, since its promises rest on it"):
            KafkaSettings(url="kafka://one", options={name: "0"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("kafka://", "the host is missing"),
        ("kafka://one,", "behind each comma comes one more HOST:PORT"),
        ("kafka://,one", "the host is missing"),
        ("kafka://one,two/path", "behind each comma comes one more HOST:PORT"),
        ("kafka://one/path,two", "behind the port comes nothing"),
        ("kafka://one:0,two", "the port is a number from 1 to 65535"),
        ("kafka://one,two:99999", "the port is a number from 1 to 65535"),
        ("kafka://one,two:x", "the port is a number from 1 to 65535"),
        ("kafka://one?acks=0", "a parameter that is not known"),
        ("http://one", "it must begin with kafka:// or kafkas://"),
        ("one:9092", "it must begin with kafka:// or kafkas://"),
    ],
)
def test_an_address_that_is_none_is_refused_without_repeating_it(address: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as refused:
        parse(address.replace("://", "://ann:cAnArY@"), KAFKA)
    assert "cAnArY" not in str(refused.value)


def test_an_error_of_the_client_is_one_to_wait_for_or_one_that_says_what_to_do() -> None:
    away = failed(KafkaException(KafkaError(KafkaError._TRANSPORT)), "publishing")
    assert isinstance(away, StoreUnavailableError)
    assert "`viewtail run` tries again by itself" in str(away)
    late = failed(TimeoutError(), "asking")
    assert isinstance(late, StoreUnavailableError)
    assert "asking failed: no answer in time" in str(late)
    denied = failed(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), "publishing")
    assert isinstance(denied, StoreError)
    assert "grant the user CREATE, DESCRIBE_CONFIGS, READ and WRITE on the topic" in str(denied)
