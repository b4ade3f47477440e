"""The checker and the watcher are themselves tested: each planted bug is caught, and nothing is without one.

A pipeline of the real parts runs in this process over one scripted history on real servers; a bug is a patch of one of
those parts. The history holds what each bug needs to show: a replay from the beginning, deletes, key changes, a value
changed twice in a batch, a row that leaves its view, a fill with a stray key.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ingest.binlog.coordinates import BinlogPosition
from ingest.binlog.source import BinlogSource
from offsets.lease import Lease
from projectors import projection
from projectors.catalog import Catalog
from projectors.derived import documents, roles
from projectors.derived.reading import DerivedReader
from projectors.fills.guarded import GuardedFill
from projectors.fills.opening import open_filling
from projectors.outcomes import DONE
from projectors.pipeline_run import open_run
from projectors.projection import Projections
from projectors.stores.elasticsearch.sink import ElasticsearchSink
from projectors.stores.index_tables import upserts
from projectors.stores.index_tables.sink import MySQLSink
from projectors.stores.index_tables.table import VERSION
from projectors.stores.redis.sink import RedisSink
from stack import Server
from tests.support.order_world import VIEWS as ORDER_VIEWS
from tests.support.order_world import OrderWorld
from tests.support.running import addresses, wait_for
from tests.support.watcher import Watcher
from tests.support.world import VIEWS, World, differences
from viewtail import declarations, settings
from viewtail.changes.batches import UPDATE, Batch, Row, pairs
from viewtail.changes.pipelines import PipelineId
from viewtail.changes.writes import ViewWrites
from viewtail.composition import deploy
from viewtail.servers.sessions import SNAPSHOT

STORES = ("mysql", "redis", "elasticsearch")
HISTORY = (
    "INSERT INTO conv.user VALUES (1, 'one', 1), (2, 'two', 2), (3, 'three', 3), (131, 'kept', 4), (262, 'gone', 6)",
    "UPDATE conv.user SET email = 'one again' WHERE id = 1",
    "DELETE FROM conv.user WHERE id = 262",
    "UPDATE conv.user SET id = 5 WHERE id = 2",
    "UPDATE conv.user SET n = n + 1 WHERE id = 131",
    "INSERT INTO conv.pair VALUES ('abc', 1, 'v', 1.50), ('x:{}', 2, 'w', NULL)",
    "UPDATE conv.pair SET a = 'ABC' WHERE a = 'abc'",
    "INSERT INTO conv.cell (row_key, col, ref, body) VALUES ('r', 'a', 2, 'newer'), ('r', 'a', 1, 'older')",
    "UPDATE conv.user SET email = NULL WHERE id = 3",
)


@pytest.fixture
def world(mysql_server: Server, redis_server: Server, elasticsearch_server: Server) -> World:
    made = World(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server)
    made.make(users=0)
    return made


@pytest.fixture
def catalog(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    return _deployed(VIEWS, addresses(world.mysql, world.redis, world.elasticsearch), tmp_path, monkeypatch)


def _deployed(views: str, environment: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    (folder / "planted_views.py").write_text(views)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    monkeypatch.delitem(__import__("sys").modules, "planted_views", raising=False)
    config = settings.load(None, {**os.environ, **environment, "VIEWTAIL_VIEWS": "planted_views:views"})
    deployed = deploy(config, declarations.load(config.views))
    deployed.create_tables()
    return deployed


class _Pipelines:
    """Runs the stores' pipelines in this process."""

    def __init__(self, world: World | OrderWorld, catalog: Catalog) -> None:
        self._world = world
        self._catalog = catalog

    def _now(self) -> BinlogPosition:
        connection = self._world.connect()
        with connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOG STATUS")
            file, end = cursor.fetchone()[:2]
        connection.close()
        return BinlogPosition(epoch=1, file=file, end=end, start=end)

    def _execute(self, statements: tuple[str, ...]) -> None:
        connection = self._world.connect()
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                connection.commit()
        connection.close()

    def _fill(self, stores: tuple[str, ...]) -> None:
        for store in stores:
            self._owned(store, self._now(), fill=True)

    def _refill(self, stores: tuple[str, ...]) -> None:
        self._execute(("UPDATE viewtail.view SET state = 'new'",))
        self._fill(stores)

    def _follow(self, stores: tuple[str, ...], start: BinlogPosition) -> None:
        for store in stores:
            self._owned(store, start, fill=False)

    def _owned(self, store: str, start: BinlogPosition, *, fill: bool) -> None:
        """Own one pipeline until it has passed a watermark; fill its views meanwhile when asked to."""
        lease = Lease(self._catalog.servers.open_own, self._catalog.database, store)
        assert lease.acquire(5)
        stop = threading.Event()
        own = open_run(self._catalog, PipelineId.of(store), lease, stop)
        loop = threading.Thread(target=own.pipeline.run, args=(start,))
        loop.start()
        try:
            wait_for("the pipeline runs", lambda: own.pipeline.vitals.state == "running")
            marks = own.pipeline.watermarks
            assert marks.waiter.wait([marks.write()], stop, 20) is not None
            session = self._catalog.session()
            for view in own.life.on(session).to_backfill() if fill else []:
                assert open_filling(own, view, session).run() == DONE
            session.close()
        finally:
            stop.set()
            own.source.interrupt()
            loop.join()
            own.pipeline.offsets.abandon()
            own.close()
            lease.release()


