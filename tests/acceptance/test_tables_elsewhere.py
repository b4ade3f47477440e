"""Whole tables on another server than their entity's, of another kind: kept, mended, rebuilt, handed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import OTHER, SCHEMA, TABLE, VIEWS, Accounts, Application
from tests.support.running import CLEANING, Run, addresses, running, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.mariadb, pytest.mark.slow]


@pytest.fixture(
    params=[("mysql_server", "mariadb_server"), ("mariadb_server", "mysql_server")], ids=lambda pair: pair[1]
)
def accounts(request: pytest.FixtureRequest) -> Accounts:
    source, place = map(request.getfixturevalue, request.param)
    found = Accounts(source, place)
    collation = "utf8mb4_0900_ai_ci" if "mysql" in request.param[0] else "utf8mb4_uca1400_ai_ci"
    found.ask(f"ALTER TABLE {SCHEMA}.invoice ADD note JSON, ADD about VARCHAR(20) COLLATE {collation}")
    found.ask(f"UPDATE {SCHEMA}.invoice SET note = '[1, 2.5]', about = '\u00e4' WHERE account_id = 1")
    return found


@pytest.fixture
def run(accounts: Accounts, tmp_path: Path) -> Iterator[Run]:
    environment = {**addresses(accounts.server), "VIEWTAIL_MYSQL__URL": f"{accounts.place.url}/viewtail"}
    with running(tmp_path, VIEWS, environment) as run:
        wait_for("the views are filled", run.is_filled)
        yield run


def done(run: Run, *arguments: str) -> str:
    found = run.command(*arguments)
    assert found.returncode == 0, f"{arguments}: {found.stdout}{found.stderr}"
    return found.stdout


def test_a_table_on_another_server_is_kept_proven_mended_and_rebuilt(accounts: Accounts, run: Run) -> None:
    with Application(accounts):
        run.kill_worker("mysql")
        wait_for("the views are kept again", run.is_filled)
        done(run, "verify", "invoice_gateway")
    wait_for("the table is equal", accounts.is_equal)
    accounts.there(f"UPDATE {TABLE} SET amount = 77, about = 'b' WHERE invoice_id = 499")
    assert run.command("verify", "invoice_gateway").returncode == 1
    done(run, "verify", "invoice_gateway", "--repair")
    assert accounts.is_equal()
    accounts.there(f"DELETE FROM {TABLE} WHERE account_id = 1")
    done(run, "replay", "invoice_gateway", "--yes", "--wait")
    wait_for("it was filled again", accounts.is_equal)
    wait_for("the replay is over", run.is_filled)
    done(run, "rebuild", "invoice_gateway", "--yes")
    assert accounts.is_equal()

    filled_at = accounts.there("SELECT filled_at FROM viewtail.view ORDER BY name")
    assert run.stop() == 0
    accounts.ask(f"DELETE FROM {SCHEMA}.invoice WHERE account_id = 2")
    run.start(**CLEANING)
    wait_for("it goes on", accounts.is_equal)
    assert accounts.there("SELECT filled_at FROM viewtail.view ORDER BY name") == filled_at, "nothing was missing"
    accounts.there(f"UPDATE {TABLE} SET amount = 77 WHERE account_id = 3")
    wait_for("the cleaner mends it", accounts.is_equal)


def test_a_table_on_another_server_is_handed_over_there_beside_views_that_are_kept_at_the_source(
    accounts: Accounts, run: Run, tmp_path: Path
) -> None:
    """Two servers with views are two deployments, each with its own [mysql]."""
    (tmp_path / "at_the_source").mkdir()
    with running(tmp_path / "at_the_source", OTHER, addresses(accounts.server)) as other:
        wait_for("its view is filled, too", other.is_filled)
        _handed_over(accounts, run)
        accounts.ask(f"UPDATE {SCHEMA}.invoice SET gateway = 'late' WHERE account_id = 4")
        ((count,),) = accounts.ask(f"SELECT COUNT(*) FROM {SCHEMA}.invoice WHERE gateway = 'late'")
        late = "SELECT COUNT(*) FROM viewtail.by_gateway WHERE gateway = 'late'"
        wait_for("both show it", lambda: accounts.ask(late) == accounts.there(late) == [(count,)])
        done(other, "verify", "by_gateway")
        done(run, "verify", "by_gateway")


def _handed_over(accounts: Accounts, run: Run) -> None:
    shown = done(run, "cutover", "invoice_gateway")
    assert "Ready" in shown and "about: texts are compared by" in shown
    with Application(accounts):
        going = run.background("cutover", "invoice_gateway", "--go")
        wait_for("it begins again", lambda: "are written still" in going.errors_so_far())
        assert "is aborted" in done(run, "cutover", "invoice_gateway", "--abort")
        assert going.wait(60) != 0
    accounts.ask(f"ALTER TABLE {SCHEMA}.invoice AUTO_INCREMENT = 70000")
    assert "all equal" in done(run, "cutover", "invoice_gateway", "--go", "--within", "60s")
    assert accounts.is_equal() and "viewtail_version" not in accounts.columns()
    accounts.there(f"INSERT INTO {TABLE} (account_id, gateway) VALUES (1, 'application')")
    assert accounts.there(f"SELECT allowed_id FROM {TABLE} WHERE gateway = 'application'") == [(70_000,)]
    assert run.stop() == 0
    (run.folder / "views.py").write_text(OTHER)
    run.start()
    wait_for("it runs without the view", run.is_well)
    done(run, "forget", "mysql:invoice_gateway", "--yes")
    assert accounts.there(f"SELECT COUNT(*) FROM {TABLE} WHERE gateway = 'application'") == [(1,)]
