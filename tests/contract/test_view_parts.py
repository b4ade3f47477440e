"""The table of parts that are set aside: each way from one state to another, and who loses a race."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pymysql
import pytest

from offsets import schema
from offsets.mysql import OwnSession
from offsets.view_parts import PartRecord, PartState, ViewParts
from stack import Server
from viewtail.servers.sessions import Connection, MySQLAddress, open_session

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb]
DATABASE = "set_aside"
MISFIT = PartRecord(
    pipeline="redis",
    view="redis:invoice",
    part="2",
    table="app.org2_invoice",
    entity="app.org{account_id:int}_invoice",
    given="account_id=2",
    state=PartState.MISFIT,
    reason="column number was dropped",
    by=None,
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
        assert ViewParts(session, DATABASE).all() == [], "where no viewtail ever ran"
        with closing(open_()) as connection:
            schema.create(connection, address, DATABASE, schema.STORE_TABLES, "store")
        session().cursor().execute(f"INSERT INTO {DATABASE}.pipeline (name) VALUES ('redis')")
        session().commit()
        yield ViewParts(session, DATABASE)


def test_a_part_goes_from_state_to_state_unless_it_was_moved_meanwhile(parts: ViewParts) -> None:
    parts.set_aside([MISFIT])
    (first,) = parts.all()
    assert replace(first, since="") == MISFIT and len(first.since) == 26
    parts.set_aside([replace(MISFIT, state=PartState.PAUSED, by="ops@host", reason="an import")])
    assert parts.all() == [first], "it is set aside already"
    parts.move([first], PartState.RESUMED)
    (resumed,) = parts.of("redis:invoice~2")
    assert resumed == replace(first, state=PartState.RESUMED), "its copies are meant, too"
    parts.move([resumed], PartState.FILLING)
    filling = replace(first, state=PartState.FILLING)
    assert parts.all() == [filling]
    parts.set_aside([MISFIT])
    assert not parts.end(filling), "its table was changed again while it was read"
    (again,) = parts.all()
    assert again.state is PartState.MISFIT and again.since > first.since
    parts.move([again], PartState.FILLING)
    assert not parts.end(filling), "that was of the time before"
    assert parts.end(replace(again, state=PartState.FILLING)) and parts.all() == []
