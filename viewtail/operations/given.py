"""Values and keys as people give them, on the command line and from Python, in viewtail's forms.

What the column cannot hold is refused with the forms that it has: that a view has nothing under it would be no answer.
A key is given as it is rendered (changes/rendering.py), bytes in hexadecimal. Hexadecimal digits that may be meant as a
text are refused with both spellings. Commands that only look, or write again what the row says (get, why, replay), take
keys as others print them, and say what else was possible. A value is given as it is; of a column of bytes
that is a text, as its UTF-8 bytes, or hexadecimal digits behind 0x.
"""

from __future__ import annotations

import datetime
import ipaddress
import math
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from ingest.charsets import single_byte_table
from projectors.views import BoundView
from viewtail.changes.binary_texts import inet4_text, inet6_text, uuid_text
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, UnknownNameError
from viewtail.changes.masks import is_masked, mask_of
from viewtail.changes.rendering import ENCODED, out_of_a_line, parse_key, rendered_columns, whole_key
from viewtail.changes.tables import Column, Kind
from viewtail.changes.writes import Key

_TEXTS = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET, Kind.JSON})
_RAW = frozenset({Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR})
_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_HEX = re.compile("(?:[0-9a-fA-F]{2})+")
_MARKED = re.compile("(?<![^:])0[xX]((?:[0-9a-fA-F]{2})*)(?![^:])")
_MOST_HOURS = 838
_FIRST_YEAR, _LAST_YEAR = 1970, 2106  # of a TIMESTAMP: MariaDB's, the wider range


class _Unfit(ValueError):
    """The value is none of the column's; the message says which are."""


# --- Keys ---


def key_of(given: Any, view: BoundView) -> Key:
    """A key from its rendered text, one Python value, or a sequence of them. Raises MisuseError."""
    if isinstance(given, str):
        return plain_key_of_text(given, view.key)
    parts = tuple(given) if isinstance(given, list | tuple) else (given,)
    told = rendered_columns(view.key)
    if len(parts) != len(told):
        names = ", ".join(column.name for column in told)
        raise MisuseError(f"the key of {view.id} is ({names}): {counted(len(told), 'values')}, not {len(parts)}")
    return whole_key([_part(part, column) for part, column in zip(parts, told, strict=True)], view.key)


def own_keys(keys: Sequence[Key], view: BoundView) -> Sequence[Key]:
    """Those of keys that are given which are of the view's source. Raises UnknownNameError where none is."""
    own = view.of_source(keys)
    if keys and not own:
        others = ", ".join(sorted({str(key[0]) for key in keys}))
        raise UnknownNameError(f"{view.id}: the key is of the source {others}, and this is {view.source[0]}")
    return own


def _part(given: Any, column: Column) -> Any:
    if given is None:
        raise MisuseError(f"column {column.name} of a key is never NULL: give a value")
    if column.kind in _RAW and isinstance(given, str) and not given.lower().startswith("0x"):
        raise MisuseError(
            f"value {given!r} does not fit column {column.name} ({column.declared}): expected bytes, as b'...' or "
            f"'0x' and two hexadecimal digits a byte; the text is written '0x{_encoded(given, column).hex()}'"
        )
    return canonical_value(given, column)


def key_of_text(text: str, columns: Sequence[Column]) -> Key:
    """A key from its rendered text. Raises MisuseError, also where a value is none that its column can hold."""
    key = parse_key(text, columns)
    try:
        return tuple(_held(value, column) for value, column in zip(key, columns, strict=True))
    except _Unfit as error:
        raise MisuseError(f"the key {text!r} does not fit {error}") from None


def plain_key_of_text(text: str, columns: Sequence[Column]) -> Key:
    """`key_of_text`, where nobody sees which key was taken. Raises MisuseError where it may be meant in two ways."""
    key = key_of_text(text, columns)
    parts, columns = text.split(":"), rendered_columns(columns)
    if two_ways := _in_two_ways(parts, columns):
        as_bytes = ":".join(f"0x{part.lower()}" if at in two_ways else part for at, part in enumerate(parts))
        as_text = ":".join(f"0x{part.encode().hex()}" if at in two_ways else part for at, part in enumerate(parts))
        names = ", ".join(columns[at].name for at in two_ways)
        raise MisuseError(
            f"the key {text!r} may be meant in two ways: hexadecimal digits of column {names} are written "
            f"{as_bytes!r}, and the text is written {as_text!r}. Nothing was done: give one of these"
        )
    return key


def other_reading(text: str, columns: Sequence[Column]) -> str | None:
    """Return, in one sentence, what else a rendered key may mean: a text that could be hexadecimal digits, too."""
    parts, columns = text.split(":"), rendered_columns(columns)
    for at in _in_two_ways(parts, columns):
        return (
            f"the key {text!r} is read in hexadecimal, as it is rendered: column {columns[at].name} is "
            f"0x{parts[at].lower()} there. The text {parts[at]!r} is written 0x{parts[at].encode().hex()}"
        )
    return None


