"""Whoever asks is told soon, and why: of servers that hang, that take no writes, and of ports where something else is.

Probes are answered within 2 s, requests and commands within 10 s for each server; a command's own start and a busy
machine are allowed for.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import stack.mysql
import stack.redis
from stack import Server
from tests.support.asking import ask
from tests.support.forked import Background, clean_environment
from tests.support.serving import TABLE, Served
from viewtail import Entity, IndexTable, wait_for
from viewtail.changes.errors import SourceUnavailableError, StoreUnavailableError
from viewtail.servers.patience import QUESTION
from viewtail.servers.sessions import MySQLAddress, asking, open_session, value_of
from viewtail.settings import load

PROBE_S, ANSWER_S = 2.0, 10.0
SLACK_S = 1.0  # for the way there and back
START_S = 25.0  # of some processes, on a busy machine; what hung before hung for a minute and more
VIEWS = """
from viewtail import Entity, IndexTable, RedisHash, RedisSet, SearchIndex, Topic

item = Entity("shop.item")
views = [IndexTable("ix", item, value="name"), RedisHash("item", item, fields=["name"])]
views += [RedisSet("tagged", item, key="of:{name}")]
"""
WITH_ALL = """
views += [SearchIndex("items", item, fields={"name": "keyword"}), Topic("shop.item", item)]
"""


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port where each connection gets that."""
    held: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                return
            held.append(connection)
            threading.Thread(target=_answered, args=(answer, connection), daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    for one in held:
        one.close()


def _answered(answer: Callable[[socket.socket], None], connection: socket.socket) -> None:
    try:
        answer(connection)
    except OSError:  # who asked went away
        pass


def silent(connection: socket.socket) -> None:
    """Says nothing, whatever it is told."""


def of_ssh(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")


def of_http(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    connection.close()


class Done(NamedTuple):
    """Of a command."""

    out: str
    err: str
    code: int | None
    took_s: float

    def finding(self, where: str) -> str:
        """What check says of a server that it could not look at."""
        findings = json.loads(self.out)["findings"]
        (found,) = (one for one in findings if (one["where"], one["what"]) == (where, "reachable"))
        assert found["level"] == "fail"
        return f"{found['seen']} | {found['mend']}"


class Deployment:
    """A folder with views.py, in which commands are called."""

    def __init__(self, folder: Path, views: str = VIEWS, **environment: str) -> None:
        self.folder, self.environment = folder, environment
        (folder / "views.py").write_text(views)

    def command(self, *arguments: str, **environment: str) -> Done:
        return self.commands(arguments, **environment)[0]

    def commands(self, *commands: Sequence[str], **environment: str) -> list[Done]:
        """All at once: each waits for the same server."""
        env, began = {**clean_environment(), **self.environment, **environment}, time.monotonic()
        found = [Background(one, self.folder, env) for one in commands]
        return [_done(one, began) for one in found]


def _done(command: Background, began: float) -> Done:
    out, err = command.communicate(120)
    return Done(out, err, command.returncode, time.monotonic() - began)


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    """It hangs, and its port takes connections."""
    assert server.pid is not None
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = stack.mysql.start(tmp_path_factory.mktemp("bounded") / "mysql")
    ask(started, "CREATE DATABASE shop")
    ask(started, "CREATE TABLE shop.item (id INT PRIMARY KEY, name VARCHAR(20))")
    yield started
    started.kill()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = stack.redis.start(tmp_path_factory.mktemp("bounded") / "redis")
    yield started
    started.kill()


@pytest.fixture(scope="module")
def deployed(mysql: Server, redis: Server, tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(
        tmp_path_factory.mktemp("deployed"),
        VIEWTAIL_SOURCE__URL=f"mysql://root@127.0.0.1:{mysql.port}",
        VIEWTAIL_REDIS__URL=f"redis://127.0.0.1:{redis.port}",
    )


@pytest.fixture(scope="module")
def served(mysql: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("serve"), mysql.port)
    assert found.command("entities", "create").returncode == 0
    found.start()
    yield found
    found.kill()


def timed(ask_it: Callable[[], object]) -> float:
    began = time.monotonic()
    ask_it()
    return time.monotonic() - began


@pytest.mark.mysql
def test_probes_and_requests_are_answered_in_time_while_mysql_hangs(mysql: Server, served: Served) -> None:
    assert served.post("ada", "deposit", "1", amount=5).status == 200
    with stopped(mysql):
        time.sleep(1.1)  # what /readyz found before is forgotten
        took_s = timed(lambda: served.ask("GET", "/readyz"))
        ready = served.ask("GET", "/readyz")
        assert took_s < PROBE_S + SLACK_S and (ready.status, ready.body["silent"]) == (503, [TABLE])
        assert timed(lambda: served.ask("GET", "/livez")) < SLACK_S
        began = time.monotonic()
        read = served.ask("GET", f"/{TABLE}/ada")
        assert time.monotonic() - began < ANSWER_S + SLACK_S
        assert (read.status, read.kind) == (503, "unavailable")
        assert read.body["detail"] == "the store does not answer. Ask again, later"
        began = time.monotonic()
        sent = served.post("ada", "deposit", "2", amount=7)
        assert time.monotonic() - began < ANSWER_S + SLACK_S
        assert (sent.status, sent.kind) == (503, "unavailable")
        for says in ("is not known", "again under its Idempotency-Key", "takes effect once"):
            assert says in sent.body["detail"]
    assert served.post("ada", "deposit", "2", amount=7).body["response"] == {"balance": 12}
    assert served.ask("GET", f"/{TABLE}/ada").body == {"state": {"balance": 12}, "version": "2"}
    assert "stopped answering" in served.log or "said nothing within" in served.log


@contextmanager
def is_on(mysql: Server, variable: str) -> Iterator[None]:
    ask(mysql, f"SET GLOBAL {variable} = ON")
    try:
        yield
    finally:
        for name in (variable, "read_only"):  # which super_read_only turns on too
            ask(mysql, f"SET GLOBAL {name} = OFF")


@pytest.mark.mysql
@pytest.mark.parametrize("variable", ["super_read_only", "transaction_read_only"])
def test_a_command_to_a_server_that_takes_no_writes_is_told_the_variable(
    mysql: Server, tmp_path: Path, served: Served, variable: str
) -> None:
    other = Served(tmp_path, mysql.port)
    try:
        with is_on(mysql, variable):
            other.start()  # a session begins with the server's default
            began = time.monotonic()
            sent = other.post("readonly", "deposit", variable, amount=7)
            assert time.monotonic() - began < ANSWER_S + SLACK_S
        assert (sent.status, sent.kind) == (503, "unavailable")
        assert sent.body["detail"].startswith(f"the store takes no writes now: {variable} is ON there. ")
        assert f"SET GLOBAL {variable} = OFF" in other.log
        assert other.post("readonly", "deposit", variable, amount=7).status == 200
    finally:
        other.kill()


@pytest.mark.mysql
@pytest.mark.redis
@pytest.mark.parametrize("variable", ["super_read_only", "read_only"])
def test_check_names_the_variable_of_a_server_that_takes_no_writes(
    mysql: Server, deployed: Deployment, variable: str
) -> None:
    with is_on(mysql, variable):
        done = deployed.command("check", "--json")
    said = [one for one in json.loads(done.out)["findings"] if one["what"] in ("primary is writable", "writable")]
    assert done.code == 1 and len(said) == 2
    for one in said:
        assert f": {variable} is ON" in one["seen"] and f"SET GLOBAL {variable} = OFF" in one["mend"]


@pytest.mark.mysql
@pytest.mark.redis
@pytest.mark.parametrize(
    "words",
    [
        "check --json, status, get ix 1, find ix a, why ix 1",
        "init --force, contract check add.sql, preview ix, pause ix, resume --all, replays",
        "dead-letters list, dead-letters redrive ix 1, forget gone --yes, forget shop.item 1, wait ix --within 5",
        "replay ix --yes, replay ix --key 1, verify ix, rebuild ix --yes, schema ix, pause --all",
    ],
)
def test_commands_say_within_ten_seconds_that_mysql_hangs(mysql: Server, deployed: Deployment, words: str) -> None:
    (deployed.folder / "add.sql").write_text("ALTER TABLE shop.item ADD note INT;")
    with stopped(mysql):
        found = deployed.commands(*(one.split() for one in words.split(", ")))
    for done in found:
        said = done.out + done.err
        assert done.code == 1 and done.took_s < ANSWER_S + START_S
        assert "said nothing within 4 s: the server hangs" in said and f"127.0.0.1:{mysql.port}" in said


@pytest.mark.mysql
@pytest.mark.redis
def test_commands_say_within_ten_seconds_that_redis_hangs(redis: Server, deployed: Deployment) -> None:
    with stopped(redis):
        found = deployed.commands(*(one.split() for one in ("check --json", "get item 1", "find tagged a")))
    for done in found:
        assert done.code == 1 and done.took_s < ANSWER_S + START_S
        assert f"Redis at 127.0.0.1:{redis.port}" in done.out + done.err


@pytest.mark.mysql
def test_a_question_that_takes_too_long_is_given_up_and_says_so(mysql: Server) -> None:
    address = MySQLAddress(host="127.0.0.1", port=mysql.port, user="root", io_timeout_s=0.5, silent={})
    with pytest.raises(StoreUnavailableError, match=r"it stopped answering: nothing came within 0\.5 s"):  # noqa: SIM117
        with asking(address, role="store") as session, session.cursor() as cursor:
            cursor.execute("SELECT SLEEP(5)")
    with asking(address, role="store") as session:
        assert value_of(session, "SELECT 1") == 1, "the server is not silent: that one statement takes long"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (silent, "said nothing within 4 s: the server hangs, or another program listens at that port"),
        (of_http, "said nothing within 4 s: the server hangs, or another program listens at that port"),
        (of_ssh, "does not speak MySQL's protocol"),
        (lambda connection: connection.close(), "closed the connection before the login"),
    ],
    ids=["nothing", "http", "ssh", "closes"],
)
def test_check_says_within_ten_seconds_that_a_port_does_not_speak_mysql(
    tmp_path: Path, answer: Callable[[socket.socket], None], says: str
) -> None:
    deployment = Deployment(tmp_path, VIEWTAIL_REDIS__URL="redis://127.0.0.1:1")
    with listening(answer) as port:
        done = deployment.command("check", "--json", VIEWTAIL_SOURCE__URL=f"mysql://root@127.0.0.1:{port}")
    assert done.code == 1 and done.took_s < ANSWER_S + START_S
    said = done.finding("source")
    assert says in said and f"127.0.0.1:{port}" in said


def test_init_says_within_ten_seconds_that_a_port_does_not_speak_mysql(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    with listening(silent) as port:
        done = deployment.command("init", "--force", "--source", f"mysql://root@127.0.0.1:{port}")
    assert done.code == 1 and done.took_s < ANSWER_S + START_S
    assert f"127.0.0.1:{port}" in done.err and "said nothing within 4 s: the server hangs, or another" in done.err


@pytest.mark.mysql
def test_a_wait_ends_about_when_it_should_where_mysql_hangs(mysql: Server, deployed: Deployment) -> None:
    settings = load(None, deployed.environment)
    view = IndexTable("ix", Entity("shop.item"), value="name")
    with stopped(mysql):
        began = time.monotonic()
        with pytest.raises(SourceUnavailableError, match=rf"127\.0\.0\.1:{mysql.port}.*said nothing within 1\.5 s"):
            wait_for(view, within_s=1.5, settings=settings)
        assert time.monotonic() - began < 1.5 + SLACK_S


@pytest.mark.redis
def test_check_says_that_redis_is_no_mysql(redis: Server, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, VIEWTAIL_REDIS__URL=f"redis://127.0.0.1:{redis.port}")
    done = deployment.command("check", "--json", VIEWTAIL_SOURCE__URL=f"mysql://root@127.0.0.1:{redis.port}")
    assert done.took_s < ANSWER_S + START_S
    assert "another program listens at that port" in done.finding("source")


@pytest.mark.parametrize(
    ("host", "says"),
    [("no-such-host.invalid", "no DNS answer for that host name"), ("127.0.0.1:1", "nothing listens there")],
)
def test_check_says_what_is_wrong_with_an_address(tmp_path: Path, host: str, says: str) -> None:
    deployment = Deployment(tmp_path, VIEWTAIL_REDIS__URL="redis://127.0.0.1:1")
    done = deployment.command("check", "--json", VIEWTAIL_SOURCE__URL=f"mysql://root@{host}")
    assert done.took_s < ANSWER_S + START_S and says in done.finding("source")


def test_an_address_that_takes_no_connection_is_given_up_soon_and_asked_once() -> None:
    with closing(socket.socket()) as full:  # nothing accepts: the kernel leaves the next connections without an answer
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        address = MySQLAddress(host="127.0.0.1", port=port, user="u", connect_timeout_s=QUESTION.connect_s, silent={})
        for within_s in (QUESTION.connect_s + SLACK_S, 0.1):
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError, match=r"no connection within 3 s.*firewall"):
                open_session(address, role="store")
            assert time.monotonic() - began < within_s
        for one in waiting:
            one.close()


def test_a_resolver_that_says_nothing_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(30))
    address = MySQLAddress(host="db.example", user="u", connect_timeout_s=0.3, silent={})
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=r"no DNS answer for that host name within 0\.3 s"):
        open_session(address, role="store")
    assert time.monotonic() - began < SLACK_S
    over.set()


