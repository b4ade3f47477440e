"""Where a transaction above the memory bound waits for its commit: its decoded rows, in an unnamed temporary file.

Decoded rows rather than events: columns that nobody follows are not written, and nothing is read or checked twice.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import tempfile
from collections.abc import Iterator, Sequence

from changes.batches import Followed, Refused, RowChanges
from changes.errors import SourceUnavailableError

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
        self._followed: list[Followed] = []  # in the file they are numbers
        self._count = 0
        self._starts: list[int] = []  # of each piece in the file

    def append(self, changes: Sequence[RowChanges], refused: Sequence[Refused], event_bytes: int) -> None:
        """Write a piece behind the others."""
        plain = [(self._number(change.followed), *change[1:]) for change in changes]
        others = [(self._number(row.followed), *row[1:]) for row in refused]
        try:
            self._starts.append(self._file.tell())
            pickler = pickle.Pickler(self._file, protocol=5)
            # Rows hold no cycles, and looking for what was written before costs most of the time.
            pickler.fast = True
            pickler.dump((plain, others, event_bytes))
        except OSError as error:
            self.close()
            raise _unavailable(error) from None
        self._count += 1

    @property
    def count(self) -> int:
        """Pieces written so far."""
        return self._count

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
        self._count = count
        return piece

    def _number(self, followed: Followed) -> int:
        for number, known in enumerate(self._followed):
            if known is followed:
                return number
        self._followed.append(followed)
        return len(self._followed) - 1

    def pieces(self) -> Iterator[Piece]:
        """The pieces again; once."""
        try:
            self._file.seek(0)
            for _ in range(self._count):
                yield self._piece()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise _unavailable(error) from None

    def _piece(self) -> Piece:
        known = self._followed
        # Nobody else can write to this file: it has no name.
        plain, others, event_bytes = pickle.load(self._file)
        changes = [RowChanges(known[number], *rest) for number, *rest in plain]
        return changes, [Refused(known[number], *rest) for number, *rest in others], event_bytes

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what was not written yet is not wanted any more
            self._file.close()


def _unavailable(error: Exception) -> SourceUnavailableError:
    directory = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
    said = getattr(error, "strerror", None) or error
    return SourceUnavailableError(
        f"temporary file for a large transaction: {said}; free space in {directory}, or set TMPDIR"
    )
