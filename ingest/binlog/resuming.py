"""Decides where to go on in a binlog, given an offset and a store's witness: which is further, and readable.

Versions compare two positions of one server and epoch. Epochs alone do not tell the server: copies of viewtail's own
tables, on replicas that are promoted, count epochs by themselves. Another server's witness is compared by its GTIDs.
"""

from __future__ import annotations

from collections.abc import Callable

from ingest import BackfillAgain, BeginEpoch, GoOn, ReadAgain, Resuming, check_epochs
from ingest.binlog.coordinates import BinlogPosition
from viewtail.changes.errors import HistoryGoneError


def resuming(
    offset: BinlogPosition, kept: BinlogPosition, epoch: int, server: str, check: Callable[[BinlogPosition], None]
) -> Resuming:
    """The answer of the server `server`, whose history has the number `epoch`.

    `check` raises HistoryGoneError where that server lacks changes after a position. So does this, where the history
    is over.
    """
    if kept.is_of_another_server(server) and kept.epoch >= epoch:
        _check_contained(kept, check)
        return BeginEpoch(kept.epoch)
    check_epochs(kept, offset, epoch)
    is_of_one_epoch = kept.epoch == offset.epoch
    if is_of_one_epoch and kept.is_of_another_server(offset.server):
        _check_contained(kept, check)
        return GoOn(kept)  # by its set: the store has all of that, whatever was read of this server before
    version = kept.version if is_of_one_epoch else None
    if _is_behind(kept, offset):
        return _read_again(kept, offset, version, check)
    if kept.version > offset.version and offset.epoch < epoch:
        check(kept)  # what the store holds beyond the offset must be in the new history too
    return GoOn(offset, version)


def _read_again(
    kept: BinlogPosition, offset: BinlogPosition, version: int | None, check: Callable[[BinlogPosition], None]
) -> Resuming:
    try:
        check(kept)
    except HistoryGoneError as error:
        return BackfillAgain(offset, str(error), version)
    return ReadAgain(kept, version)


def _is_behind(kept: BinlogPosition, offset: BinlogPosition) -> bool:
    """Return whether the store lacks what the offset says is durable."""
    if kept.epoch < offset.epoch:
        return bool(offset.gtid)  # without a transaction it is a beginning: every view is backfilled there
    return kept.epoch == offset.epoch and kept.version < offset.version


def _check_contained(kept: BinlogPosition, check: Callable[[BinlogPosition], None]) -> None:
    try:
        check(kept)
    except HistoryGoneError as error:
        raise HistoryGoneError(f"the store holds what was read from server {kept.server}. {error}") from None
