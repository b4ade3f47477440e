"""Work that reads the source waits while that is busy, says why, and goes on afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pymysql
import pytest

import stack.mysql
from projectors import throttle
from stack import Server
from tests.support.asking import ask
from tests.support.running import wait_for
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = pytest.mark.mysql


@contextmanager
def working(server: Server, **limits: int) -> Iterator[tuple[list[str], list[float]]]:
    """A thread that reads from the server, one row a step: what it says, and when each step ended."""
    address, stop = MySQLAddress(host="127.0.0.1", port=server.port, user="root"), threading.Event()
    said: list[str] = []
    steps: list[float] = []
    considerate = throttle.SourceLoadThrottle(
        stop=stop, open_source=lambda: open_session(address, role="source"), say=said.append, **limits
    )

    def work() -> None:
        while not stop.wait(0.01):
            considerate.after(1)
            steps.append(time.monotonic())

    thread = threading.Thread(target=work)
    with closing(considerate):
        thread.start()
        try:
            yield said, steps
        finally:
            stop.set()
            thread.join()


def until_waiting(said: list[str], steps: list[float]) -> None:
    wait_for("it says why it waits", lambda: said)
    count = len(steps)
    time.sleep(1)
    assert len(steps) == count, "it waits"
    assert len(said) == 1, "once"


def wake(server: Server, sleeping: list[threading.Thread]) -> None:
    """End their statements: a SLEEP that is ended is no error."""
    asleep = "SELECT id FROM information_schema.processlist WHERE info = 'SELECT SLEEP(200)'"

    def is_over() -> bool:
        for (session,) in ask(server, asleep):
            ask(server, f"KILL QUERY {session}")
        return not any(thread.is_alive() for thread in sleeping)

    wait_for("they wake up", is_over)


def test_it_waits_while_the_source_runs_many_statements(mysql_server: Server) -> None:
    ((_, before),) = ask(mysql_server, "SHOW GLOBAL STATUS LIKE 'Threads_running'")
    # Sessions of tests before may end, or begin, a statement meanwhile: there is room on both sides of the bound.
    others = [pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root") for _ in range(40)]
    sleeping = [threading.Thread(target=one.query, args=("SELECT SLEEP(200)",)) for one in others]
    with working(mysql_server, max_threads_running=int(before) + 20) as (said, steps):
        wait_for("it works", lambda: len(steps) > 20)
        assert said == []
        try:
            for thread in sleeping:
                thread.start()
            until_waiting(said, steps)
        finally:
            wake(mysql_server, sleeping)
        count = len(steps)
        wait_for("it goes on", lambda: len(steps) > count + 20)
    for one in others:
        one.close()
    assert "statements at once" in said[0], said


def test_it_waits_while_the_source_is_a_replica_that_lags(
    mysql_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_REPLICA_LAG_S", 1.0)
    replica = stack.mysql.start(tmp_path / "replica", options=["--server-id=77"])
    try:
        executed = ask(mysql_server, "SELECT @@GLOBAL.gtid_executed")[0][0].replace("\n", "")
        ask(replica, "RESET BINARY LOGS AND GTIDS")
        ask(replica, f"SET GLOBAL gtid_purged = '{executed}'")
        ask(
            replica,
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {mysql_server.port}, "
            "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_DELAY = 600",
        )
        ask(replica, "START REPLICA")
        with working(replica) as (said, steps):
            wait_for("it works", lambda: len(steps) > 20)
            assert said == []
            ask(mysql_server, "CREATE DATABASE IF NOT EXISTS considered")
            until_waiting(said, steps)
            ask(replica, "STOP REPLICA")
            ask(replica, "CHANGE REPLICATION SOURCE TO SOURCE_DELAY = 0")
            ask(replica, "START REPLICA")
            count = len(steps)
            wait_for("it goes on", lambda: len(steps) > count + 20)
        assert all("behind its primary" in one for one in said), said
    finally:
        replica.kill()
        ask(mysql_server, "DROP DATABASE IF EXISTS considered")
