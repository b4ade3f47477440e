"""Every command, where `viewtail run` was killed and where MySQL is gone: it ends soon, and says what is the matter.

The commands are those that the command line names: a new one fails here until ARGUMENTS says how it is called.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator

import pymysql
import pytest
import typer.main

from stack import Server
from stack.server import free_port
from tests.support import forked
from tests.support.running import Run, addresses, wait_for
from viewtail.main import app
from viewtail.signals import EXIT_STOPPED

pytestmark = [pytest.mark.mysql, pytest.mark.redis]

SCHEMA, STORE = "killed_shop", "killed_views"
WITHIN_S = 15.0  # where nothing listens a command says so at once; on a busy machine that may take seconds
VIEWS = f"""
from viewtail import Entity, IndexTable, RedisHash

user = Entity("{SCHEMA}.user")
views = [
    IndexTable("by_email", user, value="email"),
    RedisHash("person", user, fields=["email"]),
]
"""
ENTITIES = f"""
from viewtail.entities import EventSourced

entities = [EventSourced("{SCHEMA}.account_event", {{"deposit": lambda state, request: (state, request)}})]
"""
# By command, the ways to call it. {since} is a moment ago.
ARGUMENTS: dict[str, list[str]] = {
    "demo": ["--keep --yes", "--print-compose"],  # played to its end in test_demo.py
    "init": ["--config first.toml --force"],
    "check": ["", "--json", "--print-grants", "--people", "--notify"],
    "status": ["", "--json"],
    "get": ["by_email 1", "person 1 --json"],
    "find": ["by_email a@example.org"],
    "search": ["by_email machine"],
    "schema": ["by_email"],
    "replays": ["", "--json"],
    "wait": ["by_email --within 1"],
    "why": ["by_email 1", "person 1 --json"],
    "verify": ["", "by_email --sample 50 --json"],
    "replay": ["by_email --dry-run", "person --key 1 --yes", "by_email --since {since} --dry-run", "--new-history"],
    "preview": ["by_email"],
    "pause": ["by_email", "--all"],
    "resume": ["by_email", "--all"],
    "dead-letters list": [""],
    "dead-letters show": ["by_email 1"],
    "dead-letters redrive": ["by_email", "--all --yes"],
    "dead-letters drop": ["by_email 1 --yes"],
    "contract check": ["migration.sql", "migration.sql --offline"],
    "lint": ["", "migration.sql --json"],
    "audit": ["by_email", "person --json"],
    "adopt": ["person", "person --dry-run"],
    "cutover": ["by_email", "by_email --go --within 1s", "by_email --abort"],
    "forget": ["by_email --yes", f"{SCHEMA}.user 99 --timeout 1"],
    "archive": [f"{SCHEMA}.account_event --older-than 30d --yes"],
    "restore": [f"{SCHEMA}.account_event --all --yes"],
    "entities create": ["", "--print-sql"],
    "rebuild": ["by_email --within 1", "by_email --abort --yes --within 1", "by_email --rollback --within 1"],
    "switch": ["--to poll --within 1", "--to binlog --within 1"],
    # These go on until they are stopped, and `run` ends that the deployment is a killed one.
    "entities consume": [""],
    "serve": ["--port 0"],
    "console": ["--port 0"],
    "run": [""],
}
ENDLESS = frozenset({"entities consume", "serve", "console", "run"})
# It says what it waits for, a `viewtail run`, and waits until it is stopped.
AWAITS_A_RUN = ("replay", "person --key 1 --yes")


def named() -> list[str]:
    """The commands as the command line names them."""

    def below(command: object, name: str) -> Iterator[str]:
        commands = getattr(command, "commands", None)
        if commands is None:
            yield name
            return
        for word, inner in commands.items():
            yield from below(inner, f"{name} {word}".strip())

    return list(below(typer.main.get_command(app), ""))


CALLS = [(name, words) for name, calls in ARGUMENTS.items() for words in calls]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, mysql_server: Server, redis_server: Server) -> Iterator[Run]:
    """A deployment that ran with filled views, and whose processes were killed."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "entities.py").write_text(ENTITIES)
    (folder / "migration.sql").write_text(f"ALTER TABLE {SCHEMA}.user DROP COLUMN email;\n")
    with connected(mysql_server) as cursor:
        cursor.execute(f"CREATE DATABASE {SCHEMA}")
        cursor.execute(f"CREATE TABLE {SCHEMA}.user (id INT PRIMARY KEY, email VARCHAR(50))")
        cursor.execute(f"INSERT INTO {SCHEMA}.user VALUES (1, 'a@example.org'), (2, 'b@example.org')")
    environment = addresses(mysql_server, redis_server)
    environment["VIEWTAIL_MYSQL__URL"] = f"{mysql_server.url}/{STORE}"
    run = Run(folder, VIEWS, environment)
    run.start()
    try:
        wait_for("filled views", run.is_filled)
    finally:
        run.kill()
    yield run
    with connected(mysql_server) as cursor:
        for database in (SCHEMA, STORE):
            cursor.execute(f"DROP DATABASE IF EXISTS {database}")


