"""What is taken out of the sentences of viewtail's own tables, and what stays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from viewtail.changes.rendering import parse_key
from viewtail.changes.tables import Column, Kind
from viewtail.operations.own_traces import ERASED, OwnTraces
from viewtail.operations.rebuild import differences
from viewtail.operations.replay_keys import keys_from_texts

ID = Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False)
NAME = Column(name="name", kind=Kind.TEXT, declared="varchar(40)", is_nullable=False, charset="utf8mb4", length=40)


def traces(rendered: str, *columns: Column) -> OwnTraces:
    return OwnTraces(
        cursor=None, database="own", tables={"shop.user"}, key=parse_key(rendered, columns), columns=columns,
        views={"redis:v"}, known=(),
    )  # fmt: skip


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
    view: Any = type("View", (), {"key": (column,), "of_source": staticmethod(list), "own": staticmethod(list)})
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


@pytest.mark.parametrize(
    ("key", "column", "before", "after"),
    [
        ("17", ID, "such as keys 16, 17, 18", "such as keys 16, {}, 18"),
        ("18", ID, "2 entities are wrong; such as keys 17, 18", "2 entities are wrong; such as keys 17, {}"),
        ("17", ID, "such as key 17; 17 keys that viewtail", "such as key {}; 17 keys that viewtail"),
        ("17", ID, "17 are wrong; such as 17, 18; 17 keys are", "17 are wrong; such as {}, 18; 17 keys are"),
        ("18", ID, "such as 17, 18. Ask again in 18 s", "such as 17, {}. Ask again in 18 s"),
        ("7", ID, "such as keys 17, 70, 7.5", "such as keys 17, 70, 7.5"),
        ("7", ID, "such as keys 1, 7; key 7, 7 keys; such as 7", "such as keys 1, {}; key {}, 7 keys; such as {}"),
        ("run", NAME, "start viewtail run; such as keys a;b, run", "start viewtail run; such as keys a;b, {}"),
    ],
)
def test_a_key_in_a_list_of_keys_goes(key: str, column: Column, before: str, after: str) -> None:
    assert traces(key, column).text(before) == after.replace("{}", ERASED)


def test_what_viewtail_writes_of_keys_is_found_in_it() -> None:
    found = [SimpleNamespace(name=name) for name in ("16", "17", "18")]
    counts = SimpleNamespace(differing={"wrong": 17}, foreign=17)
    for some in (found, found[1:2]):
        report: Any = SimpleNamespace(counts=counts, found=some, foreign=("x",))
        written = "; ".join(differences(report))
        erased = traces("17", ID).text(written) or ""
        assert erased.count(ERASED) == 1 and erased.count("17") == 2 == written.count("17") - 1, written


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("no viewtail runs in it. Start it: viewtail run", None),
        ("the run of view runs, in a run", None),
        ("key run, Redis key 'runs:run', the entry 'run'", "key {}, Redis key 'runs:{}', the entry '{}'"),
        ("run", "{}"),
    ],
)
def test_a_short_word_is_a_key_only_where_it_stands_as_one(before: str, after: str | None) -> None:
    assert traces("run", NAME).text(before) == (after or before).replace("{}", ERASED)


def test_a_key_that_the_word_for_what_was_erased_holds_is_erased_once() -> None:
    of_that = traces("that", NAME)
    once = of_that.text("key that, such as 1, that")
    assert once == f"key {ERASED}, such as 1, {ERASED}"
    assert of_that.text(once) == once


def test_an_empty_key_leaves_texts_as_they_are() -> None:
    empty = traces("", NAME)
    assert empty.text("no row: key '', or none") == "no row: key '', or none"
    assert empty._what("where id = 7 AND name > 'a'") == "where id = 7 AND name > 'a'"


def test_a_text_that_grows_is_cut_to_its_column() -> None:
    text = f"key 7, {'x' * 1993}"
    assert traces("7", ID).text(text) == f"key {ERASED}, {'x' * 2000}"[:2000]
    assert len(traces("7", ID).text("key 7, " * 140, 1000) or "") == 1000
