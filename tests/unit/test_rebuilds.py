"""Names and places of second copies."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from projectors.binding import bind, declaration_hash, made_by
from projectors.stores.index_tables.table import table_name
from projectors.stores.registry import store_of
from projectors.views import BoundView, View
from viewtail import Entity, IndexTable, RedisHash, RedisJson, RedisSet, RedisSortedSet, SearchIndex, Topic
from viewtail.changes.copy_ids import copy_id, is_copy, view_of
from viewtail.changes.errors import DeclarationError, StopRequested
from viewtail.changes.tables import Column, Kind, Table
from viewtail.operations import rebuild
from viewtail.operations.rebuild import Operation

USER = Table(
    schema="shop",
    name="user",
    columns=(
        Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),
        Column(name="email", kind=Kind.TEXT, declared="varchar(60)", is_nullable=True, charset="utf8mb4", length=60),
    ),
    primary_key=("id",),
)


def bound(view: View) -> BoundView:
    (found,) = bind([view], lambda schema, name: USER)
    return found


def test_a_copy_beside_has_an_id_and_a_place_of_its_own() -> None:
    live = bound(IndexTable("by_email", Entity("shop.user"), value="email"))
    beside = replace(live, copy=2, is_beside=True)
    assert (live.id, beside.id) == ("mysql:by_email", "mysql:by_email~2")
    assert view_of(beside.id) == view_of(live.id) == live.id
    assert is_copy(beside.id) and not is_copy(live.id)
    assert (table_name(live), table_name(beside)) == ("by_email", "by_email__viewtail_2")
    assert copy_id(live.id, 2) == beside.id


def test_the_table_of_a_copy_of_a_view_with_a_long_name_is_no_other_views() -> None:
    names = {
        table_name(
            replace(bound(IndexTable("x" * 60 + end, Entity("shop.user"), value="email")), copy=3, is_beside=True)
        )
        for end in ("aaaa", "aaab", "")
    }
    assert len(names) == 3
    assert all(len(name) <= 64 for name in names)


@pytest.mark.parametrize("name", ["by_email~2", "by_email__viewtail_2"])
def test_a_name_of_a_copy_is_no_views_name(name: str) -> None:
    with pytest.raises(DeclarationError, match="copies"):
        bound(IndexTable(name, Entity("shop.user"), value="email"))


def test_each_store_says_whether_its_views_have_second_copies() -> None:
    user = Entity("shop.user")
    views = [
        IndexTable("by_email", user, value="email"),
        IndexTable("by_tag", user, value="tags", each="VARCHAR(20)"),
        RedisHash("user", user, fields=["email"]),
        RedisJson("user_json", user, fields=["email"]),
        RedisSet("members", user, key="team:{team}"),
        RedisSortedSet("ranks", user, key="rank:{generation}:{team}", score="id"),
        SearchIndex("user", user, fields={"email": "keyword"}),
    ]
    assert {view.id: store_of(view).no_copies(view) for view in views} == dict.fromkeys((one.id for one in views), "")
    topic = Topic("user", user)
    assert "topic" in store_of(topic).no_copies(topic)


PEOPLE, CITY = Entity("shop.user"), Entity("shop.city")


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: IndexTable("v", PEOPLE, value="a", previous=RedisHash("v", PEOPLE, fields=["a"])), "not a RedisHash"),  # type: ignore[arg-type]
        (lambda: IndexTable("v", PEOPLE, value="a", previous=IndexTable("w", PEOPLE, value="b")), "another name, 'w'"),
        (lambda: IndexTable("v", PEOPLE, value="a", previous=IndexTable("v", CITY, value="b")), "another entity"),
        (
            lambda: IndexTable(
                "v", Entity("shop.user", key="id"), value="a", previous=IndexTable("v", PEOPLE, value="a")
            ),
            "another entity",
        ),
        (
            lambda: IndexTable("v", PEOPLE, value="a", each="INT", previous=IndexTable("v", PEOPLE, value="a")),
            "another each, None",
        ),
        (
            lambda: RedisHash("v", PEOPLE, fields=["a"], key="u:{id}", previous=RedisHash("v", PEOPLE, fields=["b"])),
            "another key, None",
        ),
        (
            lambda: IndexTable(
                *("v", PEOPLE),
                value="a",
                previous=IndexTable("v", PEOPLE, value="b", previous=IndexTable("v", PEOPLE, value="c")),
            ),
            "has a previous= itself",
        ),
    ],
)
def test_previous_is_the_same_view(declare: Callable[[], View], says: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(says)):
        declare()


def test_a_copy_is_treated_by_the_declaration_that_made_it() -> None:
    before = IndexTable("by_email", PEOPLE, value="email")
    view = bound(IndexTable("by_email", PEOPLE, value="email", where=lambda row: row["id"] > 1, previous=before))
    beside = replace(view, copy=3, is_beside=True)
    made = made_by(beside, declaration_hash(before))
    assert made is not None and made.view is before and made.id == beside.id
    assert made_by(view, declaration_hash(view.view)) is view
    assert made_by(view, "another") is None


def test_previous_is_no_part_of_a_declaration() -> None:
    before = IndexTable("by_email", PEOPLE, value="email", where=lambda row: row["id"] > 1)
    alone, both = IndexTable("v", PEOPLE, value="email"), IndexTable("v", PEOPLE, value="email", previous=None)
    assert declaration_hash(alone) == declaration_hash(both)
    after = IndexTable("by_email", PEOPLE, value="email")
    assert declaration_hash(after) == declaration_hash(IndexTable("by_email", PEOPLE, value="email", previous=before))


def test_a_previous_one_whose_columns_are_gone_leaves_the_present_one_alone() -> None:
    view = bound(IndexTable("v", PEOPLE, value="email", previous=IndexTable("v", PEOPLE, value="mail")))
    assert view.previous is None and "has no column mail" in view.previous_misfit


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({}, "no viewtail runs pipeline redis, which does this. Start one: viewtail run"),
        ({"state": "paused", "paused": "by me"}, "is paused. To go on: viewtail resume --pipeline redis"),
        ({"state": "retrying", "error": "Redis does not answer"}, "is retrying: Redis does not answer"),
        ({"state": "running"}, None),
    ],
)
def test_who_waits_for_a_rebuild_is_told_why_nothing_happens(
    now: dict[str, str], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    pipelines = {"redis": SimpleNamespace(**{"paused": None, "error": None, **now})} if now else {}
    monkeypatch.setattr(rebuild, "pipelines_now", lambda _: pipelines)
    view: Any = SimpleNamespace(id="redis:pkg")
    one = Operation(catalog=SimpleNamespace(), view=view, say=said.append, stop=threading.Event())
    one.stop.set()  # it does not wait for long
    with pytest.raises(StopRequested):
        one._wait("building", "redis")
    assert said[0].remark is None if told is None else said[0].remark.endswith(told)
