"""Another server behind the source's address: followed where its history continues what was read, never otherwise.

Three servers replicate in a chain, a to b to c, with an address that can be led to each of them. Index tables and
offsets are on a fourth.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stack.mysql
from stack import Server
from tests.support.asking import ask
from tests.support.following import Following, following
from tests.support.running import wait_for


class Node:
    """One server of the chain."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return ask(self.server, query)

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.rows(statement)

    def replicate(self, other: Node) -> None:
        self.execute(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {other.server.port}, "
            "SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, "
            "SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 1000",
            "START REPLICA",
        )

    def promote(self) -> None:
        self.execute("STOP REPLICA", "RESET REPLICA ALL")

    def has_all_of(self, other: Node) -> None:
        executed = other.rows("SELECT @@GLOBAL.gtid_executed")[0][0].replace("\n", "")
        found = self.rows(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', 20)")
        assert found == [(0,)], self.rows("SHOW REPLICA STATUS")

    def purge(self) -> None:
        self.execute("FLUSH BINARY LOGS")
        self.execute(f"PURGE BINARY LOGS TO '{self.rows('SHOW BINARY LOGS')[-1][0]}'")


class Chain:
    """The servers, and a run that follows the first of them to begin with."""

    def __init__(self, servers: list[Server], following: Following) -> None:
        self.a, self.b, self.c = map(Node, servers)
        self.proxy, self.run = following.proxy, following.run
        self.emails, self.epoch = following.shown, following.epoch
        self.error, self.is_filled = following.error, following.is_filled
        self._following = following

    def equals(self, node: Node) -> bool:
        return self._following.equals(node.server)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("chain")
    started = [
        stack.mysql.start(folder / name, options=[f"--server-id={number}"])
        for number, name in enumerate("abc", 11)
    ]
    yield started
    for server in started:
        server.kill()  # replicas take seconds to stop, and nothing of them is kept


@pytest.fixture
def chain(servers: list[Server], mysql_server: Server, tmp_path: Path) -> Iterator[Chain]:
    """A run that follows a, with its view filled."""
    nodes = [Node(server) for server in servers]
    for node in nodes:
        node.server.start()
        node.execute("STOP REPLICA", "RESET REPLICA ALL", "SET GLOBAL super_read_only = OFF")
        for database in ("fail", "viewtail"):
            node.execute(f"DROP DATABASE IF EXISTS {database}")
        node.execute("RESET BINARY LOGS AND GTIDS")
    a, b, c = nodes
    b.replicate(a)
    c.replicate(b)
    a.execute(
        "CREATE DATABASE fail",
        "CREATE TABLE fail.user (id INT PRIMARY KEY, email VARCHAR(60))",
        "INSERT INTO fail.user VALUES (1, 'one'), (2, 'two')",
    )
    with following(servers[0], mysql_server, tmp_path, "fail.user", "email") as followed:
        yield Chain(servers, followed)


def test_a_promoted_replica_is_followed_under_a_new_epoch(chain: Chain) -> None:
    """Its coordinates are others; what it wrote itself before comes too, and what was unread when the old one died."""
    chain.a.execute("UPDATE fail.user SET email = 'read from a' WHERE id = 1")
    wait_for("it is there", lambda: chain.emails()[1] == "read from a")
    assert chain.run.stop() == 0
    chain.b.execute("FLUSH BINARY LOGS", "INSERT INTO fail.user VALUES (50, 'written on b before')")
    chain.a.execute("INSERT INTO fail.user VALUES (3, 'unread')", "DELETE FROM fail.user WHERE id = 2")
    chain.b.has_all_of(chain.a)
    chain.a.server.kill()
    chain.b.promote()
    chain.proxy.lead_to(chain.b.server.port)
    chain.b.execute("UPDATE fail.user SET email = 'by b' WHERE id = 1")
    chain.run.start()
    wait_for("the view equals its table", lambda: chain.equals(chain.b))
    assert chain.epoch() == 2 and len(chain.emails()) == 3

    # Under a running viewtail, to the end of the chain, which never was a replica of the first.
    chain.c.has_all_of(chain.b)
    chain.b.server.kill()
    chain.c.promote()
    chain.proxy.lead_to(chain.c.server.port)
    chain.c.execute("INSERT INTO fail.user VALUES (4, 'by c')")
    wait_for("the view equals its table", lambda: chain.equals(chain.c))
    assert chain.epoch() == 3
    wait_for("all is well", chain.run.is_well)
    assert "filling" not in chain.run.log.partition("another server, whose history continues")[2]

    # And back, to one that caught up meanwhile.
    chain.b.server.start()
    chain.b.replicate(chain.c)
    chain.b.has_all_of(chain.c)
    chain.proxy.lead_to(chain.b.server.port)
    chain.b.execute("INSERT INTO fail.user VALUES (5, 'by b again')")
    wait_for("the view equals its table", lambda: chain.equals(chain.b))
    assert chain.epoch() == 4


def test_a_replica_that_lacks_what_was_read_halts_until_it_has_it(chain: Chain) -> None:
    chain.b.has_all_of(chain.a)
    chain.b.execute("STOP REPLICA")
    chain.a.execute("INSERT INTO fail.user VALUES (3, 'not on b')", "DELETE FROM fail.user WHERE id = 2")
    wait_for("it is read", lambda: chain.equals(chain.a))
    before = chain.emails()
    chain.proxy.lead_to(chain.b.server.port)
    chain.b.execute("UPDATE fail.user SET email = 'by b' WHERE id = 1")
    error = wait_for("status says so", chain.error)
    assert "divergent history" in error and "viewtail replay --new-history" in error
    assert "mysql:ix" in error, "the views that need it are named"
    assert chain.emails() == before and chain.epoch() == 1
    chain.b.execute("START REPLICA")
    wait_for("the view equals its table", lambda: chain.equals(chain.b))
    assert chain.epoch() == 2
    wait_for("all is well", chain.run.is_well)


def test_a_replica_that_purged_what_was_not_read_halts_until_a_new_history_is_begun(chain: Chain) -> None:
    assert chain.run.stop() == 0
    chain.a.execute("UPDATE fail.user SET email = 'missed' WHERE id = 1")
    chain.b.has_all_of(chain.a)
    chain.b.promote()
    chain.b.purge()
    chain.proxy.lead_to(chain.b.server.port)
    chain.b.execute("INSERT INTO fail.user VALUES (3, 'by b')")
    chain.run.start()
    error = wait_for("status says so", chain.error)
    assert "history gone" in error and "mysql:ix" in error
    assert chain.emails() == {1: "one", 2: "two"}, "nothing jumps over the missing change"
    begun = chain.run.command("replay", "--new-history")
    assert begun.returncode == 0, begun.stderr
    wait_for("the view equals its table", lambda: chain.equals(chain.b))


def test_a_server_that_gets_another_identity_is_followed(chain: Chain) -> None:
    """auto.cnf was removed: the same binlogs, another server_uuid."""
    server = chain.a.server
    server.stop()
    (server.directory / "data" / "auto.cnf").unlink()
    server.start()
    chain.a.execute("INSERT INTO fail.user VALUES (3, 'under another identity')")
    wait_for("the view equals its table", lambda: chain.equals(chain.a))
    assert chain.epoch() == 2


def test_a_statement_that_took_rows_away_is_compared_with_no_other_server(chain: Chain) -> None:
    """The dump is still of the old server when the session for the absent keys reaches one that has them yet."""
    chain.a.execute(
        "ALTER TABLE fail.user PARTITION BY RANGE (id) "
        "(PARTITION low VALUES LESS THAN (2), PARTITION high VALUES LESS THAN MAXVALUE)"
    )
    chain.b.has_all_of(chain.a)
    chain.b.execute("STOP REPLICA")
    chain.proxy.lead_new_to(chain.b.server.port)
    chain.a.execute(
        "ALTER TABLE fail.user DROP PARTITION low", "INSERT INTO fail.user VALUES (3, 'behind it')"
    )
    wait_for("the other server is noticed", lambda: "leads to another server" in chain.run.log)
    chain.b.execute("START REPLICA")
    wait_for("the view equals its table", lambda: chain.equals(chain.b) and set(chain.emails()) == {2, 3})
    assert chain.epoch() == 2
    wait_for("all is well", chain.run.is_well)


def test_a_fill_reads_no_other_server_than_the_dump(chain: Chain) -> None:
    """It meets the new one first; the pipeline decides what that means, and then the fill goes on by itself."""
    assert chain.run.stop() == 0
    chain.run.start(VIEWTAIL_SOURCE__PRIMARY_URL=chain.a.server.url)
    wait_for("all is well", chain.run.is_well)
    chain.b.has_all_of(chain.a)
    chain.b.execute("UPDATE fail.user SET email = 'only on b' WHERE id = 1")
    chain.proxy.lead_new_to(chain.b.server.port)
    assert chain.run.command("replay", "ix").returncode == 0
    wait_for("a row of b is there", lambda: chain.emails()[1] == "only on b")
    assert chain.epoch() == 2, "under the history of the server that has it"
    wait_for("the view is filled", lambda: chain.is_filled() and chain.equals(chain.b))
    wait_for("all is well", chain.run.is_well)
