"""Row images, turned into tuples by Python source generated for one table and the columns that are followed.

Owns the binary form of every column type in ROWS events. `compile_decoder` judges once whether a table can be
read exactly; the decoder it makes is a pure function of bytes and gives the values that docs/types.md lists,
the same that ingest/canonical.py selects. Columns nobody follows are stepped over, whatever their type. It
does not parse event headers.

How it is fast: fixed-width columns that stand together are one Struct; rows that have the same columns NULL
share straight-line code, made when such a row is seen often enough; where no row has the NULLs of another, columns
that nobody follows are counted, not looked at; texts of dates and decimals are remembered.

Source of the forms: sql/field.cc (pack, unpack), sql-common/my_time.cc, strings/decimal.cc of MySQL 9.
"""

from __future__ import annotations

import re
import struct
from codecs import charmap_decode
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Protocol

from changes.batches import Followed, Row, Unreadable
from changes.errors import TableUnreadableError
from changes.tables import Column, Kind
from ingest.binlog import mariadb_types
from ingest.binlog import table_map as types
from ingest.binlog.collations import charset_of
from ingest.binlog.json_binary import MalformedJsonError, decimal_size, decimal_text, to_text
from ingest.binlog.table_map import MapColumn, TableMap
from ingest.charsets import READABLE, decoder_of, single_byte_table

Buffer = bytes | bytearray

_ABOVE_BMP = re.compile("[\U00010000-\U0010ffff]")
_MEMO_SIZE = 20_000  # values a memo may hold before it starts again
_PATTERNS = 64  # NULL patterns of a table that get code of their own ...
_SEEN_OFTEN = 16  # ... once they were seen so many times
_SEEN_ONCE = 500  # so many others before one was seen often: they are as good as random
_NARROW_BYTES = 4  # of NULL bits, which are one small integer
_BULK_BYTES = 2048  # from here on one copy into bytes costs less than slicing a bytearray ...
_LARGE_BYTES = 1 << 20  # ... up to here: a larger event holds one row, whose copy is only memory
_INTEGER_BYTES = {types.TINY: 1, types.SHORT: 2, types.INT24: 3, types.LONG: 4, types.LONGLONG: 8}
_INTEGER_CODES = {types.TINY: "b", types.SHORT: "h", types.LONG: "i", types.LONGLONG: "q"}
_BLOBS = frozenset((types.TINY_BLOB, types.BLOB, types.MEDIUM_BLOB, types.LONG_BLOB))
_COMPRESSED = frozenset((types.VARCHAR_COMPRESSED, types.BLOB_COMPRESSED))
_STRINGS = frozenset((types.VARCHAR, types.VAR_STRING, types.STRING)) | _BLOBS | _COMPRESSED
_OLD_SIZES = {
    types.DATE: 3,
    types.NEWDATE: 3,
    types.TIME: 3,
    types.DATETIME: 8,
    types.TIMESTAMP: 4,
    types.NULL: 0,
}


class Decoder(Protocol):
    """Reads the row images of one table map; a pure function, for any number of events."""

    write_image: bytes
    # The column count and the bitmap of a full image, as in WRITE_ROWS and DELETE_ROWS after the extra data.
    # Unused high bits of the bitmap are ones [M, MySQL 9.7].
    update_image: bytes  # the same with both bitmaps, as in UPDATE_ROWS

    def decode(self, buffer: Buffer, start: int, end: int) -> list[Row]:
        """The rows that fill buffer[start:end]; of an UPDATE_ROWS event before, after, before, after, ...

        Raises UnicodeDecodeError when a text is invalid in its character set (`decode_carefully` finds which)
        and TableUnreadableError when the bytes do not fit the table."""

    def decode_carefully(self, buffer: Buffer, start: int, end: int) -> list[Row]:
        """As `decode`, with `Unreadable` in the place of texts that are invalid in their character set."""

    def row_end(self, buffer: Buffer, start: int, end: int) -> int:
        """Where the row that begins at `start` ends; raises IndexError when that is beyond `end`."""


