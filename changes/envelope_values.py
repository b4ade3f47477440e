"""One value of an envelope, from its JSON to the Python value of docs/types.md: for each column a function.

`own` reads what `envelope_columns` writes. `debezium` reads what Debezium's MySQL connector writes: in its default
form, or with the decimal, binary and time modes that viewtail's form has. Both refuse what the column cannot hold; the
second also what Debezium may have lost (`LostValueError`). No text of an error holds a value.
"""

from __future__ import annotations

import re
import struct
from base64 import b64decode
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import orjson

from changes.envelope_columns import characters_of, integers_of, is_bit, is_day, is_single, is_year
from changes.envelope_schemas import Schema, escaped_label
from changes.json_text import retold
from changes.tables import Column, Kind

Read: TypeAlias = Callable[[Any], Any]

# What a reader of a value may raise for JSON that is not what it takes.
NOT_TAKEN = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, struct.error)


class LostValueError(Exception):
    """What the column held cannot be told from it any more. The message completes 'column NAME ...'."""


# --- Values as viewtail writes them ---


def own(column: Column) -> Read:
    """Reads a value that is not None. Raises one of NOT_TAKEN for what is none of the column's."""
    if column.kind is Kind.INTEGER:
        if not is_bit(column):
            return _integer(column)
        return _flag if column.length == 1 else _bits(column)
    return _OWN[column.kind](column)


def _integer(column: Column) -> Read:
    low, high = integers_of(column)
    gap = range(1, 1901) if is_year(column) else ()

    def read(found: Any) -> int:
        if found.__class__ is not int or not low <= found <= high or found in gap:
            raise ValueError
        return int(found)

    return read


def _flag(found: Any) -> int:
    return _FLAGS[found] if found.__class__ is bool else _no()


