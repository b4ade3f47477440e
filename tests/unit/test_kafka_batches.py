"""What messages of a topic become: changes of rows, whatever stands between them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest

from ingest.kafka.batching import Batching, Foreign, committed_us
from ingest.kafka.position import KafkaPosition
from ingest.kafka.progress import Ahead
from tests.support.events import user_table
from tests.support.published import change, messages
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Followed, RowChanges
from viewtail.changes.published import VERSION_HEADER, Progress

TABLE = user_table()
FOLLOWED = Followed(TABLE, ("id", "name"))
BEGIN = KafkaPosition(epoch=3, topic="shop.user", topic_id="7-9", partition=2, offset=40, version=10)


@dataclass
class Message:
    """As confluent-kafka gives one."""

    at: int
    given: tuple[bytes | None, bytes | None, int | None]

    def key(self) -> bytes | None:
        return self.given[0]

    def value(self) -> bytes | None:
        return self.given[1]

    def offset(self) -> int:
        return self.at

    def headers(self) -> list[tuple[str, bytes]] | None:
        version = self.given[2]
        return None if version is None else [(VERSION_HEADER, str(version).encode())]

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_600_000_000_000


def batch(*given: tuple[bytes | None, bytes | None, int | None]) -> Any:
    return Batching(FOLLOWED, BEGIN).batch([Message(41 + at, one) for at, one in enumerate(given)])


def test_neighbours_of_one_kind_and_version_become_one() -> None:
    found = batch(
        *messages(
            TABLE,
            [
                change("insert", 1, 11, after=(1, "a")),
                change("insert", 2, 11, after=(2, "b")),
                change("read", 3, 12, after=(3, "c")),
                change("update", 1, 13, before=(1, "a"), after=(1, "d")),
                change("update", 2, 13, before=(2, "b"), after=(2, "e")),
            ],
        )
    )
    assert found.changes == [
        RowChanges(FOLLOWED, INSERT, 11, [(1, "a"), (2, "b")]),
        RowChanges(FOLLOWED, INSERT, 12, [(3, "c")]),
        RowChanges(FOLLOWED, UPDATE, 13, [(1, "a"), (1, "d"), (2, "b"), (2, "e")]),
    ]
    assert (found.end.offset, found.end.version, found.end.topic_id, found.end.epoch) == (46, 13, "7-9", 3)
    assert (found.row_count, found.oldest_commit_us) == (5, 1_700_000_000_000_011)


def test_a_delete_and_the_tombstone_behind_it_are_one_delete() -> None:
    found = batch(*messages(TABLE, [change("delete", 1, 11, before=(1, "a")), change("insert", 1, 12, after=(1, "b"))]))
    assert found.changes == [RowChanges(FOLLOWED, DELETE, 11, [(1, "a")]), RowChanges(FOLLOWED, INSERT, 12, [(1, "b")])]


def test_a_tombstone_that_compaction_left_alone_deletes_its_key() -> None:
    _, tombstone = messages(TABLE, [change("delete", 1, 11, before=(1, "a"))])
    found = batch(tombstone, *messages(TABLE, [change("insert", 2, 12, after=(2, "b"))]))
    assert found.changes == [
        RowChanges(FOLLOWED, DELETE, 11, [(1, None)]),
        RowChanges(FOLLOWED, INSERT, 12, [(2, "b")]),
    ]


def test_a_delete_of_what_a_replay_no_longer_found_deletes_its_key() -> None:
    found = batch(*messages(TABLE, [change("delete", 1, 11), change("insert", 2, 11, after=(2, "b"))]))
    assert not found.refused
    assert found.changes == [
        RowChanges(FOLLOWED, DELETE, 11, [(1, None)]),
        RowChanges(FOLLOWED, INSERT, 11, [(2, "b")]),
    ]


def foreign(kind: str, key: int, pos: int, name: str = "a") -> Message:
    """As Debezium's connector writes it, with no version but the place in the binlog."""
    image = {"id": key, "name": name}
    source = {"db": TABLE.schema, "table": TABLE.name, "file": "binlog.000001", "pos": pos}
    value = {"before": image if kind in "du" else None, "after": None if kind == "d" else image}
    return Message(pos, (f'{{"id":{key}}}'.encode(), orjson.dumps({**value, "source": source, "op": kind}), None))


def test_a_foreign_tombstone_alone_deletes_what_came_before_it_and_nothing_that_comes_behind() -> None:
    def tombstone(key: int) -> Message:
        return Message(41, (f'{{"id":{key}}}'.encode(), None, None))

    batching = Batching(FOLLOWED, replace(BEGIN, version=0), Foreign())
    first = batching.batch([foreign("c", 1, 4000), *map(tombstone, range(1, 9))])
    second = batching.batch([tombstone(1), foreign("c", 1, 4032)])
    assert not first.refused and not second.refused
    inserted, *deleted = first.changes
    assert [row for one in deleted for row in one.rows] == [(key, None) for key in range(1, 9)]
    assert inserted.version < deleted[0].version == second.changes[0].version < second.changes[1].version


def test_a_row_that_one_event_updates_twice_ends_as_the_later_change_says_wherever_a_batch_ends() -> None:
    batching = Batching(FOLLOWED, replace(BEGIN, version=0), Foreign())
    first, second, third = (
        batching.batch([foreign("u", 1, pos, name)]).changes[0] for pos, name in ((4000, "b"), (4000, "c"), (4050, "d"))
    )
    assert first.version < second.version < third.version


