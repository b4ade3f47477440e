"""A forked command behaves as one whose Python was started for it (tests/support/forked.py)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from stack import Server
from tests.support import forked
from tests.support.asking import ask
from tests.support.running import DIED, addresses, running, wait_for


@pytest.mark.parametrize(
    "arguments",
    [["status", "--help"], ["status"], ["get"], ["--version"], ["check", "--no-such-option"]],
    ids=" ".join,
)
def test_a_forked_command_says_what_a_started_one_says(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "_started", set())
    (tmp_path / "viewtail.toml").write_text("soruce = 1\n")
    environment = {**forked.clean_environment(), "COLUMNS": "70"}
    started, again = (forked.command(arguments, tmp_path, environment) for _ in range(2))
    assert (again.returncode, again.stdout, again.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_a_forked_command_that_takes_too_long_is_killed_and_shows_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forked, "_started", {"status"})
    (tmp_path / "views.py").write_text("views = []\n")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        environment = {
            **forked.clean_environment(),
            "VIEWTAIL_SOURCE__URL": f"mysql://me@127.0.0.1:{listening.getsockname()[1]}",
        }
        began = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired):
            forked.command(["status"], tmp_path, environment, timeout_s=1)
        assert time.monotonic() - began < 10
        told = capsys.readouterr().out
        assert "-- status, until its time was over" in told and "most recent call first" in told
        with listening.accept()[0] as connection:
            assert connection.recv(1) == b"", "its end closed the connection"


@pytest.mark.mysql
def test_a_forked_run_and_its_workers_live_and_die_as_started_ones(
    mysql_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked, "_started", set())
    schema = "CREATE TABLE forked.user (id INT PRIMARY KEY, email VARCHAR(20))"
    for statement in ("DROP DATABASE IF EXISTS forked", "CREATE DATABASE forked", schema):
        ask(mysql_server, statement)
    views = 'from viewtail import *\nviews = [IndexTable("by_email", Entity("forked.user"), value="email")]\n'
    lives = []
    for name in ("started", "forked"):
        (tmp_path / name).mkdir()
        environment = {**addresses(mysql_server), "VIEWTAIL_MYSQL__URL": f"{mysql_server.url}/forked"}
        with running(tmp_path / name, views, environment) as run:
            first = wait_for("it has a worker", lambda: run.workers().get("mysql"))
            lines = [_command_line(run.process.pid), _command_line(first)]  # type: ignore[union-attr]
            wait_for("all is well", run.is_well)
            os.kill(first, signal.SIGKILL)
            wait_for("it has another", lambda: run.workers().get("mysql", first) != first)  # noqa: B023
            assert run.log.count(DIED) == 1
            last = run.workers()["mysql"]
            assert isinstance(run.process, forked.Forked if name == "forked" else subprocess.Popen)
            assert run.stop() == 0
            lives.append(lines)
        with pytest.raises(ProcessLookupError):
            os.kill(last, 0)
    assert lives[0] == lives[1]


def _command_line(pid: int) -> list[str]:
    """Less the number of the descriptor that a worker reports to."""
    words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    return [word for word in words if word and not word.isdigit()]
