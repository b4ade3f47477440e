"""A column that is read, or a key that is paged, in another way from a statement on: fills go by the table as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import redis

from ingest.canonical.chunks import CanonicalRows
from offsets.views import Event
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisHash
from projectors.views import Entity
from stack import Server
from tests.support.asking import ask
from tests.support.pipelines import Owner, deployed, owned
from viewtail.changes.errors import SourceError, StopRequested

ITEM = Entity("again.item")
HASH = RedisHash("again", ITEM, fields=["name"])
TABLE = IndexTable("ix_again", ITEM, value="n")
SWAP = "RENAME TABLE again.item TO again._item_del, again._item_gho TO again.item"


def made(server: Server, *statements: str) -> None:
    for database in ("again", "viewtail"):
        ask(server, f"DROP DATABASE IF EXISTS {database}")
    execute(server, ["CREATE DATABASE again", *statements])


def execute(server: Server, statements: Sequence[str]) -> None:
    for statement in statements:
        ask(server, statement)


def in_redis(server: Server) -> dict[str, str]:
    with redis.Redis(port=server.port, decode_responses=True) as client:
        names = {key.partition(":")[2]: client.hget(key, "name") for key in client.scan_iter("again:[0-9]*[0-9]")}
    return {key: str(name) for key, name in names.items()}


def fill(owner: Owner) -> None:
    """Until nothing is left to fill."""
    while names := owner.to_fill():
        for name in names:
            outcome = owner.backfill(name, chunk_rows=2).run()
            assert outcome.error is None, outcome.why


REDEFINITIONS = {
    "another character set": (
        "name VARCHAR(20) CHARACTER SET cp1251",
        "'слово'",
        ["ALTER TABLE again.item MODIFY name VARCHAR(20) CHARACTER SET utf8mb4"],
        "слово",
    ),
    "another character set, and back": (
        "name VARCHAR(20) CHARACTER SET utf8mb4",
        "'слово'",
        [
            "ALTER TABLE again.item MODIFY name VARCHAR(20) CHARACTER SET cp1251",
            "ALTER TABLE again.item MODIFY name VARCHAR(20) CHARACTER SET utf8mb4",
        ],
        "слово",
    ),
    "another character set, swapped in": (
        "name VARCHAR(20) CHARACTER SET cp1251",
        "'слово'",
        [
            "CREATE TABLE again._item_gho (id INT PRIMARY KEY, name VARCHAR(20) CHARACTER SET utf8mb4)",
            "INSERT INTO again._item_gho SELECT * FROM again.item",
            SWAP,
        ],
        "слово",
    ),
    "bits, swapped in": (
        "name TINYINT",
        "1",
        [
            "CREATE TABLE again._item_gho (id INT PRIMARY KEY, name BIT(1))",
            "INSERT INTO again._item_gho SELECT * FROM again.item",
            SWAP,
        ],
        "1",
    ),
}


@pytest.mark.parametrize("amid", [False, True])
@pytest.mark.parametrize("case", REDEFINITIONS)
def test_a_fill_reads_a_column_as_it_is_now(
    case: str, amid: bool, mysql_server: Server, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a view that was bound before: one that is replayed, or one whose fill was under way."""
    column, value, statements, shown = REDEFINITIONS[case]
    made(
        mysql_server,
        f"CREATE TABLE again.item (id INT PRIMARY KEY, {column})",
        "INSERT INTO again.item VALUES " + ", ".join(f"({i}, {value})" for i in range(10, 20)),
    )
    read, passed = CanonicalRows.after, []

    def read_amid(chunks: Any, after: Any, version: int) -> Any:
        if after is not None and not passed:
            passed.append(True)
            execute(mysql_server, statements)
        return read(chunks, after, version)

    with owned(deployed([HASH], mysql_server, redis_server), "redis") as owner:
        if amid:
            monkeypatch.setattr(CanonicalRows, "after", read_amid)
            outcome = owner.backfill(HASH.id, chunk_rows=2).run()
            # What the SELECT of before gets, the server or viewtail may refuse.
            assert outcome.error is None or isinstance(outcome.error, SourceError), outcome.why
            assert passed
            owner.pass_everything()
            fill(owner)
        else:
            owner.fill_all()
            execute(mysql_server, statements)
            owner.pass_everything()
            owner.own.life.states.move(Event.REPLAYED, [HASH.id])
            fill(owner)
        assert owner.state(HASH.id) == "filled" and owner.failure is None
        assert in_redis(redis_server) == {str(i): shown for i in range(10, 20)}
    if "swapped" not in case:  # the statement may be read again, and such a table is always filled again
        with owned(deployed([HASH], mysql_server, redis_server), "redis") as owner:
            owner.pass_everything()
            assert owner.to_fill() == []


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_fill_begins_again_where_rows_got_another_order(
    is_interrupted: bool, mysql_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the new one `D` stands before `c`, which was read last: a fill that goes on would miss it."""
    made(
        mysql_server,
        "CREATE TABLE again.item (id VARCHAR(5) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY, n INT)",
        "INSERT INTO again.item VALUES ('a', 1), ('B', 2), ('c', 3), ('D', 4), ('e', 5)",
    )
    statement = "ALTER TABLE again.item MODIFY id VARCHAR(5) COLLATE utf8mb4_bin NOT NULL"
    catalog = deployed([TABLE], mysql_server)
    read, passed = CanonicalRows.after, []

    def read_amid(chunks: Any, after: Any, version: int) -> Any:
        if after == ("c",) and not passed:
            passed.append(True)
            if is_interrupted:
                raise StopRequested
            execute(mysql_server, [statement])
        return read(chunks, after, version)

    monkeypatch.setattr(CanonicalRows, "after", read_amid)
    monkeypatch.setattr("ingest.canonical.chunks._FIRST_CHUNK_ROWS", 3)
    with owned(catalog, "mysql") as owner:
        outcome = owner.backfill(TABLE.id, chunk_rows=3).run()
        assert outcome.error is None, outcome.why
        assert passed
        if not is_interrupted:
            owner.pass_everything()
            fill(owner)
    if is_interrupted:
        execute(mysql_server, [statement])
        with owned(deployed([TABLE], mysql_server), "mysql") as owner:
            fill(owner)
    found = ask(mysql_server, "SELECT id, n FROM viewtail.ix_again ORDER BY n")
    assert [(bytes(key, "utf-8") if isinstance(key, str) else key, n) for key, n in found] == [
        (b"a", 1), (b"B", 2), (b"c", 3), (b"D", 4), (b"e", 5),
    ]  # fmt: skip


def test_keys_are_looked_up_as_they_are_now(mysql_server: Server) -> None:
    """Behind a DROP PARTITION: none of them was found when they were asked for in the character set of before."""
    made(
        mysql_server,
        "CREATE TABLE again.item (id VARCHAR(9) CHARACTER SET cp1251, p INT, n INT, PRIMARY KEY (id, p)) PARTITION BY "
        "RANGE (p) (PARTITION low VALUES LESS THAN (10), PARTITION high VALUES LESS THAN MAXVALUE)",
        "INSERT INTO again.item VALUES ('слово', 1, 1), ('слово', 10, 2), ('word', 11, 3)",
    )
    with owned(deployed([TABLE], mysql_server), "mysql") as owner:
        owner.fill_all()
        execute(
            mysql_server,
            [
                "ALTER TABLE again.item MODIFY id VARCHAR(9) CHARACTER SET utf8mb4",
                "ALTER TABLE again.item DROP PARTITION low",
            ],
        )
        owner.pass_everything()
        assert owner.state(TABLE.id) == "filled"
        assert ask(mysql_server, "SELECT n FROM viewtail.ix_again WHERE n > 0 ORDER BY n") == [(2,), (3,)]


def test_a_primary_key_that_no_view_uses_may_be_renamed(mysql_server: Server) -> None:
    made(
        mysql_server,
        "CREATE TABLE again.item (id INT PRIMARY KEY, ext INT NOT NULL UNIQUE, n INT)",
        "INSERT INTO again.item VALUES (1, 10, 1), (2, 20, 2)",
    )
    view = IndexTable("ix_again", Entity("again.item", key="ext"), value="n")
    with owned(deployed([view], mysql_server), "mysql") as owner:
        owner.fill_all()
        execute(mysql_server, ["ALTER TABLE again.item RENAME COLUMN id TO number"])
        owner.pass_everything()
        owner.fill_again(view.id)
        assert owner.state(view.id) == "filled"


def test_an_index_whose_field_became_wider_is_made_anew(
    mysql_server: Server, redis_server: Server, elasticsearch_server: Server
) -> None:
    """Its view is taken up anew, instead of parking what the field of before has no room for."""
    made(
        mysql_server,
        "CREATE TABLE again.item (id INT PRIMARY KEY, n TINYINT)",
        "INSERT INTO again.item VALUES (1, 1)",
    )
    view = SearchIndex("again", ITEM, fields=["n"])
    servers = (mysql_server, redis_server, elasticsearch_server)
    with owned(deployed([view], *servers), "elasticsearch") as owner:
        owner.fill_all()
        execute(
            mysql_server,
            ["ALTER TABLE again.item MODIFY n INT", "INSERT INTO again.item VALUES (2, 1000)"],
        )
        owner.pass_everything()
        assert owner.to_fill() == [view.id] and owner.own.life.projections.is_halted(view.id)
        assert owner.own.pipeline.dead_letters.count == 0
    with owned(deployed([view], *servers), "elasticsearch") as owner:
        owner.fill_all()
        assert owner.state(view.id) == "filled" and owner.own.pipeline.dead_letters.count == 0


def test_rows_of_before_a_label_was_added_are_read_after_a_crash(mysql_server: Server) -> None:
    """The view was bound to the table with the label when its process was killed, the offset stood before that."""
    made(
        mysql_server,
        "CREATE TABLE again.item (id INT PRIMARY KEY, kind ENUM('a'))",
        "INSERT INTO again.item VALUES (1, 'a')",
    )
    view = IndexTable("ix_again", ITEM, value="kind")
    with owned(deployed([view], mysql_server), "mysql") as owner:
        owner.fill_all()
    execute(
        mysql_server,
        [
            "INSERT INTO again.item VALUES (2, 'a')",
            "ALTER TABLE again.item MODIFY kind ENUM('a', 'b')",
            "INSERT INTO again.item VALUES (3, 'b')",
        ],
    )
    now = deployed([view], mysql_server)
    ask(mysql_server, f"UPDATE viewtail.view SET fingerprint = '{now.views[0].fingerprint}'")
    with owned(now, "mysql") as owner:
        owner.pass_everything()
        assert owner.state(view.id) == "filled"
        assert ask(mysql_server, "SELECT kind FROM viewtail.ix_again ORDER BY id") == [("a",), ("a",), ("b",)]
