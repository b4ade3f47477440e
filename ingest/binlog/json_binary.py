"""The server's binary JSON, turned into the text that the server itself would print for it.

Owns the walk over the binary form and its scalars: numbers, strings, and the "opaque" values (decimals,
dates, times, bytes). It promises MySQL's own text, byte for byte, so that a row from the binlog and one from
a SELECT are equal. It parses nothing into Python objects and knows nothing of MariaDB, whose JSON is text.

Sources: sql-common/json_binary.h (the format), Json_wrapper::to_string (the text), strings/dtoa.cc (my_gcvt).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = 0, 1, 2, 3
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(4, 13)
_OPAQUE = 15
_LITERALS = {0: "null", 1: "true", 2: "false"}

# Types of opaque values (include/field_types.h).
_TIMESTAMP, _DATE, _TIME, _DATETIME, _NEWDECIMAL = 7, 10, 11, 12, 246

_INT16_AT = struct.Struct("<h").unpack_from
_UINT16_AT = struct.Struct("<H").unpack_from
_INT32_AT = struct.Struct("<i").unpack_from
_UINT32_AT = struct.Struct("<I").unpack_from
_INT64_AT = struct.Struct("<q").unpack_from
_UINT64_AT = struct.Struct("<Q").unpack_from
_DOUBLE_AT = struct.Struct("<d").unpack_from

_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {
    ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"
}  # fmt: skip
_DIGITS_PER_WORD = 9
_WORD_BYTES = (
    0,
    1,
    1,
    2,
    2,
    3,
    3,
    4,
    4,
    4,
)  # bytes that hold so many digits of a DECIMAL
_BASE64_LINE = 76  # characters; the server breaks lines there [M]
_MAX_DIGITS = 81  # of the server's decimals in memory; JSON holds some with 66, though columns end at 65 [M]
_MAX_DEPTH = 128  # the server's limit is 100


class MalformedJsonError(ValueError):
    """Bytes that are not the binary form of a JSON value."""


def to_text(raw: bytes) -> str:
    """MySQL's text of one JSON value in binary form; no bytes at all count as null, as the server has it.

    Raises UnicodeDecodeError for strings that are not UTF-8 and MalformedJsonError for anything else.
    """
    if not raw:
        return "null"
    pieces: list[str] = []
    try:
        _append_value(pieces, raw, raw[0], 1, len(raw), _MAX_DEPTH)
    except (IndexError, struct.error, KeyError):
        raise MalformedJsonError("a JSON value ends too early or holds an unknown type") from None
    return "".join(pieces)


def _append_value(pieces: list[str], raw: bytes, type_: int, at: int, end: int, depth: int) -> None:
    # `at` is where the value's own bytes begin; offsets inside an object or array count from there.
    if type_ == _STRING:
        start, length = _variable_length(raw, at)
        if start + length > end:
            raise MalformedJsonError("a JSON string reaches past the value's end")
        pieces.append(_quoted(str(raw[start : start + length], "utf-8")))
    elif type_ <= _LARGE_ARRAY:
        if not depth:
            raise MalformedJsonError("a JSON value is nested too deeply")
        _append_container(pieces, raw, type_, at, end, depth - 1)
    elif type_ == _OPAQUE:
        start, length = _variable_length(raw, at + 1)
        if start + length > end:
            raise MalformedJsonError("an opaque JSON value reaches past the value's end")
        pieces.append(_opaque(raw[at], raw[start : start + length]))
    elif type_ == _LITERAL:
        pieces.append(_LITERALS[raw[at]])
    elif type_ == _DOUBLE:
        pieces.append(double_text(_DOUBLE_AT(raw, at)[0]))
    else:
        pieces.append(str(_INTEGERS[type_](raw, at)[0]))


_INTEGERS = {
    _INT16: _INT16_AT, _UINT16: _UINT16_AT, _INT32: _INT32_AT, _UINT32: _UINT32_AT, _INT64: _INT64_AT,
    _UINT64: _UINT64_AT,
}  # fmt: skip


def _append_container(pieces: list[str], raw: bytes, type_: int, at: int, end: int, depth: int) -> None:
    is_object = type_ in (_SMALL_OBJECT, _LARGE_OBJECT)
    pieces.append("{" if is_object else "[")
    separator = ""
    for key, value_type, value_at, value_end in _members(raw, type_, at, end):
        pieces.append(separator)
        separator = ", "
        if is_object:
            pieces.append(_quoted(key) + ": ")
        _append_value(pieces, raw, value_type, value_at, value_end, depth)
    pieces.append("}" if is_object else "]")


def _members(raw: bytes, type_: int, at: int, end: int) -> Iterator[tuple[str, int, int, int]]:
    """Of an object or array: each member's key ('' in an array), type, place and where it ends at the latest."""
    is_large = type_ in (_LARGE_OBJECT, _LARGE_ARRAY)
    is_object = type_ in (_SMALL_OBJECT, _LARGE_OBJECT)
    width = 4 if is_large else 2
    number_at = _UINT32_AT if is_large else _UINT16_AT
    count, size = number_at(raw, at)[0], number_at(raw, at + width)[0]
    if at + size > end:
        raise MalformedJsonError("a JSON container reaches past the value's end")
    end = at + size
    key_entry = at + 2 * width
    value_entry = key_entry + (count * (width + 2) if is_object else 0)
    if value_entry + count * (width + 1) > end:
        raise MalformedJsonError("a JSON container holds more members than bytes")
    for _ in range(count):
        key = ""
        if is_object:
            start = at + number_at(raw, key_entry)[0]
            length = _UINT16_AT(raw, key_entry + width)[0]
            if start + length > end:
                raise MalformedJsonError("a JSON key reaches past its object's end")
            key = str(raw[start : start + length], "utf-8")
            key_entry += width + 2
        value_type = raw[value_entry]
        # Small values stand in the entry itself.
        is_inlined = value_type in (_LITERAL, _INT16, _UINT16) or (
            is_large and value_type in (_INT32, _UINT32)
        )
        value_at = value_entry + 1 if is_inlined else at + number_at(raw, value_entry + 1)[0]
        if value_at >= end:
            raise MalformedJsonError("a JSON value begins past its container's end")
        yield key, value_type, value_at, end
        value_entry += width + 1


