"""What differs between the servers viewtail works with: one table; an unknown server stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pymysql

from changes.errors import SourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """How one kind of server names its identity, its binlog status, and writes an upsert."""

    name: str
    version: tuple[int, int, int]
    identity: str  # a SELECT of one value that names this very server
    status: str  # statement for the binlog's present end: file, position, ...
    upsert_alias: str  # after VALUES (...): how ON DUPLICATE KEY UPDATE may name the new row
    new_value: str  # of a column there, with {column} quoted


def facts_of(connection: pymysql.Connection[Any]) -> ServerFacts:
    """The facts of the server behind a connection; raises SourceError for one viewtail does not know."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT VERSION(), @@version_comment")
        version_text, comment = cursor.fetchone() or ("", "")
    numbers = version_text.split("-")[0].split(".")
    version = (int(numbers[0]), int(numbers[1]), int(numbers[2]) if len(numbers) > 2 else 0)
    if "mariadb" not in f"{version_text} {comment}".lower() and version >= (8, 4, 0):
        return ServerFacts(
            name="MySQL",
            version=version,
            identity="SELECT @@server_uuid",
            status="SHOW BINARY LOG STATUS",
            upsert_alias="AS new",
            new_value="new.{column}",
        )
    raise SourceError(
        f"server {version_text} ({comment}) is not one viewtail can read: it needs MySQL 8.4 or newer"
    )
