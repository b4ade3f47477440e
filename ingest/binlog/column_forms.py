"""The binary form of every column type in a row image, and the Python source that turns it into its value.

Values are those that docs/types.md lists, the same that ingest/canonical/rows.py selects. Source of the forms:
sql/field.cc (pack, unpack), sql-common/my_time.cc, strings/decimal.cc of MySQL 9.
"""

from __future__ import annotations

from codecs import charmap_decode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

from ingest.binlog import column_types as types
from ingest.binlog import mariadb_types
from ingest.binlog.collations import charset_of
from ingest.binlog.column_types import BLOBS, COMPRESSED, INTEGER_BYTES
from ingest.binlog.json_binary import decimal_size, decimal_text, to_text
from ingest.binlog.stream_errors import BACKFILL_TABLE
from ingest.binlog.table_fit import is_text_in_binary, kind_of, labels_of
from ingest.binlog.table_map import MapColumn
from ingest.charsets import decoder_of, single_byte_table, unreadable_where_invalid
from viewtail.changes.errors import TableUnreadableError
from viewtail.changes.masks import careful_mask_of, mask_of
from viewtail.changes.tables import Column, Kind

_LONG = BLOBS | {types.JSON, types.GEOMETRY, types.VECTOR, types.BLOB_COMPRESSED}  # length in `metadata` bytes
_EPOCH = datetime(1970, 1, 1)  # UTC, as the sessions of canonical rows are
_MEMO_SIZE = 20_000  # values a memo may hold before it starts again
_INTEGER_CODES = {types.TINY: "b", types.SHORT: "h", types.LONG: "i", types.LONGLONG: "q"}
_SIZES = INTEGER_BYTES | {
    types.FLOAT: 4, types.DOUBLE: 8, types.YEAR: 1, types.DATE: 3, types.NEWDATE: 3, types.TIME: 3, types.DATETIME: 8,
    types.TIMESTAMP: 4, types.NULL: 0,
}  # fmt: skip
_WHOLE_SECONDS = {types.TIME2: 3, types.DATETIME2: 5, types.TIMESTAMP2: 4}  # bytes beside those of the fraction
# Bytes of a length: codes, variables, size.
PREFIXES = {1: ("B", ("n",), 1), 2: ("H", ("n",), 2), 3: ("HB", ("n", "n2"), 3), 4: ("I", ("n",), 4)}
# What the expressions of every column may refer to.
NAMES: dict[str, Any] = {
    "charmap": charmap_decode,
    "json_text": to_text,
    "from_bytes": int.from_bytes,
    "uncompressed": mariadb_types.uncompressed,
    "D1": tuple(f"{number // 10}" for number in range(100)),
    "D2": tuple(f"{number:02d}" for number in range(100)),
    "D3": tuple(f"{number:03d}" for number in range(1000)),
}


@dataclass(slots=True, kw_only=True)
class Layout:
    """A column's place in a row, and the code that turns it into its value.

    Fixed width: `codes` unpack it into the variables `fields`. Variable width: `prefix` bytes of length, then the
    bytes, which `value` finds as {raw}. `value` is an expression, `before` are statements that lead to it.
    """

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


def layout_of(column: MapColumn, described: Column | None, number: int | None, is_json_raw: bool) -> Layout:
    """Lay a column out; `number` and `described` are None where nobody follows it.

    Raises TableUnreadableError where the table map says of it what cannot be.
    """
    layout = Layout(number=number, is_nullable=column.is_nullable, names={})
    type_, metadata = column.type, column.metadata
    if type_ in _LONG:
        layout.prefix = metadata
        if metadata not in PREFIXES:
            raise _impossible(column, f"length in {metadata} bytes")
    elif type_ in (types.VARCHAR, types.VAR_STRING, types.STRING, types.VARCHAR_COMPRESSED):
        layout.prefix = 1 if metadata < 256 else 2
    else:
        layout.size = _fixed_size(type_, metadata)
    if described is not None:
        _read(layout, column, described.stored, is_json_raw)
        if described.mask is not None and not (is_json_raw and described.stored.kind is Kind.JSON):
            _masked(layout, described)
    return layout


def _read(layout: Layout, column: MapColumn, described: Column, is_json_raw: bool) -> None:
    """Let a layout turn the column's bytes into its value."""
    kind = kind_of(column)
    if is_text_in_binary(column, described):
        _text_in_binary(layout, column, mariadb_types.TEXTS[described.declared])
        return
    _MAKERS[Kind.BYTES if is_json_raw and kind is Kind.JSON else kind](layout, column)
    if column.type in COMPRESSED:
        layout.value = layout.value.replace("{raw}", "uncompressed({raw})")
        layout.careful = layout.careful.replace("{raw}", "uncompressed({raw})")


def _masked(layout: Layout, described: Column) -> None:
    """Let it make the masked value; one that is not shown is not even read."""
    assert described.mask is not None
    if described.mask.how == "null":
        layout.value, layout.careful, layout.before = "None", "", ()
        if not layout.prefix:
            layout.codes, layout.fields = "", ()
        return
    if (made := layout.names.get(f"make{layout.number}")) is not None and layout.value == f"v{layout.number}":
        mask_made = mask_of(described)
        _remembered(layout, layout.codes, lambda raw: mask_made(made(raw)))
        return
    mask = f"mask{layout.number}"
    layout.names |= {mask: mask_of(described), f"careful_{mask}": careful_mask_of(described)}
    layout.value = f"{mask}({layout.value or f'v{layout.number}'})"
    layout.careful = layout.careful and f"careful_{mask}({layout.careful})"


