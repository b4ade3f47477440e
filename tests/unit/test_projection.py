"""Projections: what of a batch becomes which writes."""

from __future__ import annotations

import operator
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from projectors.binding import bind
from projectors.derived import Touched
from projectors.projection import NewestOnly, Projections, followed_tables
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisJson
from projectors.views import BoundView, Entity, View
from viewtail.changes.batches import DELETE, INSERT, UNKNOWN, UPDATE, Batch, Refused, RowChanges, Unreadable
from viewtail.changes.tables import Column, Kind, Table

TABLE = Table(
    schema="shop",
    name="user",
    columns=(
        Column(name="id", kind=Kind.INTEGER, declared="int", is_nullable=False),
        Column(
            name="email",
            kind=Kind.TEXT,
            declared="varchar(60)",
            is_nullable=True,
            charset="utf8mb4",
            length=60,
        ),
        Column(name="n", kind=Kind.INTEGER, declared="int", is_nullable=False),
    ),
    primary_key=("id",),
)
USER = Entity("shop.user")
VERSIONED = Entity("shop.user", version="n")
LOG = Entity("shop.user", key="email", version="n", append_only=True)


def projected(
    view: View, *changes: tuple[int, int, list[tuple[Any, ...]]], of: type[Projections] = Projections
) -> tuple[dict[Any, Any], list[str]]:
    """The writes of one view, and why keys were parked; changes are (kind, version, rows of all columns)."""
    bound = bound_to(view)
    followed = followed_tables([bound])
    table = followed["shop", "user"]
    at = [[column.name for column in TABLE.columns].index(name) for name in table.columns]
    batch = Batch(
        changes=[
            RowChanges(table, kind, version, [tuple(row[i] for i in at) for row in rows])
            for kind, version, rows in changes
        ],
        end=None,
        row_count=0,
        byte_count=0,
        oldest_commit_us=0,
    )
    found = of([bound], followed).of(batch)
    writes = found.writes[0].writes if found.writes else {}
    return dict(writes), [letter.reason for letter in found.parked]


def bound_to(view: View) -> BoundView:
    columns = tuple(
        Column(**{name: getattr(column, name) for name in Column.__slots__} | {"is_nullable": False})
        for column in TABLE.columns
    )
    table = Table(schema="shop", name="user", columns=columns, primary_key=("id",))
    return bind([view], lambda schema, name: table)[0]


BY_EMAIL = IndexTable("by_email", USER, value="email")


def test_inserts_updates_and_deletes_become_rows_and_tombstones() -> None:
    writes, _ = projected(
        BY_EMAIL,
        (INSERT, 10, [(1, "a", 0), (2, "b", 0)]),
        (UPDATE, 11, [(1, "a", 0), (1, "c", 0)]),
        (DELETE, 12, [(2, "b", 0)]),
    )
    assert writes == {(1,): (11, ("c",)), (2,): (12, None)}


def test_an_update_of_columns_that_no_view_shows_is_skipped() -> None:
    writes, _ = projected(BY_EMAIL, (UPDATE, 10, [(1, "a", 0), (1, "a", 5)]))
    assert writes == {}


def test_a_key_change_is_a_delete_and_an_upsert() -> None:
    writes, _ = projected(BY_EMAIL, (UPDATE, 10, [(1, "a", 0), (7, "a", 0)]))
    assert writes == {(1,): (10, None), (7,): (10, ("a",))}


def test_one_update_that_shifts_keys_keeps_the_last_write_of_each() -> None:
    writes, _ = projected(BY_EMAIL, (UPDATE, 10, [(3, "c", 0), (4, "c", 0), (2, "b", 0), (3, "b", 0)]))
    assert writes == {(4,): (10, ("c",)), (3,): (10, ("b",)), (2,): (10, None)}


