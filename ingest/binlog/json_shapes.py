"""Code made for kinds of small JSON objects and arrays: those with the same keys, and values of the same types.

What a table's documents have in common is judged once and not for each document. `made_for` gives a function for one
kind; it takes values that lie one behind the other, as the server writes them, and raises Unusual for anything else,
which `json_binary` then reads step by step. The code depends on the types alone; keys come to it as values.

Which kind a value is of is seldom looked up: the function of the last one in its place is tried, and says None when the
value is of another kind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

OBJECT, ARRAY = 0, 2
LITERAL, INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING = range(4, 13)
MOST_MEMBERS = 64

# Of (value's bytes, place, end at the latest, depth left).
Reader = Callable[[bytes, int, int, int], str | None]

_PLAIN_DOUBLE = "1e-4 <= {0} < 1e15"  # which Python writes as MySQL does
_ENTRY = {LITERAL: "xBx", INT16: "xh", UINT16: "xH"}  # others: "xH", the place
_FIXED = {INT32: ("<i", 4), UINT32: ("<I", 4), INT64: ("<q", 8), UINT64: ("<Q", 8), DOUBLE: ("<d", 8)}


class Unusual(Exception):
    """A value that this code does not read; it may be right or wrong."""


def unknown(_raw: bytes, _at: int, _end: int, _depth: int) -> None:
    """The reader before the first: every value is of another kind."""


def made_for(heads: Sequence[str], tail: str, kind: tuple[bytes, ...], names: dict[str, Any]) -> Reader:
    """A function for one kind of object or array.

    Args:
        heads: what stands before each value.
        tail: what stands behind the last.
        kind: the bytes of the keys' entries, of their names, and the values' types; of an array only these.
        names: what the code calls: LITERALS, child, quoted, double, length.
    """
    types = kind[-1]
    keys, members = kind[:-1] if len(kind) > 1 else (b"", b"")
    entries_at = 4 + len(keys)
    rest = entries_at + 3 * len(types) + len(members)
    entries = "".join(_ENTRY.get(type_, "xH") for type_ in types)
    scope = names | {f"h{number}": head for number, head in enumerate(heads)}
    scope |= {
        "unpack": struct.Struct(f"<HH{len(keys)}s{entries}{len(members)}s").unpack_from,
        "COUNT": len(types), "KEYS": keys, "MEMBERS": members, "TYPES": types, "REST": rest, "tail": tail,
        "ENTRIES": entries_at, "ENTRIES_END": entries_at + 3 * len(types), "Unusual": Unusual,
    }  # fmt: skip
    scope |= {f"at{type_}": struct.Struct(code).unpack_from for type_, (code, _) in _FIXED.items()}
    scope |= {f"g{number}": [unknown] for number, type_ in enumerate(types) if type_ in (OBJECT, ARRAY)}
    exec(_source(types), scope)
    run: Reader = scope["run"]
    return run


@lru_cache(maxsize=1000)
def _source(types: bytes) -> Any:
    outside = [number for number, type_ in enumerate(types) if type_ not in _ENTRY]
    following = dict(zip(outside, [*(f"p{number}" for number in outside[1:]), "stop"], strict=False))
    variables = ", ".join(f"v{number}" for number in range(len(types)))
    lines = [
        "def run(raw, at, end, depth):",
        "    if at + REST > end: return None",
        f"    count, size, keys, {variables}, members = unpack(raw, at)",
        "    if count != COUNT or keys != KEYS or members != MEMBERS: return None",
        "    if raw[at + ENTRIES:at + ENTRIES_END:3] != TYPES: return None",
        "    stop = at + size",
        "    if stop > end or size < REST or not depth: raise Unusual",
    ]
    lines += [f"    p{number} = at + v{number}" for number in outside]
    if outside:
        lines.append(f"    if v{outside[0]} < REST: raise Unusual")
    shown: list[str] = []
    for number, type_ in enumerate(types):
        steps, value = _value(type_, number, following.get(number, ""))
        lines += steps
        shown.append(f"{{h{number}}}{value}")
    lines += _quoting([f"s{number}" for number, type_ in enumerate(types) if type_ == STRING])
    lines.append(f"    return f'{''.join(shown)}{{tail}}'")
    return compile("\n".join(lines), "<reader of a kind of JSON>", "exec")


def _value(type_: int, number: int, limit: str) -> tuple[list[str], str]:
    """The lines that read a value, which ends at `limit`, and what stands for it in the f-string of the whole."""
    place = f"p{number}"
    if type_ == STRING:
        lines = [
            f"    b, n = {place} + 1, raw[{place}]",
            f"    if n > 127: b, n = length(raw, {place})",
            "    e = b + n",
            f"    if e > {limit}: raise Unusual",
            f"    s{number} = raw[b:e].decode()",
        ]
        return lines, f'"{{s{number}}}"'
    if type_ == LITERAL:
        return [], f"{{LITERALS[v{number}]}}"
    if type_ in (INT16, UINT16):
        return [], f"{{v{number}}}"
    if type_ in _FIXED:
        lines, value = [f"    if {place} + {_FIXED[type_][1]} > {limit}: raise Unusual"], f"at{type_}(raw, {place})[0]"
        if type_ == DOUBLE:
            lines.append(f"    d{number} = {value}")
            value = f"repr(d{number}) if {_PLAIN_DOUBLE.format(f'd{number}')} else double(d{number})"
        return lines, f"{{{value}}}"
    value, child = f"c{number}", f"child(raw, {type_}, {place}, {limit}, depth - 1"
    if type_ in (OBJECT, ARRAY):
        lines = [
            f"    {value} = g{number}[0](raw, {place}, {limit}, depth - 1)",
            f"    if {value} is None: {value} = {child}, g{number})",
        ]
        return lines, f"{{{value}}}"
    return [f"    {value} = {child})"], f"{{{value}}}"


def _quoting(strings: list[str]) -> list[str]:
    """The lines that quote strings, after one look at all of them whether one needs it."""
    if not strings:
        return []
    return [
        f"    t = {strings[0]}" if len(strings) == 1 else f"    t = f'{{{'}{'.join(strings)}}}'",
        "    if not t.isprintable() or '\"' in t or '\\\\' in t:",
        *(f"        {name} = quoted({name})[1:-1]" for name in strings),
    ]
