"""Related rows as JSON texts: what is written by compiled functions is what orjson makes of the values."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from projectors.binding import bind
from projectors.derived import documents, texts
from projectors.derived.joins import TooManyRowsError
from projectors.derived.texts import belonging_to, texts_into, values_of
from projectors.derived.tree import Hop, Node
from projectors.related import Many
from projectors.stores.redis.views import RedisJson
from projectors.views import Entity
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


def test_a_text_that_many_rows_have_is_not_built_into_all_of_them_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    number = column("id", Kind.INTEGER)
    product_hop = Hop(TABLE, (number,), TABLE, (number,))
    product = replace(node(column("title")), name="product", hops=(product_hop,))
    lines = replace(node(number, is_many=True, children=(product,)), hops=(product_hop,))
    rows_of = {"product": [(7, "x" * 1000)], "of": [(root, 7) for root in range(10)]}
    monkeypatch.setattr(texts, "child_rows", lambda _, of, groups: rows_of[of.name])
    belonging, roots = belonging_to([number], [lines]), [(root,) for root in range(10)]
    assert len(values_of(None, belonging, roots)["of"]) == 10
    monkeypatch.setattr(texts, "BYTES_BUILT", 5_000)  # one SELECT gives 1,000 bytes; ten lines come to 10,000
    with pytest.raises(TooManyRowsError):
        values_of(None, belonging, roots)


def test_rows_that_others_belong_to_are_read_as_far_as_their_bytes_go(monkeypatch: pytest.MonkeyPatch) -> None:
    number = replace(column("id", Kind.INTEGER), is_nullable=False)
    tables = {
        "order": Table(schema="shop", name="order", columns=(number, column("body")), primary_key=("id",)),
        "line": Table(
            schema="shop", name="line", columns=(number, replace(number, name="order_id")), primary_key=("id",)
        ),
    }
    entity = Entity("shop.order", related={"lines": Many("shop.line", by="order_id")})
    (view,) = bind([RedisJson("made", entity, document=dict)], lambda _, name: tables[name])
    asked: list[float] = []

    def bounded(_: Any, statement: str, columns: Any, max_bytes: float) -> Any:
        asked.append(max_bytes)
        return [tuple(1 if one is number else "x" for one in columns)], True

    monkeypatch.setattr(documents, "fetch_bounded", bounded)
    monkeypatch.setattr(documents, "values_of", lambda *_: {"lines": ["[]"]})
    closed: list[bool] = []
    connection = SimpleNamespace(close=lambda: closed.append(True))
    assert view.derived is not None
    assert len(view.derived.fetch(connection, view.derived.table.columns, max_bytes=1_000)) == 1
    assert asked == [1_000] and closed == [True]
