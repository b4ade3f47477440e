"""Fixtures that several suites share: real servers, one for all tests that do not harm it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import stack.elasticsearch
import stack.mariadb
import stack.mysql
import stack.redis
from stack.server import Server
from tests.support.promised import PromisedTests

# A shell's background job ignores Ctrl-C, and so would every program started here: none could be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(PromisedTests(Path(__file__).parents[1] / "docs/failures.md"))


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A MySQL that all tests share; each makes a schema of its own."""
    server = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A MariaDB that all tests share; each makes a schema of its own."""
    server = stack.mariadb.start(tmp_path_factory.mktemp("mariadb"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Redis that all tests share; each uses keys of its own."""
    server = stack.redis.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def elasticsearch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An Elasticsearch node that all tests share; each makes indices of its own."""
    server = stack.elasticsearch.start(tmp_path_factory.mktemp("elasticsearch"))
    yield server
    server.stop()
