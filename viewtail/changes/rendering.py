"""Renders values: in keys, JSON documents, Elasticsearch documents, and the rows that users' functions get.

Values are rendered only here; docs/types.md is the table. Everything here is pure and takes values in the canonical
form that `Kind` lists, never None: the caller handles NULL (an absent field, a JSON null). What is called for each row
comes in two steps: a function of the column returns the function of the value."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

import orjson

from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError
from viewtail.changes.tables import TEXTS_IN_BINARY, Column, Kind
from viewtail.changes.writes import Key

Convert = Callable[[Any], Any]

_plain = "{:f}".format  # a Decimal with all its digits
_RAW = frozenset((Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR))
NUMBER_TEXTS: dict[Kind, Callable[[Any], str]] = {  # in keys, and in Redis hash fields
    Kind.INTEGER: str, Kind.FLOAT: repr, Kind.DOUBLE: repr, Kind.DECIMAL: _plain
}  # fmt: skip


# --- Rendered keys ---

ENCODED = {ord("%"): "%25", ord("{"): "%7B", ord("}"): "%7D", ord(":"): "%3A"}
_LINE_ENDS = {ord("\t"): "%09", ord("\n"): "%0A", ord("\r"): "%0D"}
_DECODED = {text[1:]: chr(code) for code, text in (ENCODED | _LINE_ENDS).items()}
_SPECIAL = re.compile("[%{}:]")
MOST_SHOWN = 5  # keys of many, in a record


def text_of(column: Column) -> Convert:
    """The function that gives a value's text as docs/types.md has it: bytes in hexadecimal, other texts as they are."""
    return NUMBER_TEXTS.get(column.kind, bytes.hex if column.kind in _RAW else str)


def render_key(key: Key, columns: Sequence[Column]) -> str:
    """The key as text: its columns joined by ':', bytes as lower-case hex, % { } : in texts percent-encoded.

    A column whose value is the same in all rows is left out. No two keys of one table have the same text, and no text
    holds braces. For many keys use `key_renderer`.
    """
    return key_renderer(columns)(key)


def rendered_columns(columns: Sequence[Column]) -> list[Column]:
    """The columns of a key whose values are in its text."""
    return [column for column in columns if column.constant is None]


def key_renderer(columns: Sequence[Column]) -> Callable[[Key], str]:
    """`render_key` for keys of these columns, made once."""
    told = rendered_columns(columns)
    if len(told) < len(columns):
        render, at = key_renderer(told), [at for at, column in enumerate(columns) if column.constant is None]
        return lambda key: render(tuple([key[number] for number in at]))
    parts = [NUMBER_TEXTS.get(column.kind, bytes.hex if column.kind in _RAW else _encode) for column in columns]
    if len(parts) == 1:
        (only,) = parts
        return lambda key: only(key[0])
    return lambda key: ":".join([part(value) for part, value in zip(parts, key, strict=True)])


def _encode(text: str) -> str:
    return text if text.isalnum() or not _SPECIAL.search(text) else text.translate(ENCODED)


def in_a_line(rendered: str) -> str:
    """A rendered key where a tab or the end of a line would be taken for something else; `parse_key` reads it, too."""
    return rendered.translate(_LINE_ENDS)


def some_in_a_line(rendered: Sequence[str]) -> str:
    """The first of rendered keys, and how many more there are, as a record of them has it."""
    shown = ", ".join(map(in_a_line, rendered[:MOST_SHOWN]))
    return shown + (f" and {len(rendered) - MOST_SHOWN:,} more" if len(rendered) > MOST_SHOWN else "")


def out_of_a_line(text: str) -> str:
    """The rendered key that `in_a_line` made `text` of; one that it left as it was stays so."""
    return re.sub("%0([9AaDd])", lambda match: _DECODED[f"0{match[1].upper()}"], text)


