"""Rows that very many others depend on: these are written page by page, and whoever waits for all of them does."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from offsets.copies import Copies, Stage
from offsets.copies import Event as CopyEvent
from offsets.views import Event
from projectors import failpoints
from projectors.derived import fan_outs, pace
from projectors.derived.fan_outs import FanOuts
from projectors.fills import runner
from projectors.fills.runner import FillRunner
from projectors.pipeline import GuardedPipeline
from stack import Server
from tests.support.asking import ask
from tests.support.pipelines import Owner, owned
from tests.support.running import Run, addresses, wait_for
from viewtail import settings
from viewtail.composition import deploy

ORDERS = 900
PAGE = 20
HOT = 7

VIEWS = """
from viewtail import Entity, IndexTable, Many, One, RedisJson

order = Entity(
    "fan.order",
    related={"lines": Many("fan.line", by="order_id", related={"product": One("fan.product", on="product_id")})},
)


def names(row):
    return {"note": row["note"], "names": [line["product"]["name"] for line in row["lines"]]}


def first_name(row):
    return row["lines"][0]["product"]["name"] if row["lines"] else None


views = [
    RedisJson("fan", order, document=names),
    IndexTable("fan", order, values={"name": "VARCHAR(40)"}, of=first_name),
]
"""

SELDOM_S = 2
SELDOM = f"""
from viewtail import Count, Group, IndexTable, RedisHash

