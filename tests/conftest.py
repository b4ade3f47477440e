"""Fixtures that several suites share: real servers, one for all tests that do not harm it.

They are killed at the end, as those of single tests are: nothing of them is kept, and a clean end takes seconds.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import hypothesis
import pytest
import redis
import structlog
from playwright.sync_api import Browser, Page

import stack.elasticsearch
import stack.kafka
import stack.mariadb
import stack.mysql
import stack.redis
from stack.server import Server
from tests.support import browser as chromium
from tests.support import open_transactions, slices
from tests.support.indices import Indices
from tests.support.promised import PAGES, PromisedTests, is_full
from tests.support.small_disk import SmallDisk
from tests.support.teardown import BoundedTeardown

# A shell's background job ignores Ctrl-C, and so would every program started here: none could be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TEARDOWN_S = 240.0  # behind a test that failed

# Hundreds of processes are started here: where this is set, each would compile all of viewtail again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# No node lives long enough here for what Java's second compiler costs: a third of a start.
os.environ.setdefault("ES_JAVA_OPTS", "-XX:TieredStopAtLevel=1")
os.environ.setdefault("KAFKA_OPTS", "-XX:TieredStopAtLevel=1")
# How long one example takes says how busy the machine is, and no test promises it.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")
# pytest takes its handler away between the phases of a test: warnings would go to the terminal.
logging.lastResort = logging.NullHandler()


@pytest.fixture(autouse=True)
def logs_for_the_report() -> Iterator[None]:
    """What is logged stands in the report of a test that fails; a thread that outlives its test prints nothing."""
    handlers = list(logging.root.handlers)
    structlog.configure(
        processors=[structlog.processors.KeyValueRenderer(key_order=["event"])],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    yield
    logging.root.handlers = handlers  # a command that ran in this process has set its own


PROMISED = PromisedTests(*PAGES)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(PROMISED)
    config.pluginmanager.register(BoundedTeardown(TEARDOWN_S))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("VIEWTAIL_TEST_WHOLE") or not is_full(config):
        return
    left = slices.left_out(items)
    if left:
        config.hook.pytest_deselected(items=left)
        without = {*left}
        items[:] = [item for item in items if item not in without]
        PROMISED.left_out({*map(slices.test_of, left)} - {*map(slices.test_of, items)}, len(left))


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A MySQL that all tests share; each makes a schema of its own."""
    server = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def mariadb_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A MariaDB that all tests share; each makes a schema of its own."""
    server = stack.mariadb.start(tmp_path_factory.mktemp("mariadb"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def mariadb_with_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that lists metadata locks: what polling needs."""
    plugins = ["--plugin-load-add=metadata_lock_info", "--plugin-maturity=unknown"]
    server = stack.mariadb.start(
        tmp_path_factory.mktemp("polled"), options=[f"--plugin-dir={stack.mariadb.plugins()}", *plugins]
    )
    yield server
    server.kill()


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = stack.redis.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def redis_server(shared_redis: Server) -> Server:
    """A Redis that all tests share; it is empty when a file begins. Each test uses keys of its own."""
    # How far a pipeline had come is noted there too, and would halt the next one of its name: it is of another MySQL.
    with redis.Redis(port=shared_redis.port) as client:
        client.flushall()
    return shared_redis


@pytest.fixture(scope="session")
def shared_elasticsearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = stack.elasticsearch.start(tmp_path_factory.mktemp("elasticsearch"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def elasticsearch_server(shared_elasticsearch: Server) -> Server:
    """An Elasticsearch node that all tests share; it is empty when a file begins. Each makes indices of its own."""
    # An index says which deployment has it: the next one's, of views of the same names, would be refused.
    Indices(shared_elasticsearch).drop_all()
    return shared_elasticsearch


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Kafka broker that all tests share; each makes topics of its own."""
    # Compaction looks for work at once. To set this while a broker runs may end its cleaner (an error in Kafka 4.1.2).
    server = stack.kafka.start(tmp_path_factory.mktemp("kafka"), options=["log.cleaner.backoff.ms=100"])
    yield server
    server.kill()


@pytest.fixture(autouse=True)
def _transactions_end(request: pytest.FixtureRequest) -> Iterator[None]:
    """A killed pipeline that does not come back hides the end of the shared topic of positions for 10 minutes."""
    yield
    for broker in ("kafka_server", "harmed_kafka"):
        if broker in request.fixturenames:
            open_transactions.end_all(request.getfixturevalue(broker))


@pytest.fixture(scope="session")
def harmed_elasticsearch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that tests may kill and pause, because a start takes 8 s; each leaves it running."""
    server = stack.elasticsearch.start(tmp_path_factory.mktemp("harmed"))
    yield server
    server.kill()


@pytest.fixture(scope="session")
def disk_of_harmed_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    """That tests may fill; each frees it."""
    with SmallDisk(tmp_path_factory.mktemp("disk"), size_mib=128) as disk:
        yield disk


@pytest.fixture(scope="session")
def harmed_kafka(tmp_path_factory: pytest.TempPathFactory, disk_of_harmed_kafka: SmallDisk) -> Iterator[Server]:
    """A broker that tests may kill and pause; each leaves it running."""
    options = [
        f"log.dirs={disk_of_harmed_kafka.path / 'data'}",
        "log.segment.delete.delay.ms=1000",  # room of a topic that was dropped
        "group.min.session.timeout.ms=1000",  # a member that hangs is left behind soon
    ]
    server = stack.kafka.start(tmp_path_factory.mktemp("harmed_kafka"), options=options)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for the tests of one file. The next file may run asyncio, and could not beside Playwright's loop."""
    with chromium.running() as browser:
        yield browser


@pytest.fixture
def visitor(browser: Browser) -> Iterator[chromium.Visitor]:
    """Opens pages; the test fails at its end when one of them had an error or asked another machine."""
    visitor = chromium.Visitor(browser)
    yield visitor
    visitor.close()


@pytest.fixture
def page(visitor: chromium.Visitor) -> Page:
    """A page as wide as a desktop's, in an empty profile; faults on it fail the test."""
    return visitor.page()
