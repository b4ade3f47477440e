"""A number over rows is not read from a column that another one has become, which the stream has not come to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from ingest.canonical import describe
from projectors.binding import bind
from projectors.masking import with_masks
from projectors.stores.redis.views import RedisHash, RedisJson
from projectors.views import BoundView, Entity, Group
from stack import Server
from tests.support.asking import ask
from viewtail import Count, Many, Max, Sum
from viewtail.changes.batches import Row
from viewtail.changes.errors import SourceError
from viewtail.changes.masks import Masks
from viewtail.servers.sessions import Connection, MySQLAddress, open_session


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    for statement in (
        "DROP DATABASE IF EXISTS altered",
        "CREATE DATABASE altered",
        "CREATE TABLE altered.item (id INT PRIMARY KEY)",
        (
            "CREATE TABLE altered.line (id INT PRIMARY KEY AUTO_INCREMENT, item_id INT, amount DECIMAL(10,2), "
            "day YEAR, pieces SMALLINT UNSIGNED, KEY (item_id))"
        ),
        "INSERT INTO altered.item VALUES (1)",
        "INSERT INTO altered.line (item_id, amount, day, pieces) VALUES (1, '9.10', 2020, 9), (1, '10.20', 2021, 10)",
    ):
        ask(found, statement)
    return found


@pytest.fixture
def session(server: Server) -> Iterator[Connection]:
    with open_session(MySQLAddress(host="127.0.0.1", port=server.port, user="root"), role="source") as opened:
        yield opened


NUMBERS = {"n": Count(), "total": Sum("amount"), "most": Max("amount"), "pieces": Sum("pieces"), "day": Max("day")}


def of_group(session: Connection) -> BoundView:
    entity = Group("altered.line", by="item_id", values=NUMBERS)
    (view,) = bind([RedisHash("sums", entity, fields=[*NUMBERS])], partial(describe, session))
    return view


def of_document(session: Connection) -> BoundView:
    total, most = Sum("altered.line", "amount", by="item_id"), Max("altered.line", "amount", by="item_id")
    lines = Many("altered.line", by="item_id", columns=["pieces"])
    entity = Entity("altered.item", related={"total": total, "most": most, "lines": lines})
    (view,) = bind([RedisJson("items", entity, document=lambda row: row)], partial(describe, session))
    return view


def read(view: BoundView, session: Connection) -> list[Row]:
    assert view.derived is not None
    with session.cursor() as cursor:
        cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    try:
        return view.derived.fetch(session, view.derived.table.columns)
    finally:
        if session.open:
            session.rollback()


@pytest.mark.parametrize("made", [of_group, of_document])
@pytest.mark.parametrize("column", ["amount VARCHAR(20)", "amount DECIMAL(10,3)", "amount DOUBLE", "pieces VARCHAR(9)"])
def test_what_became_another_type_is_refused(
    made: Callable[[Connection], BoundView], column: str, server: Server, session: Connection
) -> None:
    view = made(session)
    assert read(view, session)
    ask(server, f"ALTER TABLE altered.line MODIFY {column}")
    with pytest.raises(SourceError, match="its table was altered"):
        read(view, session)


def test_a_masked_column_is_another_type_than_the_server_has(session: Connection) -> None:
    lines = Many("altered.line", by="item_id", columns=["pieces", "day"])
    entity = Entity(
        "altered.item", related={"lines": lines}, masked={"altered.line.pieces": "null", "altered.line.day": "hash"}
    )
    views = with_masks([RedisJson("items", entity, document=lambda row: row["lines"])])
    (view,) = bind(views, partial(describe, session), Masks(secret=b"s" * 16))
    ((*_, shown),) = read(view, session)
    assert [line["pieces"] for line in json.loads(str(shown))] == [None, None]


@pytest.mark.parametrize("made", [of_group, of_document])
def test_what_became_wider_is_the_same_number(
    made: Callable[[Connection], BoundView], server: Server, session: Connection
) -> None:
    view = made(session)
    before = read(view, session)
    ask(server, "ALTER TABLE altered.line MODIFY amount DECIMAL(20,2) NOT NULL, MODIFY pieces BIGINT, ADD note TEXT")
    assert read(view, session) == before
    if made is of_group:
        ((*_, number, total, most, pieces, day),) = before
        assert (number, str(total), str(most), pieces, day) == (2, "19.30", "10.20", 19, 2021)
    else:
        assert '[{"pieces":9},{"pieces":10}]' in before[0]
