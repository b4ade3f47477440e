"""A view of two servers in which a key is of one of them at a time: rows that are on both, and rows that move."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stack import Server
from tests.support.several_servers import ONCE, WITH_SEARCH, Servers, servers, wait_for

pytestmark = [
    pytest.mark.mysql,
    pytest.mark.redis,
    pytest.mark.elasticsearch,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

VIEW, KEYS, _ = ONCE


def test_a_key_on_two_servers_is_parked_with_both_names_and_goes_in_when_the_first_row_is_gone(
    mysql_server: Server, mariadb_server: Server, redis_server: Server, elasticsearch_server: Server, tmp_path: Path
) -> None:
    with servers(
        mysql_server, mariadb_server, redis_server, tmp_path, WITH_SEARCH, search=elasticsearch_server
    ) as world:
        _is_told(world)
        _comes_back_with_less(world, redis_server)
        _moves(world)
        _commands_write_their_own(world)


def _is_told(world: Servers) -> None:
    """The three rows that are on both from the beginning: two backfills met."""
    wait_for("each key is there once", world.is_once)
    assert len(world.shown_once()) == 3
    first, other = ("eu", "us") if ("eu", 2) in world.shown_once() else ("us", "eu")
    run, reason = world.run, f"its key lives on the source {first}, and this row is on {other}."
    assert reason in run.command("dead-letters", "list", VIEW).stdout
    done = run.command("verify", VIEW)
    assert done.returncode == 1 and f"{VIEW}\t2\tparked\t{reason}" in done.stdout, done.stdout
    done = run.command("why", VIEW, "2")
    assert done.returncode == 1 and "CURRENT" in done.stdout and f"PARKED: {reason}" in done.stdout, done.stdout
    done = run.command("get", VIEW, "2", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["content"] == {"email": f"{first}2@x"}, done.stdout
    assert f"{first}\t2" in run.command("find", "user_once", f"{first}2@x").stdout
    for view in ONCE:
        (owner,) = {source for source, number in world.shown_once(view) if number == 2}
        told = run.command("get", view, "2", "--json")
        assert json.loads(told.stdout)["content"]["email"] == f"{owner}2@x", told.stdout
        assert run.command("verify", view).returncode == 1
    world.ask(first, "DELETE FROM shop.user WHERE id = 2")
    wait_for("it goes in by itself", lambda: world.shown_once().get((other, 2)) == f"{other}2@x" and world.is_once())
    for name in ("eu", "us"):
        world.ask(name, "DELETE FROM shop.user WHERE id < 4 AND email LIKE 'us%'")
    wait_for("no key is on both", world.waits_for_nothing)
    assert run.command("verify", *ONCE).returncode == 0


def _moves(world: Servers) -> None:
    """The row is seen on the second server first, and nobody runs when it goes from the first one."""
    moved = ", ".join(f"({number}, 'moved{number}@x', '')" for number in range(100, 350))
    world.ask("eu", f"INSERT INTO shop.user VALUES {moved}")
    wait_for("they are shown", lambda: len(world.shown_once()) > 249)
    world.ask("us", f"INSERT INTO shop.user VALUES {moved}")
    wait_for("they wait", lambda: all(len(world.parked(view)) == 250 for view in ONCE))  # many in a row halt no view
    world.run.kill()
    world.ask("eu", "DELETE FROM shop.user WHERE id >= 100")
    world.run.start()
    wait_for("they have moved", world.waits_for_nothing)
    assert {source for source, number in world.shown_once() if number >= 100} == {"us"}
    # And back, in the order in which rows are told.
    world.ask("us", "DELETE FROM shop.user WHERE id >= 100")
    world.ask("eu", f"INSERT INTO shop.user VALUES {moved}")
    wait_for("they are back", lambda: world.waits_for_nothing() and ("eu", 100) in world.shown_once())


def _comes_back_with_less(world: Servers, redis_server: Server) -> None:
    """Redis loses the row that had waited, and that row's own change was read long before what it still has."""
    world.ask("eu", "INSERT INTO shop.user VALUES (50, 'eu50@x', '')")
    wait_for("it is shown", lambda: ("eu", 50) in world.shown_once(KEYS) and world.is_once())
    world.ask("us", "INSERT INTO shop.user VALUES (50, 'us50@x', '')")
    wait_for("it waits", world.is_once)
    files = redis_server.directory / "data" / "appendonlydir"
    backup = world.run.folder / "backup"
    redis_server.stop()
    shutil.copytree(files, backup)
    redis_server.start()
    world.ask("eu", "DELETE FROM shop.user WHERE id = 50")
    wait_for("it is put in", lambda: ("us", 50) in world.shown_once(KEYS) and world.is_once())
    written = int(str(world.redis.hget("user_once:50", "_version")))
    noted = f"SELECT MAX(watermark_version) > {written} FROM viewtail.view WHERE name = '{KEYS}'"
    wait_for("what it is behind is noted", lambda: world.ask("eu", noted) == [(1,)])
    redis_server.stop()
    shutil.rmtree(files)
    shutil.copytree(backup, files)
    redis_server.start()
    wait_for("it is put in again", lambda: ("us", 50) in world.shown_once(KEYS) and world.is_once())
    world.ask("us", "DELETE FROM shop.user WHERE id = 50")
    wait_for("it is gone", world.is_once)


