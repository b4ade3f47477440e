"""Which index derived rows need, told from their tables alone."""

from __future__ import annotations

import pytest
import structlog.testing

from projectors.binding import bind
from projectors.derived.look_ups import LookUp, look_ups
from projectors.pipeline_run import _warn_of_missing_indexes
from projectors.related import Count, Many, One
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.views import BoundView, Entity, Group
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table

BIGINT = {"kind": Kind.INTEGER, "declared": "bigint", "is_nullable": False}
TEXT = {"kind": Kind.TEXT, "is_nullable": False, "charset": "utf8mb4", "collation": "utf8mb4_bin"}
LINES = Many("shop.line", by="order_id", limit=50, related={"product": One("shop.product", on="product_id")})
TAGS = Many("shop.tag", through="shop.order_tag", by="order_id", to="tag_id")
ORDER = Entity(
    "shop.order",
    related={
        "who": One("shop.user", on="user_id"),
        "lines": LINES,
        "tags": TAGS,
        "n": Count("shop.line", by="order_id"),
    },
)
COLUMNS = {
    "order": ("id", "user_id"),
    "user": ("id",),
    "line": ("id", "order_id", "product_id"),
    "product": ("id",),
    "tag": ("id",),
    "order_tag": ("order_id", "tag_id"),
}


def bound(**indexes: dict[str, tuple[str, ...]]) -> BoundView:
    def describe(schema: str, name: str) -> Table:
        if name not in COLUMNS:
            raise DeclarationError(f"{schema}.{name} does not exist")
        key = ("order_id", "tag_id") if name == "order_tag" else ("id",)
        return Table(
            schema=schema,
            name=name,
            columns=tuple(Column(name=column, **BIGINT) for column in COLUMNS[name]),
            primary_key=key,
            indexes={"PRIMARY": key, **indexes.get(name, {})},
        )

    (view,) = bind([RedisJson("order", ORDER, document=dict)], describe)
    return view


def missing(view: BoundView) -> set[str]:
    return {each.create_index for each in look_ups([view]) if each.index is None}


def test_each_way_down_and_up_needs_an_index_once() -> None:
    assert missing(bound()) == {
        "CREATE INDEX `order_id` ON `shop`.`line` (`order_id`);",  # the lines of an order, and how many
        "CREATE INDEX `product_id` ON `shop`.`line` (`product_id`);",  # a product's title: which lines
        "CREATE INDEX `user_id` ON `shop`.`order` (`user_id`);",
        "CREATE INDEX `tag_id` ON `shop`.`order_tag` (`tag_id`);",  # its orders are found by the primary key
    }
    lines = next(each for each in look_ups([bound()]) if each.named == "shop.line (order_id)")
    assert (lines.views, lines.limit, lines.is_upward) == (("redis:order",), 50, False)
    assert next(each for each in look_ups([bound()]) if each.named == "shop.line (product_id)").is_upward


def test_an_index_does_that_begins_with_the_columns() -> None:
    view = bound(
        line={"a": ("order_id",), "b": ("product_id", "id")},
        order={"a": ("id", "user_id"), "b": ("user_id", "id")},
        order_tag={"a": ("tag_id",)},
    )
    assert missing(view) == set()
    assert missing(bound(order={"by": ("id", "user_id")})) == missing(bound()), "the column is not the first one"


def test_a_view_of_single_rows_has_no_look_ups() -> None:
    view = bound()
    (plain,) = bind([RedisJson("plain", Entity("shop.user"), document=dict)], lambda *_: view.table)
    assert look_ups([plain]) == []


def look_up(*columns: Column, indexes: dict[str, tuple[str, ...]] | None = None) -> LookUp:
    table = Table(schema="a`b", name="c.d", columns=columns, primary_key=("id",), indexes=indexes or {})
    return LookUp(table=table, columns=columns, is_upward=True, limit=None, views=("v",))


def test_the_statement_quotes_names_takes_a_name_that_is_free_and_prefixes_of_long_columns() -> None:
    code = Column(name="co`de", declared="varchar(20)", length=20, **TEXT)
    assert look_up(code).create_index == "CREATE INDEX `co``de` ON `a``b`.`c.d` (`co``de`);"
    taken = {"CO`DE": (), "co`de_2": ()}
    assert look_up(code, indexes=taken).create_index == "CREATE INDEX `co``de_3` ON `a``b`.`c.d` (`co``de`);"
    wide = Column(name="wide", declared="varchar(1000)", length=1000, **TEXT)
    body = Column(name="body", declared="text", length=65535, **TEXT)
    name = Column(name="name", declared="varchar(768)", length=768, **TEXT)
    assert look_up(wide, body, name).create_index.endswith(" (`wide`(255), `body`(255), `name`);")
    long = [Column(name=letter * 64, **BIGINT) for letter in "ab"]
    assert look_up(*long).create_index.startswith(f"CREATE INDEX `{'a' * 60}` ON ")


@pytest.mark.parametrize(
    ("index", "is_in_key_order"),
    [(("x",), True), (("x", "id"), True), (("x", "y"), False), (("x", "y", "id"), False), ((), True)],
)
def test_whether_the_index_has_the_rows_of_a_value_in_the_order_of_their_key(
    index: tuple[str, ...], is_in_key_order: bool
) -> None:
    assert look_up(Column(name="x", **BIGINT), indexes={"i": index}).is_in_key_order is is_in_key_order


def test_run_says_once_which_indexes_are_missing() -> None:
    with structlog.testing.capture_logs() as logs:
        _warn_of_missing_indexes([bound()])
    assert {entry["mend"] for entry in logs} == missing(bound())
    assert logs[0]["views"] == "redis:order"


def test_a_group_needs_an_index_over_its_columns() -> None:
    bound_before = bound()
    table = bound_before.derived.parts[0].table if bound_before.derived else bound_before.table
    by_user = Group("shop.order", by="user_id", values={"n": Count()})
    (view,) = bind([RedisHash("orders", by_user, fields=["n"])], lambda *_: table)
    assert missing(view) == {"CREATE INDEX `user_id` ON `shop`.`order` (`user_id`);"}
