"""A source that purged its binlogs while viewtail was stopped: what was not missed is not read again.

viewtail's own tables are on the server that it reads: behind its last offset there are always transactions of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
import redis
import structlog

import stack.mariadb
import stack.mysql
from ingest.binlog import continuity, quiet_end
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.purged import OffsetTable
from ingest.binlog.source import BinlogSource
from ingest.canonical import describe
from offsets.schema import STORE_TABLES, create
from stack import Server
from tests.support.binlog_file import events
from tests.support.running import Run, addresses, running, wait_for
from viewtail.changes.batches import Batch, Followed
from viewtail.changes.errors import DeclarationError, HistoryGoneError
from viewtail.changes.positions import Position
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import MySQLAddress, open_session, value_of

VIEWS = """
from viewtail import Entity, IndexTable, RedisHash
user = Entity("shop.user")
views = [IndexTable("ix_email", user, value="email"), RedisHash("user", user, fields=["email"])]
"""


class Shop:
    """A source with one table, and two views of it in two stores."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.execute(
            "DROP DATABASE IF EXISTS shop", "DROP DATABASE IF EXISTS viewtail", "CREATE DATABASE shop",
            "CREATE TABLE shop.user (id INT PRIMARY KEY, email VARCHAR(60))", "INSERT INTO shop.user VALUES (1, 'a')",
        )  # fmt: skip

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        with (
            pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def emails(self) -> set[str]:
        return {email for (email,) in self.execute("SELECT email FROM viewtail.ix_email WHERE email IS NOT NULL")}

    def backfills(self) -> list[tuple[Any, ...]]:
        """When each view was backfilled last."""
        return self.execute("SELECT name, filled_at, state FROM viewtail.view ORDER BY name")

    def purge(self) -> None:
        """All but a new one."""
        self.execute("FLUSH BINARY LOGS")
        self.purge_to_last()

    def purge_to_last(self) -> None:
        newest = self.execute("SHOW BINARY LOGS")[-1][0]

        def is_purged() -> bool:  # MariaDB keeps a file for a while that somebody read
            self.execute(f"PURGE BINARY LOGS TO '{newest}'")
            return len(self.execute("SHOW BINARY LOGS")) == 1

        wait_for("they are gone", is_purged)

    def expire(self) -> None:
        """As after a stop that outlasts the retention: the server itself removes them, and starts again."""
        self.execute("SET GLOBAL binlog_expire_logs_seconds = 1")
        read = self.execute("SHOW BINARY LOGS")[-1][0]

        def is_purged() -> bool:
            self.execute("FLUSH BINARY LOGS")
            return bool(self.execute("SHOW BINARY LOGS")[0][0] > read)

        wait_for("they are gone", is_purged)
        self.server.stop()
        self.server.start()

    def started(self, run: Run) -> None:
        wait_for("both views are filled", lambda: {one[2] for one in self.backfills()} == {"filled"})
        wait_for("all is well", run.is_well)

    def goes_on(self, run: Run) -> None:
        """It reads again, and has not backfilled."""
        email = f"{time.time_ns()}"
        self.execute(f"UPDATE shop.user SET email = '{email}'")
        wait_for("the change arrives", lambda: self.emails() == {email})
        wait_for("all is well", run.is_well)


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = {"mysql": stack.mysql, "mariadb": stack.mariadb}[request.param].start(
        tmp_path_factory.mktemp(request.param)
    )
    yield server
    server.kill()


@pytest.fixture
def shop(source: Server) -> Shop:
    return Shop(source)


@pytest.fixture
def run(shop: Shop, redis_server: Server, tmp_path: Path) -> Iterator[Run]:
    with closing(redis.Redis(port=redis_server.port)) as client:
        client.flushall()
    with running(tmp_path, VIEWS, addresses(shop.server, redis_server)) as found:
        shop.started(found)
        yield found


def test_an_idle_source_that_purged_all_it_had_is_read_on_and_nothing_is_backfilled(shop: Shop, run: Run) -> None:
    """More than once, and with a change that came behind what was purged."""
    filled = shop.backfills()
    for change, purge in ((None, shop.purge), ("b", shop.purge), ("c", shop.expire)):
        assert run.stop() == 0
        purge()
        if change is not None:
            shop.execute(f"UPDATE shop.user SET email = '{change}'")
        run.start()
        if change is not None:
            wait_for("what came meanwhile is there", lambda change=change: shop.emails() == {change})  # type: ignore[misc]
        shop.goes_on(run)
        assert shop.backfills() == filled
    assert "purged what was read, and nothing else" in run.log
    assert run.stop() == 0


def test_one_transaction_of_another_among_what_was_purged_halts(shop: Shop, run: Run) -> None:
    shown = shop.emails()
    assert run.stop() == 0
    shop.execute("UPDATE shop.user SET email = 'missed'")
    shop.purge()
    run.start()
    wait_for("the log says that history is gone", lambda: "history gone" in run.log)
    assert shop.emails() == shown
    assert run.stop() == 0


class Binlog:
    """A source that was read up to an offset, with viewtail's table of offsets beside it."""

    def __init__(self, shop: Shop, epoch: int = 1) -> None:
        self.shop = shop
        self.address = MySQLAddress(host="127.0.0.1", port=shop.server.port, user="root")
        # The documented grants of a user who only reads the source, with a database of watermarks elsewhere.
        self.tailer = replace(self.address, user="tailer")
        shop.execute(
            "DROP USER IF EXISTS tailer", "CREATE USER tailer", "GRANT SELECT ON shop.* TO tailer",
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO tailer",
        )  # fmt: skip
        with closing(open_session(self.address, role="source")) as session:
            create(session, self.address, "viewtail", STORE_TABLES, "store")
            self.identity = str(value_of(session, facts_of(session).identity))
            self.table = describe(session, "shop", "user")
        shop.execute("INSERT INTO viewtail.pipeline (name, store) VALUES ('mysql', 'mysql')")
        self.source = self.reader(epoch)
        begin = self.source.now()
        shop.execute("UPDATE shop.user SET email = 'read'")
        (found, *_) = [batch.end for batch in self.read(begin, 1)]
        assert isinstance(found, BinlogPosition)
        self.offset = found
        shop.execute("UPDATE viewtail.pipeline SET saved_at = NOW(6)")

    def reader(self, epoch: int) -> BinlogSource:
        return BinlogSource(
            self.tailer,
            {("shop", "user"): Followed(self.table, ("id", "email"))},
            watermark_schema="viewtail",
            own_schemas=frozenset({"viewtail"}),
            epoch=epoch,
            identity=self.identity,
            offset_table=OffsetTable(self.address, "viewtail"),
        )

    def read(self, after: Position, count: int) -> list[Batch]:
        with closing(self.source.read(after)) as batches:  # type: ignore[type-var]
            return list(islice((batch for batch in batches if batch.changes), count))

    def executed(self) -> str:
        with closing(open_session(self.address, role="source")) as session:
            return continuity.executed(session)

    def note(self, position: BinlogPosition) -> None:
        self.shop.execute(f"UPDATE viewtail.pipeline SET position = '{position.to_text()}'")


def test_of_what_is_gone_one_transaction_is_known_by_not_being_among_what_is_left(shop: Shop) -> None:
    """The note of what was read as the last process ended: only that itself was read by nobody."""
    binlog = Binlog(shop)
    noted = replace(binlog.offset, quiet=binlog.executed())
    binlog.note(noted)
    shop.execute("FLUSH BINARY LOGS", "UPDATE viewtail.pipeline SET fence = fence + 1")
    shop.execute("UPDATE shop.user SET email = 'behind it'")
    shop.purge_to_last()
    with pytest.raises(HistoryGoneError, match="history gone"):
        binlog.source.check(binlog.offset)  # which has no note
    binlog.source.check(noted)
    assert [change.rows[1][1] for change in binlog.read(noted, 1)[0].changes] == ["behind it"]
    with pytest.raises(HistoryGoneError, match="gtid_mode = ON"):
        binlog.source.check(replace(noted, gtid="", gtid_base=""))
    elsewhere = replace(noted, server="another, of which this was a replica")
    binlog.reader(2).check(elsewhere)


@pytest.mark.parametrize("server", ["", "another, of which this was a replica"])
def test_somebody_elses_transaction_in_place_of_the_note_is_missed(server: str, shop: Shop) -> None:
    binlog = Binlog(shop, epoch=2 if server else 1)
    noted = replace(binlog.offset, quiet=binlog.executed(), server=server or binlog.offset.server)
    shop.execute("UPDATE shop.user SET email = 'missed'", "FLUSH BINARY LOGS")
    binlog.note(noted)
    shop.purge_to_last()
    with pytest.raises(HistoryGoneError, match="history gone"):
        binlog.source.check(noted)
    with pytest.raises(HistoryGoneError, match="history gone"):
        binlog.read(noted, 1)


def test_the_note_is_looked_for_with_the_documented_rights_where_the_user_of_the_source_does_not_see_it(
    shop: Shop,
) -> None:
    binlog = Binlog(shop)
    with pytest.raises(DeclarationError), closing(open_session(binlog.tailer, role="source")) as session:
        describe(session, "viewtail", "pipeline")
    noted = replace(binlog.offset, quiet=binlog.executed())
    binlog.note(noted)
    shop.execute("FLUSH BINARY LOGS", "UPDATE viewtail.pipeline SET fence = fence + 1")
    shop.purge_to_last()
    binlog.source.check(noted)


@pytest.mark.timeout(60)  # where it fails it never ends
@pytest.mark.parametrize("damage", ["garbled", "removed"])
def test_a_binlog_that_cannot_be_read_and_was_not_purged_halts_a_reader_that_begins_by_set(
    shop: Shop, damage: str
) -> None:
    """Of what was purged all is known: that is no reason to try the same again, at once and for ever."""
    binlog = Binlog(shop)
    begin = binlog.source.now()
    assert begin.is_by_set
    shop.execute("FLUSH BINARY LOGS", "UPDATE shop.user SET email = 'behind it'", "FLUSH BINARY LOGS")
    file = sorted((shop.server.directory / "data").glob("binlog.0*"))[-2]
    whole, end = file.read_bytes(), [*events(file)][-3].end  # behind it come the commit, and the end of the file
    if damage == "garbled":
        file.write_bytes(whole[: end + 9] + b"\xff\xff\xff\x7f" + whole[end + 13 :])
    else:
        file.unlink()
    try:
        with structlog.testing.capture_logs() as logs, pytest.raises(HistoryGoneError) as caught:
            binlog.read(begin, 1)
    finally:
        file.write_bytes(whole)
    assert "viewtail replay --new-history" in str(caught.value) and not logs
    assert [change.rows[1][1] for change in binlog.read(begin, 1)[0].changes] == ["behind it"]


@pytest.fixture(params=[stack.mysql, stack.mariadb], ids=["mysql", "mariadb"])
def silent_note(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A shop whose server leaves viewtail's own tables out of its binlog."""
    server: Server = request.param.start(tmp_path / "server", options=["--server-id=77", "--binlog-ignore-db=viewtail"])
    yield Shop(server)
    server.kill()


def test_where_the_note_is_not_logged_somebody_elses_transaction_is_not_taken_for_it(silent_note: Shop) -> None:
    shop = silent_note
    shop.execute("CREATE DATABASE marks", "CREATE TABLE marks.watermark (name INT PRIMARY KEY)")
    binlog = Binlog(shop)
    shop.execute("UPDATE viewtail.pipeline SET source = 'default'")
    binlog.note(binlog.offset)
    access: Any = SimpleNamespace(own=binlog.address, own_database="viewtail", address=lambda: binlog.address)
    shop.execute("INSERT INTO marks.watermark VALUES (1)")
    quiet_end.note(access, frozenset({"viewtail", "marks"}), {})
    assert shop.execute("SELECT position FROM viewtail.pipeline") == [(binlog.offset.to_text(),)], "nothing is noted"
    noted = replace(binlog.offset, quiet=binlog.executed())  # as before the filter was set
    shop.execute("UPDATE shop.user SET email = 'missed'")
    shop.purge()
    with pytest.raises(HistoryGoneError, match="history gone"):
        binlog.source.check(noted)
