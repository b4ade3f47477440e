"""Reads from SHOW GRANTS what the user of a session may do: nothing is tried, nothing is changed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pymysql

from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import MySQLAddress, quote, value_of

_GRANT = re.compile(
    r"^GRANT (?P<what>.+?) ON (?:TABLE )?(?:\*|`(?P<schema>(?:[^`]|``)*)`)\.(?:\*|`(?P<table>(?:[^`]|``)*)`) TO ",
    re.IGNORECASE | re.DOTALL,
)


class Privileges:
    """The grants of one user, roles that are active included."""

    def __init__(self, grants: Iterable[str]) -> None:
        self._grants: list[tuple[set[str], str | None, str | None]] = []
        for line in grants:
            found = _GRANT.match(line)
            if found:
                what = re.sub(r"\([^)]*\)", "", found["what"])  # column lists
                names = {name.strip().upper() for name in what.split(",")}
                self._grants.append((names, found["schema"], found["table"]))

    @classmethod
    def of(cls, connection: pymysql.Connection[Any]) -> Privileges:
        """Ask the server; raises PyMySQL's errors as they are."""
        roles = value_of(connection, "SELECT CURRENT_ROLE()")
        has_roles = roles not in (None, "NONE", "")
        with connection.cursor() as cursor:
            cursor.execute(facts_of(connection).grants.format(roles=roles) if has_roles else "SHOW GRANTS")
            return cls(line for (line,) in cursor.fetchall())

    def missing(self, wanted: Iterable[str], schema: str | None = None, table: str | None = None) -> list[str]:
        """Return the wanted privileges that are not held: globally, on a schema, or on a table."""
        return [name for name in wanted if not self._has(name, schema, table)]

    def _has(self, name: str, schema: str | None, table: str | None) -> bool:
        return any(
            (name in names or "ALL PRIVILEGES" in names or "ALL" in names)
            and (on_schema is None or (schema is not None and _covers(on_schema, schema)))
            and (on_table is None or on_table.replace("``", "`") == table)
            for names, on_schema, on_table in self._grants
        )


def _covers(pattern: str, schema: str) -> bool:
    """Return whether a grant's schema, with % and _ as wildcards unless behind a backslash, holds a schema."""
    parts = re.findall(r"\\.|.", pattern.replace("``", "`"))
    wildcards = {"%": ".*", "_": "."}
    text = "".join(wildcards.get(part) or re.escape(part[-1]) for part in parts)
    return re.fullmatch(text, schema, re.IGNORECASE | re.DOTALL) is not None


def account(address: MySQLAddress) -> str:
    """The user of an address, from wherever it comes, as GRANT takes it."""
    return "'" + address.user.replace("\\", "\\\\").replace("'", "''") + "'@'%'"


def on_database(database: str) -> str:
    """All tables of one database, as GRANT takes it: there _ and % would be wildcards."""
    return re.sub(r"([_%])", r"\\\1", quote(database)) + ".*"


def grants(address: MySQLAddress, database: str, privileges: Iterable[str], what: str) -> list[str]:
    """The statement that grants privileges on a database, behind a comment that names its server."""
    return [
        f"-- On {address}, {what}:",
        f"GRANT {', '.join(privileges)} ON {on_database(database)} TO {account(address)};",
    ]
