"""The threads that look at deployments: what they know, and that they keep no `viewtail run` from ending."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingest import Margin
from stack import Server
from tests.support.asking import ask
from tests.support.running import wait_for
from viewtail import deployment_watch
from viewtail.deployment_watch import DeploymentWatch
from viewtail.operations import collecting
from viewtail.operations.findings import Findings
from viewtail.operations.sessions import WATCH
from viewtail.operations.status import PipelineStatus
from viewtail.settings import load
from viewtail.shards import Target

PIPELINE = PipelineStatus(
    name="redis", state="running", position=None, gtid=None, lag_s=0.0, rows_per_second=0, applied_row_count=1,
    reconnect_count=0, error=None, owner="host:1", reported_s_ago=1.0, views=(),
)  # fmt: skip


def test_a_margin_that_nobody_could_see_for_a_while_is_not_known_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    low = Findings(pipelines=[PIPELINE], margins={"redis": Margin(left_s=1.0, keeps_s=9.0, limit="age")})
    seen = iter([low, replace(low, source_error="no answer", margins={})])
    monkeypatch.setattr(deployment_watch, "collected", lambda _: next(seen))
    watch = DeploymentWatch(Target(lambda: load(None, {"VIEWTAIL_SOURCE__URL": "mysql://root@127.0.0.1:1"})))
    watch._round()
    assert watch.margins() == low.margins
    watch._look_at = 1.0
    watch._round()
    assert watch.margins() == low.margins, "for a while it is the best that is known"
    monkeypatch.setattr(deployment_watch, "STALE_AFTER_S", 0.0)
    assert watch.margins() == {}


def test_a_watch_has_as_many_sessions_as_check_counts(mysql_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it tells people, a session of its own has the lock."""
    ask(mysql_server, "DROP USER IF EXISTS watching")
    ask(mysql_server, "CREATE USER watching")
    ask(mysql_server, "GRANT ALL ON *.* TO watching")
    ask(mysql_server, "CREATE DATABASE IF NOT EXISTS watched_views")
    counts, read = list[int](), collecting.read

    def counting(*arguments: Any) -> Any:
        where = "FROM information_schema.processlist WHERE user = 'watching'"
        counts.extend(count for (count,) in ask(mysql_server, f"SELECT COUNT(*) {where}"))
        return read(*arguments)

    monkeypatch.setattr(collecting, "read", counting)
    settings = {
        "VIEWTAIL_SOURCE__URL": f"mysql://watching@127.0.0.1:{mysql_server.port}",
        "VIEWTAIL_MYSQL__URL": f"mysql://watching@127.0.0.1:{mysql_server.port}/watched_views",
        "VIEWTAIL_NOTIFY__URL": "http://127.0.0.1:1/nobody",
    }
    watch = DeploymentWatch(Target(lambda: load(None, settings)))
    try:
        watch._round()
        assert counts == [WATCH.store]
    finally:
        assert watch._notifier is not None
        watch._notifier.close()
        ask(mysql_server, "DROP DATABASE watched_views")
        ask(mysql_server, "DROP USER watching")


def test_watches_of_servers_that_never_answer_end_at_once_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(deployment_watch, "FIRST_LOOKS_S", 0.01)
    with closing(socket.create_server(("127.0.0.1", 0), backlog=16)) as silent:
        url = f"mysql://root@127.0.0.1:{silent.getsockname()[1]}"
        silent.settimeout(20)
        watches = [DeploymentWatch(Target(lambda: load(None, {"VIEWTAIL_SOURCE__URL": url}))) for _ in range(4)]
        for watch in watches:
            watch.begin()
        asked = [silent.accept()[0] for _ in watches]  # each waits for a greeting
        began_at = time.monotonic()
        deployment_watch.end(watches)
        took_s = time.monotonic() - began_at
        assert all(watch._thread.is_alive() for watch in watches), "the server keeps them"
        for connection in asked:
            connection.close()
        wait_for("they have ended", lambda: not any(watch._thread.is_alive() for watch in watches))
    assert took_s < 2 * deployment_watch.END_WITHIN_S
