"""Opening MySQL sessions: every one sets its time zone, SQL mode, character set, isolation and autocommit itself.

The addresses that settings give are turned into `MySQLAddress` by viewtail/settings.py; passwords stay
inside it and appear in no repr.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import CLIENT
from pymysql.cursors import RE_INSERT_VALUES, Cursor

from viewtail.changes.errors import (
    RETRIES,
    ReadOnlyError,
    SourceUnavailableError,
    StoreError,
    StoreUnavailableError,
    ViewtailError,
)
from viewtail.servers.certificates import shown, why_ended, why_refused
from viewtail.servers.patience import WORK
from viewtail.servers.quoted import QUOTED
from viewtail.servers.unanswered import (
    NO_MYSQL,
    NO_PROTOCOL,
    forbidding_option,
    is_looked_up,
    is_of_another_protocol,
    read_only_variable,
    why_no_answer,
    why_no_login,
)

Connection: TypeAlias = "pymysql.Connection[Any]"

# STRICT_ALL_TABLES: a value that does not fit is an error, never cut. No ANSI_QUOTES, no NO_BACKSLASH_ESCAPES:
# the literals that sinks build count on both.
SQL_MODE = "STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO"

# Begins a transaction whose reads are all of this moment, in a session that is set to REPEATABLE READ.
SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"


_QUOTED = re.compile(QUOTED, re.DOTALL)  # SQL_MODE has them so


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
    """The place of a MySQL server, and the login."""

    host: str
    port: int = 3306
    user: str
    password: str = field(default="", repr=False)
    unix_socket: str | None = None
    database: str | None = None  # selected after login when given
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    certificate: Path | None = field(default=None, repr=False)  # the client's, of `tls`
    connect_timeout_s: float = WORK.connect_s
    login_timeout_s: float = WORK.login_s
    io_timeout_s: float = WORK.answer_s
    silent: dict[str, str] | None = field(default=None, repr=False, compare=False)  # as Patience has it

    @property
    def place(self) -> str:
        """HOST:PORT."""
        return self.unix_socket or f"{self.host}:{self.port}"

    @property
    def speaks_tls(self) -> bool:
        """Return whether TLS is tried: by default not inside this machine, where it costs a third of the throughput."""
        return self.tls is not None or not self.is_local

    @property
    def is_local(self) -> bool:
        """Return whether the connection does not leave this machine."""
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
        "ssl_disabled": not address.speaks_tls,  # without a wish it is preferred, not required
    }


def open_session(address: MySQLAddress, *, role: str) -> pymysql.Connection[Any]:
    """A session with autocommit off, READ COMMITTED, UTC, utf8mb4 and strict values.

    `role` is 'source' or 'store' and decides the error: SourceUnavailableError or StoreUnavailableError, or,
    where trying again cannot help (access denied), StoreError.
    """
    if address.silent is not None:
        _check_is_heard(address, address.silent, role)
    arguments = connection_arguments(address) | {"read_timeout": min(address.login_timeout_s, address.io_timeout_s)}
    with logging_in(address, role=role):
        connection = pymysql.connect(
            **arguments,
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
    connection._read_timeout = address.io_timeout_s  # type: ignore[attr-defined]
    return connection


@contextmanager
def logging_in(address: MySQLAddress, *, role: str) -> Iterator[None]:
    """Raise errors in it, before the session is there, as `open_session` does."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        raise login_error(error, address, role) from None
    except NO_PROTOCOL as error:
        if not is_of_another_protocol(error):
            raise
        raise _unavailable(f"{NO_MYSQL} ({type(error).__name__})", address, role) from None


def _check_is_heard(address: MySQLAddress, silent: Mapping[str, str], role: str) -> None:
    """Raise, for a person's command, if the server was silent before, or the resolver is now."""
    if (known := silent.get(address.place)) is not None:
        raise _silence(role)(known)
    if not (address.is_local or is_looked_up(address.host, address.connect_timeout_s)):
        what = f"no DNS answer for that host name within {address.connect_timeout_s:g} s: check this machine's resolver"
        raise _unavailable(what, address, role)


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


def open_checked(
    address: MySQLAddress, check: Callable[[pymysql.Connection[Any]], None], *, role: str
) -> pymysql.Connection[Any]:
    """Open a session on a server that passes a check; what the check raises ends the session."""
    connection = open_session(address, role=role)
    try:
        check(connection)
    except pymysql.err.MySQLError as error:
        connection.close()
        raise session_error(error, address, role) from None
    except ViewtailError:
        connection.close()
        raise
    return connection


def login_error(error: pymysql.err.MySQLError, address: MySQLAddress, role: str) -> ViewtailError:
    """Return what `session_error` does, for an error before the session was there: that of TLS is one."""
    if address.speaks_tls and (refused := _tls_error(error, address)) is not None:
        return refused
    why = why_no_login(error, _said(error), address.connect_timeout_s, address.login_timeout_s)
    if address.tls is not None:
        why = why_ended(_said(error), address.certificate) or why
    return _error(error, address, role, why, is_silent=bool(why))


def session_error(error: pymysql.err.MySQLError, address: MySQLAddress, role: str) -> ViewtailError:
    """The error of viewtail's tree for one of PyMySQL's; its text carries the server's number, no values.

    The server is asked again: it may be that this statement alone takes long.
    """
    return _error(error, address, role, why_no_answer(_said(error), address.io_timeout_s))