class Story(_Pipelines):
    """Runs the history through the stores' pipelines, twice from its beginning, and once through fills."""

    _world: World

    def __init__(self, world: World, catalog: Catalog) -> None:
        super().__init__(world, catalog)
        self.watcher = Watcher(world)

    def tell(self, stores: tuple[str, ...] = STORES) -> dict[str, list[str]]:
        """What the checker and the watcher object to, by view of these stores; '' for the watcher."""
        self._fill(stores)  # makes every target
        start = self._now()
        self._execute(HISTORY[:1])
        self._follow(stores, start)
        self._execute(HISTORY[1:])
        self._follow(stores, start)
        told = self._objections(stores)
        self._follow(stores, start)  # once more from the beginning: everything in it is old
        told |= self._objections(stores)
        self._execute(("INSERT INTO conv.user VALUES (7, 'seven', 8)",))
        self._stray(stores)
        self._refill(stores)
        told |= self._objections(stores)
        self._follow(stores, start)
        told |= self._objections(stores)
        self._execute(("UPDATE conv.user SET email = 'last', n = n + 2",))
        self._follow(stores, start)
        return told | self._objections(stores)

    def _objections(self, stores: tuple[str, ...]) -> dict[str, list[str]]:
        looks = {
            "mysql": self.watcher._index_rows,
            "redis": self.watcher._redis_hashes,
            "elasticsearch": self.watcher._documents,
        }
        for store in stores:
            for key, seen in looks[store]().items():
                self.watcher.saw(key, seen)
        told = differences(self._world.expected(), self._world.actual(stores))
        told = {view: lines for view, lines in told.items() if view.partition(":")[0] in stores}
        return told | ({"": self.watcher.regressions} if self.watcher.regressions else {})

    def _stray(self, stores: tuple[str, ...]) -> None:
        """A key that no row stands for, as an unguarded writer of old may have left it."""
        if "mysql" in stores:
            self._execute(("INSERT INTO viewtail.ix_email (id, email, version) VALUES (999, 'stray', 5)",))


ORDER_HISTORY = (
    "INSERT INTO docs.country VALUES (1, 'Chile', 1), (2, 'Ghana', 1)",
    "INSERT INTO docs.customer (id, name, country_id, n) VALUES (1, 'ada', 1, 1), (2, 'bob', 2, 1)",
    "INSERT INTO docs.category VALUES (1, 'food', 1)",
    "INSERT INTO docs.product (id, title, category_id, n) VALUES (1, 'tea', 1, 1), (2, 'rice', 1, 1)",
    "INSERT INTO docs.`order` (id, customer_id, note, n) VALUES (1, 1, 'a', 1), (2, 1, 'b', 1), (3, 2, 'c', 1)",
    *(
        "INSERT INTO docs.order_line (id, order_id, line_no, product_id, amount, status, n) VALUES "
        f"({line}, {order}, {line}, {product}, 1.5, 'paid', 1)"
        for line, order, product in ((1, 1, 1), (2, 1, 2), (3, 2, 1), (4, 3, 1))
    ),
    "INSERT INTO docs.tag VALUES (1, 'new', 1)",
    "INSERT INTO docs.order_tag VALUES (1, 1), (3, 1)",
)
ORDER_CHANGES = (
    ("UPDATE docs.order_line SET order_id = 2, n = 2 WHERE id = 2",),  # both orders
    ("UPDATE docs.category SET name = 'drink', n = 2 WHERE id = 1",),  # all, from three tables away
    ("UPDATE docs.country SET name = 'Chad', n = 2 WHERE id = 1",),
    ("UPDATE docs.tag SET name = 'old', n = 2 WHERE id = 1",),
    ("DELETE FROM docs.order_line WHERE id = 4", "DELETE FROM docs.`order` WHERE id = 3"),
)


