"""Fails a full run of the tests in which a test that docs/failures.md names was not run, or did not pass.

That a test exists (tests/unit/test_docs.py looks) is not enough: a skipped or deselected one shows nothing. Only what
is left for another day (tests/support/slices.py) is run on that day.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs/failures.md"
LEFT = pytest.StashKey[frozenset[str]]()  # of the configuration: tests that are left for another day
_NAMED = re.compile(r"`(tests/[\w/]+\.py::\w+)`")


def named_in(page: Path) -> frozenset[str]:
    """The tests that a page names, as 'tests/FILE.py::test_name'."""
    return frozenset(_NAMED.findall(page.read_text()))


def missing_from(page: Path, passed: Iterable[str], failed: Iterable[str], left: Iterable[str]) -> list[str]:
    """The tests that a page names of which no case passed, or any failed; given are the names of the cases.

    Not those that were `left` for another day, by the names of the tests.
    """
    bare = [{case.partition("[")[0] for case in cases} for cases in (passed, failed)]
    return sorted(named_in(page) - (bare[0] - bare[1]) - {*left})


def tell_missing(page: Path, missing: list[str], write_line: Callable[[str], object]) -> None:
    """Say which are missing, if any are."""
    for line in [f"{page.name} names tests that did not run and pass:", *(f"  {name}" for name in missing)]:
        if missing:
            write_line(line)


class PromisedTests:
    """A pytest plugin. A run of chosen tests is not looked at, nor is one half (halves.py looks at both)."""

    def __init__(self, page: Path) -> None:
        self._page = page
        self._passed: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        elif not report.passed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        is_half = session.config.getoption("half", None) is not None
        if exitstatus != pytest.ExitCode.OK or is_half or not is_full(session.config):
            return
        missing = missing_from(self._page, self._passed, self._failed, session.config.stash.get(LEFT, frozenset()))
        if missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            terminal = session.config.pluginmanager.get_plugin("terminalreporter")
            if terminal is not None:
                terminal.write_line("")
                tell_missing(self._page, missing, terminal.write_line)


def is_full(config: pytest.Config) -> bool:
    """Whether no tests were chosen on the command line."""
    option = config.option
    is_chosen = config.args_source is pytest.Config.ArgsSource.ARGS
    return not (is_chosen or option.keyword or option.markexpr or option.deselect or option.collectonly)
