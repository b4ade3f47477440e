"""The tables of the application: one of each kind for every account, and two of its own."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pymysql

from examples import running
from stack.server import Server

KINDS: Mapping[str, Sequence[str]] = {  # of tables: their columns, the first one numbers the rows
    "client": ("client_id", "name", "email", "created_at"),
    "invoice": ("invoice_id", "client_id", "number", "amount", "status", "created_at"),
    "gateway": ("gateway_id", "invoice_id", "name", "is_enabled"),
}
SHORT, LONG = 12, 40  # characters of an invoice's number, at first and when the column is widened
ROWS = {"client": 4, "invoice": 8, "gateway": 2}  # of each account at first
STATUSES = ("draft", "sent", "paid")
GATEWAYS = ("stripe", "paypal", "wepay", "eway")
LOADERS, LOADED_AT_ONCE = 4, 20
TABLES_A_QUERY = 200

Row = tuple[Any, ...]  # in the order of KINDS
Rows = dict[tuple[int, int], Row]  # by account and number

# Thousands of tables are made in a minute instead of three; what follows is not sped up.
WHILE_LOADING = ("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 2")
AFTER_LOADING = ("SET GLOBAL sync_binlog = 1", "SET GLOBAL innodb_flush_log_at_trx_commit = 1")
OWN = (
    "CREATE DATABASE app CHARACTER SET utf8mb4",
    """CREATE TABLE app.account (
      id INT UNSIGNED NOT NULL PRIMARY KEY COMMENT 'Number of the account',
      name VARCHAR(60) NOT NULL COMMENT 'What it is called'
    ) COMMENT 'Accounts that are open'""",
    """CREATE TABLE app.flag (
      name VARCHAR(30) CHARACTER SET ascii NOT NULL PRIMARY KEY COMMENT 'What it switches',
      state VARCHAR(40) NOT NULL COMMENT 'How it is set now'
    ) COMMENT 'Switches that the application looks at in each transaction'""",
)


def ddl(account: int, column_length: int = SHORT) -> tuple[str, ...]:
    """The tables of one account."""
    return (
        f"""CREATE TABLE app.org{account}_client (
          client_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'From 1 in each account',
          name VARCHAR(60) NOT NULL COMMENT 'Who is billed',
          email VARCHAR(100) NULL COMMENT 'Where invoices are sent to',
          created_at DATETIME(6) NOT NULL COMMENT 'When the client was added, UTC'
        ) COMMENT 'Clients of one account'""",
        f"""CREATE TABLE app.org{account}_invoice (
          invoice_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'From 1 in each account',
          client_id INT UNSIGNED NOT NULL COMMENT 'Who is billed: client.client_id',
          number VARCHAR({column_length}) NOT NULL COMMENT 'As it is printed',
          amount DECIMAL(12,2) NOT NULL COMMENT 'What is billed, dollars',
          status ENUM('draft','sent','paid') NOT NULL COMMENT 'How far it is',
          created_at DATETIME(6) NOT NULL COMMENT 'When it was written, UTC',
          KEY client_id_idx (client_id)
        ) COMMENT 'Invoices of one account'""",
        f"""CREATE TABLE app.org{account}_gateway (
          gateway_id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY COMMENT 'From 1 in each account',
          invoice_id INT UNSIGNED NOT NULL COMMENT 'What may be paid: invoice.invoice_id',
          name VARCHAR(30) NOT NULL COMMENT 'Who takes the money',
          is_enabled BOOLEAN NOT NULL COMMENT 'Whether a client sees it',
          KEY invoice_id_idx (invoice_id)
        ) COMMENT 'By what an invoice of one account may be paid'""",
    )


def first_rows(account: int) -> dict[str, dict[int, Row]]:
    """What the tables of an account have at first, by kind and number; the same each time."""
    chance = random.Random(account)
    return {
        kind: {number: (number, *content(kind, chance, SHORT)) for number in range(1, count + 1)}
        for kind, count in ROWS.items()
    }


def content(kind: str, chance: random.Random, number_length: int) -> Row:
    """Any row of a kind, without its number."""
    at = datetime(2024, 1, 1) + timedelta(microseconds=chance.randrange(10**14))
    if kind == "client":
        name = f"client {chance.randrange(10**6)}"
        return name, chance.choice((None, f"{name.replace(' ', '')}@example.org")), at
    if kind == "invoice":
        number = f"INV-{chance.randrange(10**8):0{number_length - 4}}"
        amount = Decimal(chance.randrange(10**8)) / 100
        return 1 + chance.randrange(4), number, amount, chance.choice(STATUSES), at
    return 1 + chance.randrange(8), chance.choice(GATEWAYS), chance.randrange(2)


def load(server: Server, accounts: int) -> Iterator[tuple[str, int, int]]:
    """Make all tables; yields (what, rows so far, all)."""
    every = range(1, accounts + 1)
    with closing(running.connected(server)) as connection, connection.cursor() as cursor:
        for statement in (*WHILE_LOADING, *OWN):
            cursor.execute(statement)
        flags = {"tables": "old", "column_length": SHORT, "number_length": SHORT}
        cursor.executemany("INSERT INTO app.flag VALUES (%s, %s)", [*flags.items()])
        cursor.executemany(
            "INSERT INTO app.account VALUES (%s, %s)", [(account, f"org {account}") for account in every]
        )
        connection.commit()
        rows, done = sum(ROWS.values()), 0
        pool = ThreadPoolExecutor(LOADERS)
        try:
            tasks = [
                pool.submit(_load, server, every[at : at + LOADED_AT_ONCE]) for at in range(0, accounts, LOADED_AT_ONCE)
            ]
            for task in as_completed(tasks):
                done += rows * task.result()
                yield f"{3 * accounts:,} tables", done, rows * accounts
        finally:
            pool.shutdown(cancel_futures=True)
        for statement in AFTER_LOADING:
            cursor.execute(statement)


def _load(server: Server, accounts: Sequence[int]) -> int:
    with closing(running.connected(server)) as connection, connection.cursor() as cursor:
        for account in accounts:
            for statement in ddl(account):
                cursor.execute(statement)
            for kind, rows in first_rows(account).items():
                cursor.executemany(insert(f"app.org{account}_{kind}", KINDS[kind]), [*rows.values()])
            connection.commit()
    return len(accounts)


def insert(table: str, columns: Sequence[str]) -> str:
    """The statement for rows of these columns."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join(['%s'] * len(columns))})"


