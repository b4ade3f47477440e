"""Three tables an account become three tables in all, under an application that goes on. See README.md."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql

from examples import comparing, running, screen
from examples.screen import heading, line
from examples.stage import Stage, fill, judge, load, played, stage, verified
from examples.unshatter import tables
from examples.unshatter.application import switch
from examples.unshatter.customers import Customers
from examples.unshatter.tables import KINDS
from stack.server import Server
from viewtail.demo.process import DemoError

DROPPED_AT_ONCE = 50


def main() -> int:
    """The exit code: 0 when every row is where it belongs, and no request failed."""
    return played("unshatter", _play)


def _play() -> int:
    accounts = int(os.environ.get("UNSHATTER_ACCOUNTS", "2000"))
    live_s = float(os.environ.get("UNSHATTER_LIVE_S", "5"))
    with stage({"mysql": "mysql"}, lambda servers: _prepared(servers, accounts)) as on:
        mysql = running.connected(on.servers["mysql"])
        with closing(mysql), Customers(on.servers["mysql"], accounts) as customers:
            heading("The application reads and writes. viewtail run: three whole tables are filled meanwhile")
            fill(on.run, mysql, {f"mysql:{kind}": accounts * count for kind, count in tables.ROWS.items()})
            customers.require_no_failure()
            _widen(on, mysql)
            customers.require_no_failure()
            equal = verified(on, count=len(KINDS))
            _show_cutovers(on)
            _hand_over(on, mysql)
            customers.require_no_failure()
            _stop(on)
            _drop_the_old_tables(mysql)
            _live(live_s)
            customers.stop()
            customers.require_no_failure()
            _compare(mysql, customers)
            return equal


def _prepared(servers: Mapping[str, Server], accounts: int) -> Mapping[str, str]:
    heading(f"An application with three tables for each of {accounts:,} accounts: org1_client, org1_invoice, ...")
    load(tables.load(servers["mysql"], accounts))
    return running.settings([*servers.values()], "examples.unshatter.views:views")


# -- while the old tables are used -----------------------------------------------------------------------------------


def _widen(on: Stage, mysql: pymysql.Connection[Any]) -> None:
    """A migration, as an application has them all the time; viewtail's process is killed in the midst of it."""
    heading("Meanwhile a column is widened in all tables of invoices, one by one, and viewtail's worker is killed")
    began = time.monotonic()
    switch(mysql, "column_length", str(tables.LONG))  # accounts that are opened from now on have it so
    accounts = tables.accounts_with(mysql, "invoice")
    with screen.area() as area:
        for done, account in enumerate(accounts, 1):
            _widen_one(mysql, account)
            if done == len(accounts) // 2:
                _kill_the_worker(on)
            area.show(
                screen.bar("ALTER TABLE", done, len(accounts)),
                [f"ALTER TABLE: {done:,} of {len(accounts):,}"],
                is_last=done == len(accounts),
            )
    switch(mysql, "number_length", str(tables.LONG))  # invoices get longer numbers
    line(f"{len(accounts):,} ALTER TABLE statements in {time.monotonic() - began:.1f} s")
    on.wait_until_well()
    line("viewtail is well: no view halted, and its worker went on where it was")


def _widen_one(mysql: pymysql.Connection[Any], account: int) -> None:
    try:
        with mysql.cursor() as cursor:
            cursor.execute(f"ALTER TABLE app.org{account}_invoice MODIFY number VARCHAR({tables.LONG}) NOT NULL")
    except pymysql.err.ProgrammingError as error:
        if error.args[0] != pymysql.constants.ER.NO_SUCH_TABLE:  # the account was closed
            raise


def _kill_the_worker(on: Stage) -> None:
    for children in Path(f"/proc/{on.run.process.pid}/task").glob("*/children"):
        for child in children.read_text().split():
            if b"viewtail.process" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
                line("the worker that keeps the tables is killed with SIGKILL")
                return
    raise DemoError(f"viewtail has no worker.\n{on.run.log_tail()}")


# -- the switch ------------------------------------------------------------------------------------------------------


