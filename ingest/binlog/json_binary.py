"""The server's binary JSON, turned into the text that the server itself would print for it.

Owns the walk over the binary form and its scalars: numbers, strings, and the "opaque" values (decimals,
dates, times, bytes). It promises MySQL's own text, byte for byte, so that a row from the binlog and one from
a SELECT are equal. It parses nothing into Python objects and knows nothing of MariaDB, whose JSON is text.

Sources: sql-common/json_binary.h (the format), Json_wrapper::to_string (the text), strings/dtoa.cc (my_gcvt).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat

from ingest.binlog.json_shapes import MOST_MEMBERS, Reader, Unusual, made_for, unknown
from viewtail.changes.json_text import double_text, quoted

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY = 0, 1, 2, 3
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(4, 13)
_OPAQUE = 15
_LITERALS = {0: "null", 1: "true", 2: "false"}

# Types of opaque values (include/field_types.h).
_TIMESTAMP, _DATE, _TIME, _DATETIME, _NEWDECIMAL = 7, 10, 11, 12, 246

_INTEGERS = {
    type_: struct.Struct(f"<{code}").unpack_from for type_, code in zip(range(_INT16, _DOUBLE), "hHiIqQ", strict=True)
}
_DOUBLE_AT = struct.Struct("<d").unpack_from
_TWO_UINT16_AT, _TWO_UINT32_AT = struct.Struct("<HH").unpack_from, struct.Struct("<II").unpack_from

# Entries of objects and arrays: a key's place and length; a value's type and its place, or the value.
_SMALL_KEY, _LARGE_KEY = struct.Struct("<HH"), struct.Struct("<IH")
_SMALL_VALUE, _LARGE_VALUE = struct.Struct("<BH"), struct.Struct("<BI")
_Shapes = dict[tuple[bytes, bytes], Sequence[str]]  # what `_heads` gave
_SMALL_SHAPES: _Shapes = {}
_LARGE_SHAPES: _Shapes = {}
_MOST_SHAPES = 1000
_SHAPE_BYTES = 4096  # of an object whose keys are remembered

# By keys and types of an object's values, or types of an array's: code for them.
_KINDS: dict[tuple[bytes, ...], Reader] = {}
_ROOTS: dict[int, list[Reader]] = {
    _SMALL_OBJECT: [unknown],
    _SMALL_ARRAY: [unknown],
}  # of the last whole values
_SEEN: dict[tuple[bytes, ...], int] = {}
_SEEN_OFTEN = 16
_MOST_KINDS = 1000

_DIGITS_PER_WORD = 9
_WORD_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # bytes that hold so many digits of a DECIMAL
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
    if raw[0] in (_SMALL_OBJECT, _SMALL_ARRAY):
        try:
            last = _ROOTS[raw[0]]
            text = last[0](raw, 1, len(raw), _MAX_DEPTH)
            return _child(raw, raw[0], 1, len(raw), _MAX_DEPTH, last) if text is None else text
        except (Unusual, IndexError, struct.error, KeyError, UnicodeDecodeError, MalformedJsonError):
            pass  # what is wrong with it, if anything, is said below
    pieces: list[str] = []
    try:
        _append_value(pieces, raw, raw[0], 1, len(raw), _MAX_DEPTH, [len(raw)])
    except (IndexError, struct.error, KeyError):
        raise MalformedJsonError("a JSON value ends too early or holds an unknown type") from None
    return "".join(pieces)


def _child(raw: bytes, type_: int, at: int, end: int, depth: int, last: list[Reader] | None = None) -> str:
    """Give the text of a container or opaque value between `at` and `end`, which nothing else claims.

    The code for its kind becomes the `last` of the place where the value stands.
    """
    if type_ == _OPAQUE:
        start, stop = _claimed(raw, at + 1, end, [end - at])
        return _opaque(raw[at], raw[start:stop])
    if type_ not in (_SMALL_OBJECT, _SMALL_ARRAY) or not depth:
        raise Unusual
    count, size = _TWO_UINT16_AT(raw, at)
    stop, values_at = at + size, at + 4
    kind: tuple[bytes, ...]
    if type_ == _SMALL_ARRAY:
        rest_at = names_end = values_at + 3 * count
        kind = (raw[values_at:rest_at:3],)
    elif count:
        values_at += 4 * count
        rest_at = values_at + 3 * count
        place, length = _SMALL_KEY.unpack_from(raw, values_at - 4)
        names_end = at + place + length
        kind = (raw[at + 4 : values_at], raw[rest_at:names_end], raw[values_at:rest_at:3])
    else:
        return "{}"
    if not rest_at <= names_end <= stop <= end:
        raise Unusual
    read = _KINDS.get(kind)
    if read is not None and (text := read(raw, at, stop, depth)) is not None:
        if last is not None:
            last[0] = read
        return text
    return _container_text(raw, type_, kind, at, stop, depth)


def _container_text(raw: bytes, type_: int, kind: tuple[bytes, ...], at: int, stop: int, depth: int) -> str:
    """Give the text of a small container that no code was made for yet; it may be made for the next one."""
    if 0 < len(kind[-1]) <= MOST_MEMBERS:
        _learn(raw, kind, at, stop)
    pieces: list[str] = []
    _append_container(pieces, raw, type_, at, stop, depth, [stop - at])
    return "".join(pieces)


def _learn(raw: bytes, kind: tuple[bytes, ...], at: int, stop: int) -> None:
    """Have code made for a kind that is seen often enough."""
    seen = _SEEN[kind] = _SEEN.get(kind, 0) + 1
    if len(_SEEN) > 10 * _MOST_KINDS:
        _SEEN.clear()
    if seen < _SEEN_OFTEN or len(_KINDS) >= _MOST_KINDS or sum(map(len, kind)) > _SHAPE_BYTES:
        return
    if len(kind) == 1:
        heads: Sequence[str] = ["["] + [", "] * (len(kind[0]) - 1)
    else:
        values_at = at + 4 + len(kind[0])
        heads = _heads(raw, False, at, at + 4, values_at, values_at + 3 * len(kind[2]), stop)
        if _SMALL_SHAPES.get((kind[0], kind[1])) is not heads:
            return  # some key lies elsewhere: these bytes do not tell its name
    names = {"LITERALS": _LITERALS, "child": _child, "quoted": quoted}
    names |= {"double": double_text, "length": _variable_length}
    _KINDS[kind] = made_for(heads, "]" if len(kind) == 1 else "}", kind, names)


def _append_value(pieces: list[str], raw: bytes, type_: int, at: int, end: int, depth: int, left: list[int]) -> None:
    # `at` is where the value's own bytes begin; offsets inside an object or array count from there. `left` is how many
    # bytes no value has claimed yet: values that overlap could add up to any length.
    if type_ == _STRING:
        pieces.append(_string(raw, at, end, left))
    elif type_ <= _LARGE_ARRAY:
        _append_container(pieces, raw, type_, at, end, depth, left)
    elif type_ == _OPAQUE:
        start, stop = _claimed(raw, at + 1, end, left)
        pieces.append(_opaque(raw[at], raw[start:stop]))
    elif type_ == _LITERAL:
        pieces.append(_LITERALS[raw[at]])
    elif type_ == _DOUBLE:
        pieces.append(double_text(_DOUBLE_AT(raw, at)[0]))
    else:
        pieces.append(str(_INTEGERS[type_](raw, at)[0]))


def _string(raw: bytes, at: int, end: int, left: list[int]) -> str:
    length = raw[at]
    if length < 0x80:  # too short to add up to much: not claimed
        start, stop = at + 1, at + 1 + length
        if stop > end:
            raise MalformedJsonError("a JSON string reaches past the value's end")
    else:
        start, stop = _claimed(raw, at, end, left)
    return quoted(str(raw[start:stop], "utf-8"))


def _claimed(raw: bytes, at: int, end: int, left: list[int]) -> tuple[int, int]:
    """Find where the bytes of a string or opaque value begin and end; their number stands at `at`."""
    start, length = _variable_length(raw, at)
    if start + length > end:
        raise MalformedJsonError("a JSON string reaches past the value's end")
    _claim(left, length)
    return start, start + length


def _claim(left: list[int], count: int) -> None:
    left[0] -= count
    if left[0] < 0:
        raise MalformedJsonError("JSON values overlap")


# Of each container: what reads its count and size; bytes of a key's entry, of count and size, and of a value's entry.
_FRAMES = {
    _SMALL_OBJECT: (_TWO_UINT16_AT, 4, 4, 3), _SMALL_ARRAY: (_TWO_UINT16_AT, 0, 4, 3),
    _LARGE_OBJECT: (_TWO_UINT32_AT, 6, 8, 5), _LARGE_ARRAY: (_TWO_UINT32_AT, 0, 8, 5),
}  # fmt: skip


def _frame(raw: bytes, type_: int, at: int, end: int, left: list[int]) -> tuple[int, int, int, int]:
    """Find where the key entries and value entries of a container begin, what is behind them, and its end."""
    head, key_bytes, head_bytes, value_bytes = _FRAMES[type_]
    count, size = head(raw, at)
    keys_at = at + head_bytes
    values_at = keys_at + key_bytes * count
    rest_at = values_at + value_bytes * count
    stop = at + size
    if rest_at > stop or stop > end:
        raise MalformedJsonError("a JSON container is longer than its value, or has more members than bytes")
    _claim(left, rest_at - at)
    return keys_at, values_at, rest_at, stop


def _append_container(
    pieces: list[str], raw: bytes, type_: int, at: int, end: int, depth: int, left: list[int]
) -> None:
    if not depth:
        raise MalformedJsonError("a JSON value is nested too deeply")
    keys_at, values_at, rest_at, stop = _frame(raw, type_, at, end, left)
    brackets, entry, inlined = _MEMBERS[type_]
    append = pieces.append
    if rest_at == values_at:
        append(brackets)
        return
    heads: Iterable[str] = chain("[", repeat(", "))
    if brackets == "{}":
        heads = _heads(raw, type_ == _LARGE_OBJECT, at, keys_at, values_at, rest_at, stop)
    for head, (value_type, place) in zip(heads, entry.iter_unpack(raw[values_at:rest_at]), strict=False):
        if value_type == _STRING:
            append(head + _string(raw, at + place, stop, left))
        elif value_type in inlined:
            append(head + inlined[value_type](place))
        elif at + place >= stop:
            raise MalformedJsonError("a JSON value begins past its container's end")
        else:
            append(head)
            _append_value(pieces, raw, value_type, at + place, stop, depth - 1, left)
    append(brackets[1])


# Small values stand in the entry itself, in place of their place.
_INLINED: dict[int, Callable[[int], str]] = {
    _LITERAL: lambda entry: _LITERALS[entry & 0xFF],
    _INT16: lambda entry: str((entry & 0x7FFF) - (entry & 0x8000)),
    _UINT16: lambda entry: str(entry & 0xFFFF),
}
_LARGE_INLINED = _INLINED | {_INT32: lambda entry: str((entry & 0x7FFFFFFF) - (entry & 1 << 31)), _UINT32: str}
# Of each container: its brackets, how a value's entry is read, and which values stand in it.
_MEMBERS = {
    _SMALL_OBJECT: ("{}", _SMALL_VALUE, _INLINED), _SMALL_ARRAY: ("[]", _SMALL_VALUE, _INLINED),
    _LARGE_OBJECT: ("{}", _LARGE_VALUE, _LARGE_INLINED), _LARGE_ARRAY: ("[]", _LARGE_VALUE, _LARGE_INLINED),
}  # fmt: skip


def _heads(raw: bytes, is_large: bool, at: int, keys_at: int, values_at: int, rest_at: int, stop: int) -> Sequence[str]:
    """Make what stands before each value of an object: '{"key": ', then ', "key": ' and so on.

    Documents of one kind have the same keys in the same places: remembered by the bytes of their entries and names.
    """
    entry, shapes = (_LARGE_KEY, _LARGE_SHAPES) if is_large else (_SMALL_KEY, _SMALL_SHAPES)
    place, length = entry.unpack_from(raw, values_at - entry.size)
    names_end = at + place + length  # the last name is the last in the bytes too, or nothing is remembered
    if names_end > stop:
        raise MalformedJsonError("a JSON key reaches past its object's end")
    shape = (raw[keys_at:values_at], raw[rest_at:names_end])
    known = shapes.get(shape)
    if known is not None:
        return known
    made: list[str] = []
    is_memorable = len(shape[0]) + len(shape[1]) <= _SHAPE_BYTES
    for place, length in entry.iter_unpack(shape[0]):
        start = at + place
        if start + length > stop:
            raise MalformedJsonError("a JSON key reaches past its object's end")
        is_memorable &= rest_at <= start <= names_end - length
        name = quoted(str(raw[start : start + length], "utf-8"))
        made.append(f"{', ' if made else '{'}{name}: ")
    if is_memorable:
        if len(shapes) >= _MOST_SHAPES:
            shapes.clear()
        shapes[shape] = made
    return made


def _members(raw: bytes, type_: int, at: int, end: int, left: list[int]) -> Iterator[tuple[str, int, int, int]]:
    """Read each member's key ('' in an array), type, place and where it ends at the latest."""
    keys_at, values_at, rest_at, stop = _frame(raw, type_, at, end, left)
    _, value, inlined = _MEMBERS[type_]
    key = _LARGE_KEY if value is _LARGE_VALUE else _SMALL_KEY
    keys = key.iter_unpack(raw[keys_at:values_at]) if values_at > keys_at else repeat((0, 0))
    for number, ((key_place, length), (value_type, place)) in enumerate(
        zip(keys, value.iter_unpack(raw[values_at:rest_at]), strict=False)
    ):
        if at + key_place + length > stop:
            raise MalformedJsonError("a JSON key reaches past its object's end")
        name = str(raw[at + key_place : at + key_place + length], "utf-8")
        value_at = values_at + number * value.size + 1 if value_type in inlined else at + place
        if value_at >= stop:
            raise MalformedJsonError("a JSON value begins past its container's end")
        yield name, value_type, value_at, stop