lines = Group("fan.line", by="product_id", values={{"n": Count()}}, at_most_every={SELDOM_S})
views = [RedisHash("fan", lines, fields=["n"]), IndexTable("fan", lines, value="n")]
"""


class World:
    """Orders that all have one product, and a pipeline whose pages are let through one by one."""

    def __init__(self, server: Server, redis_server: Server, store: str, folder: Path, views: str = VIEWS) -> None:
        self.server, self.store = server, store
        self.redis = redis.Redis(host="127.0.0.1", port=redis_server.port, decode_responses=True)
        self.redis.flushall()
        for database in ("fan", "viewtail"):
            ask(server, f"DROP DATABASE IF EXISTS {database}")
        for statement in (
            "CREATE DATABASE fan",
            "CREATE TABLE fan.`order` (id INT PRIMARY KEY, note VARCHAR(20) NOT NULL)",
            (
                "CREATE TABLE fan.line (id INT PRIMARY KEY, order_id INT NOT NULL, product_id INT NOT NULL, "
                "KEY (order_id), KEY (product_id))"
            ),
            "CREATE TABLE fan.product (id INT PRIMARY KEY, name VARCHAR(40) NOT NULL)",
            f"INSERT INTO fan.product VALUES ({HOT}, 'p0'), (8, 'q0')",
            "INSERT INTO fan.`order` VALUES " + ", ".join(f"({number}, 'n')" for number in range(ORDERS)),
            "INSERT INTO fan.line VALUES " + ", ".join(f"({number}, {number}, {HOT})" for number in range(ORDERS)),
        ):
            ask(server, statement)
        self.run = Run(folder, views, {**addresses(server, redis_server), "VIEWTAIL_RUN__FAN_OUT_ABOVE": "100"})
        self.pages = self.keys = 0
        self._allowed = threading.Semaphore(0)
        self._is_held = False
        self.slow_s = 0.0

    def reach(self, step: str) -> None:
        if step == "after page":
            self.pages += 1
            time.sleep(self.slow_s)
            if self._is_held:
                assert self._allowed.acquire(timeout=60)

    def hold(self) -> None:
        """The loop stops behind each page, until `let` it goes."""
        self._is_held = True

    def let(self, pages: int) -> None:
        before = self.pages
        self._allowed.release(pages)
        wait_for("so many pages are written", lambda: self.pages >= before + pages)

    def let_all(self) -> None:
        self._is_held = False
        self._allowed.release(1000)

    def rename(self, name: str, product: int = HOT) -> None:
        ask(self.server, f"UPDATE fan.product SET name = '{name}' WHERE id = {product}")

    def shown(self) -> dict[int, str | None]:
        """The name of the first product of each order."""
        if self.store == "mysql":
            return dict(ask(self.server, "SELECT id, name FROM viewtail.fan"))
        keys = [f"fan:{number}" for number in range(ORDERS)]
        found = (json.loads(value) if value else None for value in self.redis.mget(keys))
        return {number: value["names"][0] if value and value["names"] else None for number, value in enumerate(found)}

    def count(self, name: str) -> int:
        return sum(shown == name for shown in self.shown().values())

    def kept(self) -> list[tuple[Any, ...]]:
        """Version of the pass and the next one, entities done, and whether the pass is written."""
        return ask(
            self.server,
            "SELECT version, next_version, done_count, written_upto IS NOT NULL FROM viewtail.fan_out",
        )

    def is_open(self) -> bool:
        return any(not is_written for *_, is_written in self.kept())

    @contextmanager
    def owner(self) -> Iterator[Owner]:
        """The store's pipeline, whose view is filled."""
        spec = importlib.util.spec_from_file_location("views", self.run.folder / "views.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        catalog = deploy(settings.load(None, self.run.environment()), module.views)
        catalog.create_tables()
        with owned(catalog, self.store) as owner:
            owner.fill_all()
            try:
                yield owner
            finally:
                self.let_all()

    def succeeds(self, *arguments: str) -> str:
        done = self.run.command(*arguments)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture(
    params=[pytest.param("mysql", marks=pytest.mark.mysql), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture(params=["redis", "mysql"])
def world(
    request: pytest.FixtureRequest,
    server: Server,
    redis_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    found = World(server, redis_server, request.param, tmp_path)
    monkeypatch.setattr(failpoints, "reach", found.reach)
    page = fan_outs.page_of

    def counted(*arguments: Any, **named: Any) -> fan_outs.Page:
        read = page(*arguments, **named)
        found.keys += len(read.keys)
        return read

    monkeypatch.setattr(fan_outs, "page_of", counted)
    monkeypatch.setattr(pace, "MOST_KEYS", PAGE)
    monkeypatch.setattr(fan_outs, "SAVE_EVERY_S", 0.0)
    return found


def test_many_dependents_are_written_page_by_page_and_other_changes_come_between(world: World) -> None:
    with world.owner() as owner:
        assert world.count("p0") == ORDERS
        world.slow_s = 0.02
        world.rename("p1")
        wait_for("it is under way", world.is_open)
        ask(world.server, "UPDATE fan.product SET name = 'q1' WHERE id = 8")
        ask(world.server, "UPDATE fan.line SET product_id = 8 WHERE id = 899")
        wait_for("the other change is shown", lambda: world.shown()[899] == "q1")
        assert world.is_open() and 0 < owner.own.lag_s < 60 and owner.own.stream_lag_s < 10
        wait_for("all are written", lambda: world.count("p1") == ORDERS - 1)
        wait_for("it is over", lambda: not world.is_open())
        owner.pass_everything()
        assert world.kept() == [] and owner.own.lag_s == 0.0
        assert world.pages >= (ORDERS - 1) / PAGE


def test_a_pass_goes_on_where_it_was_when_the_pipeline_is_taken_again(world: World) -> None:
    with world.owner():
        world.hold()
        world.rename("p1")
        wait_for("a page is written", lambda: world.pages == 1)
        world.let(9)
        done = world.kept()[0][2]
        assert 0 < done < ORDERS
        world.let_all()  # it stops behind a page or two
        world.slow_s = 0.2
    world.slow_s = 0.0
    assert world.is_open()
    with world.owner() as owner:
        wait_for("all are written", lambda: world.count("p1") == ORDERS)
        owner.pass_everything()
        assert world.kept() == []
    assert world.keys <= ORDERS + 2 * PAGE, "what was written before is not written again"


def test_a_change_meanwhile_has_another_pass_follow(world: World) -> None:
    with world.owner() as owner:
        world.hold()
        world.rename("p1")
        wait_for("a page is written", lambda: world.pages == 1)
        world.let(6)
        world.rename("p2")
        world.let(3)
        ((version, next_version, done, _),) = world.kept()
        assert next_version is not None and next_version > version and done > 0
        world.rename("p3")
        world.let(3)
        assert [kept[:2] for kept in world.kept()] == [(version, next_version)], "one pass shows both"
        world.let_all()
        wait_for("the last is shown", lambda: world.count("p3") == ORDERS)
        wait_for("it is over", lambda: not world.is_open())
        owner.pass_everything()
        assert world.kept() == []


def test_commands_wait_for_it_and_name_it(world: World) -> None:
    view = f"{world.store}:fan"
    with world.owner() as owner:
        world.hold()
        world.rename("p1")
        wait_for("a page is written", lambda: world.pages == 1)
        world.let(4)
        last = next(number for number, name in sorted(world.shown().items(), reverse=True) if name == "p0")
        (listed,) = json.loads(world.run.command("status", "--json").stdout)["fan_outs"]
        assert listed.items() >= {"view": view, "table": "fan.product", "key": str(HOT)}.items()
        assert 0 < listed["done"] < ORDERS and 0 < listed["about"] < 2 * ORDERS
        assert "a fan-out of fan.product 7 is under way" in world.run.command("status").stdout
        world.slow_s = 0.3  # the loop passes watermarks between two pages
        world.let_all()
        why = json.loads(world.run.command("why", view, str(last), "--json").stdout)
        assert why["verdict"] == "behind" and "a fan-out of fan.product 7 is under way" in why["why"], why
        late = world.run.command("wait", view, "--within", "2")
        assert late.returncode == 1 and "a fan-out of fan.product 7" in late.stderr, (late.stdout, late.stderr)
        world.slow_s = 0.05
        verify = world.run.command("verify", view)
        assert verify.returncode == 0, verify.stdout
        assert world.count("p1") == ORDERS, "it has waited"
        world.rename("p2")
        world.succeeds("wait", view)
        assert world.count("p2") == ORDERS
        assert owner.failure is None


def test_an_erased_row_is_in_no_fan_out_that_is_kept(world: World) -> None:
    of_product = {
        "redis": "RedisJson('product', product, fields=['name'])",
        "mysql": "IndexTable('product', product, value='name')",
    }
    views = VIEWS.replace('line["product"]["name"]', '(line["product"] or {"name": None})["name"]')
    views = views.replace('row["lines"][0]["product"]["name"] if row["lines"] else None', 'names(row)["names"][0]')
    more = f"product = Entity('fan.product')\nviews.append({of_product[world.store]})\n"
    (world.run.folder / "views.py").write_text(views + more)
    with world.owner() as owner:
        world.slow_s = 0.3
        ask(world.server, f"DELETE FROM fan.product WHERE id = {HOT}")
        wait_for("it is under way", world.is_open)
        late = world.run.command("forget", "fan.product", str(HOT), "--timeout", "2").stderr
        assert f"the pipelines of {world.store}:product, redis:fan, mysql:fan have passed" in late, late
        assert f"view {world.store}:fan is behind: a fan-out of fan.product {HOT} is under way" in late, late
        assert "It goes on by itself" in late and "Repeat the command when that is over" in late, late
        world.slow_s = 0.02
        proof = json.loads(world.succeeds("forget", "fan.product", str(HOT), "--json"))
        assert proof["is_erased"]
        assert world.kept() == [] and world.count("p0") == 0
        assert owner.failure is None


def test_a_backfill_and_a_halt_make_it_needless(world: World) -> None:
    view = f"{world.store}:fan"
    with world.owner() as owner:
        world.hold()
        world.rename("p1")
        wait_for("a page is written", lambda: world.pages == 1)
        world.let(3)
        assert world.is_open()
        world._is_held, world.slow_s = False, 0.2
        world._allowed.release(10)
        owner.own.life.on(owner._session).states.move(Event.REPLAYED, [view])
        owner.fill(view)
        assert world.kept() == [], "its backfill has brought it"
        world.slow_s = 0.0
        owner.pass_everything()
        assert world.count("p1") == ORDERS
        world.hold()
        world.rename("p2")
        wait_for("it is under way", world.is_open)
        owner.own.life.on(owner._session).halt(view, "for a test")
        assert world.kept() == []
        world.let_all()
        owner.pass_everything()
        wait_for("nothing waits", lambda: owner.own.lag_s == 0.0)


def test_a_swap_that_waits_for_a_fan_out_for_long_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a row changes all the time no swap is possible: its operator is told, and can go back."""
    monkeypatch.setattr(runner, "SWAP_WAITS_S", 0.5)
    monkeypatch.setattr(runner, "LOOK_EVERY_S", 0.1)
    view = f"{world.store}:fan"
    with world.owner() as owner, closing(owner.own.catalog.session()) as session:
        records = Copies(session, owner.own.catalog.database, owner.own.identity.name)
        records.begin(view, "a test", 60)
    with world.owner() as owner, closing(owner.own.catalog.session()) as session:
        records = Copies(session, owner.own.catalog.database, owner.own.identity.name)
        world.hold()
        world.rename("p1")
        wait_for("both copies have one under way", lambda: len(world.kept()) == 2)
        assert records.move(records.read()[view], CopyEvent.SWAP_ASKED)
        rounds = threading.Thread(target=FillRunner(owner.own).run)
        rounds.start()
        try:
            wait_for("it is refused", lambda: records.read()[view].stage is Stage.BUILDING)
        finally:
            owner.own.stop.set()
            world.let_all()
            rounds.join()
        note = records.read()[view].note
        assert note is not None and "a fan-out of fan.product 7 is under way" in note, note
        assert records.move(records.read()[view], CopyEvent.DROP_ASKED)


def test_a_change_behind_the_watermark_of_a_backfill_is_not_lost_with_a_pass_that_was_to_follow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fan_outs, "SAVE_EVERY_S", 3600.0)
    view = f"{world.store}:fan"
    with world.owner() as owner:
        world.hold()
        world.rename("p1")
        wait_for("a page is written", lambda: world.pages == 1)
        world.let(3)
        world.rename("p2")
        world.let(3)
        assert [next_version is not None for _, next_version, *_ in world.kept()] == [True]
        world._is_held, world.slow_s = False, 0.2
        world._allowed.release(10)
        owner.own.life.on(owner._session).states.move(Event.REPLAYED, [view])
        owner.fill(view)
        assert world.is_open()
        world.rename("p3")
        owner.pass_everything()  # between two pages
        world.slow_s = 0.0
        wait_for("no fan-out is left", lambda: not world.is_open())
        owner.pass_everything()
        wait_for("it is shown", lambda: world.count("p3") == ORDERS)


def test_few_changed_rows_are_fan_outs_of_their_own_where_each_has_many(world: World) -> None:
    ask(world.server, "UPDATE fan.line SET product_id = 8 WHERE id >= 450")
    with world.owner() as owner:
        world.slow_s = 0.05
        ask(world.server, "INSERT INTO fan.product VALUES (9, 'r0')")
        ask(world.server, "UPDATE fan.product SET name = 'x'")
        wait_for("they are under way", lambda: len(world.kept()) == 2)
        world.slow_s = 0.0
        wait_for("all are written", lambda: world.count("x") == ORDERS)
        wait_for("they are over", lambda: not world.is_open())
        owner.pass_everything()


def test_a_store_that_was_restarted_has_its_pass_begin_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.owner() as owner:
        world.hold()
        world.rename("p1")
        wait_for("a page is written", lambda: world.pages == 1)
        world.let(5)
        pipeline = owner.own.pipeline
        assert isinstance(pipeline, GuardedPipeline)
        pipeline.fan_outs.incarnation = lambda: "another run"
        assert pipeline.vitals.position is not None
        begun = threading.Event()
        step = pipeline.fan_outs.step

        def in_the_loop(write: Any, may_wait: bool) -> None:
            if not begun.is_set():
                begun.set()
                pipeline.fan_outs.begin(pipeline.vitals.position)  # type: ignore[arg-type]
                assert [kept[2] for kept in world.kept()] == [0]
            step(write, may_wait=may_wait)

        monkeypatch.setattr(FanOuts, "step", lambda _, write, *, may_wait: in_the_loop(write, may_wait))
        world.let_all()
        wait_for("all are written", lambda: world.count("p1") == ORDERS)
        assert begun.is_set()
        wait_for("the last page is counted, too", lambda: world.pages > ORDERS / PAGE + 5, 10)


@pytest.mark.parametrize("store", ["redis", "mysql"])
def test_a_group_that_changes_all_the_time_is_written_at_most_every_so_often(
    store: str, server: Server, redis_server: Server, tmp_path: Path
) -> None:
    world = World(server, redis_server, store, tmp_path, SELDOM)

    def shown() -> tuple[int, int]:
        """Lines of the product, and the version of that."""
        if store == "redis":
            lines, version = world.redis.hmget(f"fan:{HOT}", "n", "_version")
            return int(lines), int(version)
        return ask(server, f"SELECT n, version FROM viewtail.fan WHERE product_id = {HOT}")[0]

    with world.owner() as owner:
        began, seen = time.monotonic(), {shown()}
        lines, waiting = ORDERS, set[tuple[str, int]]()
        while time.monotonic() - began < 3 * SELDOM_S:
            ask(server, f"INSERT INTO fan.line VALUES ({lines}, 0, {HOT})")
            lines += 1
            seen.add(shown())
            waiting.update(ask(server, "SELECT changed_key, estimate FROM viewtail.fan_out"))
        assert waiting == {(f"{HOT} (at_most_every={SELDOM_S})", 1)}
        assert len({version for _, version in seen}) <= 5, "as it was filled, the first change, and three later"
        assert len(seen) == len({version for _, version in seen}), "one version, one content"
        ask(server, f"INSERT INTO fan.line VALUES ({lines}, 0, {HOT})")
        world.succeeds("wait", f"{store}:fan")
        assert shown()[0] == lines + 1, "it has waited for what was put off"
        ask(server, "UPDATE fan.line SET product_id = 8 WHERE id = 0")
        assert "equal" in world.succeeds("verify", f"{store}:fan")
        assert shown()[0] == lines
        owner.pass_everything()
        assert owner.failure is None


def test_a_fill_leaves_a_fan_out_that_another_pass_is_to_follow(world: World) -> None:
    """Changes behind the first one that has it follow are not noted: one may be newer than what the fill has read."""
    view = f"{world.store}:fan"
    with world.owner() as owner:
        world.hold()
        world.rename("p1")
        wait_for("a page is written", lambda: world.pages == 1)
        world.rename("p2")
        world.let(3)
        ((_, next_version, *_),) = world.kept()
        assert next_version is not None
        states = owner.own.life.on(owner._session).states
        states.move(Event.REPLAYED, [view])
        states.begin_backfill(view, next_version + 1, 0, "")
        assert world.is_open()
        world.let_all()
        wait_for("all are written", lambda: world.count("p2") == ORDERS)
