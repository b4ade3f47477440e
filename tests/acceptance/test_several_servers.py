"""One view of the rows that several servers have: each source keeps its own keys, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stack import Server
from tests.support.running import Run
from tests.support.several_servers import USER, VIEWS, Servers, servers, settings_of, wait_for
from viewtail.changes.versions import LEAST_OF_BINLOGS

OLD = LEAST_OF_BINLOGS  # a version below those of all changes, and of viewtail's

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def one_run(
    mysql_server: Server,
    mariadb_server: Server,
    redis_server: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Servers]:
    with servers(mysql_server, mariadb_server, redis_server, tmp_path_factory.mktemp("servers")) as found:
        yield found


@pytest.fixture
def world(one_run: Servers) -> Servers:
    """The run that all tests share, with the rows that each begins with."""
    one_run.begin_again()
    return one_run


def test_rows_of_two_servers_are_in_one_view_and_are_read_there(world: Servers) -> None:
    assert world.is_equal()
    assert world.pipelines().keys() == {"eu.0.mysql", "eu.0.redis", "us.0.mysql", "us.0.redis"}
    world.ask("eu", "UPDATE shop.user SET email = 'changed@x' WHERE id = 1", "DELETE FROM shop.user WHERE id = 2")
    world.ask("us", "UPDATE shop.user SET id = 7 WHERE id = 3", "INSERT INTO shop.user VALUES (8, 'both@x', '')")
    world.ask("eu", "INSERT INTO shop.user VALUES (8, 'both@x', '')")
    wait_for("they follow", world.is_equal)

    run = world.run
    assert json.loads(run.command("get", "user", "us:8", "--json").stdout)["content"]["source"] == "us"
    found = run.command("find", "user_by_email", "both@x").stdout
    assert "eu\t8" in found and "us\t8" in found
    assert json.loads(run.command("why", "redis:user", "us:7", "--json").stdout)["verdict"] == "current"
    assert run.command("get", "user", "asia:8").returncode == 2
    for command in (("check",), ("wait", "user", "eu:8")):
        done = run.command(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)


def test_a_command_compares_and_writes_again_the_rows_of_the_source_that_it_is_about(world: Servers) -> None:
    run = world.run
    done = run.command("verify")
    assert done.returncode == 0, (done.stdout, done.stderr)
    for key in ("user:eu:1", "user:us:1"):
        world.redis.delete(key)
    assert run.command("replay", "redis:user", "--key", "us:1").returncode == 0
    assert world.redis.exists("user:us:1") and not world.redis.exists("user:eu:1")
    assert run.command("verify", "redis:user", "--part", "source=us").returncode == 0
    done = run.command("verify", "redis:user", "--repair")
    assert "eu:1\tmissing" in done.stdout and "us:1" not in done.stdout, done.stdout
    assert world.is_equal()
    before = {name: world.view(name)["proven_through"] for name in ("eu.0.mysql", "us.0.mysql")}
    shard = {"VIEWTAIL_SHARD": "us"}
    assert run.background("replay", "mysql:user_by_email", "--yes", **shard).wait() == 0
    wait_for("it is filled again", run.is_filled)
    assert world.view("eu.0.mysql")["proven_through"] == before["eu.0.mysql"] is not None
    assert world.view("us.0.mysql")["proven_through"] is None
    assert world.is_equal()


def test_a_source_that_is_away_keeps_no_other_from_its_changes_and_goes_on_where_it_was(world: Servers) -> None:
    world.cut.lead_to(1)
    wait_for("us is away", lambda: world.pipelines()["us.0.redis"]["error"])
    world.ask("us", "UPDATE shop.user SET email = 'meanwhile@x' WHERE id = 1", "DELETE FROM shop.user WHERE id = 2")
    world.ask("eu", "UPDATE shop.user SET email = 'alone@x' WHERE id = 1")
    wait_for("eu follows", lambda: world.shown()["eu", 1] == "alone@x" == world.shown_in_redis()["eu", 1])
    assert world.shown()["us", 1] == "us1@x"
    world.run.kill()
    world.ask("eu", "UPDATE shop.user SET email = 'down@x' WHERE id = 2")
    world.run.start()  # with one of them away
    wait_for("eu goes on", lambda: world.shown()["eu", 2] == "down@x" == world.shown_in_redis()["eu", 2])
    assert {key for key in world.shown() if key[0] == "us"} == {("us", 1), ("us", 2), ("us", 3)}
    world.cut.lead_to(world.servers["us"].port)
    wait_for("both", world.is_equal)


def test_statements_about_the_table_of_one_source_touch_its_rows_alone(world: Servers) -> None:
    world.ask("us", "TRUNCATE TABLE shop.user", "INSERT INTO shop.user VALUES (5, 'five@x', '')")
    wait_for("us is emptied", world.is_equal)
    assert {key for key in world.shown() if key[0] == "us"} == {("us", 5)}
    # As gh-ost does it; and a column that becomes wider in one source.
    world.ask(
        "us",
        "CREATE TABLE shop.user_new (id INT PRIMARY KEY, email VARCHAR(60), note VARCHAR(40))",
        "INSERT INTO shop.user_new SELECT * FROM shop.user UNION SELECT 6, 'six@x', ''",
        "RENAME TABLE shop.user TO shop.user_old, shop.user_new TO shop.user",
        f"INSERT INTO shop.user VALUES (9, '{'w' * 60}', '')",
    )
    wait_for("the other table is read", world.is_equal)
    world.ask("eu", "INSERT INTO shop.user VALUES (4, 'four@x', '')")
    wait_for("eu goes on", world.is_equal)
    world.run.kill()
    world.run.start()  # eu has the narrower column, and must not take room away
    world.ask("eu", "INSERT INTO shop.user VALUES (10, 'ten@x', '')")
    wait_for("both are kept", world.is_equal)
    assert world.run.command("verify").returncode == 0


def test_each_source_fills_a_table_again_that_somebody_dropped(world: Servers) -> None:
    world.ask("eu", "DROP TABLE viewtail.user_by_email")
    world.ask("us", "UPDATE shop.user SET email = 'seen@x' WHERE id = 1")
    wait_for("both are there", world.is_equal)
    world.ask("eu", "UPDATE shop.user SET email = 'seen@x' WHERE id = 1")
    wait_for("both follow", world.is_equal)


def test_a_backfill_sweeps_the_keys_of_its_own_source_alone(world: Servers) -> None:
    assert world.run.stop() == 0  # with its offsets saved: a TRUNCATE that it reads again would take the key, too
    world.redis.hset("user:eu:77", mapping={"email": "stray", "source": "eu", "_version": f"{OLD:019}"})
    into = "INSERT INTO viewtail.user_by_email (source, id, email, version) VALUES"
    world.ask("eu", f"{into} ('eu', 77, 'stray', {OLD}), ('us', 77, 'stray', {OLD})")
    world.run.start(VIEWTAIL_CLEANER__SHARE="0")  # which would sweep eu before the replay does
    wait_for("it runs", world.run.is_filled)
    assert world.run.background("replay", "mysql:user_by_email", "--yes", VIEWTAIL_SHARD="eu").wait() == 0
    wait_for("eu is swept", lambda: ("eu", 77) not in world.shown())
    assert ("us", 77) in world.shown()
    assert world.run.background("replay", "redis:user", "--yes", VIEWTAIL_SHARD="us").wait() == 0
    wait_for("it is filled again", world.run.is_filled)
    assert ("eu", 77) in world.shown_in_redis()
    assert world.run.background("replay", "redis:user", "--yes", VIEWTAIL_SHARD="eu").wait() == 0
    wait_for("eu is swept", lambda: ("eu", 77) not in world.shown_in_redis())
    assert {key for key in world.shown_in_redis() if key[0] == "us"} == {("us", 1), ("us", 2), ("us", 3)}


def test_a_view_does_not_change_between_one_source_and_several_under_its_name(world: Servers) -> None:
    run = world.run
    run.kill()
    alone = Run(
        run.folder,
        VIEWS.replace(', sources=["eu", "us"]', "").replace(', "source"', ""),
        {**run.environment(), "VIEWTAIL_SOURCE__URL": world.servers["eu"].url},
    )
    alone.start()
    try:
        wait_for("it says why", lambda: "was kept with sources= by pipeline" in alone.log)
        assert world.is_equal()
    finally:
        alone.kill()
        (run.folder / "views.py").write_text(VIEWS)
        run.start()


def test_a_table_that_is_dropped_halts_the_views_of_its_source_and_no_others(world: Servers) -> None:
    world.ask("us", "DROP TABLE shop.user")
    wait_for("its views halt", lambda: world.view("us.0.redis")["state"] == "halted")
    assert "dropped" in world.view("us.0.redis")["reason"]
    world.ask("eu", "UPDATE shop.user SET email = 'still@x' WHERE id = 1")
    wait_for("eu goes on", lambda: world.shown_in_redis()["eu", 1] == "still@x")
    assert world.view("eu.0.redis")["state"] == "filled" and ("us", 3) in world.shown_in_redis()
    world.ask("us", f"CREATE TABLE shop.user {USER}", "INSERT INTO shop.user VALUES (3, 'again@x', '')")
    for view in ("mysql:user_by_email", "redis:user"):
        assert world.run.background("replay", view, "--yes", VIEWTAIL_SHARD="us").wait() == 0
    wait_for("they are filled again", world.is_equal)


def test_what_the_settings_and_a_declaration_say_of_sources_fits(
    mysql_server: Server, mariadb_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    views = """
from viewtail import Entity, RedisHash
views = [RedisHash("user", Entity("shop.user", sources=SOURCES), fields=["email"])]
"""
    settings = settings_of(mysql_server, mariadb_server.port, redis_server)
    for sources, said in (
        ('["eu", "uss"]', "the settings have no source uss; did you mean us?"),
        ('"shard*"', "the settings have no source shard*; there are eu, us"),
    ):
        done = Run(tmp_path, views.replace("SOURCES", sources), settings).command("check")
        assert done.returncode == 2 and said in done.stderr, done.stderr
    without = {name: value for name, value in settings.items() if "SOURCES" not in name}
    done = Run(tmp_path, views.replace("SOURCES", '"eu"'), without).command("check")
    assert done.returncode == 2 and "VIEWTAIL_SOURCES__EU__URL" in done.stderr, done.stderr
    nowhere = {name: value for name, value in settings.items() if "MYSQL" not in name}
    done = Run(tmp_path, views.replace("SOURCES", '"eu"'), nowhere).command("check")
    assert done.returncode == 2 and "VIEWTAIL_MYSQL__URL" in done.stderr, done.stderr
