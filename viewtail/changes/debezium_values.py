"""Reads one value of a message that Debezium's MySQL connector wrote, as the Python value of docs/types.md.

There is a function for each column. It reads the connector's default form, and the decimal, binary and time modes of
viewtail's own form. It refuses what the column cannot hold, and what Debezium may have lost on the way
(`LostValueError`). No error text contains a value. docs/servers.md lists what is lost, seen or unseen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

from viewtail.changes.envelope_columns import integers_of, is_bit, is_single, is_year
from viewtail.changes.envelope_schemas import Schema, escaped_label
from viewtail.changes.envelope_values import (
    MOST_HOURS,
    NOT_TAKEN,
    SINGLE,
    Labels,
    Read,
    Sets,
    bytes_of,
    fraction_of,
    own,
    refuse,
)
from viewtail.changes.json_text import retold
from viewtail.changes.tables import Column, Kind


class LostValueError(Exception):
    """The column's value cannot be recovered from the message. The text completes 'column NAME ...'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """The facts about the connector that wrote a message, besides the payload."""

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

    def read_value(parsed: Any) -> Any:
        if parsed is None:
            if column.is_nullable:
                return None
            raise LostValueError("is null, and the column is NOT NULL")
        value = read(parsed)
        if lost and value in lost:
            raise LostValueError(lost[value])
        return value

    return read_value


def is_alike(column: Column, writer: Writer) -> bool:
    """Return whether Debezium writes every value of the column, NULL too, as viewtail does, and loses none."""
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
                "the connector's converter; when all messages are written so, set "
                "VIEWTAIL_SOURCE__REPLACE_NULL_WITH_DEFAULT=false"
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
        return SINGLE.unpack(SINGLE.pack(float(text)))[0]
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
    return "1970-01-01 00:00:00" + fraction_of("", column.scale)


def _zero(column: Column) -> str:
    return "0000-00-00 00:00:00" + fraction_of("", column.scale)


def _debezium_integer(column: Column, _field: Schema | None, _writer: Writer) -> Read:
    read = own(column)
    if is_bit(column):
        return read
    if is_year(column):  # YEAR 0 is 1900 in rows from the binlog
        return lambda parsed: 0 if parsed == 1900 else read(parsed)
    if column.declared.lower().startswith("tinyint(1)"):  # Debezium read BOOL in the table's definition
        return lambda parsed: int(parsed) if parsed.__class__ is bool else read(parsed)
    if integers_of(column)[1] < 1 << 63:
        return read

    def read_unsigned(parsed: Any) -> int:
        if parsed.__class__ is str:  # bigint.unsigned.handling.mode=precise
            parsed = int.from_bytes(bytes_of(parsed), "big", signed=True)
        elif parsed.__class__ is int and -(1 << 63) <= parsed < 0:
            parsed += 1 << 64  # as Java's long has it
        return int(read(parsed))

    return read_unsigned


def _debezium_decimal(column: Column, field: Schema | None, _writer: Writer) -> Read:
    read, unscaled = own(column), _unscaled(column)
    is_exact_in_double = column.precision <= _DOUBLE_DIGITS

    def read_number(number: Any) -> Decimal:
        """Read a number of decimal.handling.mode=double, or of the converter's decimal.format=NUMERIC."""
        if number.__class__ is not int and number.__class__ is not float:
            raise TypeError
        if not is_exact_in_double and number.__class__ is float:
            raise LostValueError("holds a number that is not exact: set decimal.handling.mode=string for the connector")
        value = Decimal(read(f"{Decimal(repr(number)):.{column.scale}f}"))
        return value if value == Decimal(repr(number)) else refuse()

    def read_decimal(parsed: Any) -> Decimal:
        if parsed.__class__ is not str:
            return read_number(parsed)
        if field is not None:
            is_unscaled = field.get("name") == _CONNECT_DECIMAL
        elif column.scale:
            is_unscaled = "." not in parsed
        else:
            return _told_apart(parsed, read, unscaled)
        return Decimal(unscaled(parsed) if is_unscaled else read(parsed))

    return read_decimal


def _told_apart(text: str, read: Read, unscaled: Read) -> Decimal:
    """Digits may be a number, and bytes in base64 that are another: of a column without digits after the point."""
    meanings = []
    for attempt in (read, unscaled):
        try:
            meanings.append(attempt(text))
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

    def read(parsed: Any) -> Decimal:
        raw = bytes_of(parsed)
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

    def read_text(parsed: Any) -> str:
        value = str(read(parsed))
        if "\ufffd" in value:
            raise LostValueError("holds a character that Debezium could not read")
        return value

    return read_text


def _debezium_label(column: Column, _field: Schema | None, writer: Writer) -> Read:
    return Labels(_shown_labels(column, writer)).__getitem__


def _debezium_labels(column: Column, _field: Schema | None, writer: Writer) -> Read:
    return Sets(_shown_labels(column, writer)).__getitem__


def _shown_labels(column: Column, writer: Writer) -> dict[str, str]:
    return {label if writer.is_snapshot else escaped_label(label): label for label in column.labels}


def _debezium_date(column: Column, _field: Schema | None, _writer: Writer) -> Read:
    read = own(column)

    def read_date(parsed: Any) -> str:
        return date.fromordinal(_EPOCH_DAY + parsed).isoformat() if parsed.__class__ is int else str(read(parsed))

    return read_date


def _micros(column: Column, field: Schema | None, default: str) -> Callable[[int], int]:
    """The function that converts a time, as a number, to microseconds; the name of its schema says the unit."""
    name = default if field is None else str(field.get("name", "")).rpartition(".")[2]
    times, over = next((unit for start, unit in _UNITS.items() if name.startswith(start)), (1000, 1))
    step = 10 ** (6 - column.scale)

    def micros(number: int) -> int:
        value, rest = divmod(number * times, over)
        return int(refuse()) if rest or value % step else value

    return micros


def _debezium_time(column: Column, field: Schema | None, _writer: Writer) -> Read:
    read, micros = own(column), _micros(column, field, "MicroTime")

    def read_time(parsed: Any) -> str:
        if parsed.__class__ is not int:
            return str(read(parsed))
        value = micros(parsed)
        seconds, fraction = divmod(abs(value), 1_000_000)
        minutes, second = divmod(seconds, 60)
        hour, minute = divmod(minutes, 60)
        if hour > MOST_HOURS:
            raise ValueError
        digits = f".{fraction:06d}"[: column.scale + 1] if column.scale else ""
        return f"{'-' * (value < 0)}{hour:02d}:{minute:02d}:{second:02d}{digits}"

    return read_time


def _debezium_datetime(column: Column, field: Schema | None, _writer: Writer) -> Read:
    read = own(column)
    micros = _micros(column, field, "Timestamp" if column.scale <= _MILLIS else "MicroTimestamp")

    def read_datetime(parsed: Any) -> str:
        if parsed.__class__ is not int:
            return str(read(parsed))
        moment = _EPOCH + timedelta(microseconds=micros(parsed))
        return moment.isoformat(" ", "microseconds")[: 20 + column.scale if column.scale else 19]

    return read_datetime


def _debezium_timestamp(column: Column, _field: Schema | None, _writer: Writer) -> Read:
    read, epoch, zero = own(column), _epoch(column), _zero(column)

    def read_timestamp(parsed: Any) -> str:
        value = str(read(parsed))
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
