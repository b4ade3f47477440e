"""A count in a sentence goes with its noun and its verb, whether it is one or more."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from viewtail.changes.counting import agreeing, counted
from viewtail.commands import contract, preview
from viewtail.operations import cleaner, rebuild, version_resets


@pytest.mark.parametrize(
    ("nouns", "one", "more"),
    [
        ("keys", "1 key", "2 keys"),
        ("entities", "1 entity", "2 entities"),
        ("copies", "1 copy", "2 copies"),
        ("processes", "1 process", "2 processes"),
        ("dead letters", "1 dead letter", "2 dead letters"),
    ],
)
def test_one_is_singular_and_no_other_count_is(nouns: str, one: str, more: str) -> None:
    assert counted(1, nouns) == one
    assert counted(2, nouns) == more
    assert counted(0, nouns) == f"0 {nouns}" and counted(1_000, nouns) == f"1,000 {nouns}"


@pytest.mark.parametrize(("verb", "of_one"), [("are", "is"), ("were", "was"), ("have", "has"), ("differ", "differs")])
def test_the_verb_agrees_with_the_count(verb: str, of_one: str) -> None:
    assert [agreeing(count, verb) for count in (0, 1, 2)] == [verb, of_one, verb]
    assert counted(1, "keys", verb) == f"1 key {of_one}"
    assert counted(2, "keys", verb) == f"2 keys {verb}"


def _differing(count: int) -> list[str]:
    report: Any = SimpleNamespace(
        counts=SimpleNamespace(differing=Counter(wrong=count), foreign=count), found=(), foreign=("a",) * count
    )
    return rebuild.differences(report)


def test_what_keeps_a_copy_from_readers_is_counted_in_a_sentence() -> None:
    assert _differing(1) == ["1 entity is wrong", "1 key that viewtail did not write is in its place"]
    assert _differing(2) == ["2 entities are wrong", "2 keys that viewtail did not write are in its place"]


def _lowered(count: int) -> str:
    return version_resets.words({"lowered_count": count, "lowered": [{"key": "7", "from": 9, "to": 8}] * count})


def test_what_a_repair_and_the_cleaner_did_is_counted_in_a_sentence() -> None:
    assert _lowered(1).startswith("; 1 version lowered: ")
    assert _lowered(2).startswith("; 2 versions lowered: ")
    assert cleaner._words({"entities": 1, "differing": {"wrong": 1}}) == "1 entity written again: 1 wrong"
    assert cleaner._words({"entities": 2, "differing": {"wrong": 2}}) == "2 entities written again: 2 wrong"


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "1 statement, 1 view breaks: redis:view_0"),
        (2, "2 statements, 2 views break: redis:view_0, redis:view_1"),
    ],
)
def test_what_a_migration_would_break_is_counted_in_a_sentence(
    count: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    effects: Any = [SimpleNamespace(view=f"redis:view_{number}", breaks=True) for number in range(count)]
    contract._print_end([*range(count)], effects, 0)  # type: ignore[list-item]
    assert said in capsys.readouterr().out.splitlines()


def _previewed(count: int) -> str:
    view: Any = SimpleNamespace(id="redis:user", table=SimpleNamespace(full_name="shop.user"))
    found: Any = SimpleNamespace(row_count=count, same_count=count, differences=[], refused={})
    return next(preview._lines(view, found))


def test_what_a_preview_found_is_counted_in_a_sentence() -> None:
    assert "of 1 row of shop.user, " in _previewed(1) and _previewed(1).endswith("1 stays as it is")
    assert "of 2 rows of shop.user, " in _previewed(2) and _previewed(2).endswith("2 stay as they are")
