"""Where logs go: in tests, to the report of the test that fails and nowhere else."""

from __future__ import annotations

import logging
import threading

import pytest
import structlog


def test_what_tests_have_logged_reaches_no_terminal(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = structlog.get_logger("viewtail.test")
    log.warning("in a test", key=1)
    assert caplog.messages == ["event='in a test' key=1"]
    # As between two phases of a test, when a thread goes on that one began.
    monkeypatch.setattr(logging.root, "handlers", [])
    thread = threading.Thread(target=log.warning, args=("from a thread",))
    thread.start()
    thread.join()
    assert capfd.readouterr() == ("", "")
