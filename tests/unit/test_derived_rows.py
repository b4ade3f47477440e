"""What a batch touches of rows that are made of several tables: told by its events, or looked up."""

from __future__ import annotations

import pytest

from projectors.binding import bind
from projectors.derived import touched_keys
from projectors.projection import Projections, followed_tables
from projectors.related import Many, One
from projectors.stores.redis.views import RedisJson
from projectors.views import Entity
from viewtail.changes.batches import UPDATE, Batch, RowChanges
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


def test_keys_that_only_the_tables_tell_are_looked_up_and_the_later_version_counts() -> None:
    (view,) = bind([RedisJson("order", ORDER, document=lambda row: row["lines"])], describe)
    followed = followed_tables([view])
    assert followed.keys() == ORDER.tables
    projections = Projections([view], followed)

    def batch(*changes: RowChanges) -> Batch:
        return Batch(changes=[*changes], end=None, row_count=0, byte_count=0, oldest_commit_us=0)

    moved = RowChanges(followed["made", "order_line"], UPDATE, 5, [(1, 7, 2), (1, 8, 2)])
    dearer = RowChanges(followed["made", "product"], UPDATE, 9, [(2, 10), (2, 11)])
    touched = projections.of(batch(moved)).touched["redis:order"]
    assert not touched.dependents and touched.versions == {(7,): 5, (8,): 5}
    touched = projections.of(batch(moved, dearer)).touched["redis:order"]
    assert view.derived is not None
    assert touched_keys(view.derived, touched, lambda _: {(8,): 9, (6,): 9}) == {(6,): 9, (7,): 5, (8,): 9}
    assert touched_keys(view.derived, touched, lambda _: {}) == {(7,): 5, (8,): 5}, "nothing has the product now"
    assert projections.of(batch()).touched == {}


def test_a_table_of_a_part_that_is_missing_is_a_problem_of_the_view() -> None:
    gone = Entity("made.order", related={"lines": Many("made.gone", by="id")})
    with pytest.raises(DeclarationError, match=r"view redis:order: related 'lines': table made\.gone does not exist"):
        bind([RedisJson("order", gone, document=lambda row: row["lines"])], describe)