@pytest.mark.mysql
@pytest.mark.parametrize("answer", [silent, of_ssh, lambda connection: connection.close()], ids=["no", "ssh", "closes"])
def test_check_gives_each_store_ten_seconds_and_names_its_address(
    mysql: Server, tmp_path: Path, answer: Callable[[socket.socket], None]
) -> None:
    deployment = Deployment(tmp_path, VIEWS + WITH_ALL, VIEWTAIL_SOURCE__URL=f"mysql://root@127.0.0.1:{mysql.port}")
    with listening(answer) as port:
        at = f"127.0.0.1:{port}"
        done = deployment.command(
            "check",
            "--json",
            VIEWTAIL_REDIS__URL=f"redis://{at}",
            VIEWTAIL_ELASTICSEARCH__URL=f"http://{at}",
            VIEWTAIL_KAFKA__URL=f"kafka://{at}",
        )
    assert done.code == 1 and done.took_s < 3 * ANSWER_S + START_S
    for store in ("redis", "elasticsearch", "kafka"):
        said = done.finding(store)
        assert at in said, said


MANY = """
views += [RedisHash(f"item_{at}", item, fields=["name"]) for at in range(9)]
views += [SearchIndex(f"items_{at}", item, fields={"name": "keyword"}) for at in range(9)]
"""


@pytest.mark.mysql
def test_check_waits_for_a_store_that_hangs_once_and_not_for_each_of_its_views(mysql: Server, tmp_path: Path) -> None:
    views = VIEWS + WITH_ALL + MANY
    deployment = Deployment(tmp_path, views, VIEWTAIL_SOURCE__URL=f"mysql://root@127.0.0.1:{mysql.port}")
    connections: list[socket.socket] = []
    with listening(connections.append) as port:
        done = deployment.command(
            "check",
            "--json",
            VIEWTAIL_REDIS__URL=f"redis://127.0.0.1:{port}",
            VIEWTAIL_ELASTICSEARCH__URL=f"http://127.0.0.1:{port}",
            VIEWTAIL_KAFKA__URL="kafka://127.0.0.1:1",
        )
    assert done.code == 1 and done.took_s < 3 * ANSWER_S + START_S
    assert len(connections) == 2, "one for each of both stores, whatever views it has"
    for store in ("redis", "elasticsearch"):
        assert f"127.0.0.1:{port}" in done.finding(store)
