"""Another server behind the source's address: followed where its history continues what was read, never otherwise.

Three servers replicate in a chain, a to b to c, with an address that can be led to each of them. Index tables and
offsets are on a fourth.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis

import stack.mysql
from stack import Server
from tests.support.following import Following, following
from tests.support.proxy import Proxy
from tests.support.replication import Node
from tests.support.running import Run, running, wait_for


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
        stack.mysql.start(folder / name, options=[f"--server-id={number}"]) for number, name in enumerate("abc", 11)
    ]
    yield started
    for server in started:
        server.kill()  # replicas take seconds to stop, and nothing of them is kept


@pytest.fixture
def nodes(servers: list[Server]) -> list[Node]:
    """a with two rows, b that replicates it, c that replicates b."""
    nodes = [Node(server) for server in servers]
    for node in nodes:
        node.begin_anew("fail", "viewtail")
    a, b, c = nodes
    b.replicate(a)
    c.replicate(b)
    a.execute(
        "CREATE DATABASE fail",
        "CREATE TABLE fail.user (id INT PRIMARY KEY, email VARCHAR(60))",
        "INSERT INTO fail.user VALUES (1, 'one'), (2, 'two')",
    )
    return nodes


@pytest.fixture
def chain(nodes: list[Node], servers: list[Server], mysql_server: Server, tmp_path: Path) -> Iterator[Chain]:
    """A run that follows a, with its view filled."""
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
    chain.a.execute("ALTER TABLE fail.user DROP PARTITION low", "INSERT INTO fail.user VALUES (3, 'behind it')")
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
    assert chain.run.command("replay", "--yes", "ix").returncode == 0
    wait_for("a row of b is there", lambda: chain.emails()[1] == "only on b")
    assert chain.epoch() == 2, "under the history of the server that has it"
    wait_for("the view is filled", lambda: chain.is_filled() and chain.equals(chain.b))
    wait_for("all is well", chain.run.is_well)


# -- offsets on the source itself: each server has its own copy of them, and counts epochs by itself ------------------


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A run whose offsets are on the source, and what its Redis shows."""

    proxy: Proxy
    run: Run
    redis: Any

    def shown(self) -> dict[int, str]:
        keys = sorted(self.redis.scan_iter("user:*"))
        return {int(key.partition(":")[2]): self.redis.hget(key, "email") for key in keys}

    def equals(self, node: Node) -> bool:
        return self.shown() == dict(node.rows("SELECT id, email FROM fail.user"))  # type: ignore[arg-type]

    def error(self) -> str:
        (pipeline,) = json.loads(self.run.command("status", "--json").stdout)["pipelines"]
        return str(pipeline["error"]) if pipeline["state"] == "halted" else ""


@pytest.fixture
def beside(nodes: list[Node], redis_server: Server, tmp_path: Path) -> Iterator[Beside]:
    client: Any = redis.Redis(port=redis_server.port, decode_responses=True)
    client.flushall()
    views = (
        'from viewtail import Entity, RedisHash\nviews = [RedisHash("user", Entity("fail.user"), fields=["email"])]\n'
    )
    with Proxy(nodes[0].server.port) as proxy:
        environment = {
            "VIEWTAIL_SOURCE__URL": f"mysql://root@127.0.0.1:{proxy.port}",
            "VIEWTAIL_SOURCE__HEARTBEAT_S": "0.5",
            "VIEWTAIL_REDIS__URL": redis_server.url,
            "VIEWTAIL_METRICS__PORT": "0",
        }
        with running(tmp_path, views, environment) as run:
            made = Beside(proxy=proxy, run=run, redis=client)
            wait_for("the view is filled", lambda: made.equals(nodes[0]) and run.is_well())
            yield made
    client.close()


def test_a_second_failover_to_a_server_that_lacks_what_the_first_one_wrote_halts(
    nodes: list[Node], beside: Beside
) -> None:
    """Its epoch is the same number, and its binlog may be longer: neither says that it continues what Redis shows."""
    a, b, c = nodes
    c.has_all_of(a)
    c.promote()
    a.execute("UPDATE fail.user SET email = 'after c stopped' WHERE id = 1")
    wait_for("it is read", lambda: beside.equals(a))
    b.has_all_of(a)
    b.promote()
    beside.proxy.lead_to(c.server.port)
    assert "divergent history" in wait_for("status says so", beside.error)
    beside.proxy.lead_to(b.server.port)
    b.execute("UPDATE fail.user SET email = 'by b' WHERE id = 2")
    wait_for("b is followed", lambda: beside.equals(b))
    before = beside.shown()
    for number in range(10, 300):  # c's binlog is longer than b's
        c.execute(f"INSERT INTO fail.user VALUES ({number}, 'only on c')")
    beside.proxy.lead_to(c.server.port)
    error = wait_for("status says so", beside.error)
    assert "divergent history" in error and "viewtail replay --new-history" in error
    assert beside.shown() == before
    beside.proxy.lead_to(b.server.port)
    b.execute("UPDATE fail.user SET email = 'by b again' WHERE id = 2")
    wait_for("b is followed again", lambda: beside.equals(b))


def test_a_server_with_no_copy_of_the_offsets_is_followed_where_it_has_all_that_was_read(
    nodes: list[Node], beside: Beside
) -> None:
    """It counts from epoch 1, which Redis has passed: its epoch is raised above that."""
    a, b, _ = nodes
    b.execute("STOP REPLICA", "CHANGE REPLICATION FILTER REPLICATE_WILD_IGNORE_TABLE = ('viewtail.%')")
    b.execute("DROP DATABASE viewtail", "START REPLICA")
    a.execute("UPDATE fail.user SET email = 'read from a' WHERE id = 1")
    wait_for("it is read", lambda: beside.equals(a))
    a.execute("UPDATE fail.user SET email = 'unread' WHERE id = 2", "DELETE FROM fail.user WHERE id = 1")
    b.has_all_of(a)
    b.promote()
    beside.proxy.lead_to(b.server.port)
    wait_for("b is followed", lambda: beside.equals(b))
    b.execute("INSERT INTO fail.user VALUES (9, 'by b')")
    wait_for("changes come", lambda: beside.equals(b))
    assert b.rows("SELECT epoch FROM viewtail.source") == [(2,)]
