"""One tenant's trouble, or an operator's pause of one, keeps nobody else's rows from the views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from projectors.failpoints import ASIDE_STEP
from stack import Server
from tests.support.running import DIED, wait_for
from tests.support.tenants import VIEWS, Tenants, tenants

pytestmark = [pytest.mark.mysql, pytest.mark.redis, pytest.mark.slow]
BY_NUMBER, HASH = "mysql:invoice_by_number", "redis:invoice"


@pytest.fixture
def world(mysql_server: Server, redis_server: Server, tmp_path: Path) -> Iterator[Tenants]:
    with tenants(mysql_server, redis_server, tmp_path) as found:
        yield found


def are_equal_but(world: Tenants, *aside: int) -> bool:
    """Whether both views show the rows of all accounts but these."""
    rows = world.rows(*aside)
    for shown in (world.shown(), world.shown_in_redis()):
        assert {key: number for key, number in shown.items() if key[0] not in aside} == rows
    return True


def of(world: Tenants, account: int) -> list[set[str]]:
    """What both views show of an account."""
    return [
        {number for key, number in shown.items() if key[0] == account}
        for shown in (world.shown(), world.shown_in_redis())
    ]


def aside(world: Tenants) -> set[tuple[str, str, str]]:
    return {*world.ask("SELECT view_name, part, state FROM viewtail.view_part")}


def command(world: Tenants, *arguments: str) -> str:
    done = world.run.command(*arguments)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def test_a_paused_tenant_keeps_what_is_shown_of_it_until_it_is_resumed(world: Tenants) -> None:
    run = world.run
    assert "paused" in command(world, "pause", BY_NUMBER, HASH, "--part", "account_id=2", "--reason", "an import")
    wait_for("both leave it alone", lambda: len(aside(world)) == 2)

    def passes() -> bool:
        world.ask("UPDATE app.org2_invoice SET number = CONCAT(number, 'y') WHERE allowed_id = 1")
        before = of(world, 2)
        world.add(1, 100 + len(world.rows()))
        wait_for("others go on", lambda: are_equal_but(world, 2))
        return of(world, 2) == before

    wait_for("its changes are passed over", passes)
    before = of(world, 2)
    world.ask("DELETE FROM app.org2_invoice WHERE allowed_id = 2")
    world.add(2, 77)
    world.ask("TRUNCATE TABLE app.org1_invoice")
    world.create(33)
    wait_for("others come and go", lambda: are_equal_but(world, 2))
    assert of(world, 2) == before
    status = command(world, "status")  # is well: it is so on purpose
    assert "org2_invoice" in status and "an import" in status

    command(world, "replay", BY_NUMBER, "--wait", "--yes")
    assert are_equal_but(world, 2) and of(world, 2) == before, "a whole backfill leaves its keys"
    assert "org2_invoice" in command(world, "verify")
    assert run.stop() == 0
    world.ask("TRUNCATE TABLE app.org2_invoice")
    world.add(2, 5)
    run.start()
    world.add(1, 900)
    wait_for("it is left alone after a restart, too", lambda: are_equal_but(world, 2))
    assert of(world, 2) == before

    command(world, "resume", BY_NUMBER, HASH, "--part", "account_id=2")
    assert world.is_equal() and not aside(world)
    world.add(2, 6)
    world.ask("DELETE FROM app.org2_invoice WHERE allowed_id = 5")
    wait_for("it is kept as any other", world.is_equal)
    command(world, "verify")


def test_a_table_that_does_not_fit_is_set_aside_alone_until_it_is_mended(
    mysql_server: Server, redis_server: Server, tmp_path: Path
) -> None:
    with_notes = VIEWS.replace("views = [", 'views = [IndexTable("invoice_by_note", invoice, value="note"),')
    with tenants(mysql_server, redis_server, tmp_path, with_notes) as world:
        _mend_one_that_does_not_fit(world)


def _mend_one_that_does_not_fit(world: Tenants) -> None:
    run = world.run
    world.ask("ALTER TABLE app.org2_invoice DROP COLUMN number")
    world.ask("INSERT INTO app.org2_invoice (allowed_id, note) VALUES (50, 'y')")
    world.add(1, 60)
    wait_for("it is set aside", lambda: aside(world) == {(BY_NUMBER, "2", "misfit"), (HASH, "2", "misfit")})
    wait_for("others go on", lambda: are_equal_but(world, 2))
    of_note = "SELECT allowed_id FROM viewtail.invoice_by_note WHERE account_id = 2 AND note = 'y'"
    wait_for("so does a view of other columns", lambda: [*world.ask(of_note)] == [(50,)])
    assert set(world.states().values()) == {"filled None"}
    status = run.command("status")
    assert status.returncode == 1
    assert "org2_invoice" in status.stdout and f"viewtail replay {BY_NUMBER} --part account_id=2" in status.stdout
    done = run.command("replay", BY_NUMBER, "--part", "account_id=2")
    assert done.returncode == 1 and "does not fit" in done.stderr

    assert run.stop() == 0
    world.ask("DELETE FROM app.org1_invoice WHERE allowed_id = 60")
    run.start()
    wait_for("others go on after a restart", lambda: are_equal_but(world, 2))
    world.ask("INSERT INTO app.org2_invoice (allowed_id, note) VALUES (49, 'y')")
    wait_for("so does a view of other columns", lambda: [*world.ask(f"{of_note} ORDER BY 1")] == [(49,), (50,)])
    assert of(world, 2) == [{"n2-1", "n2-2", "n2-3"}] * 2

    world.ask("ALTER TABLE app.org2_invoice ADD COLUMN number VARCHAR(20) NOT NULL DEFAULT 'mended'")
    world.add(2, 51)
    for view in (BY_NUMBER, HASH):
        command(world, "replay", view, "--part", "account_id=2")
    assert world.is_equal() and not aside(world)
    world.add(2, 52)
    wait_for("it is kept as any other", world.is_equal)
    assert run.command("status").returncode == 0


def test_tables_changed_at_once_or_while_nobody_reads_are_set_aside_and_killed_processes_go_on(world: Tenants) -> None:
    run = world.run
    world.create(11)
    world.create(12)
    wait_for("more joined", world.is_equal)
    assert run.stop() == 0
    world.ask("ALTER TABLE app.org10_invoice DROP COLUMN number")
    world.add(1, 60)
    run.start(VIEWTAIL_FAILPOINT=f"{ASIDE_STEP}:1")
    wait_for("one of before the start", lambda: aside(world) == {(BY_NUMBER, "10", "misfit"), (HASH, "10", "misfit")})
    wait_for("others go on", lambda: are_equal_but(world, 10))
    world.ask(
        "ALTER TABLE app.org2_invoice DROP COLUMN number",
        "ALTER TABLE app.org11_invoice DROP COLUMN number",
        "ALTER TABLE app.org11_invoice ADD COLUMN number VARCHAR(20) NOT NULL DEFAULT 'back'",
    )
    world.add(12, 61)
    wait_for("each is", lambda: {part for _, part, _ in aside(world)} == {"10", "2", "11"})
    wait_for("others go on", lambda: are_equal_but(world, 10, 2, 11))
    assert DIED in (run.folder / "run.log").read_text()
    assert set(world.states().values()) == {"filled None"}

    command(world, "replay", BY_NUMBER, "--part", "account_id=11")
    command(world, "replay", HASH, "--part", "account_id=11")
    wait_for("what was dropped and came back", lambda: are_equal_but(world, 10, 2))
    world.ask("DROP TABLE app.org10_invoice", "RENAME TABLE app.org2_invoice TO app.left_2")
    world.add(12, 62)
    wait_for("others go on", lambda: are_equal_but(world, 10, 2))
    assert of(world, 10) == [{"n10-1", "n10-2", "n10-3"}] * 2, "they are kept until somebody says"
    for view in (BY_NUMBER, HASH):
        command(world, "replay", view, "--part", "account_id=2")
        command(world, "forget", view, "--part", "account_id=10")
    assert world.is_equal() and not aside(world)
    command(world, "verify")