def _impossible(column: MapColumn, what: str) -> TableUnreadableError:
    return TableUnreadableError(
        f"column {column.name}: the table map says {column.type_name} with {what}, which cannot be. Look at the binlog "
        f"with mysqlbinlog -v, then {BACKFILL_TABLE}"
    )


def _fixed_size(type_: int, metadata: int) -> int:
    if type_ in (types.ENUM, types.SET):
        return metadata
    if type_ == types.BIT:
        return (metadata + 7) // 8
    if type_ == types.NEWDECIMAL:
        return decimal_size(metadata >> 8, metadata & 0xFF)
    if type_ in _WHOLE_SECONDS:
        return _WHOLE_SECONDS[type_] + (metadata + 1) // 2
    return _SIZES[type_]


def _integer(layout: Layout, column: MapColumn) -> None:
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


def _number(layout: Layout, column: MapColumn) -> None:
    layout.codes, layout.fields = "f" if column.type == types.FLOAT else "d", (f"v{layout.number}",)


def _remembered(layout: Layout, codes: str, make: Callable[[Any], Any]) -> None:
    """Values are made once for each raw bytes (or number), until there are so many that all are forgotten."""
    memo: dict[Any, Any] = {}

    def remember(raw: Any) -> Any:
        if len(memo) >= _MEMO_SIZE:
            memo.clear()
        value_made = memo[raw] = make(raw)
        return value_made

    value, raw = f"v{layout.number}", f"v{layout.number}r"
    layout.names |= {f"get{layout.number}": memo.get, f"make{layout.number}": remember}
    layout.codes, layout.fields = codes, (raw,)
    layout.before = (
        f"{value} = get{layout.number}({raw})",
        f"if {value} is None: {value} = make{layout.number}({raw})",
    )
    layout.value = value


def _decimal(layout: Layout, column: MapColumn) -> None:
    precision, scale = column.metadata >> 8, column.metadata & 0xFF
    _remembered(layout, f"{layout.size}s", lambda raw: Decimal(decimal_text(raw, precision, scale)))


def _moment(layout: Layout, column: MapColumn) -> None:
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


def _enum(layout: Layout, column: MapColumn) -> None:
    value = f"v{layout.number}"
    if layout.size not in (1, 2):
        raise _impossible(column, f"numbers of {layout.size} bytes")
    layout.names[f"labels{layout.number}"] = ("", *labels_of(column))
    layout.codes, layout.fields = "BH"[layout.size - 1], (value,)
    layout.value = f"labels{layout.number}[{value}]"


def _set(layout: Layout, column: MapColumn) -> None:
    labels = labels_of(column)

    def make(raw: bytes) -> str:
        number = int.from_bytes(raw, "little")
        if number >> len(labels):
            raise IndexError("a SET value has more members than labels")
        return ",".join(label for place, label in enumerate(labels) if number >> place & 1)

    _remembered(layout, f"{layout.size}s", make)


def _text(layout: Layout, column: MapColumn) -> None:
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
    layout.names[f"careful{layout.number}"] = unreadable_where_invalid(read, column.name)
    layout.careful = f"careful{layout.number}({{raw}})"


def _text_in_binary(layout: Layout, column: MapColumn, text: Callable[[bytes], str]) -> None:
    layout.names[f"text{layout.number}"] = text
    layout.value = f"text{layout.number}(bytes({{raw}}).ljust({column.metadata}, b'\\0'))"


def _json(layout: Layout, column: MapColumn) -> None:
    layout.value = "json_text(bytes({raw}))"
    careful = unreadable_where_invalid(lambda raw: to_text(bytes(raw)), column.name)
    layout.names[f"careful{layout.number}"] = careful
    layout.careful = f"careful{layout.number}({{raw}})"


def _bytes(layout: Layout, column: MapColumn) -> None:
    layout.value = "bytes({raw})"
    if column.type == types.STRING:
        # BINARY(n) is stored without its trailing zeros.
        layout.value = f"bytes({{raw}}).ljust({column.metadata}, b'\\0')"


_MAKERS: dict[Kind, Callable[[Layout, MapColumn], None]] = {
    Kind.INTEGER: _integer, Kind.FLOAT: _number, Kind.DOUBLE: _number, Kind.DECIMAL: _decimal,
    Kind.DATE: lambda layout, _: _remembered(layout, "3s", _date_text),
    Kind.TIME: lambda layout, column: _remembered(layout, f"{layout.size}s", partial(_time_text, column.metadata)),
    Kind.DATETIME: _moment, Kind.TIMESTAMP: _moment, Kind.ENUM: _enum, Kind.SET: _set,
    Kind.TEXT: _text, Kind.JSON: _json, Kind.BYTES: _bytes, Kind.GEOMETRY: _bytes, Kind.VECTOR: _bytes,
}  # fmt: skip


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
    return str(_EPOCH + timedelta(seconds=seconds)) if seconds else "0000-00-00 00:00:00"


def _time_text(digits: int, raw: bytes) -> str:
    fraction_bytes = len(raw) - 3
    number = int.from_bytes(raw, "big") - (0x800000 << 8 * fraction_bytes)
    sign, number = ("-", -number) if number < 0 else ("", number)
    whole, fraction = divmod(number, 1 << 8 * fraction_bytes)
    shown = f"{sign}{whole >> 12 & 1023:02d}:{whole >> 6 & 63:02d}:{whole & 63:02d}"
    if not digits:
        return shown
    return f"{shown}.{fraction:0{2 * fraction_bytes}d}"[: len(shown) + 1 + digits]
