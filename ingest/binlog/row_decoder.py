"""Row images, turned into tuples by Python source generated for one table and the columns that are followed.

`compile_decoder` judges once whether a table can be read exactly (table_fit.py); the decoder that it makes is a pure
function of bytes. How each type of column is laid out is in column_forms.py, the source of whole rows in
row_source.py. Columns nobody follows are stepped over, whatever their type. Event headers are not parsed here.

How it is fast: rows that have the same columns NULL share straight-line code, made when such a row is seen often
enough; texts of dates and decimals are remembered.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache
from types import CodeType, MappingProxyType
from typing import Any

from ingest.binlog import packed_integers
from ingest.binlog.column_forms import NAMES, Layout, layout_of
from ingest.binlog.json_binary import MalformedJsonError
from ingest.binlog.packed_integers import Buffer
from ingest.binlog.row_source import Writer
from ingest.binlog.stream_errors import BACKFILL_TABLE
from ingest.binlog.table_fit import check_fits
from ingest.binlog.table_map import TableMap
from viewtail.changes.batches import Followed, Row
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.patterns import Part

_PATTERNS = 64  # NULL patterns of a table that get code of their own ...
_SEEN_OFTEN = 16  # ... once they were seen so many times
_SEEN_ONCE = 500  # so many others before one was seen often: they are as good as random
NO_CONSTANTS: Mapping[int, Any] = MappingProxyType({})
_MISFITS = (IndexError, struct.error, MalformedJsonError)  # what reading past a row's end comes to


def compile_decoder(
    table_map: TableMap, followed: Followed, *, is_json_raw: bool = False, part: Part | None = None
) -> Decoder:
    """A decoder of `table_map` for the columns `followed.columns`; `is_json_raw`: JSON stays in its binary form.

    Of a pattern's table, `part`: each row has the values that are in its name.

    Raises TableUnreadableError, naming table, column, what was seen and what to do, when a followed column is
    missing, cannot be read exactly, or no longer has the values that `followed.table` describes.
    """
    wanted = {name: number for number, name in enumerate(followed.columns)}
    constants = constants_of(table_map, followed, part)
    for name in followed.columns:
        try:
            if name not in constants:
                check_fits(table_map, name, followed)
        except TableUnreadableError as error:
            error.columns = frozenset({name})
            raise
    layouts = []
    for column in table_map.columns:
        number = wanted.get(column.name)
        described = None if number is None else followed.table.column(column.name)
        layouts.append(layout_of(column, described, number, is_json_raw))
    return Decoder(table_map.full_name, layouts, {wanted[name]: value for name, value in constants.items()})


def constants_of(table_map: TableMap, followed: Followed, part: Part | None) -> dict[str, Any]:
    """The values of columns that a table's name has. Raises TableUnreadableError where it has such a column itself."""
    if part is None:
        return {}
    constants = dict(zip(followed.table.of_braces, part.values, strict=True))
    names = {name.lower() for name in constants}
    if own := [column.name for column in table_map.columns if column.name.lower() in names]:
        raise TableUnreadableError(
            f"{table_map.full_name}, column {own[0]}: the braces of {followed.table.full_name} are called so, whose "
            "value is in the table's name. Rename the column, or the braces"
        )
    return {name: value for name, value in constants.items() if name in followed.columns}


