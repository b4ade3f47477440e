"""Whole tables with the real command line: kept under writes, and handed over by `viewtail cutover`."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from projectors.failpoints import RELEASE_STEP
from stack import Server
from tests.support.running import Run, addresses, running, wait_for

SCHEMA, TABLE = "cutting", "viewtail.invoice_gateway"
OTHER = f"""
from viewtail import Entity, IndexTable, MySQLTable

invoice = Entity("{SCHEMA}.invoice")
views = [IndexTable("by_gateway", invoice, value="gateway")]
"""
VIEWS = f"""{OTHER}
views.append(
    MySQLTable(
        "invoice_gateway",
        invoice,
        indexes={{"account_invoice_idx": ["account_id", "invoice_id"], "allowed_idx": ["allowed_id"]}},
        auto_increment="allowed_id",
    )
)
"""
DDL = f"""CREATE TABLE {SCHEMA}.invoice (
  account_id INT NOT NULL, allowed_id INT NOT NULL AUTO_INCREMENT, invoice_id BIGINT, gateway VARCHAR(30) NOT NULL,
  amount DECIMAL(12,2) NULL DEFAULT 0, noted_at TIMESTAMP(6) NULL, PRIMARY KEY (account_id, allowed_id),
  KEY allowed_idx (allowed_id))"""

pytestmark = [pytest.mark.mysql, pytest.mark.slow]


class Accounts:
    """The table that an application writes, and the view that is to replace it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        for name in (SCHEMA, "viewtail"):
            self.ask(f"DROP DATABASE IF EXISTS {name}")
        self.ask(f"CREATE DATABASE {SCHEMA}")
        self.ask(DDL)
        self.ask(
            f"INSERT INTO {SCHEMA}.invoice (account_id, invoice_id, gateway, noted_at) VALUES "
            + ", ".join(f"({n % 7}, {n}, 'g{n % 3}', '2024-01-01 00:00:00.{n:06d}')" for n in range(500))
        )

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", autocommit=True)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def is_equal(self) -> bool:
        order = "ORDER BY account_id, allowed_id"
        assert self.ask(f"SELECT * FROM {TABLE} {order}") == self.ask(f"SELECT * FROM {SCHEMA}.invoice {order}")
        return True

    def columns(self) -> list[str]:
        return [
            name
            for (name,) in self.ask(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 'viewtail' "
                "AND table_name = 'invoice_gateway' ORDER BY ordinal_position"
            )
        ]

    def states(self) -> dict[str, str]:
        return dict(self.ask("SELECT name, state FROM viewtail.view"))  # type: ignore[arg-type]


class Application:
    """Writes the table until it is left."""

    def __init__(self, accounts: Accounts) -> None:
        self._connection = accounts.connect()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        count = 0
        with self._connection, self._connection.cursor() as cursor:
            while not self._stop.wait(0.005):
                count += 1
                account = count % 7
                cursor.execute(
                    f"INSERT INTO {SCHEMA}.invoice (account_id, invoice_id, gateway) VALUES ({account}, {count}, 'new')"
                )
                cursor.execute(f"UPDATE {SCHEMA}.invoice SET amount = {count} WHERE account_id = {account} LIMIT 3")
                cursor.execute(f"DELETE FROM {SCHEMA}.invoice WHERE account_id = {account} AND invoice_id < {count}")

    def __enter__(self) -> Application:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


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


def test_a_cutover_that_was_killed_behind_the_release_is_finished_by_the_next(accounts: Accounts, run: Run) -> None:
    going = run.background("cutover", "invoice_gateway", "--go", VIEWTAIL_FAILPOINT=f"{RELEASE_STEP}:1")
    going.wait(60)
    assert going.returncode == -signal.SIGKILL
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