# An object, its keys as they are; an array; or the text of anything else, which no difference looks into.
Tree = dict[str, "Tree"] | list["Tree"] | str


def to_tree(raw: bytes) -> Tree:
    """One JSON value in binary form as objects that can be changed; raises as `to_text` does."""
    try:
        return _tree(raw, raw[0], 1, len(raw), _MAX_DEPTH, [len(raw)]) if raw else "null"
    except (IndexError, struct.error, KeyError):
        raise MalformedJsonError("a JSON value ends too early or holds an unknown type") from None


def tree_text(tree: Tree) -> str:
    """MySQL's text of a tree: an object's keys by length, then by their bytes."""
    if isinstance(tree, list):
        return f"[{', '.join(map(tree_text, tree))}]"
    if isinstance(tree, dict):
        keys = sorted(tree, key=lambda key: (len(encoded := key.encode()), encoded))
        return "{" + ", ".join(f"{quoted(key)}: {tree_text(tree[key])}" for key in keys) + "}"
    return tree


def _tree(raw: bytes, type_: int, at: int, end: int, depth: int, left: list[int]) -> Tree:
    if type_ > _LARGE_ARRAY:
        pieces: list[str] = []
        _append_value(pieces, raw, type_, at, end, depth, left)
        return "".join(pieces)
    if not depth:
        raise MalformedJsonError("a JSON value is nested too deeply")
    members = [
        (key, _tree(raw, value_type, value_at, value_end, depth - 1, left))
        for key, value_type, value_at, value_end in _members(raw, type_, at, end, left)
    ]
    if type_ in (_SMALL_OBJECT, _LARGE_OBJECT):
        return dict(members)
    return [value for _, value in members]


