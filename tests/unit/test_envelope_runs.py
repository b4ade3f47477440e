"""Messages read many at once are what each is when it is read alone, whatever they hold."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.support.events import user_table
from tests.support.published import change, messages
from viewtail.changes.batches import Followed
from viewtail.changes.envelope_reading import EnvelopeReader, MalformedEnvelopeError
from viewtail.changes.envelope_runs import RunReader, joined
from viewtail.changes.writes import KeptChange

TABLE = user_table()
FOLLOWED = Followed(TABLE, ("id", "name"))
NAMES = ("x", "", ',"source":{"sequence":"7"},"row":1,', '"},{"before":null', "\\", "é😀", ',"row":', "}]")


def some(rng: random.Random, count: int) -> list[bytes]:
    """Values of messages, several of one version as a rule."""
    changes: list[KeptChange] = []
    version = 11
    for key in range(count):
        version += rng.random() < 0.2
        old, new = (key, rng.choice(NAMES)), (key, rng.choice(NAMES))
        op = rng.choice(["insert", "insert", "read", "update", "delete"])
        before = old if op in ("update", "delete") else None
        changes.append(change(op, key, version, before=before, after=None if op == "delete" else new))
    return [value for _, value, _ in messages(TABLE, changes) if value is not None]


def alone(values: list[bytes]) -> Any:
    reader = EnvelopeReader(FOLLOWED, TABLE.columns[:1])
    try:
        return joined(list(map(reader.read, values)))
    except MalformedEnvelopeError as error:
        return str(error)


def at_once(values: list[bytes]) -> Any:
    try:
        return joined(RunReader(FOLLOWED, EnvelopeReader(FOLLOWED, TABLE.columns[:1])).read_all(values))
    except MalformedEnvelopeError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(20))
def test_all_at_once_are_what_each_is_alone(seed: int) -> None:
    values = some(random.Random(seed), 60)
    assert at_once(values) == alone(values)


def test_messages_of_one_event_become_one_change() -> None:
    values = [
        value for _, value, _ in messages(TABLE, [change("insert", key, 11, after=(key, "x")) for key in range(9)])
    ]
    (found,) = at_once(values)
    assert (found.version, found.rows) == (11, [(key, "x") for key in range(9)])


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_message_among_others_is_told_as_it_is_alone(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        values = some(rng, 8)
        at = rng.randrange(len(values))
        damaged = bytearray(values[at])
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(damaged))
            how = rng.randrange(3)
            if how == 0:
                damaged[place] = rng.choice(b'{}[]",:0n\\ \xff')
            elif how == 1:
                del damaged[place : place + rng.randrange(1, 30)]
            else:
                damaged[place:place] = rng.choice([b"}", b"},{", b'"', b',"row":7', b',"source":{', b"null"])
        values[at] = bytes(damaged)
        assert at_once(values) == alone(values), values[at]


@pytest.mark.parametrize("row", [b"x", b"-", b'"', b"", b"5,5", b" 5"])
def test_a_damaged_number_of_a_row_between_sound_ones_is_told_as_it_is_alone(row: bytes) -> None:
    values = [
        value for _, value, _ in messages(TABLE, [change("insert", key, 11, after=(key, "x")) for key in range(9)])
    ]
    assert b'"row":0,' in values[5]
    values[5] = values[5].replace(b'"row":0,', b'"row":' + row + b",")
    assert at_once(values) == alone(values)
