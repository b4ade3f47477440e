"""How the examples set viewtail up, run it, and read what it says of itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql

from stack.places import CHECKOUT
from stack.server import Server, free_port
from viewtail.demo.process import DemoError, Run, environment, ran
from viewtail.operations.status import PipelineStatus, read
from viewtail.servers.sessions import PlaceholderCursor
from viewtail.sources import read_position

DATABASE = "viewtail"
_VARIABLES = {
    "mysql": "VIEWTAIL_SOURCE__URL",
    "redis": "VIEWTAIL_REDIS__URL",
    "elasticsearch": "VIEWTAIL_ELASTICSEARCH__URL",
}


def settings(servers: Sequence[Server], views: str) -> dict[str, str]:
    """The environment variables that viewtail is set up with."""
    addresses = {_VARIABLES[server.name]: server.url for server in servers}
    return {"VIEWTAIL_VIEWS": views, **addresses, "VIEWTAIL_METRICS__PORT": str(free_port())}


def output_of(arguments: Sequence[str], chosen: Mapping[str, str]) -> str:
    """What a viewtail command prints on stdout; raises DemoError when it fails."""
    done = ran(arguments, environment(chosen), CHECKOUT)
    if done.returncode:
        raise DemoError(
            f"viewtail {' '.join(arguments)} ended with code {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def connected(server: Server) -> pymysql.Connection[Any]:
    """A session of a MySQL, which reads viewtail's status too."""
    return pymysql.connect(
        host=server.host,
        port=server.port,
        user="root",
        charset="utf8mb4",
        init_command="SET time_zone = '+00:00', transaction_isolation = 'READ-COMMITTED'",
        cursorclass=PlaceholderCursor,
    )


def fills(
    run: Run, connection: pymysql.Connection[Any], wanted: int, timeout_s: float
) -> Iterator[list[PipelineStatus]]:
    """The status, again and again, until all `wanted` views are filled."""
    deadline = time.monotonic() + timeout_s
    while True:
        run.require_running()
        status = read(connection, DATABASE, read_position)
        views = [view for pipeline in status for view in pipeline.views]
        halted = [f"{view.name}: {view.reason}" for view in views if view.state == "halted"]
        if halted:
            raise DemoError("a view halted.\n" + "\n".join(halted))
        yield status
        if sum(view.state == "filled" for view in views) == wanted:
            return
        if time.monotonic() > deadline:
            raise DemoError(f"the views were not filled within {timeout_s:.0f} s.\n{run.log_tail()}")
        time.sleep(0.25)
