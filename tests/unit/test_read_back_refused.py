"""Views that a kind of source cannot keep: rows that are read again at a change, and topics of polled tables."""

from __future__ import annotations

import pytest

from ingest import SourceKind
from ingest.binlog.kind import BinlogKind
from ingest.kafka.kind import KafkaKind
from ingest.poll.kind import PollKind
from projectors.catalog import check_source
from projectors.related import Many
from projectors.stores.redis.views import RedisJson
from projectors.stores.topics.views import Topic
from projectors.views import Entity, View
from viewtail.changes.errors import DeclarationError

PERSON = Entity("jog.cell", key="row_key", columns_by="column_name", newest="ref_key", body="body", codec="json")
ORDER = Entity("shop.order", related={"lines": Many("shop.line", by="order_id")})
VIEWS: list[View] = [
    RedisJson("person", PERSON, document=lambda row: row["users"]),
    RedisJson("order", ORDER, document=lambda row: row["lines"]),
]


@pytest.mark.parametrize("kind", [PollKind(), KafkaKind()])
def test_a_source_that_does_not_say_when_a_change_is_shown_is_refused(kind: SourceKind) -> None:
    for view in VIEWS:  # whichever way their rows are made of several
        with pytest.raises(DeclarationError, match=rf"view {view.id}: .*only a source that tails the binlog"):
            check_source(kind, [view])
    check_source(kind, [RedisJson("plain", Entity("jog.cell"), fields=["body"])])


def test_the_binlog_of_the_server_says_it() -> None:
    check_source(BinlogKind(), VIEWS)


def test_a_topic_of_polled_tables_is_refused() -> None:
    topic = Topic("jog.cell", Entity("jog.cell"))
    with pytest.raises(DeclarationError, match=r"view kafka:jog\.cell: it publishes every change"):
        check_source(PollKind(), [topic])
    check_source(BinlogKind(), [topic])
