"""What is taken out of the sentences of viewtail's own tables, and what stays."""

from __future__ import annotations

from typing import Any

import pytest

from changes.rendering import parse_key
from changes.tables import Column, Kind
from operations.own_traces import ERASED, OwnTraces
from operations.replay_keys import keys_from_texts

ID = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)
NAME = Column(name="name", kind=Kind.TEXT, declared="varchar(40)", is_nullable=False, charset="utf8mb4", length=40)


def traces(rendered: str, *columns: Column) -> OwnTraces:
    return OwnTraces(
        cursor=None, database="own", key=parse_key(rendered, columns), columns=columns, views={"redis:v"}, known=()
    )


@pytest.mark.parametrize(
    ("key", "column", "given", "expected"),
    [
        ("7", ID, ["7"], ERASED),
        ("7", ID, ["70", "007", "17"], f"70, {ERASED}, 17"),
        ("7", ID, ["1", "2", "3", "4", "7", "6", "8"], f"1, 2, 3, 4, {ERASED} and 2 more"),
        ("a, b", NAME, ["x", "a, b", "c"], f"x, {ERASED}, c"),
        ("rock and roll", NAME, ["rock and roll", "rock"], f"{ERASED}, rock"),
    ],
)
def test_a_key_that_was_named_goes_with_the_digest_that_tells_it(
    key: str, column: Column, given: list[str], expected: str
) -> None:
    view: Any = type("View", (), {"key": (column,)})
    for source in ("the keys", "the keys of /tmp/a: list", "parked keys"):
        what = keys_from_texts(view, given, source).what
        assert traces(key, column)._what(what) == f"{source}: {expected}"


@pytest.mark.parametrize(
    "what",
    ["compare", "changed since 2026-11-07T07:07:07Z", "the keys: 70, 17 (0123456789ab)", "where id = 70 OR id = 7.5"],
)
def test_what_names_other_keys_stays_as_it_is(what: str) -> None:
    assert traces("7", ID)._what(what) == what


def test_of_a_condition_all_that_may_be_the_key_goes() -> None:
    assert traces("7", ID)._what("where id=7 AND age > 7") == f"where id={ERASED} AND age > {ERASED}"
    both = traces("7:ada", ID, NAME)
    assert both._what("where id = 7 AND name = 'Ada'") == f"where id = {ERASED} AND name = '{ERASED}'"
    assert both._what("where id = 7") == "where id = 7", "half of a key is none"


def test_a_number_in_a_sentence_is_a_key_only_where_it_is_called_one() -> None:
    of_number = traces("7", ID)
    assert of_number.text("7 keys in a row: key 7, Redis key 'user:7', key '{user:7}:t', key 77") == (
        f"7 keys in a row: key {ERASED}, Redis key 'user:{ERASED}', key '{{user:{ERASED}}}:t', key 77"
    )
    assert traces("ada@x.org", NAME).text("no such place: ada@x.org, ada@x.organ") == (
        f"no such place: {ERASED}, ada@x.organ"
    )
    assert of_number.text(None) is None
