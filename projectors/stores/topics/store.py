"""All that is known about topics: the store called `kafka`, and its settings [kafka]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, SecretStr, field_validator

from projectors.stores import Choice, Example, Store, ViewReader
from projectors.stores.topics import rules
from projectors.stores.topics.views import Topic
from projectors.views import BoundView, Entity, View
from servers.addresses import AddressForm
from servers.login import Name, Server, is_address

if TYPE_CHECKING:
    from changes.findings import Finding
    from projectors.stores.access import Access
    from projectors.stores.topics.sink import TopicSink


def _no_path(_: str) -> str:
    raise ValueError("behind the port comes nothing")


KAFKA = AddressForm(
    form="kafka://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...], or kafkas:// with TLS",
    example="kafka://HOST:9092",
    default_port=9092,
    schemes=("kafka", "kafkas"),
    tls_schemes=("kafkas",),
    path=_no_path,
    is_list=True,
)

# What viewtail's promises rest on.
_OURS = frozenset({
    "acks", "bootstrap.servers", "enable.idempotence", "group.id", "isolation.level", "metadata.broker.list",
    "partitioner", "request.required.acks", "transactional.id",
})  # fmt: skip


class KafkaSettings(Server):
    """The Kafka cluster of the topics."""

    url: Annotated[SecretStr, is_address(KAFKA)] | None = Field(default=None, description=KAFKA.form)
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="how to log in, where a user is given"
    )
    name: Name = Field("viewtail", description="source.name of each message, Debezium's topic.prefix")
    options: dict[str, str | int | float | bool] = Field(
        {}, description='settings of librdkafka, under [kafka.options]: "linger.ms" = 5'
    )

    @field_validator("options")
    @classmethod
    def _leaves_ours(cls, options: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OURS & options.keys()):
            raise ValueError(f"{', '.join(taken)}: viewtail sets it, since its promises rest on it; leave it out")
        return options

    def client(self) -> dict[str, Any]:
        """What every client of librdkafka is made with: where the brokers are, and how to log in."""
        assert self.url is not None
        parsed = self.parsed(self.url, KAFKA)
        host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
        is_secure = self.context(parsed) is not None
        protocol = f"{'SASL_' if parsed.user else ''}{'SSL' if is_secure else 'PLAINTEXT'}"
        found: dict[str, Any] = {
            "bootstrap.servers": ",".join([f"{host}:{parsed.port}", *parsed.others]),
            "security.protocol": protocol,
            "client.id": "viewtail",
            "log_level": 0,  # errors come to us as exceptions
            # Before the first try to connect again, and at most.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
        }
        if parsed.user:
            login = {"sasl.username": parsed.user, "sasl.password": parsed.password or ""}
            found |= {"sasl.mechanism": self.sasl_mechanism, **login}
        files = {"ca": self.tls_ca, "certificate": self.tls_cert, "key": self.tls_key}
        found |= {f"ssl.{name}.location": str(path) for name, path in files.items() if path is not None}
        if is_secure and not self.tls_verify:
            found["enable.ssl.certificate.verification"] = False
        return found | self.options


class TopicsStore(Store):
    """A message a change."""

    name = "kafka"
    title = "Kafka"
    view_classes = (Topic,)
    section = KafkaSettings
    address = KAFKA
    keeps_every_change = True

    def problems(self, view: BoundView) -> Iterable[str]:
        return rules.problems(view)

    def problems_between(self, views: Sequence[BoundView]) -> Iterable[tuple[BoundView, str]]:
        return rules.problems_between(views)

    def sink(self, access: Access, views: Sequence[BoundView], pipeline: str) -> TopicSink:
        from projectors.stores.topics.sink import TopicSink

        section: KafkaSettings = access.section
        return TopicSink(
            section.client, views, access.database, pipeline, name=section.name, read_position=access.read_position
        )

    def left_behind(self, name: str, database: str) -> str:
        return f"its topic {name}. To drop it: kafka-topics.sh --bootstrap-server HOST:PORT --delete --topic '{name}'"

    def reader(self, access: Access, view: BoundView) -> ViewReader:
        from projectors.stores.topics.reading import TopicReader

        return TopicReader(access.section.client(), view)

    def checks(self, access: Access, views: Sequence[View]) -> Iterable[Finding]:
        from projectors.stores.topics.checks import checks

        return checks(access.section.client(), views)

    def example(self, choice: Choice) -> Example | None:
        name = choice.table.full_name
        return Example(
            view=Topic(name, Entity(name)),
            declaration=f"Topic({name!r}, entity),",
            comment="Kafka: every change of the table as a message; see docs/consuming.md",
        )
