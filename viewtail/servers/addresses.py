"""Server addresses as users write them: URLs, and their parts.

No message repeats what was given: it may hold a password.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressForm:
    """The form of the address of one kind of server."""

    form: str  # as messages show it
    example: str
    default_port: int
    schemes: tuple[str, ...]
    tls_schemes: tuple[str, ...] = ()  # those of them that ask for TLS
    parameters: tuple[str, ...] = ()  # behind the ?
    is_list: bool = False  # HOST:PORT,HOST:PORT
    path: Callable[[str], str]  # checks what is behind the host's /; raises ValueError with the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The parts of an address, percent-decoded."""

    host: str
    port: int
    user: str | None
    password: str | None = field(repr=False)
    path: str | None  # MySQL: the database. Redis: the number of the database. Elasticsearch: a path prefix
    socket: str | None  # of a unix socket
    is_tls: bool
    others: tuple[str, ...] = ()  # HOST:PORT of further servers


def parse(text: str, kind: AddressForm) -> Parsed:
    """Take an address apart; raises ValueError with what is allowed."""
    others: tuple[str, ...] = ()
    if kind.is_list and text.count(","):
        text, others = _first(text, kind)
    parts = _split(text, kind)
    parameters = _parameters(parts, kind)
    if not parts.hostname and parts.scheme != "unix" and "socket" not in parameters:
        raise _wrong(kind, "the host is missing")
    port = _port(parts, kind)
    path, socket = _behind_host(parts, parameters, kind)
    return Parsed(
        host=parts.hostname or "localhost",
        port=port,
        user=unquote(parts.username) if parts.username else None,
        password=None if parts.password is None else unquote(parts.password),
        path=path,
        socket=socket,
        is_tls=parts.scheme in kind.tls_schemes,
        others=others,
    )


def _first(text: str, kind: AddressForm) -> tuple[str, tuple[str, ...]]:
    """The address with its first server alone, and the others."""
    scheme, _, rest = text.strip().partition("://")
    login, at, hosts = rest.rpartition("@")
    first, *others = hosts.split(",")
    found = [_split(f"{scheme}://{other}", kind) for other in others]
    if any(not other.hostname or other.path or other.query for other in found):
        raise _wrong(kind, "behind each comma comes one more HOST:PORT, and nothing else")
    others = [f"{_in_brackets(other.hostname or '')}:{_port(other, kind)}" for other in found]
    return f"{scheme}://{login}{at}{first}", tuple(others)


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _split(text: str, kind: AddressForm) -> SplitResult:
    try:
        parts = urlsplit(text.strip())
    except ValueError:  # its text repeats the address
        raise _wrong(kind, "it is no URL") from None
    if parts.scheme not in kind.schemes:
        raise _wrong(kind, f"it must begin with {' or '.join(scheme + '://' for scheme in kind.schemes)}")
    if parts.fragment or "#" in text:
        raise _wrong(kind, "a # in a password is written %23")
    if "://" not in text:
        raise _wrong(kind, "the // after the scheme is missing")
    return parts


def _port(parts: SplitResult, kind: AddressForm) -> int:
    try:
        port = parts.port
    except ValueError:  # its text repeats what stands there, perhaps half a password
        why = "the port is a number from 1 to 65535; and / ? # @ : in a password are percent-encoded"
        raise _wrong(kind, why) from None
    if port == 0:
        raise _wrong(kind, "the port is a number from 1 to 65535")
    return kind.default_port if port is None else port


def _parameters(parts: SplitResult, kind: AddressForm) -> dict[str, str]:
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(set(parameters) - set(kind.parameters))
    if unknown or (parts.query and not parameters):
        allowed = ", ".join(f"?{name}=" for name in kind.parameters) or "none"
        why = f"it has a parameter that is not known (known: {allowed}); a ? in a password is written %3F"
        raise _wrong(kind, why)
    return parameters


def _behind_host(parts: SplitResult, parameters: dict[str, str], kind: AddressForm) -> tuple[str | None, str | None]:
    """The path as `Parsed` has it, and the unix socket. What names a socket has the rest behind the ?."""
    path = unquote(parts.path)
    if parts.scheme == "unix":
        return parameters.get("db", "0"), path
    return _path(path.strip("/"), kind), parameters.get("socket")


def _path(path: str, kind: AddressForm) -> str | None:
    try:
        return kind.path(path) if path else None
    except ValueError as error:
        raise _wrong(kind, str(error)) from None


def _wrong(kind: AddressForm, why: str) -> ValueError:
    return ValueError(f"is not an address of the form {kind.form}: {why}")


def _database(path: str) -> str:
    if "/" in path or len(path) > 64:
        raise ValueError("the part after the / must be the name of one database, at most 64 characters")
    return path


MYSQL = AddressForm(
    form="mysql://USER:PASSWORD@HOST:PORT[/DATABASE]",
    example="mysql://USER:PASSWORD@HOST:3306",
    default_port=3306,
    schemes=("mysql",),
    parameters=("socket",),
    path=_database,
)


def listening_at(host: str, port: int, *, backlog: int) -> socket.socket:
    """A socket that listens there; port 0: at any that is free. Raises OSError where nobody can."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server((str(address[0]), port), family=family, backlog=backlog)