def parse_key(text: str, columns: Sequence[Column]) -> Key:
    """The key that `render_key` made `text` of; bytes may have 0x before them.

    Raises MisuseError with the column and the form expected.
    """
    parts, told = text.split(":"), rendered_columns(columns)
    names = ":".join(column.name.upper() for column in told)
    if len(parts) != len(told):
        raise MisuseError(
            f"the key {text!r} has {counted(len(parts), 'parts')}, but it is written {names} "
            f"({len(told)}); a ':' inside a value is written %3A"
        )
    return whole_key([_parse_part(part, column, text) for part, column in zip(parts, told, strict=True)], columns)


def whole_key(told: Iterable[Any], columns: Sequence[Column]) -> Key:
    """The key with these values of its `rendered_columns`."""
    values = iter(told)
    return tuple([next(values) if column.constant is None else column.constant for column in columns])


def integer_parser(column: Column) -> Callable[[str], Key | None]:
    """The function that parses a rendered key of one integer column; it returns None if the text is not one.

    It agrees with `parse_key` and `render_key`, in a fraction of the time."""
    least = 0 if column.is_unsigned else 1 - 10**20  # of 20 digits

    def parse(text: str) -> Key | None:
        try:
            value = int(text)
        except ValueError:
            return None
        return (value,) if str(value) == text and least <= value < 10**20 else None

    return parse


def _parse_part(part: str, column: Column, text: str) -> Any:
    expected, parse = _PARTS.get(column.kind, ("text, with % { } : written %25 %7B %7D %3A", _parse_text))
    try:
        return parse(part, column)
    except (ValueError, ArithmeticError, LookupError):
        if column.labels:
            expected = "one of " + ", ".join(_encode(label) for label in column.labels)
        elif part.lower() in ("true", "false") and column.declared.startswith(("tinyint(1)", "bit(1)")):
            expected += "; true is 1, false is 0"
        elif column.kind is Kind.BYTES and not re.fullmatch("(?:0[xX])?[0-9a-fA-F]*", part):
            expected += f"; the text {part!r} is written 0x{part.encode('utf-8', 'replace').hex()}"
        raise MisuseError(
            f"the key {text!r} does not fit column {column.name} ({column.declared}): expected {expected}"
        ) from None


def _match(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text)
    if match is None:
        raise ValueError
    return match


def _with_fraction(pattern: str, text: str, column: Column) -> str:
    """The first group, then as many digits after the point as the column has; the second group may have fewer."""
    match = _match(pattern, text)
    digits = match[2] or ""
    if len(digits) > column.scale:
        raise ValueError
    return f"{match[1]}.{digits.ljust(column.scale, '0')}" if column.scale else match[1]


def _parse_integer(part: str, column: Column) -> int:
    return int(_match("[0-9]{1,20}" if column.is_unsigned else "-?[0-9]{1,20}", part)[0])


