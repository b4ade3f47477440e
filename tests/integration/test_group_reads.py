"""How much of a table is read for some of its groups: the rows of these, by the index over the columns of the group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from ingest.canonical import describe
from projectors.binding import bind
from projectors.derived import groups
from projectors.stores.redis.views import RedisHash
from projectors.views import BoundView, Group
from stack import Server
from tests.support.asking import ask
from viewtail import Count, Sum
from viewtail.changes.batches import Row
from viewtail.servers.literals import beyond, rows_with, where_all
from viewtail.servers.sessions import Connection, MySQLAddress, open_session, quote

ROWS, A_SHOP = 100_000, 10


@pytest.fixture(
    scope="module",
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)],
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    ask(found, "DROP DATABASE IF EXISTS selling")
    ask(found, "CREATE DATABASE selling")
    ask(
        found,
        "CREATE TABLE selling.sale (id INT PRIMARY KEY AUTO_INCREMENT, shop_id INT, day DATE NOT NULL, status "
        "VARCHAR(20) COLLATE utf8mb4_unicode_ci, amount DECIMAL(12,2), note CHAR(100) NOT NULL DEFAULT 'x', "
        "KEY by_day (shop_id, day), KEY by_status (status))",
    )
    digits = " UNION ALL ".join(f"SELECT {digit} AS n" for digit in range(10))
    ask(
        found,
        f"INSERT INTO selling.sale (shop_id, day, status, amount) SELECT n DIV {A_SHOP}, '2024-01-01' + INTERVAL "
        "n % 3 DAY, CONCAT(IF(n % 2, 'Label ', 'label '), n DIV 20), n / 100 FROM (SELECT a.n + 10 * b.n + "
        "100 * c.n + 1000 * d.n + 10000 * e.n AS n "
        f"FROM ({digits}) a, ({digits}) b, ({digits}) c, ({digits}) d, ({digits}) e) every",
    )
    ask(found, "ANALYZE TABLE selling.sale")
    return found


@pytest.fixture
def source(server: Server) -> Iterator[Callable[[], Connection]]:
    """One session, so that its counters can be read."""
    session = open_session(MySQLAddress(host="127.0.0.1", port=server.port, user="root"), role="source")
    with session:
        yield lambda: session


def view_of(session: Connection, by: Any) -> BoundView:
    entity = Group(
        "selling.sale", by=by, values={"sales": Count(), "total": Sum("amount"), "paid": Count(where="amount > 1")}
    )
    (view,) = bind([RedisHash("sales", entity, fields=["sales", "total", "paid"])], partial(describe, session))
    return view


def rows_read(session: Connection, read: Callable[[], Any]) -> int:
    """Of all tables, temporary ones too."""

    def count() -> int:
        with session.cursor() as cursor:
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler\\_read\\_%'")
            return sum(int(value) for _, value in cursor.fetchall())

    before = count()
    read()
    return count() - before - 40  # what counting itself reads


@pytest.mark.parametrize(
    ("by", "groups_of"),
    [
        (["shop_id", "day"], lambda shop: [(shop, f"2024-01-0{day}") for day in (1, 2, 3)]),
        ("shop_id", lambda shop: [(shop,)]),
        ("status", lambda number: [(f"label {number}",)]),
    ],
)
def test_a_chunk_and_some_groups_read_little_more_than_their_own_rows(
    source: Callable[[], Connection], by: Any, groups_of: Callable[[int], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "ROWS_AT_ONCE", 2_000)
    session = source()
    view = view_of(session, by)
    columns = [column for column in view.table.columns if column.name in view.needed]
    behind = f" ORDER BY {', '.join(quote(column.name) for column in view.key)} LIMIT 500"

    def chunk() -> list[Row]:
        return view.rows.fetch(session, columns, where_all(beyond(view.key, groups_of(3000)[-1])), behind)

    def some() -> list[Row]:
        return view.rows.fetch(session, columns, where_all(rows_with(view.key, keys)))

    assert len(chunk()) > 90
    in_chunk = sum(row[len(view.key)] for row in chunk())
    keys = [*groups_of(17), *groups_of(4711)]
    assert {row[: len(view.key)] for row in some()} >= set(keys)
    in_groups = sum(row[len(view.key)] for row in some())

    assert rows_read(session, chunk) < 5 * in_chunk + 5 * groups.ROWS_AT_ONCE
    assert rows_read(session, some) < 5 * in_groups + 100