class OrderStory(_Pipelines):
    """Runs changes of nine tables through the pipelines of two stores, some at a time, and all again."""

    _world: OrderWorld

    def tell(self) -> dict[str, list[str]]:
        """What the checker objects to, by view."""
        stores = ("mysql", "redis")
        self._fill(stores)
        start = self._now()
        self._execute(ORDER_HISTORY)
        self._follow(stores, start)
        told = differences(self._world.expected(), self._world.actual())
        for changes in ORDER_CHANGES:
            now = self._now()
            self._execute(changes)
            self._follow(stores, now)
            told |= differences(self._world.expected(), self._world.actual())
        self._follow(stores, start)
        return told | differences(self._world.expected(), self._world.actual())


@pytest.fixture
def order_story(
    mysql_server: Server, redis_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> OrderStory:
    world = OrderWorld(mysql=mysql_server, redis=redis_server)
    world.make_tables()
    return OrderStory(world, _deployed(ORDER_VIEWS, addresses(mysql_server, redis_server), tmp_path, monkeypatch))


def test_without_a_bug_nothing_is_reported_of_orders(order_story: OrderStory) -> None:
    assert order_story.tell() == {}


def test_without_a_bug_nothing_is_reported(world: World, catalog: Catalog) -> None:
    assert Story(world, catalog).tell() == {}


# -- the bugs ---------------------------------------------------------------------------------------------------


def _no_guard_in_mysql(patch: pytest.MonkeyPatch) -> None:
    def unguarded(shape: Any, facts: Any) -> str:
        return "ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = new.{name}" for name in (*shape.value_names, VERSION))

    patch.setattr(upserts, "on_duplicate", unguarded)


def _version_assigned_first_in_mysql(patch: pytest.MonkeyPatch) -> None:
    made = upserts.on_duplicate

    def version_first(shape: Any, facts: Any) -> str:
        before, _, changes = made(shape, facts).partition("ON DUPLICATE KEY UPDATE ")
        parts = changes.split("), ")
        parts = [part if part.endswith(")") else part + ")" for part in parts]
        return f"{before}ON DUPLICATE KEY UPDATE {', '.join([parts[-1], *parts[:-1]])}"

    patch.setattr(upserts, "on_duplicate", version_first)


def _drop_writes(patch: pytest.MonkeyPatch, sink: type, is_dropped: Callable[[Any, Any], bool]) -> None:
    made = sink.write  # type: ignore[attr-defined]

    def write(self: Any, writes: Any, upto: Any, *more: Any) -> Any:
        kept = [
            ViewWrites(found.view, {k: w for k, w in found.writes.items() if not is_dropped(k, w)}) for found in writes
        ]
        return made(self, kept, upto)

    patch.setattr(sink, "write", write)


def _tombstones_dropped_in_redis(patch: pytest.MonkeyPatch) -> None:
    _drop_writes(patch, RedisSink, lambda key, write: write[1] is None)


def _tombstones_dropped_in_elasticsearch(patch: pytest.MonkeyPatch) -> None:
    _drop_writes(patch, ElasticsearchSink, lambda key, write: write[1] is None)


def _one_row_skipped(patch: pytest.MonkeyPatch) -> None:
    _drop_writes(patch, MySQLSink, lambda key, write: key == (5,))


def _batches(patch: pytest.MonkeyPatch, change: Callable[[Batch], None]) -> None:
    made = BinlogSource.read

    def read(self: Any, after: BinlogPosition) -> Iterator[Batch]:
        for batch in made(self, after):
            change(batch)
            yield batch

    patch.setattr(BinlogSource, "read", read)


def _deletes_lost_by_the_reader(patch: pytest.MonkeyPatch) -> None:
    def change(batch: Batch) -> None:
        batch.changes = [one for one in batch.changes if one.kind != 2]

    _batches(patch, change)


def _key_change_taken_for_an_update(patch: pytest.MonkeyPatch) -> None:
    made = projection.Projections.of

    def of(self: Any, batch: Batch) -> Any:
        batch.changes = [one._replace(kind=0, rows=one.rows[1::2]) if one.kind == 1 else one for one in batch.changes]
        return made(self, batch)

    patch.setattr(projection.Projections, "of", of)