def _variable_length(raw: bytes, at: int) -> tuple[int, int]:
    # Seven bits a byte, the lowest first; the high bit says that more follow. Gives (where the data begin, length).
    length = shift = 0
    for _ in range(5):
        byte = raw[at]
        at += 1
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return at, length
        shift += 7
    raise MalformedJsonError("a JSON length has more than five bytes")


def _opaque(type_: int, raw: bytes) -> str:
    if type_ == _NEWDECIMAL:
        if len(raw) < 2:
            raise MalformedJsonError("a decimal in JSON is cut short")
        return decimal_text(raw[2:], raw[0], raw[1])
    if type_ in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        if len(raw) != 8:
            raise MalformedJsonError("a date or time in JSON does not have 8 bytes")
        return f'"{_temporal_text(type_, _INTEGERS[_INT64](raw, 0)[0])}"'
    encoded = base64.b64encode(raw).decode()
    lines = (encoded[at : at + _BASE64_LINE] for at in range(0, len(encoded), _BASE64_LINE))
    return quoted(f"base64:type{type_}:" + "\n".join(lines))


def _temporal_text(type_: int, packed: int) -> str:
    # Packed as in sql-common/my_time.cc (TIME_from_longlong_*_packed): 24 bits of microseconds below the rest.
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
    whole, fraction = divmod(precision - scale, _DIGITS_PER_WORD), divmod(scale, _DIGITS_PER_WORD)
    return 4 * (whole[0] + fraction[0]) + _WORD_BYTES[whole[1]] + _WORD_BYTES[fraction[1]]