def compile_decoder(table_map: TableMap, followed: Followed, *, is_json_raw: bool = False) -> Decoder:
    """A decoder of `table_map` for the columns `followed.columns`; `is_json_raw`: JSON stays in its binary form.

    Raises TableUnreadableError, naming table, column, what was seen and what to do, when a followed column is
    missing, cannot be read exactly, or no longer has the values that `followed.table` describes.
    """
    wanted = {name: number for number, name in enumerate(followed.columns)}
    for name in followed.columns:
        _compare(table_map, name, followed)
    layouts = []
    for column in table_map.columns:
        number = wanted.get(column.name)
        described = None if number is None else followed.table.column(column.name)
        layouts.append(_layout(column, described, number, is_json_raw))
    return _Decoder(table_map.full_name, layouts)


# --- Does the table still fit its description? ---


def kind_of(column: MapColumn) -> Kind:
    """What a column of the binlog holds; Kind.UNSUPPORTED when viewtail cannot read it."""
    type_ = column.type
    if type_ in _STRINGS:
        if column.collation == types.BINARY_COLLATION:
            return Kind.BYTES
        return Kind.TEXT if charset_of(column.collation) in READABLE else Kind.UNSUPPORTED
    if type_ in (types.ENUM, types.SET) and charset_of(column.collation) not in READABLE:
        return Kind.UNSUPPORTED
    return _KINDS.get(type_, Kind.UNSUPPORTED)


_KINDS = dict.fromkeys((*_INTEGER_BYTES, types.YEAR, types.BIT), Kind.INTEGER) | {
    types.NEWDECIMAL: Kind.DECIMAL, types.FLOAT: Kind.FLOAT, types.DOUBLE: Kind.DOUBLE, types.ENUM: Kind.ENUM,
    types.SET: Kind.SET, types.DATE: Kind.DATE, types.NEWDATE: Kind.DATE, types.TIME2: Kind.TIME,
    types.DATETIME2: Kind.DATETIME, types.TIMESTAMP2: Kind.TIMESTAMP, types.JSON: Kind.JSON,
    types.GEOMETRY: Kind.GEOMETRY, types.VECTOR: Kind.VECTOR,
}  # fmt: skip


def _compare(table_map: TableMap, name: str, followed: Followed) -> None:
    where = f"{table_map.full_name}, column {name}"
    seen, described = table_map.column(name), followed.table.column(name)
    if described is None:
        raise TableUnreadableError(
            f"{where}: the table's description lacks it; this is a fault in viewtail, report it"
        )
    if seen is None:
        raise TableUnreadableError(
            f"{where}: it is gone from the table. Take it out of the views (or put it back) and fill them "
            "again: viewtail replay VIEW"
        )
    kind = described.kind if _is_text_in_binary(seen, described) else kind_of(seen)
    if kind is Kind.UNSUPPORTED:
        charset = f" in the character set {charset_of(seen.collation)}" if seen.collation is not None else ""
        raise TableUnreadableError(
            f"{where}: viewtail cannot read {seen.type_name}{charset} exactly. Take the column out of the views, or "
            f"convert it ({'to utf8mb4' if charset else 'ALTER TABLE ... FORCE renews old formats'})"
        )
    difference = _difference(seen, kind, described)
    if difference:
        raise TableUnreadableError(
            f"{where}: it was {described.declared} when its views were set up, and {difference}. Start viewtail again "
            "so that it looks at the table anew, and fill the views of this table again: viewtail replay VIEW"
        )


def _is_text_in_binary(seen: MapColumn, described: Column) -> bool:
    """Whether it is one of MariaDB's types that the binlog shows as BINARY."""
    return (
        seen.type == types.STRING
        and seen.collation == types.BINARY_COLLATION
        and mariadb_types.SIZES.get(described.declared) == seen.metadata
    )


def _difference(seen: MapColumn, kind: Kind, described: Column) -> str | None:
    # Only what changes the values that the views hold already, or what a value means, counts. A wider integer
    # or text, a label added at the end, another supported character set do not.
    if kind is not described.kind:
        return f"is now {seen.type_name} ({kind.value} instead of {described.kind.value})"
    if kind is Kind.INTEGER and seen.type in _INTEGER_BYTES and seen.is_unsigned != described.is_unsigned:
        return "is now unsigned" if seen.is_unsigned else "is now signed"
    if kind is Kind.DECIMAL and seen.metadata & 0xFF != described.scale:
        return f"has now {seen.metadata & 0xFF} digits after the point"
    if kind in (Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP) and seen.metadata != described.scale:
        return f"has now {seen.metadata} digits of the second's fraction"
    if seen.type == types.STRING and kind is Kind.BYTES and seen.metadata != described.length:
        return f"is now BINARY({seen.metadata}), padded to another length"
    if kind in (Kind.ENUM, Kind.SET) and not _begin_alike(_described(seen), described.labels):
        return "has other labels now"
    return None


