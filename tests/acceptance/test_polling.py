"""`viewtail run` over tables that are polled, as a user meets it: no binlog is read, no right but SELECT is needed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from stack import Server
from tests.support.asking import ask
from tests.support.polled import VIEWS, Polled, polling
from tests.support.running import wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]


@pytest.fixture
def polled(mysql_server: Server, redis_server: Server, tmp_path: Path) -> Iterator[Polled]:
    with polling(mysql_server, redis_server, tmp_path) as found:
        yield found


def test_what_cannot_be_polled_is_refused_with_what_to_do(polled: Polled) -> None:
    wait_for("they are filled", polled.is_equal)
    assert polled.run.stop() == 0
    views = polled.run.folder / "views.py"
    views.write_text(VIEWS.replace(', order="event_id"', ""))
    polled.run.start()
    assert polled.run.process is not None and polled.run.process.wait(60) == 2
    assert "no entity says by which column" in polled.run.log


def test_an_order_that_is_not_the_column_with_the_ids_is_found_by_check(polled: Polled) -> None:
    (polled.run.folder / "views.py").write_text(VIEWS.replace('order="event_id"', 'order="version"'))
    done = polled.run.command("check", "--json")
    (ids,) = (one for one in json.loads(done.stdout)["findings"] if one["what"] == "ids of bank.account")
    assert done.returncode == 1 and ids["level"] == "fail"
    assert "AUTO_INCREMENT event_id, and views.py says order='version'" in ids["seen"]
    assert "order='event_id'" in ids["mend"]


def test_where_the_locks_cannot_be_read_run_refuses_and_goes_on_once_they_can(polled: Polled) -> None:
    wait_for("they are filled", polled.is_equal)
    ask(polled.mysql, "REVOKE SELECT ON performance_schema.* FROM poller")
    assert polled.run.stop() == 0
    said_before = len(polled.run.log)
    polled.run.start()
    polled.add("account.1", 2, 1_000)
    said = "polling cannot tell who may still bring a row"
    wait_for("it refuses", lambda: said in polled.run.command("status").stdout)
    reported = "SELECT state FROM viewtail.pipeline_status"
    wait_for("both pipelines halt", lambda: ask(polled.mysql, reported) == [("halted",)] * 2)
    time.sleep(2)  # the second attempt may be the one that counts
    until, seen = time.monotonic() + 5, set[object]()
    while time.monotonic() < until:  # each tries again meanwhile
        seen |= set(ask(polled.mysql, reported))
        time.sleep(0.01)
    assert seen == {("halted",)}
    assert polled.run.log.count('"event":"pipeline stopped"', said_before) == 2
    assert not polled.is_equal(), "a row was read without a word about those before it"
    done = polled.run.command("check", "--json")
    (locks,) = (one for one in json.loads(done.stdout)["findings"] if one["what"] == "who may still bring a row")
    assert done.returncode == 1 and locks["level"] == "fail"
    assert "Grant SELECT on performance_schema.*" in locks["mend"]
    assert "VIEWTAIL_SOURCE__POLL_WAIT_S" in locks["mend"]
    printed = polled.run.command("check", "--print-grants").stdout.splitlines()
    grants = [line for line in printed if line.startswith("GRANT") and "'poller'" in line]
    ask(polled.mysql, "REVOKE ALL, GRANT OPTION FROM poller")
    found = {one["what"] for one in json.loads(polled.run.command("check", "--json").stdout)["findings"]}
    assert "SELECT on bank.account" in found and "ids of bank.account" not in found
    for grant in grants:
        ask(polled.mysql, grant)
    wait_for("they follow", polled.is_equal)


def test_a_replica_is_refused(polled: Polled) -> None:
    wait_for("they are filled", polled.is_equal)
    assert polled.run.stop() == 0
    ask(polled.mysql, "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1")
    try:
        polled.run.start()
        wait_for("it refuses", lambda: "the source is a replica" in polled.run.command("status").stdout)
        done = polled.run.command("check")
        assert done.returncode == 1 and "set VIEWTAIL_SOURCE__URL to its primary" in done.stdout
    finally:
        ask(polled.mysql, "RESET REPLICA ALL")
    wait_for("it goes on", polled.run.is_well)


def test_a_bounded_wait_is_named_in_status_with_its_risk(polled: Polled) -> None:
    wait_for("they are filled", polled.is_equal)
    assert "MISSED" not in polled.run.command("status").stdout
    assert polled.run.stop() == 0
    ask(polled.mysql, "REVOKE SELECT ON performance_schema.* FROM poller")
    polled.run._environment["VIEWTAIL_SOURCE__POLL_WAIT_S"] = "2.5"
    polled.run.start()
    polled.add("account.1", 2, 1_000)
    wait_for("they follow", polled.is_equal)
    said = polled.run.command("status").stdout
    assert "a row is MISSED" in said and "longer than 2.5 s" in said and "performance_schema" in said


def test_views_of_a_polled_table_are_filled_and_follow_it(polled: Polled) -> None:
    wait_for("they are filled", polled.is_equal)
    polled.add("account.1", 2, 1_000)
    polled.add("new", 1, 5)
    wait_for("they follow", polled.is_equal)
    slow = pymysql.connect(host="127.0.0.1", port=polled.mysql.port, user="root")
    slow.query(polled.event("slow", 1, 9))
    polled.add("account.2", 2, 2_000)
    wait_for("they follow while a transaction is open", polled.is_equal)
    assert polled.run.stop() == 0
    slow.commit()
    polled.add("account.2", 3, 3_000)
    polled.run.start()
    wait_for("what came meanwhile", polled.is_equal)
    for command in (("wait", "mysql:account_by_balance"), ("verify",), ("status",), ("check",)):
        done = polled.run.command(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    why: dict[str, Any] = json.loads(polled.run.command("why", "redis:account", "account.2", "--json").stdout)
    assert why["verdict"] == "current"


def test_a_column_that_changes_its_type_is_shown_as_it_is_then_without_a_restart(polled: Polled) -> None:
    wait_for("they are filled", polled.is_equal)
    ask(polled.mysql, "ALTER TABLE bank.account MODIFY balance DECIMAL(12,3)")
    ask(polled.mysql, "INSERT INTO bank.account (entity_id, version, balance) VALUES ('new', 1, 2.567)")
    shown = "SELECT CAST(balance AS CHAR) FROM viewtail.account_by_balance WHERE entity_id = 'new'"
    wait_for("as the table has it", lambda: ask(polled.mysql, shown) == [("2.567",)])
    wait_for("all is well", polled.run.is_well)
    done = polled.run.command("verify")
    assert done.returncode == 0, done


def test_entities_whose_versions_began_again_are_found_and_repaired(
    mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    """An older row beside what a view shows is no archiving, which takes old rows away."""
    always = {"VIEWTAIL_CLEANER__SHARE": "0.5", "VIEWTAIL_CLEANER__REST_S": "0.1"}
    with polling(mysql_server, redis_server, tmp_path, settings=always) as polled:
        wait_for("they are filled", polled.is_equal)
        for version in (2, 3, 4):
            polled.add("account.1", version, version * 1_000)
        wait_for("they follow", polled.is_equal)
        ask(polled.mysql, "TRUNCATE bank.account")
        wait_for("they halt", lambda: "viewtail verify --repair" in polled.run.command("status").stdout)
        polled.add("account.1", 1, 7)
        replayed = polled.run.command("replay", "--all", "--yes", "--wait")
        assert replayed.returncode == 0 and "redis:account: backfilled. Rows written: 1\n" in replayed.stdout
        wait_for("the cleaner has looked", lambda: "the cleaner left entities as they are" in polled.run.log)
        views = ["mysql:account_by_balance", "redis:account"]
        verified = polled.run.command("verify", "--json")
        found = {
            one["view"]: [entity["key"] for entity in one["entities"]] for one in json.loads(verified.stdout)["views"]
        }
        assert (verified.returncode, found) == (1, {view: ["account.1"] for view in views})
        for view in views:
            why = polled.run.command("why", view, "account.1", "--json")
            assert (why.returncode, json.loads(why.stdout)["verdict"]) == (1, "wrong"), why.stdout
        assert polled.run.command("verify", "--repair").returncode == 0
        assert polled.differences() == {}
        polled.add("account.1", 2, 8)
        wait_for("they follow again", lambda: polled.differences() == {})
        assert polled.run.command("verify").returncode == 0
