"""A used column becomes wider: its index table does too, by itself, before the first row that needs it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import redis

from ingest.canonical.chunks import CanonicalRows
from projectors.outcomes import End
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisJson
from projectors.views import Entity
from stack import Server
from tests.support.asking import ask
from tests.support.pipelines import deployed, owned

ITEM = Entity("wide.item")
VIEW = IndexTable("ix_item", ITEM, value="name")
NARROW = "CREATE TABLE wide.item (id INT PRIMARY KEY, name VARCHAR(70), n INT, kind ENUM('a'), price DECIMAL(6,2))"
WIDENINGS = {
    "altered": [
        "ALTER TABLE wide.item MODIFY name VARCHAR(80), MODIFY COLUMN n BIGINT, MODIFY price NUMERIC(12,2)",
        "ALTER TABLE wide.item CHANGE kind kind ENUM('a', 'longer')",
    ],
    "key too, one by one": [
        "ALTER TABLE wide.item MODIFY id BIGINT",
        "ALTER TABLE wide.item MODIFY name VARCHAR(80), ALGORITHM=INPLACE",
        "ALTER TABLE wide.item MODIFY n BIGINT",
        "ALTER TABLE wide.item MODIFY kind ENUM('a', 'longer')",
        "ALTER TABLE wide.item MODIFY price DECIMAL(12,2)",
    ],
    "swapped in": [
        "CREATE TABLE wide._item_gho LIKE wide.item",
        "ALTER TABLE wide._item_gho MODIFY name VARCHAR(80), MODIFY n BIGINT, MODIFY price DECIMAL(12,2)",
        "ALTER TABLE wide._item_gho MODIFY kind ENUM('a', 'longer')",
        "INSERT INTO wide._item_gho SELECT * FROM wide.item",
        "RENAME TABLE wide.item TO wide._item_del, wide._item_gho TO wide.item",
    ],
}


class Item:
    """The table wide.item with some rows, and what the index table shows of it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        for database in ("wide", "viewtail"):
            self.execute(f"DROP DATABASE IF EXISTS {database}")
        rows = ", ".join(f"({i}, 'n{i}', {i}, 'a', {i}.50)" for i in range(1, 101))
        self.execute("CREATE DATABASE wide", NARROW, f"INSERT INTO wide.item VALUES {rows}")

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.rows(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return ask(self.server, query)

    def shown(self) -> dict[int, str]:
        return dict(self.rows("SELECT id, name FROM viewtail.ix_item WHERE name IS NOT NULL"))  # type: ignore[arg-type]

    def in_table(self) -> dict[int, str]:
        return dict(self.rows("SELECT id, name FROM wide.item"))  # type: ignore[arg-type]


@pytest.fixture
def table(mysql_server: Server) -> Item:
    return Item(mysql_server)


@pytest.mark.parametrize("how", WIDENINGS)
def test_an_index_table_is_widened_before_the_first_row_that_needs_it(how: str, table: Item) -> None:
    """More such rows than halt a view that refuses them, in one batch with the statement."""
    view = IndexTable("ix_item", ITEM, value=["name", "n", "kind", "price"])
    wide = ", ".join(f"({i}, '{'w' * 80}', {1 << 40}, 'longer', 9999999999.99)" for i in range(200, 400))
    last = 1 << 40 if "key" in how else 400
    with owned(deployed([view], table.server), "mysql") as owner:
        owner.fill_all()
        before = owner.own.life.states.read(view.id)
        table.execute(*WIDENINGS[how], f"INSERT INTO wide.item VALUES {wide}, ({last}, 'last', NULL, NULL, NULL)")
        owner.pass_everything()
        assert owner.own.pipeline.dead_letters.count == 0
        assert table.shown() == table.in_table()
        if how != "swapped in":
            now = owner.own.life.states.read(view.id)
            assert now == replace(before, fingerprint=now.fingerprint), "no fill is needed"
        owner.fill_all()
        table.execute("UPDATE wide.item SET n = n + 1")
        owner.pass_everything()
        found = table.rows("SELECT id, name, n, kind, price FROM viewtail.ix_item ORDER BY id")
        assert found == table.rows("SELECT id, name, n, kind, price FROM wide.item ORDER BY id")
        assert owner.failure is None and owner.own.pipeline.dead_letters.count == 0
    with owned(deployed([view], table.server), "mysql") as owner:
        assert owner.to_fill() == [], "nor after a restart"


@pytest.mark.redis
def test_a_document_of_any_column_gets_a_new_one_with_the_next_start_whatever_came_behind_it(
    table: Item, redis_server: Server
) -> None:
    """The view is bound again where another column changes its form, and must not pass for one that has the new one."""
    view = RedisJson("wide", ITEM, document=dict)
    client = redis.Redis(port=redis_server.port)
    client.flushall()
    with owned(deployed([view], table.server, redis_server), "redis") as owner:
        owner.fill_all()
        table.execute(
            "ALTER TABLE wide.item ADD COLUMN more INT DEFAULT 7",
            "ALTER TABLE wide.item MODIFY name VARCHAR(80)",
            "INSERT INTO wide.item (id, name) VALUES (500, 'new')",
        )
        owner.pass_everything()
        assert owner.failure is None and owner.own.pipeline.dead_letters.count == 0
    with owned(deployed([view], table.server, redis_server), "redis") as owner:
        assert owner.to_fill() == [view.id]
        owner.fill_all()
    documents = [json.loads(value or b"") for value in client.mget(client.keys("wide:*"))]
    assert len(documents) == 101 and all(one["more"] == 7 for one in documents), documents[:3]


def test_a_column_wider_than_an_index_holds_halts_its_view_before_the_first_such_row(table: Item) -> None:
    view = VIEW
    with owned(deployed([view], table.server), "mysql") as owner:
        owner.fill_all()
        shown = table.shown()
        table.execute("ALTER TABLE wide.item MODIFY name VARCHAR(1000)")
        table.execute(f"INSERT INTO wide.item VALUES (404, '{'w' * 1000}', 1, 'a', 1), (405, 'short', 1, 'a', 1)")
        owner.pass_everything()
        record = owner.own.life.states.read(view.id)
        assert record.state == "halted" and record.reason is not None
        for words in (
            "ALTER TABLE wide.item MODIFY name",
            "column name, varchar(70) before",
            "3072",
            f"viewtail replay {view.id}",
        ):
            assert words in record.reason
        assert table.shown() == shown
        assert owner.own.pipeline.dead_letters.count == 0


def test_a_fill_of_a_table_that_was_widened_under_it_ends_right(table: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that was made before, and not begun, does not take the index table back."""
    view = VIEW
    passed = []
    with owned(deployed([view], table.server), "mysql") as owner:
        read = CanonicalRows.after

        def amid(chunks: Any, after: Any, version: int) -> Any:
            found = read(chunks, after, version)
            if not passed:
                passed.append(True)
                table.execute(
                    "ALTER TABLE wide.item MODIFY name VARCHAR(90)",
                    f"UPDATE wide.item SET name = '{'w' * 90}' WHERE id > 10",
                )
                owner.pass_everything()
            return found

        monkeypatch.setattr(CanonicalRows, "after", amid)
        early = owner.backfill(view.id)
        owner.fill(view.id, chunk_rows=20)
        assert early.run().end is End.AGAIN
        assert table.shown() == table.in_table()
        assert owner.to_fill() == [] and owner.own.pipeline.dead_letters.count == 0
