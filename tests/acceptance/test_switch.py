"""The binlog is given up for polling, and taken up again, under live writes: no backfill, and nothing is lost."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import sleep

import pymysql
import pytest

from stack import Server
from tests.support.asking import ask
from tests.support.forked import Background
from tests.support.polled import VIEWS, Polled, polling
from tests.support.running import wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]
GRANTS = (
    "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO reader",
    "GRANT SELECT ON bank.* TO reader",
    "GRANT SELECT ON performance_schema.* TO reader",
    "GRANT ALL ON viewtail.* TO reader",
)


@pytest.fixture
def tailed(request: pytest.FixtureRequest, redis_server: Server, tmp_path: Path) -> Iterator[Polled]:
    """On MySQL, or on the server that a test is parametrized with."""
    server = request.getfixturevalue(getattr(request, "param", "mysql_server"))
    settings = {"VIEWTAIL_SOURCE__MODE": "binlog", "VIEWTAIL_SOURCE__URL": server.url}
    with polling(server, redis_server, tmp_path, settings=settings) as found:
        wait_for("they are filled", lambda: found.is_equal() and found.run.is_well())
        yield found


@contextmanager
def writing(polled: Polled, seed: int) -> Iterator[None]:
    """Three writers of entities of their own, with rollbacks and transactions that take long."""
    stop = threading.Event()
    rest_s = 0.05 if polled.mysql.name == "mariadb" else 0  # which tells sessions alone, not their transactions

    def write(number: int) -> None:
        chance, version = random.Random(seed + number), 0
        session = pymysql.connect(host="127.0.0.1", port=polled.mysql.port, user="root")
        with closing(session), session.cursor() as cursor:
            while not stop.is_set():
                for _ in range(chance.choice((1, 1, 3))):
                    version += 1
                    entity = f"w{number}.{chance.randrange(40)}"
                    cursor.execute(polled.event(entity, version, chance.randrange(1_000)))
                    sleep(chance.choice((0.0, 0.0, 0.01, 0.4)))
                session.rollback() if chance.random() < 0.2 else session.commit()
                sleep(rest_s)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def said(command: Background) -> bytes:
    return os.pread(command._out.fileno(), 10_000, 0)


def switch(polled: Polled, to: str) -> None:
    """As a user does: the command says when `viewtail run` is to be stopped."""
    command = polled.run.background("switch", "--to", to)
    try:
        wait_for("it says when", lambda: command.poll() is not None or b"Stop `viewtail run` now" in said(command))
        assert command.poll() is None, command.communicate()
        sleep(0.5)  # rows come, and are read, meanwhile
        assert polled.run.stop() == 0
        assert command.wait(60) == 0, command.communicate()
        assert f"Set VIEWTAIL_SOURCE__MODE={to}" in command.communicate()[0]
    finally:
        if command.poll() is None:
            command.kill()
    sleep(0.5)  # and are written while nobody reads
    polled.run._environment["VIEWTAIL_SOURCE__MODE"] = to
    polled.run.start()


def backfills(polled: Polled) -> int:
    return polled.run.log.count('"event":"backfilling"')


@pytest.mark.parametrize("tailed", ["mysql_server", "mariadb_with_locks"], indirect=True)
def test_both_ways_under_live_writes_lose_nothing_and_backfill_nothing(tailed: Polled) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    before = backfills(tailed)
    with writing(tailed, seed):
        sleep(1)
        for to in ("poll", "binlog", "poll", "binlog"):
            switch(tailed, to)
            sleep(1)
    wait_for("they are equal", tailed.is_equal)
    assert len(tailed.newest()) > 100
    assert backfills(tailed) == before
    assert tailed.run.command("verify").returncode == 0
    wait_for("all is well", tailed.run.is_well)


@pytest.mark.parametrize("to", ["poll", "binlog"])
def test_a_run_that_was_stopped_too_early_is_told_and_nothing_changes(
    mysql_server: Server, redis_server: Server, tmp_path: Path, to: str
) -> None:
    settings = {"VIEWTAIL_SOURCE__MODE": "binlog" if to == "poll" else "poll", "VIEWTAIL_SOURCE__URL": mysql_server.url}
    with polling(mysql_server, redis_server, tmp_path, settings=settings) as polled:
        wait_for("they are filled", lambda: polled.is_equal() and polled.run.is_well())
        session = pymysql.connect(host="127.0.0.1", port=mysql_server.port, user="root")
        with closing(session), session.cursor() as cursor:
            cursor.execute(polled.event("w.0", 1, 1))
            command = polled.run.background("switch", "--to", to)
            wait_for("it waits", lambda: b"Waiting until the transactions" in said(command))
            assert polled.run.stop() == 0
            session.commit()
        _, errors = command.communicate(timeout=60)
        assert command.returncode == 2 and "ended before every view" in errors, errors
        polled.run.start()
        wait_for("it goes on as before", polled.is_equal)


@pytest.mark.parametrize("to", ["poll", "binlog"])
def test_a_mode_that_is_changed_in_the_settings_alone_names_the_command(
    mysql_server: Server, redis_server: Server, tmp_path: Path, to: str
) -> None:
    before = "binlog" if to == "poll" else "poll"
    settings = {"VIEWTAIL_SOURCE__MODE": before, "VIEWTAIL_SOURCE__URL": mysql_server.url}
    with polling(mysql_server, redis_server, tmp_path, settings=settings) as polled:
        wait_for("they are filled", lambda: polled.is_equal() and polled.run.is_well())
        assert polled.run.stop() == 0
        polled.run._environment["VIEWTAIL_SOURCE__MODE"] = to
        polled.run.start()
        wait_for("it is named", lambda: f"viewtail switch --to {to}" in polled.run.command("status").stdout)
        assert "another server" not in polled.run.command("status").stdout
        polled.run.stop()
        polled.run._environment["VIEWTAIL_SOURCE__MODE"] = before
        ask(mysql_server, polled.event("w.0", 1, 1))
        polled.run.start()
        wait_for("it goes on as before", lambda: polled.is_equal() and polled.run.is_well())


def test_where_the_binlog_is_gone_all_rows_are_read_again_in_place(tailed: Polled) -> None:
    before = backfills(tailed)
    assert tailed.run.stop() == 0
    tailed.add("account.1", 2, 500)
    ask(tailed.mysql, "FLUSH BINARY LOGS")
    (*_, last) = ask(tailed.mysql, "SHOW BINARY LOGS")
    ask(tailed.mysql, f"PURGE BINARY LOGS TO '{last[0]}'")
    tailed.run._environment["VIEWTAIL_SOURCE__MODE"] = "poll"
    tailed.run.start()
    wait_for("it halts", lambda: "viewtail switch --to poll" in tailed.run.command("status").stdout)
    assert tailed.run.stop() == 0
    done = tailed.run.command("switch", "--to", "poll")
    assert done.returncode == 0 and "All rows are read again" in done.stdout, done
    assert tailed.run.command("switch", "--to", "poll").returncode == 0
    tailed.run.start()
    wait_for("they are equal", tailed.is_equal)
    assert backfills(tailed) == before
    assert tailed.run.stop() == 0
    done = tailed.run.command("switch", "--to", "binlog")
    assert done.returncode == 2 and "while it runs" in done.stderr


def test_where_the_right_to_the_binlog_is_lost_polling_goes_on_without_it(tailed: Polled) -> None:
    before = backfills(tailed)
    assert tailed.run.stop() == 0
    for statement in ("DROP USER IF EXISTS reader", "CREATE USER reader IDENTIFIED BY 'r'", *GRANTS):
        ask(tailed.mysql, statement)
    tailed.run._environment["VIEWTAIL_SOURCE__URL"] = f"mysql://reader:r@127.0.0.1:{tailed.mysql.port}"
    tailed.run.start()
    tailed.add("account.1", 2, 500)
    wait_for("it reads the binlog", tailed.is_equal)
    ask(tailed.mysql, "REVOKE REPLICATION SLAVE, REPLICATION CLIENT ON *.* FROM reader")
    tailed.run.kill()
    tailed.run.start()
    tailed.add("account.2", 2, 600)
    wait_for("it cannot go on", lambda: "REPLICATION" in tailed.run.command("status").stdout)
    assert tailed.run.stop() == 0
    done = tailed.run.command("switch", "--to", "poll")
    assert done.returncode == 0 and "All rows are read again" in done.stdout, done
    tailed.run._environment["VIEWTAIL_SOURCE__MODE"] = "poll"
    tailed.run.start()
    wait_for("they are equal", tailed.is_equal)
    assert backfills(tailed) == before


def test_views_that_need_the_binlog_are_named_and_nothing_changes(tailed: Polled) -> None:
    more = 'views.append(IndexTable("by_version", Entity("bank.account"), value="version"))'
    (tailed.run.folder / "views.py").write_text(f"{VIEWS}\n{more}\n")
    done = tailed.run.command("switch", "--to", "poll")
    assert done.returncode == 2 and "mysql:by_version" in done.stderr and "order=" in done.stderr
    tailed.add("account.1", 2, 500)
    wait_for("it goes on", tailed.is_equal)
