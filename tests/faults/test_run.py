"""What `viewtail run` promises about processes, tables it cannot read, and histories that do not continue."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

import stack.mysql
from stack import Server
from tests.support.running import Run, addresses, running, wait_for

VIEWS = """
from viewtail import Entity, IndexTable
views = [
    IndexTable("ix_email", Entity("shop.user"), value="email"),
    IndexTable("ix_city", Entity("shop.city"), value="name"),
]
"""


class Shop:
    """A MySQL of its own with two tables, and what their index tables show."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def execute(self, *statements: str) -> None:
        connection = pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", autocommit=True)
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.close()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        connection = pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute(query)
            found = list(cursor.fetchall())
        connection.close()
        return found

    def emails(self) -> set[str]:
        return {email for (email,) in self.rows("SELECT email FROM viewtail.ix_email WHERE email IS NOT NULL")}

    def cities(self) -> set[str]:
        return {name for (name,) in self.rows("SELECT name FROM viewtail.ix_city WHERE name IS NOT NULL")}


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.kill()


@pytest.fixture
def shop(own_mysql: Server) -> Shop:
    return with_tables(Shop(own_mysql))


def with_tables(made: Shop) -> Shop:
    made.execute(
        "DROP DATABASE IF EXISTS shop",
        "DROP DATABASE IF EXISTS viewtail",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(60), doc JSON)",
        "CREATE TABLE shop.city (id INT PRIMARY KEY, name VARCHAR(60))",
        "INSERT INTO shop.user VALUES (1, 'a', JSON_OBJECT('k', 1))",
        "INSERT INTO shop.city VALUES (1, 'Bern')",
    )
    return made


def started(shop: Shop, run: Run) -> None:
    wait_for("both views are filled", lambda: shop.emails() == {"a"} and shop.cities() == {"Bern"})
    wait_for("status says that all is well", run.is_well)


def goes_on(shop: Shop) -> None:
    """The other table's view is still kept."""
    name = f"city {time.time_ns()}"
    shop.execute(f"REPLACE INTO shop.city VALUES (2, '{name}')")
    wait_for("the other view goes on", lambda: name in shop.cities())


def halted_reason(run: Run, view: str = "mysql:ix_email") -> str:
    """Why a view is halted, as `viewtail status --json` tells it."""

    def reason() -> str:
        told = json.dumps(json.loads(run.command("status", "--json").stdout))
        found = re.search(rf'"name": "{view}", "state": "halted", "reason": "((?:[^"\\]|\\.)*)"', told)
        return found[1] if found else ""

    return wait_for("the view is halted", reason)


# What is done to a table, and what the reason says of it.
UNREADABLE = {
    "dropped": (["DROP TABLE shop.dropped"], "DROP"),
    "renamed": (["RENAME TABLE shop.renamed TO shop.renamed_old"], "RENAME"),
    "minimal_image": (
        ["SET SESSION binlog_row_image = MINIMAL", "UPDATE shop.minimal_image SET email = 'b'"],
        "binlog_row_image = 'FULL'",
    ),
    "retyped": (
        ["ALTER TABLE shop.retyped MODIFY email VARBINARY(60)", "UPDATE shop.retyped SET email = 'b'"],
        "email",
    ),
    "dropped_column": (
        [
            "ALTER TABLE shop.dropped_column DROP COLUMN email",
            "REPLACE INTO shop.dropped_column VALUES (3, NULL)",
        ],
        "email",
    ),
}


def test_what_cannot_be_read_exactly_halts_its_own_views_and_no_other(shop: Shop, tmp_path: Path) -> None:
    """One thing after another, each to a table of its own."""
    shop.execute(*(f"CREATE TABLE shop.{table} LIKE shop.user" for table in UNREADABLE))
    shop.execute(*(f"INSERT INTO shop.{table} SELECT * FROM shop.user" for table in UNREADABLE))
    declared = [f'IndexTable("ix_{table}", Entity("shop.{table}"), value="email"),' for table in UNREADABLE]
    views = VIEWS.replace("views = [", f"views = [{' '.join(declared)}")
    states = dict.fromkeys(
        [*(f"mysql:ix_{table}" for table in UNREADABLE), "mysql:ix_city", "mysql:ix_email"], "filled"
    )
    with running(tmp_path, views, addresses(shop.server)) as run:
        started(shop, run)
        for table, (statements, words) in UNREADABLE.items():
            shop.execute(*statements)
            reason = halted_reason(run, f"mysql:ix_{table}")
            assert words in reason and f"shop.{table}" in reason and re.search("viewtail replay|rebuild", reason)
            states[f"mysql:ix_{table}"] = "halted"
            goes_on(shop)
            assert dict(shop.rows("SELECT name, state FROM viewtail.view")) == states
            assert run.command("status").returncode == 1
        assert run.stop() == 0


