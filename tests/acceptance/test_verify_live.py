"""`viewtail verify`, again and again, while rows change: lag is never taken for damage.

In a run of all tests for five minutes, by `make verify-live` for three quarters of an hour. Behind each transaction is
a rest: writers that leave no processor to anybody else only prove that a pass waits for a pipeline that is late.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stack import Server
from tests.support.damaged_world import STORE, BusyWriters, DamagedWorld, kept
from tests.support.running import CLEANING, wait_for

SECONDS = float(os.environ.get("VIEWTAIL_TEST_LIVE_S", "200"))  # and half of that on MariaDB
PAUSE_S = 0.01  # of each of four writers


@pytest.mark.timeout(SECONDS + 300)
def test_live_writes_are_never_taken_for_damage(
    tmp_path: Path, mysql_server: Server, redis_server: Server, elasticsearch_server: Server
) -> None:
    world = DamagedWorld(folder=tmp_path, mysql=mysql_server, redis_server=redis_server, search=elasticsearch_server)
    with kept(world):
        never_different(world, SECONDS)


@pytest.mark.mariadb
@pytest.mark.timeout(SECONDS + 300)
def test_live_writes_are_never_taken_for_damage_on_mariadb(
    tmp_path: Path, mariadb_server: Server, redis_server: Server
) -> None:
    """The cleaner looks beside, and has nothing to mend either."""
    world = DamagedWorld(folder=tmp_path, mysql=mariadb_server, redis_server=redis_server)
    world.environ.update(CLEANING)
    with kept(world):
        never_different(world, SECONDS / 2)
        rounds = f"SELECT COUNT(*) FROM {STORE}.operator_run WHERE kind = 'clean' AND state = 'done'"
        wait_for("it has gone round", lambda: world.ask(rounds) != [(0,)])
        assert [line for line in world.run.log.splitlines() if "the cleaner wrote entities again" in line] == []


def never_different(world: DamagedWorld, for_s: float) -> None:
    passes, deadline = 0, time.monotonic() + for_s
    with BusyWriters(world, threads=4, pause_s=PAUSE_S) as writers:
        wait_for("rows change", lambda: writers.committed > 100)
        while time.monotonic() < deadline:
            found = world.verify(*(["--repair"] if passes % 4 == 3 else []))
            assert found.pop("failed") == {}
            code = found.pop("code")
            assert {name: _told(view) for name, view in found.items() if _told(view)} == {}
            assert code == 0
            passes += 1
    print(f"{passes} passes over {len(found)} views beside {writers.committed} transactions in {for_s:.0f} s")
    assert passes > 0 and writers.failures == []
    world.wait_until_shown()


def _told(view: dict[str, object]) -> list[object]:
    """What a pass over a view that is right does not say."""
    return [view[what] for what in ("entities", "parked", "changing", "foreign") if view[what]]
