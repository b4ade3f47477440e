"""Declarations of related rows that are refused: each says where it is, what was seen, and what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest

from projectors import catalog
from projectors.binding import bind
from projectors.catalog import tables_of
from projectors.related import Count, Many, Max, Min, One, Related, Sum
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.views import Entity, Group
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table
from viewtail.operations.check import _misnamed, _unknown


def column(name: str, declared: str = "bigint", kind: Kind = Kind.INTEGER, **more: Any) -> Column:
    return Column(name=name, declared=declared, kind=kind, **{"is_nullable": False, **more})


def text(name: str, collation: str = "utf8mb4_0900_ai_ci") -> Column:
    return column(name, "varchar(40)", Kind.TEXT, length=40, charset="utf8mb4", collation=collation)


def table(
    name: str, *columns: Column, key: tuple[str, ...] = ("id",), unique: tuple[tuple[str, ...], ...] = ()
) -> Table:
    return Table(schema="shop", name=name, columns=columns, primary_key=key, unique_keys=unique)


TABLES = {
    each.name: each
    for each in (
        table(
            "order", column("id"), column("user_id"), text("code"), column("at", "datetime(3)", Kind.DATETIME, scale=3)
        ),
        table(
            "line",
            column("id"),
            column("order_id"),
            column("product_id", "int"),
            text("note"),
            text("other_note", "utf8mb4_bin"),
            column("amount", "decimal(10,2)", Kind.DECIMAL, precision=10, scale=2),
            column("year", "year"),
            column("bits", "bit(3)", length=3),
            column("place", "point", Kind.UNSUPPORTED),
            column("token", "binary(16)", Kind.BYTES, length=16),
            column("short", "binary(8)", Kind.BYTES, length=8),
            column("bytes", "varbinary(16)", Kind.BYTES, length=16),
            column("at", "datetime", Kind.DATETIME),
            column("price", "double", Kind.DOUBLE),
        ),
        table("product", column("id"), text("title"), text("sku"), unique=(("sku",),)),
        table("log", column("order_id"), key=()),
        table("pair", column("a"), column("b"), key=("a", "b")),
        table("token", column("id", "binary(16)", Kind.BYTES, length=16)),
    )
}


def describe(schema: str, name: str) -> Table:
    if (schema, name) not in {(each.schema, each.name) for each in TABLES.values()}:
        raise DeclarationError(f"table {schema}.{name} does not exist, or the user may not see it: check the name")
    return TABLES[name]


def problems(entity: Entity) -> list[str]:
    with pytest.raises(DeclarationError) as refused:
        bind([RedisJson("order", entity, document=dict)], describe)
    return str(refused.value).splitlines()


def related(**of: Related) -> Entity:
    return Entity("shop.order", related=of)


# -- what needs no table ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: One("user", on="user_id"), "One('user'): the table is written 'schema.table', e.g. 'shop.order_line'"),
        (lambda: One(7, on="user_id"), "One(7): the table is written 'schema.table'"),  # type: ignore[arg-type]
        (
            lambda: One("shop.user_#", on="user_id"),
            "# and braces stand for many tables, and related rows are of one; name",
        ),
        (lambda: One("shop.user", on=()), "One('shop.user'): on names one column or several"),
        (lambda: One("shop.user", on=None), "One('shop.user'): on is a column's name, or a list of them, not NoneType"),  # type: ignore[arg-type]
        (lambda: One("shop.user", on=""), "One('shop.user'): on: column names are non-empty strings, not ''"),
        (lambda: One("shop.user", on=["a", "a"]), "One('shop.user'): on: a is named twice; once is enough"),
        (lambda: One("shop.user", on="a", columns={"b"}), "One('shop.user'): columns is a column's name, or a list"),  # type: ignore[arg-type]
        (lambda: One("shop.user", on="a", related=[]), "One('shop.user'): related is a dict of names and One, Many"),  # type: ignore[arg-type]
        (lambda: Many("shop.line", by=()), "Many('shop.line'): by names one column or several"),
        (lambda: Many("shop.line", by="a", order_by=["b", "-b"]), "Many('shop.line'): order_by: b is named twice"),
        (lambda: Many("shop.line", by="a", order_by="-"), "Many('shop.line'): order_by: column names are non-empty"),
        (lambda: Many("shop.line", by="a", limit=0), "Many('shop.line'): limit is a number of rows, 1 or more, not 0"),
        (lambda: Many("shop.line", by="a", limit=True), "limit is a number of rows, 1 or more, not True"),
        (
            lambda: Many("shop.tag", by="a", to="b"),
            "Many('shop.tag'): through= is a table between, and to= its columns",
        ),
        (lambda: Many("shop.tag", by="a", through="shop.t"), "give both, or neither"),
        (lambda: Many("shop.tag", by="a", through="t", to="b"), "Many('shop.tag'): through: the table is written"),
        (lambda: Count("shop.line"), "Count('shop.line'): by names one column or several"),
        (
            lambda: Count("shop.line", "id", by="a"),
            "Count is of rows: Count('shop.table', by=...)".replace("shop.", "schema."),
        ),
        (lambda: Sum(by="a"), "Sum is of a column, Sum('schema.table', 'column', by=...), or in a Group Sum('column')"),
        (lambda: Sum("amount", by="a"), "Sum('amount'): by= goes with a table; say Sum('schema.table', ..., by=...)"),
        (lambda: Max("line", "amount", by="a"), "Max('line', 'amount'): the table is written 'schema.table'"),
        (lambda: Min("shop.line", "amount", by="a", where=None), "Min('shop.line', 'amount'): where is SQL over"),  # type: ignore[arg-type]
        (lambda: related(lines="shop.line"), "Entity('shop.order'): related['lines'] is One, Many, Count, Sum, Min or"),  # type: ignore[arg-type]
        (lambda: related(n=Count()), "related['n'] needs its table: Count('schema.table', ..., by=...)"),
        (
            lambda: Entity("shop.order", related={"": Count("shop.line", by="a")}),
            "related has names that are texts of 1",
        ),
        (lambda: Entity("shop.order", related={"n" * 65: Count("shop.line", by="a")}), "texts of 1 to 64 characters"),
        (
            lambda: related(n=Count("shop.line", by="a"), N=Count("shop.log", by="a")),
            "related has 'n' and 'N', which differ in case alone; rename one",
        ),
        (lambda: Entity("shop.order", max_bytes=0), "Entity('shop.order'): max_bytes is a number of bytes, 1 or more"),
        (
            lambda: Entity("shop.order", at_most_every=60),
            "Entity('shop.order'): at_most_every goes with related=, or with a Group",
        ),
        (
            lambda: Entity("shop.order", related={"n": Count("shop.line", by="a")}, at_most_every=-1),
            "at_most_every is a number of seconds, 0 to 86,400, not -1",
        ),
        (
            lambda: Group("shop.order", by="status", values={"n": Count()}, at_most_every="1"),  # type: ignore[arg-type]
            "Group('shop.order'): at_most_every is a number of seconds, 0 to 86,400, not '1'",
        ),
        (
            lambda: Entity("shop.order", version="at", related={"n": Count("shop.line", by="a")}),
            "related goes with no version=, append_only=, order=, only= or columns_by=",
        ),
    ],
)
def test_a_declaration_that_no_table_could_fit_is_refused(declare: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(message)):
        declare()


# -- what the tables do not fit -----------------------------------------------------------------------------------

WORK = One("shop.product", on="product_id")


def test_an_index_table_of_related_rows_is_refused_with_what_to_do() -> None:
    entity = related(lines=Many("shop.line", by="order_id", columns=["note"]))
    with pytest.raises(DeclarationError, match=r"lines is what related tables have, which an index cannot hold; .*of="):
        bind([IndexTable("by_lines", entity, value="lines")], describe)


@pytest.mark.parametrize(
    ("of", "message"),
    [
        (
            One("shop.nobody", on="user_id"),
            "related 'x': table shop.nobody does not exist, or the user may not see it: check the name",
        ),
        (
            Many("shop.log", by="order_id"),
            "related 'x': shop.log has no primary key, so its rows cannot be told apart; add one",
        ),
        (One("shop.product", on="usr_id"), "related 'x': shop.order has no column usr_id; did you mean user_id?"),
        (
            One("shop.product", on="code", to="title"),
            (
                "related 'x': to (title) is no primary key and no unique key over NOT NULL columns of shop.product, so"
                " two rows may share it; make it one, or say Many where it means all of them"
            ),
        ),
        (
            One("shop.pair", on="user_id"),
            (
                "related 'x': (user_id) of shop.order and (a, b) of shop.pair are not equally many columns; name "
                "one for each"
            ),
        ),
        (
            One("shop.product", on="code"),
            (
                "related 'x': column code of shop.order is VARCHAR(40) and column id of shop.product BIGINT: values"
                " of these types are not looked for in each other; give both columns one type"
            ),
        ),
        (Many("shop.line", by="ordr_id"), "related 'x': shop.line has no column ordr_id; did you mean order_id?"),
        (
            Many("shop.line", by="order_id", order_by="-plce"),
            "related 'x': shop.line has no column plce; did you mean place?",
        ),
        (
            Many("shop.line", by="order_id", columns="place"),
            (
                "related 'x': column place of shop.line is POINT, which viewtail cannot read exactly; convert it "
                "(text: to utf8mb4), or name another column"
            ),
        ),
        (
            Many("shop.product", through="shop.line", by="order_id", to="note"),
            "related 'x': column note of shop.line is VARCHAR(40) and column id of shop.product BIGINT: values of",
        ),
        (
            Many("shop.line", by="order_id", related={"it": One("shop.product", on="note", to="sku"), "n": WORK}),
            None,
        ),
        (
            Many("shop.line", by="order_id", related={"it": One("shop.product", on="other_note", to="sku")}),
            (
                "related 'x.it': column other_note of shop.line is VARCHAR(40) and column sku of shop.product "
                "VARCHAR(40): the collations utf8mb4_bin and utf8mb4_0900_ai_ci differ in which texts are equal, "
                "and no index serves both; give both columns one collation"
            ),
        ),
        (
            Many("shop.line", by="order_id", related={"it": One("shop.token", on="short")}),
            (
                "related 'x.it': column short of shop.line is BINARY(8) and column id of shop.token BINARY(16): "
                "zeros are added to the values of one of them; give both columns one type"
            ),
        ),
        (
            Many("shop.line", by="order_id", related={"it": One("shop.token", on="bytes")}),
            (
                "related 'x.it': column bytes of shop.line is VARBINARY(16) and column id of shop.token BINARY(16):"
                " zeros are added to the values of one of them; give both columns one type"
            ),
        ),
        (
            Many("shop.line", by="order_id", related={"Note": WORK}),
            "related 'x.Note': shop.line has a column of that name; choose another",
        ),
        (
            Sum("shop.line", "note", by="order_id"),
            (
                "related 'x': Sum of column note of shop.line, which is VARCHAR(40): only sums of integers and "
                "DECIMALs are exact; make it a DECIMAL, or add up in the view's function"
            ),
        ),
        (Sum("shop.line", "price", by="order_id"), "only sums of integers and DECIMALs are exact"),
        (Sum("shop.line", "year", by="order_id"), "only sums of integers and DECIMALs are exact"),
        (
            Max("shop.line", "note", by="order_id"),
            (
                "related 'x': Max of column note of shop.line, which is VARCHAR(40): numbers, dates and times are "
                "compared; name such a column"
            ),
        ),
        (Min("shop.line", "bits", by="order_id"), "numbers, dates and times are compared"),
        (Max("shop.line", "amnt", by="order_id"), "related 'x': shop.line has no column amnt; did you mean amount?"),
        (Count("shop.line", by="note"), "related 'x': column id of shop.order is BIGINT and column note of shop.line"),
        (
            Count("shop.line", by="order_id", where="amnt > 0"),
            "related 'x': where='amnt > 0' of shop.line: shop.line has no column amnt; did you mean amount?",
        ),
    ],
)
def test_what_does_not_fit_its_tables_is_refused_with_the_path_and_what_to_do(of: Related, message: str | None) -> None:
    if message is None:
        bind([RedisJson("order", related(x=of), document=dict)], describe)
        return
    (problem,) = problems(related(x=of))
    assert problem.startswith("view redis:order: related 'x")
    assert message in problem


def test_moments_of_other_fractions_do_not_meet() -> None:
    entity = Entity("shop.order", related={"x": Many("shop.line", by="at")}, key="at")
    TABLES["order"], before = table("order", *TABLES["order"].columns, unique=(("at",),)), TABLES["order"]
    try:
        (problem,) = problems(entity)
    finally:
        TABLES["order"] = before
    assert "column at of shop.order is DATETIME(3) and column at of shop.line DATETIME: they keep other frac" in problem


def test_every_problem_is_said_at_once_each_under_its_own_name() -> None:
    numbers = {name: Sum("shop.line", column, by="order_id") for name, column in (("a", "note"), ("b", "amount"))}
    lines = Many(
        "shop.line", by="order_id", related={"it": One("shop.gone", on="product_id"), "x": One("shop.gone", on="x")}
    )
    found = problems(related(**numbers, c=Max("shop.line", "place", by="order_id"), lines=lines, code=WORK))
    assert [line.partition(": related ")[2].partition(":")[0] for line in found] == [
        "'lines.it'",  # and the missing table is not said twice
        "'code'",
        "'code'",
        "'a'",
        "'c'",
    ]


def test_the_key_of_the_entity_is_unique() -> None:
    (problem,) = problems(Entity("shop.order", key="user_id", related={"n": Count("shop.line", by="order_id")}))
    assert problem.startswith("view redis:order: key: (user_id) is no primary key and no unique key")
    assert problem.endswith("so two rows may share it; make it one, or name another")
    (problem,) = problems(Entity("shop.log", related={"n": Count("shop.line", by="order_id")}))
    assert problem.endswith(": key: shop.log has no primary key, so its rows cannot be told apart; add one")


def test_a_relation_that_the_view_does_not_use_need_not_fit() -> None:
    entity = related(n=Count("shop.line", by="order_id"), lost=One("shop.gone", on="user_id"))
    bind([RedisHash("order", entity, fields=["n"])], describe)


def test_rights_are_asked_for_on_every_table() -> None:
    tags = Many("other.tag", through="shop.order_tag", by="order_id", to="tag_id")
    entity = related(
        lines=Many("shop.line", by="order_id", related={"it": WORK}), tags=tags, n=Count("shop.note", by="a")
    )
    view = RedisJson("order", entity, document=dict)
    assert tables_of([view]) == [
        ("other", "tag"),
        *(("shop", name) for name in ("line", "note", "order", "order_tag", "product")),
    ]


def test_check_names_what_functions_ask_for_and_is_not_there_by_its_path() -> None:
    lines = Many("shop.line", by="order_id", related={"product": One("shop.product", on="product_id")})
    (bound,) = bind([RedisJson("order", related(lines=lines), document=lambda row: len(row["lnes"]))], describe)
    (finding,) = _misnamed(bound)
    assert finding.seen == "its functions ask for lnes, which shop.order has not; did you mean lines?"
    (whole,) = bind([RedisJson("order", related(lines=lines), document=dict)], describe)
    uses: Any = {"code": None, "lines": {"note": None, "product": {"sku": None, "titel": None}, "prise": None}}
    (first, of_lines), (second, of_products) = _unknown(uses, whole.table.columns)
    assert (first, second) == ("lines.prise", "lines.product.titel")
    assert "price" in of_lines and "title" in of_products


def test_a_related_table_that_the_user_may_not_see_is_hidden_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def is_denied(_: object, schema: str, name: str, columns: Sequence[str]) -> bool:
        asked.append((schema, name, *columns))
        return name == "product"

    monkeypatch.setattr(catalog, "asking", lambda *_, **__: nullcontext())
    monkeypatch.setattr(catalog, "is_denied", is_denied)
    lines = Many("shop.line", by="order_id", related={"product": WORK})
    view = RedisJson("order", related(lines=lines), document=lambda row: (row["code"], row["lines"]))
    assert catalog._is_hidden(MagicMock(), view)
    assert asked == [("shop", "line"), ("shop", "order", "code"), ("shop", "product")]
