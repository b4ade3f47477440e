"""Commands that the console began end when they are to, whatever keeps them waiting."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.running import wait_for
from viewtail.console.asking import previewed
from viewtail.console.jobs import Commands
from viewtail.signals import kept_from_threads

pytestmark = pytest.mark.slow


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[socket.socket]:
    """A server that lets nobody in, and says nothing: that of the settings."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("VIEWTAIL_SOURCE__URL", f"mysql://root@127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.chdir(tmp_path)
        yield listening


@pytest.mark.parametrize("presses", [1, 2])
def test_a_command_that_waits_for_a_server_is_stopped_though_the_console_blocks_signals(
    silent: socket.socket, presses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    if presses == 2:  # as where a shell's script begins the run in the background
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        commands = Commands(None)
        with kept_from_threads():  # as every thread of the console is
            job = commands.begin(["pause", "--pipeline=redis"], operator="ada", shard=None)
    finally:
        signal.signal(signal.SIGINT, before)
    silent.settimeout(30)
    with silent.accept()[0]:
        for _ in range(presses):
            commands.stop(job)
        began = time.monotonic()
        wait_for("its end", lambda: not job.is_running)
        assert time.monotonic() - began < 3 and job.outcome == "stopped", list(job.lines)


def test_a_question_is_given_up_when_the_console_ends(silent: socket.socket) -> None:
    commands, answers = Commands(None), list[tuple[int, str, str]]()
    words = ["pause", "--pipeline=redis"]
    asking = threading.Thread(target=lambda: answers.append(commands.answer(words, shard=None, within_s=60)))
    with kept_from_threads():
        asking.start()
    silent.settimeout(30)
    with silent.accept()[0]:
        began = time.monotonic()
        commands.close()
        asking.join()
        assert time.monotonic() - began < 2 and answers[0][0] == -signal.SIGKILL
    assert commands.answer(words, shard=None, within_s=60) == (1, "", "the console ends")


def test_what_views_py_prints_does_not_hide_a_preview() -> None:
    found = b'{\n  "sampled": 1,\n  "differences": [\n    {\n      "key": "7"\n    }\n  ]\n}\n'.decode()
    assert previewed((0, found, "")) == previewed((0, f"hello\n{{ a row }}\n{found}", ""))
    assert previewed((0, found, ""))[0] == {"sampled": 1, "differences": [{"key": "7"}]}
    assert previewed((2, "hello\n", "views.py:1: it is wrong\n")) == (None, "views.py:1: it is wrong")


def test_the_console_ends_while_a_question_waits(silent: socket.socket) -> None:
    """For a server, or for anything else: here for views.py, which takes very long."""
    Path("views.py").write_text("import os, time\nviews = []\nif os.path.exists('slow'):\n    time.sleep(600)\n")
    command = [sys.executable, "-m", "viewtail.main", "console", "--port=0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as console:
        assert console.stderr is not None
        try:
            url = json.loads(console.stderr.readline())["url"]
            Path("slow").touch()
            asked = threading.Thread(target=_open, args=(url,))
            asked.start()
            time.sleep(1)
            console.terminate()
            assert console.wait(20) == 0
        finally:
            console.kill()
        asked.join()


def _open(url: str) -> None:
    with suppress(OSError):
        urllib.request.urlopen(url, timeout=60).close()
