"""Conditions over a table's columns, as SQL in declarations: read into a tree, and written anew from it.

Only what is known here is written: a column is compared with constants of its own type, so that the server compares
as the column does. Nothing depends on the moment, the session or another row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeAlias

from ingest.charsets import can_hold
from projectors.binding import unknown_column
from projectors.masking import check_plain
from viewtail.changes.errors import DeclarationError, nearest
from viewtail.changes.tables import Column, Kind, Table
from viewtail.servers.literals import literal
from viewtail.servers.sessions import quote

if TYPE_CHECKING:
    from sqlglot import exp

Constant: TypeAlias = "int | Decimal | float | str | bytes"

_MAY_BE_WRITTEN = (
    "a condition compares columns with constants: =, <>, <, <=, >, >=, <=>, BETWEEN, IN (...), IS NULL, IS NOT NULL, "
    "with AND, OR, NOT and parentheses"
)
# By the name of sqlglot's node, which is imported late: it is large. Each with the same where the constant is first.
_COMPARISONS = {
    "EQ": ("=", "="),
    "NEQ": ("<>", "<>"),
    "LT": ("<", ">"),
    "LTE": ("<=", ">="),
    "GT": (">", "<"),
    "GTE": (">=", "<="),
    "NullSafeEQ": ("<=>", "<=>"),
}
_EXACT = frozenset({Kind.INTEGER, Kind.DECIMAL})
_NUMBERS = _EXACT | {Kind.FLOAT, Kind.DOUBLE}
_TEXTS = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET})
_DAY = r"(?P<day>\d{4}-\d\d-\d\d)"
_TIME_OF_DAY = r"(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?"
_MOMENTS = {
    Kind.DATE: (re.compile(_DAY, re.ASCII), "'YYYY-MM-DD'"),
    Kind.TIME: (re.compile(r"-?\d{2,3}:[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?", re.ASCII), "'HH:MM:SS'"),
    Kind.DATETIME: (re.compile(rf"{_DAY}(?: {_TIME_OF_DAY})?", re.ASCII), "'YYYY-MM-DD HH:MM:SS'"),
    Kind.TIMESTAMP: (re.compile(rf"{_DAY}(?: {_TIME_OF_DAY})?", re.ASCII), "'YYYY-MM-DD HH:MM:SS', in UTC"),
}
_NO_DAY = "0000-00-00"
_MOST_DIGITS = 65  # of a DECIMAL


@dataclass(frozen=True, slots=True)
class Condition:
    """Which rows of a table count."""

    sql: str  # over the table's own column names, quoted
    columns: tuple[Column, ...]  # that it depends on


def condition_of(text: str, table: Table) -> Condition:
    """Read a condition. Raises DeclarationError for anything but plain comparisons of the table's columns."""
    try:
        reading = _Reading(table)
        sql = reading.condition(_tree_of(text))
    except DeclarationError as error:
        raise DeclarationError(f"where={text!r} of {table.full_name}: {error}") from None
    return Condition(sql, tuple(column for column in table.columns if column.name in reading.names))


def _tree_of(text: str) -> exp.Expr:
    from sqlglot.dialects.mysql import MySQL
    from sqlglot.errors import SqlglotError

    dialect = MySQL()
    try:
        if any(token.comments for token in dialect.tokenize(text)):
            raise DeclarationError("it has a comment; write the condition alone")
        trees = dialect.parse(text)
    except (SqlglotError, RecursionError) as error:
        raise DeclarationError(f"it cannot be read{_near(error)}; {_MAY_BE_WRITTEN}") from None
    if len(trees) != 1 or trees[0] is None:
        raise DeclarationError(f"it is no single condition; {_MAY_BE_WRITTEN}")
    return trees[0]


def _near(error: Exception) -> str:
    words = [place["highlight"] for place in getattr(error, "errors", ()) if place.get("highlight")]
    return f" near {words[0]!r} (a name that is a word of SQL is written in backticks)" if words else ""


