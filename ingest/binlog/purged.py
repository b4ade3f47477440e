"""Decides whether changes were missed in binlogs that are gone, or all that they held is known.

The known transactions are those that were read, and those that viewtail itself committed behind them as it ended
(quiet_end.py). That process noted what it had read, and the note is one transaction more. If the binlogs that are left
hold the note, then somebody else's transaction is among those that are gone, and nobody knows what it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from ingest.binlog import continuity
from ingest.binlog.coordinates import BinlogPosition, file_number, own
from ingest.binlog.gtid_sets import contains, count_beyond, union
from ingest.binlog.stream_errors import PurgedError
from ingest.canonical import describe
from viewtail.changes.batches import UPDATE, Batch, RowChanges
from viewtail.changes.tables import Table
from viewtail.servers.sessions import Connection, MySQLAddress, asking

_NO_GTIDS = "Without GTIDs (gtid_mode = ON) nothing proves that no change was among what is gone"


@dataclass(frozen=True, slots=True)
class OffsetTable:
    """viewtail's table of offsets. The user of the source need not be able to see it: its own is asked."""

    address: MySQLAddress  # with the user of viewtail's own tables
    schema: str

    @property
    def name(self) -> tuple[str, str]:
        return self.schema, "pipeline"

    def described(self) -> Table:
        with asking(self.address, role="source") as connection:
            return describe(connection, *self.name)


def beyond(
    connection: Connection, after: BinlogPosition, error: PurgedError, *, is_comparable: bool
) -> tuple[str, bool]:
    """The set of all that was read or is gone, and whether it holds one transaction that must be the note.

    `is_comparable`: the position is a place in these very binlogs. Raises the error where more is not known.
    """
    if not after.seen:
        raise PurgedError(f"{error}. {_NO_GTIDS}")
    gone, known = continuity.purged(connection), after.quiet or after.seen
    # What was read is gone too, or the files are not the ones that it was read from: they were reset.
    if is_comparable and not (_is_before_all(connection, after) and contains(gone, after.seen)):
        raise error
    if not contains(continuity.executed(connection), after.seen):
        raise error
    unknown = count_beyond(known, gone)
    if unknown is None or unknown > (1 if after.quiet else 0):
        raise error
    return union(after.seen, gone), unknown == 1


def _is_before_all(connection: Connection, after: BinlogPosition) -> bool:
    oldest = next(iter(continuity.binlog_sizes(connection)), "")
    is_of_these = oldest.rpartition(".")[0] == after.file.rpartition(".")[0]
    return is_of_these and file_number(oldest) > file_number(after.file)


def holds_note(batches: Iterator[Batch], after: BinlogPosition, upto: str) -> bool | None:
    """Return whether these, of the table of offsets, have the note that is in `after`; None: they ended before `upto`.

    An UPDATE that leaves the position as it was is somebody's who took the pipeline.
    """
    with closing(batches):  # type: ignore[type-var]
        for batch in batches:
            if batch.halts or batch.refused or batch.table_changes:
                return True  # it is not known
            if any(_notes(change, after) for change in batch.changes):
                return True
            if batch.end is not None and contains(own(batch.end).seen, upto):
                return False
    return None


def _notes(change: RowChanges, after: BinlogPosition) -> bool:
    if change.kind != UPDATE:
        return False
    befores, afters = change.rows[::2], change.rows[1::2]
    return any(new[1] != old[1] and _is(new[1], after) for old, new in zip(befores, afters, strict=True))


def _is(text: str | None, position: BinlogPosition) -> bool:
    try:
        return text is not None and _note_of(BinlogPosition.from_text(text)) == _note_of(position)
    except ValueError:
        return False


def _note_of(position: BinlogPosition) -> tuple[object, ...]:
    return position.file, position.end, position.gtid, position.quiet
