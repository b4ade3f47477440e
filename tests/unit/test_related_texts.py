"""Related rows as JSON texts: what is written by compiled functions is what orjson makes of the values."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest

from projectors.derived.texts import texts_into
from projectors.derived.tree import Hop, Node
from viewtail.changes.rendering import json_text, json_value
from viewtail.changes.tables import Column, Kind, Table

TABLE = Table(schema="shop", name="line", columns=(), primary_key=())
HOP = Hop(TABLE, (), TABLE, ())
VALUES: list[tuple[Kind, list[Any]]] = [
    (Kind.INTEGER, [0, -1, 2**64 - 1]),
    (Kind.DECIMAL, [Decimal("12.50"), Decimal("-0.00"), Decimal("1E+3")]),
    (Kind.FLOAT, [1.5, -0.0, 1e-7, 3.0e38]),
    (Kind.DOUBLE, [0.1, 1e16, 5e-324, 1.7976931348623157e308]),
    (Kind.TEXT, ["", "plain", 'quo"te', "back\\slash", "new\nline\t\x00\x1f\x7f", "ß€😀\u2028", "{}"]),
    (Kind.ENUM, ["a", 'b"']),
    (Kind.SET, ["a,b"]),
    (Kind.DATE, ["2026-01-31"]),
    (Kind.TIME, ["-838:59:59"]),
    (Kind.DATETIME, ["2026-01-31 00:00:00.000001"]),
    (Kind.TIMESTAMP, ["2026-01-31 00:00:00"]),
    (Kind.BYTES, [b"", b"\x00\xff"]),
    (Kind.GEOMETRY, [b"\x01"]),
    (Kind.VECTOR, [b"\x02"]),
    (Kind.JSON, ['{"a": [1, "ü"]}', "null"]),
]


def column(name: str, kind: Kind = Kind.TEXT) -> Column:
    return Column(name=name, kind=kind, declared="", is_nullable=True)


def node(*columns: Column, is_many: bool = False, children: tuple[Node, ...] = ()) -> Node:
    return Node(
        name="of", path="of", hops=(HOP,), is_many=is_many, columns=columns, order=(), limit=10, children=children
    )


@pytest.mark.parametrize(("kind", "values"), VALUES)
def test_the_text_of_a_value_is_the_one_that_orjson_makes(kind: Kind, values: list[Any]) -> None:
    convert, text = json_value(column("a", kind)), json_text(column("a", kind)) or str
    for value in values:
        whole = orjson.loads(orjson.dumps(value if convert is None else convert(value)))
        assert orjson.loads(text(value)) == whole
        assert repr(orjson.loads(text(value))) == repr(whole)  # -0.0, too


@pytest.mark.parametrize(
    "name", ["plain", "{brace}", "}{", 'quo"te', "apo's", "both'\"", "back\\slash", "ü{0!r}", "null"]
)
def test_a_row_is_an_object_whatever_its_columns_are_called(name: str) -> None:
    into: dict[Any, str] = {}
    texts_into(node(column(name), column("n", Kind.INTEGER)), 1)([(7, "x", None), (8, None, 3)], into)
    assert {key: orjson.loads(text) for key, text in into.items()} == {
        7: {name: "x", "n": None},
        8: {name: None, "n": 3},
    }


def test_rows_are_listed_in_order_under_what_groups_them_with_what_belongs_to_them() -> None:
    into: dict[Any, list[str]] = defaultdict(list)
    child = replace(node(column("b")), name="child")
    rows = [(1, "g", "first"), (1, "h", "alone"), (1, "g", "last")]
    texts_into(node(column("a"), is_many=True, children=(child,)), 2)(rows, into, ['{"b":1}', None, '{"b":2}'])
    assert {key: [orjson.loads(text) for text in texts] for key, texts in into.items()} == {
        (1, "g"): [{"a": "first", "child": {"b": 1}}, {"a": "last", "child": {"b": 2}}],
        (1, "h"): [{"a": "alone", "child": None}],
    }
