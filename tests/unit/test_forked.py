"""A forked command behaves as one whose Python was started for it (tests/support/forked.py)."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.support import forked


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
    started, again = (forked.command(arguments, tmp_path, environment, timeout_s=60) for _ in range(2))
    assert (again.returncode, again.stdout, again.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_a_forked_command_that_takes_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        with listening.accept()[0] as connection:
            assert connection.recv(1) == b"", "its end closed the connection"