def _in_two_ways(parts: Sequence[str], columns: Sequence[Column]) -> list[int]:
    """The places of those parts of a rendered key that may be hexadecimal digits, or a text."""
    return [
        at
        for at, (part, column) in enumerate(zip(parts, columns, strict=False))
        if column.kind is Kind.BYTES and _HEX.fullmatch(part) and _has_room(part.encode(), column)
    ]


def key_spellings(text: str) -> list[str]:
    """A rendered key, and what it may be where nobody knows the columns: bytes may have 0x before them."""
    written = out_of_a_line(text)
    return list(dict.fromkeys([text, written, _MARKED.sub(lambda match: match[1].lower(), written)]))


# --- Values ---


def canonical_value(given: Any, column: Column) -> Any:
    """A value from the command line (text) or from Python, in viewtail's form. Raises MisuseError."""
    if given is None:
        return None
    _require_type(given, column)
    shown = f"value {given!r}" if isinstance(given, str | int | float) else _type_of(given)
    try:
        value = _from_python(given, column)
        return _held(value if value is not None else _from_text(str(given), column), column)
    except MisuseError as error:
        expected = str(error).partition(" does not fit ")[2].replace("%3A", ":")
        raise MisuseError(f"{shown} does not fit {expected}") from None
    except _Unfit as error:
        raise MisuseError(f"{shown} does not fit {error}") from None
    except UnicodeEncodeError:
        why = "has a lone surrogate, which is no character"
        raise MisuseError(f"a value for column {column.name} {why}") from None


def indexed_value(given: Any, column: Column) -> Any:
    """A value that a view is asked for: of a masked column, what its mask makes of the stored one.

    Raises MisuseError, without the value where it is one to be masked.
    """
    if column.mask is None or given is None:
        return canonical_value(given, column)
    how, stored = column.mask.how, column.stored
    if how == "null":
        raise MisuseError(f"column {column.name} is masked: the view has NULL there, so nothing is found by it")
    if how == "year" and re.fullmatch("[0-9]{4}", str(given)):
        return int(given)
    if how == "last4" and is_masked(given, how):
        return given
    try:
        return mask_of(column)(canonical_value(given, stored))
    except MisuseError:
        what = f"column {column.name} ({stored.declared}), whose values are masked ({how})"
        raise MisuseError(f"the value does not fit {what}; it is given as the table has it") from None


def _require_type(given: Any, column: Column) -> None:
    if column.kind in _TEXTS and not isinstance(given, str):
        raise MisuseError(f"{_type_of(given)} does not fit column {column.name}: give a str")
    if column.kind in _RAW and not isinstance(given, str | bytes | bytearray | memoryview):
        raise MisuseError(f"{_type_of(given)} does not fit column {column.name}: give bytes, or a str")


def _type_of(given: Any) -> str:
    return f"a value of type {type(given).__name__}"


def in_hexadecimal(given: Any, column: Column) -> str | None:
    """Return how bytes are written that may have been meant by a text, one sentence; None where only a text can be."""
    if column.kind is not Kind.BYTES or not isinstance(given, str) or not _HEX.fullmatch(given):
        return None
    if given.lower().startswith("0x") or not _has_room(given.encode(), column):
        return None
    return f"{given!r} was looked for as a text, 0x{given.encode().hex()}; bytes are written 0x{given.lower()}"


def _from_python(given: Any, column: Column) -> Any:
    """Return a Python value in viewtail's form; None for what is read as text."""
    kind = column.kind
    if kind is Kind.INTEGER and isinstance(given, int):
        return int(given)
    if kind in (Kind.FLOAT, Kind.DOUBLE) and isinstance(given, int | float):
        return _float(float(given), column)
    if kind is Kind.DECIMAL and isinstance(given, int | Decimal):
        return _decimal(Decimal(given), column)
    if kind in _RAW and isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    if isinstance(given, datetime.datetime):
        return _from_text(str(_without_zone(given)), column)
    return None


def _without_zone(given: datetime.datetime) -> datetime.datetime:
    """Return the moment in UTC; one without a zone is taken as it is."""
    return given if given.tzinfo is None else given.astimezone(datetime.UTC).replace(tzinfo=None)


def _decimal(value: Decimal, column: Column) -> Decimal:
    """Return the number with the column's digits after the point, where that changes nothing."""
    try:
        scaled = value.quantize(Decimal(1).scaleb(-column.scale))
    except InvalidOperation:
        return value
    return scaled if scaled == value else value


def _from_text(text: str, column: Column) -> Any:
    encoded = text.encode()  # raises UnicodeEncodeError
    if column.kind is Kind.BYTES:
        return _bytes_from(text, encoded, column)
    (value,) = parse_key(text.translate(ENCODED), (column,))
    return _float(value, column) if isinstance(value, float) else value


def _bytes_from(text: str, encoded: bytes, column: Column) -> bytes:
    """Digits without 0x are a text, unless only the bytes have room: 32 of them for a BINARY(16)."""
    is_marked = text.lower().startswith("0x")
    if not is_marked and _has_room(encoded, column):
        return encoded
    digits = text[2:] if is_marked else text
    if digits and not _HEX.fullmatch(digits):
        raise _unfit_bytes(column)
    return bytes.fromhex(digits)


