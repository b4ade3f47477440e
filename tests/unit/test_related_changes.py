"""Statements that change tables of which rows are made together: when a view is other than it was, and what follows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs

from projectors import table_changes
from projectors.binding import bind
from projectors.outcomes import End, Ended
from projectors.projection import followed_tables
from projectors.related import Count, Many, One, Related, Sum
from projectors.stores.redis.store import RedisStore
from projectors.stores.redis.views import RedisJson
from projectors.table_changes import TableChanges
from projectors.view_life import BackfillGate, _concerned
from projectors.views import BoundView, Entity, Group
from viewtail.changes.batches import Halt, TableChange, TableChangeKind
from viewtail.changes.tables import Column, Kind, Table

Document = Callable[[Any], Any]
WHOLE: Document = lambda row: {"lines": row["lines"]}  # noqa: E731 - what a declaration has
TITLES: Document = lambda row: {"lines": [line["title"] for line in row["lines"]]}  # noqa: E731


def column(name: str, declared: str = "bigint", kind: Kind = Kind.INTEGER, **more: Any) -> Column:
    return Column(name=name, declared=declared, kind=kind, **{"is_nullable": False, **more})


def text(name: str, charset: str = "utf8mb4", collation: str = "utf8mb4_general_ci", length: int = 40) -> Column:
    return column(name, f"varchar({length})", Kind.TEXT, length=length, charset=charset, collation=collation)


class Shop:
    """Its tables as the server describes them now."""

    def __init__(self) -> None:
        self.tables = {
            "order": self.table("order", column("id"), text("code")),
            "line": self.table(
                "line", column("id"), column("order_id"), text("title"), text("status"), text("line_no"), column("qty")
            ),
            "product": self.table("product", column("id"), text("code"), text("title")),
        }

    @staticmethod
    def table(name: str, *columns: Column, key: tuple[str, ...] = ("id",)) -> Table:
        return Table(schema="shop", name=name, columns=columns, primary_key=key)

    def describe(self, schema: str, name: str) -> Table:
        assert schema == "shop"
        return self.tables[name]

    def modify(self, name: str, changed: Column) -> None:
        columns = [changed if of.name == changed.name else of for of in self.tables[name].columns]
        self.tables[name] = replace(self.tables[name], columns=tuple(columns))

    def add(self, name: str, *columns: Column) -> None:
        self.tables[name] = replace(self.tables[name], columns=(*self.tables[name].columns, *columns))

    def bind(self, entity: Entity, document: Document | None = None) -> BoundView:
        (view,) = bind([RedisJson("v", entity, document=document or (lambda row: dict(row)))], self.describe)
        return view


@pytest.fixture
def shop() -> Shop:
    return Shop()


def related(**of: Related) -> Entity:
    return Entity("shop.order", related=of)


LINES = related(lines=Many("shop.line", by="order_id", order_by="line_no"))
PAID = related(paid=Count("shop.line", by="order_id", where="status = 'paid'"))
BINARY = {
    "an order": (LINES, TITLES, text("line_no", collation="utf8mb4_bin")),
    "a condition": (PAID, lambda row: {"paid": row["paid"]}, text("status", collation="utf8mb4_bin")),
    "what is shown, in another character set": (LINES, TITLES, text("title", "cp1251", "cp1251_general_ci")),
    "a group": (Group("shop.line", by="status", values={"n": Count()}), None, text("status", collation="utf8mb4_bin")),
    "the condition of a group": (
        Group("shop.line", by="order_id", values={"n": Count(where="status = 'paid'")}),
        None,
        text("status", collation="utf8mb4_bin"),
    ),
}
CASES = pytest.mark.parametrize(("entity", "document", "changed"), BINARY.values(), ids=BINARY)


class Applying:
    """What a statement about a table does to a view that is bound to it as it was before."""

    def __init__(self, shop: Shop, monkeypatch: pytest.MonkeyPatch, view: BoundView) -> None:
        self.view = view
        self.life: Any = MagicMock(gate=BackfillGate(), following=lambda followed: [view])
        monkeypatch.setattr(table_changes, "describe", lambda connection, schema, name: shop.describe(schema, name))
        unused: Any = None
        self.changes = TableChanges(
            life=self.life, sink=MagicMock(spec=RedisStore), offsets=unused, dead_letters=unused,
            open_source=MagicMock(), check_lease=unused, stop=unused,
        )  # fmt: skip

    def tell(self, kind: TableChangeKind, name: str = "line") -> None:
        followed = followed_tables([self.view])["shop", name]
        self.changes.prepare([TableChange(followed, 9, kind, f"ALTER TABLE {name}")])

    @property
    def bound(self) -> BoundView:
        (call,) = self.life.bind.call_args_list
        bound: BoundView = call.args[0]
        return bound


@CASES
def test_what_decides_the_content_is_in_the_fingerprint_shown_or_not(
    shop: Shop, entity: Entity, document: Document | None, changed: Column
) -> None:
    before = shop.bind(entity, document).fingerprint
    assert shop.bind(entity, document).fingerprint == before
    shop.modify("line", column("qty", "int"))
    if document is not None:
        assert shop.bind(entity, document).fingerprint == before, "nothing depends on it"
    shop.modify("line", changed)
    assert shop.bind(entity, document).fingerprint != before


def test_rows_are_in_the_order_of_their_primary_key(shop: Shop) -> None:
    entity = related(lines=Many("shop.line", by="order_id"))
    shop.tables["line"] = replace(shop.tables["line"], primary_key=("order_id", "id"))
    before = shop.bind(entity, TITLES).fingerprint
    shop.tables["line"] = replace(shop.tables["line"], primary_key=("id", "order_id"))
    assert shop.bind(entity, TITLES).fingerprint != before


def test_another_bound_of_what_is_related_is_another_view(shop: Shop) -> None:
    more = Entity("shop.order", related=dict(LINES.related), max_bytes=LINES.max_bytes + 1)
    assert shop.bind(LINES, TITLES).fingerprint != shop.bind(more, TITLES).fingerprint


@CASES
def test_texts_of_another_character_set_or_collation_have_the_view_filled_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, entity: Entity, document: Document | None, changed: Column
) -> None:
    applying = Applying(shop, monkeypatch, shop.bind(entity, document))
    shop.modify("line", changed)
    applying.tell(TableChangeKind.REDEFINED)
    applying.life.replaced.assert_called_once_with("redis:v", 9)
    assert applying.bound.fingerprint == shop.bind(entity, document).fingerprint


def test_a_wider_column_is_bound_without_a_fill(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    applying = Applying(shop, monkeypatch, shop.bind(LINES, TITLES))
    shop.modify("line", text("title", length=80))
    applying.tell(TableChangeKind.WIDENED)
    applying.life.replaced.assert_not_called()
    assert applying.bound.fingerprint == shop.bind(LINES, TITLES).fingerprint


def test_a_new_column_of_a_related_table_is_shown_from_the_next_start_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = shop.bind(LINES, WHOLE)
    applying = Applying(shop, monkeypatch, view)
    shop.add("line", column("extra", "int"))
    shop.modify("line", text("title", length=80))
    with capture_logs() as logs:
        applying.tell(TableChangeKind.EXTENDED)
    assert [(log["view"], log["log_level"]) for log in logs] == [("redis:v", "warning")]
    applying.tell(TableChangeKind.WIDENED)
    bound = applying.bound
    assert bound.derived is not None and view.derived is not None
    assert bound.derived.parts[1].columns == view.derived.parts[1].columns
    assert "extra" not in repr(bound.table.column("lines"))
    assert bound.fingerprint not in (view.fingerprint, shop.bind(LINES, WHOLE).fingerprint), "the next start fills it"


@pytest.mark.parametrize(
    ("entity", "document"),
    [(LINES, TITLES), (related(lines=Many("shop.line", by="order_id", columns=["title"])), WHOLE), (PAID, None)],
)
def test_a_new_column_that_no_document_shows_is_not_spoken_of(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, entity: Entity, document: Document | None
) -> None:
    applying = Applying(shop, monkeypatch, shop.bind(entity, document))
    shop.add("line", column("extra", "int"))
    with capture_logs() as logs:
        applying.tell(TableChangeKind.EXTENDED)
    assert not logs


def test_rows_that_are_ordered_by_a_column_that_was_not_followed_have_the_pipeline_taken_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    entity = related(lines=Many("shop.line", by="order_id"))
    applying = Applying(shop, monkeypatch, shop.bind(entity, TITLES))
    shop.tables["line"] = replace(shop.tables["line"], primary_key=("line_no",), unique_keys=(("id",),))
    with pytest.raises(Ended) as ended:
        applying.tell(TableChangeKind.REDEFINED)
    assert ended.value.outcome.end is End.DESCRIBE_AGAIN
    applying.life.bind.assert_not_called()


def test_the_view_halts_that_shows_the_column_which_cannot_be_read(shop: Shop) -> None:
    shop.add("line", column("product_id"))
    sold = Entity("shop.product", related={"sold": Sum("shop.line", "qty", by="product_id")})
    views = bind(
        [
            RedisJson("orders", LINES, document=TITLES),
            RedisJson("products", sold, document=lambda row: {"title": row["title"], "sold": row["sold"]}),
        ],
        shop.describe,
    )
    followed = followed_tables(views)["shop", "line"]
    halted = {
        name: _concerned(Halt(followed, 1, "", frozenset({name})), views) for name in ("title", "qty", "order_id", "id")
    }
    orders, products = {"redis:orders"}, {"redis:products"}
    assert halted == {"title": orders, "qty": products, "order_id": orders, "id": orders}


def test_a_one_that_is_shown_whole_is_told_of_by_its_table(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    product = One("shop.product", on="id")
    entity = related(lines=Many("shop.line", by="order_id", columns=["title"], related={"product": product}))
    applying = Applying(shop, monkeypatch, shop.bind(entity, lambda row: {"lines": row["lines"]}))
    with capture_logs() as logs:
        applying.tell(TableChangeKind.EXTENDED, "line")
        assert not logs
        applying.tell(TableChangeKind.EXTENDED, "product")
    assert len(logs) == 1


def test_a_filling_that_begins_while_a_view_is_bound_does_not_go_on() -> None:
    """It was told to begin, and took the view as it was bound before."""
    gate = BackfillGate()
    with gate.binding("redis:v"):
        opened_at = time.monotonic()
    assert gate.is_bound_since("redis:v", opened_at)
    with gate.open("redis:v", opened_at) as is_right:
        assert not is_right
    with gate.open("redis:v", time.monotonic()) as is_right:
        assert is_right
