"""Reads one value of an envelope: the JSON that `envelope_columns` makes becomes the Python value of docs/types.md.

Each column has a function, which refuses what the column cannot hold. `debezium_values` has those for Debezium's JSON.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode
from binascii import a2b_base64
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import orjson

from viewtail.changes.envelope_columns import characters_of, integers_of, is_bit, is_day, is_year
from viewtail.changes.tables import Column, Kind

Read: TypeAlias = Callable[[Any], Any]

# What a reader of a value may raise for JSON that is not what it takes.
NOT_TAKEN = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, struct.error)


def own(column: Column) -> Read:
    """Return a function that reads a value other than None. It raises one of NOT_TAKEN for none of the column's."""
    if column.kind is Kind.INTEGER:
        if not is_bit(column):
            return _integer(column)
        return _flag if column.length == 1 else _bits(column)
    return _OWN[column.kind](column)


def key_reader(columns: Sequence[Column]) -> Callable[[bytes | None], tuple[Any, ...]]:
    """Return a function that reads a message's key, with or without its schema: the values of these columns.

    It raises one of NOT_TAKEN for any other key.
    """
    reads = [(column.name, own(column)) for column in columns]

    def read(text: bytes | None) -> tuple[Any, ...]:
        key = orjson.loads(text or b"")
        key = key.get("payload", key)
        return tuple([read_one(key[name]) for name, read_one in reads])

    return read


def _integer(column: Column) -> Read:
    low, high = integers_of(column)
    gap = range(1, 1901) if is_year(column) else ()

    def read(parsed: Any) -> int:
        if parsed.__class__ is not int or not low <= parsed <= high or parsed in gap:
            raise ValueError
        return int(parsed)

    return read


def _flag(parsed: Any) -> int:
    return int(parsed) if parsed.__class__ is bool else refuse()