# An object, its keys as they are; an array; or the text of anything else, which no difference looks into.
Tree = dict[str, "Tree"] | list["Tree"] | str


def to_tree(raw: bytes) -> Tree:
    """One JSON value in binary form as objects that can be changed; raises as `to_text` does."""
    try:
        return _tree(raw, raw[0], 1, len(raw), _MAX_DEPTH) if raw else "null"
    except (IndexError, struct.error, KeyError):
        raise MalformedJsonError("a JSON value ends too early or holds an unknown type") from None


def tree_text(tree: Tree) -> str:
    """MySQL's text of a tree: an object's keys by length, then by their bytes."""
    if isinstance(tree, list):
        return f"[{', '.join(map(tree_text, tree))}]"
    if isinstance(tree, dict):
        keys = sorted(tree, key=lambda key: (len(encoded := key.encode()), encoded))
        return "{" + ", ".join(f"{_quoted(key)}: {tree_text(tree[key])}" for key in keys) + "}"
    return tree


def _tree(raw: bytes, type_: int, at: int, end: int, depth: int) -> Tree:
    if type_ > _LARGE_ARRAY:
        pieces: list[str] = []
        _append_value(pieces, raw, type_, at, end, depth)
        return "".join(pieces)
    if not depth:
        raise MalformedJsonError("a JSON value is nested too deeply")
    members = [
        (key, _tree(raw, value_type, value_at, value_end, depth - 1))
        for key, value_type, value_at, value_end in _members(raw, type_, at, end)
    ]
    if type_ in (_SMALL_OBJECT, _LARGE_OBJECT):
        return dict(members)
    return [value for _, value in members]


