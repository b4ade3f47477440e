"""Makes the JSON of a column's values in Debezium's envelope.

The forms are those of Debezium's MySQL connector with decimal.handling.mode=string, binary.handling.mode=base64 and
time.precision.mode=isostring. Where such a form has no place for a value (a zero date, a TIME beyond one day), the
value is the text of docs/types.md. docs/consuming.md lists the differences.
"""

from __future__ import annotations

import re
import struct
from base64 import b64encode
from datetime import date
from json.encoder import encode_basestring
from typing import Any

from viewtail.changes.tables import Column, Kind

quoted = encode_basestring  # a text as JSON, in C


def _bits(column: Column, value: str) -> str:
    if column.length == 1:
        return f"('true' if {value} else 'false')"
    return f"base64_of({value}.to_bytes({-(-column.length // 8)}, 'little'))"


def expression(column: Column, value: str) -> str:
    """Python source of the JSON of a value that is not None; `value` is the name that holds it.

    Its names are those of `NAMESPACE`. What it gives is a str, or a number whose str is its JSON.
    """
    if column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        return _moment(column, value)
    if column.kind is Kind.INTEGER and is_bit(column):
        return _bits(column, value)
    if column.kind is Kind.DECIMAL and column.scale <= _PLAIN_DIGITS:
        return f"'\"' + str({value}) + '\"'"
    if column.kind is Kind.FLOAT and is_single(column):
        return f"shortest({value})"
    if column.kind is Kind.GEOMETRY and is_point(column):
        return f"point({value})"
    return _EXPRESSIONS[column.kind].format(value)


def is_bit(column: Column) -> bool:
    """Return whether the column is BIT(n), one of the kind INTEGER."""
    return column.declared.lower().startswith("bit(")


def integers_of(column: Column) -> tuple[int, int]:
    """The lowest and the highest number of a column of integers."""
    name = re.split("[( ]", column.declared.lower(), maxsplit=1)[0]
    if name == "year":
        return 0, 2155
    bits = _BITS.get(name, 64)
    return (0, (1 << bits) - 1) if column.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def characters_of(column: Column) -> int:
    """Return how many characters a column of texts may have. The server's number for TEXT is no bound in UTF-16."""
    name = re.split("[( ]", column.declared.lower(), maxsplit=1)[0]
    return _TEXTS.get(name) or column.length or _TEXTS["longtext"]


def is_year(column: Column) -> bool:
    """Return whether the column is YEAR, one of the kind INTEGER: 0 or 1901 to 2155."""
    return column.declared.lower().startswith("year")


def is_point(column: Column) -> bool:
    """Return whether the column is POINT: its values have x and y beside them."""
    return column.declared.lower().startswith("point")


def is_single(column: Column) -> bool:
    """Return whether the column is FLOAT without digits: Debezium widens those of FLOAT(M,D) to 8 bytes."""
    return "," not in column.declared


def _moment(column: Column, value: str) -> str:
    if column.kind is Kind.DATE:
        return f"dates[{value}]"
    clock = f"{value}[11:]"
    if (
        column.kind is Kind.DATETIME and column.scale
    ):  # a TIMESTAMP has all digits of the column, a DATETIME those needed
        clock += ".rstrip('0').rstrip('.')"
    return f"('\"' + day + 'T' + {clock} + 'Z\"' if (day := days[{value}[:10]]) else '\"' + {value} + '\"')"


class _Days(dict[str, str]):
    """Maps a date to itself, or to '' if it never was. Dates repeat, and a look at the calendar is slow."""

    def __missing__(self, day: str) -> str:
        if len(self) >= _DAYS_KEPT:
            self.clear()
        self[day] = made = self.made(day, is_day(day))
        return made

    def made(self, day: str, is_known: bool) -> str:
        return day if is_known else ""


class _Dates(_Days):
    """Maps a date to the JSON of a DATE."""

    def made(self, day: str, is_known: bool) -> str:
        return f'"{day}Z"' if is_known else f'"{day}"'


def is_day(text: str) -> bool:
    """Return whether a date is one of the calendar."""
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def base64_of(raw: bytes) -> str:
    """The JSON of bytes."""
    return f'"{b64encode(raw).decode()}"'


def _time(value: str) -> str:
    """Return a time of day as Debezium writes it; any other time, 24:00:00 too, as MySQL shows it."""
    if value[2] == ":" and value < "24":  # with a sign, or three digits of hours, the colon is further back
        return f'"{value.rstrip("0").rstrip(".") if "." in value else value}Z"'
    return f'"{value}"'


def shortest(value: float) -> str:
    """Return the fewest digits that give the same 4-byte float."""
    packed = _SINGLE.pack(value)
    for digits in (6, 7, 8):
        short = float(f"{value:.{digits}g}")
        if _SINGLE.pack(short) == packed:
            return repr(short)
    return repr(float(f"{value:.9g}"))


def _geometry(raw: bytes) -> str:
    (srid,) = _SRID.unpack_from(raw)
    return f'{{"wkb":{base64_of(raw[4:])},"srid":{srid or "null"}}}'


def _point(raw: bytes) -> str:
    srid, x, y = _POINT.unpack(raw)
    return f'{{"x":{x!r},"y":{y!r},"wkb":{base64_of(raw[4:])},"srid":{srid or "null"}}}'


def _vector(raw: bytes) -> str:
    return f"[{','.join([shortest(value) for (value,) in _SINGLE.iter_unpack(raw)])}]"


_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32}
_TEXTS = {"tinytext": 255, "text": 65535, "mediumtext": (1 << 24) - 1, "longtext": (1 << 32) - 1}
_DAYS_KEPT = 10_000
_PLAIN_DIGITS = 6  # up to so many behind the point str() of a Decimal never has an exponent
_SINGLE = struct.Struct("<f")
_SRID = struct.Struct("<i")  # signed, as Debezium reads it
_POINT = struct.Struct("<i5xdd")  # both servers store it in this byte order

NAMESPACE: dict[str, Any] = {
    "quoted": quoted,
    "base64_of": base64_of,
    "days": _Days(),
    "dates": _Dates(),
    "time": _time,
    "shortest": shortest,
    "geometry": _geometry,
    "point": _point,
    "vector": _vector,
}
_EXPRESSIONS = {
    Kind.INTEGER: "{0}",
    Kind.DECIMAL: "f'\"{{{0}:f}}\"'",
    Kind.FLOAT: "repr({0})",
    Kind.DOUBLE: "repr({0})",
    Kind.TEXT: "quoted({0})",
    Kind.ENUM: "quoted({0})",
    Kind.SET: "quoted({0})",
    Kind.JSON: "quoted({0})",
    Kind.BYTES: "base64_of({0})",
    Kind.TIME: "time({0})",
    Kind.GEOMETRY: "geometry({0})",
    Kind.VECTOR: "vector({0})",
}