@pytest.fixture(scope="module")
def without_mysql(killed: Run) -> Run:
    """The same deployment, where nothing listens at MySQL's address any more."""
    url = f"mysql://root@127.0.0.1:{free_port()}"
    there = {"VIEWTAIL_SOURCE__URL": url, "VIEWTAIL_MYSQL__URL": f"{url}/{STORE}"}
    return Run(killed.folder, VIEWS, {**killed.environment(), **there})


def connected(server: Server) -> pymysql.cursors.Cursor:
    return pymysql.connect(host=server.host, port=server.port, user="root", autocommit=True).cursor()


def called(run: Run, name: str, words: str) -> subprocess.CompletedProcess[str]:
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - 5))  # other tests write to the server, too
    arguments = [*name.split(), *words.format(since=since).split()]
    # `init` writes a views.py of its own.
    environment = {**run.environment(), **({"VIEWTAIL_VIEWS": "first:views"} if name == "init" else {})}
    if name not in ENDLESS and (name, words) != AWAITS_A_RUN:
        return forked.command(arguments, run.folder, environment, WITHIN_S)
    files = run.folder / "out", run.folder / "errors"
    with files[0].open("w") as out, files[1].open("w") as errors:
        process = forked.begun(arguments, run.folder, environment, out.fileno(), errors.fileno())
        wait_for("a word", lambda: files[1].read_text() or process.poll() is not None, WITHIN_S)
        process.terminate()
        code = process.wait(WITHIN_S)
    return subprocess.CompletedProcess(arguments, code, *(file.read_text() for file in files))


def require_clear(done: subprocess.CompletedProcess[str], name: str) -> None:
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, 2), said
    assert "Traceback" not in said and "a fault in viewtail" not in said, said
    errors = [line for line in done.stderr.splitlines() if line.startswith("viewtail: error: ")]
    assert len(set(errors)) == len(errors), f"said twice: {errors}"
    if done.returncode and name not in ENDLESS:
        assert said.strip(), f"{done.args} says nothing"
    if done.returncode == 2:
        assert errors, said


def test_each_command_that_there_is_is_called() -> None:
    assert sorted(named()) == sorted(ARGUMENTS), "say in ARGUMENTS how a new command is called"


@pytest.mark.parametrize(("name", "words"), CALLS)
def test_where_mysql_is_gone_a_command_says_so_and_ends(without_mysql: Run, name: str, words: str) -> None:
    done = called(without_mysql, name, words)
    require_clear(done, name)


@pytest.mark.parametrize(("name", "words"), CALLS)
def test_where_the_run_was_killed_a_command_ends_with_one_clear_message(killed: Run, name: str, words: str) -> None:
    done = called(killed, name, words)
    if (name, words) == AWAITS_A_RUN:
        assert done.returncode == EXIT_STOPPED and "Start one: viewtail run" in done.stderr, done.stderr
    else:
        require_clear(done, name)


def test_check_says_that_the_binlog_behind_an_offset_is_purged(killed: Run, mysql_server: Server) -> None:
    """Last: the deployment cannot go on after it."""
    killed.start()  # a command may have begun a new history, which needs no offset
    try:
        wait_for("filled views", killed.is_filled)
    finally:
        killed.kill()
    with connected(mysql_server) as cursor:
        cursor.execute(f"INSERT INTO {SCHEMA}.user VALUES (3, 'c@example.org')")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        last = cursor.fetchall()[-1]
        cursor.execute("PURGE BINARY LOGS TO %s", (last[0],))  # type: ignore[index]
    done = killed.command("check")
    assert done.returncode == 1, done.stdout
    for pipeline in ("mysql", "redis"):
        assert f"fail: source, offset of {pipeline}: history gone: " in done.stdout, done.stdout