def _oldest_of_a_batch_wins(patch: pytest.MonkeyPatch) -> None:
    def change(batch: Batch) -> None:
        batch.changes.reverse()

    _batches(patch, change)


def _watermark_version_too_high(patch: pytest.MonkeyPatch) -> None:
    made = Projections.of_rows

    def of_rows(self: Any, view: str, rows: Any, version: int) -> Any:
        return made(self, view, rows, version + (1 << 40))

    patch.setattr(Projections, "of_rows", of_rows)


def _no_sweep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GuardedFill, "sweep", lambda *of: False)


def _offset_saved_ahead_of_a_lost_batch(patch: pytest.MonkeyPatch) -> None:
    made = MySQLSink.write
    is_first = [True]

    def write(self: Any, writes: Any, upto: Any, *more: Any) -> Any:
        if upto is not None and writes and is_first[0]:
            is_first[0] = False
            return []  # as if the process died between the offset and the write
        return made(self, writes, upto)

    patch.setattr(MySQLSink, "write", write)
    # and no second reading from the beginning, which would heal it
    told: list[int] = []
    follow = Story._follow

    def once(self: Any, stores: Any, start: Any) -> None:
        told.append(1)
        if len(told) <= 2:
            follow(self, stores, start)

    patch.setattr(Story, "_follow", once)
    patch.setattr(Story, "_refill", lambda self, stores: None)


BUGS = [
    (_no_guard_in_mysql, ("mysql",)),
    (_version_assigned_first_in_mysql, ("mysql",)),
    (_one_row_skipped, ("mysql",)),
    (_tombstones_dropped_in_redis, ("redis",)),
    (_tombstones_dropped_in_elasticsearch, ("elasticsearch",)),
    (_deletes_lost_by_the_reader, ("mysql",)),
    (_key_change_taken_for_an_update, ("redis",)),
    (_oldest_of_a_batch_wins, ("mysql", "redis")),
    (_watermark_version_too_high, ("mysql",)),
    (_no_sweep, ("mysql",)),
    (_offset_saved_ahead_of_a_lost_batch, ("mysql",)),
]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("plant", "stores"), BUGS, ids=[plant.__name__.strip("_") for plant, _ in BUGS])
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None],
    stores: tuple[str, ...],
    world: World,
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    told = Story(world, catalog).tell(stores)
    print(told)
    assert told != {}


# -- of documents -----------------------------------------------------------------------------------------------


def _images_of_before_ignored(patch: pytest.MonkeyPatch) -> None:
    def after_alone(kind: int, rows: list[Row]) -> Any:
        return [(None if kind == UPDATE else before, after) for before, after in pairs(kind, rows)]

    patch.setattr(roles, "pairs", after_alone)


def _one_table_is_skipped(patch: pytest.MonkeyPatch) -> None:
    made = documents.DocumentRows.touched

    def touched(self: Any, events: Any) -> Any:
        return made(self, [event for event in events if event.followed.table.name != "category"])

    patch.setattr(documents.DocumentRows, "touched", touched)


def _dependents_of_one_page_alone(patch: pytest.MonkeyPatch) -> None:
    made = documents.DocumentRows.dependents

    def dependents(self: Any, connection: Any, what: str, cursor: Any, limit: int) -> Any:
        return replace(made(self, connection, what, cursor, 1), cursor=None)

    patch.setattr(documents.DocumentRows, "dependents", dependents)


def _rows_of_an_old_snapshot(patch: pytest.MonkeyPatch) -> None:
    """What is written has the version of the change, and the content of before."""
    old: list[Any] = []

    def in_snapshot(self: Any, changes: Any, read: Any) -> Any:
        if not old:
            old.append(self._open())
            with old[0].cursor() as cursor:
                cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute(SNAPSHOT)
        return read(old[0])

    patch.setattr(DerivedReader, "in_snapshot", in_snapshot)


ORDER_BUGS = [
    _images_of_before_ignored,
    _one_table_is_skipped,
    _dependents_of_one_page_alone,
    _rows_of_an_old_snapshot,
]


@pytest.mark.parametrize("plant", ORDER_BUGS, ids=[plant.__name__.strip("_") for plant in ORDER_BUGS])
def test_a_bug_that_is_planted_in_documents_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], order_story: OrderStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    told = order_story.tell()
    print(told)
    assert told != {}
