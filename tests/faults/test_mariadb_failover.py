"""Another MariaDB behind the source's address: followed by GTIDs where its history continues what was read.

First as the source sees it, then with the real command line, whose index tables and offsets are on a third server.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stack.mariadb
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.gtids_read import MariaDBGtidsRead
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from stack import Server
from tests.support.asking import ask
from tests.support.following import Following, following
from tests.support.running import wait_for
from viewtail.changes.batches import Batch, Followed
from viewtail.changes.errors import AnotherServerError, HistoryGoneError
from viewtail.servers.sessions import MySQLAddress, open_session

pytestmark = pytest.mark.mariadb


class Node:
    """One server of the pair."""

    def __init__(self, server: Server, number: int) -> None:
        self.server, self.number = server, number

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return ask(self.server, query)

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.rows(statement)

    def source(self, epoch: int, number: int | None = None) -> BinlogSource:
        address = MySQLAddress(host="127.0.0.1", port=self.server.port, user="root")
        with open_session(address, role="source") as session:
            table = describe(session, "fail", "t")
        return BinlogSource(
            address,
            {("fail", "t"): Followed(table, ("id", "v"))},
            watermark_schema="viewtail",
            own_schemas=frozenset({"viewtail"}),
            epoch=epoch,
            identity=f"mariadb-server-id-{number or self.number}",
        )

    def read(self, epoch: int, after: BinlogPosition, last: int) -> tuple[list[int], BinlogPosition]:
        """The ids that are inserted behind a position, up to one, and the place behind it."""
        source, seen = self.source(epoch), []
        batch: Batch
        for batch in source.read(after):
            seen += [row[0] for change in batch.changes for row in change.rows]
            if last in seen and batch.end is not None:
                break
        source.interrupt()
        assert batch.end is not None
        return seen, batch.end


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    """A primary, and its replica, which logs what it applies; rows of two domains."""
    options = ["--log-slave-updates", "--gtid-strict-mode=ON"]
    nodes = [
        Node(stack.mariadb.start(tmp_path / str(number), options=[f"--server-id={number}", *options]), number)
        for number in (11, 12)
    ]
    one, two = nodes
    replicate(two, one)
    one.execute("CREATE DATABASE fail", "CREATE TABLE fail.t (id INT PRIMARY KEY, v VARCHAR(20))")
    caught_up(one, two)
    yield one, two
    for node in nodes:
        node.server.kill()


def replicate(node: Node, other: Node) -> None:
    """From the beginning; what a server that was a primary wrote itself comes back to it, and is passed over."""
    node.execute(
        f"CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {other.server.port}, MASTER_USER = 'root', "
        "MASTER_USE_GTID = slave_pos",
        "START SLAVE",
    )


def insert(node: Node, *ids: int) -> None:
    for number in ids:
        node.execute(f"SET STATEMENT gtid_domain_id = {number % 3 // 2} FOR INSERT INTO fail.t VALUES ({number}, 'x')")


def caught_up(one: Node, two: Node) -> None:
    (position,) = one.rows("SELECT @@gtid_binlog_pos")[0]
    found = two.rows(f"SELECT MASTER_GTID_WAIT('{position}', 20)")
    assert found == [(0,)], two.rows("SHOW SLAVE STATUS")


def purge(node: Node) -> None:
    def purged() -> bool:
        last = node.rows("SHOW BINARY LOGS")[-1][0]
        node.execute(f"PURGE BINARY LOGS TO '{last}'")
        return len(node.rows("SHOW BINARY LOGS")) == 1

    wait_for("its binlogs are purged", purged)


def test_a_promoted_replica_is_read_on_from_with_no_row_lost_or_doubled(pair: tuple[Node, Node]) -> None:
    one, two = pair
    two.execute("FLUSH BINARY LOGS")  # other coordinates
    begin = one.source(1).now()
    assert begin.is_by_set
    insert(one, *range(10))
    ids, end = one.read(1, begin, 9)
    assert ids == list(range(10))
    insert(one, 10, 11, 12)  # read from the other one
    caught_up(one, two)
    with pytest.raises(AnotherServerError):  # its coordinates would be taken for the first one's
        list(two.source(1, number=11).read(end))
    two.execute("STOP SLAVE", "RESET SLAVE ALL")
    insert(two, *range(13, 20))
    two.source(2).check(end)
    ids, later = two.read(2, end, 19)
    assert ids == list(range(10, 20))
    assert later.version > end.version and later.epoch == 2
    insert(two, 20)
    assert two.read(2, later, 20)[0] == [20]  # by its own coordinates from now on


def test_a_server_that_lacks_what_was_read_is_refused(pair: tuple[Node, Node]) -> None:
    one, two = pair
    insert(one, 0)
    caught_up(one, two)
    two.execute("STOP SLAVE", "RESET SLAVE ALL")
    begin = one.source(1).now()
    insert(one, 1)
    _, end = one.read(1, begin, 1)
    insert(two, 3)  # a history of its own from here on
    source = two.source(2)
    with pytest.raises(HistoryGoneError, match=r"divergent history.*lacks transactions that were read \(0-11-"):
        source.check(end)
    with pytest.raises(HistoryGoneError):
        list(source.read(end))


def test_a_server_that_purged_what_was_not_read_is_refused(pair: tuple[Node, Node]) -> None:
    one, two = pair
    begin = one.source(1).now()
    insert(one, 0)
    _, end = one.read(1, begin, 0)
    insert(one, 1, 2)
    caught_up(one, two)
    two.execute("STOP SLAVE", "RESET SLAVE ALL", "FLUSH BINARY LOGS")
    purge(two)
    source = two.source(2)
    with pytest.raises(HistoryGoneError, match="history gone: the source purged transactions"):
        source.check(end)
    with pytest.raises(HistoryGoneError):
        list(source.read(end))


def test_what_was_seen_is_told_by_a_base_and_the_last_transaction() -> None:
    from ingest.binlog import gtids
    from ingest.binlog.gtid_sets import grown

    seen = MariaDBGtidsRead("0-1-5,7-1-9")
    for batch, exact, is_rewritten in (
        ([(0, 1, 6), (0, 1, 7)], "0-1-7,7-1-9", False),
        ([(0, 2, 8)], "0-2-8,7-1-9", False),
        ([(7, 1, 10)], "0-2-8,7-1-10", True),
        ([(3, 1, 1), (0, 2, 9)], "0-2-9,3-1-1,7-1-10", True),
        ([(4, 1, 1)], "0-2-9,3-1-1,4-1-1,7-1-10", False),
    ):
        before = seen.base
        seen.add(bytearray(b"".join(gtids.mariadb(*one, 0) for one in batch)))
        domain, server, number = batch[-1]
        assert grown(seen.base, f"{domain}-{server}-{number}") == seen.exact() == exact
        assert (seen.base != before) == is_rewritten


# -- with the real command line ---------------------------------------------------------------------------------------


@pytest.fixture
def followed(pair: tuple[Node, Node], mysql_server: Server, tmp_path: Path) -> Iterator[Following]:
    one, two = pair
    insert(one, 1, 2)
    caught_up(one, two)
    with following(one.server, mysql_server, tmp_path / "run", "fail.t", "v") as made:
        yield made


def promote(node: Node) -> None:
    node.execute("STOP SLAVE", "RESET SLAVE ALL")


def test_a_run_follows_a_promoted_replica_under_a_new_epoch(pair: tuple[Node, Node], followed: Following) -> None:
    """Its coordinates are others; what it wrote itself before comes too, and what was unread when the old one died."""
    one, two = pair
    one.execute("UPDATE fail.t SET v = 'read from the first' WHERE id = 1")
    wait_for("it is there", lambda: followed.shown()[1] == "read from the first")
    assert followed.run.stop() == 0
    two.execute("FLUSH BINARY LOGS", "SET STATEMENT gtid_domain_id = 7 FOR INSERT INTO fail.t VALUES (50, 'before')")
    one.execute("DELETE FROM fail.t WHERE id = 2")
    insert(one, 3, 5)
    caught_up(one, two)
    one.server.kill()
    promote(two)
    followed.proxy.lead_to(two.server.port)
    two.execute("UPDATE fail.t SET v = 'by the second' WHERE id = 1")
    followed.run.start()
    wait_for("the view equals its table", lambda: followed.equals(two.server))
    assert followed.epoch() == 2 and set(followed.shown()) == {1, 3, 5, 50}

    # And back under a running viewtail, to the first, which caught up meanwhile.
    one.server.start()
    replicate(one, two)
    caught_up(two, one)
    promote(one)
    followed.proxy.lead_to(one.server.port)
    one.execute("INSERT INTO fail.t VALUES (60, 'by the first again')")
    wait_for("the view equals its table", lambda: followed.equals(one.server))
    assert followed.epoch() == 3
    wait_for("all is well", followed.run.is_well)
    assert "filling" not in followed.run.log.partition("another server, whose history continues")[2]


def test_a_run_halts_at_a_replica_that_lacks_what_was_read_until_it_has_it(
    pair: tuple[Node, Node], followed: Following
) -> None:
    one, two = pair
    two.execute("STOP SLAVE")
    one.execute("DELETE FROM fail.t WHERE id = 2")
    insert(one, 3)
    wait_for("it is read", lambda: followed.equals(one.server))
    before = followed.shown()
    followed.proxy.lead_to(two.server.port)
    two.execute("SET STATEMENT gtid_domain_id = 7 FOR UPDATE fail.t SET v = 'by the second' WHERE id = 1")
    error = wait_for("status says so", followed.error)
    assert "divergent history" in error and "viewtail replay --new-history" in error
    assert "mysql:ix" in error, "the views that need it are named"
    assert followed.shown() == before and followed.epoch() == 1
    two.execute("START SLAVE")
    wait_for("the view equals its table", lambda: followed.equals(two.server))
    assert followed.epoch() == 2
    wait_for("all is well", followed.run.is_well)


def test_a_run_halts_at_a_replica_that_purged_what_was_not_read_until_a_new_history_is_begun(
    pair: tuple[Node, Node], followed: Following
) -> None:
    one, two = pair
    assert followed.run.stop() == 0
    one.execute("UPDATE fail.t SET v = 'missed' WHERE id = 1")
    caught_up(one, two)
    promote(two)
    two.execute("FLUSH BINARY LOGS")
    purge(two)
    followed.proxy.lead_to(two.server.port)
    insert(two, 3)
    followed.run.start()
    error = wait_for("status says so", followed.error)
    assert "history gone" in error and "mysql:ix" in error
    assert followed.shown() == {1: "x", 2: "x"}, "nothing jumps over the missing change"
    begun = followed.run.command("replay", "--new-history")
    assert begun.returncode == 0, begun.stderr
    wait_for("the view equals its table", lambda: followed.equals(two.server))
