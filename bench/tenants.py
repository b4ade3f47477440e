"""`python -m bench.tenants`: thousands of tables that are one entity, each of a few rows.

How long `viewtail run` takes to fill a view of all of them, what a table costs in memory where nothing is written to
it, and where something is, and how long a new tenant's first row takes. Exit 1 where a goal is missed.

Memory is compared with that of a view of as many rows in FEW tables: what a fill has in hand is of rows, not of tables.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import stack.mysql
from bench.setting import Setting
from bench.starts import running, when

ROWS, FEW = 20, 10
FILLED_WITHIN_S, JOINED_WITHIN_S, MOST_BYTES = 60.0, 2.0, 2048
VIEWS = """
from viewtail import Entity, IndexTable

invoice = Entity("bench.org{account_id:int}_invoice", key=["account_id", "allowed_id"])
views = [IndexTable("invoice_by_number", invoice, value="number")]
"""
COLUMNS = (
    "(allowed_id BIGINT UNSIGNED PRIMARY KEY, number VARCHAR(40) NOT NULL, amount DECIMAL(12, 2), note VARCHAR(200), "
    "created_at DATETIME NOT NULL, is_paid TINYINT NOT NULL, INDEX invoice_created_idx (created_at))"
)


def create(setting: Setting, first: int, count: int, of_each: int) -> None:
    """Tables of so many accounts, each with its rows."""
    connection = setting.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")  # the view is filled from the tables, not from this
        for account in range(first, first + count):
            rows = ", ".join(f"({n}, 'n{account}-{n}', {n}, 'x', NOW(), 0)" for n in range(of_each))
            cursor.execute(f"CREATE TABLE bench.org{account}_invoice {COLUMNS}")
            cursor.execute(f"INSERT INTO bench.org{account}_invoice VALUES {rows}")
    connection.close()


def _asked(setting: Setting, sql: str, expected: int) -> Callable[[], bool]:
    def is_so() -> bool:
        try:
            return bool(setting.run(sql)[0] == expected)
        except Exception:  # the view's table is not there yet
            return False

    return is_so


def worker_kib() -> int:
    """The memory of the pipeline's process, now."""
    for status in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = status.read_bytes().split(b"\0")
            if b"viewtail.process" in words and b"mysql" in words:
                text = (status.parent / "smaps_rollup").read_text()
                return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        except OSError:
            continue
    return 0


def measured(setting: Setting, tables: int, of_each: int) -> tuple[float, int, float, int]:
    """Seconds until the view is filled, KiB when idle, seconds until a new tenant shows, and KiB once all were written
    to."""
    setting.run("DROP DATABASE IF EXISTS viewtail", "DROP DATABASE IF EXISTS bench", "CREATE DATABASE bench", "DO 1")
    create(setting, 1, tables, of_each)
    filled = "SELECT COUNT(*) FROM viewtail.view WHERE state = 'filled'"
    with running(setting, VIEWS) as began:
        filled_s = when(_asked(setting, filled, 1)) - began
        time.sleep(3)
        idle = worker_kib()
        setting.run(f"CREATE TABLE bench.org0_invoice {COLUMNS}", "DO 1")
        setting.run("INSERT INTO bench.org0_invoice VALUES (1, 'first', 1, 'x', NOW(), 0)", "DO 1")
        inserted = time.monotonic()
        shown = "SELECT COUNT(*) FROM viewtail.invoice_by_number WHERE account_id = 0"
        joined_s = when(_asked(setting, shown, 1)) - inserted
        connection = setting.connect()
        with connection.cursor() as cursor:
            for account in range(1, tables + 1):
                cursor.execute(f"UPDATE bench.org{account}_invoice SET number = 'new' WHERE allowed_id = 1")
        connection.close()
        changed = "SELECT COUNT(*) FROM viewtail.invoice_by_number WHERE number = 'new'"
        when(_asked(setting, changed, tables))
        return filled_s, idle, joined_s, worker_kib()


def main() -> int:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=10_000)
    tables = parser.parse_args().tables
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(servers={}, folder=Path(folder) / "app")
        setting.folder.mkdir()
        # How the tables are flushed that are made for this is not measured.
        options = ["--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2", "--innodb-file-per-table=OFF"]
        setting.servers["mysql"] = stack.mysql.start(Path(folder) / "mysql", options=options)
        try:
            _, few, _, few_written = measured(setting, FEW, tables * ROWS // FEW)
            filled_s, idle, joined_s, written = measured(setting, tables, ROWS)
        finally:
            setting.servers["mysql"].kill()
    a_table = (idle - few) * 1024 / (tables - FEW)
    a_written = (written - few_written) * 1024 / (tables - FEW)
    print(f"{tables:,} tables of {ROWS} rows are filled within {filled_s:.1f} s (goal {FILLED_WITHIN_S:.0f} s)")
    print(
        f"a table costs {a_table:,.0f} bytes of memory (goal {MOST_BYTES:,}), {a_written:,.0f} once it was written to"
    )
    print(f"a new tenant's first row shows within {joined_s:.2f} s (goal {JOINED_WITHIN_S:.0f} s)")
    is_met = filled_s <= FILLED_WITHIN_S and joined_s <= JOINED_WITHIN_S and a_table <= MOST_BYTES
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