def _error(
    error: pymysql.err.MySQLError, address: MySQLAddress, role: str, why: str, *, is_silent: bool = False
) -> ViewtailError:
    number, said = number_of(error), _said(error)
    mend = _MISSING_DATABASE if number == _NO_DATABASE else mend_of_denial(error)
    where = _where(address)
    if mend is not None:
        return StoreError(f"{where} refused: {number} {said}. {mend}{_what_it_may_want(number, address)}")
    if (read_only := read_only_error(error, where)) is not None:
        return SourceUnavailableError(str(read_only)) if role == "source" else read_only
    if (refusal := _refusal(number, said)) is not None:
        return _silence(role)(f"{where} refuses: {refusal}. {RETRIES}")
    return _unavailable(f"{number} {said}{why and f'; {why}'}", address, role, is_told=bool(why), is_silent=is_silent)


def _refusal(number: int, said: str) -> str | None:
    """Return what a server says that is up and refuses; None where it may be on its way up or down."""
    if (option := forbidding_option(number, said)) is not None:
        return f"{number} {said}. Start that server without {option}"
    return None if _is_of_the_client(number) or number in TEMPORARY_NUMBERS else f"{number} {said}"


def _tls_error(error: pymysql.err.MySQLError, address: MySQLAddress) -> StoreError | None:
    """Return the error of a login that TLS broke off. A server's words on a login or a statement are none of TLS."""
    number, said, where = number_of(error), _said(error), _where(address)
    why = why_refused(said, address.certificate) if number in _BROKEN_OFF else ""
    if not why:
        return None
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return StoreError(
            f"{where} is not trusted: {said}. Nothing was sent to it: {why}. tls_ca must be the authority that signed "
            "its certificate, which must name this host"
        )
    return StoreError(f"{where} refused TLS: {number} {said}: {why}")


def _what_it_may_want(number: int, address: MySQLAddress) -> str:
    """Beside a password: a server that misses TLS or a client certificate says no more than that access is denied."""
    if number not in _LOGINS:
        return ""
    if address.tls is None:
        plain = " viewtail speaks no TLS to this machine unless tls_ca is set." if address.is_local else ""
        return (
            f"{plain} An account that requires TLS (REQUIRE SSL) needs tls_ca, and one that requires a client "
            "certificate (REQUIRE X509, SUBJECT or ISSUER) tls_cert and tls_key too"
        )
    if address.certificate is None:
        return (
            " Or the account requires a client certificate (REQUIRE X509, SUBJECT or ISSUER), and none is set: set "
            "tls_cert and tls_key"
        )
    return (
        " Or the client certificate is not the one that the account requires (REQUIRE SUBJECT or ISSUER): it is of "
        f"{shown(address.certificate)}"
    )


def _said(error: pymysql.err.MySQLError) -> str:
    return str(error.args[1]) if len(error.args) > 1 else type(error).__name__


def _where(address: MySQLAddress) -> str:
    return f"MySQL at {address.place} (as {address.user})"


def read_only_error(error: pymysql.err.MySQLError, where: str) -> ReadOnlyError | None:
    """Return the error for a server that takes no writes at all; None where that is not why it refused a statement."""
    variable = read_only_variable(number_of(error), _said(error))
    if variable is None:
        return None
    found = ReadOnlyError(
        f"{where} takes no writes: {variable} is ON there, as on a replica or in a failover. Point the address at the "
        f"server that takes writes, or there: SET GLOBAL {variable} = OFF. {RETRIES}"
    )
    found.variable = variable
    return found


def _unavailable(
    what: str, address: MySQLAddress, role: str, *, is_told: bool = True, is_silent: bool = True
) -> ViewtailError:
    text = f"{_where(address)} does not answer: {what}. {RETRIES}{'' if is_told else '; is the server up?'}"
    if address.silent is not None and is_silent:
        address.silent[address.place] = text
    return _silence(role)(text)


def _silence(role: str) -> type[SourceUnavailableError | StoreUnavailableError]:
    return SourceUnavailableError if role == "source" else StoreUnavailableError


def lacks_rights(error: pymysql.err.MySQLError) -> bool:
    """Return whether the server refused a statement since the user's grants do not cover it."""
    return number_of(error) in NO_RIGHTS


def mend_of_denial(error: pymysql.err.MySQLError) -> str | None:
    """Return what to do where the server refused for want of rights, a sentence; None where that is not why.

    The server's words name the right and hold no values.
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

_LOGINS = (1045, 1698)
# Of PyMySQL itself: no connection, or one that ended, and what it gives no number.
_BROKEN_OFF = (0, 2003, 2006, 2013, 2026)

# Statement errors after which the same statements may succeed: lock waits, deadlocks, lost or refused connections,
# servers that are starting, stopping or read-only during a failover.
TEMPORARY_NUMBERS = frozenset(
    (
        *(1021, 1030, 1040, 1053, 1077, 1079, 1114, 1152, 1158, 1159, 1160, 1161, 1205, 1213, 1290, 1792, 1836),
        *(2003, 2006, 2013, 2014, 2055, 3024, 3168, 4031),
    )
)


def number_of(error: pymysql.err.MySQLError) -> int:
    """The server's or client's number; 0 for what PyMySQL says about a broken or closed connection."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def may_pass(error: pymysql.err.MySQLError) -> bool:
    """Return whether the same statement may succeed later: the server is away, or what is in its way ends by itself."""
    number = number_of(error)
    return number in TEMPORARY_NUMBERS or _is_of_the_client(number)


def _is_of_the_client(number: int) -> bool:
    return number == 0 or 2000 <= number < 3000


def took_too_long(error: pymysql.err.MySQLError) -> bool:
    """Return whether the server ended a statement that took longer than its session allows."""
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