def _bits(column: Column) -> Read:
    size, above = -(-column.length // 8), 1 << column.length

    def read(found: Any) -> int:
        raw = _base64(found)
        value = int.from_bytes(raw, "little")
        return value if len(raw) == size and value < above else _no()

    return read


def decimal_pattern(column: Column) -> re.Pattern[str]:
    """Of the text of a column's values; neither server has a negative zero."""
    whole = (column.precision or _MOST_DIGITS) - column.scale
    digits = f"(?:0|[1-9][0-9]{{0,{whole - 1}}})" if whole else "0"
    fraction = rf"\.[0-9]{{{column.scale}}}" if column.scale else ""
    return re.compile(rf"(?!-[0.]*\Z)-?{digits}{fraction}")


def _decimal(column: Column) -> Read:
    matches = decimal_pattern(column).fullmatch
    return lambda found: Decimal(found) if matches(found) else _no()


def _single(_: Column) -> Read:
    pack, unpack = _SINGLE.pack, _SINGLE.unpack

    def read(found: Any) -> float:
        if found.__class__ is not float and found.__class__ is not int:
            raise TypeError
        (value,) = unpack(pack(found))
        return float(value)

    return read


def _double(_: Column) -> Read:
    def read(found: Any) -> float:
        if found.__class__ is float:
            return float(found)
        if found.__class__ is int and float(found) == found:
            return float(found)
        raise TypeError

    return read


def _text(column: Column) -> Read:
    longest = characters_of(column)

    def read(found: Any) -> str:
        if found.__class__ is not str or len(found) > longest:
            raise ValueError
        return str(found)

    return read


def _label(column: Column) -> Read:
    return _Labels({label: label for label in column.labels}).__getitem__


def _labels(column: Column) -> Read:
    return _Sets({label: label for label in column.labels}).__getitem__


class _Labels(dict[str, str]):
    """By the JSON of a value of ENUM or SET: the value. What is none of the column's raises ValueError.

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
        """The place of the label and the label, among those from `first` on."""
        for at, (shown, label) in enumerate(self.labels.items()):
            if at >= first and self.patterns[at].fullmatch(text):
                return at, label if shown == text else text
        raise ValueError


class _Sets(_Labels):
    """The same of a SET: labels in the column's order."""

    def made(self, text: str) -> str:
        """The value."""
        found, at = [], -1
        for part in text.split(","):
            at, label = self.label(part, at + 1)
            found.append(label)
        return ",".join(found)


def _json(_: Column) -> Read:
    def read(found: Any) -> str:
        if found.__class__ is not str:
            raise TypeError
        orjson.loads(found)
        return str(found)

    return read


def _base64(found: Any) -> bytes:
    if found.__class__ is not str:
        raise TypeError
    return a2b_base64(found, strict_mode=True) if found else b""


def _bytes(column: Column) -> Read:
    is_padded, length = column.declared.lower().startswith("binary"), column.length or _LONGEST

    def read(found: Any) -> bytes:
        raw = _base64(found)
        return raw if len(raw) == length or (len(raw) < length and not is_padded) else _no()

    return read


class _DaysRead(dict[str, str]):
    """By the text of a date: the value. Dates repeat, and a look at the calendar is slow."""

    def __missing__(self, text: str) -> str:
        value = self.made(text)
        if len(self) >= _KEPT:
            self.clear()
        self[text] = value
        return value

    def made(self, text: str) -> str:
        """A day of the calendar."""
        return text if _DATE(text) and is_day(text) else _no()


class _DatesRead(_DaysRead):
    """By the JSON of a DATE: the value."""

    def made(self, text: str) -> str:
        if text.endswith("Z"):
            return super().made(text[:-1])
        return text if _is_no_day(text) else _no()


class _ClocksRead(_DaysRead):
    """By the text of a time of day: itself."""

    def made(self, text: str) -> str:
        return text if _CLOCK(text) else _no()


def _is_no_day(text: str) -> bool:
    """Whether it is a date that never was, as a column may hold it."""
    return bool(_DATE(text)) and text[5:7] <= "12" and text[8:] <= "31" and not is_day(text)


def _moment(column: Column) -> Read:
    scale, end = column.scale, 20 + column.scale if column.scale else 19

    def read(found: Any) -> str:
        mark, rest = found[10], found[19:]
        if mark == "T" and rest == "Z" and not scale:
            return DAYS[found[:10]] + " " + CLOCKS[found[11:19]]
        if mark == "T" and rest[-1] == "Z":
            return f"{DAYS[found[:10]]} {CLOCKS[found[11:19]]}{_fraction(rest[:-1], scale)}"
        # What never was stands there as MySQL has it.
        if mark != " " or len(found) != end or not _is_no_day(found[:10]):
            raise ValueError
        return f"{found[:10]} {CLOCKS[found[11:19]]}{_fraction(rest, scale)}"

    return read


def _fraction(text: str, scale: int) -> str:
    """Of '' or '.5': all digits of the column, after the point."""
    digits = text[1:]
    if text and not (text[0] == "." and digits.isascii() and digits.isdigit() and len(digits) <= scale):
        raise ValueError
    return f".{digits.ljust(scale, '0')}" if scale else ""


def _time(column: Column) -> Read:
    scale = column.scale

    def read(found: Any) -> str:
        parts = _TIME(found)
        if parts is None:
            raise ValueError
        sign, hours, rest, fraction, zone = parts.groups()
        if zone:
            return (
                f"{hours}{rest}{_fraction(fraction, scale)}" if not sign and hours < "24" and len(hours) == 2 else _no()
            )
        is_outside = sign or len(hours) > 2 or hours >= "24"
        if not is_outside or int(hours) > _MOST_HOURS or (len(hours) > 2 and hours[0] == "0"):
            raise ValueError
        return str(found) if len(fraction) == (scale + 1 if scale else 0) else _no()

    return read


def _geometry(_: Column) -> Read:
    def read(found: Any) -> bytes:
        srid, wkb = found["srid"], b64decode(found["wkb"], validate=True)
        if len(wkb) < _SHORTEST_WKB or wkb[0] != 1 or not 1 <= int.from_bytes(wkb[1:5], "little") <= _SHAPES:
            raise ValueError
        if srid is not None and (srid.__class__ is not int or not -(1 << 31) <= srid < 1 << 32):
            raise ValueError
        return (srid & 0xFFFFFFFF if srid else 0).to_bytes(4, "little") + wkb

    return read


def _vector(column: Column) -> Read:
    found_size = re.search("[0-9]+", column.declared)
    most = int(found_size[0]) if found_size else _LONGEST

    def read(found: Any) -> bytes:
        if found.__class__ is not list or not 0 < len(found) <= most:
            raise ValueError
        if any(value.__class__ is not float and value.__class__ is not int for value in found):
            raise TypeError
        return struct.pack(f"<{len(found)}f", *found)

    return read


def _no() -> Any:
    raise ValueError


_FLAGS = {False: 0, True: 1}
_SINGLE = struct.Struct("<f")
_MOST_DIGITS = 65  # of a DECIMAL
_LONGEST = (1 << 32) - 1  # bytes of a LONGBLOB
_KEPT = 10_000
_DATE = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}").fullmatch
_CLOCK = re.compile("(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]").fullmatch
_TIME = re.compile(r"(-?)([0-9]{2,3})((?::[0-5][0-9]){2})((?:\.[0-9]{1,6})?)(Z?)").fullmatch
_MOST_HOURS = 838
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


