"""A test that fails, and leaves behind what its fixtures wait for, ends the run neither late nor silently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.forked import CHECKOUT

CONFTEST = """
from tests.support.teardown import BoundedTeardown

def pytest_configure(config):
    config.pluginmanager.register(BoundedTeardown(0.5))
"""
TESTS = """
import time
import pytest

@pytest.fixture
def waits():
    yield
    time.sleep(60)

@pytest.fixture
def is_closed():
    yield
    print("closed all the same")

def test_fails(is_closed, waits):
    assert False

def test_passes():
    time.sleep(1)
"""


def test_a_teardown_that_waits_behind_a_failed_test_is_an_error_and_the_other_tests_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", ".", "-p", "no:cacheprovider", "--timeout", "30", "-s", "-rA"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert "1 failed, 1 passed, 1 error" in done.stdout
    assert "teardown took longer than 0 s" in done.stdout and "in waits" in done.stderr
    assert "closed all the same" in done.stdout
