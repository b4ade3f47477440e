"""Groups: which declarations can work, and what a batch touches of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from projectors.binding import bind
from projectors.projection import Projections, followed_tables
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.stores.topics.views import Topic
from projectors.views import Group, View
from viewtail import Count, Max, Min, Sum
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Batch, Refused, RowChanges, Unreadable
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table

UTF8 = {"charset": "utf8mb4", "collation": "utf8mb4_0900_ai_ci"}


def column(name: str, kind: Kind, declared: str, **more: Any) -> Column:
    return Column(name=name, kind=kind, declared=declared, **{"is_nullable": True, **more})


ORDERS = Table(
    schema="shop",
    name="order",
    columns=(
        column("id", Kind.INTEGER, "bigint", is_nullable=False),
        column("shop_id", Kind.INTEGER, "int"),
        column("status", Kind.TEXT, "varchar(20)", length=20, **UTF8),
        column("state", Kind.ENUM, "enum('paid','open')", labels=("paid", "open"), **UTF8),
        column("amount", Kind.DECIMAL, "decimal(12,2)", precision=12, scale=2),
        column("weight", Kind.DOUBLE, "double"),
        column("note", Kind.TEXT, "text", **UTF8),
        column("key", Kind.TEXT, "varchar(256)", length=256, **UTF8),
        column("old", Kind.TEXT, "varchar(9)", charset="sjis", collation="sjis_bin"),
        column("doc", Kind.JSON, "json"),
        column("at", Kind.UNSUPPORTED, "point"),
    ),
    primary_key=("id",),
)


def bound(*views: View) -> Any:
    return bind(views, lambda *_: ORDERS)


def group(**values: Any) -> Group:
    return Group("shop.order", by=["shop_id", "status"], values=values or {"orders": Count()})


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda: Group("order", by="status", values={"n": Count()}), r"Group\('order'\): the table is written"),
        (lambda: Group("shop.order_##", by="status", values={"n": Count()}), "a group is of the rows of one table"),
        (lambda: Group("shop.order", by=[], values={"n": Count()}), "by names one column or several"),
        (lambda: Group("shop.order", by=["a", "a"], values={"n": Count()}), "by: a is named twice"),
        (lambda: Group("shop.order", by="status", values={}), "values is a dict"),
        (lambda: Group("shop.order", by="status", values=[Count()]), "values is a dict"),  # type: ignore[arg-type]
        (lambda: group(n="COUNT(*)"), r"values\['n'\] is over the rows of the group: Count\(\)"),
        (lambda: group(n=Count("shop.line", by="order_id")), "with no table and no by="),
        (lambda: group(Status=Count()), "status is there already"),
        (lambda: group(n=Count(), N=Sum("amount")), "n is there already"),
        (lambda: group(**{"x" * 65: Count()}), "1 to 64 characters"),
    ],
)
def test_a_declaration_that_no_table_can_mend_is_refused_at_once(declare: Callable[[], Group], why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        declare()


@pytest.mark.parametrize(
    ("by", "values", "why"),
    [
        ("shop", {"n": Count()}, "shop.order has no column shop; did you mean shop_id"),
        ("weight", {"n": Count()}, "by: column weight of shop.order is DOUBLE, whose values have no exact equality"),
        ("doc", {"n": Count()}, "by: column doc of shop.order is JSON, whose values have no exact equality"),
        ("note", {"n": Count()}, "by: column note of shop.order is TEXT, whose values are too large"),
        ("key", {"n": Count()}, r"by: column key of shop.order is VARCHAR\(256\), whose values are too large"),
        (
            "old",
            {"n": Count()},
            r"by: column old of .* in the character set sjis, where some characters have two codes",
        ),
        ("at", {"n": Count()}, "by: column at of shop.order is POINT, which viewtail cannot read exactly"),
        ("status", {"n": Sum("amuont")}, r"values\['n'\]: shop.order has no column amuont; did you mean amount"),
        ("status", {"n": Sum("weight")}, r"values\['n'\]: Sum of column weight .* only sums of integers and"),
        ("status", {"n": Min("note")}, r"values\['n'\]: Min of column note"),
        (
            "status",
            {"n": Count(where="LENGTH(note) > 3")},
            r"values\['n'\]: where='LENGTH\(note\) > 3' of shop.order: ",
        ),
    ],
)
def test_what_its_table_cannot_do_is_a_problem_of_the_view(by: str, values: Any, why: str) -> None:
    with pytest.raises(DeclarationError, match=f"view redis:orders: {why}"):
        bound(RedisHash("orders", Group("shop.order", by=by, values=values), fields=["n"]))


def test_a_view_shows_the_columns_of_the_group_and_its_values_and_no_others() -> None:
    entity = group(orders=Count(), total=Sum("amount"))
    with pytest.raises(DeclarationError, match="has no column ordres; did you mean orders"):
        bound(RedisHash("orders", entity, fields=["ordres"]))
    with pytest.raises(DeclarationError, match="has no column amount; it has shop_id, status, orders, total"):
        bound(SearchIndex("orders", entity, fields=["amount"]))


def test_a_view_depends_on_the_columns_of_the_values_that_it_uses() -> None:
    entity = group(orders=Count(), large=Count(where="amount > 100"), heaviest=Max("weight"), total=Sum("amount"))
    views = bound(
        RedisHash("orders", entity, fields=["orders"]),
        RedisJson("large", entity, document=lambda row: row["large"], where=lambda row: row["shop_id"] == 7),
        RedisJson("all", entity, document=lambda row: dict(row)),
    )
    assert [view.reads for view in views] == [
        ("shop_id", "status"),
        ("shop_id", "status", "amount"),
        ("shop_id", "status", "amount", "weight"),
    ]
    assert [view.needed for view in views] == [
        ("shop_id", "status", "orders"),
        ("shop_id", "status", "large"),
        ("shop_id", "status", "orders", "large", "heaviest", "total"),
    ]
    assert len({view.fingerprint for view in views}) == 3


def test_another_group_another_value_and_another_condition_have_another_fingerprint() -> None:
    views = [
        Group("shop.order", by=by, values={"n": n})
        for by, n in (
            ("status", Count()),
            ("shop_id", Count()),
            ("status", Sum("amount")),
            ("status", Count(where="amount > 1")),
            ("status", Count(where="amount > 2")),
        )
    ]
    assert len({bound(RedisHash("n", entity, fields=["n"]))[0].fingerprint for entity in views}) == 5


def test_a_row_touches_the_group_of_each_image_where_it_is_another_one_in_what_is_used() -> None:
    (view,) = bound(RedisHash("orders", group(total=Sum("amount")), fields=["total"]))
    followed = followed_tables([view])
    table = followed["shop", "order"]
    assert table.columns == ("shop_id", "status", "amount")
    projections = Projections([view], followed)

    def touched(*changes: RowChanges, refused: tuple[Refused, ...] = ()) -> Any:
        batch = Batch(changes=[*changes], refused=[*refused], end=None, row_count=0, byte_count=0, oldest_commit_us=0)
        of_views = projections.of(batch).touched
        return of_views["redis:orders"].versions if of_views else {}

    assert touched(RowChanges(table, INSERT, 5, [(1, "a", 1), (1, None, 1), (None, "a", 1)])) == {(1, "a"): 5}
    assert touched(RowChanges(table, UPDATE, 5, [(1, "a", 1), (1, "a", 1)])) == {}
    assert touched(RowChanges(table, UPDATE, 5, [(1, "a", 1), (1, "a", 2)])) == {(1, "a"): 5}
    moved = RowChanges(table, UPDATE, 5, [(1, "a", 1), (1, "A", 1), (2, "a", 1), (None, "a", 1)])
    assert touched(moved) == {(1, "a"): 5, (1, "A"): 5, (2, "a"): 5}
    assert touched(moved, RowChanges(table, DELETE, 9, [(2, "a", 1)])) == {(1, "a"): 5, (1, "A"): 5, (2, "a"): 9}
    lost = Refused(table, UPDATE, 7, [(1, "a", 1), (1, Unreadable("status"), 1)], "status")
    assert touched(refused=(lost,)) == {(1, "a"): 7}


def test_a_topic_may_have_groups() -> None:
    (view,) = bound(Topic("orders", group(orders=Count(), total=Sum("amount"))))
    assert view.needed == ("shop_id", "status", "orders", "total")


def test_a_list_of_labels_is_a_text_in_the_groups() -> None:
    (view,) = bound(RedisHash("orders", Group("shop.order", by="state", values={"n": Count()}), fields=["n"]))
    (state,) = view.key
    assert (state.kind, state.declared, state.length, state.is_nullable) == (Kind.TEXT, "varchar(4)", 4, False)
