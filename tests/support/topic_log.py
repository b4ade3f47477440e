"""What a reader of a topic sees (isolation.level=read_committed, or another), compared with binlog and table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, TopicPartition

from stack import Server
from tests.support.binlog_truth import Change, Row

EPOCH_BITS = 53
OPS = {"c": "insert", "u": "update", "d": "delete", "r": "read"}


@dataclass(frozen=True, slots=True)
class Told:
    """One message."""

    partition: int
    offset: int
    key: Row
    version: int
    op: str  # c, u, d, r; '' for a tombstone
    before: Row | None
    after: Row | None
    source: dict[str, Any]

    @property
    def place(self) -> int:
        """As `Change.place` has it."""
        return self.version & ((1 << EPOCH_BITS) - 1)


COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


def raw(
    server: Server, topic: str, after: Mapping[int, int] | None = None, isolation: str = COMMITTED
) -> Iterator[Any]:
    """Every message, each partition from its beginning (or the offset behind that in `after`) to its end."""
    settings = {
        "bootstrap.servers": f"{server.host}:{server.port}", "group.id": "test", "enable.auto.commit": False,
        "enable.partition.eof": True, "isolation.level": isolation, "auto.offset.reset": "error",
        "fetch.wait.max.ms": 10,
    }  # fmt: skip
    with closing(Consumer(settings)) as consumer:
        count = len(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        for number in range(count):
            begin = (after or {}).get(number, -1) + 1
            if not begin:
                begin, _ = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)
            consumer.assign([TopicPartition(topic, number, begin)])
            is_at_end = False
            while not is_at_end:
                first = consumer.poll(10)  # `consume` waits until it has as many as it was asked for
                assert first is not None, f"{topic}: partition {number} gave nothing"
                for message in (first, *consumer.consume(10_000, 0)):
                    error = message.error()
                    if error is None:
                        yield message
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        is_at_end = True


def told(server: Server, topic: str, after: Mapping[int, int] | None = None, isolation: str = COMMITTED) -> list[Told]:
    """Every message, as `raw` has them, in the order of its partition."""
    found = []
    for message in raw(server, topic, after, isolation):
        headers = dict(message.headers() or ())
        key = tuple(_payload(message.key()).values())
        version = int(headers["viewtail_version"])
        at = (message.partition(), message.offset(), key, version)
        if message.value() is None:
            found.append(Told(*at, "", None, None, {}))
            continue
        value = _payload(message.value())
        assert str(version) == value["source"]["sequence"], value["source"]
        found.append(Told(*at, value["op"], _row(value["before"]), _row(value["after"]), value["source"]))
    return found


def _payload(text: bytes) -> dict[str, Any]:
    found = orjson.loads(text)
    payload: dict[str, Any] = found.get("payload", found)
    return payload


def _row(image: dict[str, Any] | None) -> Row | None:
    return None if image is None else tuple(image.values())


def folded(messages: Iterable[Told]) -> dict[Row, Row]:
    """What somebody has who keeps the newest message of each key."""
    found: dict[Row, Row] = {}
    for one in messages:
        if one.after is None:
            found.pop(one.key, None)
        else:
            found[one.key] = one.after
    return found


def without_repeats(messages: Iterable[Told]) -> list[Told]:
    """What a consumer keeps that drops what is not above the last version of its key, except the tombstone of that."""
    found: list[Told] = []
    last: dict[Row, Told] = {}
    for one in messages:
        before = last.get(one.key)
        is_tombstone = one.op == "" and before is not None and (before.op, before.version) == ("d", one.version)
        if before is None or one.version > before.version or is_tombstone:
            last[one.key] = one
            found.append(one)
    return found


def faults_of_repeats(messages: Sequence[Told], kept: Sequence[Told]) -> list[str]:
    """What was left out came before, as it is."""
    known = {(one.key, one.version, one.op): (one.before, one.after) for one in kept}
    return [
        f"{one.key}: {one.op} of version {one.version} came late, or with other rows"
        for one in messages
        if one.op in ("c", "u", "d") and known.get((one.key, one.version, one.op)) != (one.before, one.after)
    ]


def faults_of_order(messages: Sequence[Told]) -> list[str]:
    """Versions of a key rise, a tombstone is right behind its delete, and a key is in one partition."""
    faults = []
    last: dict[Row, Told] = {}
    for one in messages:
        before = last.get(one.key)
        last[one.key] = one
        if one.op == "":
            if before is None or before.op != "d" or before.version != one.version:
                faults.append(f"{one.key}: a tombstone of version {one.version} without its delete")
            continue
        if before is None:
            continue
        if before.op == "d":
            faults.append(f"{one.key}: no tombstone behind the delete of version {before.version}")
        if before.partition != one.partition:
            faults.append(f"{one.key}: in partitions {before.partition} and {one.partition}")
        elif one.version <= before.version:
            faults.append(f"{one.key}: {one.op} of version {one.version} behind {before.op} of {before.version}")
    faults += [f"{one.key}: no tombstone behind its last delete" for one in last.values() if one.op == "d"]
    return faults


def faults(messages: Sequence[Told], truth: Sequence[Change], table: dict[Row, Row]) -> list[str]:
    """Everything that is not as promised: lost, twice, backward, wrong; [] is what a test wants."""
    found = faults_of_order(messages)
    expected = {(one.place, one.key): one for one in truth}
    assert len(expected) == len(truth)
    seen = Counter((one.place, one.key) for one in messages if one.op in ("c", "u", "d"))
    found += [f"{key} at {place:x}: {count} times" for (place, key), count in seen.items() if count > 1]
    found += [
        f"{key} at {place:x}: lost ({expected[place, key].op})" for place, key in expected if (place, key) not in seen
    ]
    by_key: dict[Row, list[Change]] = {}
    for change in truth:
        by_key.setdefault(change.key, []).append(change)
    for one in messages:
        if one.op == "r":
            known = [change for change in by_key.get(one.key, ()) if change.place < one.place]
            if known and known[-1].after != one.after:
                found.append(f"{one.key}: r of version {one.version} shows {one.after}, and not {known[-1].after}")
        elif one.op:
            change = expected.get((one.place, one.key))
            if change is None:
                found.append(f"{one.key} at {one.place:x}: {one.op} is no change of the binlog")
            elif (change.op, change.before, change.after) != (one.op, one.before, one.after):
                found.append(f"{one.key} at {one.place:x}: told {one}, should be {change}")
    now = folded(messages)
    if now != table:
        differing = [key for key in {**now, **table} if now.get(key) != table.get(key)]
        found += [f"{key}: the topic ends with {now.get(key)}, the table has {table.get(key)}" for key in differing[:5]]
    return found
