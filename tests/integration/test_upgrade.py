"""A deployment that another version of viewtail left behind goes on under this one.

tests/recorded/ holds what that version left in MySQL, Redis and Elasticsearch (record.py beside it tells how). It is
put into servers of this machine, its tables are changed as if viewtail were down, and the present code runs on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import redis

from stack import Server
from tests.support.asking import ask
from tests.support.recorded_views import HALTED, HALVES, wanted
from tests.support.recording import Place, clear, documents, restore
from tests.support.running import Run, addresses, wait_for
from tests.support.world import World

RECORDED = Path(__file__).parents[1] / "recorded"
RECORDINGS = ("118d1f0", "v0.11.0", "v0.12.0")
STORES = {"mysql", "redis", "elasticsearch"}
WHILE_DOWN = (
    "INSERT INTO shop.user VALUES (101, 'new', 2, NULL), (5, 'back again', 4, NULL)",
    "UPDATE shop.user SET email = 'later' WHERE id = 3",
    "UPDATE shop.user SET n = n + 1 WHERE id = 6",
    "UPDATE shop.user SET id = 102 WHERE id = 8",
    "DELETE FROM shop.user WHERE id = 4",
    *(
        statement
        for table in HALVES.values()
        for statement in (
            f"DELETE FROM shop.{table} WHERE id IN (1, 2, 91)",  # two of them were filled in, one was not
            f"UPDATE shop.{table} SET v = 'later' WHERE id IN (3, 90)",
            f"INSERT INTO shop.{table} VALUES (1000, 'new')",
        )
    ),
)
CHANGED_USERS = {101, 5, 3, 6, 102, 8, 4}
LAST_USER = 2000
CHANGED_IN_HALVES = {1, 2, 91, 3, 90, 1000}

Shown: TypeAlias = Mapping[int, tuple[Any, int]]  # by key: what it shows (None: a tombstone) and the version


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRow:
    """What viewtail's table `view` says of one view."""

    state: str
    reason: str | None
    rows: int
    filled_at: Any
    watermark: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    """A recorded deployment before and after the present code ran on it."""

    world: World
    run: Run
    places: list[Place]
    views: Mapping[str, ViewRow]  # as recorded
    shown: Mapping[str, Shown]  # as recorded
    rows_read: Mapping[str, int]  # by table, of the source, until every view was right
    trailing: frozenset[str]  # pipelines of which the store's witness was behind the offset


@pytest.fixture(scope="module", params=RECORDINGS)
def upgraded(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    mysql_server: Server,
    redis_server: Server,
    elasticsearch_server: Server,
) -> Iterator[Upgraded]:
    """Running, and every backfill is finished."""
    recording = RECORDED / request.param
    world = World(mysql=mysql_server, redis=redis_server, elasticsearch=elasticsearch_server)
    places = restore(world, recording)
    views, shown = view_rows(world), contents(world)
    for statement in WHILE_DOWN:
        ask(world.mysql, statement)
    read_before = rows_read(world)
    run = Run(
        tmp_path_factory.mktemp("upgrade"),
        (recording / "views.py").read_text(),
        addresses(mysql_server, redis_server, elasticsearch_server),
    )
    run.start()
    try:
        wait_for("every backfill is finished", lambda: is_finished(run), timeout_s=60)
        ask(world.mysql, f"INSERT INTO shop.user VALUES ({LAST_USER}, 'the end', 2000, NULL)")
        wait_for("every store has the last row", lambda: has_the_last_row(world))
        read = {table: count - read_before.get(table, 0) for table, count in rows_read(world).items()}
        yield Upgraded(
            world=world,
            run=run,
            places=places,
            views=views,
            shown=shown,
            rows_read=read,
            trailing=trailing(recording),
        )
    finally:
        print(run.log[-8000:])
        run.kill()
        clear(world)


