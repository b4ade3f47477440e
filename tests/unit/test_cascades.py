"""What a parent's row tells of rows that the server's foreign keys changed without a word."""

from __future__ import annotations

from projectors.binding import bind
from projectors.projection import followed_tables
from projectors.proving.cascades import MOST_LOOKS, Cascades, Effect, effects, followed_parents
from projectors.views import BoundView
from viewtail import Entity, IndexTable, RedisHash, RedisSet
from viewtail.changes.batches import DELETE, INSERT, UPDATE, Batch, Followed, RowChanges
from viewtail.changes.tables import Column, ForeignKey, Kind, Table


def key(table: str, parent: str, on_delete: str = "CASCADE", on_update: str = "CASCADE", **columns: str) -> ForeignKey:
    return ForeignKey(
        name=f"{table}_{parent}",
        table=("shop", table),
        columns=tuple(columns),
        parent=("shop", parent),
        referenced=tuple(columns.values()),
        on_delete=on_delete,
        on_update=on_update,
    )


def table(name: str, *columns: str, primary: tuple[str, ...] = ("id",)) -> Table:
    made = [
        Column(name=one, kind=Kind.INTEGER, declared="int", is_nullable=one not in primary, is_generated=one == "made")
        for one in columns
    ]
    return Table(schema="shop", name=name, columns=tuple(made), primary_key=primary)


ORDER = table("order", "id", "person", "total")
(BY_PERSON,) = bind([IndexTable("by_person", Entity("shop.order"), value="person")], lambda *_: ORDER)
(BY_TOTAL,) = bind([IndexTable("by_total", Entity("shop.order"), value="total")], lambda *_: ORDER)
(HASH,) = bind([RedisHash("order", Entity("shop.order"), fields=["total"])], lambda *_: ORDER)
PERSON = table("person", "id", "name")
OF_PERSON = key("order", "person", person="id")


def cascades(*keys: ForeignKey, views: list[BoundView]) -> tuple[Cascades, Followed]:
    """And the followed parent."""
    followed = followed_tables(views)
    followed |= followed_parents(keys, followed.keys(), lambda _: PERSON)
    return Cascades(keys, views, followed.values()), followed["shop", "person"]


def of(changes: list[RowChanges]) -> Batch:
    return Batch(changes=changes, end=None, row_count=len(changes), byte_count=0, oldest_commit_us=0)


def test_a_cascade_goes_through_all_levels_until_a_rule_ends_it() -> None:
    keys = [
        key("order", "person", person="id"),
        key("line", "order", on_delete="SET NULL", order="id"),
        key("note", "line", on_delete="CASCADE", on_update="NO ACTION", line_order="order"),
    ]
    gone = Effect(table=("shop", "person"), is_gone=True, held=frozenset({("id", "id")}))
    assert effects(keys, gone) == [
        Effect(table=("shop", "order"), is_gone=True, held=frozenset({("person", "id")})),
        Effect(table=("shop", "line"), is_gone=False, changed=frozenset({("order", None)})),
    ]


def test_a_new_key_reaches_the_columns_that_refer_to_what_changed_of_it() -> None:
    keys = [
        key("stall", "square", square="id"),
        key("price", "stall", on_delete="SET NULL", square="square", stall="number"),
    ]
    moved = Effect(table=("shop", "square"), is_gone=False, changed=frozenset({("id", "id")}))
    assert effects(keys, moved) == [
        Effect(table=("shop", "stall"), is_gone=False, changed=frozenset({("square", "id")})),
        Effect(table=("shop", "price"), is_gone=False, changed=frozenset({("square", "id")})),
    ]


def test_a_tree_and_a_ring_of_tables_end() -> None:
    keys = [key("node", "node", above="id"), key("a", "b", b="id"), key("b", "a", a="id")]
    assert len(effects(keys, Effect(table=("shop", "node"), is_gone=True))) == 1
    assert len(effects(keys, Effect(table=("shop", "a"), is_gone=True))) == 2


def test_rows_that_are_gone_are_found_by_the_value_that_an_index_has_or_else_by_all_keys() -> None:
    made, parent = cascades(OF_PERSON, views=[BY_PERSON, BY_TOTAL, HASH])
    made.on_passed(of([RowChanges(parent, DELETE, 1, [(7,), (8,)])]))
    assert set(made.due()) == {"mysql:by_person", "mysql:by_total", "redis:order"}
    found = made.take("mysql:by_person")
    assert found.shown_with == {(7,), (8,)} and not found.is_any_gone and not found.values
    assert made.take("redis:order").is_any_gone and made.take("mysql:by_total").is_any_gone
    assert made.due() == []


