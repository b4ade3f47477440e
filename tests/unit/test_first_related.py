"""Which relations `viewtail init` proposes for a table, told from tables and references alone."""

from __future__ import annotations

from typing import Any

from projectors.related import Count, Many, One, Related
from projectors.stores import Choice
from viewtail.changes.tables import Column, Kind, Table
from viewtail.operations.first_related import Reference, _named, declared, with_related
from viewtail.operations.first_views import views_py


def table(name: str, columns: str, key: str = "id", indexed: str = "") -> Table:
    """All columns are integers; each of `indexed` has an index of its own."""
    primary = tuple(key.split())
    return Table(
        schema="shop",
        name=name,
        columns=tuple(
            Column(name=of, kind=Kind.INTEGER, declared="bigint", is_nullable=False) for of in columns.split()
        ),
        primary_key=primary,
        indexes={"PRIMARY": primary, **{of: (of,) for of in indexed.split()}},
    )


TABLES = {
    each.name: each
    for each in (
        table("users", "id age"),
        table("company", "id size"),
        table("order", "id user_id company_id up_id total", indexed="user_id company_id"),
        table("order_line", "order_id line_no product_id", key="order_id line_no", indexed="product_id"),
        table("product", "id price"),
        table("tag", "id weight"),
        table("order_tag", "order_id tag_id", key="order_id tag_id", indexed="tag_id"),
        table("visit", "id order_id", indexed="order_id"),
    )
}
KNOWN = [reference for each in TABLES.values() for reference in _named(each, TABLES)]


def choice(name: str) -> Choice:
    of = TABLES[name]
    return Choice(table=of, indexed=None, is_looked_up=False, shown=of.columns[1:], searched=())


def related(name: str, **row_counts: int) -> dict[str, Related]:
    return dict(with_related(choice(name), TABLES, KNOWN, row_counts).related)


def test_columns_that_are_called_as_a_table_refer_to_it() -> None:
    assert [(each.table, each.columns, each.parent) for each in KNOWN] == [
        ("order", ("user_id",), "users"),
        ("order", ("company_id",), "company"),
        ("order_line", ("order_id",), "order"),
        ("order_line", ("product_id",), "product"),
        ("order_tag", ("order_id",), "order"),
        ("order_tag", ("tag_id",), "tag"),
        ("visit", ("order_id",), "order"),
    ]


def test_columns_that_are_called_as_a_primary_key_refer_to_its_table() -> None:
    tables = {
        each.name: each
        for each in (
            table("person", "playerid height", key="playerid"),
            table("team", "yearid teamid wins", key="yearid teamid"),
            table("batting", "playerid yearid stint TeamID hits", key="playerid yearid stint"),
            table("user", "id age"),
            table("profile", "user_id length", key="user_id"),
            table("visit", "id user_id at", key="id"),
            table("summary", "playerid at", key="playerid at"),
        )
    }
    named = {each.name: [(of.columns, of.parent) for of in _named(each, tables)] for each in tables.values()}
    assert named == {
        "person": [],
        "team": [],
        "batting": [(("playerid",), "person"), (("yearid", "TeamID"), "team")],
        "user": [],
        "profile": [(("user_id",), "user")],
        "visit": [(("user_id",), "user")],  # that it is called as the table weighs more
        "summary": [(("playerid",), "person")],
    }


def test_what_a_tool_for_alters_left_over_is_no_relation() -> None:
    tables = {
        each.name: each
        for each in (
            table("person", "playerid height", key="playerid"),
            table("_person_del", "playerid height", key="playerid"),
            table("_batting_gho", "playerid stint", key="playerid stint"),
        )
    }
    assert [*_named(tables["_batting_gho"], tables)] == []
    batting = table("batting", "playerid stint", key="playerid stint")
    assert [of.parent for of in _named(batting, tables)] == ["person"]