class Decoder:
    """Reads the row images of one table map; a pure function of bytes, for any number of events.

    The code for rows without NULLs is in `decode`, other NULL patterns have functions of their own. `write_image` is
    the column count and the bitmap of a full image, as in WRITE_ROWS and DELETE_ROWS after the extra data; unused high
    bits of the bitmap are ones [M, MySQL 9.7]. `update_image` is the same with both bitmaps, as in UPDATE_ROWS.
    """

    def __init__(self, table: str, layouts: list[Layout], constants: Mapping[int, Any] = NO_CONSTANTS) -> None:
        count = len(layouts)
        bitmap = b"\xff" * ((count + 7) // 8)
        self.write_image = packed_integers.written(count) + bitmap
        self.update_image = self.write_image + bitmap
        self._table = table
        self._layouts, self._constants = layouts, constants
        self._null_bytes = len(bitmap)
        self._seen: dict[bytes, int] = {}
        self._patterns: dict[bytes, Callable[..., int]] = {}
        self._any_patterns: Callable[..., int] | None = None  # of rows whose patterns are not worth a look
        self._names = dict(NAMES)
        for layout in layouts:
            self._names |= layout.names
        self._names |= {"other": self._other, "MISFITS": _MISFITS, "misfit": self._misfit}
        self._names |= {f"v{number}": value for number, value in constants.items()}
        # The rows that fill buffer[start:end]; of an UPDATE_ROWS event before, after, before, after, ... Raises
        # UnicodeDecodeError when a text is invalid in its character set (`decode_carefully` finds which), and
        # TableUnreadableError when the bytes do not fit the table.
        self.decode: Callable[[Buffer, int, int], list[Row]] = self._compile(Writer(layouts, constants).plain_rows())

    @cached_property
    def _careful(self) -> Callable[..., int]:
        return self._compile(Writer(self._layouts, self._constants, is_careful=True).any_rows())

    @cached_property
    def _any_pattern(self) -> Callable[..., int]:
        return self._compile(Writer(self._layouts, self._constants).one_row())

    def decode_carefully(self, buffer: Buffer, start: int, end: int) -> list[Row]:
        """Do as `decode`, with `Unreadable` in the place of texts that are invalid in their character set."""
        rows: list[Row] = []
        try:
            if self._careful(buffer, start, end, rows.append) == end:
                return rows
        except _MISFITS:
            pass
        raise self._misfit()

    def row_end(self, buffer: Buffer, start: int, end: int) -> int:
        """Find where the row that begins at `start` ends; raises IndexError when that is beyond `end`."""
        nulls = int.from_bytes(buffer[start : start + self._null_bytes], "little")
        at = start + self._null_bytes
        for index, layout in enumerate(self._layouts):
            if not (layout.is_nullable and nulls >> index & 1):
                at += layout.size + layout.prefix
                if layout.prefix:
                    at += int.from_bytes(buffer[at - layout.prefix : at], "little")
        if at > end:
            raise IndexError("a row reaches past its event's end")
        return at

    def _misfit(self) -> TableUnreadableError:
        return TableUnreadableError(
            f"{self._table}: the bytes of a row event do not fit the table map before it, although the event is whole. "
            f"Look at the binlog with mysqlbinlog -v, report this with the server's version, then {BACKFILL_TABLE}"
        )

    def _other(self, buffer: Buffer, at: int, end: int, append: Callable[[Row], None]) -> int:
        # The rows from `at` on that have the NULLs of the first of them; gives where they end.
        if self._any_patterns is not None:
            return self._any_patterns(buffer, at, end, append)
        pattern = bytes(buffer[at : at + self._null_bytes])
        run = self._patterns.get(pattern)
        return (run or self._pattern(pattern))(buffer, at, end, append)

    def _pattern(self, pattern: bytes) -> Callable[..., int]:
        seen = self._seen[pattern] = self._seen.get(pattern, 0) + 1
        if seen >= _SEEN_OFTEN and len(self._patterns) < _PATTERNS:
            run = self._patterns[pattern] = self._compile(Writer(self._layouts, self._constants).rows_with(pattern))
            return run
        if len(self._seen) > _SEEN_ONCE:
            self._seen.clear()
            if not self._patterns:
                self._any_patterns = self._compile(Writer(self._layouts, self._constants).any_rows())
        return self._any_pattern

    def _compile(self, source_and_names: tuple[str, dict[str, Any]]) -> Callable[..., Any]:
        source, names = source_and_names
        scope = self._names | names
        name = f"<decoder of {self._table}>"
        exec(_code_of_many(source) if self._constants else compile(source, name, "exec"), scope)
        run: Callable[..., Any] = scope["run"]
        return run


@lru_cache(maxsize=512)
def _code_of_many(source: str) -> CodeType:
    """The same for thousands of tables that are alike."""
    return compile(source, "<decoder of tables of a pattern>", "exec")