def trailing(recording: Path) -> frozenset[str]:
    """Pipelines of which a witness stands at another place than the offset: a kill came between the two."""
    offsets = re.findall(
        r"INSERT INTO `pipeline` .*VALUES \(\d+, '(redis|elasticsearch)'.*?<file (\d+)>",
        (recording / "viewtail.sql").read_text(),
    )
    witnesses = {store: (recording / f"{store}.jsonl").read_text() for store, _ in offsets}
    return frozenset(
        store for store, number in offsets if set(re.findall(r"<file (\d+)>", witnesses[store])) != {number}
    )


def is_finished(run: Run) -> bool:
    told = status(run)
    states = {view["name"]: view["state"] for one in told.values() for view in one["views"]}
    assert set(told) == STORES and all(one["state"] == "running" for one in told.values()), told
    assert all(states[name] == "filled" for name in states.keys() - HALTED) and HALVES.keys() <= states.keys(), states
    return True


def has_the_last_row(world: World) -> bool:
    """Whether every view over the table that got it shows it; each store takes changes in order."""
    shown = contents(world)
    return all(LAST_USER in shown[name] for name in shown.keys() - HALVES.keys())


def status(run: Run) -> dict[str, dict[str, Any]]:
    """By pipeline."""
    return {one["name"]: one for one in json.loads(run.command("status", "--json").stdout)["pipelines"]}


def view_rows(world: World) -> dict[str, ViewRow]:
    found = ask(
        world.mysql,
        "SELECT name, state, reason, fill_row_count, filled_at, watermark_version FROM viewtail.view",
    )
    return {
        name: ViewRow(state=state, reason=reason, rows=rows, filled_at=filled_at, watermark=watermark)
        for name, state, reason, rows, filled_at, watermark in found
    }


def rows_read(world: World) -> dict[str, int]:
    """Rows that the server fetched for anybody, by table."""
    return dict(
        ask(
            world.mysql,
            "SELECT object_name, count_fetch FROM performance_schema.table_io_waits_summary_by_table "
            "WHERE object_schema = 'shop'",
        )
    )


# --- What the views show, and what they must show ---


def contents(world: World) -> dict[str, Shown]:
    """By view, from the stores themselves."""
    found: dict[str, Shown] = {}
    for name in ("ix_email", "ix_even", "ix_half"):
        rows = ask(world.mysql, f"SELECT * FROM viewtail.{name}")
        found[f"mysql:{name}"] = {key: (value, version) for key, value, version in rows}
    client = redis.Redis(port=world.redis.port, decode_responses=True)
    for name in ("user", "document", "half"):
        keys = [key for key in client.scan_iter(f"{name}:*", count=1000) if is_ours(client, key)]
        found[f"redis:{name}"] = {int(key.split(":")[1]): in_redis(client, key) for key in keys}
    for name in ("user", "even", "half"):
        found[f"elasticsearch:{name}"] = {
            int(key): (None if "viewtail_deleted" in source else source, version)
            for key, (source, version) in documents(world, f"viewtail-{name}").items()
            if key.isdigit()  # the witness is not
        }
    return found


def is_ours(client: Any, key: str) -> bool:
    return not (key == "user:7" and client.type(key) == "string")


def in_redis(client: Any, key: str) -> tuple[Any, int]:
    if key.endswith(":t"):
        return None, int(client.get(key))
    held = client.hgetall(key) if client.type(key) == "hash" else json.loads(client.get(key))
    version = int(held.pop("_version"))
    return held, version


def visible(shown: Shown) -> dict[int, Any]:
    return {key: value for key, (value, _) in shown.items() if value is not None}


# --- The promises ---


def test_every_view_equals_its_table_after_an_upgrade(upgraded: Upgraded) -> None:
    """What changed while viewtail was down is in each."""
    found = {name: visible(shown) for name, shown in contents(upgraded.world).items()}
    must = wanted(upgraded.world)
    del must["redis:user"][7]  # it is parked
    assert found == must


