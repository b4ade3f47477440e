"""Keeps who a deployment is: an id, made once with viewtail's own tables.

It goes where these tables go, so it stays the same after a failover and after a restore. It is made from the server and
the database, so tables that were dropped and made again there are the same deployment: no other can have left its
places. A process that knows its id gives it to tables that it makes anew, after a failover to a server without them.
Places in stores that deployments share carry it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from offsets import migrations
from offsets.mysql import Session, transaction
from viewtail.servers.facts import facts_of
from viewtail.servers.sessions import MySQLAddress, quote

TABLE = "deployment_identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One deployment."""

    id: str  # 32 hexadecimal digits
    title: str  # for people: the database of its own tables, and the server where they were made


def make(cursor: Any, database: str, address: MySQLAddress, known: Identity | None = None) -> None:
    """Give the tables their identity, unless they have one; of two processes that come at once one makes it.

    `known` is who the process is by tables that it had before, elsewhere.
    """
    cursor.execute(f"SELECT 1 FROM {quote(database, TABLE)}")
    if cursor.fetchone() is not None:  # not INSERT at once: a replica of the tables may be read-only
        return
    if known is None:
        title = f"{database} on {address.host}:{address.port}"
        known = Identity(id=id_of(cursor, database), title=title[:255])
    cursor.execute(
        f"INSERT IGNORE INTO {quote(database, TABLE)} (number, id, title) VALUES (1, %s, %s)", (known.id, known.title)
    )


def id_of(cursor: Any, database: str) -> str:
    """Make the id of a database of this server. MariaDB's own number is 1 by default: where it runs is beside it."""
    cursor.execute(facts_of(cursor.connection).identity)
    (identity,) = cursor.fetchone()
    cursor.execute("SELECT @@hostname, @@port, @@datadir")
    return hashlib.sha256("\0".join(map(str, (identity, *cursor.fetchone(), database))).encode()).hexdigest()[:32]


def read(session: Session, database: str) -> Identity | None:
    """Read the deployment's identity; None where the tables are not there."""
    with transaction(session, "reading who this deployment is") as cursor:
        if not migrations.are_there(cursor, database):
            return None
        cursor.execute(f"SELECT id, title FROM {quote(database, TABLE)}")
        row = cursor.fetchone()
    return None if row is None else Identity(id=row[0], title=row[1])
