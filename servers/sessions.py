"""Opening MySQL sessions: every one sets its time zone, SQL mode, character set, isolation and autocommit itself.

The addresses that settings give are turned into `MySQLAddress` by viewtail/settings.py; passwords stay
inside it and appear in no repr.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import CLIENT
from pymysql.cursors import RE_INSERT_VALUES, Cursor

from changes.errors import RETRIES, SourceUnavailableError, StoreError, StoreUnavailableError, ViewtailError

Connection: TypeAlias = "pymysql.Connection[Any]"

# STRICT_ALL_TABLES: a value that does not fit is an error, never cut. No ANSI_QUOTES, no NO_BACKSLASH_ESCAPES:
# the literals that sinks build count on both.
SQL_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES"

# Begins a transaction whose reads are all of this moment, in a session that is set to REPEATABLE READ.
SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


# A quoted name or text, as SQL_MODE has it.
_QUOTED = re.compile(r"""`[^`]*`|'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\"""", re.DOTALL)


class PlaceholderCursor(Cursor):
    """A cursor whose placeholders stand outside quotes: a % in a quoted name or text of a statement is a %.

    PyMySQL's own takes each % of a statement that has arguments, also of an empty tuple, for the start of one.
    """

    def mogrify(self, query: str, args: Any = None) -> str:
        """The statement with its arguments."""
        return super().mogrify(query if args is None else _doubled(query), args)

    def execute(self, query: str, args: Any = None) -> int:
        """Send it; returns how many rows there are, or were changed."""
        return super().execute(self.mogrify(query, args))

    def executemany(self, query: str, args: Any) -> int | None:
        """Execute it for each of the arguments. PyMySQL makes one statement of an INSERT, past `mogrify`."""
        return super().executemany(_doubled(query) if RE_INSERT_VALUES.match(query) else query, args)


def _doubled(query: str) -> str:
    return _QUOTED.sub(lambda quoted: quoted[0].replace("%", "%%"), query)


@dataclass(frozen=True, slots=True, kw_only=True)
class MySQLAddress:
    """Where a MySQL server is and how to log in."""

    host: str
    port: int = 3306
    user: str
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    database: str | None = None  # selected after login when given
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    connect_timeout_s: float = 10.0
    io_timeout_s: float = 60.0

    @property
    def is_local(self) -> bool:
        """Whether the connection does not leave this machine."""
        return self.unix_socket is not None or self.host in ("127.0.0.1", "::1", "localhost")

    def __str__(self) -> str:
        return f"mysql://{self.user}@{self.host}:{self.port}"


def connection_arguments(address: MySQLAddress) -> dict[str, Any]:
    """Keyword arguments for pymysql.connect, without the session's settings."""
    return {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "unix_socket": address.unix_socket,
        "connect_timeout": address.connect_timeout_s,
        "read_timeout": address.io_timeout_s,
        "write_timeout": address.io_timeout_s,
        "charset": "utf8mb4",
        "ssl": address.tls,
        # Without a wish: plain inside this machine, where TLS costs a third of the throughput; preferred elsewhere.
        "ssl_disabled": address.tls is None and address.is_local,
    }


def open_session(address: MySQLAddress, *, role: str) -> pymysql.Connection[Any]:
    """A session with autocommit off, READ COMMITTED, UTC, utf8mb4 and strict values.

    `role` is 'source' or 'store' and decides the error: SourceUnavailableError or StoreUnavailableError, or,
    where trying again cannot help (access denied), StoreError.
    """
    try:
        return pymysql.connect(
            **connection_arguments(address),
            database=address.database,
            autocommit=False,
            client_flag=CLIENT.FOUND_ROWS,
            cursorclass=PlaceholderCursor,
            init_command=(
                f"SET time_zone='+00:00', sql_mode='{SQL_MODE}', "
                # MariaDB has it under its old name. Each server takes the other's part for a comment.
                "/*!80000 transaction_isolation='READ-COMMITTED', */ /*M! tx_isolation='READ-COMMITTED', */ "
                # The catalogue in full: of MySQL the primary keys that it makes by itself, too.
                "/*!80030 show_gipk_in_create_table_and_information_schema=1, */ sql_quote_show_create=1, "
                "autocommit=0, "
                "group_concat_max_len=1048576, innodb_lock_wait_timeout=5"
            ),
        )
    except pymysql.err.MySQLError as error:
        raise session_error(error, address, role) from None


@contextmanager
def asking(address: MySQLAddress, *, role: str) -> Iterator[pymysql.Connection[Any]]:
    """A session for some questions; a server that goes away between two of them is the same error as at the first."""
    connection = open_session(address, role=role)
    try:
        yield connection
    except pymysql.err.MySQLError as error:
        raise session_error(error, address, role) from None
    finally:
        with suppress(pymysql.err.MySQLError):
            connection.close()


def session_error(error: pymysql.err.MySQLError, address: MySQLAddress, role: str) -> ViewtailError:
    """The error of viewtail's tree for one of PyMySQL's; its text carries the server's number, no values."""
    number = number_of(error)
    said = str(error.args[1]) if len(error.args) > 1 else type(error).__name__
    mend = _MISSING_DATABASE if number == _NO_DATABASE else mend_of_denial(error)
    where = f"MySQL at {address.host}:{address.port} (as {address.user})"
    if mend is not None:
        is_plain = address.tls is None and address.is_local
        return StoreError(f"{where} refused: {number} {said}. {mend}{_NO_TLS if number == 1045 and is_plain else ''}")
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return StoreError(
            f"{where} is not trusted: {said}. Nothing was sent to it. Check tls_ca and the host name in the settings: "
            "the certificate must be signed by that authority and name this host"
        )
    kind = SourceUnavailableError if role == "source" else StoreUnavailableError
    return kind(f"{where} does not answer: {number} {said}. {RETRIES}; is the server up?")


def lacks_rights(error: pymysql.err.MySQLError) -> bool:
    """Whether the server refused a statement since the user's grants do not cover it."""
    return number_of(error) in NO_RIGHTS


def mend_of_denial(error: pymysql.err.MySQLError) -> str | None:
    """What to do where the server refused for want of rights, a sentence; None where that is not why.

    What the server says of it names the right and holds no values.
    """
    return _DENIALS.get(number_of(error))


NO_RIGHTS = frozenset({1044, 1142, 1143, 1227})  # to a database, a table, a column; a global privilege
_NO_DATABASE = 1049
_MISSING_DATABASE = "Create that database, or name another in the settings."

_GRANTS = "`viewtail check` lists the grants that are needed."
_LOGIN = "Check the user and the password in the settings."
_LOCKED = "The account is locked; unlock it."
_EXPIRED = "The password has expired; give the user a new one."

# Numbers of MySQL and of MariaDB. Trying again helps with none of them.
_DENIALS = {
    **dict.fromkeys(NO_RIGHTS, _GRANTS),
    1045: _LOGIN,
    1130: "Create the user for the host that viewtail connects from.",
    1370: _GRANTS,  # a routine
    1698: _LOGIN,
    1820: _EXPIRED,
    1862: _EXPIRED,
    3118: _LOCKED,
    3955: _LOCKED,  # for a time, after wrong passwords
    4151: _LOCKED,
}

_NO_TLS = " viewtail speaks no TLS to this machine unless tls_ca is set; an account that requires TLS needs that."

# Statement errors after which the same statements may succeed: lock waits, deadlocks, lost or refused connections,
# servers that are starting, stopping or read-only during a failover.
TEMPORARY_NUMBERS = frozenset(
    (
        *(1021, 1030, 1040, 1053, 1077, 1079, 1114, 1152, 1158, 1159, 1160, 1161, 1205, 1213, 1290, 1836),
        *(2003, 2006, 2013, 2014, 2055, 3024, 3168, 4031),
    )
)


def number_of(error: pymysql.err.MySQLError) -> int:
    """The server's or client's number; 0 for what PyMySQL says about a broken or closed connection."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def may_pass(error: pymysql.err.MySQLError) -> bool:
    """Whether the same statement may succeed later: the server is away, or what is in its way ends by itself."""
    number = number_of(error)
    return number in TEMPORARY_NUMBERS or number == 0 or 2000 <= number < 3000  # those of the client


def took_too_long(error: pymysql.err.MySQLError) -> bool:
    """Whether the server ended a statement that took longer than its session allows."""
    return number_of(error) in _TOOK_TOO_LONG


_TOOK_TOO_LONG = (1969, 3024)  # MariaDB's and MySQL's


def value_of(connection: Connection, sql: str, *arguments: object) -> Any:
    """The first value that a query gives; None where it gives no row."""
    with connection.cursor() as cursor:
        cursor.execute(sql, arguments)
        row = cursor.fetchone()
    return row[0] if row else None


def create_database(connection: Connection, database: str) -> None:
    """Create it where it is missing; CREATE, even IF NOT EXISTS, needs a privilege that the user may rightly lack."""
    exists = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = %s"
    if not value_of(connection, exists, database):
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {quote(database)} CHARACTER SET utf8mb4")


def quote(*parts: str) -> str:
    """A quoted identifier, dotted: quote('shop', 'user') -> `shop`.`user`."""
    for part in parts:
        if not part or "\0" in part or len(part) > 64:
            raise StoreError(f"{part!r} is no MySQL identifier (1 to 64 characters, no NUL)")
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)
