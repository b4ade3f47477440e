"""An operator's pause of one tenant keeps nobody else's rows from the views, and loses none of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from projectors.failpoints import PART_STEP
from stack import Server
from tests.support.running import wait_for
from tests.support.tenants import Tenants, tenants

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]
DIES = '"code":-9'
BY_NUMBER, HASH = "mysql:invoice_by_number", "redis:invoice"
OF_2 = ("--part", "account_id=2")


@pytest.fixture
def world(mysql_server: Server, redis_server: Server, tmp_path: Path) -> Iterator[Tenants]:
    with tenants(mysql_server, redis_server, tmp_path) as found:
        yield found


def are_equal_but(world: Tenants, *paused: int) -> bool:
    """Whether both views show the rows of all accounts but these."""
    rows = world.rows(*paused)
    for shown in (world.shown(), world.shown_in_redis()):
        assert {key: number for key, number in shown.items() if key[0] not in paused} == rows
    return True


def of_2(world: Tenants) -> list[set[str]]:
    """What both views show of account 2."""
    return [
        {number for key, number in shown.items() if key[0] == 2} for shown in (world.shown(), world.shown_in_redis())
    ]


def records(world: Tenants) -> set[tuple[str, str]]:
    return {*world.ask("SELECT part, state FROM viewtail.view_part")}


def command(world: Tenants, *arguments: str) -> str:
    done = world.run.command(*arguments)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def paused(world: Tenants) -> list[set[str]]:
    """Pause account 2 in both views; returns what is shown of it from then on."""
    assert "is paused" in command(world, "pause", BY_NUMBER, HASH, *OF_2, "--reason", "an import")

    def is_passed_over() -> bool:
        before = of_2(world)
        world.ask("UPDATE app.org2_invoice SET number = CONCAT(number, 'y') WHERE allowed_id = 1")
        world.add(1, 100 + len(world.rows()))
        wait_for("others go on", lambda: are_equal_but(world, 2))
        return of_2(world) == before

    wait_for("its changes are passed over", is_passed_over)
    return of_2(world)


def test_a_paused_tenant_keeps_what_is_shown_of_it_until_it_is_resumed(world: Tenants) -> None:
    run, before = world.run, paused(world)
    world.ask("DELETE FROM app.org2_invoice WHERE allowed_id = 2")
    world.add(2, 77)
    world.ask("TRUNCATE TABLE app.org1_invoice", "ALTER TABLE app.org2_invoice MODIFY number VARCHAR(60)")
    world.create(33)
    wait_for("others come and go", lambda: are_equal_but(world, 2))
    assert of_2(world) == before
    status = command(world, "status")  # is well: it is so on purpose
    assert "app.org2_invoice is paused" in status and "an import" in status
    assert "is paused" in command(world, "pause", BY_NUMBER, *OF_2)
    assert "app.org2_invoice is paused" in command(world, "status", "--by", "account_id")

    command(world, "replay", BY_NUMBER, "--wait", "--yes")
    assert are_equal_but(world, 2) and of_2(world) == before, "a whole backfill leaves its keys"
    assert "left out" in command(world, "verify", BY_NUMBER, "--repair")
    assert of_2(world) == before
    for arguments in (
        ("replay", BY_NUMBER, *OF_2, "--yes"),
        ("replay", BY_NUMBER, "--key", "2:1", "--yes"),
        ("verify", BY_NUMBER, *OF_2),
        ("why", BY_NUMBER, "2:1"),
        ("wait", BY_NUMBER, "2:1"),
        ("rebuild", BY_NUMBER, "--yes"),
    ):
        refused = run.command(*arguments)
        assert refused.returncode != 0 and f"viewtail resume {BY_NUMBER} --part account_id=2" in refused.stderr, refused
    assert run.stop() == 0
    world.ask("TRUNCATE TABLE app.org2_invoice")
    world.add(2, 5)
    run.start()
    world.add(1, 900)
    wait_for("it is left alone after a restart, too", lambda: are_equal_but(world, 2))
    assert of_2(world) == before

    command(world, "resume", BY_NUMBER, HASH, *OF_2)
    assert world.is_equal() and not records(world)
    assert "is not paused" in command(world, "resume", BY_NUMBER, *OF_2)
    done = json.loads(command(world, "replays", "--json"))
    past = {(one["kind"], one["view"], one["what"], one["result"]) for one in done}
    assert ("pause", BY_NUMBER, "part account_id=2", "an import") in past, past
    assert ("resume", BY_NUMBER, "part account_id=2", "") in past, past
    world.ask(f"INSERT INTO app.org2_invoice (allowed_id, number) VALUES (6, '{'w' * 60}')")
    world.ask("DELETE FROM app.org2_invoice WHERE allowed_id = 5")
    wait_for("it is kept as any other", world.is_equal)
    command(world, "verify")


def test_one_that_dies_as_a_tenant_is_resumed_leaves_it_to_the_next(world: Tenants) -> None:
    run, before = world.run, paused(world)
    world.ask("DELETE FROM app.org2_invoice WHERE allowed_id = 2")
    world.add(2, 77)
    assert run.stop() == 0
    run.start(VIEWTAIL_FAILPOINT=f"{PART_STEP}:1")
    world.add(1, 901)
    wait_for("others go on", lambda: are_equal_but(world, 2))
    assert of_2(world) == before
    world.ask("UPDATE viewtail.view_part SET state = 'resumed'")  # as `resume` does, which would wait
    wait_for("each dies behind the rows, and again", lambda: run.log.count(DIES) > 4)
    assert records(world) == {("2", "resumed")}
    run.kill()
    run.start()
    command(world, "resume", BY_NUMBER, HASH, *OF_2)
    assert world.is_equal() and not records(world)
    command(world, "verify")


def test_a_paused_tenant_whose_table_is_gone_leaves_as_it_is_resumed(world: Tenants) -> None:
    before = paused(world)
    world.ask("DROP TABLE app.org2_invoice", "DROP TABLE app.org10_invoice")
    wait_for("another one leaves", lambda: are_equal_but(world, 2))
    assert of_2(world) == before
    refused = world.run.command("forget", BY_NUMBER, *OF_2, "--yes")
    assert refused.returncode != 0 and "viewtail resume" in refused.stderr
    command(world, "resume", BY_NUMBER, HASH, *OF_2)
    assert world.is_equal() and not records(world)
    command(world, "forget", BY_NUMBER, *OF_2, "--yes")
    command(world, "verify")
    refused = world.run.command("pause", BY_NUMBER, *OF_2)
    assert refused.returncode == 2 and "there is no table app.org2_invoice" in refused.stderr


LETTERS = "SELECT COUNT(*) FROM viewtail.dead_letter"


def parked(world: Tenants) -> None:
    """Two rows of account 2, of which the keys in Redis hold something else."""
    for number in (50, 51):
        world.redis.hset(f"invoice:2:{number}", mapping={"account_id": 2, "number": "somebody's"})
    world.add(2, 50, 51)
    wait_for("two rows are parked", lambda: world.ask(LETTERS) == [(2,)])


def mended(world: Tenants) -> None:
    """Nothing is in the way any more, and one of the rows is gone."""
    world.redis.delete("invoice:2:50", "invoice:2:51")
    world.ask("DELETE FROM app.org2_invoice WHERE allowed_id = 51")


def test_letters_of_a_tenant_end_as_it_is_resumed_and_are_left_alone_before(world: Tenants) -> None:
    parked(world)
    paused(world)
    mended(world)
    for arguments in (("dead-letters", "redrive", HASH, "--yes"), ("replay", HASH, "--parked", "--yes")):
        said = world.run.command(*arguments).stderr
        assert "app.org2_invoice is paused" in said and "its keys are left alone" in said
    keys = world.run.folder / "keys"
    keys.write_text("1:1\n2:1\n")
    refused = world.run.command("replay", HASH, "--keys-from", str(keys), "--yes")
    assert refused.returncode != 0 and f"viewtail resume {HASH} --part account_id=2" in refused.stderr, refused
    assert world.ask(LETTERS) == [(2,)]
    command(world, "resume", BY_NUMBER, HASH, *OF_2)
    assert world.is_equal() and world.ask(LETTERS) == [(0,)]
    command(world, "status")


def test_letters_of_a_tenant_end_as_its_table_is_emptied(world: Tenants) -> None:
    parked(world)
    world.ask("TRUNCATE TABLE app.org2_invoice")
    wait_for("they tell of rows that are gone", lambda: world.ask(LETTERS) == [(0,)])
    world.redis.delete("invoice:2:50", "invoice:2:51")
    wait_for("nothing of it is shown", world.is_equal)


def test_a_tenant_that_is_resumed_in_a_paused_view_comes_with_that_and_is_told_so(world: Tenants) -> None:
    parked(world)
    paused(world)
    mended(world)
    command(world, "pause", HASH)
    said = command(world, "resume", BY_NUMBER, HASH, *OF_2)
    assert f"{HASH}: app.org2_invoice is kept as any other table again; the view is paused; its rows are read" in said
    assert f"{BY_NUMBER}: app.org2_invoice is kept as any other table again; its rows were read again" in said
    command(world, "resume", HASH)
    wait_for("it is filled again", lambda: world.is_equal() and world.ask(LETTERS) == [(0,)])


def test_a_changed_view_of_which_a_tenant_is_paused_is_built_once_it_was_resumed(world: Tenants) -> None:
    run = world.run
    paused(world)
    assert run.stop() == 0
    views = (run.folder / "views.py").read_text()
    (run.folder / "views.py").write_text(views.replace('value="number"', 'value=["number", "note"]'))
    run._environment["VIEWTAIL_RUN__ON_CHANGE"] = "beside"
    refused = run.command("run")
    assert refused.returncode == 2 and f"First: viewtail resume {BY_NUMBER} --part account_id=2" in refused.stderr
    resuming = run.background("resume", BY_NUMBER, HASH, *OF_2)
    wait_for("it is asked for", lambda: {state for _, state in records(world)} == {"resumed"})
    run.start()
    assert resuming.wait() == 0
    wait_for("all is shown", lambda: world.is_equal() and not records(world))
    wait_for("by the new declaration", lambda: world.ask("SELECT COUNT(note) > 0 FROM viewtail.invoice_by_number"))