def test_what_a_function_makes_is_not_taken_for_the_reference_of_its_name() -> None:
    computed = IndexTable("by_made", Entity("shop.order"), values={"person": "INT"}, of=lambda row: row["total"])
    made, parent = cascades(OF_PERSON, views=bind([computed], lambda *_: ORDER))
    made.on_passed(of([RowChanges(parent, DELETE, 1, [(7,)])]))
    found = made.take("mysql:by_made")
    assert found.is_any_gone and not found.shown_with


def test_members_of_a_set_are_found_by_it_where_the_reference_alone_names_the_set() -> None:
    entity = Entity("shop.order")
    of_one, of_two = bind(
        [RedisSet("orders", entity, key="of:{person}"), RedisSet("dear", entity, key="dear:{person}:{total}")],
        lambda *_: ORDER,
    )
    made, parent = cascades(OF_PERSON, views=[of_one, of_two])
    made.on_passed(of([RowChanges(parent, DELETE, 1, [(7,)])]))
    assert made.take("redis:orders").shown_with == {(7,)}
    assert made.take("redis:dear").is_any_gone


def test_rows_with_other_values_are_asked_for_in_views_that_use_these() -> None:
    made, parent = cascades(OF_PERSON, views=[BY_PERSON, BY_TOTAL, HASH])
    made.on_passed(of([RowChanges(parent, UPDATE, 1, [(7,), (9,)])]))
    assert made.due() == ["mysql:by_person"]
    assert made.take("mysql:by_person").condition(ORDER) == "`person` IN (9)"
    of_null = key("order", "person", on_delete="SET NULL", person="id")
    made, parent = cascades(of_null, views=[BY_PERSON, BY_TOTAL])
    made.on_passed(of([RowChanges(parent, DELETE, 1, [(7,)])]))
    assert made.take("mysql:by_person").condition(ORDER) == "`person` IS NULL"
    assert made.due() == []


def test_rows_whose_reference_changed_and_that_went_then_are_found_by_what_the_view_shows() -> None:
    made, parent = cascades(OF_PERSON, views=[BY_PERSON])
    made.on_passed(of([RowChanges(parent, UPDATE, 1, [(7,), (9,)]), RowChanges(parent, DELETE, 2, [(9,)])]))
    assert made.take("mysql:by_person").shown_with == {(7,), (9,)}


def test_a_column_that_is_computed_may_have_changed_too() -> None:
    computed = table("order", "id", "person", "made")
    (view,) = bind([IndexTable("by_made", Entity("shop.order"), value="made")], lambda *_: computed)
    made, parent = cascades(OF_PERSON, views=[view])
    made.on_passed(of([RowChanges(parent, UPDATE, 1, [(7,), (9,)])]))
    assert made.take("mysql:by_made").condition(computed) == "`person` IN (9)"


def test_what_changes_no_key_of_a_parent_tells_nothing() -> None:
    made, parent = cascades(OF_PERSON, views=[BY_PERSON])
    made.on_passed(of([RowChanges(parent, INSERT, 1, [(7,)]), RowChanges(parent, UPDATE, 2, [(7,), (7,)])]))
    assert made.due() == []


def test_more_than_can_be_looked_up_one_by_one_is_one_look_through_all() -> None:
    made, parent = cascades(OF_PERSON, views=[BY_PERSON])
    made.on_passed(of([RowChanges(parent, DELETE, 1, [(number,) for number in range(MOST_LOOKS + 1)])]))
    found = made.take("mysql:by_person")
    assert found.is_any_gone and len(found.shown_with) == 0
    changed = [row for number in range(MOST_LOOKS + 1) for row in ((number,), (-number - 1,))]
    made.on_passed(of([RowChanges(parent, UPDATE, 2, changed)]))
    assert made.take("mysql:by_person").condition(ORDER) == "TRUE"


def test_archived_rows_stay_though_their_parent_goes() -> None:
    events = table("order", "id", "person", "total", primary=("id", "person"))
    entity = Entity("shop.order", key="person", version="id", append_only=True)
    (view,) = bind([RedisHash("last", entity, fields=["total"])], lambda *_: events)
    made, parent = cascades(OF_PERSON, views=[view])
    made.on_passed(of([RowChanges(parent, DELETE, 1, [(7,)])]))
    assert made.due() == []


def test_a_parent_is_followed_with_the_columns_that_are_referred_to() -> None:
    _, parent = cascades(OF_PERSON, views=[BY_PERSON])
    assert parent.columns == ("id",) and parent.table is PERSON
    followed = followed_tables([BY_PERSON])
    assert followed_parents([OF_PERSON], followed.keys(), lambda _: None) == {}
    own = key("order", "order", above="id")
    assert followed_parents([own], followed.keys(), lambda _: PERSON) == {}
