"""Statements that take rows away, or put others in their place, without a row event: the views follow, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ingest.canonical.chunks import CanonicalRows
from offsets.views import ViewStates
from projectors.outcomes import End
from projectors.stores.index_tables.views import IndexTable
from projectors.views import Entity
from stack import Server
from tests.integration.test_backfill import STORES, VIEWS, Shelf, servers
from tests.support.pipelines import deployed, owned
from tests.support.world import World

PARTITIONED = (
    "CREATE TABLE fill.item (id INT PRIMARY KEY, name VARCHAR(60), other VARCHAR(60)) PARTITION BY RANGE (id) "
    "(PARTITION low VALUES LESS THAN (100), PARTITION middle VALUES LESS THAN (200), "
    "PARTITION high VALUES LESS THAN MAXVALUE)"
)
GHOST = "CREATE TABLE fill._item_gho LIKE fill.item"
CASES = {
    "truncate": ["TRUNCATE TABLE fill.item"],
    "truncate, then rows": [
        "TRUNCATE TABLE fill.item",
        "INSERT INTO fill.item VALUES (1, 'again', 'x'), (999, 'new', 'x')",
    ],
    "twice": [
        "TRUNCATE fill.item",
        "INSERT INTO fill.item VALUES (1, 'between', 'x'), (2, 'between', 'x')",
        "TRUNCATE fill.item",
        "INSERT INTO fill.item VALUES (2, 'after', 'x')",
    ],
    "drop partition": ["ALTER TABLE fill.item DROP PARTITION low"],
    "truncate partitions, then rows": [
        "ALTER TABLE fill.item TRUNCATE PARTITION low, high",
        "INSERT INTO fill.item VALUES (3, 'again', 'x'), (999, 'new', 'x')",
        "UPDATE fill.item SET name = 'changed' WHERE id = 150",
    ],
    "partition after partition": [
        "ALTER TABLE fill.item TRUNCATE PARTITION low",
        "INSERT INTO fill.item VALUES (3, 'again', 'x')",
        "ALTER TABLE fill.item TRUNCATE PARTITION low",
        "INSERT INTO fill.item VALUES (4, 'last', 'x')",
        "ALTER TABLE fill.item DROP PARTITION middle",
    ],
    "exchange partition": [
        "CREATE TABLE fill.spare (id INT PRIMARY KEY, name VARCHAR(60), other VARCHAR(60))",
        "INSERT INTO fill.spare VALUES (5, 'from the spare', 'x'), (77, 'from the spare', 'x')",
        "ALTER TABLE fill.item EXCHANGE PARTITION low WITH TABLE fill.spare",
        "UPDATE fill.item SET name = 'later' WHERE id = 77",
    ],
    "another table by rename": [
        GHOST,
        "INSERT INTO fill._item_gho VALUES (1, 'n1', 'x'), (2, 'other', 'x'), (999, 'new', 'x')",
        "UPDATE fill.item SET name = 'old' WHERE id = 3",
        "RENAME TABLE fill.item TO fill._item_del, fill._item_gho TO fill.item",
        "UPDATE fill.item SET name = 'after' WHERE id = 999",
        "DROP TABLE fill._item_del",
    ],
}

FEW = ("truncate, then rows", "partition after partition", "exchange partition")  # for the other stores


@pytest.fixture
def shelf(mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Shelf:
    made = Shelf(World(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server))
    made.execute("DROP TABLE fill.item", PARTITIONED)
    made.add(250)
    return made


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("store", "case"), [("mysql", case) for case in CASES] + [(s, c) for s in STORES[1:] for c in FEW]
)
def test_a_view_equals_its_table_behind_every_such_statement(store: str, case: str, shelf: Shelf) -> None:
    """Read in one go and, from the offset before, once more."""
    catalog = deployed([VIEWS[store]], *servers(shelf))
    with owned(catalog, store) as owner:
        owner.fill_all()
    before = pipeline_row(shelf)
    shelf.execute(*CASES[case])
    for _ in range(2):
        with owned(catalog, store) as owner:
            owner.pass_everything()
            owner.fill_all()
            assert owner.failure is None
            assert owner.state(VIEWS[store].id) == "filled"
            assert shelf.shown(store) == shelf.in_table()
        put_back(shelf, before)


def test_a_row_that_a_view_leaves_out_takes_the_place_of_one_that_a_statement_took_away(shelf: Shelf) -> None:
    """Nothing says so but the statement, which is read when the row is there already."""
    view = IndexTable("ix_item", Entity("fill.item"), value="name", where=lambda row: row["other"] != "left out")
    with owned(deployed([view], *servers(shelf)), "mysql") as owner:
        owner.fill_all()
        shelf.execute(
            "ALTER TABLE fill.item TRUNCATE PARTITION low",
            "INSERT INTO fill.item VALUES (3, 'n3', 'left out'), (4, 'n4', 'x')",
        )
        owner.pass_everything()
        owner.fill_all()
        shown = shelf.in_table()
        assert shown.pop(3) == "n3"
        assert shelf.shown("mysql") == shown


@pytest.mark.parametrize("store", STORES)
def test_a_truncate_is_a_tombstone_for_each_key(store: str, shelf: Shelf) -> None:
    """Nothing older than the statement comes back, wherever it comes from."""
    catalog = deployed([VIEWS[store]], *servers(shelf))
    with owned(catalog, store) as owner:
        owner.fill_all()
    before = pipeline_row(shelf)
    shelf.execute("UPDATE fill.item SET name = 'changed' WHERE id < 20")
    with owned(catalog, store) as owner:
        owner.pass_everything()
    shelf.execute("TRUNCATE fill.item")
    with owned(catalog, store) as owner:
        owner.pass_everything()
        assert shelf.shown(store) == {}
    put_back(shelf, before)
    with owned(catalog, store) as owner:
        owner.pass_everything()
        assert shelf.shown(store) == {}


def test_rows_that_a_fill_read_before_a_truncate_do_not_stay(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fill holds its first chunk in memory while the statement passes."""
    view = VIEWS["mysql"]
    passed = []
    with owned(deployed([view], *servers(shelf)), "mysql") as owner:
        read = CanonicalRows.after

        def amid(chunks: Any, after: Any, version: int) -> Any:
            found = read(chunks, after, version)
            if not passed:
                passed.append(True)
                shelf.execute("TRUNCATE fill.item", "INSERT INTO fill.item VALUES (999, 'new', 'x')")
                owner.pass_everything()
            return found

        monkeypatch.setattr(CanonicalRows, "after", amid)
        owner.fill(view.id, chunk_rows=50)
        assert owner.state(view.id) == "filled"
        assert shelf.shown("mysql") == shelf.in_table() == {999: "new"}


