"""What a batch touches of rows that are made of several tables: told by its events, or looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from projectors.binding import bind
from projectors.derived import touched_keys
from projectors.every_change import EveryChange, with_forms
from projectors.projection import Projections, followed_tables
from projectors.related import Many, One
from projectors.stores.redis.views import RedisJson
from projectors.stores.topics.views import Topic
from projectors.views import BoundView, Entity
from viewtail.changes.batches import INSERT, UPDATE, Batch, Followed, Refused, RowChanges
from viewtail.changes.errors import DeclarationError
from viewtail.changes.tables import Column, Kind, Table

PRODUCT = One("made.product", on="product_id")
ORDER = Entity("made.order", related={"lines": Many("made.order_line", by="order_id", related={"product": PRODUCT})})
NAMES = {"order": ("id", "customer"), "order_line": ("id", "order_id", "product_id"), "product": ("id", "price")}


def describe(schema: str, name: str) -> Table:
    if name not in NAMES:
        raise DeclarationError(f"table {schema}.{name} does not exist")
    columns = (Column(name=of, kind=Kind.INTEGER, declared="bigint", is_nullable=False) for of in NAMES[name])
    return Table(schema=schema, name=name, columns=tuple(columns), primary_key=("id",))


def batch(*changes: RowChanges) -> Batch:
    return Batch(changes=[*changes], end=None, row_count=0, byte_count=0, oldest_commit_us=0)


def test_keys_that_only_the_tables_tell_are_looked_up_and_the_later_version_counts() -> None:
    (view,) = bind([RedisJson("order", ORDER, document=lambda row: row["lines"])], describe)
    followed = followed_tables([view])
    assert followed.keys() == ORDER.tables
    projections = Projections([view], followed)
    moved = RowChanges(followed["made", "order_line"], UPDATE, 5, [(1, 7, 2), (1, 8, 2)])
    dearer = RowChanges(followed["made", "product"], UPDATE, 9, [(2, 10), (2, 11)])
    touched = projections.of(batch(moved)).touched["redis:order"]
    assert not touched.dependents and touched.versions == {(7,): 5, (8,): 5}
    touched = projections.of(batch(moved, dearer)).touched["redis:order"]
    assert view.derived is not None
    assert touched_keys(view.derived, touched, lambda _: {(8,): 9, (6,): 9}) == {(6,): 9, (7,): 5, (8,): 9}
    assert touched_keys(view.derived, touched, lambda _: {}) == {(7,): 5, (8,): 5}, "nothing has the product now"
    assert projections.of(batch()).touched == {}


def test_rows_in_a_form_that_their_table_had_touch_keys_too() -> None:
    """A topic of documents beside one of the lines, which gives rows the columns that a later ALTER took away."""
    views = bind([Topic("orders", ORDER), Topic("lines", Entity("made.order_line"))], describe)
    followed = with_forms(followed_tables(views), views, {})
    line = followed["made", "order_line"]
    more = Column(name="memo", kind=Kind.INTEGER, declared="int", is_nullable=True)
    before = replace(line.table, columns=(more, *line.table.columns))
    form = Followed(before, tuple(column.name for column in before.columns), line.keys, of=line)
    projected = EveryChange(views, followed).of(batch(RowChanges(form, INSERT, 5, [(None, 1, 7, 2)])))
    assert projected.touched["kafka:orders"].versions == {(7,): 5}
    assert [run.view for run in projected.writes] == ["kafka:lines"]


def test_a_topic_of_rows_of_several_tables_is_published_exactly_once_only() -> None:
    with pytest.raises(DeclarationError, match=r"view kafka:orders: its rows are made of several tables .* leave out"):
        bind([Topic("orders", ORDER, delivery="at_least_once")], describe)
    bind([Topic("lines", Entity("made.order_line"), delivery="at_least_once")], describe)


def test_a_table_of_a_part_that_is_missing_is_a_problem_of_the_view() -> None:
    gone = Entity("made.order", related={"lines": Many("made.gone", by="id")})
    with pytest.raises(DeclarationError, match=r"view redis:order: related 'lines': table made\.gone does not exist"):
        bind([RedisJson("order", gone, document=lambda row: row["lines"])], describe)


def bigint(name: str, **more: Any) -> Column:
    return replace(Column(name=name, kind=Kind.INTEGER, declared="bigint", is_nullable=False), **more)


def of(*columns: Column, key: tuple[str, ...] = ("id",)) -> Callable[[str], Table]:
    return lambda name: Table(schema="made", name=name, columns=columns, primary_key=key)


ORDERS = of(bigint("id"), bigint("customer"))
TAGGED = Entity("made.order", related={"tags": Many("made.tag", through="made.between", by="order_id", to="tag_id")})


def tagged(between: Callable[[str], Table]) -> tuple[BoundView, dict[tuple[str, str], Followed]]:
    tables = {"order": ORDERS, "tag": of(bigint("id"), bigint("label")), "between": between}
    (view,) = bind([RedisJson("order", TAGGED, document=lambda row: row["tags"])], lambda _, name: tables[name](name))
    return view, followed_tables([view])


def test_a_row_between_that_moves_in_its_primary_key_touches_its_order() -> None:
    """Pages are in the order of that key, and a row that moves to where a page was before would be missed."""
    view, followed = tagged(of(bigint("id"), bigint("order_id"), bigint("tag_id")))
    moved = RowChanges(followed["made", "between"], UPDATE, 5, [(100, 7, 2), (5, 7, 2)])
    assert view.derived is not None
    assert view.derived.touched([moved]).versions == {(7,): 5}


def test_tables_that_cannot_be_paged_by_their_key_are_refused_between_two_others() -> None:
    kind = Column(name="kind", kind=Kind.ENUM, declared="enum('z','a')", is_nullable=False, labels=("z", "a"))
    with pytest.raises(DeclarationError, match=r"related 'tags': column kind of made\.between is ENUM.*in pages"):
        tagged(of(kind, bigint("order_id"), bigint("tag_id"), key=("kind", "order_id", "tag_id")))


def test_the_later_version_counts_whatever_comes_first() -> None:
    view, followed = tagged(of(bigint("id"), bigint("order_id"), bigint("tag_id")))
    orders = followed["made", "order"]
    later, refused = RowChanges(orders, INSERT, 9, [(7,)]), Refused(orders, INSERT, 5, [(7,)], "unreadable")
    assert view.derived is not None
    assert view.derived.touched([later, refused]).versions == {(7,): 9}


def test_what_refers_to_a_key_that_cannot_be_there_touches_nothing() -> None:
    small = Column(name="id", kind=Kind.INTEGER, declared="smallint unsigned", is_nullable=False, is_unsigned=True)
    lines = Entity("made.order", related={"lines": Many("made.line", by="order_id")})
    tables = {"order": of(small), "line": of(bigint("id"), bigint("order_id"))}
    (view,) = bind([RedisJson("order", lines, document=lambda row: row["lines"])], lambda _, name: tables[name](name))
    followed = followed_tables([view])["made", "line"]
    changes = RowChanges(followed, INSERT, 5, [(1, 65535), (2, 65536), (3, -1)])
    assert view.derived is not None
    assert view.derived.touched([changes]).versions == {(65535,): 5}


def test_decimals_of_other_scales_are_no_reference() -> None:
    """Their equal values have two texts, and a key is a text in most stores."""

    def decimal(name: str, scale: int) -> Column:
        return Column(
            name=name, kind=Kind.DECIMAL, declared=f"decimal(10,{scale})", is_nullable=False, precision=10, scale=scale
        )

    lines = Entity("made.order", related={"lines": Many("made.line", by="order_id")})
    tables = {"order": of(decimal("id", 0)), "line": of(bigint("id"), decimal("order_id", 2))}
    with pytest.raises(DeclarationError, match="other digits after the point"):
        bind([RedisJson("order", lines, document=lambda row: row["lines"])], lambda _, name: tables[name](name))
