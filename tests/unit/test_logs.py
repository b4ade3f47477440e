"""Where logs go: in tests, to the report of the test that fails and nowhere else."""

from __future__ import annotations

import logging
import threading
from types import ModuleType

import pytest
import structlog

from viewtail.commands import dead_letters, verify
from viewtail.main import main


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


@pytest.mark.parametrize(
    ("arguments", "module", "name"),
    [(["verify", "--json"], verify, "verify"), (["dead-letters", "list", "--json"], dead_letters, "list_letters")],
)
def test_a_command_logs_warnings_on_stderr_and_nothing_on_stdout(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    module: ModuleType,
    name: str,
) -> None:
    structlog.reset_defaults()  # as a new process has it

    def command(*_: object, **__: object) -> int:
        log = structlog.get_logger("viewtail.test")
        log.info("the watermark is not passed yet")
        log.warning("a warning")
        print("{}")
        return 0

    monkeypatch.setattr(module, name, command)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (0, "{}\n")
    assert "a warning" in said.err and "watermark" not in said.err