# --- Values as Debezium writes them ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """What is known of the connector that wrote a message, beside the message's payload."""

    is_snapshot: bool = False  # the row was read with a SELECT
    # The row's field of each column, where the message carries its schema.
    fields: Mapping[str, Schema] | None = None
    # Kafka Connect's replace.null.with.default, on unless somebody turned it off.
    shows_default_for_null: bool = True


def debezium(column: Column, writer: Writer) -> Read:
    """Reads a value or None. Raises LostValueError, or one of NOT_TAKEN for what is none of the column's."""
    field = None if writer.fields is None else writer.fields.get(column.name, {})
    make = _DEBEZIUM.get(column.kind)
    read = own(column) if make is None else make(column, field, writer)
    lost = _lost_values(column, read, field, writer)

    def read_value(found: Any) -> Any:
        if found is None:
            if column.is_nullable:
                return None
            raise LostValueError("is null, and the column is NOT NULL")
        value = read(found)
        if lost and value in lost:
            raise LostValueError(lost[value])
        return value

    return read_value


def is_alike(column: Column, writer: Writer) -> bool:
    """Whether Debezium writes every value of the column, NULL too, as viewtail does, and loses none."""
    if _lost_values(column, own(column), None if writer.fields is None else writer.fields.get(column.name), writer):
        return False
    if column.kind is Kind.TEXT:
        return column.charset in _UNICODE
    if column.kind is Kind.INTEGER:
        return integers_of(column)[1] < 1 << 63 and not column.declared.lower().startswith("tinyint(1)")
    return column.kind is Kind.DOUBLE


def _lost_values(column: Column, read: Read, field: Schema | None, writer: Writer) -> dict[Any, str]:
    """The values that stand for others too, and the reason that a person is given."""
    default = _default(column, read, field)
    lost: dict[Any, str] = {}
    if column.is_nullable:
        if default is not None and writer.shows_default_for_null:
            lost[default] = (
                "holds its default, which Kafka Connect writes for NULL too: set replace.null.with.default=false for "
                "the connector's converter"
            )
        return lost
    if column.kind in (Kind.DATE, Kind.DATETIME):
        for shown in (_epoch(column), default):
            lost[shown] = "holds a date that Debezium writes for a zero or impossible date too"
    elif column.kind is Kind.TIMESTAMP and default is not None:
        lost[default] = "holds its default, which Debezium writes for a zero date too"
        lost.pop(_zero(column), None)
    return lost


def _default(column: Column, read: Read, field: Schema | None) -> Any:
    """The value of the column's default, None where there is none: as the schema says, else as the table does."""
    try:
        if field is not None:
            return read(field["default"]) if "default" in field else None
        return None if column.default is None else _described_default(column, column.default)
    except (*NOT_TAKEN, LostValueError):
        return None  # an expression, which Debezium leaves out