def decimal_text(raw: bytes, precision: int, scale: int) -> str:
    """A DECIMAL(precision, scale) from its binary form, with all digits of its scale.

    Raises MalformedJsonError when `raw` has another size than the type asks for.
    """
    size, words = _decimal_form(precision, scale)
    if len(raw) != size:
        raise MalformedJsonError(f"a DECIMAL({precision},{scale}) of {len(raw)} bytes")
    is_negative = raw[0] < 0x80  # the sign bit is inverted, and so are all bits of a negative number
    sign_bit = 1 << 8 * size - 1
    number = int.from_bytes(raw, "big") ^ (sign_bit - 1 if is_negative else sign_bit)
    total = 0
    for shift, mask, limit in words:
        total = total * limit + (number >> shift & mask)
    text = f"{total:0{scale + 1}d}"
    if scale:
        text = f"{text[:-scale]}.{text[-scale:]}"
    return "-" + text if is_negative else text


@lru_cache(maxsize=1000)
def _decimal_form(precision: int, scale: int) -> tuple[int, list[tuple[int, int, int]]]:
    """A DECIMAL's bytes, and of each word of up to nine digits: where its lowest bit is, its mask, its limit."""
    if not 0 < precision <= _MAX_DIGITS or not 0 <= scale <= precision:
        raise MalformedJsonError(f"a DECIMAL({precision},{scale})")
    size = decimal_size(precision, scale)
    words, before = [], 0
    whole, fraction = divmod(precision - scale, _DIGITS_PER_WORD), divmod(scale, _DIGITS_PER_WORD)
    for digits in (whole[1], *[_DIGITS_PER_WORD] * (whole[0] + fraction[0]), fraction[1]):
        before += _WORD_BYTES[digits]
        words.append((8 * (size - before), (1 << 8 * _WORD_BYTES[digits]) - 1, 10**digits))
    return size, words
