"""Kafka: addresses as users write them, and the settings that every client of it has."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, SecretStr, field_validator

from viewtail.servers.addresses import AddressForm
from viewtail.servers.login import Server, is_address


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
NO_GROUP = "viewtail"  # of consumers that join none: librdkafka wants a name, and asks for the group's coordinator
KafkaUrl = Annotated[SecretStr, is_address(KAFKA)]

# What viewtail's promises rest on.
_OURS = frozenset({
    "acks", "auto.offset.reset", "bootstrap.servers", "enable.auto.commit", "enable.idempotence",
    "enable.partition.eof", "group.id", "isolation.level", "metadata.broker.list", "partition.assignment.strategy",
    "partitioner", "request.required.acks", "transactional.id",
})  # fmt: skip


def _refusal_of(options: dict[str, Any]) -> str:
    """Return what librdkafka has against these settings, or ''. Only who gives some needs its client for that."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    try:
        AdminClient({"log_level": 0, **options})
    except KafkaException as error:
        return str(error.args[0].str())
    return ""


class KafkaServer(Server):
    """The way to reach a Kafka cluster."""

    url: KafkaUrl | None = Field(default=None, description=KAFKA.form)
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="how to log in, where a user is given"
    )
    options: dict[str, str | int | float | bool] = Field(
        {}, description='settings of librdkafka: [GROUP.options] "linger.ms" = 5; as a variable {"linger.ms": 5}'
    )

    @field_validator("options", mode="before")
    @classmethod
    def _from_json(cls, given: object) -> object:
        """An environment variable holds a JSON object."""
        if not isinstance(given, str):
            return given
        try:
            return {**orjson.loads(given)}
        except (orjson.JSONDecodeError, TypeError):
            raise ValueError('must be a JSON object, e.g. {"linger.ms": 5}') from None

    @field_validator("options")
    @classmethod
    def _leaves_ours(cls, options: dict[str, Any]) -> dict[str, Any]:
        if secret := sorted(name for name in options if "password" in name or "secret" in name):
            raise ValueError(f"{', '.join(secret)}: a secret does not belong here; use password or password_file")
        if taken := sorted(_OURS & options.keys()):
            raise ValueError(f"{', '.join(taken)}: viewtail sets it, since its promises rest on it; leave it out")
        if options and (wrong := _refusal_of(options)):
            raise ValueError(f"librdkafka refuses it: {wrong}")
        return options

    def client(self) -> dict[str, Any]:
        """Return the settings of every client of librdkafka: where the brokers are, and how to log in."""
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
        if is_secure and not self.tls_verify:
            found["enable.ssl.certificate.verification"] = False
        return found | self._tls_files() | self.options

    def _tls_files(self) -> dict[str, str]:
        files = {"ca": self.tls_ca, "certificate": self.tls_cert, "key": self.tls_key}
        return {f"ssl.{name}.location": str(path) for name, path in files.items() if path is not None}
