"""viewtail's own tables come from any version to the present one with what they hold; others are refused by name."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from ingest.binlog.coordinates import BinlogPosition
from offsets import dead_letters, deployments, keepers, migrations, runs, schema
from offsets.mysql import MySQLOffsets, OwnSession
from offsets.views import State
from stack import Server
from viewtail.changes.errors import StoreError
from viewtail.servers.sessions import MySQLAddress, open_session

VERSION_1 = Path(__file__).parents[1] / "recorded" / "schema-1.sql"


@dataclass
class Place:
    """A database for viewtail's own tables."""

    address: MySQLAddress
    database: str = "migrated"

    def open(self) -> pymysql.Connection[Any]:
        return open_session(self.address, role="store")

    def execute(self, *statements: str) -> None:
        with closing(self.open()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {self.database} CHARACTER SET utf8mb4")
            cursor.execute(f"USE {self.database}")
            for statement in statements:
                cursor.execute(statement)
            connection.commit()

    def clear(self) -> None:
        self.execute(f"DROP DATABASE {self.database}")

    def load(self, recorded: Path) -> None:
        self.clear()
        self.execute(*(one for one in re.split(r";$", recorded.read_text(), flags=re.MULTILINE) if one.strip()))

    def create(self) -> None:
        """As each `viewtail run` does."""
        with closing(self.open()) as connection:
            tables = (*schema.STORE_TABLES, *schema.SOURCE_TABLES)
            schema.create(connection, self.address, self.database, tables, role="store")

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with closing(self.open()) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def form(self) -> list[tuple[Any, ...]]:
        # Not their comments: a table that is there keeps those that it was made with.
        columns = self.rows(
            "SELECT table_name, column_name, column_type, is_nullable, column_default "
            f"FROM information_schema.columns WHERE table_schema = '{self.database}' ORDER BY 1, 2"
        )
        keys = self.rows(
            "SELECT table_name, index_name, seq_in_index, column_name, non_unique "
            f"FROM information_schema.statistics WHERE table_schema = '{self.database}' ORDER BY 1, 2, 3"
        )
        return [*columns, *keys]

    def is_there(self) -> bool:
        with closing(self.open()) as connection, connection.cursor() as cursor:
            return migrations.are_there(cursor, self.database)

    def version(self) -> int:
        ((version,),) = self.rows(f"SELECT MAX(version) FROM {self.database}.schema_version")
        return int(version)


@pytest.fixture(params=["mysql", "mariadb"])
def place(request: pytest.FixtureRequest) -> Place:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    found = Place(MySQLAddress(host="127.0.0.1", port=server.port, user="root"))
    found.execute()
    found.clear()
    return found


def test_version_1_comes_to_the_present_form_with_what_it_holds(place: Place) -> None:
    place.create()
    present = place.form()
    place.load(VERSION_1)
    place.create()
    assert place.form() == present, "as if they had been made now"
    assert place.version() == migrations.newest()
    session = OwnSession(place.open)
    (keeper,) = keepers.keepers(session, place.database, "redis:user", ["redis"])
    assert (keeper.pipeline.fence, keeper.view.state, keeper.view.row_count) == (41, State.BACKFILLING, 3)
    assert keeper.view.last_key is not None and [*map(str, keeper.view.last_key)] == ["3", "b'\\xff'", "1.50"]
    (letter,) = dead_letters.of_keys(session, place.database, "redis:user", ["7"])
    assert (letter.version, letter.cause) == (501, "too long")
    identity = deployments.read(session, place.database)
    assert identity is not None and identity.title == "viewtail on db:3306"
    with session().cursor() as cursor:
        assert [run.state for run in runs.read(cursor, place.database, ["replay"], 9)] == ["marked"]
    offsets = MySQLOffsets(session, place.database, "redis", read_position=BinlogPosition.from_text)
    taken = offsets.take()
    assert taken.owner.fence == 42 and str(taken.position) == "binlog.000012:345"
    session.close()


def test_tables_of_a_newer_viewtail_are_refused(place: Place) -> None:
    place.create()
    assert place.is_there()
    place.execute(f"INSERT INTO schema_version (version) VALUES ({migrations.newest() + 1})")
    for look in (place.create, place.is_there):
        with pytest.raises(StoreError, match=rf"version {migrations.newest() + 1}.*newer viewtail"):
            look()


def test_tables_from_before_versions_were_noted_are_refused_with_what_to_do(place: Place) -> None:
    place.create()
    place.execute("DROP TABLE schema_version")
    before = place.form()
    for look in (place.create, place.is_there):
        with pytest.raises(StoreError, match=r"before 0\.2\.0.*DROP DATABASE `migrated`"):
            look()
    assert place.form() == before, "nothing was made"


def test_tables_that_are_made_only_in_part_are_not_there_yet(place: Place) -> None:
    place.create()
    place.execute("DELETE FROM schema_version WHERE version > 0", "DROP TABLE view, deployment_identity, dead_letter")
    assert not place.is_there()
    place.create()
    assert place.is_there() and place.version() == migrations.newest()


def test_a_step_is_done_once_by_whoever_starts_first(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(cursor: Any, database: str) -> None:
        cursor.execute(f"ALTER TABLE {database}.pipeline ADD COLUMN colour INT NULL")

    place.load(VERSION_1)
    before = migrations.newest()
    monkeypatch.setattr(migrations, "STEPS", (*migrations.STEPS, step))
    place.execute(f"INSERT IGNORE INTO schema_version (version) VALUES ({before})")
    with pytest.raises(StoreError, match=rf"version {before}.*version {before + 1}.*viewtail run"):
        place.is_there()
    with ThreadPoolExecutor(4) as pool:
        outcomes = [future.exception() for future in [pool.submit(place.create) for _ in range(4)]]
    assert outcomes == [None] * 4
    assert place.is_there() and place.version() == before + 1
