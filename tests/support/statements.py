"""Statements on a session of MySQL's, one after the other."""

from __future__ import annotations

from typing import Any

import pymysql


def run(connection: pymysql.Connection[Any], *statements: str) -> Any:
    """The last one's rows."""
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall()
