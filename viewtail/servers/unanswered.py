"""Why a MySQL server gave no session, or none any more: what the client saw, in words, and what to do about it.

What PyMySQL says holds numbers, host names and the text of OpenSSL, never a value.
"""

from __future__ import annotations

import re
import socket
import threading
import traceback

import pymysql

# What PyMySQL and the codecs below it raise where the first bytes are of another protocol.
NO_PROTOCOL = (AssertionError, IndexError, KeyError, TypeError, UnicodeDecodeError, ValueError)
_LOGGING_IN = frozenset({"_get_server_information", "_request_authentication"})  # of PyMySQL: they read its bytes
NO_MYSQL = "what listens there does not speak MySQL's protocol: check host and port in the settings"

_LOST = 2013
_FORBIDDEN = 1290
_READ_ONLY = (_FORBIDDEN, 1836, 1792)
# By what the system raised, the first that fits.
_NO_CONNECTION: tuple[tuple[type[OSError], str], ...] = (
    (socket.gaierror, "no DNS answer for that host name: check it in the settings, and the resolver of this machine"),
    (ConnectionRefusedError, "nothing listens there: check that the server is up, and the port"),
    (FileNotFoundError, "there is no such socket: check that the server is up, and the path"),
    (
        TimeoutError,
        "no connection within {connect_s:g} s: the host is down, or a firewall drops what is sent to it",
    ),
)
_READ_ONLY_OPTION = re.compile(r"--([a-z][a-z_-]*read[_-]only|read[_-]only)\b")
_OPTION = re.compile(r"--[a-z][a-z_-]*[a-z]")


def why_no_login(error: pymysql.err.MySQLError, said: str, connect_s: float, answer_s: float) -> str:
    """Explain an error before the session was there; '' where nothing more is known than the client says."""
    number = error.args[0] if error.args else 0
    cause = getattr(error, "original_exception", None)
    for kind, why in _NO_CONNECTION:
        if isinstance(cause, kind):
            return why.format(connect_s=connect_s)
    if number == _LOST and "timed out" in said:
        return (
            f"it accepted the connection and said nothing within {answer_s:g} s: the server hangs, or another "
            "program listens at that port"
        )
    if number == _LOST:
        return "it closed the connection before the login: it is starting or stopping, or it is no MySQL"
    if not isinstance(number, int) and "sequence" in str(number):
        return NO_MYSQL
    return ""


def is_of_another_protocol(error: BaseException) -> bool:
    """Return whether the server's bytes led to one of NO_PROTOCOL, and not an argument of ours or a statement."""
    return any(frame.f_code.co_name in _LOGGING_IN for frame, _ in traceback.walk_tb(error.__traceback__))


def is_looked_up(host: str, within_s: float) -> bool:
    """Return whether the resolver answers in time, be it that there is no such host. It takes no time-out itself."""

    def look_up() -> None:
        try:
            socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError:  # the connection says so
            pass

    looking = threading.Thread(target=look_up, name="looking up a host", daemon=True)
    looking.start()
    looking.join(within_s)
    return not looking.is_alive()


def why_no_answer(said: str, answer_s: float) -> str:
    """Explain an error in a session that was there; '' where nothing more is known than the client says."""
    return (
        f"it stopped answering: nothing came within {answer_s:g} s: it hangs, or this takes longer"
        if "timed out" in said
        else ""
    )


def read_only_variable(number: int, said: str) -> str | None:
    """The variable that keeps everybody from writing; None where that is not why a statement was refused."""
    if number not in _READ_ONLY:
        return None
    if number == 1792:
        return "transaction_read_only"
    found = _READ_ONLY_OPTION.search(said)
    if found is None:
        return "innodb_read_only" if number == 1836 else None
    return found[1].replace("-", "_")


def forbidding_option(number: int, said: str) -> str | None:
    """The option that the server was started with and that forbids a statement; None where that is not why."""
    if number != _FORBIDDEN:
        return None
    found = _OPTION.search(said)
    return found[0] if found else "the option that forbids it"