def test_a_transaction_that_is_prepared_when_viewtail_is_killed_is_applied_at_its_commit(
    shop: Shop, tmp_path: Path
) -> None:
    """Compressed, and with other transactions behind it whose offset must not hide it."""
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        shop.execute(
            "SET SESSION binlog_transaction_compression = ON", "XA START 'x'", "UPDATE shop.user SET email = 'xa'",
            "XA END 'x'", "XA PREPARE 'x'",
        )  # fmt: skip
        shop.execute("UPDATE shop.city SET name = 'behind it'")
        wait_for("what came after it is there", lambda: shop.cities() == {"behind it"})
        run.kill()
        run.start()
        shop.execute("UPDATE shop.city SET name = 'after the kill'")
        wait_for("viewtail goes on", lambda: shop.cities() == {"after the kill"})
        assert shop.emails() == {"a"}
        shop.execute("XA COMMIT 'x'")
        wait_for("its rows are there", lambda: shop.emails() == {"xa"})
        assert run.stop() == 0


def test_a_view_is_filled_again_while_a_prepared_transaction_holds_the_offset_back(shop: Shop, tmp_path: Path) -> None:
    """Reading begins before the statement that halted it each time, which was mended since."""
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        shop.execute("CREATE TABLE shop.other (id INT PRIMARY KEY)")
        shop.execute("XA START 'x'", "INSERT INTO shop.other VALUES (1)", "XA END 'x'", "XA PREPARE 'x'")
        shop.execute("ALTER TABLE shop.user DROP COLUMN email")
        halted_reason(run)
        shop.execute("ALTER TABLE shop.user ADD COLUMN email VARCHAR(60)", "UPDATE shop.user SET email = 'anew'")
        assert run.command("replay", "--yes", "ix_email").returncode == 0
        wait_for("it is filled", lambda: shop.emails() == {"anew"})
        shop.execute("UPDATE shop.user SET email = 'and followed'")
        wait_for("it is followed", lambda: shop.emails() == {"and followed"})
        shop.execute("XA COMMIT 'x'")
        wait_for("all is well", run.is_well)
        assert run.stop() == 0


@pytest.mark.parametrize("statement", ["PURGE BINARY LOGS TO '{newest}'", "RESET BINARY LOGS AND GTIDS"])
def test_a_history_that_is_gone_halts_and_a_new_one_is_begun_on_request(
    statement: str, shop: Shop, tmp_path: Path
) -> None:
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        assert run.stop() == 0
        shop.execute("UPDATE shop.user SET email = 'missed'", "FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        newest = shop.rows("SHOW BINARY LOGS")[-1][0]
        shop.execute(statement.format(newest=newest), "UPDATE shop.city SET name = 'Basel'")
        run.start()
        wait_for("the log names the way out", lambda: "viewtail replay --new-history" in run.log)
        assert shop.emails() == {"a"}, "nothing may jump over the missing changes"
        assert run.stop() == 0
        begun = run.command("replay", "--new-history")
        assert begun.returncode == 0, begun.stderr
        run.start()
        wait_for("the views are right again", lambda: shop.emails() == {"missed"} and shop.cities() == {"Basel"})
        goes_on(shop)
        assert run.stop() == 0


def test_a_halted_view_is_right_again_after_replay(shop: Shop, tmp_path: Path) -> None:
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        shop.execute("INSERT INTO shop.user VALUES (2, 'b', NULL)", "RENAME TABLE shop.user TO shop.gone")
        halted_reason(run)
        shop.execute("CREATE TABLE shop.user LIKE shop.gone", "INSERT INTO shop.user VALUES (3, 'c', NULL)")
        assert run.command("replay", "--yes", "ix_email").returncode == 0
        wait_for("the view equals its table", lambda: shop.emails() == {"c"})
        shop.execute("UPDATE shop.user SET email = 'd'")
        wait_for("the view follows again", lambda: shop.emails() == {"d"})
        assert run.stop() == 0


def test_a_view_that_was_left_out_comes_back_by_a_replay_without_a_restart(shop: Shop, tmp_path: Path) -> None:
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        shop.execute("DROP TABLE shop.user")
        halted_reason(run)
        assert run.stop() == 0
        run.start()
        goes_on(shop)
        assert "halted views are left out" in run.log
        early = run.command("replay", "--yes", "ix_email")
        assert early.returncode == 1 and "shop.user does not exist" in early.stderr
        # As a replay would whose table went away again just then.
        shop.execute("UPDATE viewtail.view SET state = 'new', reason = NULL WHERE name = 'mysql:ix_email'")
        assert "shop.user does not exist" in halted_reason(run)
        shop.execute(
            "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(60))",
            "INSERT INTO shop.user VALUES (3, 'c')",
        )
        assert run.command("replay", "--yes", "ix_email").returncode == 0
        wait_for("the view equals its table", lambda: shop.emails() == {"c"})
        shop.execute("UPDATE shop.user SET email = 'd'")
        wait_for("the view follows again", lambda: shop.emails() == {"d"})
        goes_on(shop)
        assert run.stop() == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("ALTER TABLE shop.user RENAME COLUMN email TO mail", "no column email"),
        ("DROP TABLE shop.user", "shop.user does not exist"),
    ],
)
def test_a_table_that_changed_while_nothing_ran_halts_its_views_and_no_others(
    change: str, why: str, shop: Shop, tmp_path: Path
) -> None:
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        assert run.stop() == 0
        shop.execute(change)
        run.start()
        goes_on(shop)
        reason = halted_reason(run)
        assert why in reason and "shop.user was changed" in reason and "viewtail replay mysql:ix_email" in reason
        assert run.stop() == 0
        # A declaration that is another one than was kept is a mistake in it, and refused.
        (tmp_path / "views.py").write_text(VIEWS.replace('"name"', '"nme"'))
        run.start()
        assert run.process is not None and run.process.wait(20) == 2
        assert "no column nme; did you mean name?" in run.log
        run.process = None