def _bits(column: Column) -> Read:
    size, above = -(-column.length // 8), 1 << column.length

    def read(text: Any) -> int:
        raw = bytes_of(text)
        value = int.from_bytes(raw, "little")
        return value if len(raw) == size and value < above else refuse()

    return read


def decimal_pattern(column: Column) -> re.Pattern[str]:
    """Return the pattern of a column's values as text; neither server has a negative zero."""
    whole = (column.precision or _MOST_DIGITS) - column.scale
    digits = f"(?:0|[1-9][0-9]{{0,{whole - 1}}})" if whole else "0"
    fraction = rf"\.[0-9]{{{column.scale}}}" if column.scale else ""
    return re.compile(rf"(?!-[0.]*\Z)-?{digits}{fraction}")


def _decimal(column: Column) -> Read:
    matches = decimal_pattern(column).fullmatch
    return lambda text: Decimal(text) if matches(text) else refuse()


def _single(_: Column) -> Read:
    pack, unpack = SINGLE.pack, SINGLE.unpack

    def read(parsed: Any) -> float:
        if parsed.__class__ is not float and parsed.__class__ is not int:
            raise TypeError
        (value,) = unpack(pack(parsed))
        return float(value)

    return read


def _double(_: Column) -> Read:
    def read(parsed: Any) -> float:
        if parsed.__class__ is float:
            return float(parsed)
        if parsed.__class__ is int and float(parsed) == parsed:
            return float(parsed)
        raise TypeError

    return read


def _text(column: Column) -> Read:
    longest = characters_of(column)

    def read(text: Any) -> str:
        if text.__class__ is not str or len(text) > longest:
            raise ValueError
        return str(text)

    return read


def _label(column: Column) -> Read:
    return Labels({label: label for label in column.labels}).__getitem__


def _labels(column: Column) -> Read:
    return Sets({label: label for label in column.labels}).__getitem__


class Labels(dict[str, str]):
    """Maps the JSON of a value of ENUM or SET to the value. One that is none of the column's raises ValueError.

    Args:
        labels: as they stand in a message: as they are.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__({"": ""})
        self.labels = labels
        # The server has '?' for each character of a label that its information_schema cannot show.
        self.patterns = [re.compile(re.escape(label).replace(r"\?", "."), re.DOTALL) for label in labels]

    def __missing__(self, text: str) -> str:
        value = self.made(text)
        if len(self) < _KEPT:
            self[text] = value
        return value

    def made(self, text: str) -> str:
        """The value, where it is one label."""
        return self.label(text, 0)[1]

    def label(self, text: str, first: int) -> tuple[int, str]:
        """Return the place of the label and the label, among those from `first` on."""
        for at, (shown, label) in enumerate(self.labels.items()):
            if at >= first and self.patterns[at].fullmatch(text):
                return at, label if shown == text else text
        raise ValueError


class Sets(Labels):
    """Maps the JSON of a value of SET to the value: labels in the column's order."""

    def made(self, text: str) -> str:
        """The value."""
        labels, at = [], -1
        for part in text.split(","):
            at, label = self.label(part, at + 1)
            labels.append(label)
        return ",".join(labels)


class MissingFieldError(ValueError):
    """A related row lacks a column. The text is its name, behind those of the relations that lead to it."""


def _json(column: Column) -> Read:
    require = _requires(column.fields) if column.fields else None

    def read(text: Any) -> str:
        if text.__class__ is not str:
            raise TypeError
        parsed = orjson.loads(text)
        if require is not None:
            require(parsed)
        return str(text)

    return read


def _requires(fields: Sequence[Column], path: str = "") -> Callable[[Any], None]:
    """Return a function that raises MissingFieldError for a parsed row, or rows, without one of these columns."""
    names = {field.name for field in fields}
    below = [(field.name, _requires(field.fields, f"{path}{field.name}.")) for field in fields if field.fields]

    def require(parsed: Any) -> None:
        for row in parsed if isinstance(parsed, list) else (parsed,):
            if row is None:
                continue
            if not names <= row.keys():
                raise MissingFieldError(", ".join(f"{path}{name}" for name in sorted(names - row.keys())))
            for name, of_row in below:
                of_row(row[name])

    return require


def bytes_of(text: Any) -> bytes:
    """Decode base64."""
    if text.__class__ is not str:
        raise TypeError
    return a2b_base64(text, strict_mode=True) if text else b""


def _bytes(column: Column) -> Read:
    is_padded, length = column.declared.lower().startswith("binary"), column.length or _LONGEST

    def read(text: Any) -> bytes:
        raw = bytes_of(text)
        return raw if len(raw) == length or (len(raw) < length and not is_padded) else refuse()

    return read


class _DaysRead(dict[str, str]):
    """Maps the text of a date to the value. Dates repeat, and a look at the calendar is slow."""

    def __missing__(self, text: str) -> str:
        value = self.made(text)
        if len(self) >= _KEPT:
            self.clear()
        self[text] = value
        return value

    def made(self, text: str) -> str:
        """A day of the calendar."""
        return text if _DATE(text) and is_day(text) else refuse()


class _DatesRead(_DaysRead):
    """Maps the JSON of a DATE to the value."""

    def made(self, text: str) -> str:
        if text.endswith("Z"):
            return super().made(text[:-1])
        return text if _is_no_day(text) else refuse()


class _ClocksRead(_DaysRead):
    """Maps the text of a time of day to itself."""

    def made(self, text: str) -> str:
        return text if _CLOCK(text) else refuse()


def _is_no_day(text: str) -> bool:
    """Return whether the text is a date that never was, as a column may hold it."""
    return bool(_DATE(text)) and text[5:7] <= "12" and text[8:] <= "31" and not is_day(text)


def _moment(column: Column) -> Read:
    scale, end = column.scale, 20 + column.scale if column.scale else 19

    def read(text: Any) -> str:
        mark, rest = text[10], text[19:]
        if mark == "T" and rest == "Z" and not scale:
            return DAYS[text[:10]] + " " + CLOCKS[text[11:19]]
        if mark == "T" and rest[-1] == "Z":
            return f"{DAYS[text[:10]]} {CLOCKS[text[11:19]]}{fraction_of(rest[:-1], scale)}"
        # What never was stands there as MySQL has it.
        if mark != " " or len(text) != end or not _is_no_day(text[:10]):
            raise ValueError
        return f"{text[:10]} {CLOCKS[text[11:19]]}{fraction_of(rest, scale)}"

    return read


def fraction_of(text: str, scale: int) -> str:
    """Return all digits of the column behind the point, of '' or '.5'."""
    digits = text[1:]
    if text and not (text[0] == "." and digits.isascii() and digits.isdigit() and len(digits) <= scale):
        raise ValueError
    return f".{digits.ljust(scale, '0')}" if scale else ""


def _time(column: Column) -> Read:
    scale, size = column.scale, column.scale + 1 if column.scale else 0

    def read(text: Any) -> str:
        parts = _TIME(text)
        if parts is None:
            raise ValueError
        sign, hours, rest, fraction, zone = parts.groups()
        is_of_a_day = not sign and len(hours) == 2 and hours < "24"
        if is_of_a_day != bool(zone):
            raise ValueError
        if is_of_a_day:
            return f"{hours}{rest}{fraction_of(fraction, scale)}"
        is_padded = len(hours) > 2 and hours[0] == "0"
        if is_padded or int(hours) > MOST_HOURS or len(fraction) != size:
            raise ValueError
        return str(text)

    return read


def _geometry(_: Column) -> Read:
    def read(parsed: Any) -> bytes:
        srid, wkb = parsed["srid"], b64decode(parsed["wkb"], validate=True)
        if len(wkb) < _SHORTEST_WKB or wkb[0] != 1 or not 1 <= int.from_bytes(wkb[1:5], "little") <= _SHAPES:
            raise ValueError
        if srid is not None and (srid.__class__ is not int or not -(1 << 31) <= srid < 1 << 32):
            raise ValueError
        return (srid & 0xFFFFFFFF if srid else 0).to_bytes(4, "little") + wkb

    return read


def _vector(column: Column) -> Read:
    found_size = re.search("[0-9]+", column.declared)
    most = int(found_size[0]) if found_size else _LONGEST

    def read(parsed: Any) -> bytes:
        if parsed.__class__ is not list or not 0 < len(parsed) <= most:
            raise ValueError
        if any(value.__class__ is not float and value.__class__ is not int for value in parsed):
            raise TypeError
        return struct.pack(f"<{len(parsed)}f", *parsed)

    return read


def refuse() -> Any:
    """Raise the error for a value that is none of the column's."""
    raise ValueError


SINGLE = struct.Struct("<f")
_MOST_DIGITS = 65  # of a DECIMAL
_LONGEST = (1 << 32) - 1  # bytes of a LONGBLOB
_KEPT = 10_000
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
_CLOCK = re.compile("(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]").fullmatch
_TIME = re.compile(r"(-?)([0-9]{2,3})((?::[0-5][0-9]){2})((?:\.[0-9]{1,6})?)(Z?)").fullmatch
MOST_HOURS = 838
_SHORTEST_WKB, _SHAPES = 9, 7  # an empty collection; POINT to GEOMETRYCOLLECTION
DAYS, _DATES, CLOCKS = _DaysRead(), _DatesRead(), _ClocksRead()
_OWN: dict[Kind, Callable[[Column], Read]] = {
    Kind.DECIMAL: _decimal,
    Kind.FLOAT: _single,
    Kind.DOUBLE: _double,
    Kind.TEXT: _text,
    Kind.ENUM: _label,
    Kind.SET: _labels,
    Kind.BYTES: _bytes,
    Kind.DATE: lambda _: _DATES.__getitem__,
    Kind.TIME: _time,
    Kind.DATETIME: _moment,
    Kind.TIMESTAMP: _moment,
    Kind.JSON: _json,
    Kind.GEOMETRY: _geometry,
    Kind.VECTOR: _vector,
}
