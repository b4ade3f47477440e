"""Where viewtail's messages are not Debezium's, and what a reader cannot tell from Debezium's: field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.support.debezium import History
from viewtail.changes.batches import Followed, Refused, Unreadable
from viewtail.changes.envelope import Envelope
from viewtail.changes.envelope_reading import EnvelopeReader
from viewtail.changes.tables import Column

RELEASE = "3.6.1.Final"
# Of every message: viewtail's own, or the time at which the message was made.
ALWAYS = {"source.sequence", "source.thread", "ts_ms", "ts_us", "ts_ns"}
# Of a row that was there first: viewtail marks it as of an incremental snapshot, and knows no place for it.
OF_A_SNAPSHOT = {"source.snapshot", "source.ts_ms", "source.ts_us", "source.ts_ns", "source.file", "source.pos"}
# (row, column) of the images: what Debezium's form has no place for, or its binlog reader and its snapshot lose.
OF_VALUES = {
    (1, "single"), (1, "stamp3"), (2, "stamp3"),  # a snapshot rounds FLOAT, and cuts zeros
    (2, "huge"), (4, "huge"),  # above 2^63
    (4, "doc"), (6, "doc"),  # without spaces
    (6, "born"), (6, "day"), (6, "at"), (6, "at3"), (6, "moment"), (6, "stamp"), (6, "counted"), (6, "certain"),
    (6, "certain_stamp"), (6, "kind"), (6, "latin"),
    (7, "day"), (7, "moment"), (7, "doc"),  # years below 100 get 1900 or 2000 more
}  # fmt: skip
# (row, column): what is read of Debezium's message instead of what the table has.
READ_OTHERWISE = {
    (1, "single"): "holds a FLOAT that Debezium's snapshot rounded to six digits",
    (2, "single"): "holds a FLOAT that Debezium's snapshot rounded to six digits",
    (6, "day"): None,
    (6, "moment"): None,
    (6, "stamp"): None,
    (6, "doc"): '{"at": "12:00:00", "raw": "AP8="}',
    (6, "latin"): "holds a character that Debezium could not read",
    (6, "counted"): "holds its default, which Kafka Connect writes for NULL too: set replace.null.with.default=false "
    "for the connector's converter; when all messages are written so, set "
    "VIEWTAIL_SOURCE__REPLACE_NULL_WITH_DEFAULT=false",
    (6, "certain"): "holds a date that Debezium writes for a zero or impossible date too",
    (7, "day"): "2050-01-02",
    (7, "moment"): "1999-12-31 00:00:00",
    (7, "doc"): "[1000000000000000, 0.0000001, 0.1, 1e20, 100000000.5]",
}
READ_OTHERWISE_AS_TEXT = {**READ_OTHERWISE, (6, "at"): None, (6, "at3"): None}  # time.precision.mode=isostring


def key_of(history: History) -> list[Column]:
    """The columns of the key."""
    return [column for column in history.table.columns if column.name in history.table.primary_key]


def written_otherwise(history: History, topic: str) -> tuple[set[str], set[tuple[int, str]], list[str]]:
    """Where viewtail's messages of a history differ from a connector's.

    Fields around the images; (row, column) of the images; and columns whose schemas differ.
    """
    key, with_schemas = key_of(history), topic.endswith("_whole")
    envelope = Envelope(
        history.table, key, history.table.columns, name=topic, release=RELEASE, with_schemas=with_schemas
    )
    own = envelope.messages(history.changes, 0)
    theirs = history.topics[topic]
    assert [(found, value is None) for found, value, _ in own] == [(found, value is None) for found, value in theirs]
    around, images, schemas = set(), set(), set()
    for (_, value, _), (_, other) in zip(own, theirs, strict=True):
        if value is not None and other is not None:
            mine, their = json.loads(value), json.loads(other)
            if with_schemas:
                schemas |= set(_unlike_schemas(mine.pop("schema"), their.pop("schema")))
                mine, their = mine["payload"], their["payload"]
            assert list(mine) == list(their) and list(mine["source"]) == list(their["source"]), "the fields' order"
            around |= set(_unlike(mine, their))
            images |= set(_unlike_images(mine, their))
    return around, images, sorted(schemas)


def _unlike(mine: dict[str, Any], their: dict[str, Any]) -> Iterator[str]:
    mark = "of a snapshot: " if their["op"] == "r" else ""
    for name in mine:
        if name == "source":
            yield from (f"{mark}source.{part}" for part in mine[name] if mine[name][part] != their[name][part])
        elif name not in ("before", "after") and mine[name] != their[name]:
            yield mark + name


def _unlike_images(mine: dict[str, Any], their: dict[str, Any]) -> Iterator[tuple[int, str]]:
    for image in ("before", "after"):
        left, right = mine[image] or {}, their[image] or {}
        assert list(left) == list(right)
        yield from ((left["id"], name) for name in left if repr(left[name]) != repr(right[name]))


def _unlike_schemas(mine: dict[str, Any], their: dict[str, Any]) -> Iterator[str]:
    for left, right in zip(mine.pop("fields"), their.pop("fields"), strict=True):
        columns = zip(left.pop("fields", ()), right.pop("fields", ()), strict=True)
        yield from (
            f"{column['field']} {sorted(set(other) - set(column))}" for column, other in columns if column != other
        )
        assert left == right
    assert mine == their


def read_otherwise(history: History, topic: str) -> dict[tuple[int, str], Any]:
    """By (row, column): what is read of a connector's messages where it is not what the table has."""
    names = tuple(column.name for column in history.table.columns)
    reader = EnvelopeReader(Followed(history.table, names), key_of(history))
    found: dict[tuple[int, str], Any] = {}
    values = [value for _, value in history.topics[topic] if value is not None]
    versions = []
    for change, value in zip(history.changes, values, strict=True):
        read = reader.read(value)
        images = [image for image in (change.before, change.after) if image is not None]
        assert len(read.rows) == len(images)
        bad = any(isinstance(each, Unreadable) for row in read.rows for each in row)
        assert isinstance(read, Refused) == bad
        versions.append((read.version, change.version))
        for row, image in zip(read.rows, images, strict=True):
            for name, each, held in zip(names, row, image, strict=True):
                if repr(each) != repr(held):
                    found[row[0], name] = each.cause if isinstance(each, Unreadable) else each
    assert [version for version, _ in versions] == sorted(version for version, _ in versions)
    # viewtail's own are of the event's end, Debezium's of its beginning; of a snapshot it knows none.
    assert all(theirs < own or not own for theirs, own in versions)
    return found
