"""Keeps a transaction above the memory bound until its commit: its decoded rows, in an unnamed temporary file.

Decoded rows rather than events: columns that nobody follows are not written, and nothing is read or checked twice.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from collections.abc import Iterator, Sequence

from viewtail.changes.batches import Followed, Refused, RowChanges
from viewtail.changes.errors import SourceUnavailableError

_BUFFER_BYTES = 1 << 20

Piece = tuple[list[RowChanges], list[Refused], int]  # changes, rows refused among them, bytes of their events


class Spool:
    """Pieces of one transaction, in order.

    Raises SourceUnavailableError when the file cannot be written or read: nothing of the transaction has been
    delivered as final then, and it is read from the source again.
    """

    def __init__(self) -> None:
        try:
            self._file = tempfile.TemporaryFile(prefix="viewtail-", buffering=_BUFFER_BYTES)  # noqa: SIM115 - see close
        except OSError as error:
            raise _unavailable(error) from None
        self._numbers: dict[Followed, int] = {}  # tables are numbers in the file
        self.count = 0  # pieces written so far
        self._starts: list[int] = []  # of each piece in the file

    def append(self, changes: Sequence[RowChanges], refused: Sequence[Refused], event_bytes: int) -> None:
        """Write a piece behind the others."""
        followed, *columns = zip(*changes, strict=True) if changes else ((), (), (), ())
        for table in {*followed, *(row.followed for row in refused)}:
            self._numbers.setdefault(table, len(self._numbers))
        others = [(self._numbers[row.followed], *row[1:]) for row in refused]
        try:
            self._starts.append(self._file.tell())
            pickler = pickle.Pickler(self._file, protocol=5)
            pickler.fast = True  # rows hold no cycles, and looking for some costs most of the time
            pickler.dump(([self._numbers[table] for table in followed], columns, others, event_bytes))
        except OSError as error:
            self.close()
            raise _unavailable(error) from None
        self.count += 1

    def cut(self, count: int) -> Piece:
        """Forget all pieces behind that many; the first of them is given back, since a part of it may have to stay."""
        try:
            self._file.seek(self._starts[count])
            piece = self._piece()
            self._file.seek(self._starts[count])
            self._file.truncate()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            self.close()
            raise _unavailable(error) from None
        del self._starts[count:]
        self.count = count
        return piece

    def pieces(self) -> Iterator[Piece]:
        """The pieces again; once."""
        try:
            self._file.seek(0)
            for _ in range(self.count):
                yield self._piece()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise _unavailable(error) from None

    def _piece(self) -> Piece:
        # Nobody else can write to this file: it has no name.
        numbers, columns, others, event_bytes = pickle.load(self._file)
        known, new, change_type = list(self._numbers), tuple.__new__, RowChanges
        followed = [known[number] for number in numbers]
        changes = [new(change_type, parts) for parts in zip(followed, *columns, strict=True)]
        return changes, [Refused(known[number], *rest) for number, *rest in others], event_bytes

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what was not written yet is not wanted any more
            self._file.close()


def _unavailable(error: Exception) -> SourceUnavailableError:
    directory = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
    reason = getattr(error, "strerror", None) or error
    return SourceUnavailableError(
        f"temporary file for a large transaction: {reason}; free space in {directory}, or set TMPDIR"
    )
