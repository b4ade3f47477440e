"""Conditions for reading a table by key: the rows beyond a key, and the rows of some keys.

A collation may take other keys for equal ones: whoever asks by key compares what comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from changes.tables import Column
from servers.literals import equals, literal
from servers.sessions import quote


def beyond(columns: Sequence[Column], after: Sequence[Any]) -> str:
    """The condition `(columns) > (after)`, expanded: MySQL reads far too much for the row constructor."""
    pairs = [(quote(column.name), literal(value, column)) for column, value in zip(columns, after, strict=True)]
    name, value = pairs[-1]
    condition = f"{name} > {value}"
    for name, value in reversed(pairs[:-1]):
        condition = f"({name} > {value} OR ({name} = {value} AND {condition}))"
    if len(pairs) == 1:
        return condition
    first, value = pairs[0]
    # The first column's bound by itself lets the optimizer begin its range at the right place.
    return f"{first} >= {value} AND {condition}"


def one_of(columns: Sequence[Column], keys: Sequence[Sequence[Any]]) -> str:
    """The condition for the rows with one of these keys."""
    return " OR ".join(f"({equals(columns, key)})" for key in keys)
