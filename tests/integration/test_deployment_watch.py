"""The threads that look at deployments keep no `viewtail run` from ending, whatever they wait for."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.running import wait_for
from viewtail import deployment_watch
from viewtail.deployment_watch import DeploymentWatch
from viewtail.settings import load
from viewtail.shards import Target


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
