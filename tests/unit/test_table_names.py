"""'schema.table', written and read: a name with a dot stands in backticks, as in SQL."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.kafka.topics import idle, topics_of
from ingest.poll.position import PollPosition
from projectors.stores import plain
from viewtail import Entity, RedisHash
from viewtail.changes.errors import DeclarationError, MisuseError
from viewtail.changes.patterns import pattern_of
from viewtail.changes.tables import NamePattern, Table, full_name, names_of
from viewtail.entities.cells.cell_table import CellTable
from viewtail.entities.event_table import EventTable
from viewtail.operations.erase import views_of
from viewtail.servers.privileges import Privileges
from viewtail.servers.sessions import quote

NAME = st.text(st.sampled_from("ab.`%{}' \"\\#\n☃"), min_size=1, max_size=8)


@given(NAME, NAME)
def test_names_are_read_as_they_were_written(schema: str, table: str) -> None:
    assert names_of(full_name(schema, table)) == (schema, table)
    assert names_of(quote(schema, table)) == (schema, table)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("shop.user", ("shop", "user")),
        ("shop.`t.x`", ("shop", "t.x")),
        ("`a.b`.`t``x`", ("a.b", "t`x")),
        ("`shop`.user", ("shop", "user")),
        ("shop.a`b", ("shop", "a`b")),
        ("shop.50%", ("shop", "50%")),
        ("shop.t.x", None),
        ("shop", None),
        ("shop.", None),
        (".user", None),
        ("shop.``", None),
        ("`shop.user", None),
        ("shop.`user", None),
        ("", None),
    ],
)
def test_these_forms_name_a_table(text: str, names: tuple[str, str] | None) -> None:
    assert names_of(text) == names


def test_an_entity_is_declared_either_way_and_is_the_same() -> None:
    one, other = Entity("shop", "t.x"), Entity("shop.`t.x`")
    assert one == other and one.table == "shop.`t.x`" and one.schema_and_table == ("shop", "t.x")
    assert Entity("shop", "user") == Entity("`shop`.`user`") == Entity("shop.user")
    assert Entity("a.b", "c`d").schema_and_table == ("a.b", "c`d")


@pytest.mark.parametrize("arguments", [("shop.t.x",), ("shop", ""), ("", "user"), ("shop", 5), (5,), ("user",)])
def test_a_refused_entity_is_told_of_both_forms(arguments: tuple[str, ...]) -> None:
    with pytest.raises(DeclarationError) as caught:
        Entity(*arguments)
    assert "Entity('shop', 'order.line')" in str(caught.value) and "Entity('shop.`order.line`')" in str(caught.value)


def test_forget_takes_a_table_in_each_form() -> None:
    views = [
        RedisHash("dotted", Entity("shop", "t.x"), fields=["a"]),
        RedisHash("user", Entity("shop.user"), fields=["a"]),
    ]
    for form in ("shop.`t.x`", "`shop`.`t.x`", "t.x", "`t.x`", "shop.t.x"):
        assert [view.name for view in views_of(form, views)] == ["dotted"]
    for form in ("shop.user", "user", "`user`", "`shop`.`user`"):
        assert [view.name for view in views_of(form, views)] == ["user"]
    with pytest.raises(MisuseError, match=r"shop\.`t\.x`"):
        views_of("shop.`t.y`", views)


def test_tables_of_entities_and_cells_may_have_a_dot() -> None:
    for table in (EventTable("bank.`ac.count`"), CellTable("`bank`.`ac.count`")):
        assert table.quoted == "`bank`.`ac.count`" and table.name == "bank.`ac.count`"
    assert CellTable("bank.`ac.count`").quoted_triggers == "`bank`.`ac.count_trigger`"


def test_polled_tables_with_a_dot_are_found_by_their_pattern() -> None:
    pattern = pattern_of("shop", NamePattern("t.##"))
    table = Table(schema="shop", name="t.##", columns=(), primary_key=(), pattern=pattern)
    position = PollPosition(1, 1, {"shop.`t.01`": (1, ()), "shop.t01": (1, ()), "other.`t.02`": (1, ())})
    assert position.of_pattern(table) == ["shop.`t.01`"]


def test_a_topic_is_named_for_a_table_with_a_dot() -> None:
    tables, given = [("shop", "t.x"), ("shop", "user")], ["shop.`t.x`=changes", "`shop`.`user`=users"]
    assert topics_of(tables, given) == {("shop", "t.x"): "changes", ("shop", "user"): "users"}
    assert idle(tables, given) == []
    assert topics_of([("shop", "t.x")], ["prefix.shop.t.x"]) == {("shop", "t.x"): "prefix.shop.t.x"}


def test_grants_on_a_table_whose_name_looks_like_the_end_of_a_grant_are_read() -> None:
    held = Privileges(["GRANT SELECT ON `shop`.`a TO b` TO `me`@`%`", "GRANT SELECT ON `s\\_h%`.* TO `me`@`%`"])
    assert held.missing(["SELECT"], "shop", "a TO b") == []
    assert held.missing(["SELECT"], "shop", "a") == ["SELECT"]
    assert held.missing(["SELECT"], "s_hop", "t.x") == []


@pytest.mark.parametrize(("name", "expected"), [("user", "user"), ("_t.x%", "t_x_"), ("日本", "rows"), ("A-1", "A-1")])
def test_an_example_has_a_name_that_each_store_takes(name: str, expected: str) -> None:
    assert plain(name) == expected
