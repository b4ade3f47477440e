"""Whatever is killed or cut while viewtail takes views over: they equal their table, and nothing right goes away.

`viewtail adopt` is killed and given again until it ends; `viewtail run` goes on from there, under faults as well. One
seed is one schedule: `VIEWTAIL_TEST_SEED=7 pytest tests/faults/test_adoption_schedules.py` runs the seventh alone.
`make adoptions` runs 60. In every third is an Elasticsearch index too, in every sixth one that a copy has to replace.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from projectors.failpoints import ADOPT_STEPS, REBUILD_STEPS, STEPS
from stack import Server
from tests.support import run_faults, slices
from tests.support.adoption_watcher import AdoptionWatcher, application, shown, wanted
from tests.support.other_tools import ALIAS, STORE, VIEWS, OtherTool
from tests.support.proxy import Proxy
from tests.support.running import Run, addresses, wait_for

SEEDS = slices.seeds(1, "VIEWTAIL_TEST_SEEDS")
ROWS = 400
FIXED = (11, 12, 13, 21, 22, 23, *range(100, 190))  # the damaged ones, and some that are right
EXTRA = {9001, 9002}
WELL_WITHIN_S = 180.0  # an adopt, the faults before it too


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """What the faults of a run ask of the servers."""

    mysql: Server
    redis: Server
    tool: OtherTool

    @contextmanager
    def cursor(self) -> Iterator[Any]:
        with self.tool.connect() as connection, connection.cursor() as cursor:
            yield cursor

    def expected(self) -> Any:
        return wanted(self.tool)

    def actual(self) -> Any:
        return shown(self.tool, wanted(self.tool))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a fault may act on."""

    world: Servers
    run: Run  # its process is the adopt, then the run
    proxy: Proxy  # between viewtail and MySQL
    stores: tuple[str, ...]
    names: tuple[str, ...]  # of the views that are taken over
    broken: list[str] = field(default_factory=list)

    @property
    def tool(self) -> OtherTool:
        return self.world.tool

    @property
    def places(self) -> tuple[str, ...]:
        return ("table", "hash", "card", *(["index"] if "elasticsearch" in self.stores else []))


@contextmanager
def _begun(seed: int, mysql_server: Server, request: pytest.FixtureRequest, folder: Path) -> Iterator[Scene]:
    shared_redis = request.getfixturevalue("redis_server")
    search = request.getfixturevalue("elasticsearch_server") if seed % 3 == 0 else None
    tool = OtherTool(mysql_server, shared_redis, search)
    tool.end()
    tool.make(ROWS)
    tool.damage()
    tool.ask(f"ALTER TABLE {STORE}.by_email DROP COLUMN synced_at")
    views = VIEWS if seed % 6 else VIEWS.replace('"name": "keyword"', '"name": "text"')
    with Proxy(mysql_server.port) as proxy:
        environment = addresses(mysql_server, shared_redis, search)
        environment["VIEWTAIL_SOURCE__URL"] = mysql_server.url.replace(f":{mysql_server.port}", f":{proxy.port}")
        environment["VIEWTAIL_MYSQL__URL"] = f"{environment['VIEWTAIL_SOURCE__URL']}/{STORE}"
        names = ("by_email", "redis:person", "card", *([f"elasticsearch:{ALIAS}"] if search else []))
        stores = ("mysql", "redis", *(["elasticsearch"] if search else []))
        if search is None:
            views = "\n".join(line for line in views.splitlines() if "SearchIndex(" not in line)
        run = Run(folder, views, environment)
        world = Servers(mysql=mysql_server, redis=shared_redis, tool=tool)
        try:
            yield Scene(world=world, run=run, proxy=proxy, stores=stores, names=names)
        except BaseException:
            print((folder / "run.log").read_text()[-6000:] if (folder / "run.log").exists() else "no run")
            raise
        finally:
            run.kill()
    tool.end()


