"""Many tables that are one entity: tenants come and go, and the views follow."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import Server
from tests.support.running import wait_for
from tests.support.tenants import INVOICE, USER, VIEWS, Tenants, tenants

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def world(mysql_server: Server, redis_server: Server, tmp_path: Path) -> Iterator[Tenants]:
    with tenants(mysql_server, redis_server, tmp_path) as found:
        yield found


def test_tables_join_as_they_are_created_and_every_way_of_reading_a_view_knows_the_tenant(world: Tenants) -> None:
    assert world.is_equal()
    world.ask("UPDATE app.org2_invoice SET number = 'changed' WHERE allowed_id = 2")
    world.ask("DELETE FROM app.org10_invoice WHERE allowed_id = 1")
    wait_for("they follow", world.is_equal)
    world.ask(f"CREATE TABLE app.org007_invoice {INVOICE}", "INSERT INTO app.org007_invoice VALUES (1, 'not one', '')")
    world.ask(f"CREATE TABLE app.org77_invoices {INVOICE}", "CREATE VIEW app.org5_invoice AS SELECT 1 AS allowed_id")
    world.ask("CREATE TABLE app.org77_invoice LIKE app.org1_invoice")
    world.add(77, 1, 2)
    began = time.monotonic()
    wait_for("one joined", world.is_equal)
    assert time.monotonic() - began < 2, "a new tenant is visible within 2 s of its first row"
    world.ask("CREATE DATABASE tenant_c", f"CREATE TABLE tenant_c.user {USER}")
    world.ask("INSERT INTO tenant_c.user VALUES (1, 'c@x'), (9, 'c9@x')")
    shown = "SELECT tenant, id, email FROM viewtail.member_by_email WHERE email IS NOT NULL ORDER BY 1, 2"
    expected = [("a", 1, "a@x"), ("b", 1, "b@x"), ("c", 1, "c@x"), ("c", 9, "c9@x")]
    wait_for("a schema joined", lambda: [*world.ask(shown)] == expected)

    run = world.run
    assert json.loads(run.command("get", "invoice", "77:2", "--json").stdout)
    found = json.loads(run.command("find", "invoice_by_number", "n77-1", "--json").stdout)
    assert "n77-1" in str(found) and "77" in str(found)
    why = json.loads(run.command("why", "redis:invoice", "77:1", "--json").stdout)
    assert why["verdict"] == "current"
    for command in (("check",), ("status",), ("verify",), ("wait", "mysql:invoice_by_number")):
        done = run.command(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    world.redis.delete("invoice:77:1")
    world.ask("DELETE FROM viewtail.invoice_by_number WHERE account_id = 2 AND allowed_id = 2")
    assert run.command("verify").returncode == 1
    assert run.command("replay", "mysql:invoice_by_number", "--key", "2:2").returncode == 0
    assert run.command("verify", "redis:invoice", "--repair").returncode in (0, 1)
    wait_for("they are mended", world.is_equal)
    assert run.command("replay", "redis:invoice", "--yes").returncode == 0
    wait_for("it is filled again", run.is_filled)
    assert world.is_equal()
    assert run.stop() == 0
    world.create(123)
    world.ask("DELETE FROM app.org1_invoice")
    run.start()
    wait_for("one joined meanwhile", world.is_equal)


def test_a_tenant_that_is_truncated_or_dropped_takes_its_own_rows_away_and_no_others(world: Tenants) -> None:
    world.ask("TRUNCATE TABLE app.org2_invoice")
    wait_for("it is empty", world.is_equal)
    assert {account for account, _ in world.shown()} == {1, 10}
    world.add(2, 1, 7)
    wait_for("it has rows again", world.is_equal)
    world.ask("DROP TABLE app.org10_invoice")
    wait_for("it left", world.is_equal)
    world.create(10, rows=2)
    wait_for("it came back", world.is_equal)
    world.ask("DROP DATABASE tenant_b")
    shown = "SELECT tenant, id FROM viewtail.member_by_email WHERE email IS NOT NULL"
    wait_for("a schema left", lambda: [*world.ask(shown)] == [("a", 1)])
    assert set(world.states().values()) == {"filled None"}
    assert world.run.command("verify").returncode == 0


def test_a_table_that_is_renamed_into_the_pattern_brings_its_rows_and_one_out_of_it_takes_them(world: Tenants) -> None:
    world.ask(f"CREATE TABLE app.staged {INVOICE}", "INSERT INTO app.staged VALUES (1, 's1', ''), (50, 's50', '')")
    world.ask("RENAME TABLE app.staged TO app.org3_invoice")
    wait_for("it joined", world.is_equal)
    assert world.shown()[3, 50] == "s50"
    world.ask("RENAME TABLE app.org1_invoice TO app.old_1, app.org2_invoice TO app.org1_invoice")
    wait_for("they changed places", world.is_equal)
    world.ask("CREATE TABLE app._org3_gho LIKE app.org3_invoice", "INSERT INTO app._org3_gho VALUES (1, 'other', '')")
    world.ask("RENAME TABLE app.org3_invoice TO app._org3_old, app._org3_gho TO app.org3_invoice")
    wait_for("an online ALTER", world.is_equal)
    assert set(world.states().values()) == {"filled None"}
    assert world.run.command("verify").returncode == 0


def test_rows_that_a_view_leaves_out_leave_it_when_their_table_takes_the_place_of_another(
    mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    views = VIEWS.replace(
        "views = [",
        """views = [
    IndexTable("noted", invoice, value="number", where=lambda row: row["note"] == "x"),
    RedisHash("noted", invoice, fields=["number"], where=lambda row: row["note"] == "x"),
""",
    )
    with tenants(mysql_server, redis_server, tmp_path, views) as world:

        def noted() -> list[set[str]]:
            in_redis = {str(world.redis.hget(name, "number"), "ascii") for name in world.redis.scan_iter("noted:2:*")}
            in_table = world.ask("SELECT number FROM viewtail.noted WHERE account_id = 2 AND number IS NOT NULL")
            return [in_redis, {number for (number,) in in_table}]

        assert noted() == [{"n2-1", "n2-2", "n2-3"}] * 2
        world.ask(f"CREATE TABLE app.staged {INVOICE}")
        world.ask("INSERT INTO app.staged VALUES (1, 's1', 'x'), (2, 's2', 'another note')")
        world.ask("RENAME TABLE app.org2_invoice TO app.old, app.staged TO app.org2_invoice")
        wait_for("they left", lambda: noted() == [{"s1"}] * 2)
        assert world.run.stop() == 0
        world.ask("DROP TABLE app.org2_invoice", f"CREATE TABLE app.org2_invoice {INVOICE}")
        world.ask("INSERT INTO app.org2_invoice VALUES (1, 's1', 'another note'), (3, 's3', 'x')")
        world.run.start()
        wait_for("its row left out takes the place of the one before", lambda: noted() == [{"s3"}] * 2)
        assert world.run.command("verify").returncode == 0


def test_alters_go_through_the_tables_one_by_one_and_one_that_does_not_fit_halts_by_its_name(world: Tenants) -> None:
    for account in (1, 2, 10):
        world.ask(f"ALTER TABLE app.org{account}_invoice ADD COLUMN more INT, DROP COLUMN note")
        world.ask(f"INSERT INTO app.org{account}_invoice (allowed_id, number) VALUES (100, 'a{account}')")
    wait_for("they go on", world.is_equal)
    world.ask("ALTER TABLE app.org2_invoice MODIFY number VARCHAR(200)")
    world.ask(f"INSERT INTO app.org2_invoice (allowed_id, number) VALUES (101, '{'w' * 150}')")
    wait_for("a wider one", world.is_equal)
    world.ask(f"CREATE TABLE app.org77_invoice {INVOICE.replace('number VARCHAR(20)', 'number VARCHAR(250)')}")
    world.ask(f"INSERT INTO app.org77_invoice (allowed_id, number) VALUES (1, '{'w' * 250}')")
    wait_for("one that was made wider", world.is_equal)
    assert world.run.command("verify").returncode == 0
    assert set(world.states().values()) == {"filled None"}
    world.ask("ALTER TABLE app.org10_invoice DROP COLUMN number")
    wait_for("they halt", lambda: "org10_invoice" in world.states()["mysql:invoice_by_number"])
    assert "halted" in world.states()["mysql:invoice_by_number"]
    world.ask("ALTER TABLE app.org10_invoice ADD COLUMN number VARCHAR(20)")
    assert world.run.command("replay", "--all", "--yes").returncode == 0
    wait_for("they go on", lambda: world.rows().keys() >= world.shown().keys() and world.run.is_filled())


def test_one_tenant_is_compared_written_again_listed_and_forgotten_with_proof(world: Tenants) -> None:
    run = world.run
    world.ask("DELETE FROM viewtail.invoice_by_number WHERE account_id = 2 AND allowed_id = 2")
    world.redis.delete("invoice:10:1")
    world.redis.hset("invoice:2:99", mapping={"number": "stray", "account_id": 2, "_version": "0" * 18 + "1"})
    assert run.command("verify", "mysql:invoice_by_number", "--part", "account_id=1").returncode == 0
    done = run.command("verify", "--part", "account_id=2", "mysql:invoice_by_number")
    assert done.returncode == 1 and "2:2\tmissing" in done.stderr, done.stderr
    done = run.command("verify", "redis:invoice", "--part", "account_id=2", "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["parts"][0]["differing"] == 1
    assert run.command("replay", "mysql:invoice_by_number", "--part", "account_id=2", "--yes").returncode == 0
    assert run.command("replay", "redis:invoice", "--part", "account_id=2", "--yes").returncode == 0
    assert run.command("verify", "redis:invoice", "--part", "account_id=2").returncode == 0
    assert run.command("verify", "redis:invoice", "--part", "account_id=10").returncode == 1
    done = run.command("replay", "redis:invoice", "--part", "account_id=10", "--yes")
    assert done.returncode == 0 and "3 entities" in done.stdout + done.stderr, done  # each is told once
    assert world.is_equal()

    listed = json.loads(run.command("status", "--by", "account_id", "--json").stdout)["views"]
    assert {view["view"]: view["parts"] for view in listed} == {"mysql:invoice_by_number": 3, "redis:invoice": 3}
    assert "org10_invoice" in run.command("status", "--by", "account_id").stdout

    done = run.command("forget", "redis:invoice", "--part", "account_id=2")
    assert done.returncode == 2 and "DROP TABLE app.org2_invoice" in done.stderr
    world.ask("DROP TABLE app.org2_invoice")
    for view in ("redis:invoice", "mysql:invoice_by_number"):
        done = run.command("forget", view, "--part", "account_id=2", "--json")
        assert done.returncode == 0 and json.loads(done.stdout)["left"] == [], done.stderr
    assert {account for account, _ in world.shown_in_redis()} == {account for account, _ in world.shown()} == {1, 10}
    for wrong, why in (("x=2", "write --part account_id=..."), ("account_id=abc", "account_id"), ("2", "write --part")):
        done = run.command("forget", "redis:invoice", "--part", wrong)
        assert done.returncode == 2 and why in done.stderr, (wrong, done.stderr)


def test_views_keep_what_a_dropped_table_had_where_they_are_its_archive(
    mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    views = VIEWS.replace('"allowed_id"])', '"allowed_id"], dropped="keep")')
    with tenants(mysql_server, redis_server, tmp_path, views) as world:
        before = world.shown()
        world.ask("DROP TABLE app.org2_invoice", "RENAME TABLE app.org10_invoice TO app.org10_invoice_old")
        world.add(1, 50)
        wait_for("the others follow", lambda: (1, 50) in world.shown() and (1, 50) in world.shown_in_redis())
        assert world.shown() == world.shown_in_redis() == {**before, (1, 50): "n1-50"}
        done = world.run.command("verify")
        assert done.returncode == 0, done.stdout + done.stderr
        assert world.run.command("replay", "--all", "--yes", "--wait").returncode == 0
        assert world.shown() == world.shown_in_redis() == {**before, (1, 50): "n1-50"}
        world.ask("TRUNCATE TABLE app.org1_invoice")
        wait_for("that one is empty", lambda: {account for account, _ in world.shown()} == {2, 10})
        assert world.run.command("forget", "redis:invoice", "--part", "account_id=2").returncode == 0
        assert {account for account, _ in world.shown_in_redis()} == {10}


def test_a_tenant_whose_columns_are_tagged_is_never_shown_as_it_is(
    mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    views = VIEWS.replace('["number", "account_id"]', '["number", "note", "account_id"]')
    settings = {"VIEWTAIL_MASKS__SECRET": "0123456789abcdef"}
    with tenants(mysql_server, redis_server, tmp_path, views, settings=settings) as world:

        def values(name: str) -> list[str]:
            found = [world.redis.hget(key, name) for key in world.redis.scan_iter(match="invoice:*")]
            texts = [value.decode() for value in found if value is not None]
            assert not [text for text in (*texts, *world.shown().values()) if "canary" in text]
            return texts

        def are_hashed(name: str) -> bool:
            return {*map(len, values(name))} == {64}

        tagged = INVOICE.replace("note VARCHAR(20)", "note VARCHAR(20) COMMENT 'of people #PPI'")
        world.ask(f"CREATE TABLE app.org77_invoice {tagged}")
        world.ask("INSERT INTO app.org77_invoice VALUES (1, 'n77-1', 'canary')")
        wait_for("notes are masked", lambda: are_hashed("note") and world.is_equal())
        tagged = tagged.replace("number VARCHAR(20)", "number VARCHAR(20) COMMENT '#PPI'")
        world.ask(f"CREATE TABLE app.staged {tagged}", "INSERT INTO app.staged VALUES (1, 'canary', 'canary')")
        world.ask("CREATE TABLE app.org78_invoice (PRIMARY KEY (allowed_id)) SELECT * FROM app.staged")
        wait_for("so are numbers", lambda: (78, 1) in world.shown() and are_hashed("number"))
        assert {*map(len, world.shown().values())} == {64}
        wait_for("all is filled", world.run.is_filled)

        world.ask("ALTER TABLE app.org1_invoice ADD COLUMN more INT, MODIFY number VARCHAR(30)")
        world.ask("ALTER TABLE app.org2_invoice ADD COLUMN more INT, MODIFY number VARCHAR(40)")
        world.ask("RENAME TABLE app.staged TO app.org3_invoice")
        wait_for("they go on", lambda: world.shown().keys() == world.rows().keys() and are_hashed("number"))
        assert set(world.states().values()) == {"filled None"}
        assert world.run.command("verify").returncode == 0


@pytest.mark.parametrize("key", ["PRIMARY KEY", "UNIQUE KEY"])
def test_a_tenant_with_another_key_halts_before_rows_of_it_are_taken_for_one(
    key: str, mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    views = VIEWS
    if key == "UNIQUE KEY":
        views = views.replace(
            'Entity("tenant_{tenant}.user")', 'Entity("tenant_{tenant}.user", key=["tenant", "nick"])'
        )
    user = "(id INT NOT NULL, email VARCHAR(40) NOT NULL, nick INT NOT NULL DEFAULT 0, {})"
    with tenants(
        mysql_server, redis_server, tmp_path, views, user=user.format("PRIMARY KEY (id), UNIQUE KEY (nick)")
    ) as world:
        own = {"PRIMARY KEY": "PRIMARY KEY (email)", "UNIQUE KEY": "PRIMARY KEY (id)"}[key]
        world.ask("CREATE DATABASE tenant_c", f"CREATE TABLE tenant_c.user {user.format(own)}")
        world.ask("INSERT INTO tenant_c.user VALUES (1, 'c@x', 1), (2, 'd@x', 1)")
        wait_for("it halts", lambda: "halted" in world.states()["mysql:member_by_email"])
        reason = world.states()["mysql:member_by_email"]
        assert "tenant_c" in reason and ("primary key" if key == "PRIMARY KEY" else "unique key") in reason
        assert not [*world.ask("SELECT email FROM viewtail.member_by_email WHERE tenant = 'c'")]


@pytest.mark.mariadb
@pytest.mark.elasticsearch
def test_mariadbs_tables_are_followed_in_the_same_way_in_three_stores(
    mariadb_server: Server, redis_server: Server, elasticsearch_server: Server, tmp_path: Path
) -> None:
    search = '    SearchIndex("invoice", invoice, fields={"number": "keyword", "account_id": "long"}),'
    views = VIEWS.replace("IndexTable,", "IndexTable, SearchIndex,").replace("views = [", f"views = [\n{search}")
    settings = {"VIEWTAIL_ELASTICSEARCH__URL": elasticsearch_server.url}
    with tenants(mariadb_server, redis_server, tmp_path, views, settings=settings) as world:

        def is_equal() -> bool:
            assert world.is_equal()
            for account, number in world.rows():
                world.run.command("wait", "elasticsearch:invoice")
                done = world.run.command("get", "elasticsearch:invoice", f"{account}:{number}", "--json")
                assert done.returncode == 0, done.stderr
            return True

        world.create(77)
        world.ask("TRUNCATE TABLE app.org2_invoice", "DROP TABLE app.org10_invoice")
        world.ask(f"CREATE TABLE app.staged {INVOICE}", "INSERT INTO app.staged VALUES (1, 's1', ''), (50, 's50', '')")
        world.ask("RENAME TABLE app.staged TO app.org3_invoice")
        world.ask("CREATE OR REPLACE TABLE app.org1_invoice LIKE app.org3_invoice")
        world.add(1, 8)
        world.ask("ALTER TABLE app.org3_invoice MODIFY number VARCHAR(100), ADD COLUMN more INT")
        wait_for("they follow", is_equal)
        assert set(world.states().values()) == {"filled None"}
        done = world.run.command("verify")
        assert done.returncode == 0, done.stdout + done.stderr
        world.ask("DROP TABLE app.org77_invoice")
        wait_for("one left", world.is_equal)
        done = world.run.command("forget", "elasticsearch:invoice", "--part", "account_id=77", "--json")
        assert done.returncode == 0 and json.loads(done.stdout)["left"] == [], done.stderr
        assert world.run.command("get", "elasticsearch:invoice", "77:1").returncode == 1
