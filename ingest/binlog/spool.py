"""Where a transaction above the memory bound waits for its commit: its decoded rows, in an unnamed temporary file.

Decoded rows rather than events: columns that nobody follows are not written, and nothing is read or checked twice.
They are written by marshal, which takes half of pickle's time for plain values (decimals go as text), but makes a copy
of them; so pieces with a large event are pickled, value by value.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import pickle
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from changes.batches import Followed, Refused, Row, RowChanges
from changes.errors import SourceUnavailableError
from changes.tables import Kind

_BUFFER_BYTES = 1 << 20
_LARGE_BYTES = 16 << 20  # of a piece's events
_HEAD = struct.Struct("<Q")  # bytes of what marshal wrote; 0: it was pickled

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
        self._numbers: dict[Followed, int] = {}
        self._decimals: list[tuple[int, ...]] = []  # by number: at which places the rows have some
        self.count = 0  # pieces written so far
        self._starts: list[int] = []  # of each piece in the file

    def append(self, changes: Sequence[RowChanges], refused: Sequence[Refused], event_bytes: int) -> None:
        """Write a piece behind the others."""
        followed, kinds, versions, rows = zip(*changes, strict=True) if changes else ((), (), (), ())
        for table in set(followed):
            self._number(table)
        numbers = [self._numbers[table] for table in followed]
        plain = (numbers, kinds, versions, self._with_decimals(numbers, rows, str))
        others = [(self._number(row.followed), *row[1:]) for row in refused]
        try:
            self._starts.append(self._file.tell())
            # What is refused is rare, and holds `Unreadable`.
            if others or event_bytes > _LARGE_BYTES:
                self._file.write(_HEAD.pack(0))
                pickler = pickle.Pickler(self._file, protocol=5)
                # Rows hold no cycles, and looking for what was written before costs most of the time.
                pickler.fast = True
                pickler.dump((plain, others, event_bytes))
            else:
                piece: Any = (plain, others, event_bytes)
                written = marshal.dumps(piece)
                self._file.write(_HEAD.pack(len(written)))
                self._file.write(written)
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

    def _number(self, followed: Followed) -> int:
        number = self._numbers.get(followed)
        if number is None:
            number = self._numbers[followed] = len(self._followed)
            self._followed.append(followed)
            columns = map(followed.table.column, followed.columns)
            self._decimals.append(
                tuple(at for at, column in enumerate(columns) if column and column.kind is Kind.DECIMAL)
            )
        return number

    def pieces(self) -> Iterator[Piece]:
        """The pieces again; once."""
        try:
            self._file.seek(0)
            for _ in range(self.count):
                yield self._piece()
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise _unavailable(error) from None

    def _piece(self) -> Piece:
        known = self._followed
        # Nobody else can write to this file: it has no name.
        plain, others, event_bytes = self._next()
        numbers, kinds, versions, rows = plain
        rows = self._with_decimals(numbers, rows, Decimal)
        new, change_type = tuple.__new__, RowChanges
        changes = [
            new(change_type, parts)
            for parts in zip([known[number] for number in numbers], kinds, versions, rows, strict=True)
        ]
        return changes, [Refused(known[number], *rest) for number, *rest in others], event_bytes

    def _with_decimals(
        self, numbers: Sequence[int], rows: Sequence[list[Row]], make: Callable[[Any], Any]
    ) -> Sequence[list[Row]]:
        """The rows of each change, their decimals made into another form."""
        if not any(self._decimals):
            return rows
        return [
            _replaced(some, self._decimals[number], make) if self._decimals[number] and some else some
            for number, some in zip(numbers, rows, strict=True)
        ]

    def _next(self) -> Any:
        head = self._file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise EOFError("it ends too early")
        (size,) = _HEAD.unpack(head)
        if not size:
            return pickle.load(self._file)
        written = self._file.read(size)
        if len(written) < size:
            raise EOFError("it ends too early")
        return marshal.loads(written)

    def close(self) -> None:
        with contextlib.suppress(OSError):  # what was not written yet is not wanted any more
            self._file.close()


def _replaced(rows: Sequence[Row], places: Sequence[int], make: Callable[[Any], Any]) -> list[Row]:
    """The rows with other values at some places; a NULL stays."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    for at in places:
        columns[at] = [None if value is None else make(value) for value in columns[at]]
    return list(zip(*columns, strict=True))


def _unavailable(error: Exception) -> SourceUnavailableError:
    directory = tempfile.tempdir or os.environ.get("TMPDIR", "/tmp")
    said = getattr(error, "strerror", None) or error
    return SourceUnavailableError(
        f"temporary file for a large transaction: {said}; free space in {directory}, or set TMPDIR"
    )
