"""Whatever is killed, stopped, cut or altered, every document equals the joins afterwards, and none ever went back.

One seed is one schedule: `VIEWTAIL_TEST_SEED=7 pytest tests/faults/test_document_schedules.py` runs the seventh alone.
`make documents` runs 500. Beside every third are search documents too, beside every fourth the cleaner, and in every
fifth a replica takes the place of the server, and that one its place later. A statement may halt views for what it does
to a column or a table; another one mends that, and the views are replayed as their reasons say.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import stack.mysql
from projectors.failpoints import STEPS
from stack import Server
from tests.support import run_faults, slices
from tests.support.order_watcher import OrderWatcher
from tests.support.order_world import KINDS, VIEWS, WITH_SEARCH, OrderWorld, OrderWriters
from tests.support.proxy import Proxy
from tests.support.replication import Node
from tests.support.running import CLEANING, Run, addresses, running, wait_for
from tests.support.world import differences

LOAD_S = 4.0
ORDERS = 200
FAN_OUT_ABOVE = (3, 1000, 20, 5)  # entities that depend on a row; what has more is worked off page by page
PAGE_STEPS = ("before page", "after page", "after cursor")  # of a fan-out; it may come to none
SEEDS = slices.seeds(20, "VIEWTAIL_TEST_SEEDS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault may act on."""

    world: OrderWorld
    run: Run
    writers: OrderWriters
    proxy: Proxy  # between viewtail and MySQL
    stores: tuple[str, ...]
    broken: list[str] = field(default_factory=list)  # statements that may have halted views


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder = tmp_path_factory.mktemp("pair")
    started = [stack.mysql.start(folder / str(number), options=[f"--server-id={number}"]) for number in (11, 12)]
    yield started
    for server in started:
        server.kill()


@contextmanager
def _begun(seed: int, mysql_server: Server, request: pytest.FixtureRequest, folder: Path) -> Iterator[Scene]:
    """Tables, writers that have not begun, and a run that has."""
    shared_redis = request.getfixturevalue("redis_server")
    search = request.getfixturevalue("elasticsearch_server") if seed % 3 == 0 else None
    server, replica = _replicated(request.getfixturevalue("pair")) if seed % 5 == 0 else (mysql_server, None)
    world = OrderWorld(mysql=server, redis=shared_redis, elasticsearch=search, replica=replica)
    world.make(random.Random(seed), ORDERS)
    stores = ("mysql", "redis") if search is None else ("mysql", "redis", "elasticsearch")
    with Proxy(server.port) as proxy:
        environment = addresses(server, shared_redis, search) | (CLEANING if seed % 4 == 1 else {})
        environment["VIEWTAIL_RUN__FAN_OUT_ABOVE"] = str(FAN_OUT_ABOVE[seed % len(FAN_OUT_ABOVE)])
        environment["VIEWTAIL_SOURCE__URL"] = server.url.replace(f":{server.port}", f":{proxy.port}")
        with running(folder, VIEWS if search is None else WITH_SEARCH, environment) as run:
            writers = OrderWriters(world, seed, ORDERS)
            yield Scene(world=world, run=run, writers=writers, proxy=proxy, stores=stores)


def _replicated(pair: list[Server]) -> list[Server]:
    """A server, and one that replicates it."""
    nodes = [Node(server) for server in pair]
    for node in nodes:
        node.begin_anew("docs", "viewtail")
    nodes[1].replicate(nodes[0])
    return pair


