"""Fails a full run of the tests in which a test that docs/failures.md names was not run, or did not pass.

That a test exists (tests/unit/test_docs.py looks) is not enough: a skipped or deselected one shows nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

_NAMED = re.compile(r"`(tests/[\w/]+\.py::\w+)`")


def named_in(page: Path) -> frozenset[str]:
    """The tests that a page names, as 'tests/FILE.py::test_name'."""
    return frozenset(_NAMED.findall(page.read_text()))


class PromisedTests:
    """A pytest plugin. A run of chosen tests is not looked at."""

    def __init__(self, page: Path) -> None:
        self._page = page
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        if report.when == "call" and report.passed:
            self._passed.add(name)
        elif not report.passed:
            self._failed.add(name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.OK or not _is_full(session.config):
            return
        missing = sorted(named_in(self._page) - (self._passed - self._failed))
        if missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            terminal = session.config.pluginmanager.get_plugin("terminalreporter")
            if terminal is not None:
                terminal.write_line("")
                terminal.write_line(f"{self._page.name} names tests that did not run and pass:", red=True)
                for name in missing:
                    terminal.write_line(f"  {name}")


def _is_full(config: pytest.Config) -> bool:
    option = config.option
    is_chosen = config.args_source is pytest.Config.ArgsSource.ARGS
    return not (is_chosen or option.keyword or option.markexpr or option.deselect or option.collectonly)