def _variable_length(raw: bytes, at: int) -> tuple[int, int]:
    # Seven bits a byte, the lowest first; the high bit says that more follow. Gives (where the data begin,
    # length).
    length = shift = 0
    for _ in range(5):
        byte = raw[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at, length
        shift += 7
    raise MalformedJsonError("a JSON length has more than five bytes")


def _quoted(text: str) -> str:
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return f'"{text.translate(_ESCAPES)}"'


def double_text(value: float) -> str:
    """As MySQL prints a JSON double: the shortest digits that read back equal, '.0' where nothing says
    "double"."""
    shown = repr(value)
    sign, shown = ("-", shown[1:]) if shown[0] == "-" else ("", shown)
    mantissa, _, shown_exponent = shown.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits.rstrip("0"):
        return sign + "0.0"
    # value = 0.DIGITS * 10 ** point
    point = (len(whole) if whole != "0" else len(digits) - len(fraction)) + int(shown_exponent or 0)
    digits = digits.rstrip("0")
    if not (-14 <= point <= 15 or 0 < point < len(digits)):
        return f"{sign}{digits[0]}{'.' if digits[1:] else ''}{digits[1:]}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point < len(digits):
        return f"{sign}{digits[:point]}.{digits[point:]}"
    return f"{sign}{digits}{'0' * (point - len(digits))}.0"


def _opaque(type_: int, raw: bytes) -> str:
    if type_ == _NEWDECIMAL:
        if len(raw) < 2:
            raise MalformedJsonError("a decimal in JSON is cut short")
        return decimal_text(raw[2:], raw[0], raw[1])
    if type_ in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        if len(raw) != 8:
            raise MalformedJsonError("a date or time in JSON does not have 8 bytes")
        return f'"{_temporal_text(type_, _INT64_AT(raw, 0)[0])}"'
    encoded = base64.b64encode(raw).decode()
    lines = (encoded[at : at + _BASE64_LINE] for at in range(0, len(encoded), _BASE64_LINE))
    return _quoted(f"base64:type{type_}:" + "\n".join(lines))


def _temporal_text(type_: int, packed: int) -> str:
    # Packed as in sql-common/my_time.cc (TIME_from_longlong_*_packed): 24 bits of microseconds below the
    # rest.
    sign, packed = ("-", -packed) if packed < 0 else ("", packed)
    rest, microseconds = packed >> 24, packed & 0xFFFFFF
    clock = f"{rest >> 6 & 63:02d}:{rest & 63:02d}.{microseconds:06d}"
    if type_ == _TIME:
        return f"{sign}{rest >> 12 & 1023:02d}:{clock}"
    month_number, day = divmod(rest >> 17, 32)
    year, month = divmod(month_number, 13)
    date = f"{sign}{year:04d}-{month:02d}-{day:02d}"
    return date if type_ == _DATE else f"{date} {rest >> 12 & 31:02d}:{clock}"


def decimal_size(precision: int, scale: int) -> int:
    """Bytes of a DECIMAL(precision, scale) in its binary form (strings/decimal.cc, decimal_bin_size)."""
    whole, fraction = precision - scale, scale
    return (
        whole // _DIGITS_PER_WORD * 4
        + _WORD_BYTES[whole % _DIGITS_PER_WORD]
        + fraction // _DIGITS_PER_WORD * 4
        + _WORD_BYTES[fraction % _DIGITS_PER_WORD]
    )


def decimal_text(raw: bytes, precision: int, scale: int) -> str:
    """A DECIMAL(precision, scale) from its binary form, with all digits of its scale.

    Raises MalformedJsonError when `raw` has another size than the type asks for.
    """
    if (
        not 0 < precision <= _MAX_DIGITS
        or not 0 <= scale <= precision
        or len(raw) != decimal_size(precision, scale)
    ):
        raise MalformedJsonError(f"a DECIMAL({precision},{scale}) of {len(raw)} bytes")
    is_negative = raw[0] < 0x80  # the sign bit is inverted, and so are all bits of a negative number
    words = bytearray(byte ^ 0xFF for byte in raw) if is_negative else bytearray(raw)
    words[0] ^= 0x80
    at = 0

    def take(digits: int) -> str:
        nonlocal at
        size = _WORD_BYTES[digits]
        found = int.from_bytes(words[at : at + size], "big")
        at += size
        return f"{found:0{digits}d}" if digits else ""

    whole_digits, fraction_digits = precision - scale, scale
    whole = take(whole_digits % _DIGITS_PER_WORD)
    whole += "".join(take(_DIGITS_PER_WORD) for _ in range(whole_digits // _DIGITS_PER_WORD))
    fraction = "".join(take(_DIGITS_PER_WORD) for _ in range(fraction_digits // _DIGITS_PER_WORD))
    fraction += take(fraction_digits % _DIGITS_PER_WORD)
    text = (whole.lstrip("0") or "0") + ("." + fraction if fraction else "")
    return "-" + text if is_negative else text