def test_filled_views_are_not_filled_again_after_an_upgrade(upgraded: Upgraded) -> None:
    filled = {name: row for name, row in upgraded.views.items() if row.state == "filled"}
    now = view_rows(upgraded.world)
    assert len(filled) == 6 and {name: now[name] for name in filled} == filled
    (rows,) = ask(upgraded.world.mysql, "SELECT COUNT(*) FROM shop.user")[0]
    assert upgraded.rows_read["user"] < rows, "a backfill would have read them all"


def test_what_did_not_change_keeps_its_version_after_an_upgrade(upgraded: Upgraded) -> None:
    """No row was written again: neither by a backfill, nor by reading on from before the offset."""
    now = contents(upgraded.world)
    for name, shown in upgraded.shown.items():
        changed = CHANGED_IN_HALVES if name in HALVES else CHANGED_USERS
        kept = {key: found for key, found in shown.items() if key not in changed}
        assert len(kept) > 20 and {key: now[name].get(key) for key in kept} == kept, name


def test_changes_after_an_upgrade_are_newer_and_of_the_same_epoch(upgraded: Upgraded) -> None:
    now = contents(upgraded.world)
    epochs = {version >> 53 for shown in upgraded.shown.values() for _, version in shown.values()}
    for name, shown in now.items():
        recorded = max(version for _, version in upgraded.shown[name].values())
        changed = CHANGED_IN_HALVES if name in HALVES else {101, 4}
        versions = [shown[key][1] for key in changed & shown.keys()]
        assert min(versions) > recorded and {version >> 53 for version in versions} == epochs, name


@pytest.mark.one_in(3)
@pytest.mark.parametrize("view", HALVES)
def test_an_interrupted_backfill_goes_on_after_an_upgrade(upgraded: Upgraded, view: str) -> None:
    """At its last row and under its old watermark; rows before it were deleted since, and still count as read."""
    before, now = upgraded.views[view], view_rows(upgraded.world)[view]
    table = HALVES[view]
    (rows, last), *_ = ask(upgraded.world.mysql, f"SELECT COUNT(*), SUM(id > {before.rows}) FROM shop.{table}")
    assert before.state == "filling" and now.state == "filled" and 0 < before.rows < 80
    assert now.rows == before.rows + last
    assert upgraded.rows_read[table] < rows
    recorded, shown = upgraded.shown[view], contents(upgraded.world)[view]
    filled_in = shown.keys() - recorded.keys() - CHANGED_IN_HALVES
    assert len(filled_in) > 15 and {shown[key][1] for key in filled_in} == {before.watermark}


def test_halted_views_stay_halted_after_an_upgrade(upgraded: Upgraded) -> None:
    views = {view["name"]: view for one in status(upgraded.run).values() for view in one["views"]}
    for name in HALTED:
        assert upgraded.views[name].state == "halted" and upgraded.views[name].reason
        assert (views[name]["state"], views[name]["reason"]) == ("halted", upgraded.views[name].reason)


def test_offsets_go_on_after_an_upgrade(upgraded: Upgraded) -> None:
    """No other epoch began, and only what a killed version may have lost was read again: the log would say so."""
    last = upgraded.places[-1]
    for one in status(upgraded.run).values():
        file, _, end = one["position"].rpartition(":")
        assert (file, int(end)) > (last.file, last.end), one
    again = {json.loads(line)["pipeline"] for line in upgraded.run.log.splitlines() if "reading again" in line}
    assert again == upgraded.trailing and "epoch" not in upgraded.run.log


def test_a_parked_key_is_listed_after_an_upgrade_until_it_succeeds(upgraded: Upgraded) -> None:
    world, run = upgraded.world, upgraded.run

    def parked() -> dict[str, int]:
        views = [view for one in status(run).values() for view in one["views"]]
        return {view["name"]: view["parked"] for view in views if view["parked"]}

    assert parked() == {"redis:user": 1}
    client = redis.Redis(port=world.redis.port, decode_responses=True)
    assert client.get("user:7") == "not viewtail's"
    client.delete("user:7")
    ask(world.mysql, "UPDATE shop.user SET email = 'mended' WHERE id = 7")
    wait_for("the key is cleared", lambda: not parked())
    assert client.hget("user:7", "email") == "mended"
