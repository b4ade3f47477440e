"""The settings of a Kafka source."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from ingest.kafka.topics import check_form
from viewtail.servers.kafka import KafkaServer
from viewtail.servers.login import OWN_DATABASE, MySQLUrl, Name


def _listed(given: Any) -> Any:
    """Split a text at its commas, and check each entry."""
    entries = [entry.strip() for entry in given.split(",") if entry.strip()] if isinstance(given, str) else given
    for entry in entries if isinstance(entries, list | tuple) else ():
        check_form(str(entry))
    return entries


Topics = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class KafkaSourceSettings(KafkaServer):
    """The Kafka cluster whose topics are read, and the MySQL server that their changes are of."""

    topics: Topics = Field(
        (), description="kafka:// only: topics that are not named as their table, TOPIC or SCHEMA.TABLE=TOPIC, by comma"
    )
    fill_from: Literal["table", "topic"] = Field(
        "table", description="kafka:// only: where new views get their rows, the table or the topic from its beginning"
    )
    canonical_url: MySQLUrl | None = Field(
        None, description="kafka:// only: MySQL with the canonical rows; by default VIEWTAIL_MYSQL__URL"
    )
    primary_url: MySQLUrl | None = Field(
        None, description="its primary, where watermarks are written; by default that server"
    )
    database: Name = Field(OWN_DATABASE, description="database of the watermark table, on the primary")
    replace_null_with_default: bool = Field(
        True, description="kafka:// only: false where all converters of Debezium connectors have this setting false"
    )
    group: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="kafka:// only: consumer group, before .STORE; by default viewtail.DATABASE",
    )
