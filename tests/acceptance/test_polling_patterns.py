"""Tables by a pattern, polled as one: each at its own offset, new ones join, others halt by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import Server
from tests.support.asking import ask
from tests.support.polled import COLUMNS, VIEWS, Polled, polling
from tests.support.running import wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]
OF_PATTERN = VIEWS.replace("bank.account", "bank.account_##")


@pytest.fixture
def polled(mysql_server: Server, redis_server: Server, tmp_path: Path) -> Iterator[Polled]:
    tables = ["account_00", "account_01", "account_02"]
    with polling(mysql_server, redis_server, tmp_path, OF_PATTERN, tables) as found:
        ask(mysql_server, "CREATE TABLE bank.account_x1 (a INT)")  # does not match
        wait_for("they are filled", found.is_equal)
        yield found


def states(polled: Polled) -> dict[str, str]:
    pipelines = json.loads(polled.run.command("status", "--json").stdout)["pipelines"]
    return {view["name"]: f"{view['state']} {view['reason']}" for one in pipelines for view in one["views"]}


def test_views_draw_on_all_tables_of_a_pattern_and_new_ones_join(polled: Polled) -> None:
    for number, table in enumerate(polled.tables):
        polled.add(f"{table}.3", 2, 1_000 + number, table)
    wait_for("they follow", polled.is_equal)
    ask(polled.mysql, f"CREATE TABLE bank.account_07 {COLUMNS}")
    for number in range(20):
        polled.add(f"new.{number}", 1, number, "account_07")
    polled.tables.append("account_07")
    wait_for("one joined", polled.is_equal)
    assert polled.run.stop() == 0
    ask(polled.mysql, f"CREATE TABLE bank.account_03 {COLUMNS}")
    polled.tables.append("account_03")
    polled.add("newest.1", 1, 5, "account_03")
    polled.add("new.1", 2, 7, "account_07")
    polled.run.start()
    wait_for("one joined meanwhile", polled.is_equal)
    for command in (("wait", "mysql:account_by_balance"), ("verify",), ("status",), ("check",)):
        done = polled.run.command(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    why = json.loads(polled.run.command("why", "redis:account", "new.1", "--json").stdout)
    assert why["verdict"] == "current"
    ask(polled.mysql, "DELETE FROM viewtail.account_by_balance WHERE entity_id IN ('new.2', 'account_01.4')")
    polled.redis.delete("account:newest.1")
    assert polled.run.command("verify").returncode == 1
    assert polled.run.command("replay", "mysql:account_by_balance", "--key", "new.2").returncode == 0
    assert polled.run.command("replay", "redis:account", "--yes").returncode == 0
    assert polled.run.command("verify", "mysql:account_by_balance", "--repair").returncode in (0, 1)
    wait_for("they are mended", polled.is_equal)
    found = json.loads(polled.run.command("find", "account_by_balance", "7", "--json").stdout)
    assert "new.1" in str(found)


def test_tables_of_a_pattern_that_are_not_alike_or_are_gone_halt_by_name(polled: Polled) -> None:
    otherwise = COLUMNS.replace("balance INT", "balance VARCHAR(20)")
    ask(polled.mysql, f"CREATE TABLE bank.account_09 {otherwise}")
    # That the table came is said first, while they begin again.
    kinds = ("account_09", "it was int and is now varchar(20)")
    wait_for("they halt", lambda: all(kind in said for said in states(polled).values() for kind in kinds))
    ask(polled.mysql, "DROP TABLE bank.account_09")
    polled.add("account_00.1", 2, 77, "account_00")
    assert polled.run.command("replay", "--all", "--yes").returncode == 0
    wait_for("they go on", polled.is_equal)
    wait_for("all is well", polled.run.is_well)
    ask(polled.mysql, "DROP TABLE bank.account_01")
    wait_for("they halt", lambda: all("bank.account_01" in said for said in states(polled).values()))
    polled.tables.remove("account_01")
    polled.add("account_00.1", 3, 78, "account_00")
    assert polled.run.command("replay", "--all", "--yes").returncode == 0
    wait_for("they go on", polled.is_equal)


def test_a_pattern_is_refused_where_new_tables_would_not_be_seen_and_by_the_binlog(polled: Polled) -> None:
    ask(polled.mysql, "REVOKE SELECT ON bank.* FROM poller")
    for table in polled.tables:
        ask(polled.mysql, f"GRANT SELECT ON bank.{table} TO poller")
    done = polled.run.command("check")
    assert done.returncode == 1 and "GRANT SELECT ON `bank`.* TO" in done.stdout
    wait_for("it stops", lambda: "has no SELECT on the whole schema" in polled.run.command("status").stdout)
    assert polled.run.stop() == 0
    polled.run._environment["VIEWTAIL_SOURCE__MODE"] = "binlog"
    done = polled.run.command("check")
    assert done.returncode == 1 and "only where they are polled" in done.stdout


def test_braces_make_the_table_a_part_of_the_key(mysql_server: Server, redis_server: Server, tmp_path: Path) -> None:
    views = VIEWS.replace('"bank.account", key="entity_id"', '"bank.account_{shard:int}", key=["shard", "entity_id"]')
    views = views.replace("account:{entity_id}", "account:{shard}:{entity_id}")
    with polling(mysql_server, redis_server, tmp_path, views, ["account_0", "account_1"]) as polled:

        def is_equal() -> bool:
            wanted = sorted(
                (shard, entity, balance)
                for shard in (0, 1, 5)
                if f"account_{shard}" in polled.tables
                for entity, balance in ask(mysql_server, f"SELECT entity_id, balance FROM bank.account_{shard}")
            )
            shown = "SELECT shard, entity_id, balance FROM viewtail.account_by_balance WHERE balance IS NOT NULL"
            return sorted(ask(mysql_server, shown)) == wanted

        wait_for("they are filled", is_equal)
        ask(mysql_server, f"CREATE TABLE bank.account_5 {COLUMNS}")
        polled.tables.append("account_5")
        for table in polled.tables:
            polled.add("same", 1, 9, table)
        wait_for("one joined, and a key lives in each", is_equal)
        wait_for("Redis has them too", lambda: polled.redis.exists("account:5:same", "account:0:same") == 2)
        assert polled.run.command("verify").returncode == 0
        assert "older form" not in polled.run.log
