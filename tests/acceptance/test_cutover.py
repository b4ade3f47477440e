"""Whole tables with the real command line: kept under writes, and handed over by `viewtail cutover`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from projectors.failpoints import RELEASE_STEP
from tests.support.accounts import OTHER, SCHEMA, TABLE, VIEWS, Accounts, Application
from tests.support.running import Run, addresses, running, wait_for
from viewtail.signals import EXIT_STOPPED

pytestmark = [pytest.mark.mysql, pytest.mark.slow]


@pytest.fixture
def accounts(request: pytest.FixtureRequest) -> Accounts:
    """On a MySQL, or the server that a test names."""
    return Accounts(request.getfixturevalue(getattr(request, "param", "mysql_server")))


@pytest.fixture
def run(accounts: Accounts, tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path, VIEWS, {**addresses(accounts.server), "VIEWTAIL_CLEANER__SHARE": "0"}) as run:
        wait_for("the views are filled", run.is_filled)
        yield run


def test_a_table_follows_its_entity_under_writes_a_kill_and_an_alter_and_is_proven_equal(
    accounts: Accounts, run: Run
) -> None:
    with Application(accounts):
        run.kill_worker("mysql")
        wait_for("the views are kept again", run.is_filled)
        assert run.command("verify", "invoice_gateway").returncode == 0
        accounts.ask(f"ALTER TABLE {SCHEMA}.invoice MODIFY gateway VARCHAR(60) NOT NULL")
    accounts.ask(f"UPDATE {SCHEMA}.invoice SET gateway = REPEAT('g', 60) WHERE account_id = 1")
    wait_for("the table has the wider texts", accounts.is_equal)
    assert accounts.states()["mysql:invoice_gateway"] == "filled"
    accounts.ask(f"ALTER TABLE {SCHEMA}.invoice DROP invoice_id")
    wait_for("it is halted", lambda: accounts.states()["mysql:invoice_gateway"] == "halted")
    ((why,),) = accounts.ask("SELECT reason FROM viewtail.view WHERE name = 'mysql:invoice_gateway'")
    assert "invoice_id" in why


def test_a_new_column_of_the_entity_comes_into_the_table_at_the_next_start(accounts: Accounts, run: Run) -> None:
    accounts.ask(f"ALTER TABLE {SCHEMA}.invoice ADD note JSON")
    accounts.ask(f"UPDATE {SCHEMA}.invoice SET note = '[1, 2]' WHERE account_id = 1")
    wait_for("it is warned of", lambda: "the view lacks a new column" in run.log)
    assert run.command("cutover", "invoice_gateway", "--go").returncode == 2
    assert run.stop() == 0
    run.start()
    wait_for("the table has it", accounts.is_equal)
    wait_for("all is well", run.is_filled)
    assert "viewtail_version" in accounts.columns()


@pytest.mark.parametrize(
    "accounts", ["mysql_server", pytest.param("mariadb_server", marks=pytest.mark.mariadb)], indirect=True
)
def test_a_table_is_handed_over_once_nothing_comes_any_more(accounts: Accounts, run: Run) -> None:
    shown = run.command("cutover", "invoice_gateway")
    assert shown.returncode == 0 and "Ready" in shown.stdout and "DEFAULT" in shown.stdout, shown
    with Application(accounts):
        late = run.command("cutover", "invoice_gateway", "--go", "--within", "8s")
        assert late.returncode == 1 and "nothing was changed" in late.stderr, late
        assert "are written still" in late.stderr
    assert "viewtail_version" in accounts.columns() and accounts.states()["mysql:invoice_gateway"] == "filled"
    wait_for("the view is kept", accounts.is_equal)
    accounts.ask(f"ALTER TABLE {SCHEMA}.invoice AUTO_INCREMENT = 70000")

    done = run.command("cutover", "invoice_gateway", "--go", "--within", "60s", "--json")
    assert done.returncode == 0, done
    record = json.loads(done.stdout)["record"]
    assert "released on" in record and "all equal" in record
    assert accounts.is_equal()
    assert accounts.columns() == ["account_id", "allowed_id", "invoice_id", "gateway", "amount", "noted_at"]
    assert accounts.ask("SHOW TABLES FROM viewtail LIKE 'invoice_gateway%'") == [("invoice_gateway",)]
    accounts.ask(f"INSERT INTO {TABLE} (account_id, gateway) VALUES (1, 'application')")
    assert accounts.ask(f"SELECT allowed_id FROM {TABLE} WHERE gateway = 'application'") == [(70_000,)]

    # The pipeline goes on without it, and what is written to the old table stays there.
    accounts.ask(f"INSERT INTO {SCHEMA}.invoice (account_id, gateway) VALUES (1, 'late')")
    wait_for(
        "the other view goes on",
        lambda: accounts.ask("SELECT COUNT(*) FROM viewtail.by_gateway WHERE gateway = 'late'") == [(1,)],
    )
    assert accounts.ask(f"SELECT COUNT(*) FROM {TABLE} WHERE gateway = 'late'") == [(0,)]
    assert accounts.states()["mysql:invoice_gateway"] == "released"
    assert record in run.command("cutover", "invoice_gateway").stdout
    again = run.command("cutover", "invoice_gateway", "--go", "--json")
    assert again.returncode == 0 and json.loads(again.stdout)["record"] == record, "the proof stays"
    rebuilt = run.command("rebuild", "invoice_gateway", "--yes")
    assert rebuilt.returncode == 2 and "its table is no view any more" in rebuilt.stderr, rebuilt
    assert run.command("replay", "invoice_gateway", "--yes").returncode != 0
    assert run.command("verify", "invoice_gateway").returncode != 0

    assert run.stop() == 0
    refused = run.command("run")
    assert refused.returncode == 2 and "released on" in refused.stderr and "take it out of views.py" in refused.stderr
    (run.folder / "views.py").write_text(OTHER)
    run.start()
    wait_for("it runs without the view", run.is_well)
    gone = run.command("forget", "mysql:invoice_gateway", "--yes")
    assert gone.returncode == 0, gone
    assert accounts.ask(f"SELECT COUNT(*) FROM {TABLE} WHERE gateway = 'application'") == [(1,)]


def test_a_view_that_is_not_equal_or_not_filled_is_not_released(accounts: Accounts, run: Run) -> None:
    accounts.ask(f"UPDATE {TABLE} SET amount = 77 WHERE allowed_id = 5")
    done = run.command("cutover", "invoice_gateway", "--go")
    assert done.returncode == 1 and "not equal to its table" in done.stderr, done
    assert "viewtail_version" in accounts.columns()
    assert run.command("verify", "invoice_gateway", "--repair").returncode == 0
    accounts.ask(f"ALTER TABLE {TABLE} ADD UNIQUE INDEX by_hand (invoice_id)")
    done = run.command("cutover", "invoice_gateway", "--go")
    assert done.returncode == 2 and "by_hand: a constraint (UNIQUE)" in done.stderr, done
    assert "viewtail_version" in accounts.columns()
    accounts.ask(f"ALTER TABLE {TABLE} DROP CONSTRAINT by_hand")
    run.command("pause", "invoice_gateway")
    shown = run.command("cutover", "invoice_gateway")
    assert shown.returncode == 1 and "missing: It is paused" in shown.stdout, shown
    assert run.command("cutover", "invoice_gateway", "--go").returncode == 2
    assert run.command("cutover", "by_gateway").returncode == 2


def test_a_cutover_is_aborted_while_rows_come_and_by_the_operators_word_it_waits_for_none(
    accounts: Accounts, run: Run
) -> None:
    with Application(accounts):
        going = run.background("cutover", "invoice_gateway", "--go")
        wait_for("it begins again", lambda: "are written still" in going.errors_so_far())
        assert "is aborted" in run.command("cutover", "invoice_gateway", "--abort").stdout
        _, errors = going.communicate(60)
        assert going.returncode != 0 and "aborted" in errors, errors
        assert "viewtail_version" in accounts.columns()
        assert "no cutover is under way" in run.command("cutover", "invoice_gateway", "--abort").stdout
    promised = run.command("cutover", "invoice_gateway", "--go", "--read-only")
    assert promised.returncode == 0 and "the operator's word" in promised.stdout, promised
    assert "viewtail_version" not in accounts.columns()
    assert run.command("cutover", "invoice_gateway", "--abort").returncode == 2


def test_a_cutover_that_was_killed_before_the_release_has_changed_nothing(accounts: Accounts, run: Run) -> None:
    """Of each step there are two: of the cutover, and of its comparison."""
    for step in ("after begin:1", "after begin:2", "before end:1"):
        going = run.background("cutover", "invoice_gateway", "--go", VIEWTAIL_FAILPOINT=step)
        assert going.wait(60) == -signal.SIGKILL
        accounts.ask(f"INSERT INTO {SCHEMA}.invoice (account_id, gateway) VALUES (1, '{step}')")
        wait_for("the view is kept", accounts.is_equal)
        assert "viewtail_version" in accounts.columns()
    assert "is aborted" in run.command("cutover", "invoice_gateway", "--abort").stdout
    done = run.command("cutover", "invoice_gateway", "--go")
    assert done.returncode == 0 and "503 rows compared, all equal" in done.stdout, done
    assert accounts.is_equal()


def test_ctrl_c_ends_a_cutover_with_nothing_changed(accounts: Accounts, run: Run) -> None:
    with Application(accounts):
        going = run.background("cutover", "invoice_gateway", "--go")
        wait_for("it begins again", lambda: "are written still" in going.errors_so_far())
        going.send_signal(signal.SIGINT)
        _, errors = going.communicate(60)
        assert going.returncode == EXIT_STOPPED and "stopped; nothing was changed" in errors, errors
    assert "viewtail_version" in accounts.columns()
    wait_for("the view is kept", accounts.is_equal)


@pytest.mark.parametrize("step", [f"{RELEASE_STEP}:1", "before end:2"])
def test_a_cutover_that_was_killed_behind_the_release_is_finished_by_the_next(
    step: str, accounts: Accounts, run: Run
) -> None:
    going = run.background("cutover", "invoice_gateway", "--go", VIEWTAIL_FAILPOINT=step)
    going.wait(60)
    assert going.returncode == -signal.SIGKILL
    assert "Finish it: viewtail cutover mysql:invoice_gateway --go" in run.command("cutover", "invoice_gateway").stdout
    assert "nothing to abort" in run.command("cutover", "invoice_gateway", "--abort").stderr
    assert "viewtail_version" not in accounts.columns()
    done = run.command("cutover", "invoice_gateway", "--go")
    assert done.returncode == 0 and "all equal" in done.stdout, done
    assert accounts.states()["mysql:invoice_gateway"] == "released"
    assert accounts.ask("SHOW TABLES FROM viewtail LIKE 'invoice_gateway%'") == [("invoice_gateway",)]


def test_a_copy_never_takes_the_place_of_a_table_that_an_application_has(accounts: Accounts, run: Run) -> None:
    """Whatever viewtail's own tables say: the table itself says whose it is."""
    assert run.command("rebuild", "invoice_gateway", "--hold", "--yes").returncode == 0
    accounts.ask(f"ALTER TABLE {TABLE} COMMENT = 'the application has it'")
    going = run.background("rebuild", "invoice_gateway", "--yes")
    wait_for("the swap is refused", lambda: "is not viewtail's" in run.log)
    going.kill()
    accounts.ask(f"INSERT INTO {TABLE} (account_id, allowed_id, gateway) VALUES (1, 99999, 'application')")
    assert accounts.ask(f"SELECT COUNT(*) FROM {TABLE} WHERE gateway = 'application'") == [(1,)]


def test_a_table_with_masked_columns_is_not_released(accounts: Accounts, tmp_path: Path) -> None:
    masked = VIEWS.replace(f'Entity("{SCHEMA}.invoice")', f'Entity("{SCHEMA}.invoice", masked={{"gateway": "null"}})')
    with running(tmp_path, masked, {**addresses(accounts.server), "VIEWTAIL_CLEANER__SHARE": "0"}) as run:
        wait_for("the views are filled", run.is_filled)
        shown = run.command("cutover", "invoice_gateway")
        assert shown.returncode == 1 and "missing: Masked in it: gateway" in shown.stdout, shown
        assert run.command("cutover", "invoice_gateway", "--go").returncode == 2
    assert "viewtail_version" in accounts.columns()
