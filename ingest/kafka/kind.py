"""Everything about Kafka as a kind of source: settings, partitions, present history, checks and grants."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ingest import (
    FollowedTables,
    Margin,
    Members,
    Orders,
    Parts,
    Sharer,
    SourceAccess,
    SourceKind,
    Tables,
    TakeParts,
    Versions,
)
from ingest.kafka.position import BEFORE_ALL, KafkaPosition, own
from ingest.kafka.settings import KafkaSourceSettings
from ingest.kafka.topics import groups_of, topics_of
from offsets.owners import this_process
from viewtail.changes.counting import counted
from viewtail.changes.errors import HistoryGoneError, SourceUnavailableError
from viewtail.changes.findings import Finding
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.positions import Position
from viewtail.changes.tables import ForeignKey
from viewtail.servers.kafka import KAFKA
from viewtail.servers.sessions import Connection, open_session

if TYPE_CHECKING:  # the client is loaded only when a topic is read
    from ingest.kafka.place import Place
    from ingest.kafka.progress import ProgressFeed
    from ingest.kafka.source import KafkaSource
    from viewtail.servers.brokers import Broker


ANSWER_WITHIN_S = 2.5  # for commands: a person waits, and can be told that the broker does not answer


def _group(access: SourceAccess, store: str) -> str:
    return f"{groups_of(access)}{store}"


def _keeps_s(config: Mapping[str, str]) -> float | None:
    """Return how long a topic of these settings keeps a message; None: it removes none for its age."""
    kept_ms = int(config.get("retention.ms", "-1"))
    return kept_ms / 1000 if "delete" in config.get("cleanup.policy", "") and kept_ms > 0 else None


@dataclass(frozen=True, slots=True)
class KafkaHistory:
    """The topic that has the name now, and the epoch that viewtail gave it."""

    access: SourceAccess
    place: Place
    feed: ProgressFeed
    epoch: int = 0

    def __str__(self) -> str:
        return f"topic {self.place.topic} with id {self.place.topic_id}"

    def at(self, epoch: int) -> KafkaHistory:
        return replace(self, epoch=epoch)

    def check_continues(self, after: Position, before: str) -> None:
        self.place.check(own(after))

    def reader(self, followed: FollowedTables, fits_from: Versions) -> KafkaSource:
        from ingest.kafka.batching import Foreign
        from ingest.kafka.source import KafkaSource

        of_table = next(iter(followed.values()), None)
        section = self.access.section
        return KafkaSource(
            section.client(),
            self.place,
            self.feed,
            of_table,
            epoch=self.epoch,
            foreign=Foreign(shows_default_for_null=section.replace_null_with_default),
            fill_from=section.fill_from,
        )

    def unlogged_keys(self, tables: Tables) -> Sequence[ForeignKey]:
        return ()  # the database behind the topic is not known

    def open_session(self) -> Connection:
        """Open a session on the server with the canonical rows. Whether the topic is fed from it cannot be checked."""
        return open_session(self.access.address(), role="source")


class KafkaKind(SourceKind):
    """Topics with the changes of tables; each partition is one pipeline."""

    section = KafkaSourceSettings
    address = KAFKA
    before_all = BEFORE_ALL
    is_shared_out = True
    has_rows = False
    brings_whole_rows = True

    def __init__(self) -> None:
        # By address: one of each per process.
        self._feeds: dict[str, ProgressFeed] = {}
        self._brokers: dict[tuple[str, float], Broker] = {}
        self._lock = threading.Lock()

    def read_position(self, text: str | bytes) -> KafkaPosition:
        return KafkaPosition.from_text(text)

    def streams_in(self, access: SourceAccess, source: str, streams: Tables) -> Tables:
        return [stream for stream, topic in topics_of(streams, access.section.topics).items() if topic == source]

    def parts(self, access: SourceAccess, streams: Tables) -> Parts:
        topics = sorted(set(topics_of(streams, access.section.topics).values()))
        there = self._broker(access).partitions()
        return [(topic, number) for topic in topics for number in range(there.get(topic, 0))]

    def history(self, access: SourceAccess, pipeline: PipelineId, number: int) -> KafkaHistory:
        from ingest.kafka.place import NEW_HISTORY, Place

        broker = self._broker(access)
        there = broker.partitions().get(pipeline.source)
        if there is None:
            raise SourceUnavailableError(
                f"Kafka has no topic {pipeline.source}: it was deleted or not made yet, or the user may not see it. A "
                "running tailer makes it (viewtail run --role tail). For a topic of another name set "
                "VIEWTAIL_SOURCE__TOPICS"
            )
        if pipeline.partition >= there:
            raise HistoryGoneError(
                f"topic {pipeline.source} has {counted(there, 'partitions')}, and this pipeline is of number "
                f"{pipeline.partition}: it was deleted and made anew with fewer. {NEW_HISTORY}"
            )
        place = Place(broker, pipeline.source, broker.id_of(pipeline.source), pipeline.partition)
        return KafkaHistory(access, place, self._feed(access))

    def members(
        self, access: SourceAccess, store: str, streams: Tables, taken: TakeParts, given_up: TakeParts
    ) -> Members:
        from ingest.kafka.group import Group
        from ingest.kafka.sharing import is_of_another, named

        client, group = access.section.client(), _group(access, store)
        topics = sorted(set(topics_of(streams, access.section.topics).values()))
        broker = self._broker(access, ANSWER_WITHIN_S)
        return Group(
            client,
            group,
            named(client, access.deployment, this_process()),
            topics,
            taken,
            given_up,
            others=lambda: [
                member for member in broker.members_of([group])[group] if is_of_another(access.deployment, member)
            ],
        )

    def sharers(self, access: SourceAccess, stores: Sequence[str]) -> Sequence[Sharer]:
        from ingest.kafka.sharing import is_of_another, process_in

        groups = {_group(access, store): store for store in stores}
        members_of = self._broker(access, ANSWER_WITHIN_S).members_of(list(groups)) if groups else {}
        return [
            Sharer(
                store=groups[group],
                process=process_in(member.client),
                client=f"{member.client} at {member.host}",
                parts=member.parts,
                is_of_another=is_of_another(access.deployment, member),
            )
            for group, members in members_of.items()
            for member in members
        ]

    def waiting(self, access: SourceAccess, positions: Mapping[str, Position]) -> dict[str, int]:
        at = {name: position for name, position in positions.items() if isinstance(position, KafkaPosition)}
        broker = self._broker(access, ANSWER_WITHIN_S)
        there = broker.partitions() if at else {}
        present = {name: position for name, position in at.items() if position.partition < there.get(position.topic, 0)}
        if not present:
            return {}
        ends = broker.ends([(position.topic, position.partition) for position in present.values()])
        return {
            name: max(0, ends[position.topic, position.partition] - position.offset)
            for name, position in present.items()
        }

    def ages(self, access: SourceAccess, positions: Mapping[str, Position]) -> dict[str, float]:
        from ingest.kafka.first_messages import ages

        at = {name: position for name, position in positions.items() if isinstance(position, KafkaPosition)}
        return ages(access.section.client(), at, ANSWER_WITHIN_S) if at else {}

    def margins(
        self, access: SourceAccess, positions: Mapping[str, Position], lags_s: Mapping[str, float]
    ) -> dict[str, Margin]:
        """By the time that a topic keeps its messages; a broker removes whole segments, later than that."""
        at = {name: position for name, position in positions.items() if isinstance(position, KafkaPosition)}
        broker = self._broker(access, ANSWER_WITHIN_S)
        there = broker.partitions() if at else {}
        topics = sorted({position.topic for position in at.values()} & {*there})
        config = broker.config(topics) if topics else {}
        keeps_s = {topic: _keeps_s(config[topic]) for topic in topics}
        return {
            name: Margin(
                left_s=max(0.0, kept_s - lags_s.get(name, 0.0)),
                keeps_s=kept_s,
                limit=f"retention.ms of {position.topic}",
            )
            for name, position in at.items()
            if (kept_s := keeps_s.get(position.topic)) is not None
        }

    def is_filled_from_stream(self, access: SourceAccess, stream: tuple[str, str]) -> bool:
        from ingest.kafka.first_messages import is_foreign

        if access.section.fill_from == "topic":
            return True
        topic, broker = topics_of([stream], access.section.topics)[stream], self._broker(access, ANSWER_WITHIN_S)
        if topic not in broker.partitions():
            return False
        return bool(is_foreign(access.section.client(), topic, broker.first_offsets(topic)))

    def why_missing(self, access: SourceAccess, watermark: str) -> str | None:
        from ingest.left_out import why_missing

        return why_missing(None, access.primary(), access.section.database, watermark)

    def checks(self, access: SourceAccess, tables: Tables, orders: Orders, streams: Tables) -> Iterable[Finding]:
        from ingest.kafka import checks

        return checks.checks(access, topics_of(streams, access.section.topics), tables)

    def grants(self, access: SourceAccess, tables: Tables, streams: Tables) -> Iterator[str]:
        from ingest.kafka import checks

        yield from checks.grants(access, topics_of(streams, access.section.topics), tables)

    def _broker(self, access: SourceAccess, within_s: float = 10.0) -> Broker:
        from viewtail.servers.brokers import SOURCE, Broker

        client: dict[str, Any] = access.section.client()
        which = client["bootstrap.servers"], within_s
        with self._lock:
            broker = self._brokers.get(which)
            if broker is None:
                broker = self._brokers[which] = Broker(client, SOURCE, within_s)
            return broker

    def _feed(self, access: SourceAccess) -> ProgressFeed:
        from ingest.kafka.progress import ProgressFeed

        client: dict[str, Any] = access.section.client()
        with self._lock:
            return self._feeds.setdefault(client["bootstrap.servers"], ProgressFeed(client))
