"""The table of parts that are paused: each way from one state to another, and who loses a race."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pymysql
import pytest

from offsets import schema
from offsets.mysql import OwnSession, transaction
from offsets.view_parts import PartRecord, PartState, ViewParts, pause
from stack import Server
from viewtail.servers.sessions import Connection, MySQLAddress, open_session

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]
DATABASE = "paused_parts"
PAUSED = PartRecord(
    view_id=1,
    view="redis:invoice",
    part="2",
    given="account_id=2",
    table="app.org2_invoice",
    state=PartState.PAUSED,
    reason="an import",
    by="ops@host",
    since="",
)


@pytest.fixture(params=["mysql", "mariadb"])
def parts(request: pytest.FixtureRequest) -> Iterator[ViewParts]:
    server: Server = request.getfixturevalue(f"{request.param}_server")
    address = MySQLAddress(host="127.0.0.1", port=server.port, user="root")

    def open_() -> Connection:
        return open_session(address, role="store")

    with closing(pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)) as connection:
        connection.cursor().execute(f"DROP DATABASE IF EXISTS {DATABASE}")
    with closing(OwnSession(open_)) as session:
        with closing(open_()) as connection:
            schema.create(connection, address, DATABASE, schema.STORE_TABLES, "store")
        cursor = session().cursor()
        cursor.execute(f"INSERT INTO {DATABASE}.pipeline (id, name) VALUES (1, 'redis'), (2, 'mysql')")
        for number, name in enumerate(("redis:invoice", "mysql:invoice"), 1):
            cursor.execute(
                f"INSERT INTO {DATABASE}.view (id, pipeline_id, name, fingerprint, declaration, version_kind, places, "
                f"state) VALUES ({number}, {number}, '{name}', '', '', 'binlog', '', 'filled')"
            )
        session().commit()
        yield ViewParts(session, DATABASE)


def paused(parts: ViewParts, record: PartRecord) -> None:
    with transaction(parts.session, "pausing a part") as cursor:
        pause(cursor, DATABASE, record)


def test_a_part_goes_from_state_to_state_unless_it_was_moved_meanwhile(parts: ViewParts) -> None:
    paused(parts, PAUSED)
    (first,) = parts.of_pipeline("redis")
    assert replace(first, since="") == PAUSED and len(first.since) == 26
    assert parts.of("redis:invoice~2") == [first], "its copies are meant, too"
    assert parts.of("mysql:invoice") == parts.of_pipeline("mysql") == []
    paused(parts, replace(PAUSED, by="another@host", reason=None))
    assert parts.of_pipeline("redis") == [first], "it is paused already"
    parts.resume(first)
    resumed = replace(first, state=PartState.RESUMED)
    assert parts.of_pipeline("redis") == [resumed]
    paused(parts, replace(PAUSED, by="another@host"))
    assert not parts.end(resumed), "it was paused again while its rows were read"
    (again,) = parts.of_pipeline("redis")
    assert again.state is PartState.PAUSED and again.by == "another@host" and again.since > first.since
    parts.resume(first)
    assert parts.of_pipeline("redis") == [again], "that was of the time before"
    parts.resume(again)
    assert parts.end(replace(again, state=PartState.RESUMED)) and parts.of_pipeline("redis") == []