def test_a_run_whose_every_view_is_halted_waits_for_a_replay(shop: Shop, tmp_path: Path) -> None:
    """At its start, too: with one view, a table that is dropped while nothing runs is every view."""
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        assert run.stop() == 0
        shop.execute("DROP TABLE shop.user", "RENAME TABLE shop.city TO shop.town")
        run.start()
        assert "shop.user does not exist" in halted_reason(run)
        shop.execute("RENAME TABLE shop.town TO shop.city")
        assert run.command("replay", "--yes", "ix_city").returncode == 0
        goes_on(shop)
        assert run.stop() == 0


def test_views_and_table_that_change_together_disturb_no_other_view_of_the_table(shop: Shop, tmp_path: Path) -> None:
    """Though the changes of before lack a column that the declarations name now."""
    third = VIEWS.replace("views = [", 'views = [IndexTable("ix_id", Entity("shop.user"), value="number"),')
    shop.execute("ALTER TABLE shop.user ADD COLUMN number INT DEFAULT 1")
    with running(tmp_path, third, addresses(shop.server)) as run:
        started(shop, run)
        assert run.stop() == 0
        shop.execute(
            "INSERT INTO shop.user (id, email) VALUES (2, 'before')",
            "ALTER TABLE shop.user RENAME COLUMN number TO digits, ADD COLUMN added INT DEFAULT 5",
            "INSERT INTO shop.user (id, email) VALUES (3, 'behind')",
        )
        (tmp_path / "views.py").write_text(third.replace('"number"', '["digits", "added"]'))
        run.start()
        wait_for("the other view goes on", lambda: shop.emails() == {"a", "before", "behind"})
        wait_for("status says that all is well", run.is_well)
        shop.execute("UPDATE shop.user SET digits = id")
        digits = "SELECT id, digits, added FROM viewtail.ix_id ORDER BY id"
        wait_for("the changed one follows", lambda: shop.rows(digits) == [(n, n, 5) for n in (1, 2, 3)])
        assert run.stop() == 0


