"""What an index table has of a JSON list, and what a sorted set has as a score."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projectors.stores import Unfit
from projectors.stores.index_tables.elements import element_column, elements, packed
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.scores import score_text
from projectors.stores.redis.views import RedisSet, RedisSortedSet
from projectors.views import Entity
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind


def of(type_: str, text: str | None) -> tuple[Any, ...]:
    column = element_column("tags", type_)
    assert column is not None
    return elements(text, column)


@pytest.mark.parametrize("text", [None, "null", "[]", " [ ] "])
def test_nothing_is_shown_of_a_null_and_of_an_empty_list(text: str | None) -> None:
    assert of("INT", text) == ()
    assert packed(()) is None


@pytest.mark.parametrize(
    ("type_", "text", "values"),
    [
        ("varchar(3)", '["b", "a", "b", "äöü", "😀😀😀"]', ("a", "b", "äöü", "😀😀😀")),
        ("INT", "[3, 1, 2, 1, 3.0, 1e0]", (1, 2, 3)),
        ("TINYINT UNSIGNED", "[0, 255]", (0, 255)),
        ("mediumint", "[-8388608, 8388607]", (-8388608, 8388607)),
        ("DECIMAL(3,1)", "[1, 1.0, 1.00, -99.9, 0, -0.0]", (Decimal("-99.9"), Decimal("0.0"), Decimal("1.0"))),
        ("decimal(65)", f"[{'9' * 65}]", (Decimal("9" * 65),)),
        ("BOOLEAN", "[true, false]", (0, 1)),
    ],
)
def test_each_value_is_there_once_in_the_type_that_was_declared(type_: str, text: str, values: tuple[Any, ...]) -> None:
    assert of(type_, text) == values


@pytest.mark.parametrize(
    ("type_", "text", "reason"),
    [
        ("INT", "{}", "holds an object, not a list"),
        ("INT", "5", "holds a number, not a list"),
        ("INT", "[1", "no JSON"),
        ("INT", "[NaN]", "no JSON"),
        ("INT", "[" * 100_000, "no JSON"),
        ("INT", '[1, "2"]', "value 2 of its list is a text, and the view's values are INT"),
        ("INT", "[true]", "is true or false"),
        ("INT", "[null]", "is null"),
        ("INT", "[{}]", "is an object"),
        ("INT", "[1.5]", "is no whole number"),
        ("INT", "[2147483648]", "is outside the range"),
        ("INT", "[1e999999999]", "is outside the range"),
        ("INT UNSIGNED", "[-1]", "is outside the range"),
        ("BOOLEAN", "[1]", "is a number, and the view's values are BOOLEAN"),
        ("DECIMAL(3,1)", "[100]", "is outside the range"),
        ("DECIMAL(3,1)", "[0.05]", "has more digits after the point"),
        ("DECIMAL(3,1)", "[1e-999999999]", "has more digits after the point"),
        ("VARCHAR(3)", '["abcd"]', "has 4 characters"),
        ("VARCHAR(3)", "[1]", "is a number, and the view's values are VARCHAR(3)"),
        ("VARCHAR(3)", '["\\ud83d"]', "lone surrogate"),
    ],
)
def test_a_list_with_a_value_that_does_not_fit_is_refused_without_the_value(type_: str, text: str, reason: str) -> None:
    with pytest.raises(Unfit, match=reason.replace("(", r"\(").replace(")", r"\)")):
        of(type_, text)


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(_texts), st.randoms())
def test_the_order_and_the_number_of_a_lists_values_make_no_difference(values: list[str], chance: Any) -> None:
    twice = [*values, *values]
    chance.shuffle(twice)
    found = of("VARCHAR(20)", json.dumps(twice))
    assert found == tuple(sorted(set(values)))
    assert of("VARCHAR(20)", packed(found)) == found


@pytest.mark.parametrize(
    "type_", ["TEXT", "VARCHAR", "VARCHAR(0)", "VARCHAR(99999)", "DECIMAL(66,2)", "DOUBLE", "", "INT x"]
)
def test_other_types_are_refused_in_the_declaration(type_: str) -> None:
    with pytest.raises(DeclarationError, match="each is the type of one value"):
        IndexTable("v", Entity("shop.user"), value="tags", each=type_)


def test_a_view_that_is_declared_without_each_is_what_it_was_before_there_was_one() -> None:
    assert IndexTable("v", Entity("shop.user"), value="tags").particulars == {}


def test_a_set_is_declared_by_the_columns_that_name_it() -> None:
    view = RedisSortedSet("v", Entity("shop.user"), key="a:{x}:b:{y}", score="x")
    assert (view.named, view.shown) == (("x", "y"), ("x", "y"))
    assert RedisSortedSet("v", Entity("shop.user"), key="a:{x}", score="z").shown == ("x", "z")
    for wrong in ("a:{x}:{x}", "a:{", "a:{}"):
        with pytest.raises(DeclarationError):
            RedisSet("v", Entity("shop.user"), key=wrong)


@given(st.integers(0, (1 << 64) - 1))
def test_a_whole_number_is_its_score_exactly_or_refused(value: int) -> None:
    text = score_text(Column(name="n", kind=Kind.INTEGER, declared="bigint unsigned", is_nullable=True))
    assert text is not None
    try:
        assert int(float(text(value))) == value
    except Unfit:
        assert value > 1 << 53
