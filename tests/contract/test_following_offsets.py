"""The offset of a pipeline into Elasticsearch is never ahead of the witness: a kill would look like a loss."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest

from ingest.kafka.position import KafkaPosition
from ingest.limits import Limits
from offsets import OffsetStore, schema
from offsets.mysql import OwnSession, saved_position
from projectors.stores.access import Access
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from projectors.stores.elasticsearch.store import ElasticsearchStore
from stack import Server
from tests.contract.sinks import ElasticsearchOne
from tests.support.running import wait_for
from viewtail.changes.positions import Position
from viewtail.servers.sessions import MySQLAddress, open_session

BEGIN = KafkaPosition(epoch=1, topic="t", topic_id="i", partition=0, offset=0, version=7)
SAVE_EVERY_S = 0.05


@dataclass
class Pipeline:
    """The parts of a pipeline that keep its place."""

    indices: ElasticsearchOne
    access: Access
    name: str

    def begin(self) -> tuple[ElasticsearchSink, OffsetStore]:
        """As an owner does; a former one is left as a kill leaves it."""
        sink, offsets = ElasticsearchStore().with_offsets(self.access, [self.indices.person], self.name)
        offsets.take()
        sink.prepare()
        return sink, offsets

    def saved(self) -> Position | None:
        with closing(OwnSession(self.access.open_own)) as session:
            return saved_position(session, self.access.database, self.name, self.access.read_position)

    def witness(self) -> Position | None:
        sink = ElasticsearchStore().sink(self.access, [self.indices.person], self.name)
        sink.prepare()
        with closing(sink):
            return sink.witness(BEGIN)


@pytest.fixture
def pipeline(mysql_server: Server, elasticsearch_server: Server) -> Iterator[Pipeline]:
    address = MySQLAddress(host="127.0.0.1", port=mysql_server.port, user="root")
    with closing(open_session(address, role="store")) as session:
        schema.create(session, address, "following_offsets", schema.STORE_TABLES, role="store")
    indices = ElasticsearchOne(elasticsearch_server, "following")
    access = Access(
        section=SimpleNamespace(client=indices.client),
        own=address,
        database="following_offsets",
        read_position=KafkaPosition.from_text,
        limits=Limits(offset_interval_s=SAVE_EVERY_S),
    )
    yield Pipeline(indices, access, f"{uuid.uuid4().hex}.0.elasticsearch")
    indices.close()


def wrote(sink: ElasticsearchSink, offsets: OffsetStore, at: Position) -> None:
    sink.write([], at)
    offsets.save(at)


def wrote_late(sink: ElasticsearchSink, offsets: OffsetStore, at: Position) -> None:
    """So soon behind the last one that the witness stays where it is, however slow the machine is."""
    sink._kept_at = time.monotonic() + 60
    wrote(sink, offsets, at)
    assert sink.unkept == at


def behind(offset: int, version: int = 7) -> KafkaPosition:
    return replace(BEGIN, offset=offset, version=version)


def test_a_process_that_is_killed_between_two_moves_of_the_witness_lost_nothing(pipeline: Pipeline) -> None:
    sink, offsets = pipeline.begin()
    wrote(sink, offsets, behind(1, 8))
    wait_for("the first is saved", lambda: pipeline.saved() == behind(1, 8))
    wrote_late(sink, offsets, behind(2, 9))
    time.sleep(6 * SAVE_EVERY_S)
    assert (pipeline.witness(), pipeline.saved()) == (behind(1, 8), behind(1, 8))
    offsets.abandon()


@pytest.mark.parametrize("ends", ["settle", "confirm", "close"])
def test_what_was_written_is_saved_when_the_stream_is_quiet_and_at_the_end(pipeline: Pipeline, ends: str) -> None:
    sink, offsets = pipeline.begin()
    for offset in (1, 2, 3):
        wrote(sink, offsets, behind(offset, 7 + offset))
    getattr(offsets, ends)()
    wait_for("the last is saved", lambda: pipeline.saved() == behind(3, 10))
    assert pipeline.witness() == behind(3, 10)
    offsets.abandon()


def test_the_witness_moves_with_offsets_of_one_version(pipeline: Pipeline) -> None:
    """Rows that fill a topic raise its offsets and not the version of what was read."""
    sink, offsets = pipeline.begin()
    wrote(sink, offsets, behind(1))
    wrote(sink, offsets, behind(2))
    offsets.settle()
    wait_for("the last is saved", lambda: pipeline.saved() == behind(2))
    assert pipeline.witness() == behind(2)
    offsets.abandon()


def test_a_store_that_was_away_and_lost_nothing_does_not_look_as_if_it_had(pipeline: Pipeline) -> None:
    sink, offsets = pipeline.begin()
    wrote(sink, offsets, behind(1, 8))
    wrote_late(sink, offsets, behind(2, 9))
    sink.prepare()
    assert pipeline.witness() == behind(2, 9)


def test_a_place_that_the_store_has_lost_meanwhile_is_not_saved(pipeline: Pipeline) -> None:
    sink, offsets = pipeline.begin()
    wrote(sink, offsets, behind(1, 8))
    offsets.confirm()
    wrote_late(sink, offsets, behind(2, 9))
    other = ElasticsearchStore().sink(pipeline.access, [pipeline.indices.person], pipeline.name)
    other.prepare()
    other.write([], behind(1, 9))  # the witness is another one, as in an index that was restored
    sink.prepare()
    offsets.settle()
    offsets.confirm()
    assert (pipeline.witness(), pipeline.saved()) == (behind(1, 9), behind(1, 8))
    offsets.abandon()


def test_a_place_of_which_nothing_was_written_is_saved_at_once(pipeline: Pipeline) -> None:
    """Where a new pipeline begins."""
    _, offsets = pipeline.begin()
    offsets.save(behind(5))
    offsets.confirm()
    assert pipeline.saved() == behind(5)
    offsets.abandon()


def test_a_store_that_is_away_at_the_end_leaves_the_offset_where_it_was(pipeline: Pipeline) -> None:
    sink, offsets = pipeline.begin()
    wrote(sink, offsets, behind(1, 8))
    wrote(sink, offsets, behind(2, 9))
    sink.close()  # as for a store that does not answer any more
    sink.unkept, sink.kept = behind(2, 9), None
    offsets.close()
    assert pipeline.saved() == behind(1, 8)
