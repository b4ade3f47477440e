"""`viewtail adopt` on what another tool left: readers read on, damage is repaired, and `run` goes on from there."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stack import Server
from tests.support.other_tools import INDEX, ROWS, SCHEMA, STORE, OtherTool, reading, run_of
from tests.support.running import Run, wait_for

NAMES = ("by_email", "redis:person", "card", "elasticsearch:person")
EXTRA = ("9001", "9002")


@pytest.fixture
def tool(mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Iterator[OtherTool]:
    made = OtherTool(mysql_server, redis_server, elasticsearch_server)
    made.redis.flushall()
    made.make()
    made.damage()
    made.ask(f"ALTER TABLE {STORE}.by_email DROP COLUMN synced_at")
    yield made
    made.end()


@pytest.fixture
def run(tool: OtherTool, redis_server: Server, elasticsearch_server: Server, tmp_path: Path) -> Iterator[Run]:
    made = run_of(tmp_path, tool, redis_server, elasticsearch_server)
    yield made
    if made.process is not None:
        made.stop()


@contextmanager
def writer(tool: OtherTool) -> Iterator[None]:
    """The application changes rows all the while; nobody but viewtail brings them into the views."""
    stop = threading.Event()

    def work() -> None:
        at = 0
        while not stop.wait(0.05):
            at += 1
            tool.ask(
                f"UPDATE {SCHEMA}.user SET visits = visits + 1, email = %s WHERE id = %s", f"w{at}", 200 + at % 700
            )
            if at % 10 == 0:
                tool.insert([20_000 + at])
                tool.ask(f"DELETE FROM {SCHEMA}.user WHERE id = %s", 20_000 + at - 100)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def verified(run: Run, *names: str) -> dict[str, dict[str, Any]]:
    done = run.command("verify", *names, "--json")
    return {view["view"]: view for view in json.loads(done.stdout)["views"]}


def is_extra_there(tool: OtherTool) -> dict[str, bool]:
    return {place: finds(9001) for place, finds in tool.readers().items()}


def test_readers_miss_nothing_and_run_goes_on_without_filling(run: Run, tool: OtherTool) -> None:
    with reading(tool.readers(), range(100, 1000)) as missed, writer(tool):
        done = run.command("adopt", *NAMES, "--json", timeout_s=300)
        assert done.returncode == 0, done.stdout + done.stderr
        views = {view["view"]: view for view in json.loads(done.stdout)["views"]}
        for view in views.values():
            assert view["is_adopted"], view
            assert view["extra_left"] == 2, view
        backfilled = tool.ask(f"SELECT name, watermark_version FROM {STORE}.view ORDER BY name")
        run.start()
        wait_for("all is well", run.is_filled)
        tool.insert([30_000])
        for finds in tool.readers().values():
            wait_for("a new row is there", lambda finds=finds: finds(30_000))
        found = verified(run, *NAMES)
    assert not missed
    assert tool.ask(f"SELECT name, watermark_version FROM {STORE}.view ORDER BY name") == backfilled
    assert "backfilling" not in (run.folder / "run.log").read_text()
    for name, view in found.items():
        assert view["differing"] == {"extra": 2}, (name, view)
        assert {entity["key"] for entity in view["entities"]} == set(EXTRA), (name, view)
    time.sleep(3)  # the cleaner goes round meanwhile
    assert set(is_extra_there(tool).values()) == {True}
    assert tool.indices() == [INDEX, "viewtail-person"]


def test_a_dry_run_changes_nothing_and_extra_keys_are_dropped_when_asked(run: Run, tool: OtherTool) -> None:
    before = sorted((key, tool.redis.dump(key)) for key in tool.redis.scan_iter())
    done = run.command("adopt", *NAMES, "--dry-run", "--again-after", "1s")
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("leave 2 extra keys", "3 missing", "ADD COLUMN `version`", "clone it to viewtail-person", "_version"):
        assert said in done.stdout
    assert sorted((key, tool.redis.dump(key)) for key in tool.redis.scan_iter()) == before
    assert (
        tool.ask("SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = 'view'", STORE) == []
    )
    done = run.command("adopt", *NAMES, "--drop-extra", "--json", timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    for view in json.loads(done.stdout)["views"]:
        assert view["is_equal"], view
        assert view["proven_through"], view
    assert set(is_extra_there(tool).values()) == {False}
    assert {finds(11) for finds in tool.readers().values()} == {True}
    assert tool.redis.hget("person:21", "email") == b"u21@example.org"
    assert tool.ask(f"SELECT email FROM {STORE}.by_email WHERE id = 21") == [("u21@example.org",)]
    assert len(tool.rows("TRUE")) == ROWS
    done = run.command("adopt", "card", timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "was taken over and filled before" in done.stderr


def test_a_view_that_run_met_before_is_adopted_once_run_is_stopped(run: Run, tool: OtherTool) -> None:
    (run.folder / "views.py").write_text(
        f'from viewtail import Entity, IndexTable\nuser = Entity("{SCHEMA}.user")\n'
        'views = [IndexTable("by_email", user, value="email")]\n'
    )
    run.start()
    halted = f"SELECT reason FROM {STORE}.view WHERE state = 'halted'"
    ((reason,),) = wait_for("the view is halted", lambda: tool.ask(halted))
    assert "viewtail adopt mysql:by_email" in reason
    done = run.command("adopt", "by_email")
    assert done.returncode == 2
    assert "Stop `viewtail run`" in done.stderr
    run.stop()
    stopped = run.background("adopt", "by_email")
    wait_for("its place is taken", lambda: tool.ask(f"SHOW COLUMNS FROM {STORE}.by_email LIKE 'version'"))
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(60) == 130
    done = run.command("adopt", "by_email", "--drop-extra", timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "mysql:by_email: adopted" in done.stdout
    assert tool.ask(f"SELECT COUNT(*), MIN(version) > 0 FROM {STORE}.by_email WHERE id = 21") == [(1, 1)]
