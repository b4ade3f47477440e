"""The columns of an index table whose values a function computes (`of=`): their types, and which values fit them.

A value is stored unchanged, as an element of a list is (elements.py), or refused: nothing is cut, rounded or padded."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any

from projectors.stores import Unfit
from projectors.stores.index_tables import elements
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError
from viewtail.changes.rendering import ENCODED, parse_key
from viewtail.changes.tables import Column, Kind

TYPES = f"{elements.TYPES}, DOUBLE, DATE, DATETIME(n), BINARY(n), VARBINARY(n)"
TYPES_OF_WHOLE = f"{TYPES}, TEXT, MEDIUMTEXT, LONGTEXT, BLOB, MEDIUMBLOB, LONGBLOB"  # of a view that is a whole table
MAX_BYTES = 3_072  # of a value in an index

_BYTES = re.compile(r"(binary|varbinary)\s*\(\s*(\d+)\s*\)")
_LONG = re.compile(r"(|medium|long)(text|blob)")
_LENGTHS = {"": 65_535, "medium": 16_777_215, "long": 4_294_967_295}  # bytes; so no text has more characters
_MOMENT = re.compile(r"datetime(?:\s*\(\s*([0-6])\s*\))?")


def value_column(name: str, declared: str) -> Column | None:
    """The column for a type as users write it; None if index tables do not have that type."""
    text = declared.strip().lower()
    column: Column | None = elements.element_column(name, declared)
    more: dict[str, Any] = {"name": name, "is_nullable": True}
    if column is not None:
        return replace(column, is_nullable=True)
    if text in ("double", "double precision"):
        return Column(kind=Kind.DOUBLE, declared="double", **more)
    if text == "date":
        return Column(kind=Kind.DATE, declared="date", **more)
    if match := _MOMENT.fullmatch(text):
        scale = int(match[1] or 0)
        return Column(kind=Kind.DATETIME, declared=f"datetime({scale})" if scale else "datetime", scale=scale, **more)
    if (match := _BYTES.fullmatch(text)) and 1 <= int(match[2]) <= MAX_BYTES:
        length = int(match[2])
        return Column(kind=Kind.BYTES, declared=f"{match[1]}({length})", length=length, **more)
    return None


def whole_table_column(name: str, declared: str) -> Column | None:
    """The column for a type as users write it; None if views that are whole tables do not have that type."""
    match = _LONG.fullmatch(declared.strip().lower())
    if match is None:
        return value_column(name, declared)
    more: dict[str, Any] = {"name": name, "declared": match[0], "is_nullable": True, "length": _LENGTHS[match[1]]}
    return Column(kind=Kind.TEXT, charset="utf8mb4", **more) if match[2] == "text" else Column(kind=Kind.BYTES, **more)


def values_by_name(made: Any, columns: Sequence[Column]) -> tuple[Any, ...] | None:
    """Convert a dict that a function returned to the values of the columns; an absent name is NULL. Raises Unfit.

    None stays None: the row is not in the table."""
    if made is None:
        return None
    if not isinstance(made, Mapping):
        raise Unfit(f"a dict by column name was expected, and not {elements.kind_of(made)}")
    return _of_dict(made, columns)


def _of_dict(made: Mapping[str, Any], columns: Sequence[Column]) -> tuple[Any, ...]:
    if not made.keys() <= {column.name for column in columns}:
        raise Unfit("the dict has a name that the view does not declare")
    return tuple([_fitting(made.get(column.name), column) for column in columns])


def values_of(made: Any, columns: Sequence[Column]) -> tuple[Any, ...]:
    """Convert what a function returned for a row to the values of the columns.

    For one column it returns the value. For several it returns a dict by column name, where an absent name means None,
    or a tuple in column order. None is NULL. Raises Unfit."""
    if len(columns) == 1:
        return (_fitting(made, columns[0]),)
    if made is None:
        return (None,) * len(columns)
    if isinstance(made, Mapping):
        return _of_dict(made, columns)
    if not isinstance(made, tuple | list):
        raise Unfit(f"a dict or a tuple of {len(columns)} values was expected, and not {elements.kind_of(made)}")
    if len(made) != len(columns):
        raise Unfit(f"it has {counted(len(made), 'values')}, and the view has {len(columns)} columns")
    return tuple([_fitting(value, column) for value, column in zip(made, columns, strict=True)])


def list_of(made: Any, column: Column) -> tuple[str | None]:
    """Convert what a function returned, a list or None, to the JSON that a list column would hold. Raises Unfit."""
    if made is None:
        return (None,)
    if not isinstance(made, list | tuple | set | frozenset):
        raise Unfit(f"a list was expected, and not {elements.kind_of(made)}")
    text = f"[{', '.join(_json_texts(made))}]"
    elements.elements(text, column)
    return (text,)


def _json_texts(made: Any) -> Iterator[str]:
    for number, element in enumerate(made, 1):
        if isinstance(element, Decimal) and element.is_finite() and abs(element.adjusted()) < 100:
            yield f"{element:f}"
        elif (
            element is None
            or isinstance(element, bool | int | str)
            or (isinstance(element, float) and isfinite(element))
        ):
            yield json.dumps(element)
        else:
            raise Unfit(f"value {number} of the list is {elements.kind_of(element)} that no list has")


def _fitting(given: Any, column: Column) -> Any:
    if given is None:
        return None
    what = f"the value of {column.name}"
    if column.kind in _FITTING:
        return _FITTING[column.kind](given, column, what)
    if isinstance(given, float | Decimal):
        _check_finite(given, column, what)
        given = Decimal(repr(given)) if isinstance(given, float) else given  # the decimal as written
    elif (
        column.declared == elements.BOOLEAN and type(given) is int and given in (0, 1)
    ):  # a row has a BOOLEAN as 0 or 1
        return given
    return elements.converter(column)(given, column, what)


def _check_finite(given: float | Decimal, column: Column, what: str) -> None:
    if not (given.is_finite() if isinstance(given, Decimal) else isfinite(given)):
        raise elements.too_much(what, column, "is not finite")


def _double(given: Any, column: Column, what: str) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | Decimal):
        raise elements.wrong_kind(given, column, what)
    if not isinstance(given, int):
        _check_finite(given, column, what)
    try:
        value = float(given)
    except OverflowError:
        raise elements.too_much(what, column, "is outside the range") from None
    if not isfinite(value):
        raise elements.too_much(what, column, "is not finite")
    if isinstance(given, int) and int(value) != given:
        raise elements.too_much(what, column, "has more digits than fit")
    return value


def _bytes(given: Any, column: Column, what: str) -> bytes:
    if not isinstance(given, bytes | bytearray | memoryview):
        raise elements.wrong_kind(given, column, what)
    value = bytes(given)
    is_padded = column.declared.startswith("binary")
    if len(value) > column.length or (is_padded and len(value) < column.length):
        raise elements.too_much(what, column, f"has {len(value)} bytes")
    return value


def _day(given: Any, column: Column, what: str) -> str:
    is_day = isinstance(given, date) and not isinstance(given, datetime)
    return _moment_text(given.isoformat() if is_day else given, column, what)


def _moment(given: Any, column: Column, what: str) -> str:
    if isinstance(given, datetime):
        if given.tzinfo is not None:
            given = given.astimezone(UTC).replace(tzinfo=None)
        text, kept = given.isoformat(" ", "microseconds"), len("YYYY-MM-DD HH:MM:SS.") + column.scale
        given = text[:kept].rstrip(".")
        if text[kept:].strip("0"):
            raise elements.too_much(what, column, "has a longer fraction of a second")
    return _moment_text(given, column, what)


def _moment_text(given: Any, column: Column, what: str) -> str:
    if not isinstance(given, str):
        raise elements.wrong_kind(given, column, what)
    try:
        (value,) = parse_key(given.translate(ENCODED), (column,))
    except MisuseError:
        raise Unfit(f"{what} is a text of another form than a {column.type_name} has (docs/types.md)") from None
    text: str = value
    return text


_FITTING: dict[Kind, Callable[[Any, Column, str], Any]] = {
    Kind.TEXT: elements.text_value,
    Kind.DOUBLE: _double,
    Kind.BYTES: _bytes,
    Kind.DATE: _day,
    Kind.DATETIME: _moment,
}
