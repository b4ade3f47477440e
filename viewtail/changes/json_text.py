"""MySQL's own text of JSON: how it writes strings and doubles, and another writer's text brought into that form.

Pure. What MySQL does with numbers is in strings/dtoa.cc (my_gcvt), with strings in sql-common/json_dom.cc
(double_quote).
"""

from __future__ import annotations

import re
from decimal import Decimal

import orjson

_ESCAPES = {code: f"\\u{code:04x}" for code in range(32)} | {
    ord('"'): '\\"', ord("\\"): "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"
}  # fmt: skip


def quoted(text: str) -> str:
    """A string as MySQL prints it in JSON."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return f'"{text.translate(_ESCAPES)}"'


def double_text(value: float) -> str:
    """A JSON double as MySQL prints it: the shortest digits that read back equal, with '.0' if it would look like an
    integer."""
    shown = repr(value)
    if 1e-4 <= abs(value) < 1e15:  # Python writes these alike
        return shown
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
        return f"{sign}{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{point - 1}"
    if point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    if point < len(digits):
        return f"{sign}{digits[:point]}.{digits[point:]}"
    return f"{sign}{digits}{'0' * (point - len(digits))}.0"


def retold(text: str) -> str:
    """The text that MySQL has for a document which another program wrote, its members in MySQL's order.

    A double may stand there as the decimal number that it is exactly, with all its digits. What other programs write
    alike cannot be told apart again: 1 and 1.0, the string "2024-01-02 03:04:05" and such a DATETIME. Raises ValueError
    for what is no JSON.
    """
    orjson.loads(text)
    return _TOKENS.sub(_retold, text)


def _retold(match: re.Match[str]) -> str:
    string, number, mark = match.groups()
    if string:
        return quoted(orjson.loads(string)) if "\\" in string else string
    return _number(number) if number else _MARKS.get(mark, mark) if mark else ""


def _number(text: str) -> str:
    if "e" in text:
        return text  # MySQL's own
    if "E" in text:
        return double_text(float(text))
    digits = text.lstrip("-").replace(".", "").strip("0")
    is_integer = "." not in text and -(1 << 63) <= int(text) < 1 << 64
    if is_integer or ("." in text and len(digits) <= _MOST_DIGITS):
        return text
    value = float(text)
    return double_text(value) if Decimal(value) == Decimal(text) else text


_TOKENS = re.compile(r'("(?:[^"\\]|\\.)*")|(-?[0-9][0-9.eE+-]*)|([,:])|[ \t\r\n]+')
_MARKS = {",": ", ", ":": ": "}
_MOST_DIGITS = 17  # of a double that is written as short as it can be
