"""One statement to a MySQL or MariaDB of the stack, on a connection of its own."""

from __future__ import annotations

from typing import Any

import pymysql

from stack import Server


def ask(server: Server, statement: str) -> list[tuple[Any, ...]]:
    """Its rows; committed."""
    connection: Any = pymysql.connect(host="127.0.0.1", port=server.port, user="root", autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
    finally:
        connection.close()