@pytest.mark.parametrize("seed", SEEDS)
def test_views_that_are_taken_over_equal_their_table_after_any_schedule_of_faults(
    seed: int, mysql_server: Server, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    print(f"seed {seed}: rerun with VIEWTAIL_TEST_SEED={seed}")
    chance = random.Random(seed)
    with _begun(seed, mysql_server, request, tmp_path) as scene:
        options = ("--drop-extra",) if seed % 5 == 0 else ()
        with AdoptionWatcher(scene.tool, scene.places, FIXED) as watcher, application(scene.tool) as committed:
            faults = _adopted(chance, scene, options)
            faults += _kept(chance, scene)
        wait_for("the views equal their table", lambda: _is_equal(scene))
        if options:
            assert not _differing(scene), "extra keys are gone"
        assert scene.run.stop() == 0
        _is_equal(scene)
    print(f"  {len(committed)} changes, {watcher.counts} reads, faults: {' '.join(faults)}")
    assert watcher.went_away == []
    assert min(watcher.counts.values()) > 100
    assert len(committed) > 50


def _differing(scene: Scene) -> dict[str, set[int]]:
    there = shown(scene.tool, scene.places)
    rows = wanted(scene.tool)
    return {
        place: {key for key in {*rows[place], *found} if rows[place].get(key) != found.get(key)}
        for place, found in there.items()
        if rows[place] != found
    }


def _is_equal(scene: Scene) -> bool:
    """But for keys that no row was for when the adoption began."""
    differing = {place: sorted(keys - EXTRA) for place, keys in _differing(scene).items() if keys - EXTRA}
    assert not differing, differing
    return True


def _adopted(chance: random.Random, scene: Scene, options: tuple[str, ...]) -> list[str]:
    """Give the command until it ends well; the first times something happens to it. Returns the faults."""
    done: list[str] = []
    run = scene.run
    steps = (*ADOPT_STEPS, *STEPS, *REBUILD_STEPS[:2])
    deadline = time.monotonic() + WELL_WITHIN_S
    for number in count():
        is_disturbed = number < 2
        failpoint = {}
        if is_disturbed and chance.random() < 0.7:
            failpoint["VIEWTAIL_FAILPOINT"] = f"{chance.choice(steps)}:{chance.randint(1, 3)}"
            done.append(f"killed at {failpoint['VIEWTAIL_FAILPOINT']}")
        run.process = command = run.background("adopt", *scene.names, *options, **failpoint)
        until = time.monotonic() + chance.uniform(2, 8)
        while is_disturbed and command.poll() is None:
            time.sleep(chance.uniform(0.1, 1.5))  # the moment of the fault; nothing is awaited here
            fault = _kill_the_command if time.monotonic() > until else chance.choice(_OF_ADOPT)
            done.append(fault.__name__)
            print(f"  {done[-1]}")
            fault(chance, scene)
        code = command.wait()
        said = command.communicate()
        print(f"  adopt ended with {code}: {said[1][-300:]}")
        run.kill()
        assert code in (0, 1, 2, -9, 130), said
        if code == 0 and not is_disturbed:
            return done
        assert time.monotonic() < deadline, f"adopt does not end well: {said}"
        time.sleep(0.5)  # what a killed one held is given up within seconds
    raise AssertionError("it is asked for ever")


def _kept(chance: random.Random, scene: Scene) -> list[str]:
    done = []
    scene.run.start()
    for _ in range(3):
        time.sleep(chance.uniform(0.3, 1.5))
        fault = chance.choice([*run_faults.ALL, _pause_elasticsearch])
        done.append(fault.__name__)
        print(f"  {done[-1]}")
        fault(chance, scene)
    wait_for("all is well", scene.run.is_filled)
    return done


def _kill_the_command(chance: random.Random, scene: Scene) -> None:
    """With its workers, or without: those see it some moments later."""
    if chance.random() < 0.5:
        scene.run.kill()
    elif scene.run.process is not None:
        scene.run.process.kill()


def _pause_elasticsearch(chance: random.Random, scene: Scene) -> None:
    search = scene.tool.search
    if search is not None:
        search.pause()
        time.sleep(chance.uniform(0.1, 1.0))  # how long it hangs
        search.resume()


_OF_ADOPT: list[Callable[[random.Random, Scene], None]] = [
    run_faults.kill_a_worker,
    run_faults.kill_a_worker,
    _kill_the_command,
    run_faults.cut_all_connections,
    run_faults.hold_all_connections,
    run_faults.kill_sessions,
    run_faults.rotate_the_binlog,
    run_faults.kill_mysql,
    run_faults.kill_redis,
    run_faults.pause_redis,
    run_faults.pause_a_worker,
    _pause_elasticsearch,
]