@pytest.mark.parametrize("seed", SEEDS)
def test_every_document_equals_the_joins_after_any_schedule_of_faults(
    seed: int, mysql_server: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    print(f"seed {seed}: rerun with VIEWTAIL_TEST_SEED={seed}")
    with _begun(seed, mysql_server, request, tmp_path) as scene, OrderWatcher(scene.world) as watcher:
        world, run, writers = scene.world, scene.run, scene.writers
        if seed % 2:
            wait_for("the views are filled", world.is_filled)
        writers.start()
        try:
            faults = _faults(random.Random(seed), seed, scene)
            wait_for("enough is done", lambda: _is_enough(writers, watcher))
        finally:
            writers.stop()
            scene.proxy.release()
            for server in (world.mysql, world.redis):
                server.start()
        _converge(scene)
        wait_for("all is well", lambda: not run_faults.replay_what_is_halted(scene) and run.is_filled())
        wait_for("no fan-out is left", lambda: not _fan_outs(world))
        assert run.stop() == 0
        assert not differences(world.expected(), world.actual())
    print(f"  {writers.committed} transactions, {writers.ledger.count} states, {watcher.reads} reads, "
          f"{watcher.changes} changes seen, faults: {' '.join(faults)}")  # fmt: skip
    assert watcher.backward(writers.ledger) == []
    assert faults
    assert _is_enough(writers, watcher)


def _is_enough(writers: OrderWriters, watcher: OrderWatcher) -> bool:
    """A schedule in which little was done, or seen, says nothing."""
    is_done = writers.committed > 300 and writers.ledger.count > 300 and writers.kinds == KINDS
    return is_done and watcher.reads > 2000 and watcher.changes > 100


def _converge(scene: Scene) -> None:
    run_faults.converge(scene, "every document equals the joins", "view", "fan_out", "dead_letter")


def _fan_outs(world: OrderWorld) -> int:
    with world.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM viewtail.fan_out WHERE written_upto IS NULL")
        return int(cursor.fetchone()[0])


def _faults(chance: random.Random, seed: int, scene: Scene) -> list[str]:
    """Faults at random moments for LOAD_S seconds; each seed has a failpoint of its own in one restart."""
    deadline = time.monotonic() + LOAD_S
    run = scene.run
    done: list[str] = []
    is_restarted = False
    faults = _FAULTS if scene.world.replica is None else [*_FAULTS, *[_fail_over] * 5]
    steps = (*STEPS, *PAGE_STEPS)
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(0.1, 0.8))  # the moment of the fault; nothing is awaited here
        if not is_restarted and chance.random() < 0.3:
            is_restarted = True
            step = f"{steps[seed % len(steps)]}:{chance.randint(1, 6)}"
            done.append(f"killed at {step}")
            assert run.stop() in (0, -signal.SIGTERM)  # the latter while Python itself was starting
            run.start(VIEWTAIL_FAILPOINT=step)
            continue
        fault = chance.choice(faults)
        done.append(fault.__name__)
        print(f"  {done[-1]}")
        fault(chance, scene)
    if scene.world.replica is not None and _fail_over.__name__ not in done:
        done.append(_fail_over.__name__)
        _fail_over(chance, scene)
    if is_restarted:
        run.stop()
        run.start()
    return done


def _alter_what_no_view_uses(chance: random.Random, scene: Scene) -> None:
    table = chance.choice(("order", "order_line", "product", "customer", "tag"))
    scene.writers.alone(f"ALTER TABLE docs.`{table}` ADD COLUMN more_{time.monotonic_ns()} INT")


def _widen_a_column(chance: random.Random, scene: Scene) -> None:
    table, column, null = chance.choice(
        (("product", "title", "NOT NULL"), ("customer", "name", "NOT NULL"), ("order", "note", ""))
    )
    scene.writers.alone(f"ALTER TABLE docs.`{table}` MODIFY {column} VARCHAR({chance.randint(31, 39)}) {null}")


def _truncate_a_child(chance: random.Random, scene: Scene) -> None:
    scene.writers.alone(f"TRUNCATE TABLE docs.{chance.choice(('order_line', 'order_tag', 'tag', 'category'))}")


def _break_and_mend(chance: random.Random, scene: Scene) -> None:
    """Views are halted by a statement, and can go on behind the next one; nobody sees what was between."""
    wait_for("the declarations have fitted once: else it is a mistake in them", scene.world.is_known)
    breaks, mends = chance.choice(_BROKEN)
    scene.broken.append(breaks)
    scene.writers.alone(breaks, mends, pause_s=chance.choice((0.0, 0.5)))


def _fail_over(chance: random.Random, scene: Scene) -> None:
    """The replica takes the place of the server, which replicates it from then on."""
    world = scene.world
    assert world.replica is not None
    old, new = Node(world.mysql), Node(world.replica)
    old.execute("SET GLOBAL super_read_only = ON")
    new.has_all_of(old)
    if chance.random() < 0.5:
        old.server.kill()
    new.promote()
    new.execute("SET GLOBAL super_read_only = OFF")
    world.mysql, world.replica = new.server, old.server
    scene.proxy.lead_to(new.server.port)
    old.server.start()
    old.end_sessions()  # who wrote there comes to the new one
    old.execute("SET GLOBAL super_read_only = ON")
    old.replicate(new)


_BROKEN = (
    ("ALTER TABLE docs.product RENAME COLUMN title TO away", "ALTER TABLE docs.product RENAME COLUMN away TO title"),
    (
        "ALTER TABLE docs.product DROP COLUMN title",
        "ALTER TABLE docs.product ADD COLUMN title VARCHAR(30) NOT NULL DEFAULT 'lost' AFTER id",
    ),
    (
        "ALTER TABLE docs.order_line MODIFY amount VARCHAR(20)",
        "ALTER TABLE docs.order_line MODIFY amount DECIMAL(10,2)",
    ),
    (
        "ALTER TABLE docs.customer DROP COLUMN country_id",
        "ALTER TABLE docs.customer ADD COLUMN country_id INT AFTER name, ADD KEY (country_id)",
    ),
    ("RENAME TABLE docs.category TO docs.away", "RENAME TABLE docs.away TO docs.category"),
)
_FAULTS: list[Callable[[random.Random, Scene], None]] = [
    *run_faults.ALL,
    _alter_what_no_view_uses,
    _widen_a_column,
    _truncate_a_child,
    _break_and_mend,
    _break_and_mend,
]
