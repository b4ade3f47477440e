"""The servers of a DataStore: sessions on them, and the deployments that keep its indexes there.

Every entity lives on one shard for good, which its id says; a row of an index on its entity's shard, or on the one
that its value says. So each pair of shards between which rows go is a deployment: it reads one and writes the other,
into a database of its own there. Versions of two shards never meet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote as percent
from urllib.parse import urlsplit
from zlib import crc32

import pymysql
from pydantic import SecretStr

from viewtail.changes.errors import DeclarationError, SettingsError, StoreError, ViewtailError
from viewtail.servers.addresses import MYSQL, parse
from viewtail.servers.login import Server
from viewtail.servers.sessions import (
    Connection,
    may_pass,
    mend_of_denial,
    number_of,
    open_session,
    quote,
    session_error,
)

if TYPE_CHECKING:
    from viewtail.servers.sessions import MySQLAddress
    from viewtail.settings import Settings

T = TypeVar("T")
MARK = "entities_shard"
_LONGEST = 64  # characters of a database's name
_NO_TABLE = 1146
_NO_DATABASE = 1049
_MEND = "Make its tables: datastore.create(). The indexes come with: viewtail run"


def shard_name(source: int, target: int) -> str:
    """The name of the deployment that keeps, on shard `target`, the index rows of entities on shard `source`."""
    return f"{source}.{target}"


def own_database(source: int, target: int, database: str) -> str:
    """The database of that deployment: its index tables and viewtail's own tables.

    The target's `database` distinguishes it from another DataStore's on the same server. Both may have 64 characters: a
    checksum then replaces the end of the name."""
    name = f"viewtail_from_{source}_to_{target}_{database}"
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 9]}_{crc32(name.encode()):08x}"


class Shards:
    """MySQL servers, or databases of one, in an order that is for good."""

    def __init__(self, urls: Sequence[str], settings: Callable[[], Settings]) -> None:
        if isinstance(urls, str) or not urls:
            raise DeclarationError("DataStore: mysql_shards is a list of addresses, mysql://USER@HOST:PORT/DATABASE")
        self.databases: list[str] = []
        for number, url in enumerate(urls):
            try:
                path = parse(url, MYSQL).path
            except (ValueError, AttributeError) as error:
                raise DeclarationError(f"DataStore: mysql_shards[{number}] {error}") from None
            if not path:
                raise DeclarationError(
                    f"DataStore: mysql_shards[{number}] names no database: mysql://HOST:PORT/DATABASE"
                )
            self.databases.append(path)
        places = [urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl() for url in urls]
        if len(set(places)) < len(places):
            raise DeclarationError("DataStore: two of mysql_shards are one database; each entity lives on one shard")
        self._urls = [SecretStr(url) for url in urls]
        self._settings = settings
        self._local = threading.local()

    def __len__(self) -> int:
        return len(self._urls)

    def address(self, shard: int) -> MySQLAddress:
        """Return a shard's address; the login is the address's own, or that of the settings' [source]."""
        return self._settings().source.mysql_address(self._urls[shard], None)

    def own_database(self, source: int, target: int) -> str:
        """The database of the deployment between two shards."""
        return own_database(source, target, self.databases[target])

    def settings_of(self, source: int, target: int, settings: Settings) -> Settings:
        """The settings of the deployment between two shards. Raises SettingsError."""
        if settings.mysql.url is not None:
            raise SettingsError(
                "index tables are on the shards that views.py names: unset url of [mysql] (VIEWTAIL_MYSQL__URL)"
            )
        own = self.own_database(source, target)
        changed: dict[str, Any] = {"url": self._urls[source], "database": own}
        if settings.source.server_id is not None:  # two readers of one number throw each other out
            changed["server_id"] = settings.source.server_id + 1000 * (source * len(self) + target)
        login = {name: getattr(settings.source, name) for name in Server.model_fields}
        if settings.mysql.user is not None:
            login = {}
        url = urlsplit(self._urls[target].get_secret_value())._replace(path=f"/{percent(own, safe='')}").geturl()
        return settings.model_copy(
            update={
                "source": settings.source.model_copy(update=changed),
                "mysql": settings.mysql.model_copy(update={**login, "url": SecretStr(url)}),
                "views": f"{settings.views}@{shard_name(source, target)}",
            }
        )

    # -- sessions -----------------------------------------------------------------------------------------------

    def ask(self, shard: int, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run a statement that may be run twice, on the session of this thread; return its rows.

        Raises StoreUnavailableError, StoreError.
        """
        return self._on(shard, lambda connection: _rows(connection, statement, values))

    def change(self, shard: int, statement: str, values: Sequence[object] = ()) -> int:
        """Run a statement; return how many rows it changed, or its second attempt did if the first answer was lost."""
        return self._on(shard, lambda connection: _changed(connection, statement, values))

    def _on(self, shard: int, work: Callable[[Connection], T]) -> T:
        """Call `work` with the session of this thread; once more, with another, if the server ended that since."""
        sessions: dict[int, Connection] = self._local.__dict__.setdefault("sessions", {})
        is_used = shard in sessions
        try:
            if not is_used:
                sessions[shard] = self._open(shard)
            return work(sessions[shard])
        except pymysql.err.MySQLError as error:
            if not may_pass(error):
                raise self._refused(shard, error) from None
            if shard in sessions:
                with suppress(pymysql.err.MySQLError):
                    sessions.pop(shard).close()
                if is_used:
                    return self._on(shard, work)
            raise session_error(error, self.address(shard), "store") from None

    def _refused(self, shard: int, error: pymysql.err.MySQLError) -> ViewtailError:
        """The error for a statement that the server refuses, and would refuse again."""
        number = number_of(error)
        if mend_of_denial(error) is not None:
            return session_error(error, self.address(shard), "store")
        said = str(error.args[1]) if len(error.args) > 1 else type(error).__name__
        mend = _MEND if number in (_NO_TABLE, _NO_DATABASE) else "Are its tables as datastore.create() makes them?"
        return StoreError(f"shard {shard} of the DataStore: MySQL refused: {number} {said}. {mend}")

    def _open(self, shard: int) -> Connection:
        connection = open_session(self.address(shard), role="store")
        try:
            connection.autocommit(True)
            self.check_place(shard, _rows(connection, f"SELECT number, of_count FROM {self.mark(shard)}", ()))
        except BaseException:
            connection.close()
            raise
        return connection

    def mark(self, shard: int) -> str:
        """Return the table that says which shard it is, for statements."""
        return quote(self.databases[shard], MARK)

    def check_place(self, shard: int, rows: Sequence[tuple[Any, ...]]) -> None:
        """Raises StoreError for a shard that was made for another place: no entity would be where it is looked for."""
        if rows and list(rows) != [(shard, len(self))]:
            (number, count), *_ = rows
            raise StoreError(
                f"mysql_shards[{shard}] of {len(self)} was made as number {number} of {count}. Entities are found by "
                "number and count: give mysql_shards as they were, in that order"
            )

    def close(self) -> None:
        """Close the sessions of this thread."""
        for connection in self._local.__dict__.pop("sessions", {}).values():
            with suppress(pymysql.err.MySQLError):
                connection.close()


def _rows(connection: Connection, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, tuple(values))
        return list(cursor.fetchall())


def _changed(connection: Connection, statement: str, values: Sequence[object]) -> int:
    with connection.cursor() as cursor:
        return int(cursor.execute(statement, tuple(values)))
