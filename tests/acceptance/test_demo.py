"""The demo as a new user runs it, with a short live phase."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from examples.demo import __main__ as demo
from examples.demo import comparing, servers, tables

import stack

CHECKOUT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "examples.demo"]
ORDERS = [sys.executable, "-m", "examples.orders"]
UNSHATTER = [sys.executable, "-m", "examples.unshatter"]


@pytest.mark.slow
def test_the_demo_ends_with_every_view_equal_to_its_table() -> None:
    done = _run(live_s=3)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "demo: 6 views equal their tables"
    assert done.stdout.count("equals the canonical rows") >= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "at", "count"),
    [
        ([*COMMAND, "--without-elasticsearch"], "filling", 2),
        (ORDERS, "Real servers", 0),
        (ORDERS, "is starting", 3),
        (UNSHATTER, "ALTER TABLE: ", 1),
    ],
)
def test_ctrl_c_stops_everything_that_was_started(command: list[str], at: str, count: int) -> None:
    process = _start(command)
    assert process.stdout is not None
    addresses = []
    for line in process.stdout:
        if "://" in line:
            addresses.append(line.split()[1])
        if at in line:
            groups = _groups_of(process.pid)
            folders = {folder for group in groups if "demo-" in str(folder := Path(f"/proc/{group}/cwd").readlink())}
            process.send_signal(signal.SIGINT)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)  # as from make; it must not end the cleaning up
            break
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130, rest + errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert len(addresses) == count <= len({*groups})
    assert bool(folders) == bool(count)
    assert not [folder for folder in folders if folder.parent.exists()]
    assert not [group for group in {*groups, *_groups_of(process.pid)} if Path(f"/proc/{group}").exists()]


@pytest.mark.slow
def test_without_elasticsearch_the_demo_says_how_to_get_it_and_shows_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(_: Path) -> stack.Server:
        raise stack.ServerUnavailable("elasticsearch: no Java here. Install a JDK")

    monkeypatch.setitem(servers.PREPARE, "elasticsearch", unavailable)
    monkeypatch.setattr(tables, "SMALLEST_CITY", 15000)
    monkeypatch.setenv("DEMO_LIVE_S", "1")
    monkeypatch.delenv("KEEP", raising=False)
    with _kept_handlers():
        code = demo.main([])
    output = capsys.readouterr().out
    assert code == 0
    assert "Install a JDK" in output
    assert output.splitlines()[-1] == "demo: 4 views equal their tables"


def test_a_view_that_differs_is_named_with_the_keys_that_do() -> None:
    wanted = {"1": {"a": 1}, "2": {"a": 2}, "3": {"a": 3}}
    found = {"1": {"a": 1}, "2": {"a": 9}, "4": {"a": 4}}
    assert comparing.differences(wanted, found) == [
        "3 is in the table and not in the view",
        "4 is in the view and not in the table",
        "2 should be {'a': 2}, is {'a': 9}",
    ]
    assert comparing.differences(wanted, wanted) == []


def test_an_unusable_number_of_seconds_is_refused() -> None:
    done = subprocess.run(
        COMMAND,
        env={**os.environ, "DEMO_LIVE_S": "soon"},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "DEMO_LIVE_S is 'soon'" in done.stderr


def _run(live_s: int) -> subprocess.CompletedProcess[str]:
    process = _start(COMMAND, live_s)
    watchdog: Callable[[], None] = process.terminate
    timer = threading.Timer(350, watchdog)
    timer.start()
    try:
        output, errors = process.communicate()
    finally:
        timer.cancel()
    return subprocess.CompletedProcess(COMMAND, process.returncode, output, errors)


def _start(command: list[str], live_s: int = 3) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "KEEP"}
    return subprocess.Popen(
        command,
        env={
            **environment,
            "DEMO_LIVE_S": str(live_s),
            "ORDERS_WEEKS": "1",
            "UNSHATTER_ACCOUNTS": "60",
            "PYTHONUNBUFFERED": "1",
        },
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _groups_of(pid: int) -> list[str]:
    """The process groups that a program started and that end with it: their guards name both."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_text(errors="replace").split("\0"))
    return [line[line.index(str(pid)) + 1] for line in lines if "guard.py" in " ".join(line) and str(pid) in line]


class _kept_handlers:
    """The demo sets a signal handler; pytest wants its own back."""

    def __enter__(self) -> None:
        self._before = signal.getsignal(signal.SIGTERM)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)
