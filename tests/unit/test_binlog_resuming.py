"""Offset against witness, of one server and of two: each answer, and what the source is asked before."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ingest import BackfillAgain, BeginEpoch, GoOn, ReadAgain, Resuming
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.resuming import resuming
from viewtail.changes.errors import HistoryGoneError

Check = Callable[[BinlogPosition], None]


def place(end: int, epoch: int = 2, server: str = "a") -> BinlogPosition:
    return BinlogPosition(epoch=epoch, file="binlog.000003", end=end, start=end - 64, gtid=f"u:{end}", server=server)


def has_it(after: BinlogPosition) -> None:
    """The source has all changes after any position."""


def lacks_it(after: BinlogPosition) -> None:
    raise HistoryGoneError("they are gone")


OFFSET = place(6400)
BEGINNING = BinlogPosition(epoch=2, file="binlog.000003", end=6400, start=6400, server="a")


@pytest.mark.parametrize(
    ("offset", "kept", "epoch", "check", "answer"),
    [
        pytest.param(OFFSET, OFFSET, 2, lacks_it, GoOn(OFFSET, OFFSET.version), id="the same"),
        pytest.param(OFFSET, place(9600), 2, lacks_it, GoOn(OFFSET, place(9600).version), id="ahead"),
        pytest.param(OFFSET, place(640), 2, has_it, ReadAgain(place(640), place(640).version), id="behind"),
        pytest.param(
            OFFSET,
            place(640),
            2,
            lacks_it,
            BackfillAgain(OFFSET, "they are gone", place(640).version),
            id="behind and purged",
        ),
        pytest.param(OFFSET, place(9600, 1), 2, has_it, ReadAgain(place(9600, 1)), id="of an earlier epoch"),
        pytest.param(
            OFFSET,
            place(9600, 1),
            2,
            lacks_it,
            BackfillAgain(OFFSET, "they are gone"),
            id="of an earlier epoch and purged",
        ),
        pytest.param(
            BEGINNING, place(9600, 1), 2, lacks_it, GoOn(BEGINNING), id="every view is backfilled anyway"
        ),
        pytest.param(
            OFFSET, place(640, 2, "b"), 3, has_it, GoOn(place(640, 2, "b")), id="another server's copy, by its set"
        ),
        pytest.param(OFFSET, place(640, 2, "b"), 2, has_it, BeginEpoch(2), id="another server's, as high as ours"),
        pytest.param(OFFSET, place(640, 5, "b"), 2, has_it, BeginEpoch(5), id="another server's, above ours"),
        pytest.param(OFFSET, place(9600), 3, has_it, GoOn(OFFSET, place(9600).version), id="a new epoch continues it"),
    ],
)  # fmt: skip
def test_where_to_go_on(
    offset: BinlogPosition, kept: BinlogPosition, epoch: int, check: Check, answer: Resuming
) -> None:
    assert resuming(offset, kept, epoch, "a", check) == answer


@pytest.mark.parametrize(
    ("kept", "epoch", "check"),
    [
        pytest.param(place(640, 4), 2, has_it, id="of a later epoch of this server"),
        pytest.param(place(640, 2, "b"), 2, lacks_it, id="another server's, which this one does not continue"),
        pytest.param(place(640, 2, "b"), 3, lacks_it, id="another server's copy, which this one does not continue"),
        pytest.param(place(9600), 3, lacks_it, id="beyond the offset, and not in the new epoch's history"),
    ],
)  # fmt: skip
def test_a_history_that_is_over_is_said(kept: BinlogPosition, epoch: int, check: Check) -> None:
    with pytest.raises(HistoryGoneError):
        resuming(OFFSET, kept, epoch, "a", check)
