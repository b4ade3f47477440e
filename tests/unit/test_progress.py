"""What a long command shows of how far it is: how many, how fast, and how long the rest takes."""

from __future__ import annotations

import io
import sys
import time

import pytest

from viewtail.commands.progress import SAY_EVERY_S, progress


class Clock:
    """A clock that somebody sets."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        patch.setattr(time, "monotonic", lambda: self.now_s)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_plain_line_now_and_then_tells_the_rate_and_an_estimate_of_the_rest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with progress("mysql:people", "rows") as say:
        clock.now_s += SAY_EVERY_S - 0.1
        say(1_000, 9_000)
        assert capsys.readouterr().err == "", "not at once"
        clock.now_s += 5.1
        say(2_000, 9_000, ", at binlog.000007:4")
        first = "viewtail: mysql:people: 2,000 of about 9,000 rows, 200 a second, 35 s left, at binlog.000007:4\n"
        assert capsys.readouterr().err == first
        say(2_100, 9_000)
        assert capsys.readouterr().err == "", "nor at each call"
        clock.now_s += 10
        say(10_000, 9_000)
        told = capsys.readouterr()
        assert told.err == "viewtail: mysql:people: 10,000 rows, 500 a second\n", "the estimate was too low"
        assert told.out == ""


def test_where_nothing_is_done_yet_no_end_is_foretold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with progress("mysql:people", "rows") as say:
        clock.now_s += 10
        say(0, 9_000)
        clock.now_s += 10
        say(7, 0)
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "viewtail: mysql:people: 0 of about 9,000 rows, 0 a second",
        "viewtail: mysql:people: 7 rows, 0 a second",
    ]


def test_on_a_terminal_a_bar_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    clock = Clock(monkeypatch)
    with progress("mysql:people", "rows") as say:
        clock.now_s += 10
        say(2_000, 8_000)
    shown = terminal.getvalue()
    assert "mysql:people" in shown and "2,000 rows, 200/s" in shown and "25%" in shown