def test_a_default_among_foreign_rows_is_not_taken_for_null_or_not() -> None:
    table = replace(TABLE, columns=(TABLE.columns[0], replace(TABLE.columns[1], default="none")))
    followed = Followed(table, ("id", "name"))
    rows = [foreign("c", key, 4000, "none" if key == 2 else "a") for key in range(4)]
    parked = Batching(followed, BEGIN, Foreign()).batch(rows)
    assert [one.rows[0][0] for one in parked.refused] == [2]
    kept = Batching(followed, BEGIN, Foreign(shows_default_for_null=False)).batch(rows)
    assert not kept.refused and [row for one in kept.changes for row in one.rows][2] == (2, "none")


def test_a_foreign_tombstone_is_that_of_the_delete_before_it_wherever_a_batch_ends() -> None:
    """Its key may come again in the same event, and must not be older than the tombstone."""
    batching = Batching(FOLLOWED, replace(BEGIN, version=0), Foreign())
    first = batching.batch([foreign("d", 2, 4000), foreign("c", 3, 4000), foreign("d", 1, 4000)])
    assert first.end is not None and first.end.offset == 4000, "a restart reads the delete again"
    second = batching.batch([Message(4001, (b'{"id":1}', None, None)), foreign("c", 2, 4000)])
    (again,) = second.changes
    assert again.rows == [(2, "a")] and again.version > first.changes[0].version
    assert second.end is not None and second.end.offset == 4001


@pytest.mark.parametrize(
    ("message", "is_named"),
    [
        ((b'{"id":7}', b"no JSON", None), True),
        ((b'{"payload":{"id":7}}', b"{}", None), True),
        ((b'{"id":7}', b'{"op":"c","source":{"db":"other","table":"t"}}', None), True),
        ((b'{"id":7}', None, None), True),
        ((b"no JSON", b"no JSON", None), False),
        ((None, b"[]", None), False),
        ((None, None, 12), False),
        ((b'{"id":"seven"}', None, 12), False),
    ],
)
def test_what_cannot_be_read_parks_its_key_and_the_others_go_on(message: Any, is_named: bool) -> None:
    one, other = messages(TABLE, [change("insert", 1, 11, after=(1, "a")), change("insert", 2, 13, after=(2, "b"))])
    found = batch(one, message, other)
    assert [row for one in found.changes for row in one.rows] == [(1, "a"), (2, "b")]
    (refused,) = found.refused
    assert refused.reason.startswith("shop.user/2/42: ")
    assert (refused.rows[0][0] == 7) is is_named
    assert refused.version == (message[2] or 11)


def test_a_topic_whose_views_are_all_halted_is_read_on_without_its_rows() -> None:
    given = messages(TABLE, [change("insert", 1, 11, after=(1, "a"))])
    found = Batching(None, BEGIN).batch([Message(41, given[0]), Message(42, (b"?", None, None))])
    assert found.changes == [] and found.end is not None and found.end.to_text() == replace(BEGIN, offset=43).to_text()


def test_the_version_of_an_end_never_falls() -> None:
    found = Batching(FOLLOWED, BEGIN).batch([Message(41, messages(TABLE, [change("insert", 1, 4, after=(1, "a"))])[0])])
    assert found.end.version == 10


def test_a_position_is_kept_as_text() -> None:
    assert KafkaPosition.from_text(BEGIN.to_text()) == BEGIN
    for text in ("{}", "7", "", '{"file": "binlog.000001"}'):
        with pytest.raises(ValueError):
            KafkaPosition.from_text(text)


def test_the_time_of_a_message_that_does_not_say_when_is_when_it_was_written() -> None:
    assert committed_us(Message(1, (None, b'{"after":{"ts_us":5},"source":{"ts_us":17}}', None))) == 17
    assert committed_us(Message(1, (None, b"{}", None))) == 1_600_000_000_000_000


# -- progress ------------------------------------------------------------------------------------------------------


def test_progress_is_passed_at_its_end_and_not_before() -> None:
    ahead = Ahead("shop.user", 1)
    ahead.add(Progress(version=20, ends={"shop.user": [5, 8], "other": [1, 1]}, watermarks={"a": 19}))
    ahead.add(Progress(version=30, ends={"other": [9]}))
    ahead.add(Progress(version=31, ends={"shop.user": [9, 8]}, watermarks={"b": 31}))
    ahead.add(Progress(version=40, ends={"shop.user": [9, 12]}))
    assert ahead.take(7) is None
    found = ahead.take(8)
    assert (
        found is not None and found[0] == 31 and {mark.token: mark.version for mark in found[1]} == {"a": 19, "b": 31}
    )
    assert ahead.take(11) is None
    assert ahead.take(12) == (40, [])


def test_what_was_told_of_a_deleted_topic_of_the_same_name_holds_up_nothing() -> None:
    ahead = Ahead("shop.user", 0)
    ahead.add(Progress(version=20, ends={"shop.user": [900]}, watermarks={"of the deleted one": 19}))
    ahead.add(Progress(version=30, ends={"shop.user": [5]}, watermarks={"now": 29}))
    found = ahead.take(5)
    assert found is not None and found[0] == 30 and [mark.token for mark in found[1]] == ["now"]


def test_progress_that_a_slow_reader_has_not_come_to_stays_bounded_and_loses_no_watermark() -> None:
    ahead = Ahead("shop.user", 0)
    for number in range(5000):
        ahead.add(Progress(version=number + 1, ends={"shop.user": [number]}, watermarks={str(number): number + 1}))
    assert len(ahead._waiting) <= 1000
    found = ahead.take(5000)
    assert found is not None and found[0] == 5000 and len(found[1]) == 5000
