"""Changes that stand in the binlog before any SELECT shows them: commits that wait for a replica's word (semi-sync)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stack import Server
from tests.contract.test_events_of_a_server import Reader
from tests.integration.test_backfill import VIEWS, Shelf
from tests.support.pipelines import deployed, owned
from tests.support.running import wait_for
from tests.support.world import World

HELD_S = 100
# Nobody acknowledges, so each commit waits until it is let go.
WAITING = {
    "mysql": (
        "INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'",
        "SET GLOBAL rpl_semi_sync_source_wait_point = 'AFTER_SYNC'",
        f"SET GLOBAL rpl_semi_sync_source_timeout = {HELD_S * 1000}",
        "SET GLOBAL rpl_semi_sync_source_enabled = ON",
    ),
    "mariadb": (
        "SET GLOBAL rpl_semi_sync_master_wait_point = 'AFTER_SYNC'",
        f"SET GLOBAL rpl_semi_sync_master_timeout = {HELD_S * 1000}",
        "SET GLOBAL rpl_semi_sync_master_enabled = ON",
    ),
}
LET_GO = {
    "mysql": "SET GLOBAL rpl_semi_sync_source_enabled = OFF",
    "mariadb": "SET GLOBAL rpl_semi_sync_master_enabled = OFF",
}
AT_ONCE = {"mysql": ("UNINSTALL PLUGIN rpl_semi_sync_source",), "mariadb": ()}


def ask(place: Reader | Shelf, query: str) -> Any:
    connection = place.connect() if isinstance(place, Reader) else place.world.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchone()[0]
    finally:
        connection.close()


@contextmanager
def held(kind: str, place: Any, change: str) -> Iterator[threading.Thread]:
    """The change is in the binlog, and its commit waits there; it is over at the end. The place executes statements."""
    place.execute(*WAITING[kind])
    commit = threading.Thread(target=place.execute, args=(change,))
    try:
        commit.start()
        yield commit
    finally:
        place.execute(LET_GO[kind])
        commit.join()
        place.execute(*AT_ONCE[kind])


@pytest.mark.parametrize("kind", [pytest.param("mysql"), pytest.param("mariadb", marks=pytest.mark.mariadb)])
def test_a_change_that_no_select_shows_yet_is_delivered_as_the_binlog_has_it(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    reader = Reader(server)
    reader.execute("INSERT INTO events.t VALUES (1, 0, NULL, 'old')")
    reader.read()
    with held(kind, reader, "UPDATE events.t SET v = 'new' WHERE id = 1") as commit:
        for batch in reader.source().read(reader.begin):
            reader._apply(batch)
            if reader.held["t", 1][1] == (1, 0, None, "new"):
                break
        assert commit.is_alive() and ask(reader, "SELECT v FROM events.t WHERE id = 1") == "old"
    reader.read()
    reader.assert_equal()


def test_a_view_is_written_from_the_binlog_and_never_from_what_the_table_shows_then(
    mysql_server: Server, redis_server: Server, elasticsearch_server: Server
) -> None:
    servers = (mysql_server, redis_server, elasticsearch_server)
    shelf = Shelf(World(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server))
    shelf.add(5)
    with owned(deployed([VIEWS["redis"]], *servers), "redis") as owner:
        owner.fill_all()
        with held("mysql", shelf, "UPDATE fill.item SET name = 'new' WHERE id > 3") as commit:
            wait_for("the change is shown", lambda: shelf.shown("redis")[4] == "new")
            assert commit.is_alive() and ask(shelf, "SELECT name FROM fill.item WHERE id = 4") == "n4"
        owner.pass_everything()
        assert shelf.shown("redis") == shelf.in_table()