def _described_default(column: Column, text: str) -> Any:
    if column.kind is Kind.INTEGER:
        return int(text[2:-1], 2) if is_bit(column) else int(text)
    if column.kind is Kind.DECIMAL:
        return Decimal(text)
    if column.kind is Kind.FLOAT:
        return _SINGLE.unpack(_SINGLE.pack(float(text)))[0]
    if column.kind is Kind.DOUBLE:
        return float(text)
    if column.kind is Kind.BYTES:
        return bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    if text.upper().startswith("CURRENT_TIMESTAMP"):
        return _epoch(column) if column.kind is Kind.DATETIME else _zero(column)
    return text


def _epoch(column: Column) -> str:
    if column.kind is Kind.DATE:
        return "1970-01-01"
    return "1970-01-01 00:00:00" + _fraction("", column.scale)


def _zero(column: Column) -> str:
    return "0000-00-00 00:00:00" + _fraction("", column.scale)


def _debezium_integer(column: Column, _field: Schema | None, _writer: Writer) -> Read:
    read = own(column)
    if is_bit(column):
        return read
    if is_year(column):  # YEAR 0 is 1900 in rows from the binlog
        return lambda found: 0 if found == 1900 else read(found)
    if column.declared.lower().startswith("tinyint(1)"):  # Debezium read BOOL in the table's definition
        return lambda found: _FLAGS[found] if found.__class__ is bool else read(found)
    if integers_of(column)[1] < 1 << 63:
        return read

    def read_unsigned(found: Any) -> int:
        if found.__class__ is str:  # bigint.unsigned.handling.mode=precise
            found = int.from_bytes(_base64(found), "big", signed=True)
        elif found.__class__ is int and -(1 << 63) <= found < 0:
            found += 1 << 64  # as Java's long has it
        return int(read(found))

    return read_unsigned


def _debezium_decimal(column: Column, field: Schema | None, _writer: Writer) -> Read:
    read, unscaled = own(column), _unscaled(column)
    is_exact_in_double = column.precision <= _DOUBLE_DIGITS

    def read_number(found: Any) -> Decimal:
        """Of decimal.handling.mode=double, or of the converter's decimal.format=NUMERIC."""
        if found.__class__ is not int and found.__class__ is not float:
            raise TypeError
        if not is_exact_in_double and found.__class__ is float:
            raise LostValueError("holds a number that is not exact: set decimal.handling.mode=string for the connector")
        value = Decimal(read(f"{Decimal(repr(found)):.{column.scale}f}"))
        return value if value == Decimal(repr(found)) else _no()

    def read_decimal(found: Any) -> Decimal:
        if found.__class__ is not str:
            return read_number(found)
        if field is not None:
            is_unscaled = field.get("name") == _CONNECT_DECIMAL
        elif column.scale:
            is_unscaled = "." not in found
        else:
            return _told_apart(found, read, unscaled)
        return Decimal(unscaled(found) if is_unscaled else read(found))

    return read_decimal


def _told_apart(found: str, read: Read, unscaled: Read) -> Decimal:
    """Digits may be a number, and bytes in base64 that are another: of a column without digits after the point."""
    meanings = []
    for attempt in (read, unscaled):
        try:
            meanings.append(attempt(found))
        except NOT_TAKEN:
            pass
    if len(meanings) > 1 and meanings[0] != meanings[1]:
        raise LostValueError(
            "holds digits that mean another number in each decimal.handling.mode: set schemas.enable=true for the "
            "connector's converter"
        )
    return Decimal(meanings[0])


def _unscaled(column: Column) -> Read:
    """Reads org.apache.kafka.connect.data.Decimal: the unscaled number, big-endian, in as few bytes as can be."""
    most = 10**column.precision

    def read(found: Any) -> Decimal:
        raw = _base64(found)
        value = int.from_bytes(raw, "big", signed=True)
        if not -most < value < most or len(raw) != (value + (value < 0)).bit_length() // 8 + 1:
            raise ValueError
        return Decimal((value < 0, tuple(map(int, str(abs(value)))), -column.scale))

    return read


def _debezium_float(column: Column, _field: Schema | None, writer: Writer) -> Read:
    read = own(column)
    if not writer.is_snapshot or not is_single(column):
        return read

    def read_rounded(_: Any) -> float:
        raise LostValueError("holds a FLOAT that Debezium's snapshot rounded to six digits")

    return read_rounded


