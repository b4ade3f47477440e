"""`viewtail status --watch` on a terminal, beside a real run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pymysql
import pytest

import stack.mysql
import stack.redis
from stack import Server
from tests.support.drawn_terminal import Terminal
from tests.support.running import Run, addresses, clean_environment, wait_for
from viewtail.operations import status
from viewtail.servers.sessions import MySQLAddress, asking
from viewtail.sources import read_position

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash

user = Entity("shop.user")
views = [IndexTable(f"user_by_email_{number}", user, value="email") for number in range(30)]
views.append(RedisHash("user", user, fields=["email"]))
"""
TABLES = (
    "DROP DATABASE IF EXISTS viewtail",
    "DROP DATABASE IF EXISTS shop",
    "CREATE DATABASE shop",
    "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(100))",
    "INSERT INTO shop.user VALUES (1, 'ada@example.org'), (2, 'grace@example.org')",
)
LEFT_ALONE = "\x1b[?1049l"  # the terminal as it was before
CURSOR_SHOWN = "\x1b[?25h"

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]


class Shop:
    """Servers, a run, and terminals to watch it on."""

    def __init__(self, mysql: Server, redis: Server, folder: Path, at_end: ExitStack) -> None:
        self.mysql, self.redis = mysql, redis
        self.environment = addresses(mysql, redis)
        self._folder, self._at_end = folder, at_end
        self.sql(*TABLES)
        self.run = Run(folder, VIEWS, self.environment)
        at_end.callback(self.run.kill)

    def sql(self, *statements: str) -> None:
        session = pymysql.connect(host=self.mysql.host, port=self.mysql.port, user="root", autocommit=True)
        with closing(session), session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def watch(self, *arguments: str, columns: int = 80, lines: int = 24) -> Terminal:
        argv = [sys.executable, "-m", "viewtail.main", "status", "--watch", "--every", "0.5", *arguments]
        environment = {**clean_environment(), **self.environment}
        terminal = Terminal(argv, self._folder, environment, columns, lines)
        self._at_end.callback(terminal.close)
        return terminal