def _parse_float(part: str, _column: Column) -> float:
    return float(_match(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", part)[0])


def _parse_decimal(part: str, column: Column) -> Decimal:
    return Decimal(_with_fraction(r"(-?[0-9]{1,65})(?:\.([0-9]{1,38}))?", part, column))


def _parse_bytes(part: str, column: Column) -> bytes:
    raw = bytes.fromhex(_match("(?:0[xX])?((?:[0-9a-fA-F]{2})*)", part)[1])
    if column.declared.startswith("binary") and len(raw) != column.length:
        raise ValueError
    return raw


def _parse_text(part: str, _column: Column) -> str:
    return re.sub("%(.{0,2})", lambda match: _DECODED[match[1].upper()], part, flags=re.DOTALL)


def _parse_label(part: str, column: Column) -> str:
    value = _parse_text(part, column)
    if value and value not in column.labels:
        raise ValueError
    return value


def _parse_labels(part: str, column: Column) -> str:
    value = _parse_text(part, column)
    given = value.split(",") if value else []
    if value != ",".join(label for label in column.labels if label in given):
        raise ValueError
    return value


def _parse_moment(part: str, column: Column) -> str:
    return _with_fraction(_MOMENTS[column.kind], _parse_text(part, column), column)


# As far as a server goes that lets impossible days in: it compares nothing with a month of 13.
_CLOCK = "[0-5][0-9]:[0-5][0-9]"
_DAY = "[0-9]{4}-(?:0[0-9]|1[0-2])-(?:[0-2][0-9]|3[01])"
_HOUR = "(?:[01][0-9]|2[0-3])"
_FRACTION = r"(?:\.([0-9]{1,6}))?"
_MOMENTS = {
    Kind.DATE: f"({_DAY})()",
    Kind.TIME: f"(-?[0-9]{{2,3}}:{_CLOCK}){_FRACTION}",
    Kind.DATETIME: f"({_DAY} {_HOUR}:{_CLOCK}){_FRACTION}",
    Kind.TIMESTAMP: f"({_DAY} {_HOUR}:{_CLOCK}){_FRACTION}",
}
_PARTS: dict[Kind, tuple[str, Callable[[str, Column], Any]]] = {
    Kind.INTEGER: ("a whole number", _parse_integer),
    Kind.FLOAT: ("a number such as 1.5 or 1e-07", _parse_float),
    Kind.DOUBLE: ("a number such as 1.5 or 1e-07", _parse_float),
    Kind.DECIMAL: ("a number with no more digits after the point than the column has", _parse_decimal),
    Kind.BYTES: ("bytes in hexadecimal, two digits a byte, as many as the column has", _parse_bytes),
    Kind.GEOMETRY: ("bytes in hexadecimal, two digits a byte", _parse_bytes),
    Kind.VECTOR: ("bytes in hexadecimal, two digits a byte", _parse_bytes),
    Kind.ENUM: ("one of its labels", _parse_label),
    Kind.SET: ("some of its labels in the column's order, joined by ','", _parse_labels),
    Kind.DATE: ("YYYY-MM-DD", _parse_moment),
    Kind.TIME: ("HH%3AMM%3ASS with the column's fraction", _parse_moment),
    Kind.DATETIME: ("YYYY-MM-DD HH%3AMM%3ASS with the column's fraction", _parse_moment),
    Kind.TIMESTAMP: ("YYYY-MM-DD HH%3AMM%3ASS in UTC, with the column's fraction", _parse_moment),
}


# --- JSON documents ---


def json_value(column: Column) -> Convert | None:
    """The function that converts a value for orjson, as docs/types.md says; None if no conversion is needed."""
    if column.kind is Kind.DECIMAL:
        return _plain
    if column.kind is Kind.JSON:
        return orjson.Fragment
    return _base64 if column.kind in _RAW else None


def json_text(column: Column) -> Convert | None:
    """The function that gives the JSON text of a value, which orjson makes of `json_value`; None: `str` does."""
    return _JSON_TEXTS.get(column.kind, encode_basestring)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _orjson_text(value: float) -> str:
    return orjson.dumps(value).decode()


_JSON_TEXTS: dict[Kind, Convert | None] = {
    Kind.INTEGER: None,
    Kind.JSON: None,
    Kind.FLOAT: _orjson_text,
    Kind.DOUBLE: _orjson_text,
    Kind.DECIMAL: '"{:f}"'.format,
    **dict.fromkeys(_RAW, lambda raw: f'"{_base64(raw)}"'),
}


# --- Rows as a user's function sees them ---


def row_value(column: Column) -> Convert | None:
    """The function that converts a value for a user's function; None if no conversion is needed.

    JSON columns are parsed: dict, list, str, int, float, bool or None (a JSON null). Rows in a JSON text have
    the values of their own columns. Other values stay as they are."""
    if column.kind is not Kind.JSON:
        return None
    restore = _restorer(column.fields)
    if restore is None:
        return orjson.loads
    return lambda text: restore(orjson.loads(text))


def _restorer(fields: Sequence[Column]) -> Callable[[Any], Any] | None:
    """The function that gives parsed rows of these columns the values that JSON has no form for; None: it has all."""
    each = [(field.name, restore) for field in fields if (restore := _restored(field)) is not None]
    if not each:
        return None

    def restored(rows: Any) -> Any:
        for row in rows if isinstance(rows, list) else (rows,):
            for name, restore in each:
                if row is not None and row[name] is not None:
                    row[name] = restore(row[name])
        return rows

    return restored


def _restored(field: Column) -> Convert | None:
    """Return the function that restores a column's value from the one that `json_value` made."""
    if field.kind is Kind.DECIMAL:
        return Decimal
    return _restorer(field.fields) if field.kind is Kind.JSON else base64.b64decode if field.kind in _RAW else None


# --- Elasticsearch ---

# Field types that a server may lack because they are an extension of it, and what serves instead there (exact
# search works, ranges compare as text).
OPTIONAL_FIELD_TYPES: dict[str, dict[str, Any]] = {"unsigned_long": {"type": "keyword"}}

_DATE = {"type": "date", "format": "strict_date"}
_MOMENT = {"type": "date", "format": "strict_date_optional_time"}
_MAPPINGS: dict[Kind, dict[str, Any]] = {
    Kind.DECIMAL: {"type": "double"},
    Kind.FLOAT: {"type": "float"},
    Kind.DOUBLE: {"type": "double"},
    Kind.ENUM: {"type": "keyword"},
    Kind.SET: {"type": "keyword"},
    Kind.DATE: _DATE,
    Kind.TIME: {"type": "keyword"},
    Kind.DATETIME: _MOMENT,
    Kind.TIMESTAMP: _MOMENT,
    Kind.JSON: {"type": "object", "enabled": False},
}
_INTEGER_TYPES = {  # column type: (field type, field type when unsigned)
    "tinyint": ("byte", "short"),
    "smallint": ("short", "integer"),
    "mediumint": ("integer", "integer"),
    "int": ("integer", "long"),
    "bigint": ("long", "unsigned_long"),
    "year": ("short", "short"),
}


def search_mapping(column: Column) -> dict[str, Any]:
    """The Elasticsearch field mapping of a column whose mapping the user did not give.

    A 'unsigned_long' (BIGINT UNSIGNED, BIT(64)) is one of OPTIONAL_FIELD_TYPES.
    """
    name = re.split("[( ]", column.declared.lower(), maxsplit=1)[0]
    if column.kind is Kind.INTEGER:
        if name == "bit":
            return {"type": "unsigned_long" if column.length > 63 else "long"}
        return {"type": _INTEGER_TYPES.get(name, ("long", "unsigned_long"))[column.is_unsigned]}
    if column.kind is Kind.TEXT:
        if "text" in name:
            return {"type": "text"}
        if name in TEXTS_IN_BINARY:
            return {"type": "keyword"}
        return {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
    if column.kind in _RAW:
        return {"type": "binary"}
    return dict(_MAPPINGS[column.kind])


def search_value(column: Column) -> Convert | None:
    """The function that converts a value for a search document, for orjson; None if no conversion is needed.

    The function may return None: Elasticsearch cannot hold dates with zero parts, or dates that do not exist."""
    return _SEARCH_VALUES.get(column.kind) or json_value(column)


def _is_day(value: str) -> bool:
    try:
        date.fromisoformat(value[:10])
    except ValueError:
        return False
    return True


_SEARCH_VALUES: dict[Kind, Convert] = {
    Kind.SET: lambda value: value.split(",") if value else [],
    Kind.DATE: lambda value: value if _is_day(value) else None,
    Kind.DATETIME: lambda value: f"{value[:10]}T{value[11:]}" if _is_day(value) else None,
    Kind.TIMESTAMP: lambda value: f"{value[:10]}T{value[11:]}Z" if _is_day(value) else None,
}