def shattered(connection: pymysql.Connection[Any], kind: str) -> Rows:
    """The rows of all tables of a kind."""
    found: Rows = {}
    columns = ", ".join(KINDS[kind])
    accounts = accounts_with(connection, kind)
    with connection.cursor() as cursor:
        for at in range(0, len(accounts), TABLES_A_QUERY):
            some = accounts[at : at + TABLES_A_QUERY]
            cursor.execute(
                " UNION ALL ".join(f"(SELECT {account}, {columns} FROM app.org{account}_{kind})" for account in some)
            )
            found |= _by_key(cursor.fetchall())
    connection.commit()
    return found


def whole(connection: pymysql.Connection[Any], table: str, kind: str) -> Rows:
    """The rows of the whole table of a kind."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT account_id, {', '.join(KINDS[kind])} FROM {table}")
        found = _by_key(cursor.fetchall())
    connection.commit()
    return found


def accounts_with(connection: pymysql.Connection[Any], kind: str) -> list[int]:
    """The accounts that have a table of this kind."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = 'app' "
            f"AND table_name REGEXP '^org[0-9]+_{kind}$'"
        )
        names = [name for (name,) in cursor.fetchall()]
    connection.commit()
    return sorted(int(name[3:].partition("_")[0]) for name in names)


def _by_key(rows: Iterable[Row]) -> Rows:
    return {(account, number): (number, *rest) for account, number, *rest in rows}
