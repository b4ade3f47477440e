"""What a column of the entity's table is on a server of another kind: the source a MySQL and the view's table on a
MariaDB, or the other way round. A value is the same there to the byte; only how texts are compared may differ a little.

What has no equal is left as it is: the server refuses to make the table, and says why."""

from __future__ import annotations

import re

from viewtail.changes.tables import TEXTS_IN_BINARY
from viewtail.servers.facts import BINARY_COLLATIONS, MARIADB, MYSQL

_OF_MYSQL = re.compile("utf8mb4_0900_(ai_ci|as_ci|as_cs)")
_OF_MARIADB = re.compile("utf8mb4_uca1400_(?:nopad_)?(ai_ci|as_ci|as_cs)")
_JSON = ("longtext", "utf8mb4_bin")  # what MariaDB makes of the word JSON


def nearest_type(type_: str, server: str) -> tuple[str, str | None] | None:
    """The type and collation for a type that this kind of server does not have; None for those that it has."""
    if server == MARIADB and type_ == "json":
        return _JSON
    if server == MARIADB and type_ == "geomcollection":
        return "geometrycollection", None
    if server == MYSQL and type_ in TEXTS_IN_BINARY:
        return f"varchar({TEXTS_IN_BINARY[type_]})", BINARY_COLLATIONS[MYSQL]
    return None


def nearest_collation(name: str, server: str) -> str:
    """The collation of this kind of server that is nearest to one of any kind."""
    if name in BINARY_COLLATIONS.values():
        return BINARY_COLLATIONS[server]
    if server == MARIADB:
        return _OF_MYSQL.sub(r"utf8mb4_uca1400_nopad_\1", name)
    # MySQL's own do not pad; of older ones it has those that do.
    return _OF_MARIADB.sub(r"utf8mb4_0900_\1", name).replace("_nopad_", "_")
