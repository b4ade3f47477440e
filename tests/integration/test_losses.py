"""What a store, an operator or a deployment takes away is noticed, and filled in again; nothing else is."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import redis

from projectors.catalog import bound_to_what_fits
from projectors.outcomes import STOPPED, End
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.index_tables.views import IndexTable
from projectors.stores.redis.views import RedisHash
from projectors.views import Entity, View
from stack import Server
from tests.integration.test_backfill import ITEM, VIEWS, Shelf, servers
from tests.support.pipelines import deployed, owned
from tests.support.running import wait_for
from tests.support.world import World
from viewtail import settings
from viewtail.changes.errors import DeclarationError, StoreUnavailableError

OTHER = IndexTable("ix_other", ITEM, value="other")


@pytest.fixture
def shelf(mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> Shelf:
    return Shelf(World(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server))


def states(shelf: Shelf) -> dict[str, str]:
    return dict(shelf.rows("SELECT name, state FROM viewtail.view"))


def filled(shelf: Shelf, views: Sequence[View], store: str) -> None:
    with owned(deployed(views, *servers(shelf)), store) as owner:
        owner.fill_all()
        assert set(states(shelf).values()) == {"filled"}


# -- the declarations ---------------------------------------------------------------------------------------------


def test_a_view_taken_out_and_put_back_is_filled_again(shelf: Shelf) -> None:
    shelf.add(3)
    view = VIEWS["mysql"]
    filled(shelf, [view, OTHER], "mysql")
    with owned(deployed([OTHER], *servers(shelf)), "mysql") as owner:
        shelf.execute("DELETE FROM fill.item WHERE id = 1", "UPDATE fill.item SET name = 'new' WHERE id = 2")
        owner.pass_everything()
    with owned(deployed([view, OTHER], *servers(shelf)), "mysql") as owner:
        assert owner.to_fill() == [view.id], "the other one missed nothing"
        owner.fill_all()
        assert shelf.shown("mysql") == {2: "new", 3: "n3"}


def test_looking_for_new_views_spends_no_numbers(shelf: Shelf) -> None:
    """The keys of viewtail's tables are small: a number for every look would use them up in hours."""
    query = (
        "SELECT table_name, auto_increment FROM information_schema.tables WHERE table_schema = 'viewtail' "
        "AND auto_increment IS NOT NULL"
    )
    filled(shelf, [VIEWS["mysql"]], "mysql")
    shelf.execute("SET GLOBAL information_schema_stats_expiry = 0")
    shelf.execute(*(f"ANALYZE TABLE viewtail.{name}" for name in ("view", "pipeline", "source", "watermark")))
    before = dict(shelf.rows(query))
    assert {"view", "pipeline", "source", "watermark"} <= set(before)
    for _ in range(5):
        with owned(deployed([VIEWS["mysql"]], *servers(shelf)), "mysql") as owner:
            owner.to_fill()
            owner.pass_everything()
    shelf.execute(*(f"ANALYZE TABLE viewtail.{name}" for name in ("view", "pipeline", "source", "watermark")))
    assert dict(shelf.rows(query)) == before


# -- what somebody took away --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [
        "DROP TABLE viewtail.ix_item",
        "ALTER TABLE viewtail.ix_item DROP COLUMN name",
        "ALTER TABLE viewtail.ix_item MODIFY name VARCHAR(3) CHARACTER SET latin1",
    ],
)
def test_an_index_table_that_somebody_broke_is_filled_again(loss: str, shelf: Shelf) -> None:
    shelf.add(3)
    shelf.execute("UPDATE fill.item SET name = '漢字' WHERE id = 3") if "latin1" not in loss else None
    filled(shelf, [VIEWS["mysql"], OTHER], "mysql")
    shelf.execute(loss)
    with owned(deployed([VIEWS["mysql"], OTHER], *servers(shelf)), "mysql") as owner:
        assert owner.to_fill() == [VIEWS["mysql"].id]
        owner.fill_all()
        assert shelf.shown("mysql") == shelf.in_table()