@pytest.fixture(scope="module")
def own_mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = stack.mysql.start(tmp_path_factory.mktemp("mysql"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def own_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = stack.redis.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def shop(own_mysql: Server, own_redis: Server, tmp_path: Path) -> Iterator[Shop]:
    own_mysql.start()
    own_redis.start()
    with ExitStack() as at_end:
        yield Shop(own_mysql, own_redis, tmp_path, at_end)


def rows(terminal: Terminal, name: str) -> list[list[str]]:
    return [line.split() for line in terminal.screen().splitlines() if line.startswith(f"{name} ")]


def state(terminal: Terminal, pipeline: str) -> str:
    found = rows(terminal, pipeline)
    return found[0][1] if found else ""


def test_it_shows_what_becomes_of_a_run_and_ctrl_c_leaves_the_terminal_as_it_was(shop: Shop) -> None:
    terminal = shop.watch()
    wait_for("it says so", lambda: "viewtail has not run yet" in terminal.screen())
    shop.run.start()
    wait_for("both run", lambda: (state(terminal, "mysql"), state(terminal, "redis")) == ("running", "running"), 40)
    wait_for("what does not fit is counted", lambda: "more views" in terminal.screen())

    shop.redis.stop()
    shop.sql("UPDATE shop.user SET email = 'a@example.org' WHERE id = 1")
    wait_for("redis is away", lambda: state(terminal, "redis") == "retrying")
    wait_for("it is the first", lambda: terminal.screen().index("\nredis ") < terminal.screen().index("\nmysql "))
    assert "pipeline redis: " in terminal.screen()
    shop.redis.start()
    wait_for("redis is back", lambda: state(terminal, "redis") == "running")

    for screen in terminal.screens():
        assert len(screen) <= 24 and all(len(line) <= 80 for line in screen), "\n".join(screen)
    terminal.type(b"\x03")
    assert terminal.end() == 0
    assert "Traceback" not in terminal.output
    assert terminal.output.rindex(LEFT_ALONE) > terminal.output.rindex("\x1b[H")
    assert CURSOR_SHOWN in terminal.output[terminal.output.rindex("\x1b[?25l") :]


def test_mysql_may_go_away_and_the_watch_goes_on_when_it_is_back(shop: Shop) -> None:
    shop.run.start()
    terminal = shop.watch()
    wait_for("it runs", lambda: state(terminal, "mysql") == "running", 40)
    shop.mysql.stop()
    wait_for("it says so", lambda: "MySQL does not answer. What stands below is" in terminal.screen())
    assert "mysql" in terminal.screen()
    shop.mysql.start()
    wait_for("it is back", lambda: "does not answer" not in terminal.screen() and state(terminal, "mysql"))
    wait_for("it runs again", lambda: state(terminal, "mysql") == "running")
    terminal.type(b"\x03")
    assert terminal.end() == 0


def test_a_mysql_that_hangs_does_not_hold_the_screen_or_ctrl_c_up(shop: Shop) -> None:
    shop.run.start()
    terminal = shop.watch()
    wait_for("it runs", lambda: state(terminal, "mysql") == "running", 40)
    shop.mysql.pause()
    try:
        wait_for("it says so", lambda: "MySQL does not answer. What stands below is" in terminal.screen())
        terminal.type(b"\x03")
        assert terminal.end(3) == 0
    finally:
        shop.mysql.resume()
    assert terminal.output.rstrip().endswith((LEFT_ALONE, CURSOR_SHOWN))


def test_it_draws_itself_anew_in_the_size_that_the_terminal_has(shop: Shop) -> None:
    shop.run.start()
    terminal = shop.watch(columns=120, lines=60)
    wait_for("all fit", lambda: len([line for line in terminal.screen().splitlines() if ":user" in line]) == 31)
    terminal.resize(80, 24)
    wait_for("some are left out", lambda: "more views" in terminal.screen())
    shown = terminal.screens()[-1]
    assert len(shown) <= 24 and all(len(line) <= 80 for line in shown)
    terminal.resize(30, 5)
    before = len(terminal.screens())
    wait_for("it goes on", lambda: len(terminal.screens()) > before + 2)
    terminal.process.terminate()
    assert terminal.end() == 0
    assert LEFT_ALONE in terminal.output


def test_where_there_is_no_terminal_it_is_refused(shop: Shop) -> None:
    for arguments, said in (
        (("--watch",), "--watch draws on a terminal"),
        (("--watch", "--json"), "leave --json out"),
        (("--every", "3"), "add --watch"),
        (("--watch", "--every", "0"), "--every"),
    ):
        done = shop.run.command("status", *arguments)
        assert done.returncode == 2, done.stderr
        assert said in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_look_costs_as_many_questions_as_it_says_and_leaves_its_session_open(shop: Shop) -> None:
    shop.run.start()
    wait_for("all is well", shop.run.is_well, 60)
    address = MySQLAddress(host=shop.mysql.host, port=shop.mysql.port, user="root")
    with asking(address, role="store") as connection:

        def questions() -> int:
            with connection.cursor() as cursor:
                cursor.execute("SHOW SESSION STATUS LIKE 'Com_select'")
                return int(cursor.fetchone()[1])

        before = questions()
        assert len(status.read(connection, "viewtail", read_position)) == 2
        assert questions() - before == status.READ_QUERIES

    def sessions() -> int:
        session = pymysql.connect(host=shop.mysql.host, port=shop.mysql.port, user="root", autocommit=True)
        with closing(session), session.cursor() as cursor:
            cursor.execute("SHOW GLOBAL STATUS LIKE 'Connections'")
            return int(cursor.fetchone()[1])

    assert shop.run.stop() == 0
    terminal = shop.watch()
    wait_for("it shows something", lambda: state(terminal, "mysql") == "down")
    before = sessions()
    drawn = len(terminal.screens())
    wait_for("it looked some times more", lambda: len(terminal.screens()) > drawn + 5)
    assert sessions() - before == 1  # the one that asks
    terminal.type(b"\x03")
    assert terminal.end() == 0


def test_the_help_says_what_it_costs(shop: Shop) -> None:
    done = shop.run.command("status", "--help")
    assert "six questions each time" in " ".join(done.stdout.split())
    assert status.READ_QUERIES == 6
