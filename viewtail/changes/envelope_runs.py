"""Reads many of viewtail's messages at once: those of one row event differ in their images only.

The text around the images (most of the message) is read once for all messages that have the same bytes there. All
images of a batch are parsed as one JSON array. A message of another shape is read by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import orjson

from viewtail.changes.batches import INSERT, UPDATE, Followed, Row, RowChanges
from viewtail.changes.envelope_reading import Change, EnvelopeReader
from viewtail.changes.envelope_values import NOT_TAKEN

_Frame: TypeAlias = tuple[bytes, bytes]  # what stands between the images and the number of the row, and behind it

_SOURCE, _ROW = b',"source":{', b',"row":'
_MOST_FRAMES = 1_000
_BEHIND_ROW = len(_ROW)
_before, _after = itemgetter("before"), itemgetter("after")
_kind_and_version = itemgetter(1, 2)


class RunReader:
    """Reads the messages of one table, in their order."""

    def __init__(self, followed: Followed, reader: EnvelopeReader) -> None:
        self._followed = followed
        self._reader = reader
        self._frames: dict[_Frame, tuple[int, int]] = {}  # the kind and version of their messages

    def read_all(self, values: Sequence[bytes]) -> list[Change]:
        """Read all values; neighbouring changes of one kind and version are joined. Raises MalformedEnvelopeError."""
        try:
            return [*self._runs(values)]
        except NOT_TAKEN:
            return joined(list(map(self._reader.read, values)))

    def _runs(self, values: Sequence[bytes]) -> list[RowChanges]:
        images: list[bytes] = []
        begins, abouts = list[int](), list[tuple[int, int]]()  # of runs
        last_head = last_tail = middle = b""
        last_about: tuple[int, int] | None = None
        behind, tail_bytes = 1 << 62, 0  # bytes behind the images, and behind the number of the row
        for value in values:
            # Most are framed as the one before them was, with a number of as many digits.
            at = len(value) - behind
            if (
                at > 0
                and value.startswith(middle, at)
                and value.endswith(last_tail)
                and value[at + len(middle) : -tail_bytes].isdigit()
            ):
                images.append(value[:at])
                continue
            at = value.rindex(_SOURCE)
            row = value.index(_ROW, at)
            end = value.index(b",", row + _BEHIND_ROW)
            head, tail = value[at:row], value[end:]
            if head != last_head or tail != last_tail:
                last_head, last_tail = head, tail
                about = self._about((head, tail), value)
                if about != last_about:
                    begins.append(len(images))
                    abouts.append(about)
                    last_about = about
            if not value[row + _BEHIND_ROW : end].isdigit():
                raise ValueError
            middle, behind, tail_bytes = value[at : row + _BEHIND_ROW], len(value) - at, len(tail)
            images.append(value[:at])
        return self._parsed(images, begins, abouts)

    def _parsed(
        self, images: Sequence[bytes], begins: Sequence[int], abouts: Sequence[tuple[int, int]]
    ) -> list[RowChanges]:
        parsed = orjson.loads(b"[" + b"},".join(images) + b"}]")
        if len(parsed) != len(images):
            raise ValueError
        ends = [*begins[1:], len(parsed)]
        return [
            RowChanges(self._followed, kind, version, self._rows(kind, parsed[begin:end]))
            for (kind, version), begin, end in zip(abouts, begins, ends, strict=True)
        ]

    def _about(self, frame: _Frame, value: bytes) -> tuple[int, int]:
        about = self._frames.get(frame)
        if about is None:
            change = self._reader.read(value)
            if change.__class__ is not RowChanges:
                raise ValueError
            about = change.kind, change.version
            if len(self._frames) >= _MOST_FRAMES:
                self._frames.clear()
            self._frames[frame] = about
        return about

    def _rows(self, kind: int, changes: list[dict[str, Any]]) -> list[Row]:
        """Raises one of NOT_TAKEN where an image is not of that kind of change."""
        row = self._reader.own_row
        if kind == UPDATE:
            return [row(change[image]) for change in changes for image in ("before", "after")]
        there, none = (_after, _before) if kind == INSERT else (_before, _after)
        if set(map(none, changes)) != {None}:
            raise ValueError
        return list(map(row, map(there, changes)))


def joined(changes: Sequence[Any]) -> list[Any]:
    """Join neighbours of one kind and version; a refused row stays alone."""
    joined_changes: list[Any] = []
    for (kind, version), run in groupby(changes, _kind_and_version):
        of_run = list(run)
        refused = [change for change in of_run if change.__class__ is not RowChanges]
        rows = [row for change in of_run if change.__class__ is RowChanges for row in change[3]]
        if rows:
            joined_changes.append(RowChanges(of_run[0][0], kind, version, rows))
        joined_changes += refused
    return joined_changes
