"""Views that a kind of source cannot keep: rows that are made of several, and topics of polled tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingest.binlog.kind import BinlogKind
from ingest.kafka.kind import KafkaKind
from ingest.poll.kind import PollKind
from projectors.catalog import bound_for, check_source, stream_of, streams_of
from projectors.projection import Projections, followed_tables, writes_by_key
from projectors.related import Count, Many
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.stores.registry import with_topics
from projectors.stores.topics.views import Topic
from projectors.views import BoundView, Entity, Group, View
from viewtail.changes.batches import DELETE, INSERT, Batch, RowChanges
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table

PERSON = Entity("jog.cell", key="row_key", columns_by="column_name", newest="ref_key", body="body", codec="json")
ORDER = Entity("shop.order", related={"lines": Many("shop.line", by="order_id")})
BY_USER = Group("shop.order", by="user_id", values={"orders": Count()})
VIEWS: list[View] = [
    RedisJson("person", PERSON, document=lambda row: row["users"]),
    RedisJson("order", ORDER, document=lambda row: row["lines"]),
    RedisHash("by_user", BY_USER, fields=["orders"]),
]
_ID = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)
TABLES = {
    "order": Table(
        schema="shop", name="order", columns=(_ID, replace(_ID, name="user_id", is_nullable=True)), primary_key=("id",)
    ),
    "line": Table(schema="shop", name="line", columns=(_ID, replace(_ID, name="order_id")), primary_key=("id",)),
}


def from_topics(*views: View) -> list[BoundView]:
    """Those that projectors keep, bound for topics."""
    kept = [view for view in with_topics(views) if not isinstance(view, Topic)]
    return bound_for(KafkaKind(), kept, lambda _, name: TABLES[name])


def test_polled_tables_do_not_say_when_a_change_is_shown() -> None:
    for view in VIEWS:  # whichever way their rows are made of several
        with pytest.raises(DeclarationError, match=rf"view {view.id}: .*only a source that tails the binlog"):
            check_source(PollKind(), [view])
    check_source(PollKind(), [RedisJson("plain", Entity("jog.cell"), fields=["body"])])


def test_the_binlog_of_the_server_says_it() -> None:
    check_source(BinlogKind(), VIEWS)


def test_where_topics_are_read_one_of_the_same_entity_must_be_declared() -> None:
    for view in VIEWS:
        match = rf"view {view.id}: .*no topic of views.py has them.*Topic\('{view.entity.table}\.{view.name}', ENTITY\)"
        for topics in ([], [Topic("other", Entity(view.entity.table))], [Topic("some", view.entity, where=bool)]):
            with pytest.raises(DeclarationError, match=match):
                check_source(KafkaKind(), with_topics([view, *topics])[:1])
        check_source(KafkaKind(), with_topics([view, Topic("whole", view.entity)])[:1])
    check_source(KafkaKind(), [RedisJson("plain", Entity("jog.cell"), fields=["body"])])


def test_a_topic_without_a_column_that_a_view_needs_is_named_with_the_column() -> None:
    some = Topic("some", ORDER, fields=["id", "user_id"])
    with pytest.raises(DeclarationError, match=r"view redis:order: the topic some, .* lacks lines; add that to fields"):
        from_topics(VIEWS[1], some)
    (view,) = from_topics(VIEWS[1], some, Topic("all", ORDER))
    assert view.view.topic is not None and view.view.topic.name == "all"


def test_such_views_follow_the_topic_and_no_table_and_see_each_other_s_columns() -> None:
    count = RedisHash("user", ORDER, fields=["user_id"])
    views = from_topics(VIEWS[1], count, VIEWS[2], Topic("orders", ORDER), Topic("groups", BY_USER))
    declared = [view.view for view in views]
    assert streams_of(KafkaKind(), declared) == [("", "groups"), ("", "orders")]
    assert stream_of(BinlogKind(), declared[0]) == ("shop", "order")
    assert streams_of(BinlogKind(), declared) == [("shop", "line"), ("shop", "order")]
    assert all(view.derived is not None and view.read_back is None for view in views)
    (followed,) = followed_tables(views[:2]).values()
    assert followed.columns == ("id", "user_id", "lines")
    (groups,) = followed_tables(views[2:]).values()
    assert groups.columns == ("user_id", "orders") and groups.table.paging_key == ("user_id",)


def test_a_message_replaces_what_the_view_shows_since_it_does_not_say_what_was_before() -> None:
    """Also of a topic that keeps every message: an update comes as if the row were new."""
    shown = RedisJson("order", ORDER, document=lambda row: {"n": len(row["lines"])}, where=lambda row: row["lines"])
    views = from_topics(shown, Topic("orders", ORDER, compact=False))
    followed = followed_tables(views)
    of_order = followed["shop", "order"]
    assert of_order.columns == ("id", "lines")
    rows = [(1, "[]"), (2, '[{"id":5,"order_id":2,"more":1}]')]
    changes = [RowChanges(of_order, INSERT, 7, rows), RowChanges(of_order, DELETE, 8, [(3, None)])]
    batch = Batch(changes=changes, end=None, row_count=3, byte_count=1, oldest_commit_us=0)
    projected = Projections(views, followed).of(batch)
    assert not projected.touched, "nothing is read again"
    assert writes_by_key(projected) == {(1,): (7, None), (2,): (7, b'{"n":1}'), (3,): (8, None)}


def test_a_topic_of_what_is_written_at_most_every_so_often_is_refused() -> None:
    entity = Group("shop.order", by="status", values={"n": Count()}, at_most_every=60)
    with pytest.raises(DeclarationError, match=r"a topic has a message of each key that a batch touched"):
        check_source(BinlogKind(), [Topic("orders", entity)])
    check_source(BinlogKind(), [RedisHash("orders", entity, fields=["n"])])


def test_how_often_a_view_is_written_is_no_reason_to_fill_it_again() -> None:
    often, seldom = (
        Group("shop.order", by="status", values={"n": Count()}, at_most_every=seconds) for seconds in (0, 60)
    )
    assert often.particulars == seldom.particulars
