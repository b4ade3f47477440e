"""Fixtures that several suites share: real servers, one for all tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import stack.mysql
from stack.server import Server


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A MySQL that all tests share; each makes a schema of its own."""
    server = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.stop()
