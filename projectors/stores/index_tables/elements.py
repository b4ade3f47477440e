"""The elements of a list that an index table stores: values of the declared type, each once, sorted.

A value is stored unchanged: a text stays a text, a number a number, true and false are the values of a BOOLEAN. A value
that is not of the type, or does not fit it, refuses the whole list: an index that lacks some of an entity's values
would be wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any

import orjson

from projectors.stores import Unfit
from viewtail.changes.tables import Column, Kind

TYPES = "VARCHAR(n), TINYINT to BIGINT (UNSIGNED), DECIMAL(p,s), BOOLEAN"
MAX_CHARACTERS = 16_383  # of a VARCHAR in utf8mb4; the index allows far fewer

_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "integer": 32, "bigint": 64}
_TEXT = re.compile(r"varchar\s*\(\s*(\d+)\s*\)")
_DECIMAL = re.compile(r"(?:decimal|numeric)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)")
_INTEGER = re.compile(r"(tinyint|smallint|mediumint|int|integer|bigint)(\s+unsigned)?")
BOOLEAN = "tinyint(1)"  # as servers print the type
_EXACT = Context(prec=100)  # a DECIMAL has at most 65 digits


def element_column(name: str, declared: str) -> Column | None:
    """The column for one element of a list, of a type as users write it; None if viewtail does not have that type."""
    text = declared.strip().lower()
    if (match := _TEXT.fullmatch(text)) and 1 <= int(match[1]) <= MAX_CHARACTERS:
        length = int(match[1])
        return _column(name, Kind.TEXT, f"varchar({length})", charset="utf8mb4", length=length)
    if match := _INTEGER.fullmatch(text):
        type_ = "int" if match[1] == "integer" else match[1]
        is_unsigned = match[2] is not None
        return _column(name, Kind.INTEGER, type_ + " unsigned" * is_unsigned, is_unsigned=is_unsigned)
    if match := _DECIMAL.fullmatch(text):
        precision, scale = int(match[1]), int(match[2] or 0)
        if 1 <= precision <= 65 and scale <= min(30, precision):
            return _column(name, Kind.DECIMAL, f"decimal({precision},{scale})", precision=precision, scale=scale)
    if text in ("boolean", "bool", BOOLEAN):
        return _column(name, Kind.INTEGER, BOOLEAN)
    return None


def _column(name: str, kind: Kind, declared: str, **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=declared, is_nullable=False, **more)


def elements(text: str | None, column: Column) -> tuple[Any, ...]:
    """The elements of a JSON list, each once, sorted; empty for a NULL, a JSON null or an empty list.

    Raises Unfit if the text is not a list of values of the column's type."""
    if text is None:
        return ()
    parsed = _parsed(text)
    if parsed is None:
        return ()
    if not isinstance(parsed, list):
        raise Unfit(f"column {column.name} holds {kind_of(parsed)}, not a list")
    convert = converter(column)
    values = {convert(element, column, f"value {number} of its list") for number, element in enumerate(parsed, 1)}
    return tuple(sorted(values))


def packed(values: Sequence[Any]) -> str | None:
    """A list of elements as the JSON that the server parses; None for an empty one."""
    if not values:
        return None
    return orjson.dumps([f"{value:f}" if isinstance(value, Decimal) else value for value in values]).decode()


def _parsed(text: str) -> Any:
    try:
        # Decimal keeps numbers as they are written; a float could change them.
        return json.loads(text, parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Unfit("its list is no JSON") from None


def _no_constant(_: str) -> Any:
    raise ValueError


def converter(column: Column) -> Callable[[Any, Column, str], Any]:
    """The function from (element, column, what) to the element in the column's form.

    It raises Unfit, whose message calls the element `what`."""
    if column.kind is Kind.TEXT:
        return text_value
    if column.declared == BOOLEAN:
        return _boolean
    return _decimal if column.kind is Kind.DECIMAL else _integer


def text_value(given: Any, column: Column, what: str) -> str:
    """A text that fits the column. Raises Unfit."""
    if not isinstance(given, str):
        raise wrong_kind(given, column, what)
    if len(given) > column.length:
        raise too_much(what, column, f"has {len(given)} characters")
    if not given.isascii() and any("\ud800" <= character <= "\udfff" for character in given):
        raise Unfit(f"{what} has a lone surrogate, which is no character")
    return given


def _boolean(given: Any, column: Column, what: str) -> int:
    if not isinstance(given, bool):
        raise wrong_kind(given, column, what)
    return int(given)


def _integer(given: Any, column: Column, what: str) -> int:
    if not isinstance(given, int | Decimal) or isinstance(given, bool):
        raise wrong_kind(given, column, what)
    bits = _INTEGER_BITS[column.declared.split()[0]]
    least, most = (0, 1 << bits) if column.is_unsigned else (-1 << bits - 1, 1 << bits - 1)
    if not least <= given < most:  # checked first: int() of a large exponent would make as many digits
        raise too_much(what, column, "is outside the range")
    if given != int(given):
        raise too_much(what, column, "is no whole number")
    return int(given)


def _decimal(given: Any, column: Column, what: str) -> Decimal:
    if not isinstance(given, int | Decimal) or isinstance(given, bool):
        raise wrong_kind(given, column, what)
    value = Decimal(given)
    if value.copy_abs() >= Decimal(10) ** (column.precision - column.scale):
        raise too_much(what, column, "is outside the range")
    rounded = _EXACT.quantize(value, Decimal(1).scaleb(-column.scale))
    if rounded != value:
        raise too_much(what, column, "has more digits after the point")
    return rounded or rounded.copy_abs()  # no -0


def wrong_kind(given: Any, column: Column, what: str) -> Unfit:
    """The error for a value that is not of the column's type."""
    type_ = "BOOLEAN" if column.declared == BOOLEAN else column.type_name
    return Unfit(f"{what} is {kind_of(given)}, and the view's values are {type_}")


def too_much(what: str, column: Column, why: str) -> Unfit:
    """The error for a value of the right kind that the column's type has no room for."""
    return Unfit(f"{what} {why}, and the view's values are {column.type_name}")


def kind_of(given: Any) -> str:
    """The kind of a value, for people, without the value."""
    if given is None:
        return "null"
    if isinstance(given, bool):
        return "true or false"
    if isinstance(given, str):
        return "a text"
    if isinstance(given, list):
        return "a list"
    if isinstance(given, int | float | Decimal):
        return "a number"
    return "an object" if isinstance(given, dict) else f"of the type {type(given).__name__}"
