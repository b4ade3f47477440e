"""`viewtail check` against servers that let fewer sessions in than the deployment has."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest

from ingest import SourceAccess
from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.kind import BinlogKind, BinlogSettings
from ingest.limits import Limits
from projectors.stores import registry
from projectors.stores.access import Access
from stack import Server
from viewtail import Entity, IndexTable, RedisHash
from viewtail.operations import sessions
from viewtail.operations.check import Checked, check
from viewtail.servers.sessions import MySQLAddress

USER = "few_sessions"
THING = Entity("few_sessions.thing")
VIEWS = [IndexTable("few", THING, value="name"), RedisHash("few", THING, fields=["name"])]


@pytest.fixture(params=["mysql", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    (before,) = execute(found, "SELECT @@GLOBAL.max_connections")[0]
    execute(found, f"CREATE USER '{USER}'@'%'")
    yield found
    execute(found, f"SET GLOBAL max_connections = {before}", f"DROP USER '{USER}'@'%'")


def execute(server: Server, *statements: str) -> list[tuple[object, ...]]:
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return list(cursor.fetchall())


def seen(server: Server, what: str) -> tuple[str, str, str]:
    """Of that finding the level, what there is, and what mends it."""
    at = MySQLAddress(host="127.0.0.1", port=server.port, user=USER)
    source = SourceAccess(
        section=BinlogSettings(database="few_marks"),
        limits=Limits(),
        address=lambda: at,
        primary=lambda: at,
        own=at,
        own_database="few_views",
        is_cleaned=True,
    )
    access = Access(section=None, own=at, database="few_views", read_position=BinlogPosition.from_text)
    found = check(Checked(kind=BinlogKind(), source=source, stores=[(registry.STORES[0], access)]), VIEWS)
    (one,) = (one for one in found if one.what.startswith(what))
    assert one.where == "source", "it is both"
    return one.level.value, one.seen, one.mend


def test_check_compares_what_a_deployment_needs_with_max_connections(server: Server) -> None:
    running = 2 * (sessions.PIPELINE + sessions.CLEANER).total
    assert seen(server, "max_connections")[0] == "ok", "the default of 151 is enough for two stores"
    execute(server, f"SET GLOBAL max_connections = {running + 20}")
    level, what, mend = seen(server, "max_connections")
    needs = f"this deployment will have {running} sessions there with 2 pipelines"
    assert (level, needs in what) == ("warn", True), what
    execute(server, f"SET GLOBAL max_connections = {running - 1}")
    level, _, mend = seen(server, "max_connections")
    assert level == "fail"
    execute(server, mend)
    assert seen(server, "max_connections")[0] == "ok"


def test_check_compares_it_with_what_its_account_may_have(server: Server) -> None:
    execute(server, f"ALTER USER '{USER}'@'%' WITH MAX_USER_CONNECTIONS 5")
    level, what, mend = seen(server, "MAX_USER_CONNECTIONS")
    assert level == "fail" and what.startswith("5; ") and f"ALTER USER '{USER}'@'%' WITH" in mend
    execute(server, mend)
    assert seen(server, "MAX_USER_CONNECTIONS")[0] == "ok"


@pytest.mark.parametrize("server", ["mysql"], indirect=True)  # a MariaDB that began without a limit takes none
def test_check_compares_it_with_what_any_user_may_have(server: Server) -> None:
    execute(server, "SET GLOBAL max_user_connections = 20")
    try:
        level, what, mend = seen(server, "max_user_connections")
        assert level == "fail" and what.startswith("20; ")
        execute(server, mend)
        assert seen(server, "max_user_connections")[0] == "ok"
    finally:
        execute(server, "SET GLOBAL max_user_connections = 0")
