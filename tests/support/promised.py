"""Fails a full run of the tests in which a test that the pages of failures name was not run, or did not pass.

That a test exists (tests/unit/test_docs.py looks) is not enough: a skipped or deselected one shows nothing. Only what
`make test` leaves out (tests/support/slices.py) is for `make whole` to run. Where tests run side by side, the process
that shares them out hears how each ended, and from the workers what they left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

_DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = (_DOCS / "failures.md", _DOCS / "failures-views.md")
_NAMED = re.compile(r"`((?:tests/[\w/]+\.py::)?test_\w+)`")
_IS_FULL, _LEFT = "is_full", "left"  # what is told to workers, and by them


def named_in(page: Path) -> frozenset[str]:
    """The tests that a page names, as 'test_name', or as 'tests/FILE.py::test_name' where several have the name."""
    return frozenset(_NAMED.findall(page.read_text()))


def missing_from(pages: Iterable[Path], passed: Iterable[str], failed: Iterable[str], left: Iterable[str]) -> list[str]:
    """The tests that pages name of which no case passed, or any failed; given are the names of the cases.

    Not those that were `left` out, by the names of the tests.
    """
    ran, broken = ({case.partition("[")[0] for case in cases} for cases in (passed, failed))
    fine = {*(ran - broken), *left}
    fine |= {test.rpartition("::")[2] for test in fine}
    return sorted(name for page in pages for name in named_in(page) - fine)


class PromisedTests:
    """A pytest plugin. A run of chosen tests is not looked at."""

    def __init__(self, *pages: Path) -> None:
        self._pages = pages
        self._passed: set[str] = set()
        self._failed: set[str] = set()
        self._left: set[str] = set()  # tests
        self._left_count = 0  # cases

    def left_out(self, tests: Iterable[str], count: int) -> None:
        """Tests of which nothing is run, and how many cases are not."""
        self._left, self._left_count = {*tests}, count

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        elif not report.passed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_IS_FULL] = is_full(node.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if _LEFT in getattr(node, "workeroutput", {}):  # not of one that died
            self.left_out(*node.workeroutput[_LEFT])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_LEFT] = (sorted(self._left), self._left_count)
            return
        if exitstatus != pytest.ExitCode.OK or not is_full(session.config):
            return
        missing = missing_from(self._pages, self._passed, self._failed, self._left)
        if missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            self._tell(session.config, "docs/failures*.md name tests that did not run and pass:", *missing)

    def pytest_terminal_summary(self, config: pytest.Config) -> None:
        if self._left_count:
            self._tell(config, f"{self._left_count:,} cases were left out; make whole runs all")

    @staticmethod
    def _tell(config: pytest.Config, first: str, *others: str) -> None:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            for line in ("", first, *(f"  {one}" for one in others)):
                terminal.write_line(line)


def is_full(config: pytest.Config) -> bool:
    """Whether no tests were chosen on the command line."""
    given = getattr(config, "workerinput", {}).get(_IS_FULL)
    if given is not None:
        return bool(given)
    option = config.option
    is_chosen = config.args_source is pytest.Config.ArgsSource.ARGS
    return not (is_chosen or option.keyword or option.markexpr or option.deselect or option.collectonly)