def test_a_row_that_stops_matching_leaves_and_one_outside_stays_unwritten() -> None:
    view = IndexTable("even", USER, value="n", where=lambda row: row["n"] % 2 == 0)
    writes, _ = projected(
        view,
        (UPDATE, 10, [(1, "a", 2), (1, "a", 3)]),
        (UPDATE, 11, [(2, "a", 3), (2, "a", 5)]),
        (UPDATE, 12, [(3, "a", 3), (3, "a", 4)]),
        (INSERT, 13, [(4, "a", 1)]),
    )
    assert writes == {(1,): (10, None), (3,): (12, (4,))}


def test_an_exception_of_the_users_function_parks_the_key_and_shows_no_value() -> None:
    view = RedisJson("doc", USER, document=lambda row: {"x": 1 // row["n"]})
    writes, reasons = projected(view, (INSERT, 10, [(1, "secret", 0), (2, "b", 1)]))
    assert list(writes) == [(2,)]
    assert len(reasons) == 1 and "ZeroDivisionError" in reasons[0] and "secret" not in reasons[0]


def _caught(row: Any) -> Any:
    try:
        return row["email"]
    except Exception:
        return None


@pytest.mark.parametrize("where", [operator.itemgetter("email"), lambda row: row.get("email"), _caught])
def test_a_column_that_was_not_found_in_the_functions_source_parks_the_key_and_is_named(where: Any) -> None:
    view = IndexTable("v", USER, value="n", where=lambda row: where(row) if row["n"] else row["n"])
    narrow = replace(bound_to(view), needed=("id", "n"))
    followed = followed_tables([narrow])
    rows = RowChanges(followed["shop", "user"], INSERT, 10, [(1, 7), (2, 0)])
    batch = Batch(changes=[rows], end=None, row_count=2, byte_count=0, oldest_commit_us=0)
    found = Projections([narrow], followed).of(batch)
    assert [letter.key for letter in found.parked] == ["1"] and not found.writes
    assert "where asked for column email of shop.user" in found.parked[0].reason


def test_of_a_small_document_that_was_made_little_memory_is_kept() -> None:
    """Those of a whole batch wait to be written, and what orjson returns keeps 4 KiB."""
    view = RedisJson("doc", USER, document=lambda row: {"x": row["n"]})
    projected(view, (INSERT, 10, [(1, "a", 0)]))  # what is kept once for all is not of it
    tracemalloc.start()
    try:
        writes, reasons = projected(view, (INSERT, 10, [(at, "a", 0) for at in range(1000)]))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(writes) == 1000 and reasons == []
    assert kept < 1000 * 1024


@pytest.mark.parametrize("made", [5, ["list"], {"x": object()}])
def test_a_document_that_is_no_json_object_parks_the_key(made: object) -> None:
    _, reasons = projected(RedisJson("doc", USER, document=lambda row: made), (INSERT, 10, [(1, "a", 0)]))
    assert len(reasons) == 1 and "document returned" in reasons[0]


def test_a_version_column_orders_the_changes_whatever_their_order_in_the_stream() -> None:
    view = IndexTable("v", VERSIONED, value="email")
    writes, _ = projected(view, (INSERT, 10, [(1, "new", 7)]), (INSERT, 11, [(1, "old", 6)]))
    assert writes == {(1,): (14, ("new",))}
    writes, _ = projected(view, (DELETE, 12, [(1, "new", 7)]))
    assert writes == {(1,): (15, None)}


def test_an_update_that_does_not_raise_the_version_column_parks_the_key() -> None:
    view = IndexTable("v", VERSIONED, value="email")
    writes, reasons = projected(view, (UPDATE, 10, [(1, "a", 7), (1, "b", 7)]))
    assert writes == {} and "did not raise the version column n" in reasons[0]


def test_deletes_of_an_append_only_table_are_archiving() -> None:
    view = IndexTable("log", LOG, value="id")
    writes, _ = projected(view, (INSERT, 10, [(1, "k", 1), (2, "k", 2)]), (DELETE, 11, [(1, "k", 1), (2, "k", 2)]))
    assert writes == {("k",): (4, (2,))}


OF_A = Entity("shop.user", key="id", version="n", append_only=True, only={"email": "a"})


def test_rows_of_another_entity_are_as_if_they_were_not_there() -> None:
    view = IndexTable("v", OF_A, value="n")
    rows = [(1, "a", 7), (1, "b", 9), (2, "A", 1), (2, "a ", 1)]
    assert projected(view, (INSERT, 10, rows), (DELETE, 11, rows), (UPDATE, 12, [(1, "b", 9), (1, "c", 10)])) == (
        {(1,): (14, (7,))},
        [],
    )


@pytest.mark.parametrize("of", [Projections, NewestOnly])
@pytest.mark.parametrize("pair", [[(1, "a", 7), (1, "b", 8)], [(1, "b", 7), (1, "a", 8)]])
def test_an_update_from_entity_to_entity_parks_the_key(of: type[Projections], pair: list[tuple[Any, ...]]) -> None:
    writes, reasons = projected(IndexTable("v", OF_A, value="n"), (UPDATE, 10, pair), of=of)
    assert writes == {} and "an update changed email" in reasons[0]


@pytest.mark.parametrize(("email", "parks"), [("a", True), ("b", False), (Unreadable("email"), True)])
def test_an_unreadable_value_parks_no_key_of_another_entity(email: Any, parks: bool) -> None:
    bound = bound_to(IndexTable("v", OF_A, value="n"))
    followed = followed_tables([bound])
    refused = Refused(followed["shop", "user"], INSERT, 10, [(1, email, Unreadable("n"))], "it holds invalid bytes")
    batch = Batch(changes=[], end=None, row_count=0, byte_count=0, oldest_commit_us=0, refused=[refused])
    found = Projections([bound], followed).of(batch)
    assert found.writes == [] and len(found.parked) == parks


CELL = Table(
    schema="shop",
    name="user",
    columns=(
        Column(name="added", kind=Kind.INTEGER, declared="int", is_nullable=False),
        Column(name="row", kind=Kind.TEXT, declared="varchar(9)", is_nullable=False, charset="utf8mb4", length=9),
        Column(name="name", kind=Kind.TEXT, declared="varchar(9)", is_nullable=False, charset="utf8mb4", length=9),
        Column(name="ref", kind=Kind.INTEGER, declared="int", is_nullable=False),
        Column(name="body", kind=Kind.TEXT, declared="text", is_nullable=True, charset="utf8mb4"),
    ),
    primary_key=("added",),
    unique_keys=(("row", "name", "ref"),),
)
PERSON = Entity("shop.user", key="row", columns_by="name", newest="ref", body="body", codec="json")


def person(where: Any = None) -> tuple[BoundView, Projections, Any]:
    view = RedisJson("person", PERSON, document=lambda row: {"a": row["a"], "b": row["b"]}, where=where)
    (bound,) = bind([view], lambda *_: CELL)
    followed = followed_tables([bound])
    return bound, Projections([bound], followed), followed["shop", "user"]


def test_of_a_row_of_cells_the_keys_are_told_that_are_to_be_read_again() -> None:
    bound, projections, table = person()
    assert (bound.needed, table.columns) == (("row", "a", "b"), ("row", "name", "ref", "body"))
    changes = [
        RowChanges(table, INSERT, 10, [("r", "a", 1, "{}"), ("s", "other", 1, "{}"), ("t", "A", 1, "{}")]),
        RowChanges(table, UPDATE, 11, [("u", "a", 1, "{}"), ("v", "a", 1, "{}")]),
        RowChanges(table, DELETE, 12, [("r", "b", 1, "{}")]),
    ]
    refused = [Refused(table, INSERT, 13, [("w", "b", 1, Unreadable("body"))], "it holds invalid bytes")]
    batch = Batch(changes=changes, end=None, row_count=0, byte_count=0, oldest_commit_us=0, refused=refused)
    found = projections.of(batch)
    assert (found.writes, found.parked) == ([], [])
    versions = {("r",): 12, ("u",): 11, ("v",): 11, ("w",): 13}
    assert found.touched == {"redis:person": Touched(versions)}
    projections.halt("redis:person")
    assert projections.of(batch).touched == {}


def test_a_row_that_was_read_again_is_written_under_its_changes_version() -> None:
    _, projections, _ = person(where=lambda row: row["b"] is None)
    rows = {("r",): ("r", '{"n": 1}', None), ("s",): ("s", None, "{}"), ("t",): ("t", "[]", None)}
    found = projections.of_derived("redis:person", {("r",): 5, ("s",): 6, ("t",): 6, ("gone",): 7}, rows, UNKNOWN)
    assert [one.writes for one in found.writes] == [
        {("r",): (5, b'{"a":{"n":1},"b":null}'), ("s",): (6, None), ("gone",): (7, None)}
    ]
    assert [(one.key, one.version) for one in found.parked] == [("t", 6)]


def test_an_unreadable_value_parks_the_key_only_where_the_view_shows_it() -> None:
    views = [bound_to(BY_EMAIL), bound_to(IndexTable("by_n", USER, value="n"))]
    views[1] = BoundView(
        view=views[1].view,
        table=views[0].table,
        key=views[1].key,
        values=views[1].values,
        needed=views[1].needed,
        fingerprint=views[1].fingerprint,
    )
    followed = followed_tables(views)
    table = followed["shop", "user"]
    refused = Refused(table, INSERT, 10, [(1, Unreadable("email"), 5)], "column email holds invalid bytes")
    batch = Batch(changes=[], end=None, row_count=0, byte_count=0, oldest_commit_us=0, refused=[refused])
    found = Projections(views, followed).of(batch)
    assert [(letter.view, letter.key) for letter in found.parked] == [("mysql:by_email", "1")]
    assert {one.view: one.writes for one in found.writes} == {"mysql:by_n": {(1,): (10, (5,))}}


def test_a_halted_view_gets_nothing() -> None:
    bound = bound_to(BY_EMAIL)
    followed = followed_tables([bound])
    projections = Projections([bound], followed)
    projections.halt(bound.id)
    change = RowChanges(followed["shop", "user"], INSERT, 10, [(1, "a")])
    batch = Batch(changes=[change], end=None, row_count=1, byte_count=1, oldest_commit_us=0)
    assert projections.of(batch).writes == []


# -- rows that could not be read ----------------------------------------------------------------------------------

BAD = Unreadable("email")
INVALID = "column email holds bytes that are invalid in its character set"


def refused(view: View, kind: int, rows: list[tuple[Any, ...]], version: int = 10) -> tuple[dict[Any, Any], list[str]]:
    """Writes and parked keys of one refused row; rows hold all columns."""
    bound = bound_to(view)
    followed = followed_tables([bound])
    table = followed["shop", "user"]
    at = [[column.name for column in TABLE.columns].index(name) for name in table.columns]
    one = Refused(table, kind, version, [tuple(row[i] for i in at) for row in rows], INVALID)
    batch = Batch(changes=[], end=None, row_count=0, byte_count=0, oldest_commit_us=0, refused=[one])
    found = Projections([bound], followed).of(batch)
    return dict(found.writes[0].writes) if found.writes else {}, [letter.key for letter in found.parked]


BY_EMAIL = IndexTable("by_email", USER, value="email")


@pytest.mark.parametrize(
    ("kind", "rows", "writes", "parked"),
    [
        (INSERT, [(1, BAD, 5)], {}, ["1"]),
        (UPDATE, [(1, "a", 5), (1, BAD, 5)], {}, ["1"]),
        (UPDATE, [(1, BAD, 5), (1, "mended", 5)], {(1,): (10, ("mended",))}, []),
        (UPDATE, [(1, BAD, 5), (2, "moved", 5)], {(1,): (10, None), (2,): (10, ("moved",))}, []),
        (UPDATE, [(1, "a", 5), (2, BAD, 5)], {(1,): (10, None)}, ["2"]),
        (DELETE, [(1, BAD, 5)], {(1,): (10, None)}, []),
    ],
)
def test_a_row_is_parked_for_what_it_is_now_and_not_for_what_it_was(
    kind: int, rows: list[tuple[Any, ...]], writes: dict[Any, Any], parked: list[str]
) -> None:
    assert refused(BY_EMAIL, kind, rows) == (writes, parked)


def test_a_mended_row_that_a_condition_leaves_out_is_taken_away() -> None:
    view = IndexTable("by_email", USER, value="email", where=lambda row: row["n"] > 5)
    assert refused(view, UPDATE, [(1, BAD, 9), (1, "mended", 1)]) == ({(1,): (10, None)}, [])
    assert refused(view, UPDATE, [(1, BAD, 1), (1, "mended", 9)]) == ({(1,): (10, ("mended",))}, [])


def test_a_deleted_row_with_a_version_column_is_deleted_at_its_version() -> None:
    view = IndexTable("by_email", VERSIONED, value="email")
    assert refused(view, DELETE, [(1, BAD, 5)]) == ({(1,): (11, None)}, [])
    assert refused(view, UPDATE, [(1, BAD, 5), (1, "mended", 6)]) == ({(1,): (12, ("mended",))}, [])


def test_a_key_that_cannot_be_read_is_parked_without_a_name() -> None:
    view = IndexTable("by_n", LOG, value="id")
    assert refused(view, INSERT, [(1, BAD, 5)]) == ({}, ["(unreadable key, version 10)"])
    assert refused(view, DELETE, [(1, BAD, 5)]) == ({}, [])


# --- A source that may lack changes which a newer one follows ---

ODD = RedisJson("odd", USER, document=lambda row: {"n": row["n"]} if row["n"] % 2 else None, columns=["id", "n"])


@pytest.mark.parametrize(
    ("view", "change", "expected"),
    [
        (BY_EMAIL, (UPDATE, 5, [(1, "a", 1), (1, "a", 2)]), {(1,): (5, ("a",))}),
        (ODD, (UPDATE, 5, [(1, "a", 1), (1, "b", 1)]), {(1,): (5, b'{"n":1}')}),
        (ODD, (UPDATE, 5, [(1, "a", 2), (1, "b", 2)]), {(1,): (5, None)}),
        (ODD, (INSERT, 5, [(1, "a", 2)]), {(1,): (5, None)}),
        (ODD, (DELETE, 5, [(1, "a", 2)]), {(1,): (5, None)}),
        (IndexTable("v", VERSIONED, value="email"), (UPDATE, 5, [(1, "a", 2), (1, "a", 2)]), {(1,): (4, ("a",))}),
        (IndexTable("v", VERSIONED, value="email"), (DELETE, 5, [(1, "a", 2)]), {(1,): (5, None)}),
        (BY_EMAIL, (UPDATE, 5, [(1, "a", 1), (2, "a", 1)]), {(1,): (5, None), (2,): (5, ("a",))}),
        (ODD, (UPDATE, 5, [(1, "a", 1), (2, "a", 1)]), {(1,): (5, None), (2,): (5, b'{"n":1}')}),
    ],
)  # fmt: skip
def test_of_a_compacted_topic_every_change_is_written_whatever_it_says_of_before(
    view: View, change: tuple[int, int, list[tuple[Any, ...]]], expected: dict[Any, Any]
) -> None:
    """The changes that made the row what it was before may be gone, unread."""
    assert projected(view, change, of=NewestOnly) == (expected, [])


def test_of_a_compacted_topic_a_row_that_leaves_the_view_behind_one_that_came_is_a_tombstone() -> None:
    writes, _ = projected(ODD, (INSERT, 5, [(1, "a", 1)]), (UPDATE, 6, [(1, "a", 4), (1, "a", 2)]), of=NewestOnly)
    assert writes == {(1,): (6, None)}
