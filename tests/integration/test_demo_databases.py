"""The databases that the demo makes on servers of a user: each of them goes, and no other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.running import wait_for
from viewtail.demo import given
from viewtail.demo.place import Place
from viewtail.demo.process import DemoError
from viewtail.demo.rows import load

STORES = frozenset({"redis", "elasticsearch", "kafka"})


@pytest.fixture
def apart(
    mysql_server: Server, mariadb_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """The rows on one server, viewtail's own tables on another."""
    monkeypatch.setenv("VIEWTAIL_SOURCE__URL", mysql_server.url)
    monkeypatch.setenv("VIEWTAIL_MYSQL__URL", mariadb_server.url)
    yield given.place(tmp_path, None, STORES)
    for server in (mysql_server, mariadb_server):
        for name in (given.NAMES.rows, given.NAMES.own):
            ask(server, f"DROP DATABASE IF EXISTS {name}")


def databases(server: Server) -> set[str]:
    return {str(name) for (name,) in ask(server, "SHOW DATABASES LIKE 'viewtail\\_demo%'")}


def test_what_is_made_on_two_servers_goes_from_both(apart: Place, mysql_server: Server, mariadb_server: Server) -> None:
    with given.databases(apart):
        assert databases(mysql_server) == {"viewtail_demo", "viewtail_demo_views"}, "the latter has the watermarks"
        assert databases(mariadb_server) == {"viewtail_demo_views"}
    assert databases(mysql_server) == databases(mariadb_server) == set()


@pytest.mark.parametrize("name", ["viewtail_demo", "viewtail_demo_views"])
def test_a_database_of_the_user_where_the_demo_would_write_is_refused_and_left(
    apart: Place, mysql_server: Server, mariadb_server: Server, name: str
) -> None:
    ask(mysql_server, f"CREATE DATABASE {name}")
    with pytest.raises(DemoError, match="did not make it: nothing was touched"), given.databases(apart):
        pass
    assert databases(mysql_server) == {name} and databases(mariadb_server) == set()


def test_a_database_that_somebody_makes_meanwhile_is_left(
    apart: Place, mysql_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = given._execute

    def beside(session: object, statement: str) -> None:
        if statement.startswith("CREATE DATABASE viewtail_demo_views"):
            ask(mysql_server, "CREATE DATABASE viewtail_demo_views")
            ask(mysql_server, "CREATE TABLE viewtail_demo_views.kept (id INT)")
        execute(session, statement)  # type: ignore[arg-type]

    monkeypatch.setattr(given, "_execute", beside)
    with pytest.raises(Exception, match="database exists"), given.databases(apart):
        pass
    assert ask(mysql_server, "SHOW TABLES FROM viewtail_demo_views") == [("kept",)]
    assert databases(mysql_server) == {"viewtail_demo_views"}


@pytest.fixture
def keys(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    monkeypatch.setenv("VIEWTAIL_REDIS__URL", redis_server.url)
    with closing(redis.Redis(port=redis_server.port, single_connection_client=True)) as client:
        yield client
        client.config_set("requirepass", "")


def play(place: Place, rows: object, keys: redis.Redis) -> None:
    load(rows, place.names.rows)  # type: ignore[arg-type]
    place.declare()
    run = place.start(stays=False)
    try:
        wait_for("the view is filled", lambda: len({*keys.scan_iter("viewtail_demo_city:*")}) == 300)
    finally:
        assert run.stop() == 0


def test_what_a_store_that_does_not_answer_keeps_is_found_again(
    apart: Place, mysql_server: Server, mariadb_server: Server, keys: redis.Redis
) -> None:
    place = given.place(apart.folder, None, STORES - {"redis"})
    before = {*keys.scan_iter()}
    with given.databases(place) as rows:
        play(place, rows, keys)
    assert {*keys.scan_iter()} == before and databases(mariadb_server) == set()

    def refusing() -> None:
        with given.databases(place) as rows:
            play(place, rows, keys)
            keys.config_set("requirepass", "another")

    with pytest.raises(DemoError, match="run `viewtail demo` again") as raised:
        refusing()
    assert "\n  Redis: " in str(raised.value) and "MySQL" not in str(raised.value)
    assert databases(mysql_server) == databases(mariadb_server) == {"viewtail_demo_views"}
    with pytest.raises(DemoError, match="Redis: "), given.databases(place):
        pass  # it plays nothing meanwhile
    keys.config_set("requirepass", "")
    with given.databases(given.place(apart.folder, None, STORES)):  # it leaves Redis out
        assert {*keys.scan_iter()} == before
    assert databases(mysql_server) == databases(mariadb_server) == set()


def test_two_demos_whose_own_tables_are_on_one_server_are_not_played_at_once(
    apart: Place, tmp_path: Path, mariadb_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIEWTAIL_SOURCE__URL", mariadb_server.url)
    other = given.place(tmp_path, None, STORES)
    with ExitStack() as playing:
        playing.enter_context(given.databases(apart))
        with pytest.raises(DemoError, match="another `viewtail demo`"), given.databases(other):
            pass
        assert databases(mariadb_server) == {"viewtail_demo_views"}


def test_servers_that_end_idle_sessions_soon_do_not_end_the_demos_and_what_they_end_keeps_nothing_there(
    apart: Place, mysql_server: Server, mariadb_server: Server
) -> None:
    for server in (mysql_server, mariadb_server):
        ask(server, "SET GLOBAL wait_timeout = 1")
    try:
        with given.databases(apart) as rows:
            time.sleep(2.5)
            assert rows.query("SELECT 1"), "a person read for longer than the server waits"
            ask(mysql_server, f"KILL {rows.thread_id()}")
    finally:
        for server in (mysql_server, mariadb_server):
            ask(server, "SET GLOBAL wait_timeout = DEFAULT")
    assert databases(mysql_server) == databases(mariadb_server) == set()
