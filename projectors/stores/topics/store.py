"""Everything about topics as a store: it is called `kafka`, and its settings are [kafka]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from projectors.stores import Choice, Example, Store, ViewReader, plain
from projectors.stores.topics import rules
from projectors.stores.topics.views import Topic
from projectors.views import BoundView, View
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.published import POSITIONS, REPLAYS
from viewtail.servers.acls import TO_CONSUME, Right, commands
from viewtail.servers.kafka import KAFKA, KafkaServer
from viewtail.servers.login import Name

if TYPE_CHECKING:
    from projectors.stores.access import Access
    from projectors.stores.leaving import Leftover, Retired, Traces
    from projectors.stores.topics.places import TopicPlaces
    from projectors.stores.topics.sink import TopicSink
    from viewtail.changes.findings import Finding


class KafkaSettings(KafkaServer):
    """The Kafka cluster of the topics."""

    name: Name = Field("viewtail", description="source.name of each message, Debezium's topic.prefix")


class TopicsStore(Store):
    """Publishes a message per change."""

    name = "kafka"
    title = "Kafka"
    client = "confluent_kafka"
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
            section.client,
            views,
            access.database,
            pipeline,
            name=section.name,
            read_position=access.read_position,
            claiming=access.claimant,
        )

    def no_copies(self, view: View) -> str:
        return (
            "its consumers know where they are in this topic alone. Publish the changes into a new topic (viewtail "
            "replay VIEW --since TIME --into TOPIC), or declare the view under another name, and have them read that"
        )

    def while_refilled(self, access: Access, view: BoundView) -> str:
        return "every row of the table is published once more, as the new declaration makes it"

    def sink_beside(self, access: Access, view: BoundView) -> TopicSink:
        """A sink whose position is in a topic of its own, and whose transactional id is no pipeline's."""
        from projectors.stores.topics.sink import TopicSink

        section: KafkaSettings = access.section
        return TopicSink(
            section.client,
            [view],
            access.database,
            f"replay:{view.view.name}",
            name=section.name,
            read_position=access.read_position,
            positions=REPLAYS,
        )

    def left_behind(self, name: str, database: str) -> str:
        return f"its topic {name}. To drop it: kafka-topics.sh --bootstrap-server HOST:PORT --delete --topic '{name}'"

    def leftover(self, access: Access, retired: Retired) -> Leftover:
        from projectors.stores.topics.leaving import TopicLeftover

        return TopicLeftover(access.section.client(), retired, access.claimant())

    def places(self, access: Access, view: str) -> TopicPlaces:
        from projectors.stores.topics.places import TopicPlaces

        writer = rules.transactional_id(access.database, PipelineId.of(self.name).name)
        return TopicPlaces(access.section.client(), access.claimant(), writer)

    def traces(self, access: Access, view: BoundView) -> Traces:
        from projectors.stores.topics.leaving import TopicTraces

        return TopicTraces(access.section.client(), view)

    def connection(self, access: Access) -> Mapping[str, Any]:
        """The client settings: a reader connects for each call."""
        client: Mapping[str, Any] = access.section.client()
        return client

    def reader_over(self, connection: Mapping[str, Any], access: Access, view: BoundView) -> ViewReader:
        from projectors.stores.topics.reading import TopicReader

        return TopicReader(connection, view)

    def checks(self, access: Access, views: Sequence[View]) -> Iterable[Finding]:
        from projectors.stores.topics.checks import checks

        return checks(access.section.client(), views)

    def grants(self, access: Access, views: Sequence[View]) -> Iterable[str]:
        """The rights of the tailer. It reads topics to find the keys of deleted rows, and its own last position."""
        writer = rules.transactional_id(access.database, PipelineId.of(self.name).name)
        topics = tuple(view.name for view in views)
        rights = [
            Right(operations=("Create", "DescribeConfigs", "Read", "Write"), of="topic", names=topics),
            Right(operations=("Create", "Read", "Write"), of="topic", names=(POSITIONS,)),
            Right(operations=("Write",), of="transactional-id", names=(writer,), pattern="prefixed"),
            TO_CONSUME,
        ]
        return commands(access.section, "where topics are published", rights)

    def schemas(self, access: Access, view: BoundView) -> Mapping[str, Any]:
        from viewtail.changes.envelope_json_schema import json_schemas

        has_schemas = rules.topic_of(view).has_schemas
        return json_schemas(view.table, view.key, view.values, name=access.section.name, with_schemas=has_schemas)

    def beside(self, access: Access, view: View, name: str) -> View:
        """The view with as many partitions as the topic has now, so that each key stays in the same one."""
        from projectors.stores.topics.admin import Topics

        assert isinstance(view, Topic)
        there = Topics(access.section.client()).partitions().get(view.name)
        return view.named(name, view.partitions if there is None else there)

    def example(self, choice: Choice) -> Example | None:
        name = f"{plain(choice.table.schema)}.{choice.name}"
        return Example(
            view=Topic(name, choice.entity),
            declaration=f"Topic({name!r}, entity),",
            comment="Kafka: every change of the table as a message; see docs/consuming.md",
        )