def _commands_write_their_own(world: Servers) -> None:
    run = world.run
    world.ask("us", "INSERT INTO shop.user VALUES (100, 'both@x', '')")
    wait_for("it is parked", lambda: ("us", 100) in world.parked())
    shown = world.shown_once()
    assert run.background("dead-letters", "drop", VIEW, "100", "--yes", VIEWTAIL_SHARD="eu").wait() == 1  # it has none
    assert ("us", 100) in world.parked()
    world.ask("eu", "DELETE FROM viewtail.user_once WHERE id = 101")
    noted = f"SELECT MAX(watermark_version) FROM viewtail.view WHERE name = '{VIEW}'"
    before = world.ask("eu", noted)
    done = run.command("verify", VIEW, "--repair")
    assert "101\tmissing" in done.stdout and "100\tparked" in done.stdout, done.stdout
    assert world.ask("eu", noted) > before, "a store that loses it is noticed"
    assert run.command("replay", VIEW, "--key", "100").returncode == 1  # us' is refused again
    assert run.command("replay", VIEW, "--parked", "--yes").returncode == 1
    assert world.shown_once() == shown and world.is_once()
    for shard in ("us", "eu"):
        assert run.background("replay", VIEW, "--yes", VIEWTAIL_SHARD=shard).wait() == 0
        wait_for("it is filled again", world.is_filled)
        assert world.shown_once() == shown
    world.cut.lead_to(1)
    wait_for("us is away", lambda: world.pipelines()["us.0.mysql"]["error"])
    world.ask("eu", "UPDATE shop.user SET email = 'alone@x' WHERE id = 102")
    wait_for("eu goes on", lambda: world.shown_once()["eu", 102] == "alone@x")
    world.ask("eu", "DELETE FROM shop.user WHERE id = 100")
    _forgets_its_own(world)
    world.cut.lead_to(world.servers["us"].port)
    for arguments, why in (
        (("forget", KEYS, "--part", "source=us"), "To take a server out"),
        (("pause", KEYS, "--part", "id=3"), "viewtail pause --pipeline"),
    ):
        refused = run.command(*arguments)
        assert refused.returncode == 2 and why in refused.stderr and "DROP" not in refused.stderr, refused
    wait_for("us' row goes in", lambda: world.shown_once().get(("us", 100)) == "both@x" and world.is_once())
    assert run.command("check").returncode == 0


def _forgets_its_own(world: Servers) -> None:
    """Of all views of the table, which write the key in two ways; the row of the other server goes on waiting."""
    named = "SELECT COUNT(*) FROM viewtail.operator_run WHERE what LIKE '%: 100%'"
    assert world.ask("eu", named) != [(0,)]
    done = world.run.background("forget", "shop.user", "eu:100", VIEWTAIL_SHARD="eu")
    assert done.wait() == 0
    assert ("us", 100) in world.parked() and world.ask("eu", named) == [(0,)]