def test_a_watermark_before_a_replacement_begins_no_fill(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the table that went, read from the stream behind the watermark, are older than the next one."""
    view = VIEWS["mysql"]
    passed = []
    with owned(deployed([view], *servers(shelf)), "mysql") as owner:
        begin = ViewStates.begin_backfill

        def amid(self: ViewStates, *arguments: Any) -> Any:
            if not passed:
                passed.append(True)
                shelf.execute(GHOST, "INSERT INTO fill.item VALUES (999, 'gone soon', 'x')")
                shelf.execute("RENAME TABLE fill.item TO fill._item_del, fill._item_gho TO fill.item")
                owner.pass_everything()
            return begin(self, *arguments)

        monkeypatch.setattr(ViewStates, "begin_backfill", amid)
        assert owner.backfill(view.id).run().end is End.AGAIN
        owner.fill_all()
        assert shelf.shown("mysql") == shelf.in_table() == {}


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["ALTER TABLE fill._item_gho DROP COLUMN name"], ["ix_item", "column name"]),
        (["ALTER TABLE fill._item_gho MODIFY name INT"], ["column name", "varchar(60)", "int"]),
        (["ALTER TABLE fill._item_gho DROP PRIMARY KEY, ADD PRIMARY KEY (id, other)"], ["key"]),
    ],
    ids=["a column is gone", "retyped", "another key"],
)
def test_a_table_that_no_longer_fits_halts_the_view_before_its_first_row(
    statements: Sequence[str], words: Sequence[str], shelf: Shelf
) -> None:
    view = VIEWS["mysql"]
    with owned(deployed([view], *servers(shelf)), "mysql") as owner:
        owner.fill_all()
        shown = shelf.shown("mysql")
        shelf.execute("DROP TABLE IF EXISTS fill._item_gho", GHOST, "ALTER TABLE fill._item_gho REMOVE PARTITIONING")
        shelf.execute(*statements)
        shelf.execute("RENAME TABLE fill.item TO fill._item_del, fill._item_gho TO fill.item")
        shelf.execute("INSERT INTO fill.item (id, other) VALUES (5000, 'x')")
        owner.pass_everything()
        record = owner.own.life.states.read(view.id)
        assert record.state == "halted" and record.reason is not None
        for word in [*words, "RENAME TABLE fill.item", f"viewtail replay {view.id}"]:
            assert word in record.reason.lower() or word in record.reason
        assert shelf.shown("mysql") == shown


def test_with_a_version_column_the_keys_that_are_gone_are_deleted(shelf: Shelf) -> None:
    entity = Entity("fill.item", version="other")
    view = IndexTable("ix_item", entity, value="name")
    shelf.execute(
        "DROP TABLE fill.item",
        PARTITIONED.replace("other VARCHAR(60)", "other BIGINT NOT NULL"),
        "INSERT INTO fill.item VALUES (1, 'a', 5), (2, 'b', 5), (150, 'c', 5)",
    )
    catalog = deployed([view], *servers(shelf))
    with owned(catalog, "mysql") as owner:
        owner.fill_all()
    before = pipeline_row(shelf)
    shelf.execute(
        "ALTER TABLE fill.item TRUNCATE PARTITION low",
        "INSERT INTO fill.item VALUES (2, 'again', 6)",
        "ALTER TABLE fill.item DROP PARTITION middle",
    )
    for _ in range(2):
        with owned(catalog, "mysql") as owner:
            owner.pass_everything()
            assert shelf.shown("mysql") == {2: "again"}
        put_back(shelf, before)
    shelf.execute("TRUNCATE fill.item")
    with owned(catalog, "mysql") as owner:
        owner.pass_everything()
        assert shelf.shown("mysql") == {}


def test_an_append_only_table_is_archived_by_a_truncate(shelf: Shelf) -> None:
    shelf.execute(
        "DROP TABLE fill.item",
        PARTITIONED.replace("other VARCHAR(60)", "other BIGINT NOT NULL"),
        "INSERT INTO fill.item VALUES (1, 'a', 5)",
    )
    view = IndexTable("ix_item", Entity("fill.item", version="other", append_only=True), value="name")
    with owned(deployed([view], *servers(shelf)), "mysql") as owner:
        owner.fill_all()
        shelf.execute("ALTER TABLE fill.item DROP PARTITION low", "TRUNCATE fill.item")
        owner.pass_everything()
        assert shelf.shown("mysql") == {1: "a"}


def pipeline_row(shelf: Shelf) -> tuple[Any, ...]:
    """The saved offset."""
    (row,) = shelf.rows("SELECT position FROM viewtail.pipeline")
    return row


def put_back(shelf: Shelf, row: tuple[Any, ...]) -> None:
    """Make the next owner read again from a saved offset."""
    (position,) = row
    shelf.execute(f"UPDATE viewtail.pipeline SET position = '{position}'")