class _Reading:
    """Writes conditions on one table; `names` are the columns that they had."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.names: set[str] = set()
        self._kinds: dict[str, Callable[[Any], str]] = {
            **dict.fromkeys(_COMPARISONS, self._comparison),
            "And": self._all_or_any,
            "Or": self._all_or_any,
            "Not": self._not,
            "Paren": lambda node: self.condition(node.this),
            "In": self._in,
            "Is": self._is,
            "Between": self._between,
        }

    def condition(self, node: exp.Expr) -> str:
        """SQL of one condition, in parentheses where it has several parts."""
        write = self._kinds.get(type(node).__name__)
        if write is None:
            raise _not_read(node)
        return write(node)

    def _all_or_any(self, node: exp.Connector) -> str:
        word = type(node).__name__
        # A chain is as deep a tree as it has parts, on its left.
        return "(" + f" {word.upper()} ".join(self.condition(part) for part in _chain(node)) + ")"

    def _not(self, node: exp.Not) -> str:
        return f"(NOT {self.condition(node.this)})"

    def _comparison(self, node: exp.Binary) -> str:
        operator, flipped = _COMPARISONS[type(node).__name__]
        named, constant = _plain(node.this), _plain(node.expression)
        if type(named).__name__ != "Column":
            named, constant, operator = constant, named, flipped
        column = self._column(named, node)
        return f"{quote(column.name)} {operator} {_constant(constant, column, node)}"

    def _in(self, node: exp.In) -> str:
        if not node.expressions:  # of a subquery, and of nothing
            raise _not_read(node)
        column = self._column(_plain(node.this), node)
        values = ", ".join(_constant(_plain(constant), column, node) for constant in node.expressions)
        return f"{quote(column.name)} IN ({values})"

    def _between(self, node: exp.Between) -> str:
        if node.args.get("symmetric") is not None:
            raise _not_read(node)
        column = self._column(_plain(node.this), node)
        low, high = (_constant(_plain(node.args[end]), column, node) for end in ("low", "high"))
        return f"{quote(column.name)} BETWEEN {low} AND {high}"

    def _is(self, node: exp.Is) -> str:
        if type(node.expression).__name__ != "Null":
            raise _not_read(node)
        return f"{quote(self._column(_plain(node.this), node).name)} IS NULL"

    def _column(self, node: exp.Expr, around: exp.Expr) -> Column:
        if type(node).__name__ != "Column" or type(node.this).__name__ != "Identifier":
            raise _not_read(around)
        name = node.name
        if node.args.get("table") is not None:
            raise DeclarationError(f"{_text_of(node)} names its table; write {name}")
        column = self._table.column(name)
        if column is None:
            raise DeclarationError(unknown_column(self._table, name, "column"))
        if column.kind is Kind.UNSUPPORTED:
            raise DeclarationError(f"column {name} is {column.type_name}, which viewtail cannot read")
        check_plain(column, self._table, "the condition asks for it")
        self.names.add(name)
        return column


def _chain(node: exp.Connector) -> Iterator[exp.Expr]:
    parts = []
    here: exp.Expr = node
    while type(here) is type(node):
        parts.append(here.expression)
        here = here.this
    return iter([here, *reversed(parts)])


def _plain(node: exp.Expr) -> exp.Expr:
    """Without its parentheses."""
    return node.unnest()


def _constant(node: exp.Expr, column: Column, around: exp.Expr) -> str:
    """The literal of a constant. Raises DeclarationError where it is none, or of another type than the column."""
    if type(node).__name__ == "Null":
        raise DeclarationError(f"{_text_of(around)}: nothing equals NULL; write IS NULL or IS NOT NULL")
    value = _value(node)
    if value is None:
        raise _not_read(around)
    for why in _misfits(value, column):
        raise DeclarationError(f"{_text_of(around)}: column {column.name} is {column.type_name}{why}")
    return _literal(value, column)


def _value(node: exp.Expr) -> Constant | None:
    """The value of a constant; None where it is none."""
    kind = type(node).__name__
    if kind == "Boolean":
        return int(bool(node.this))
    if kind == "HexString":
        with suppress(ValueError):
            return bytes.fromhex("0" * (len(node.this) % 2) + node.this)
        return None
    if kind == "Literal" and node.is_string:
        return str(node.this)
    is_negative = kind == "Neg"
    digits = _plain(node.this) if is_negative else node
    if type(digits).__name__ != "Literal" or digits.is_string:
        return None
    return _number(f"{'-' * is_negative}{digits.this}")


def _number(text: str) -> int | Decimal | float | None:
    if re.fullmatch(r"-?\d+", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"-?\d*\.\d*", text, re.ASCII):
        return Decimal(text)
    if re.fullmatch(r"-?\d*\.?\d*e[+-]?\d+", text, re.ASCII | re.IGNORECASE) and isfinite(float(text)):
        return float(text)
    return None


def _misfits(value: Constant, column: Column) -> Iterator[str]:
    """Why a constant is not of a column's type: the server would compare both as something else."""
    if column.kind in _NUMBERS:
        return _number_misfits(value, column)
    if column.kind in _TEXTS:
        return _text_misfits(value, column)
    if column.kind in _MOMENTS:
        return _moment_misfits(value, column)
    if column.kind is Kind.BYTES:
        return iter([] if isinstance(value, str | bytes) else [", and is compared with a text or X'...'"])
    return iter([", of which can only be said whether it IS NULL"])


def _number_misfits(value: Constant, column: Column) -> Iterator[str]:
    if isinstance(value, str | bytes):
        yield ", and is compared with numbers, without quotes"
    elif isinstance(value, float) and column.kind in _EXACT:
        yield ", and is compared with exact numbers, without an exponent"
    elif not isinstance(value, float) and len(f"{value:f}") > _MOST_DIGITS:
        yield f", and no number has more than {_MOST_DIGITS} digits"


def _text_misfits(value: Constant, column: Column) -> Iterator[str]:
    if not isinstance(value, str):
        yield ", and is compared with texts, in quotes"
    elif column.charset is not None and not can_hold(column.charset, value):
        yield f" in the character set {column.charset}, which cannot hold {value!r}"
    elif column.kind is Kind.ENUM and value.casefold() not in ("", *map(str.casefold, column.labels)):
        yield f", and never has the value {value!r}" + nearest(value, column.labels)


def _moment_misfits(value: Constant, column: Column) -> Iterator[str]:
    pattern, form = _MOMENTS[column.kind]
    match = pattern.fullmatch(value) if isinstance(value, str) else None
    day = match and match.groupdict().get("day")
    if match is None or (day is not None and not _is_day(day)):
        yield f", and is compared with {form}"


def _is_day(text: str) -> bool:
    try:
        return text == _NO_DAY or bool(date.fromisoformat(text))
    except ValueError:
        return False


def _literal(value: Constant, column: Column) -> str:
    if isinstance(value, float):
        return literal(value, column)
    if isinstance(value, int | Decimal):
        return f"{value:f}" if isinstance(value, Decimal) else f"{value}"
    if column.kind is Kind.BYTES:
        return literal(value.encode() if isinstance(value, str) else value, column)
    return literal(value, column)


def _not_read(node: exp.Expr) -> DeclarationError:
    return DeclarationError(f"{_text_of(node)} is not read; {_MAY_BE_WRITTEN}")


def _text_of(node: exp.Expr) -> str:
    text = node.sql(dialect="mysql")
    return text if len(text) <= 60 else f"{text[:60]}..."
