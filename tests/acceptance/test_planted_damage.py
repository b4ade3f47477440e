"""`viewtail verify` against 30 kinds of damage and more in each store: all found while rows change, and all mended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from stack import Server
from tests.support.damage import DELETED, ELASTICSEARCH, INDEX_TABLES, REDIS, Damage
from tests.support.damaged_world import BusyWriters, DamagedWorld, kept
from tests.support.running import wait_for


@pytest.fixture
def on_mysql(
    tmp_path: Path, mysql_server: Server, redis_server: Server, elasticsearch_server: Server
) -> Iterator[DamagedWorld]:
    world = DamagedWorld(folder=tmp_path, mysql=mysql_server, redis_server=redis_server, search=elasticsearch_server)
    with kept(world):
        yield world


@pytest.fixture
def on_mariadb(tmp_path: Path, mariadb_server: Server, redis_server: Server) -> Iterator[DamagedWorld]:
    with kept(DamagedWorld(folder=tmp_path, mysql=mariadb_server, redis_server=redis_server)) as world:
        yield world


@pytest.mark.parametrize("damages", [INDEX_TABLES, REDIS, ELASTICSEARCH], ids=["mysql", "redis", "elasticsearch"])
def test_there_are_30_kinds_of_damage_to_each_store(damages: Sequence[Damage]) -> None:
    assert len({one.what for one in damages}) >= 30
    planted = Counter((one.view, key) for one in damages for key in one.found)
    assert planted.most_common(1)[0][1] == 1, "each is in keys of its own"


def test_all_planted_damage_is_found_and_mended_while_rows_change(on_mysql: DamagedWorld) -> None:
    found_and_mended(on_mysql, (*INDEX_TABLES, *REDIS, *ELASTICSEARCH))


@pytest.mark.mariadb
def test_all_planted_damage_is_found_and_mended_on_mariadb(on_mariadb: DamagedWorld) -> None:
    found_and_mended(on_mariadb, (*INDEX_TABLES, *REDIS))


def found_and_mended(world: DamagedWorld, damages: Sequence[Damage]) -> None:
    for statement in DELETED:
        world.ask(statement)
    world.wait_until_shown()
    with BusyWriters(world, pause_s=0.02) as writers:
        for damage in damages:
            try:
                damage.plant(world)
            except Exception as error:
                raise AssertionError(f"{damage.view}: {damage.what} is not to be planted: {error!r}") from error
        wanted: dict[tuple[str, str], str] = {}
        for one in damages:
            wanted |= {(one.view, key): kind for key, kind in one.found.items()}
        found = world.verify()
        assert told(damages, wanted, found) == []
        assert found["code"] == 1
        mended = world.verify("--repair")
        left = [
            f"{name} {one['key']}: {one['difference']}"
            for name, view in views(mended).items()
            for one in view["entities"]
            if not one["is_repaired"]
        ]
        assert left == []
        assert mended["code"] == 0
        wait_for("much is written, on a busy machine too", lambda: writers.committed > 50)
    assert writers.failures == []
    again = world.verify()
    assert differences_found(again) == {} and again["code"] == 0
    world.wait_until_shown()


def views(found: dict[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in found.items() if ":" in name}


def differences_found(found: dict[str, Any]) -> dict[tuple[str, str], str]:
    """By view and key, the kind of difference; and what is not well else."""
    told = {(name, "failed"): why for name, why in found["failed"].items()}
    told |= {(name, one["key"]): one["difference"] for name, view in views(found).items() for one in view["entities"]}
    for name, view in views(found).items():
        told |= {(name, what): f"{view[what]}" for what in ("parked", "changing", "foreign") if view[what]}
    return told


def told(damages: Sequence[Damage], wanted: dict[tuple[str, str], str], found: dict[str, Any]) -> list[str]:
    """Where what was found is not what was planted."""
    said = differences_found(found)
    what = {(one.view, key): one.what for one in damages for key in one.found}
    return [
        f"{view} {key} ({what.get((view, key), 'nothing was done to it')}): "
        f"should be {wanted.get((view, key))}, verify says {said.get((view, key))}"
        for view, key in sorted({*wanted, *said})
        if wanted.get((view, key)) != said.get((view, key))
    ]
