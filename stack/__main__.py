"""`python3 -m stack`: servers that stay up until `down`, for working by hand. Exit code 0 good, 1 not, 2 misuse."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import (
    archives,
    chromium,
    connect,
    containers,
    elasticsearch,
    helm,
    kafka,
    kcat,
    mariadb,
    mysql,
    percona,
    python,
    redis,
)
from .errors import StackError
from .places import progress, run_directory
from .server import Server, remembered_port, running_in

_MODULES = {"mysql": mysql, "mariadb": mariadb, "redis": redis, "elasticsearch": elasticsearch, "kafka": kafka}
_ASKED_FOR = frozenset({"mariadb"})  # a second server to read from: up when it is named
_VARIABLES = {
    "mysql": "VIEWTAIL_SOURCE__URL",
    "mariadb": "VIEWTAIL_SOURCE__URL",
    "redis": "VIEWTAIL_REDIS__URL",
    "elasticsearch": "VIEWTAIL_ELASTICSEARCH__URL",
    "kafka": "VIEWTAIL_KAFKA__URL",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    is_install = parsed.command == "install"
    names = parsed.names or [name for name in _MODULES if is_install or name not in _ASKED_FOR]
    engine = parsed.engine if parsed.engine != "auto" else _pick_engine(parsed.command)
    command = {"up": _up, "down": _down, "status": _status, "addresses": _addresses, "install": _install}
    try:
        return command[parsed.command](names, engine)
    except StackError as error:
        progress(f"stack: {error}")
        return 1
    except KeyboardInterrupt:
        progress("stack: interrupted; `python3 -m stack status` says what runs")
        return 1


def _up(names: list[str], engine: str) -> int:
    if engine == "docker":
        containers.up(names)
    else:
        for name in names:
            _start_to_stay(name)
    return _addresses(names, engine)


def _down(names: list[str], engine: str) -> int:
    if engine == "docker":
        containers.down()
        return 0
    for server in _running(names):
        server.stop()
        progress(f"{server.name}: stopped; its data stays in {server.directory}")
    return 0


def _status(names: list[str], engine: str) -> int:
    found = _addresses_of(names, engine)
    for name in names:
        print(f"{name:14} {found.get(name, 'not running')}")
    return 0 if len(found) == len(names) else 1


def _addresses(names: list[str], engine: str) -> int:
    found = _addresses_of(names, engine)
    for name, url in found.items():
        print(f"{_VARIABLES[name]}={url}")
    missing = [name for name in names if name not in found]
    if missing:
        progress(f"stack: not running: {', '.join(missing)}; start with: python3 -m stack up")
    return 1 if missing else 0


def _install(names: list[str], engine: str) -> int:
    if engine == "docker":
        raise StackError("`install` is for servers without an engine; with one, `up --engine docker` pulls the images")
    for name in names:
        progress(f"{name}: {_MODULES[name].install()}")
    if names == list(_MODULES):
        progress(f"percona: {percona.install()}")  # no server, but tests run it
        progress(f"kcat: {kcat.install()}")
        progress(f"chromium: {chromium.install()}")
        progress(f"debezium: {connect.debezium_mysql()}, {connect.debezium_jdbc()}")
        progress(f"helm: {helm.install()}")
        progress(f"python: {python.install()}")
        progress(f"mariadb's plugins: {mariadb.plugins()}")  # tests encrypt its binlogs
    return 0


def _start_to_stay(name: str) -> None:
    directory = run_directory() / name
    server = running_in(directory)
    if server is not None:
        progress(f"{name}: already running")
        return
    server = _MODULES[name].prepare(directory, remembered_port(directory))
    server.start(stays=True)
    progress(f"{name}: up, log in {server.log}")


def _addresses_of(names: list[str], engine: str) -> dict[str, str]:
    if engine == "docker":
        return containers.addresses(names)
    return {server.name: server.url for server in _running(names)}


def _running(names: list[str]) -> list[Server]:
    servers = [running_in(run_directory() / name) for name in names]
    return [server for server in servers if server is not None]


def _pick_engine(command: str) -> str:
    # Servers of our own first: they are what the tests run against.
    engine = "local" if archives.can_unpack() or not containers.engine_answers() else "docker"
    if command == "up":
        origin = "docker-compose.yml" if engine == "docker" else "Debian packages and Maven, no container engine"
        progress(f"stack: servers from {origin}")
    return engine


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m stack", description=__doc__)
    parser.add_argument("command", choices=["up", "down", "status", "addresses", "install"])
    parser.add_argument("names", nargs="*", type=_server_name, metavar="SERVER", help=", ".join(_MODULES))
    parser.add_argument("--engine", choices=["auto", "local", "docker"], default="auto")
    return parser


def _server_name(text: str) -> str:
    if text not in _MODULES:
        raise argparse.ArgumentTypeError(f"there is no server {text!r}; known: {', '.join(_MODULES)}")
    return text


if __name__ == "__main__":
    sys.exit(main())
