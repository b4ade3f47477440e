"""A stopping signal ends what runs now: in a process that works for one deployment after another, too."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BEGIN = """
import os, signal, sys, threading
from viewtail import shards, signals
from viewtail.cli.each import in_each
from viewtail.cli.ending import ended
"""


def ended(script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BEGIN + script]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False)


def test_the_last_that_asked_for_signals_gets_all_of_them() -> None:
    done = ended("""
got, came = [], threading.Event()

def ask(name):
    signals.on_stop(lambda: (got.append(name), came.set()))

ask("first")
ask("second")
for _ in range(4):
    os.kill(os.getpid(), signal.SIGINT)
    assert came.wait(10)
    came.clear()
print(*got)
""")
    assert done.stdout.split() == ["second"] * 4, done.stderr


def test_a_signal_that_comes_while_an_object_is_destroyed_is_not_lost() -> None:
    done = ended("""
class Closing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        sum(range(1000))  # here the handler runs

signals.end_at_once()
print("begun")
Closing()
print("it went on")
""")
    assert (done.returncode, done.stdout) == (0, "begun\n"), done.stderr


COMMAND = """
def command(shard):
    print(shard, flush=True)
    return {"a": in_a, "b": in_b, "c": lambda: 0}[shard]()

def in_a():
    signals.on_stop(lambda: None)
    return 1

def stopped():
    stop = threading.Event()
    signals.on_stop(stop.set)
    os.kill(os.getpid(), number)
    assert stop.wait(10)
    return 0 if is_too_late else 130

def asks():
    os.kill(os.getpid(), number)
    threading.Event().wait(10)
    return 0

def call_all():
    sys.exit(ended(lambda: in_each(None, command)))

shards.targets = lambda _: [shards.Target(lambda name=name: name, name) for name in "abc"]
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("is_too_late", [False, True], ids=["heard", "heard too late"])
def test_a_stop_in_one_deployment_ends_the_command_for_those_that_are_left(
    number: signal.Signals, is_too_late: bool
) -> None:
    done = ended(f"{COMMAND}\nnumber, is_too_late, in_b = {number:d}, {is_too_late}, stopped\ncall_all()")
    assert (done.stdout.split(), done.returncode) == (["a", "b"], 130), done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_what_the_next_deployment_does_before_it_asks_for_signals_is_ended_by_one(
    number: signal.Signals, code: int
) -> None:
    done = ended(f"{COMMAND}\nnumber, in_b = {number:d}, asks\ncall_all()")
    assert (done.stdout.split(), done.returncode) == (["a", "b"], code), done.stderr