def _debezium_text(column: Column, _field: Schema | None, _writer: Writer) -> Read:
    read = own(column)
    if column.charset in _UNICODE:
        return read

    def read_text(found: Any) -> str:
        value = str(read(found))
        if "\ufffd" in value:
            raise LostValueError("holds a character that Debezium could not read")
        return value

    return read_text


def _debezium_label(column: Column, _field: Schema | None, writer: Writer) -> Read:
    return _Labels(_shown_labels(column, writer)).__getitem__


def _debezium_labels(column: Column, _field: Schema | None, writer: Writer) -> Read:
    return _Sets(_shown_labels(column, writer)).__getitem__


def _shown_labels(column: Column, writer: Writer) -> dict[str, str]:
    return {label if writer.is_snapshot else escaped_label(label): label for label in column.labels}


def _debezium_date(column: Column, _field: Schema | None, _writer: Writer) -> Read:
    read = own(column)

    def read_date(found: Any) -> str:
        return date.fromordinal(_EPOCH_DAY + found).isoformat() if found.__class__ is int else str(read(found))

    return read_date


def _micros(column: Column, field: Schema | None, default: str) -> Callable[[int], int]:
    """What turns a time as a number into microseconds, by the name of its schema."""
    name = default if field is None else str(field.get("name", "")).rpartition(".")[2]
    times, over = next((unit for start, unit in _UNITS.items() if name.startswith(start)), (1000, 1))
    step = 10 ** (6 - column.scale)

    def micros(number: int) -> int:
        value, rest = divmod(number * times, over)
        return int(_no()) if rest or value % step else value

    return micros


def _debezium_time(column: Column, field: Schema | None, _writer: Writer) -> Read:
    read, micros = own(column), _micros(column, field, "MicroTime")

    def read_time(found: Any) -> str:
        if found.__class__ is not int:
            return str(read(found))
        value = micros(found)
        seconds, fraction = divmod(abs(value), 1_000_000)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        if hour > _MOST_HOURS:
            raise ValueError
        digits = f".{fraction:06d}"[: column.scale + 1] if column.scale else ""
        return f"{'-' * (value < 0)}{hour:02d}:{minute:02d}:{second:02d}{digits}"

    return read_time


def _debezium_datetime(column: Column, field: Schema | None, _writer: Writer) -> Read:
    read = own(column)
    micros = _micros(column, field, "Timestamp" if column.scale <= _MILLIS else "MicroTimestamp")

    def read_datetime(found: Any) -> str:
        if found.__class__ is not int:
            return str(read(found))
        moment = _EPOCH + timedelta(microseconds=micros(found))
        return moment.isoformat(" ", "microseconds")[: 20 + column.scale if column.scale else 19]

    return read_datetime


def _debezium_timestamp(column: Column, _field: Schema | None, _writer: Writer) -> Read:
    read, epoch, zero = own(column), _epoch(column), _zero(column)

    def read_timestamp(found: Any) -> str:
        value = str(read(found))
        return zero if value == epoch else value  # no TIMESTAMP is that early

    return read_timestamp


_DOUBLE_DIGITS = 15  # decimal digits that every double keeps
_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_UNICODE = frozenset(("utf8mb3", "utf8mb4", "ucs2", "utf16", "utf16le", "utf32", "gb18030"))
_UNITS = {"Micro": (1, 1), "Nano": (1, 1000)}  # a schema's name: microseconds of a unit; others are milliseconds
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)
_MILLIS = 3
_DEBEZIUM: dict[Kind, Callable[[Column, Schema | None, Writer], Read]] = {
    Kind.INTEGER: _debezium_integer,
    Kind.DECIMAL: _debezium_decimal,
    Kind.FLOAT: _debezium_float,
    Kind.TEXT: _debezium_text,
    Kind.ENUM: _debezium_label,
    Kind.SET: _debezium_labels,
    Kind.DATE: _debezium_date,
    Kind.TIME: _debezium_time,
    Kind.DATETIME: _debezium_datetime,
    Kind.TIMESTAMP: _debezium_timestamp,
    Kind.JSON: lambda *_: retold,
}