def test_a_view_that_halted_at_another_primary_key_is_filled_by_its_own_replay_only(shop: Shop, tmp_path: Path) -> None:
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        shop.execute(
            "ALTER TABLE shop.user ADD COLUMN region INT NOT NULL DEFAULT 7, "
            "DROP PRIMARY KEY, ADD PRIMARY KEY (id, region)",
            "ALTER TABLE shop.city DROP COLUMN name, ADD COLUMN name VARCHAR(60)",
        )
        reason = halted_reason(run)
        assert "in Redis or Elasticsearch needs a new name then" in reason

        def replayed() -> bool:
            shop.execute("REPLACE INTO shop.city VALUES (1, 'Bern'), (2, 'Basel')")
            assert run.command("replay", "--yes", "ix_city").returncode == 0
            wait_for("the other view is filled", lambda: shop.cities() == {"Bern", "Basel"})
            return halted_reason(run) == reason

        assert replayed(), "the pipeline was taken again for the other view, with the tables as they are now"
        assert run.stop() == 0
        run.start()
        assert replayed(), "a restart is no reason to fill it"
        assert shop.emails() == {"a"}
        shop.execute("INSERT INTO shop.user VALUES (1, 'b', NULL, 8)")
        assert run.command("replay", "--yes", "ix_email").returncode == 0
        wait_for("it is filled by its own replay", lambda: shop.emails() == {"a", "b"})
        wait_for("status says that all is well", run.is_well)
        assert run.stop() == 0


