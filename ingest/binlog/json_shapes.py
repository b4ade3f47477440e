"""Code made for kinds of small JSON objects and arrays: those with the same keys, and values of the same types.

What a table's documents have in common is judged once and not for each document. `made_for` gives a function for one
kind; it takes values that lie one behind the other, as the server writes them, and raises Unusual for anything else,
which `json_binary` then reads step by step. The code depends on the types alone; keys come to it as values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

OBJECT, ARRAY = 0, 2
LITERAL, INT16, UINT16, INT32, UINT32, INT64, UINT64, DOUBLE, STRING = range(4, 13)
OPAQUE = 15
MOST_MEMBERS = 64

Reader = Callable[[bytes, int, int, int], str]  # of (value's bytes, place, end, depth left)

_ENTRY = {LITERAL: "xBx", INT16: "xh", UINT16: "xH"}  # others: "xH", the place
_FIXED = {INT32: ("<i", 4), UINT32: ("<I", 4), INT64: ("<q", 8), UINT64: ("<Q", 8), DOUBLE: ("<d", 8)}


class Unusual(Exception):
    """A value that this code does not read; it may be right or wrong."""


def made_for(
    heads: Sequence[str], tail: str, types: bytes, entries: int, rest: int, names: dict[str, Any]
) -> Reader:
    """A function for one kind of object or array.

    Args:
        heads: what stands before each value.
        tail: what stands behind the last.
        types: of the values.
        entries: where the values' entries begin, from the container's own place.
        rest: where the values' bytes may begin.
        names: what the code calls: LITERALS, child, quoted, double, length.
    """
    source = _source(types)
    unpack = struct.Struct("<" + "".join(_ENTRY.get(type_, "xH") for type_ in types)).unpack_from
    heads_by_name = {f"h{number}": head for number, head in enumerate(heads)}
    scope = names | heads_by_name | {"tail": tail, "unpack": unpack, "ENTRIES": entries, "REST": rest}
    scope |= {f"at{type_}": struct.Struct(code).unpack_from for type_, (code, _) in _FIXED.items()}
    scope["Unusual"] = Unusual
    exec(source, scope)
    run: Reader = scope["run"]
    return run


@lru_cache(maxsize=1000)
def _source(types: bytes) -> Any:
    outside = [number for number, type_ in enumerate(types) if type_ not in _ENTRY]
    following = dict(zip(outside, [f"p{number}" for number in outside[1:]] + ["end"], strict=True))
    variables = ", ".join(f"v{number}" for number in range(len(types)))
    lines = ["def run(raw, at, end, depth):", f"    {variables}, = unpack(raw, at + ENTRIES)"]
    lines += [f"    p{number} = at + v{number}" for number in outside]
    if outside:
        lines.append(f"    if v{outside[0]} < REST: raise Unusual")
    shown = []
    for number, type_ in enumerate(types):
        place, limit = f"p{number}", following.get(number, "")
        if type_ == STRING:
            lines += [
                f"    b, n = {place} + 1, raw[{place}]",
                f"    if n > 127: b, n = length(raw, {place})",
                "    e = b + n",
                f"    if e > {limit}: raise Unusual",
                f"    s{number} = str(raw[b:e], 'utf-8')",
                f"    if not s{number}.isprintable() or '\"' in s{number} or '\\\\' in s{number}:",
                f"        s{number} = quoted(s{number})[1:-1]",
            ]
            shown.append(f'{{h{number}}}"{{s{number}}}"')
            continue
        if type_ == LITERAL:
            value = f"LITERALS[v{number}]"
        elif type_ in (INT16, UINT16):
            value = f"v{number}"
        elif type_ in _FIXED:
            lines.append(f"    if {place} + {_FIXED[type_][1]} > {limit}: raise Unusual")
            value = f"at{type_}(raw, {place})[0]"
            if type_ == DOUBLE:
                lines.append(f"    d{number} = {value}")
                value = f"double(d{number})"
        else:
            lines.append(f"    c{number} = child(raw, {type_}, {place}, {limit}, depth)")
            value = f"c{number}"
        shown.append(f"{{h{number}}}{{{value}}}")
    lines.append(f"    return f'{''.join(shown)}{{tail}}'")
    return compile("\n".join(lines), "<reader of a kind of JSON>", "exec")
