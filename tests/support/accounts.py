"""The table that an application writes, and the view that is to replace it: on one server, or each on another."""

from __future__ import annotations

import threading
from typing import Any

import pymysql

from stack import Server
from tests.support.asking import ask

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


class Accounts:
    """The table that an application writes, and the view that is to replace it.

    Args:
        server: has the application's table.
        place: has the view's; by default the same.
    """

    def __init__(self, server: Server, place: Server | None = None) -> None:
        self.server, self.place = server, place or server
        for name in (SCHEMA, "viewtail"):
            self.ask(f"DROP DATABASE IF EXISTS {name}")
        self.there("DROP DATABASE IF EXISTS viewtail")
        self.ask(f"CREATE DATABASE {SCHEMA}")
        self.ask(DDL)
        self.ask(
            f"INSERT INTO {SCHEMA}.invoice (account_id, invoice_id, gateway, noted_at) VALUES "
            + ", ".join(f"({n % 7}, {n}, 'g{n % 3}', '2024-01-01 00:00:00.{n:06d}')" for n in range(500))
        )

    def connect(self) -> Any:
        return pymysql.connect(host="127.0.0.1", port=self.server.port, user="root", autocommit=True)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The application's server."""
        return ask(self.server, query)

    def there(self, query: str) -> list[tuple[Any, ...]]:
        """The view's server."""
        return ask(self.place, query)

    def is_equal(self) -> bool:
        order = "ORDER BY account_id, allowed_id"
        assert self.there(f"SELECT * FROM {TABLE} {order}") == self.ask(f"SELECT * FROM {SCHEMA}.invoice {order}")
        return True

    def columns(self) -> list[str]:
        return [
            name
            for (name,) in self.there(
                "SELECT column_name FROM information_schema.columns WHERE table_schema = 'viewtail' "
                "AND table_name = 'invoice_gateway' ORDER BY ordinal_position"
            )
        ]

    def states(self) -> dict[str, str]:
        return dict(self.there("SELECT name, state FROM viewtail.view"))  # type: ignore[arg-type]


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
