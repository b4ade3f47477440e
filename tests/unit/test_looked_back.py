"""What `viewtail why` says of the binlog besides the last change that it found."""

from __future__ import annotations

from typing import Any

import pytest

from ingest.binlog.coordinates import BinlogPosition
from projectors.proving.changed_keys import Change, Looked
from projectors.stores import Held
from viewtail.changes.batches import UNKNOWN
from viewtail.operations.looked_back import notes

SINCE_US = 1_700_000_000_000_000


def place(end: int) -> BinlogPosition:
    return BinlogPosition(epoch=1, file="binlog.000007", end=end, start=end)


def looked(**more: Any) -> Looked:
    """All from byte 1,000 on was read: 3 MiB."""
    return Looked(**{"back_to": place(1000), "begun_us": SINCE_US, "byte_count": 3 << 20, **more})


def change(end: int) -> Change:
    return Change(version=place(end).version, op="update", origin=UNKNOWN, of="shop.user 7")


NOTHING = "no change in the last 3 MiB of the binlog, since 2023-11-14 22:13:20.000000 UTC"
OLDER, NEWER = Held(place(500).version, ("x",)), Held(place(2000).version, ("x",))


@pytest.mark.parametrize(
    ("found", "held", "said"),
    [
        (looked(last=change(2000), shown=change(2000)), NEWER, []),
        (looked(is_all=True), OLDER, [f"{NOTHING}, which is all that the source has"]),
        (looked(), OLDER, [NOTHING, "what is older was not looked at"]),
        (looked(failure="it is gone"), OLDER, [NOTHING, "what is older was not looked at: it is gone"]),
        (Looked(failure="denied"), OLDER, ["the binlog was not looked at: denied"]),
        (
            looked(stopped_at=place(600)),
            OLDER,
            [
                NOTHING,
                "what is behind binlog.000007:600, up to binlog.000007:1000, was not looked at: reading took 9 s",
            ],
        ),
        (
            looked(last=change(2000), unreadable_upto=place(3200).version),
            OLDER,
            ["up to about binlog.000007:3200 the table was another one, or was emptied, which is no change of a row"],
        ),
        (looked(last=change(3000)), NEWER, ["what the view shows is older, and from a backfill"]),
        (looked(last=change(1500)), NEWER, ["the view has it from a backfill"]),
        (
            looked(last=change(3000)),
            Held(place(2000).version, None),
            ["a backfill found no value, or somebody took it away"],
        ),
    ],
)
def test_what_was_found_and_what_was_not_looked_at(found: Looked, held: Held, said: list[str]) -> None:
    assert list(notes(found, held, within_s=9.0, has_version_column=False)) == said


def test_a_version_of_the_table_s_own_is_compared_with_no_place() -> None:
    found = looked(last=change(3000))
    assert list(notes(found, NEWER, within_s=9.0, has_version_column=True)) == []