def test_a_transaction_far_above_the_memory_bound_passes_whole(shop: Shop, tmp_path: Path) -> None:
    settings = {**addresses(shop.server), "VIEWTAIL_RUN__SPOOL_BYTES": "65536"}
    with running(tmp_path, VIEWS, settings) as run:
        started(shop, run)
        shop.execute(
            "SET SESSION cte_max_recursion_depth = 300000",
            "INSERT INTO shop.user SELECT n, CONCAT('e', n, REPEAT('x', 40)), NULL FROM (WITH RECURSIVE s AS "
            "(SELECT 10 n UNION ALL SELECT n + 1 FROM s WHERE n < 200009) SELECT n FROM s) t",
        )
        wait_for("all rows are there", lambda: len(shop.emails()) == 200_001)
        status = Path(f"/proc/{run.workers()['mysql']}/status").read_text()
        peak = re.search(r"VmHWM:\s+(\d+)", status)
        assert peak is not None and int(peak[1]) < 150 * 1024
        assert run.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_second_run_stands_by_and_takes_over_within_10_s(number: int, shop: Shop, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with running(tmp_path / "one", VIEWS, addresses(shop.server)) as first:
        started(shop, first)
        with running(tmp_path / "two", VIEWS, addresses(shop.server)) as second:
            wait_for("the second stands by", lambda: "another viewtail runs this pipeline" in second.log)
            pids = [*first.workers().values()]
            assert first.process is not None
            for pid in (first.process.pid, *pids):
                os.kill(pid, number)
            shop.execute("UPDATE shop.user SET email = 'after'")
            began = time.monotonic()
            wait_for("the second takes over", lambda: shop.emails() == {"after"}, timeout_s=10)
            assert time.monotonic() - began < 10
            fence = shop.rows("SELECT fence FROM viewtail.pipeline WHERE name = 'mysql'")
            if number == signal.SIGSTOP:
                for pid in (*pids, first.process.pid):
                    os.kill(pid, signal.SIGCONT)
                wait_for("the first stands by now", lambda: "standing by" in first.log)
                shop.execute("UPDATE shop.user SET email = 'later'")
                wait_for("the second goes on", lambda: shop.emails() == {"later"})
                assert shop.rows("SELECT fence FROM viewtail.pipeline WHERE name = 'mysql'") == fence
            assert second.stop() == 0


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_second_run_takes_over_within_10_s_from_one_that_hangs_inside_a_transaction(
    kind: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It holds the lock of the pipeline's row, and of rows of the index table, for as long as its session lives."""
    if kind == "mariadb":
        shop = with_tables(Shop(request.getfixturevalue("mariadb_server")))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with running(tmp_path / "one", VIEWS, addresses(shop.server)) as first:
        started(shop, first)
        assert first.stop() == 0
        first.start(VIEWTAIL_FAILPOINT="after write:1:SIGSTOP")
        wait_for("the first runs", first.is_well)
        with running(tmp_path / "two", VIEWS, addresses(shop.server)) as second:
            wait_for("the second stands by", lambda: "another viewtail runs this pipeline" in second.log)
            (hung,) = first.workers().values()
            shop.execute("INSERT INTO shop.user VALUES (2, 'b', NULL), (3, 'c', NULL)")
            wait_for("the first hangs", lambda: is_stopped(hung))
            began = time.monotonic()
            wait_for("the second takes over", lambda: shop.emails() == {"a", "b", "c"}, timeout_s=15)
            assert time.monotonic() - began < 10
            os.kill(hung, signal.SIGCONT)
            wait_for("the first stands by now", lambda: "standing by" in first.log)
            shop.execute("UPDATE shop.user SET email = CONCAT(email, '2')")
            wait_for("the second goes on", lambda: shop.emails() == {"a2", "b2", "c2"})
            wait_for("status says that all is well", second.is_well)
            assert second.stop() == 0


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_pipeline_that_is_taken_again_says_that_it_runs(shop: Shop, tmp_path: Path) -> None:
    """Though nothing is written before and after: what a minute passes over is not what was said of the one before."""
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        wait_for(
            "it is said to run",
            lambda: shop.rows("SELECT state FROM viewtail.pipeline_status") == [("running",)],
        )
        fence = shop.rows("SELECT fence FROM viewtail.pipeline")
        shop.execute("SET @holder = IS_USED_LOCK('viewtail:viewtail:mysql')", "KILL @holder")
        wait_for("it is taken again", lambda: shop.rows("SELECT fence FROM viewtail.pipeline") > fence)
        wait_for("status says that all is well", run.is_well, timeout_s=10)
        assert run.stop() == 0


def test_one_that_stood_by_takes_over_with_the_tables_as_they_are_then(shop: Shop, tmp_path: Path) -> None:
    """As described at its start it would take the index table back to a width that its rows do not fit."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with running(tmp_path / "one", VIEWS, addresses(shop.server)) as first:
        started(shop, first)
        with running(tmp_path / "two", VIEWS, addresses(shop.server)) as second:
            wait_for("the second stands by", lambda: "another viewtail runs this pipeline" in second.log)
            wide = "w" * 90
            shop.execute("ALTER TABLE shop.user MODIFY email VARCHAR(90)", f"UPDATE shop.user SET email = '{wide}'")
            wait_for("the wide row is there", lambda: shop.emails() == {wide})
            assert first.stop() == 0
            shop.execute(f"INSERT INTO shop.user VALUES (2, '{'v' * 90}', NULL)")
            wait_for("the second takes over", lambda: len(shop.emails()) == 2, timeout_s=15)
            wait_for("all is well", second.is_well)
            assert "filling" not in second.log
            assert second.stop() == 0


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_what_a_table_went_through_before_the_first_position_was_taken_is_in_its_view(
    kind: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The stream begins behind it, so nothing else says that the column is wider, or that it has people's data now."""
    if kind == "mariadb":
        shop = with_tables(Shop(request.getfixturevalue("mariadb_server")))
    wide, people = "w" * 90, "VARCHAR(60) COMMENT 'Where #PPI lives'"
    run = Run(tmp_path, VIEWS, {**addresses(shop.server), "VIEWTAIL_MASKS__SECRET": "s" * 64})
    run.start(VIEWTAIL_FAILPOINT="before position:1:SIGSTOP")
    try:
        wait_for("its views are bound", lambda: any(map(is_stopped, run.workers().values())))
        shop.execute(
            "ALTER TABLE shop.user MODIFY email VARCHAR(90)",
            f"ALTER TABLE shop.city MODIFY name {people}",
        )
        os.kill(run.workers()["mysql"], signal.SIGCONT)
        wait_for("the first rows are there", lambda: shop.emails() == {"a"} and len(shop.cities()) == 1)
        shop.execute(f"UPDATE shop.user SET email = '{wide}'", "INSERT INTO shop.city VALUES (2, 'Basel')")
        wait_for("the long value is there", lambda: shop.emails() == {wide})
        wait_for("the new city is there", lambda: len(shop.cities()) == 2)
        assert not shop.cities() & {"Bern", "Basel"}
        wait_for("all is well", run.is_well)
        assert run.stop() == 0
    finally:
        run.kill()


def test_a_stopped_run_has_saved_its_offset_and_goes_on_from_there(shop: Shop, tmp_path: Path) -> None:
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        shop.execute("UPDATE shop.user SET email = 'b'")
        wait_for("the change is there", lambda: shop.emails() == {"b"})
        began = time.monotonic()
        assert run.stop() == 0
        assert time.monotonic() - began < 10
        shop.execute("UPDATE shop.user SET email = 'c'")
        run.start()
        wait_for("what came meanwhile is there", lambda: shop.emails() == {"c"})
        assert "filling" not in run.log.partition("view backfilled")[2].partition("SIGTERM")[2]
        assert run.stop() == 0


def test_what_a_table_went_through_before_its_first_view_halts_nothing(shop: Shop, tmp_path: Path) -> None:
    """Migrated, then deployed: the offset stands before the migration, which the new view has nothing to do with."""
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        assert run.stop() == 0
        shop.execute(
            "CREATE TABLE shop.later (id INT PRIMARY KEY, name INT)",
            "INSERT INTO shop.later VALUES (1, 1)",
            "DROP TABLE shop.later",
            "CREATE TABLE shop.later (id INT PRIMARY KEY, name VARCHAR(20))",
            "INSERT INTO shop.later VALUES (1, 'one'), (2, 'two')",
            "TRUNCATE TABLE shop.later",
            "INSERT INTO shop.later VALUES (3, 'three')",
            "UPDATE shop.user SET email = 'b'",
        )
        later = '    IndexTable("ix_later", Entity("shop.later"), value="name"),\n]'
        (tmp_path / "views.py").write_text(VIEWS.replace("]", later))
        run.start()
        wait_for(
            "it is filled",
            lambda: shop.rows("SELECT id, name FROM viewtail.ix_later WHERE name IS NOT NULL") == [(3, "three")],
        )
        wait_for("all is well", run.is_well)
        assert shop.emails() == {"b"}
        # From then on its statements count.
        shop.execute("DROP TABLE shop.later")
        wait_for("it is halted", lambda: "the table was dropped" in run.command("status").stdout)
        assert run.stop() == 0


def test_a_source_that_is_away_at_the_start_is_waited_for(shop: Shop, tmp_path: Path) -> None:
    shop.server.stop()
    try:
        with running(tmp_path, VIEWS, addresses(shop.server)) as run:
            wait_for("it says so", lambda: "waiting for a server" in run.log)
            shop.server.start()
            started(shop, run)
            assert run.stop() == 0
    finally:
        if not shop.server.is_running():
            shop.server.start()


def test_a_source_that_hangs_shows_in_status_within_two_heartbeats(
    shop: Shop, mysql_server: Server, tmp_path: Path
) -> None:
    """Asked of the tables, as `status` asks: they are on another server, which answers."""
    store = {"VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/viewtail_stall"}
    elsewhere = Shop(mysql_server)
    elsewhere.execute("DROP DATABASE IF EXISTS viewtail_stall")
    with running(tmp_path, VIEWS, addresses(shop.server) | store) as run:
        wait_for("all is well", run.is_well)

        def state() -> tuple[Any, ...]:
            return elsewhere.rows("SELECT state, error FROM viewtail_stall.pipeline_status")[0]

        wait_for("it is said to run", lambda: state()[0] == "running")
        time.sleep(0.5)  # the last heartbeat may have come at any time
        shop.server.pause()
        try:
            # Two heartbeats of 2 s, and what a busy machine takes.
            wait_for("the stall shows", lambda: state()[0] == "retrying", 10)
            assert "not even a heartbeat" in state()[1]
        finally:
            shop.server.resume()
        wait_for("it goes on", lambda: state()[0] == "running")
        assert run.stop() == 0


def test_status_does_not_wait_long_for_a_server_that_hangs(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "views.py").write_text(VIEWS)
    run = Run(tmp_path, VIEWS, addresses(shop.server))
    shop.server.pause()
    try:
        began = time.monotonic()
        told = run.command("status")
        assert time.monotonic() - began < 20
    finally:
        shop.server.resume()
    assert told.returncode == 1 and "does not answer" in told.stderr


def test_an_offset_moves_past_other_tables_changes_but_viewtails_own_do_not_feed_themselves(
    shop: Shop, tmp_path: Path
) -> None:
    with running(tmp_path, VIEWS, addresses(shop.server)) as run:
        started(shop, run)
        before = shop.rows("SELECT position FROM viewtail.pipeline")
        shop.execute("CREATE TABLE shop.other (id INT PRIMARY KEY)", "INSERT INTO shop.other VALUES (1)")
        wait_for(
            "the offset moves",
            lambda: shop.rows("SELECT position FROM viewtail.pipeline") != before,
            timeout_s=20,
        )
        gtids = shop.rows("SELECT @@gtid_executed")
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            time.sleep(0.5)
        now = shop.rows("SELECT @@gtid_executed")
        grown = int(now[0][0].rpartition("-")[2]) - int(gtids[0][0].rpartition("-")[2])
        assert grown <= 3, f"{grown} transactions in 5 idle seconds"
        assert run.stop() == 0
