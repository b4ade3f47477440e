"""Whatever is killed, stopped or cut between a table and the views of a fleet, they are equal afterwards.

A tailer publishes to topics of several partitions, another stands by for it, and two or three projectors keep index
tables and Redis hashes from them, and every fourth seed search documents. At the end the topics hold every change once
and in order, every view equals its table, and no key and no offset ever went backward. One seed is one schedule:
`VIEWTAIL_TEST_SEED=7 pytest tests/faults/test_fleet_schedules.py` runs the seventh alone. A run of all tests takes
two of 100; `make topics` takes them all.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from projectors.failpoints import COMMIT_STEPS, STEPS
from stack import Server
from tests.support import slices
from tests.support.fleet import SESSION_MS, Fleet, FleetWorld, Process, SearchedFleetWorld
from tests.support.running import IN_COMMIT, death_at, wait_for
from tests.support.small_disk import SmallDisk
from tests.support.topic_world import TopicWriters
from tests.support.watcher import Watcher

LOAD_S = 4.0
ENDS_S = 15.0  # of a stop in the midst of all this; how soon one ends otherwise, other tests say
CLEAN = {0, -signal.SIGTERM}  # the latter while Python itself was starting
SEARCHED_EVERY = 4  # seeds: each projector has a process more then, and a node that is killed takes 10 s to start
REPLACED_S = SESSION_MS / 1000 + 2.0  # so long it takes, and a moment more
# Where one process of each role dies. Behind `after offset` MySQL has committed, and nothing was polled since.
DEATHS = {
    "tail": (IN_COMMIT, "after commit", "before commit", "after chunk", "after write", "after read", "after offset"),
    "project": ("after offset", "after write", "before write", "after chunk", "after read"),
}
assert {step for steps in DEATHS.values() for step in steps} == {IN_COMMIT, *COMMIT_STEPS, *STEPS}
SEEDS = slices.seeds(2, "VIEWTAIL_TEST_FLEET_SEEDS")


class Scene:
    """What faults happen to."""

    def __init__(self, world: FleetWorld, fleet: Fleet, chance: random.Random) -> None:
        self.world, self.fleet, self.chance = world, fleet, chance

    def pause(self, least_s: float, most_s: float) -> None:
        """A random moment; nothing is awaited in it."""
        time.sleep(self.chance.uniform(least_s, most_s))


@pytest.mark.parametrize("seed", SEEDS)
def test_views_of_a_fleet_equal_their_tables_after_any_schedule_of_faults(
    seed: int,
    mysql_server: Server,
    redis_server: Server,
    harmed_kafka: Server,
    disk_of_harmed_kafka: SmallDisk,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    print(f"seed {seed}: rerun with VIEWTAIL_TEST_SEED={seed}")
    chance = random.Random(seed)
    steps = {role: deaths[seed % len(deaths)] for role, deaths in DEATHS.items()}
    print(f"  {steps}")
    servers = {"mysql": mysql_server, "kafka": harmed_kafka, "redis": redis_server}
    make: Callable[..., FleetWorld] = FleetWorld
    if _is_searched(seed):
        make = SearchedFleetWorld
        servers["elasticsearch"] = request.getfixturevalue("harmed_elasticsearch")
    world = make(name=f"fleet_{seed}", disk=disk_of_harmed_kafka, **servers)
    world.drop()
    world.make(users=chance.choice((0, 2000)))
    with Fleet(world, tmp_path, {role: _death(step, chance) for role, step in steps.items()}) as fleet:
        wait_for("the tailer knows where it begins", world.is_taken)
        world.mark_begin()
        fleet.begin_others()
        wait_for("projectors have taken the partitions", world.is_shared_out)
        if chance.random() < 0.7:  # a fill that ends later would mend what was lost
            wait_for("the views are filled", world.is_filled)
        with Watcher(world) as watcher:
            try:
                with TopicWriters(world, seed) as writers:
                    _faults(seed, Scene(world, fleet, chance))
                    wait_for("there is something to compare", lambda: writers.committed > 100)
            finally:
                world.mend()
            wait_for("the views are filled", world.is_filled)
            wait_for("every view equals its table", world.are_equal)
            wait_for("every topic gives its table", world.is_folded)
        assert set(fleet.stop()) <= CLEAN
    assert world.faults() == []
    assert watcher.looks > 20
    assert watcher.regressions == []
    print(f"  {world.messages} messages, killed: {fleet.deaths()}")
    world.drop()


def _death(step: str, chance: random.Random) -> str:
    """A fill has one chunk here; what comes for every batch comes hundreds of times."""
    return death_at(step, chance, 1, 1) if step == "after chunk" else death_at(step, chance, 20, 200)


def _is_searched(seed: int) -> bool:
    return seed % SEARCHED_EVERY == 0


def _faults(seed: int, scene: Scene) -> None:
    """Three faults or more at random moments, for LOAD_S seconds."""
    deadline = time.monotonic() + LOAD_S
    dealt = [_OTHERS[seed % len(_OTHERS)]]
    if _is_searched(seed):
        dealt.insert(0, _SEARCH[seed // SEARCHED_EVERY % len(_SEARCH)])
    of_broker = _BROKER[seed % len(_BROKER)]
    faults, count = [*_OTHERS, of_broker, of_broker, of_broker], 0
    while time.monotonic() < deadline or count < 3:
        scene.pause(0.1, 0.6)
        fault = dealt.pop() if dealt else scene.chance.choice(faults)
        print(f"  {fault.__name__}")
        fault(scene)
        count += 1
        if fault is of_broker:
            faults = _OTHERS


# -- the faults -----------------------------------------------------------------------------------------------------


def _kill_the_tailer(scene: Scene) -> None:
    scene.fleet.tailer().begin_again()


def _kill_the_worker_of_the_tailer(scene: Scene) -> None:
    scene.fleet.tailer().kill_worker("kafka")


def _kill_a_projector(scene: Scene) -> None:
    one = scene.chance.choice(scene.fleet.projecting())
    one.kill()
    scene.pause(0, 1.0)  # how long it is away
    one.begin()


def _kill_a_member(scene: Scene) -> None:
    scene.chance.choice(scene.fleet.projecting()).kill_worker(scene.chance.choice(scene.world.stores))


def _a_projector_comes_or_goes(scene: Scene) -> None:
    last = scene.fleet.projectors[-1]
    if last.is_running:
        assert last.stop(ENDS_S) in CLEAN
    else:
        last.begin()


def _a_projector_restarts(scene: Scene) -> None:
    one = scene.chance.choice(scene.fleet.projecting())
    assert one.stop(ENDS_S) in CLEAN
    one.begin()


def _a_projector_hangs_past_its_session(scene: Scene) -> None:
    """Others have its partitions when it comes back in the midst of a batch."""
    _hangs_until_it_is_replaced(scene, scene.chance.choice(scene.fleet.projecting()))


def _the_tailer_hangs_past_its_lease(scene: Scene) -> None:
    """The one that stands by has taken over when it comes back in the midst of a transaction."""
    _hangs_until_it_is_replaced(scene, scene.fleet.tailer())


def _hangs_until_it_is_replaced(scene: Scene, process: Process) -> None:
    before = scene.world.fences()
    with process.stopped() as pids:
        scene.world.end_leases_of(pids)
        deadline = time.monotonic() + REPLACED_S
        while scene.world.fences() == before and time.monotonic() < deadline:  # it may have had no pipeline
            time.sleep(0.05)
        scene.pause(0, 0.5)


def _is_killed(scene: Scene, server: Server) -> None:
    server.kill()
    scene.pause(0, 0.5)
    server.start()


def _hangs(scene: Scene, server: Server, most_s: float) -> None:
    server.pause()
    scene.pause(0.1, most_s)
    server.resume()


def _kill_the_broker(scene: Scene) -> None:
    _is_killed(scene, scene.world.kafka)


def _pause_the_broker(scene: Scene) -> None:
    _hangs(scene, scene.world.kafka, 2.0)


def _the_disk_of_the_broker_is_full(scene: Scene) -> None:
    scene.world.fill_the_disk()


def _kill_mysql(scene: Scene) -> None:
    scene.world.mysql.kill()
    scene.world.mysql.start()


def _kill_redis(scene: Scene) -> None:
    _is_killed(scene, scene.world.redis)


def _pause_redis(scene: Scene) -> None:
    _hangs(scene, scene.world.redis, 1.0)


def _kill_elasticsearch(scene: Scene) -> None:
    """It is away in the faults that follow; `mend` starts it, when the writers no longer need the processors."""
    _elasticsearch(scene).kill()


def _pause_elasticsearch(scene: Scene) -> None:
    _hangs(scene, _elasticsearch(scene), 2.0)


def _elasticsearch(scene: Scene) -> Server:
    assert isinstance(scene.world, SearchedFleetWorld)
    return scene.world.elasticsearch


# The first fault is dealt out by the seed, and behind it that of Elasticsearch. Those of the broker take seconds, and a
# schedule has one.
_BROKER: tuple[Callable[[Scene], None], ...] = (_kill_the_broker, _pause_the_broker, _the_disk_of_the_broker_is_full)
_SEARCH: tuple[Callable[[Scene], None], ...] = (_kill_elasticsearch, _pause_elasticsearch)
_OTHERS: list[Callable[[Scene], None]] = [
    _kill_the_tailer,
    _the_tailer_hangs_past_its_lease,
    _a_projector_hangs_past_its_session,
    _a_projector_comes_or_goes,
    _kill_mysql,
    _kill_a_projector,
    _kill_a_member,
    _kill_the_worker_of_the_tailer,
    _a_projector_restarts,
    _kill_redis,
    _pause_redis,
]