def _encoded(text: str, column: Column) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MisuseError(f"a value for column {column.name} has a lone surrogate, which is no character") from None


def _float(value: float, column: Column) -> float:
    """Return the number as a FLOAT column holds it: 1.1 is another number in 4 bytes."""
    if column.kind is not Kind.FLOAT:
        return value
    try:
        narrow: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf
    return narrow


# --- What a column can hold ---


def _held(value: Any, column: Column) -> Any:
    """The value as the column holds it. Raises _Unfit with the values that it can hold."""
    check = _HELD.get(column.kind)
    return value if check is None else check(value, column)


def _unfit(column: Column, expected: str) -> _Unfit:
    return _Unfit(f"column {column.name} ({column.declared}): expected {expected}")


def _integer(value: int, column: Column) -> int:
    ranges = _range_of(column)
    if ranges is None or ranges[0] <= value <= ranges[1] or (value == 0 and _word(column) == "year"):
        return value
    raise _unfit(column, f"a whole number from {ranges[0]} to {ranges[1]}")


def _range_of(column: Column) -> tuple[int, int] | None:
    word = _word(column)
    if word == "year":
        return 1901, 2155
    if word == "bit":
        return 0, 2 ** (column.length or 64) - 1
    bits = _BITS.get(word)
    if bits is None:
        return None
    return (0, 2**bits - 1) if column.is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _word(column: Column) -> str:
    """The type without its arguments: 'varchar'."""
    return re.split("[( ]", column.declared.lower(), maxsplit=1)[0]


def _number(value: float, column: Column) -> float:
    if math.isfinite(value):
        return value
    raise _unfit(column, "a number that the column can hold")


def _exact(value: Decimal, column: Column) -> Decimal:
    whole = column.precision - column.scale
    if not value.is_finite() or (column.precision and abs(value) >= Decimal(10) ** whole):
        raise _unfit(column, f"a number with up to {whole} digits before the point and {column.scale} behind it")
    if -value.as_tuple().exponent > column.scale:  # type: ignore[operator]  # a finite one's is a number
        raise _unfit(column, "a number with no more digits after the point than the column has")
    return value


def _text(value: str, column: Column) -> str:
    word = _word(column)
    if word in _ADDRESSES:
        what, read = _ADDRESSES[word]
        try:
            return read(value)
        except ValueError:
            raise _unfit(column, what) from None
    if word == "char":
        value = value.rstrip(" ")  # as the server keeps it
    if column.length and len(value) > column.length:
        raise _unfit(column, f"a text of at most {column.length} characters")
    if not _is_in(value, column.charset):
        raise _unfit(column, f"a text with characters of {column.charset} only")
    return value


def _is_in(value: str, charset: str | None) -> bool:
    """Return whether a text is in a character set; True of those that are not asked."""
    if value.isascii() or charset is None:
        return True
    if charset == "utf8mb3":
        return max(value) <= "\uffff"
    table = "" if charset == "ascii" else single_byte_table(charset)
    return table is None or set(value) <= set(table)


def _bytes(value: bytes, column: Column) -> bytes:
    if _has_room(value, column):
        return value
    raise _unfit_bytes(column)


def _unfit_bytes(column: Column) -> _Unfit:
    count = f"{column.length} " if _is_padded(column) else f"at most {column.length} " if column.length else ""
    return _unfit(column, f"{count}bytes: as a text, or as 0x and two hexadecimal digits a byte")


def _has_room(value: bytes, column: Column) -> bool:
    if _is_padded(column):
        return len(value) == column.length
    return not column.length or len(value) <= column.length


def _is_padded(column: Column) -> bool:
    return _word(column) == "binary"


def _time(value: str, column: Column) -> str:
    if int(value.lstrip("-").partition(":")[0]) <= _MOST_HOURS:
        return value
    raise _unfit(column, f"a time from -{_MOST_HOURS}:59:59 to {_MOST_HOURS}:59:59")


def _timestamp(value: str, column: Column) -> str:
    if _FIRST_YEAR <= int(value[:4]) <= _LAST_YEAR or value.startswith("0000-00-00"):
        return value
    raise _unfit(column, f"a moment in UTC from {_FIRST_YEAR} to {_LAST_YEAR}")


_ADDRESSES: dict[str, tuple[str, Callable[[str], str]]] = {  # as the server writes them
    "uuid": ("a UUID, such as 123e4567-e89b-12d3-a456-426655440000", lambda value: uuid_text(uuid.UUID(value).bytes)),
    "inet4": ("an IPv4 address, such as 192.0.2.1", lambda value: inet4_text(ipaddress.IPv4Address(value).packed)),
    "inet6": ("an IPv6 address, such as 2001:db8::1", lambda value: inet6_text(ipaddress.IPv6Address(value).packed)),
}
_HELD: dict[Kind, Callable[[Any, Column], Any]] = {
    Kind.INTEGER: _integer,
    Kind.FLOAT: _number,
    Kind.DOUBLE: _number,
    Kind.DECIMAL: _exact,
    Kind.TEXT: _text,
    Kind.BYTES: _bytes,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
}