def _show_cutovers(on: Stage) -> None:
    heading("viewtail cutover VIEW says what is proven, and what is missing; it changes nothing")
    for kind in KINDS:
        done = on.viewtail("cutover", kind)
        for text in done.stdout.splitlines():
            line(text)
        if done.returncode:
            raise DemoError(f"{kind} is not ready:\n{done.stderr}")


def _hand_over(on: Stage, mysql: pymysql.Connection[Any]) -> None:
    heading("The switch: reads go on, writes wait behind a flag. viewtail cutover VIEW --go")
    switch(mysql, "tables", "held")
    began = time.monotonic()
    for kind in KINDS:
        done = on.viewtail("cutover", kind, "--go", "--within", "100s")
        if done.returncode:
            raise DemoError(f"cutover {kind} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
        for text in done.stdout.splitlines():
            line(text)
    for view in _differing(mysql):
        raise DemoError(f"{view} has other rows than the old tables")
    with mysql.cursor() as cursor:
        cursor.execute(f"RENAME TABLE {', '.join(f'viewtail.{kind} TO app.{kind}' for kind in KINDS)}")
    switch(mysql, "tables", "new")
    line(f"the application has the new tables; writes waited for {time.monotonic() - began:.1f} s")


def _differing(mysql: pymysql.Connection[Any]) -> list[str]:
    """The released tables that have other rows than the old ones, all of them compared."""
    return judge(
        (f"viewtail.{kind}", len(old), comparing.differences(_told(old, kind), _told(new, kind)))
        for kind in KINDS
        for old, new in [(tables.shattered(mysql, kind), tables.whole(mysql, f"viewtail.{kind}", kind))]
    )


def _told(rows: tables.Rows, kind: str) -> comparing.Rows:
    return {f"{account}:{number}": dict(zip(KINDS[kind], row, strict=True)) for (account, number), row in rows.items()}


# -- afterwards ------------------------------------------------------------------------------------------------------


def _stop(on: Stage) -> None:
    heading("viewtail is stopped: nothing is left to do. The old tables are dropped, the application goes on")
    if code := on.run.stop():
        raise DemoError(f"viewtail run ended with code {code}.\n{on.run.log_tail()}")


def _drop_the_old_tables(mysql: pymysql.Connection[Any]) -> None:
    began = time.monotonic()
    names = [f"app.org{account}_{kind}" for kind in KINDS for account in tables.accounts_with(mysql, kind)]
    with screen.area() as area:
        for at in range(0, len(names), DROPPED_AT_ONCE):
            with mysql.cursor() as cursor:
                cursor.execute(f"DROP TABLE {', '.join(names[at : at + DROPPED_AT_ONCE])}")
            done = min(at + DROPPED_AT_ONCE, len(names))
            area.show(
                screen.bar("DROP TABLE", done, len(names)),
                [f"DROP TABLE: {done:,} of {len(names):,}"],
                is_last=done == len(names),
            )
    line(f"{len(names):,} tables dropped in {time.monotonic() - began:.1f} s")


def _live(seconds: float) -> None:
    heading(f"The application goes on for {seconds:.0f} s")
    time.sleep(seconds)


def _compare(mysql: pymysql.Connection[Any], customers: Customers) -> None:
    """Every row against what the application told those who wrote it."""
    heading("Every row of the new tables against what the application told its customers")
    differing = judge(
        (f"app.{kind}", len(known), comparing.differences(_told(known, kind), _told(new, kind)))
        for kind in KINDS
        for known, new in [(customers.rows(kind), tables.whole(mysql, f"app.{kind}", kind))]
    )
    if differing:
        raise DemoError(f"these are not what was written: {', '.join(differing)}")
    with mysql.cursor() as cursor:
        cursor.execute("SELECT id FROM app.account")
        if {account for (account,) in cursor.fetchall()} != customers.accounts():
            raise DemoError("other accounts are open than those that were opened and not closed")
    done = customers.done()
    line(
        f"{done['read']:,} reads, none failed, the longest in {customers.longest_wait_s('read'):.1f} s; "
        f"{done['add'] + done['change'] + done['remove']:,} writes, none failed, the longest in "
        f"{customers.longest_wait_s('write'):.1f} s"
    )
    line(f"{done['open_account']:,} accounts were opened meanwhile, and {done['close_account']:,} closed")


if __name__ == "__main__":
    sys.exit(main())