def _begin_alike(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether labels were only added at the end, or are yet to be: what was described may be newer than the rows."""
    count = min(len(one), len(other))
    return one[:count] == other[:count]


def _labels(column: MapColumn) -> tuple[str, ...]:
    try:
        return tuple(map(decoder_of(charset_of(column.collation)), column.labels))
    except UnicodeDecodeError:
        return ()


def _described(column: MapColumn) -> tuple[str, ...]:
    # information_schema shows a label's characters above U+FFFF as question marks [M, MySQL 9.7].
    return tuple(_ABOVE_BMP.sub("?", label) for label in _labels(column))


# --- The code for one column ---


@dataclass(slots=True, kw_only=True)
class _Layout:
    """How one column stands in a row and what turns it into its value.

    Fixed width: `codes` unpack it into the variables `fields`. Variable width: `prefix` bytes of length, then
    the bytes, which `value` finds as {raw}. `value` is an expression, `before` are statements that lead to
    it."""

    number: int | None  # the value's place in followed.columns; None: step over it
    is_nullable: bool
    size: int = 0
    prefix: int = 0
    codes: str = ""
    fields: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    value: str = ""
    careful: str = ""  # takes the place of `value` in decode_carefully; may still be followed by nothing
    names: dict[str, Any]  # what the expressions refer to


def _layout(column: MapColumn, described: Column | None, number: int | None, is_json_raw: bool) -> _Layout:
    layout = _Layout(number=number, is_nullable=column.is_nullable, names={})
    type_, metadata = column.type, column.metadata
    if type_ in _BLOBS or type_ in (types.JSON, types.GEOMETRY, types.VECTOR, types.BLOB_COMPRESSED):
        layout.prefix = metadata
        if metadata not in _PREFIXES:
            raise _impossible(column, f"length in {metadata} bytes")
    elif type_ in (types.VARCHAR, types.VAR_STRING, types.STRING, types.VARCHAR_COMPRESSED):
        layout.prefix = 1 if metadata < 256 else 2
    else:
        layout.size = _fixed_size(type_, metadata)
    if described is not None:
        kind = kind_of(column)
        if _is_text_in_binary(column, described):
            _text_in_binary(layout, column, mariadb_types.TEXTS[described.declared])
            return layout
        _MAKERS[Kind.BYTES if is_json_raw and kind is Kind.JSON else kind](layout, column)
        if type_ in _COMPRESSED:
            layout.value = layout.value.replace("{raw}", "uncompressed({raw})")
            layout.careful = layout.careful.replace("{raw}", "uncompressed({raw})")
    return layout


def _impossible(column: MapColumn, what: str) -> TableUnreadableError:
    return TableUnreadableError(
        f"column {column.name}: the table map says {column.type_name} with {what}, which cannot be; look at the binlog "
        "with mysqlbinlog -v. Then fill the views of this table: viewtail replay VIEW"
    )


def _fixed_size(type_: int, metadata: int) -> int:
    if type_ in _INTEGER_BYTES:
        return _INTEGER_BYTES[type_]
    if type_ in (types.ENUM, types.SET):
        return metadata
    if type_ in (types.FLOAT, types.DOUBLE):
        return 4 if type_ == types.FLOAT else 8
    if type_ == types.YEAR:
        return 1
    if type_ == types.BIT:
        return (metadata + 7) // 8
    if type_ == types.NEWDECIMAL:
        return decimal_size(metadata >> 8, metadata & 0xFF)
    if type_ in (types.TIME2, types.DATETIME2, types.TIMESTAMP2):
        return {types.TIME2: 3, types.DATETIME2: 5, types.TIMESTAMP2: 4}[type_] + (metadata + 1) // 2
    return _OLD_SIZES[type_]


def _integer(layout: _Layout, column: MapColumn) -> None:
    value = f"v{layout.number}"
    low, high = f"{value}a", f"{value}b"
    if column.type == types.YEAR:
        layout.codes, layout.fields, layout.value = "B", (value,), f"{value} + 1900 if {value} else 0"
    elif column.type == types.BIT and layout.size > 1:
        layout.codes, layout.fields, layout.value = f"{layout.size}s", (value,), f"from_bytes({value}, 'big')"
    elif column.type == types.BIT:
        layout.codes, layout.fields = "B", (value,)
    elif column.type == types.INT24:
        layout.codes = "HB" if column.is_unsigned else "Hb"
        layout.fields, layout.value = (low, high), f"{low} | {high} << 16"
    else:
        code = _INTEGER_CODES[column.type]
        layout.codes, layout.fields = code.upper() if column.is_unsigned else code, (value,)


def _number(layout: _Layout, column: MapColumn) -> None:
    layout.codes, layout.fields = "f" if column.type == types.FLOAT else "d", (f"v{layout.number}",)


def _remembered(layout: _Layout, codes: str, make: Callable[[Any], Any]) -> None:
    # value = memo of the raw bytes (or number), made when it is not in there
    value, memo = f"v{layout.number}", _Memo(make)
    layout.names |= {f"get{layout.number}": memo.get, f"make{layout.number}": memo.make}
    raw = f"{value}r"
    layout.codes, layout.fields = codes, (raw,)
    layout.before = (
        f"{value} = get{layout.number}({raw})",
        f"if {value} is None: {value} = make{layout.number}({raw})",
    )
    layout.value = value


def _decimal(layout: _Layout, column: MapColumn) -> None:
    precision, scale = column.metadata >> 8, column.metadata & 0xFF
    _remembered(layout, f"{layout.size}s", lambda raw: Decimal(decimal_text(raw, precision, scale)))


def _date(layout: _Layout, _column: MapColumn) -> None:
    _remembered(layout, "3s", _date_text)


def _time(layout: _Layout, column: MapColumn) -> None:
    digits = column.metadata
    _remembered(layout, f"{layout.size}s", lambda raw: _time_text(raw, digits))


def _moment(layout: _Layout, column: MapColumn) -> None:
    # The memo holds the text up to the whole second; the fraction is added each time.
    is_timestamp, digits = column.type == types.TIMESTAMP2, column.metadata
    make = _timestamp_text if is_timestamp else _datetime_text
    whole_bytes = 4 if is_timestamp else 5
    if not digits:
        _remembered(layout, f"{whole_bytes}s", make)
        return
    _remembered(layout, f"{whole_bytes}s", lambda raw: make(raw) + ".")
    fraction_bytes = (digits + 1) // 2
    parts = tuple(f"v{layout.number}{letter}" for letter in "xyz"[:fraction_bytes])
    layout.codes += "B" * fraction_bytes
    layout.fields += parts
    hundredths = " | ".join(
        f"{part} << {8 * (fraction_bytes - 1 - place)}" if place < fraction_bytes - 1 else part
        for place, part in enumerate(parts)
    )
    number = parts[0]
    shown = {
        1: f"{{D1[{number}]}}",
        2: f"{{D2[{number}]}}",
        3: f"{{D3[{number} // 10]}}",
        4: f"{{D2[{number} // 100]}}{{D2[{number} % 100]}}",
        5: f"{{D3[{number} // 1000]}}{{D2[{number} // 10 % 100]}}",
        6: f"{{D3[{number} // 1000]}}{{D3[{number} % 1000]}}",
    }[digits]
    if fraction_bytes > 1:
        layout.before += (f"{number} = {hundredths}",)
    layout.value = f"f'{{v{layout.number}}}{shown}'"


def _enum(layout: _Layout, column: MapColumn) -> None:
    value = f"v{layout.number}"
    if layout.size not in (1, 2):
        raise _impossible(column, f"numbers of {layout.size} bytes")
    layout.names[f"labels{layout.number}"] = ("", *_labels(column))
    layout.codes, layout.fields = "BH"[layout.size - 1], (value,)
    layout.value = f"labels{layout.number}[{value}]"


def _set(layout: _Layout, column: MapColumn) -> None:
    labels = _labels(column)

    def make(raw: bytes) -> str:
        number = int.from_bytes(raw, "little")
        if number >> len(labels):
            raise IndexError("a SET value has more members than labels")
        return ",".join(label for place, label in enumerate(labels) if number >> place & 1)

    _remembered(layout, f"{layout.size}s", make)


def _text(layout: _Layout, column: MapColumn) -> None:
    charset, value = charset_of(column.collation), f"v{layout.number}"
    read = decoder_of(charset)
    if charset in ("utf8mb4", "utf8mb3"):
        layout.value = "{raw}.decode()"
    elif charset == "latin1":
        # It has a character for every code, so there is no careful way.
        layout.names["LATIN1"] = single_byte_table(charset)
        plain = f"({value} := {{raw}}.decode('latin-1'))"
        layout.value = f"charmap({{raw}}, 'strict', LATIN1)[0] if not {plain}.isascii() else {value}"
        return
    elif table := single_byte_table(charset):
        layout.names[f"table{layout.number}"] = table
        layout.value = f"charmap({{raw}}, 'strict', table{layout.number})[0]"
    else:
        layout.names[f"read{layout.number}"] = read
        layout.value = f"read{layout.number}({{raw}})"
    layout.names[f"careful{layout.number}"] = _careful(column.name, read)
    layout.careful = f"careful{layout.number}({{raw}})"


def _text_in_binary(layout: _Layout, column: MapColumn, text: Callable[[bytes], str]) -> None:
    layout.names[f"text{layout.number}"] = text
    layout.value = f"text{layout.number}(bytes({{raw}}).ljust({column.metadata}, b'\\0'))"


def _json(layout: _Layout, column: MapColumn) -> None:
    layout.value = "json_text(bytes({raw}))"
    layout.names[f"careful{layout.number}"] = _careful(column.name, lambda raw: to_text(bytes(raw)))
    layout.careful = f"careful{layout.number}({{raw}})"


def _bytes(layout: _Layout, column: MapColumn) -> None:
    layout.value = "bytes({raw})"
    if column.type == types.STRING:
        # BINARY(n) is stored without its trailing zeros.
        layout.value = f"bytes({{raw}}).ljust({column.metadata}, b'\\0')"


_MAKERS: dict[Kind, Callable[[_Layout, MapColumn], None]] = {
    Kind.INTEGER: _integer, Kind.FLOAT: _number, Kind.DOUBLE: _number, Kind.DECIMAL: _decimal, Kind.DATE: _date,
    Kind.TIME: _time, Kind.DATETIME: _moment, Kind.TIMESTAMP: _moment, Kind.ENUM: _enum, Kind.SET: _set,
    Kind.TEXT: _text, Kind.JSON: _json, Kind.BYTES: _bytes, Kind.GEOMETRY: _bytes, Kind.VECTOR: _bytes,
}  # fmt: skip


class _Memo:
    """Remembers what `make` gave; forgets everything when it is full."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._values: dict[Any, Any] = {}
        self._make = make
        self.get = self._values.get

    def make(self, raw: Any) -> Any:
        if len(self._values) >= _MEMO_SIZE:
            self._values.clear()
        found = self._values[raw] = self._make(raw)
        return found


def _careful(name: str, read: Callable[[Buffer], str]) -> Callable[[Buffer], str | Unreadable]:
    def careful(raw: Buffer) -> str | Unreadable:
        try:
            return read(raw)
        except UnicodeDecodeError:
            return Unreadable(name)

    return careful


# --- Texts of dates and times ---


def _date_text(raw: bytes) -> str:
    number = int.from_bytes(raw, "little")
    return f"{number >> 9:04d}-{number >> 5 & 15:02d}-{number & 31:02d}"


def _datetime_text(raw: bytes) -> str:
    number = int.from_bytes(raw, "big") - 0x8000000000
    if number < 0:
        raise IndexError("a DATETIME is negative")
    months, day = divmod(number >> 17, 32)
    year, month = divmod(months, 13)
    hour, minute, second = number >> 12 & 31, number >> 6 & 63, number & 63
    return f"{year:04d}-{month:02d}-{day:02d} {hour:02d}:{minute:02d}:{second:02d}"


def _timestamp_text(raw: bytes) -> str:
    seconds = int.from_bytes(raw, "big")
    if not seconds:
        return "0000-00-00 00:00:00"
    days, seconds = divmod(seconds, 86400)
    return f"{_civil(days)} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def _civil(days: int) -> str:
    # Days since 1970-01-01 in the Gregorian calendar (H. Hinnant, chrono-compatible date algorithms).
    days += 719468
    era, day_of_era = divmod(days, 146097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted + 2) // 5 + 1
    month = shifted + 3 if shifted < 10 else shifted - 9
    return f"{year_of_era + era * 400 + (month <= 2):04d}-{month:02d}-{day:02d}"


def _time_text(raw: bytes, digits: int) -> str:
    fraction_bytes = len(raw) - 3
    number = int.from_bytes(raw, "big") - (0x800000 << 8 * fraction_bytes)
    sign, number = ("-", -number) if number < 0 else ("", number)
    whole, fraction = divmod(number, 1 << 8 * fraction_bytes)
    shown = f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
    if not digits:
        return shown
    return f"{shown}.{fraction:0{2 * fraction_bytes}d}"[: len(shown) + 1 + digits]


# --- Putting the code together ---


_GLOBALS: dict[str, Any] = {
    "charmap": charmap_decode,
    "json_text": to_text,
    "from_bytes": int.from_bytes,
    "uncompressed": mariadb_types.uncompressed,
    "D1": tuple(f"{number // 10}" for number in range(100)),
    "D2": tuple(f"{number:02d}" for number in range(100)),
    "D3": tuple(f"{number:03d}" for number in range(1000)),
}


class _Decoder:
    """Generated code for one table: the row without NULLs inline, other NULL patterns in functions of their
    own."""

    def __init__(self, table: str, layouts: list[_Layout]) -> None:
        count = len(layouts)
        bitmap = b"\xff" * ((count + 7) // 8)
        self.write_image = _packed_length(count) + bitmap
        self.update_image = self.write_image + bitmap
        self._table = table
        self._layouts = layouts
        self._null_bytes = len(bitmap)
        self._seen: dict[bytes, int] = {}
        self._patterns: dict[bytes, Callable[..., int]] = {}
        self._any_pattern: Callable[..., int] | None = None
        self._any_patterns: Callable[..., int] | None = None  # of rows whose patterns are not worth a look
        self._careful: Callable[..., int] | None = None
        self._names = dict(_GLOBALS)
        for layout in layouts:
            self._names |= layout.names
        self._names["other"] = self._other
        self._names["MISFITS"] = _MISFITS
        self._names["misfit"] = self._misfit
        self.decode: Callable[[Buffer, int, int], list[Row]] = self._compile(_Writer(layouts).plain_rows())

    def decode_carefully(self, buffer: Buffer, start: int, end: int) -> list[Row]:
        if self._careful is None:
            self._careful = self._compile(_Writer(self._layouts, is_careful=True).any_rows())
        rows: list[Row] = []
        try:
            if self._careful(buffer, start, end, rows.append) == end:
                return rows
        except _MISFITS:
            pass
        raise self._misfit()

    def row_end(self, buffer: Buffer, start: int, end: int) -> int:
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
            f"{self._table}: the bytes of a row event do not fit the table map before it, although the event is whole; "
            "look at the binlog with mysqlbinlog -v, and report this with the server's version. Then fill the views "
            "of this table"
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
            run = self._patterns[pattern] = self._compile(_Writer(self._layouts).rows_with(pattern))
            return run
        if len(self._seen) > _SEEN_ONCE:
            self._seen.clear()
            if not self._patterns:
                self._any_patterns = self._compile(_Writer(self._layouts).any_rows())
        if self._any_pattern is None:
            self._any_pattern = self._compile(_Writer(self._layouts).one_row())
        return self._any_pattern

    def _compile(self, source_and_names: tuple[str, dict[str, Any]]) -> Callable[..., Any]:
        source, names = source_and_names
        scope = self._names | names
        exec(compile(source, f"<decoder of {self._table}>", "exec"), scope)
        run: Callable[..., Any] = scope["run"]
        return run


class _Writer:
    """Writes the source of one function; if not said otherwise, run(buffer, p, end, append) -> where it stopped."""

    def __init__(self, layouts: list[_Layout], *, is_careful: bool = False) -> None:
        self._layouts = layouts
        self._is_careful = is_careful
        self._null_bytes = (len(layouts) + 7) // 8
        self._lines: list[str] = []
        self._names: dict[str, Any] = {}
        self._indent = ""
        self._at, self._offset = "p", 0  # the present place: a variable and a constant beside it
        self._run: list[tuple[str, tuple[str, ...], int]] = []  # fixed-width columns not yet written
        self._after: list[str] = []  # what turns them into values
        wanted = sorted(layout.number for layout in layouts if layout.number is not None)
        self._tuple = "(" + "".join(f"v{number}, " for number in wanted) + ")"

    def plain_rows(self) -> tuple[str, dict[str, Any]]:
        """The decoder itself, run(buffer, p, end) -> rows: those without NULLs; those with some go to `other`."""
        last = self._null_bytes - 1
        mask = (1 << len(self._layouts) - 8 * last) - 1  # of the last byte; the other bits say nothing
        if not any(layout.is_nullable for layout in self._layouts):
            has_nulls = ""
        elif last == 0:
            has_nulls = f"buffer[p] & {mask}"
        elif last == 1:
            has_nulls = f"buffer[p] or buffer[p + 1] & {mask}"
        else:
            has_nulls = f"buffer[p:p + {last}] != NO_NULLS or buffer[p + {last}] & {mask}"
            self._names["NO_NULLS"] = bytes(last)
        self._lines += ["def run(buffer, p, end):", "    rows = []", "    append = rows.append"]
        if any(layout.prefix and layout.number is not None for layout in self._layouts):
            self._lines += [
                f"    if {_BULK_BYTES} < end - p <= {_LARGE_BYTES} and type(buffer) is bytearray:",
                "        buffer, p, end = bytes(buffer[p:end]), 0, end - p",
            ]
        self._lines += ["    try:", "        while p < end:"]
        self._indent = " " * 12
        if has_nulls:
            self._line(f"if {has_nulls}:")
            self._line("    p = other(buffer, p, end, append)")
            self._line("    continue")
        self._known_row(0)
        self._lines += [
            "    except MISFITS:",
            "        raise misfit() from None",
            "    if p != end:",
            "        raise misfit()",
            "    return rows",
        ]
        return "\n".join(self._lines), self._names

    def rows_with(self, pattern: bytes) -> tuple[str, dict[str, Any]]:
        """Rows whose NULL bitmap is `pattern`, until one has another."""
        self._begin_loop()
        if len(pattern) == 1:
            self._line(f"if buffer[p] != {pattern[0]}: return p")
        else:
            self._line(f"if buffer[p:p + {len(pattern)}] != {pattern!r}: return p")
        nullable = sum(layout.is_nullable << index for index, layout in enumerate(self._layouts))
        # Of the others no bit counts, as where a row is read by code for any NULLs.
        self._known_row(int.from_bytes(pattern, "little") & nullable)
        return self._finish()

    def any_rows(self) -> tuple[str, dict[str, Any]]:
        """Rows with any NULLs."""
        self._begin_loop()
        self._unknown_row()
        return self._finish()

    def one_row(self) -> tuple[str, dict[str, Any]]:
        """A single row with any NULLs."""
        self._line("def run(buffer, p, end, append):")
        self._indent = "    "
        self._unknown_row()
        return self._finish()

    def _begin_loop(self) -> None:
        self._line("def run(buffer, p, end, append):")
        self._line("    while p < end:")
        self._indent = "        "

    def _finish(self) -> tuple[str, dict[str, Any]]:
        self._lines.append("    return p")
        return "\n".join(self._lines), self._names

    def _known_row(self, nulls: int) -> None:
        self._offset = self._null_bytes
        for index, layout in enumerate(self._layouts):
            if nulls >> index & 1:
                if layout.number is not None:
                    self._after.append(f"v{layout.number} = None")
            else:
                self._column(layout)
        self._settle()
        self._line(f"append({self._tuple})")
        if self._at != "p" or self._offset:
            self._line(f"p = {self._place(self._offset)}")
        self._at, self._offset = "p", 0

    def _unknown_row(self) -> None:
        size, at = self._null_bytes, 0
        counted = [self._is_counted(layout) for layout in self._layouts]
        if size <= _NARROW_BYTES or any(counted):
            self._line(f"nulls = from_bytes(buffer[p:p + {size}], 'little')")
        self._line("row = p")
        self._line(f"p += {size}")
        while at < len(self._layouts):
            stop = at + 1
            while counted[at] and stop < len(self._layouts) and counted[stop]:
                stop += 1
            if counted[at]:
                self._count(at, stop)
            else:
                self._one_column(at)
            at = stop
        self._line(f"append({self._tuple})")

    def _is_counted(self, layout: _Layout) -> bool:
        return layout.number is None and not layout.prefix

    def _count(self, at: int, stop: int) -> None:
        """Step over columns of fixed width that nobody follows: of each width, so many as are not NULL."""
        of_size: dict[int, int] = {}  # bit masks of those that may be NULL
        for index in range(at, stop):
            layout = self._layouts[index]
            if layout.size and layout.is_nullable:
                of_size[layout.size] = of_size.get(layout.size, 0) | 1 << index
        whole = sum(layout.size for layout in self._layouts[at:stop])
        absent = "".join(f" - {size} * (nulls & {mask}).bit_count()" for size, mask in of_size.items())
        if whole:
            self._line(f"p += {whole}{absent}")

    def _one_column(self, index: int) -> None:
        layout, outer = self._layouts[index], self._indent
        if layout.is_nullable:
            is_null = f"nulls & {1 << index}"
            if self._null_bytes > _NARROW_BYTES:
                is_null = f"buffer[row + {index >> 3}] & {1 << (index & 7)}"
            if layout.number is None:
                self._line(f"if not {is_null}:")
            else:
                self._line(f"if {is_null}: v{layout.number} = None")
                self._line("else:")
            self._indent = outer + "    "
        self._column(layout)
        self._settle()
        if self._at != "p" or self._offset:
            self._line(f"p = {self._place(self._offset)}")
        elif layout.is_nullable and not layout.size and not layout.prefix:
            self._line("pass")
        self._at, self._offset = "p", 0
        self._indent = outer

    def _column(self, layout: _Layout) -> None:
        if not layout.prefix:
            self._run.append((layout.codes, layout.fields, layout.size))
            self._after.extend(layout.before)
            if layout.value and layout.value != f"v{layout.number}":
                self._after.append(f"v{layout.number} = {layout.value}")
            return
        if layout.number is None and layout.prefix <= 2 and not any(fields for _, fields, _ in self._run):
            self._step_over(layout.prefix)
            return
        self._run.append(_PREFIXES[layout.prefix])
        self._settle()
        length = {1: "n", 2: "n", 3: "n + (n2 << 16)", 4: "n"}[layout.prefix]
        if self._offset:
            self._line(f"{self._at} += {self._offset}")
        if layout.number is None:
            self._line(f"{self._at} += {length}")
        else:
            start, stop = self._at, "q" if self._at == "p" else "p"
            self._line(f"{stop} = {start} + {length}")
            value = layout.careful if self._is_careful and layout.careful else layout.value
            self._line(f"v{layout.number} = {value.format(raw=f'buffer[{start}:{stop}]')}")
            self._at = stop
        self._offset = 0

    def _step_over(self, prefix: int) -> None:
        # Nothing to unpack before the length: indexing is cheaper than a Struct of one field.
        self._settle()
        length = f"buffer[{self._place(self._offset)}]"
        if prefix == 2:
            length = f"({length} | buffer[{self._place(self._offset + 1)}] << 8)"
        self._line(f"{self._at} += {self._offset + prefix} + {length}")
        self._offset = 0

    def _settle(self) -> None:
        """Write the fixed-width columns gathered so far."""
        while self._run and not self._run[0][1]:
            self._offset += self._run.pop(0)[2]
        trailing = 0
        while self._run and not self._run[-1][1]:
            trailing += self._run.pop()[2]
        size = sum(run[2] for run in self._run)
        fields = [field for run in self._run for field in run[1]]
        place = self._place(self._offset)
        if fields:
            codes = "<" + "".join(run[0] or f"{run[2]}x" for run in self._run)
            if codes == "<B":
                self._line(f"{fields[0]} = buffer[{place}]")
            else:
                unpack = f"unpack{len(self._names)}"
                self._names[unpack] = struct.Struct(codes).unpack_from
                self._line(
                    f"{', '.join(fields)}{',' if len(fields) == 1 else ''} = {unpack}(buffer, {place})"
                )
        self._offset += size + trailing
        self._run = []
        for line in self._after:
            self._line(line)
        self._after = []

    def _place(self, offset: int) -> str:
        return f"{self._at} + {offset}" if offset else self._at

    def _line(self, line: str) -> None:
        self._lines.append(self._indent + line)


_MISFITS = (IndexError, struct.error, MalformedJsonError)  # what reading past a row's end comes to
_PREFIXES = {1: ("B", ("n",), 1), 2: ("H", ("n",), 2), 3: ("HB", ("n", "n2"), 3), 4: ("I", ("n",), 4)}


def _packed_length(number: int) -> bytes:
    return bytes((number,)) if number < 251 else b"\xfc" + number.to_bytes(2, "little")
