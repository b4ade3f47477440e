"""Views of event-sourced entities while old events are archived and come back: they show the same all the time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stack import Server
from tests.support.archived import OldBank, sent
from tests.support.asking import ask
from tests.support.running import wait_for

VIEWS = """
from viewtail import Entity, IndexTable

account = Entity("bank.account", key="entity_id", version="version", append_only=True, order="event_id")
views = [IndexTable("by_command", account, value="command_id")]
"""
SECOND = """views.append(IndexTable("by_name", account, value=["command_name", "command_id"]))
"""
SHOWN = "SELECT entity_id, command_id FROM viewtail.by_command ORDER BY entity_id"

pytestmark = [pytest.mark.mysql, pytest.mark.slow]


@pytest.mark.parametrize("mode", ["binlog", "poll"])
@pytest.mark.parametrize("server", ["mysql_server", "mariadb_with_locks"])
def test_views_stay_right_while_events_are_archived_and_come_back(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, mode: str
) -> None:
    ask(request.getfixturevalue(server), "FLUSH BINARY LOGS")  # `why` reads the newest one within a time
    bank = OldBank(request.getfixturevalue(server), tmp_path, views=VIEWS)
    bank.run._environment["VIEWTAIL_SOURCE__MODE"] = mode
    newest = [(f"e{at}", "c300") for at in range(1, 5)]

    def shows(expected: list[tuple[str, str]]) -> bool:
        return ask(bank.server, SHOWN) == expected

    def is_right(*commands: tuple[str, ...]) -> None:
        for command in (("wait", "by_command"), *commands, ("verify",)):
            done = bank.run.command(*command)
            assert done.returncode == 0, (command, done.stdout, done.stderr)
        wait_for("status reports that it runs", lambda: bank.run.command("status").returncode == 0)
        assert shows(newest)

    bank.run.start()
    try:
        wait_for("it is filled", lambda: shows(newest))
        done = bank.archive()
        assert done.returncode == 0, done.stderr
        assert len(bank.live()) == 4
        is_right(("replay", "by_command", "--wait"), ("rebuild", "by_command"))
        found = json.loads(bank.run.command("why", "by_command", "e2", "--json").stdout)
        changes = {"binlog": "insert", "poll": None}  # the rows that were archived since are no change of the entity
        assert (found["last_change"] or {"op": None})["op"] == changes[mode], found
        with bank.accounts.worker() as worker:
            assert worker.submit(sent("e1", 300)).result(60).is_repeated
            worker.submit(sent("e1", 400)).result(60)
        newest[0] = ("e1", "c400")
        wait_for("a change comes", lambda: shows(newest))
        assert bank.archive().returncode == 0
        is_right()
        assert bank.run.stop() == 0
        (tmp_path / "views.py").write_text(VIEWS + SECOND)
        bank.run.start()
        wait_for("a new view is filled", lambda: bank.run.command("wait", "by_name").returncode == 0)
        rows = ask(bank.server, "SELECT entity_id, command_id FROM viewtail.by_name ORDER BY entity_id")
        assert rows == newest
        assert bank.restore("--all").returncode == 0
        assert len(bank.live()) == 4 * 300 + 1
        is_right(("replay", "by_command", "--wait"))
        ask(bank.server, "DELETE FROM bank.account WHERE entity_id = 'e3' AND version = 300")  # no archiving
        assert bank.run.command("wait", "by_command").returncode == 0
        found = json.loads(bank.run.command("why", "by_command", "e3", "--json").stdout)
        assert found["verdict"] == "wrong", found
        assert (found["last_change"] or {"op": None})["op"] == ("delete" if mode == "binlog" else None), found
        assert bank.run.stop() == 0
    finally:
        bank.run.kill()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("way", ["table", "files"])
def test_an_entity_is_not_erased_while_its_events_are_archived(mysql_server: Server, tmp_path: Path, way: str) -> None:
    bank = OldBank(mysql_server, tmp_path, views=VIEWS)
    assert bank.archive(*(["--into-files", str(tmp_path)] if way == "files" else [])).returncode == 0
    bank.run.start()
    try:
        wait_for("it is filled", lambda: len(ask(bank.server, SHOWN)) == 4)
        ask(bank.server, "DELETE FROM bank.account WHERE entity_id = 'e1'")
        refused = bank.run.command("forget", "bank.account", "e1")
        delete = "DELETE FROM `bank`.`account_archive` WHERE `entity_id` = "
        assert refused.returncode == 2 and delete in refused.stderr, refused.stderr
        ask(bank.server, "DELETE FROM bank.account_archive WHERE entity_id = 'e1'")
        done = bank.run.command("forget", "bank.account", "e1")
        assert done.returncode == 0, (done.stdout, done.stderr)
        files = list(tmp_path.glob("*.jsonl.zst"))
        assert all(f"archived rows in {path}" in done.stdout for path in files)
        assert len(files) == (way == "files")
        assert bank.run.stop() == 0
    finally:
        bank.run.kill()
