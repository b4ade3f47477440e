"""Tables of an earlier viewtail are migrated with exactly what they hold, also where a migration broke off."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest

from ingest.binlog.continuity import ServerHistory
from ingest.binlog.coordinates import BinlogPosition
from offsets import epochs, migrations, schema
from offsets.mysql import MySQLOffsets, saved_position
from stack import Server
from tests.support import earlier_tables
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import MySQLAddress, open_session

ONE, OTHER = uuid.UUID(int=7), uuid.UUID(int=9)

# By pipeline: the offset that its row holds.
OFFSETS = {
    "mysql": BinlogPosition(
        epoch=7,
        file="binlog.000012",
        end=(1 << 40) + 345,
        start=(1 << 40) + 3,
        gtid=f"{ONE}:12",
        gtid_base=",".join(f"{uuid.UUID(int=number)}:1-9:11-{number + 12}" for number in range(3000)),
        server=str(ONE),
    ),
    "redis": BinlogPosition(
        epoch=1023,
        file='my "odd\\ bin–log.9999999',
        end=4,
        start=4,
        gtid="0-1-57",
        gtid_base="0-1-57,2-1-9",
        server="mariadb-server-id-1",
    ),
    "beginning": BinlogPosition(epoch=1, file="b.000001", end=0, start=0, gtid_base=f"{OTHER}:1-5"),
    "early": BinlogPosition(epoch=1, file="b.000001", end=200, start=100),
    "new": None,
}
HISTORY = ServerHistory(str(ONE), "my odd bin–log")


class BrokeOff(Exception):
    pass


class Cursor:
    """Breaks off before the statement after `left` ones that change something."""

    def __init__(self, cursor: Any, left: int) -> None:
        self._cursor, self._left = cursor, left

    def execute(self, statement: str, arguments: object = None) -> Any:
        if not statement.startswith(("SELECT", "SET")):
            if not self._left:
                raise BrokeOff
            self._left -= 1
        return self._cursor.execute(statement, arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@dataclass
class Place:
    """A database with tables of an earlier viewtail."""

    address: MySQLAddress
    database: str

    def open(self) -> pymysql.Connection[Any]:
        return open_session(self.address, role="store")

    def make(self, tables: tuple[str, ...]) -> None:
        with closing(self.open()) as connection, connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE IF EXISTS {self.database}")
            cursor.execute(f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
            for ddl in tables:
                cursor.execute(ddl.format(database=self.database, collation=facts_of(connection).binary_collation))
            connection.commit()

    def make_earlier(self) -> None:
        self.make(earlier_tables.TABLES)
        with closing(self.open()) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {self.database}.source (name, server_identity, binlog_base, epoch) "
                "VALUES ('default', %s, %s, 7)",
                (HISTORY.identity, HISTORY.base),
            )
            for number, (name, at) in enumerate(OFFSETS.items(), 1):
                cursor.execute(
                    f"INSERT INTO {self.database}.pipeline (id, name, fence) VALUES (%s, %s, %s)",
                    (number, name, 40 + number),
                )
                if at is not None:
                    values = (at.epoch, at.file, at.start, at.end, at.gtid, at.gtid_base, at.server, name)
                    cursor.execute(
                        f"UPDATE {self.database}.pipeline SET epoch = %s, binlog_file = %s, start_position = %s, "
                        "end_position = %s, gtid = %s, gtid_base = %s, server_identity = %s WHERE name = %s",
                        values,
                    )
            # As a viewtail left it that knew neither sets nor identities.
            cursor.execute(
                f"UPDATE {self.database}.pipeline SET gtid = NULL, gtid_base = NULL, server_identity = NULL "
                "WHERE name = 'early'"
            )
            connection.commit()

    def migrate(self) -> None:
        with closing(self.open()) as connection:
            schema.create(connection, self.address, self.database, schema.STORE_TABLES, role="store")

    def break_off(self, after: int) -> bool:
        """Migrate up to so many statements that change something; whether there are more."""
        earlier = {migrations.table_of(ddl) for ddl in earlier_tables.TABLES}
        tables = [ddl for ddl in schema.STORE_TABLES if migrations.table_of(ddl) in earlier]
        with closing(self.open()) as connection, connection.cursor() as cursor:
            try:
                migrations.migrate(Cursor(cursor, after), self.database, tables)
            except BrokeOff:
                return True
        return False

    def columns(self) -> list[tuple[Any, ...]]:
        # Not their comments: a table that is there keeps those that it was made with.
        return self.rows(
            "SELECT table_name, column_name, column_type, is_nullable, column_default "
            f"FROM information_schema.columns WHERE table_schema = '{self.database}' ORDER BY 1, 2"
        )

    def keys(self) -> list[tuple[Any, ...]]:
        return self.rows(
            "SELECT table_name, index_name, seq_in_index, column_name, non_unique "
            f"FROM information_schema.statistics WHERE table_schema = '{self.database}' ORDER BY 1, 2, 3"
        )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self.open()) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def check(self) -> None:
        """Every value is where it belongs, exactly."""
        with closing(self.open()) as connection:
            for number, (name, at) in enumerate(OFFSETS.items(), 1):
                found = saved_position(lambda: connection, self.database, name, BinlogPosition.from_text)
                assert found == at, name
                owner = MySQLOffsets(lambda: connection, self.database, name, read_position=BinlogPosition.from_text)
                taken = owner.take()
                assert (taken.owner.fence, taken.position) == (41 + number, at), name
                connection.rollback()

            def never(_: str) -> None:
                raise AssertionError("it is the same server")

            assert epochs.current(lambda: connection, self.database, "default", str(HISTORY), never) == 7


@pytest.fixture(params=["mysql", "mariadb"])
def place(request: pytest.FixtureRequest) -> Place:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    return Place(MySQLAddress(host="127.0.0.1", port=server.port, user="root"), "migrated")


def test_positions_epochs_and_fences_are_read_back_as_they_were(place: Place) -> None:
    place.make_earlier()
    place.migrate()
    place.check()
    migrated = place.columns(), place.keys()
    place.make(schema.STORE_TABLES)
    assert (place.columns(), place.keys()) == migrated, "as if they had been made now"


def test_a_migration_that_broke_off_anywhere_is_finished_at_the_next_start(place: Place) -> None:
    after = 0
    while True:
        place.make_earlier()
        is_broken = place.break_off(after)
        place.migrate()
        place.check()
        if not is_broken:
            break
        after += 1
    assert after >= 5, "it broke off in each state between two statements"


def test_tables_of_a_still_earlier_viewtail_are_migrated_too(place: Place) -> None:
    """It kept no set of GTIDs and no server with an offset."""
    place.make_earlier()
    with closing(place.open()) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE migrated.pipeline DROP COLUMN gtid_base, DROP COLUMN server_identity")
        cursor.execute("ALTER TABLE migrated.view DROP COLUMN declaration")
    place.migrate()
    with closing(place.open()) as connection:
        found = saved_position(lambda: connection, "migrated", "early", BinlogPosition.from_text)
    assert found == OFFSETS["early"]


def test_processes_that_start_at_once_migrate_once(place: Place) -> None:
    place.make_earlier()
    outcomes = side_by_side(4, place.migrate)
    assert outcomes == [None] * 4
    place.check()


def side_by_side(count: int, call: Callable[[], None]) -> list[BaseException | None]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(count) as pool:
        return [future.exception() for future in [pool.submit(call) for _ in range(count)]]
