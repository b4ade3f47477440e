"""Tables that online schema change tools rebuild beside and swap in, under live writes: no row is lost."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

from stack import Server, percona
from tests.integration.test_backfill import STORES, VIEWS, Shelf, servers
from tests.support.pipelines import Owner, deployed, owned
from tests.support.running import wait_for
from tests.support.world import World

ROWS = 2000


@pytest.fixture
def shelf(mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Shelf:
    made = Shelf(World(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server))
    made.add(ROWS)
    return made


@contextmanager
def writing(shelf: Shelf) -> Iterator[list[int]]:
    """Two writers, all through; yields how many statements each has done."""
    done, stop = [0, 0], threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        connection = shelf.world.connect()
        connection.autocommit(True)
        with connection.cursor() as cursor:
            while not stop.is_set():
                i = chance.randrange(ROWS + 500)
                statement = chance.choice(
                    (
                        f"UPDATE fill.item SET name = 'w{seed}.{done[seed]}' WHERE id = {i}",
                        f"REPLACE INTO fill.item (id, name) VALUES ({i}, 'r{seed}.{done[seed]}')",
                        f"DELETE FROM fill.item WHERE id = {i}",
                        f"UPDATE IGNORE fill.item SET id = id + 3000 WHERE id = {i}",
                    )
                )
                try:
                    cursor.execute(statement)
                except pymysql.err.OperationalError as error:
                    if error.args[0] not in (1205, 1213):  # it waited for a lock, or deadlocked with a copy
                        raise
                done[seed] += 1
        connection.close()

    threads = [threading.Thread(target=write, args=(seed,)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def assert_equal_at_the_end(owner: Owner, store: str, shelf: Shelf) -> None:
    owner.pass_everything()
    owner.fill_all()
    assert owner.failure is None
    assert owner.own.life.states.read(VIEWS[store].id).reason is None
    assert shelf.shown(store) == shelf.in_table()
    with shelf.world.cursor() as cursor:
        cursor.execute("SHOW COLUMNS FROM fill.item LIKE 'age'")
        assert cursor.fetchone() is not None, "the new table is in place"


@pytest.mark.parametrize("store", STORES)
def test_a_table_that_pt_online_schema_change_rebuilds_is_followed(store: str, shelf: Shelf) -> None:
    argv, environment = percona.tool("pt-online-schema-change")
    with owned(deployed([VIEWS[store]], *servers(shelf)), store) as owner:
        owner.fill_all()
        with writing(shelf):
            ran = subprocess.run(
                [
                    *argv,
                    "--alter=ADD COLUMN age INT FIRST, MODIFY name VARCHAR(90)",
                    "--execute",
                    "--recursion-method=none",
                    "--chunk-size=200",
                    f"h=127.0.0.1,P={shelf.world.mysql.port},u=root,D=fill,t=item",
                ],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=90,
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr
        assert_equal_at_the_end(owner, store, shelf)


class GhOst:
    """The statements that gh-ost sends, in its order; its reading of the binlog is a last copy under the lock."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def migrate(self) -> None:
        self._shelf.execute(
            "CREATE /* gh-ost */ TABLE `fill`.`_item_ghc` (id BIGINT AUTO_INCREMENT PRIMARY KEY, hint VARCHAR(64))",
            "CREATE /* gh-ost */ TABLE `fill`.`_item_gho` LIKE `fill`.`item`",
            "ALTER /* gh-ost */ TABLE `fill`.`_item_gho` ADD COLUMN age INT FIRST",
        )
        for begin in range(0, ROWS, 500):
            self._shelf.execute(
                "INSERT /* gh-ost `fill`.`item` */ IGNORE INTO `fill`.`_item_gho` (id, name, other) "
                f"SELECT id, name, other FROM `fill`.`item` WHERE id BETWEEN {begin} AND {begin + 499} "
                "LOCK IN SHARE MODE",
                f"INSERT INTO `fill`.`_item_ghc` (hint) VALUES ('copied {begin}')",
            )
        self._cut_over()

    def _cut_over(self) -> None:
        """A table of the old one's future name makes the RENAME wait until the lock's holder lets it through."""
        holder: Any = self._shelf.world.connect()
        with holder.cursor() as cursor:
            cursor.execute(
                "CREATE /* gh-ost */ TABLE `fill`.`_item_del` (id INT PRIMARY KEY) COMMENT='ghost-cut-over-sentry'"
            )
            cursor.execute(
                "LOCK /* gh-ost */ TABLES `fill`.`item` WRITE, `fill`.`_item_del` WRITE, `fill`.`_item_gho` WRITE"
            )
            cursor.execute("DELETE FROM `fill`.`_item_gho`")
            cursor.execute("INSERT INTO `fill`.`_item_gho` (id, name, other) SELECT id, name, other FROM `fill`.`item`")
            holder.commit()
            rename = threading.Thread(
                target=self._shelf.execute,
                args=(
                    (
                        "RENAME /* gh-ost */ TABLE `fill`.`item` TO `fill`.`_item_del`, "
                        "`fill`.`_item_gho` TO `fill`.`item`"
                    ),
                ),
            )
            rename.start()
            wait_for("the RENAME waits", self._is_waiting)
            cursor.execute("DROP /* gh-ost */ TABLE IF EXISTS `fill`.`_item_del`")
            cursor.execute("UNLOCK TABLES")
        rename.join()
        holder.close()
        self._shelf.execute("DROP TABLE `fill`.`_item_ghc`", "DROP TABLE `fill`.`_item_del`")

    def _is_waiting(self) -> bool:
        return bool(
            self._shelf.rows(
                "SELECT 1 FROM information_schema.processlist "
                "WHERE info LIKE 'RENAME /* gh-ost%' AND state LIKE 'Waiting%'"
            )
        )


@pytest.mark.parametrize("store", STORES)
def test_a_table_that_gh_ost_swaps_in_is_followed(store: str, shelf: Shelf) -> None:
    with owned(deployed([VIEWS[store]], *servers(shelf)), store) as owner:
        owner.fill_all()
        with writing(shelf) as done:
            GhOst(shelf).migrate()
            so_far = sum(done)
            wait_for("rows are written to the new table", lambda: sum(done) > so_far + 50)
        assert_equal_at_the_end(owner, store, shelf)


def test_rows_copied_to_the_ghost_table_are_no_rows_of_the_view(shelf: Shelf) -> None:
    """They are another table's, until it has the name."""
    with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:
        owner.fill_all()
        shelf.execute(
            "CREATE TABLE fill._item_gho LIKE fill.item",
            "INSERT INTO fill._item_gho VALUES (777777, 'ghost', 'x')",
            "UPDATE fill._item_gho SET name = 'ghost too' WHERE id = 777777",
            "ALTER TABLE fill._item_gho DROP COLUMN name",
        )
        owner.pass_everything()
        assert owner.state(VIEWS["mysql"].id) == "filled"
        assert shelf.shown("mysql") == shelf.in_table()
        assert 777777 not in shelf.shown("mysql")