def test_a_key_that_two_tables_have_or_that_any_table_may_have_refers_to_none() -> None:
    tables = {
        each.name: each
        for each in (
            table("account", "holderid size", key="holderid"),
            table("statement", "holderid length", key="holderid"),
            table("transfer", "number holderid id lang", key="number"),
            table("language", "lang speakers", key="lang"),
            table("country", "id size"),
        )
    }
    assert [*_named(tables["transfer"], tables)] == []


def test_a_row_has_those_that_it_refers_to_and_those_that_refer_to_it() -> None:
    product = One("shop.product", on="product_id")
    assert related("order") == {
        "user": One("shop.users", on="user_id"),
        "company": One("shop.company", on="company_id"),
        "order_line": Many("shop.order_line", by="order_id", related={"product": product}),
        "tag": Many("shop.tag", through="shop.order_tag", by="order_id", to="tag_id"),
        "visit": Many("shop.visit", by="order_id"),
    }
    assert related("company") == {
        "order": Many("shop.order", by="company_id", related={"user": One("shop.users", on="user_id")})
    }
    assert related("order", order=10, visit=5_000)["visit_count"] == Count("shop.visit", by="order_id")


def test_a_name_that_a_column_has_is_not_taken() -> None:
    tables = {**TABLES, "visit": table("visit", "id Order order_id", indexed="order_id")}
    visit = Choice(table=tables["visit"], indexed=None, is_looked_up=False, shown=(), searched=())
    assert list(dict(with_related(visit, tables, KNOWN, {}).related)) == ["order_row"]


def test_what_does_not_fit_is_not_proposed() -> None:
    text = Column(name="product_id", kind=Kind.TEXT, declared="varchar(9)", is_nullable=False, charset="utf8mb4")
    of = TABLES["order_line"]
    odd = Table(schema="shop", name="order_line", columns=(*of.columns[:2], text), primary_key=of.primary_key)
    tables = {**TABLES, "order_line": odd}
    line = Choice(table=odd, indexed=None, is_looked_up=False, shown=(), searched=())
    assert list(dict(with_related(line, tables, KNOWN, {}).related)) == ["order"]
    lines = dict(with_related(choice("order"), tables, KNOWN, {}).related)["order_line"]
    assert lines == Many("shop.order_line", by="order_id"), "without the product, whose type is another"
    assert with_related(choice("tag"), {"tag": TABLES["tag"]}, [], {}).related == ()


def test_what_is_written_declares_the_same() -> None:
    chosen = with_related(choice("order"), TABLES, KNOWN, {})
    assert chosen.missing == ()
    text = views_py([chosen], [], ["redis"])
    namespace: dict[str, Any] = {}
    exec(compile(text, "views.py", "exec"), namespace)
    assert namespace["entity_with_related"] == chosen.entity
    assert "\n    RedisJson('order_document', entity_with_related, document=lambda row: {'user_id': row['u" in text
    two = One("shop.pair", on=["a", "b"], to=["x", "y"])
    assert declared(two, "") == "One('shop.pair', on=['a', 'b'], to=['x', 'y'])"


def test_a_document_whose_index_is_missing_is_a_comment() -> None:
    tables = {**TABLES, "visit": table("visit", "id order_id")}
    chosen = with_related(choice("order"), tables, KNOWN, {})
    assert chosen.missing == ("CREATE INDEX `order_id` ON `shop`.`visit` (`order_id`);",)
    text = views_py([chosen], [], ["redis"])
    first = (
        "    # First, on the primary: CREATE INDEX `order_id` ON `shop`.`visit` (`order_id`);\n    # RedisJson('order_"
    )
    assert first in text
    without = views_py([chosen], [], [])
    assert f" (set VIEWTAIL_REDIS__URL first)\n{first}" in without


def test_a_reference_is_called_as_its_column_says() -> None:
    assert Reference("order", ("billing_user_id",), "users", ("id",)).name == "billing_user"
    assert Reference("order", ("_id",), "users", ("id",)).name == "users"
    assert Reference("order", ("a_id", "b"), "users", ("x", "y")).name == "users"
