"""JSON that another program wrote is told again as MySQL prints it."""

from __future__ import annotations

import json
from decimal import Decimal

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from viewtail.changes.json_text import double_text, retold

DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
CHARACTERS = st.characters(exclude_categories=["Cs"])
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(CHARACTERS)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ('{"a":1,"b":[true,false,null]}', '{"a": 1, "b": [true, false, null]}'),
        (' { "a" :\n[ ] } ', '{"a": []}'),
        ("{}", "{}"),
        ('"x, y: {z}"', '"x, y: {z}"'),
        ('"\\u001F\\u000a\\/\\u00e9"', '"\\u001f\\n/é"'),
        ("18446744073709551615", "18446744073709551615"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("100000000000000000000", "1e20"),
        ("-100000000000000000000.5", "-100000000000000000000.5"),
        ("1.10", "1.10"),
        ("1.0E10", "10000000000.0"),
        ("1e20", "1e20"),
        ("0.0000000999999999999999954748111825886258685613938723690807819366455078125", "0.0000001"),
        ("123456789.099999994039535522460937500", "123456789.1"),
        ("-0.0", "-0.0"),
        ("999999999999.999999990000000000000000000000", "999999999999.999999990000000000000000000000"),
        ("1234567890123456789012345", "1234567890123456789012345"),
    ],
)
def test_a_document_is_as_mysql_prints_it(found: str, wanted: str) -> None:
    assert retold(found) == wanted
    assert retold(wanted) == wanted


@given(DOUBLES)
@example(1.936522253392263e17)  # which stands there as an integer does
def test_a_double_written_with_all_its_digits_is_found_again(value: float) -> None:
    exact = format(Decimal(value), "f")
    if len(exact.strip("-0.").replace(".", "")) > 17 and ("." in exact or abs(value) >= 2**64):
        assert retold(f"[{exact}]") == f"[{double_text(value)}]"


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(CHARACTERS), inner)))
def test_a_document_means_the_same_afterwards(document: object) -> None:
    text = json.dumps(document)
    assert orjson.loads(retold(text)) == document
    assert retold(retold(text)) == retold(text)


@pytest.mark.parametrize("bad", ["", "{", "NaN", "[1,]", "'a'", "1 2", '"\\ud800"'])
def test_what_is_no_json_is_refused(bad: str) -> None:
    with pytest.raises(ValueError):
        retold(bad)