def test_an_index_table_dropped_under_a_running_pipeline_is_filled_again(shelf: Shelf) -> None:
    shelf.add(3)
    view = VIEWS["mysql"]
    filled(shelf, [view], "mysql")
    with owned(deployed([view], *servers(shelf)), "mysql") as owner:
        shelf.execute("DROP TABLE viewtail.ix_item", "UPDATE fill.item SET name = 'x' WHERE id = 1")
        wait_for("its loss is noticed", lambda: states(shelf) == {view.id: "new"})
        owner.fill_all()
        owner.pass_everything()
        assert shelf.shown("mysql") == shelf.in_table()


def test_an_interrupted_fill_into_a_table_that_is_gone_begins_anew(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.add(30)
    view = VIEWS["mysql"]
    with owned(deployed([view], *servers(shelf)), "mysql") as owner:
        made = owner.backfill(view.id, chunk_rows=10)
        stop = threading.Event()
        save = made.progress.save

        def save_and_stop(key: tuple[Any, ...], row_count: int, kept_count: int) -> None:
            save(key, row_count, kept_count)
            stop.set()

        monkeypatch.setattr(made, "stop", stop)
        monkeypatch.setattr(made.progress, "save", save_and_stop)
        assert made.run() == STOPPED
        assert len(shelf.shown("mysql")) == 10
        shelf.execute("DROP TABLE viewtail.ix_item")
        owner.fill(view.id, chunk_rows=10)
        assert shelf.shown("mysql") == shelf.in_table()


def test_a_new_index_beside_old_ones_fills_itself_alone(shelf: Shelf) -> None:
    shelf.add(3)
    shelf.world.search("DELETE", "/viewtail-second?ignore_unavailable=true")
    old, new = VIEWS["elasticsearch"], SearchIndex("second", ITEM, fields={"name": "keyword"})
    filled(shelf, [old], "elasticsearch")
    with owned(deployed([old, new], *servers(shelf)), "elasticsearch") as owner:
        assert owner.to_fill() == [new.id]
        owner.fill_all()
        owner.pass_everything()
    with owned(deployed([old, new], *servers(shelf)), "elasticsearch") as owner:
        assert owner.to_fill() == []
    shelf.world.search("DELETE", "/viewtail-second")


# -- a store that comes back with less ----------------------------------------------------------------------------


def test_a_redis_that_lost_rows_of_a_finished_fill_is_filled_again(shelf: Shelf) -> None:
    """Rows of a fill are not in the stream: reading it again would not bring them back."""
    shelf.add(20)
    view = VIEWS["redis"]
    client: Any = redis.Redis(port=shelf.world.redis.port)
    catalog = deployed([view], *servers(shelf))
    with owned(catalog, "redis") as owner:
        witness_key = next(key for key in client.scan_iter("viewtail:*witness"))
        before = client.get(witness_key)
        owner.fill_all()
        assert states(shelf) == {view.id: "filled"}
    # As a server that comes back with what it had saved before the fill.
    client.flushall()
    client.set(witness_key, before)
    with owned(catalog, "redis") as owner:
        assert owner.to_fill() == [view.id]
        owner.fill_all()
        assert shelf.shown("redis") == shelf.in_table()


def test_a_redis_that_lost_changes_after_a_fill_reads_them_again_without_filling(shelf: Shelf) -> None:
    shelf.add(20)
    view = VIEWS["redis"]
    client: Any = redis.Redis(port=shelf.world.redis.port)
    catalog = deployed([view], *servers(shelf))
    with owned(catalog, "redis") as owner:
        owner.fill_all()
        witness_key = next(key for key in client.scan_iter("viewtail:*witness"))
        before, row = client.get(witness_key), client.hgetall("item:5")
        shelf.execute("UPDATE fill.item SET name = 'later' WHERE id = 5")
        owner.pass_everything()
    client.set(witness_key, before)
    client.delete("item:5")
    client.hset("item:5", mapping=row)
    with owned(catalog, "redis") as owner:
        assert owner.to_fill() == []
        owner.pass_everything()
        assert shelf.shown("redis") == shelf.in_table()


@pytest.mark.parametrize("is_busy", [True, False], ids=["while rows come", "while nothing happens"])
def test_a_redis_that_is_flushed_under_a_running_pipeline_is_filled_again(shelf: Shelf, is_busy: bool) -> None:
    """The next write must not put the witness back as if nothing had happened."""
    shelf.add(20)
    view = VIEWS["redis"]
    client: Any = redis.Redis(port=shelf.world.redis.port)
    with owned(deployed([view], *servers(shelf)), "redis") as owner:
        owner.fill_all()
        client.flushall()
        if is_busy:
            shelf.execute("UPDATE fill.item SET name = 'later' WHERE id = 5")
        wait_for("the loss is noticed", lambda: owner.to_fill() == [view.id])
        owner.fill_all()
        assert shelf.shown("redis") == shelf.in_table()
        assert client.keys("viewtail:*witness"), "from here on a loss can be told again"


def test_a_redis_that_is_flushed_amid_a_fill_is_filled_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.add(60)
    view = VIEWS["redis"]
    client: Any = redis.Redis(port=shelf.world.redis.port)
    with owned(deployed([view], *servers(shelf)), "redis") as owner:
        made = owner.backfill(view.id, chunk_rows=10)
        save = made.progress.save

        def save_and_lose(key: Any, row_count: int, kept_count: int) -> None:
            save(key, row_count, kept_count)
            if row_count == 30:
                client.flushall()

        monkeypatch.setattr(made.progress, "save", save_and_lose)
        made.run()
        assert states(shelf) != {view.id: "filled"}, "half of it is gone"
        owner.fill_all()
        assert states(shelf) == {view.id: "filled"}
        assert shelf.shown("redis") == shelf.in_table()


# -- the sweep ----------------------------------------------------------------------------------------------------


def test_a_parked_key_keeps_what_it_shows_when_its_view_is_filled_again(shelf: Shelf) -> None:
    shelf.add(3)

    def where(row: Mapping[str, Any]) -> bool:
        if row["name"] == "bad":
            raise ValueError
        return True

    view = RedisHash("item", ITEM, fields=["name"], where=where)
    with owned(deployed([view], *servers(shelf)), "redis") as owner:
        owner.fill_all()
        shelf.execute("UPDATE fill.item SET name = 'bad' WHERE id = 2", "DELETE FROM fill.item WHERE id = 3")
        owner.pass_everything()
        assert owner.own.pipeline.dead_letters.count == 1
        owner.fill_again(view.id)
        assert shelf.shown("redis") == {1: "n1", 2: "n2"}
        assert owner.own.pipeline.dead_letters.count == 1
        shelf.execute("UPDATE fill.item SET name = 'good' WHERE id = 2")
        owner.pass_everything()
        assert owner.own.pipeline.dead_letters.count == 0


def test_a_refill_by_version_column_shows_the_new_declaration(shelf: Shelf) -> None:
    shelf.execute(
        "CREATE TABLE fill.doc (id INT PRIMARY KEY, rev BIGINT NOT NULL, name VARCHAR(20), n INT)",
        "INSERT INTO fill.doc VALUES (1, 10, 'one', 1), (2, 20, 'two', 2), (3, 30, 'three', 3)",
    )
    doc = Entity("fill.doc", version="rev")
    filled(shelf, [IndexTable("ix_item", doc, value="name")], "mysql")
    view = IndexTable("ix_item", doc, value=["name", "n"], where=lambda row: row["n"] != 2)
    with owned(deployed([view], *servers(shelf)), "mysql") as owner:
        owner.fill_all()
        assert sorted(shelf.rows("SELECT id, name, n FROM viewtail.ix_item WHERE name IS NOT NULL")) == [
            (1, "one", 1),
            (3, "three", 3),
        ]


# -- halted views -------------------------------------------------------------------------------------------------


def test_a_halted_view_whose_table_is_gone_leaves_the_others_alone(shelf: Shelf) -> None:
    shelf.add(3)
    shelf.execute("CREATE TABLE fill.gone (id INT PRIMARY KEY, name VARCHAR(20))")
    views = [VIEWS["mysql"], IndexTable("ix_gone", Entity("fill.gone"), value="name")]
    catalog = deployed(views, *servers(shelf))
    with owned(catalog, "mysql") as owner:
        owner.fill_all()
        shelf.execute("DROP TABLE fill.gone")
        owner.pass_everything()
        assert states(shelf) == {"mysql:ix_item": "filled", "mysql:ix_gone": "halted"}
    left = bound_to_what_fits(catalog.servers, views)
    assert [view.id for view in left.views] == ["mysql:ix_item"]
    with owned(left, "mysql") as owner:
        shelf.execute("UPDATE fill.item SET name = 'goes on' WHERE id = 1")
        owner.pass_everything()
        assert shelf.shown("mysql")[1] == "goes on"
        assert states(shelf)["mysql:ix_gone"] == "halted"


def test_rights_that_are_missing_halt_nothing(shelf: Shelf) -> None:
    """The table may be as it was: a view that halts would have to be filled again for nothing."""
    shelf.add(3)
    views = [VIEWS["mysql"], IndexTable("ix_other", Entity("fill.other"), value="name")]
    shelf.execute("CREATE TABLE fill.other (id INT PRIMARY KEY, name VARCHAR(20), n INT)")
    catalog = deployed(views, *servers(shelf))
    with owned(catalog, "mysql") as owner:
        owner.fill_all()
    shelf.execute(
        "DROP USER IF EXISTS reader", "CREATE USER reader", "GRANT ALL ON viewtail.* TO reader",
        "GRANT SELECT ON fill.item TO reader",
    )  # fmt: skip
    limited = settings.load(None, {"VIEWTAIL_SOURCE__URL": shelf.world.mysql.url.replace("root", "reader")})
    try:
        with pytest.raises(DeclarationError, match=r"fill\.other does not exist, or the user reader may not see it"):
            bound_to_what_fits(limited.servers(), views)
        shelf.execute("GRANT SELECT (id, n) ON fill.other TO reader")
        with pytest.raises(DeclarationError, match=r"ix_other.*no column name"):
            bound_to_what_fits(limited.servers(), views)
        assert states(shelf)["mysql:ix_other"] == "filled"
        away = {
            "VIEWTAIL_SOURCE__URL": shelf.world.mysql.url,
            "VIEWTAIL_MYSQL__URL": "mysql://root@127.0.0.1:9/viewtail",
        }
        shelf.execute("DROP TABLE fill.other")
        with pytest.raises(StoreUnavailableError):  # which views it kept is not known: waited for, not refused
            bound_to_what_fits(settings.load(None, away).servers(), views)
    finally:
        shelf.execute("DROP USER reader")


def test_a_fill_that_a_redis_restarted_under_begins_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a quiet stream nothing else would tell that the rows of the first chunks are gone."""
    shelf.add(30)
    view = VIEWS["redis"]
    client: Any = redis.Redis(port=shelf.world.redis.port)
    with owned(deployed([view], *servers(shelf)), "redis") as owner:
        made = owner.backfill(view.id, chunk_rows=10)
        runs = iter(["first run"])
        monkeypatch.setattr(type(made.strategy.sink), "incarnation", lambda _: next(runs, "second run"))
        assert made.run().end is End.AGAIN
        assert states(shelf) == {view.id: "new"}
        for key in client.scan_iter("item:*"):
            client.delete(key)
        owner.fill(view.id, chunk_rows=10)
        assert states(shelf) == {view.id: "filled"}
        assert shelf.shown("redis") == shelf.in_table()
