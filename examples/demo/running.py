"""The real `viewtail run`, as a process of its own, and what it says of itself."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

import pymysql

from stack.server import Server, free_port
from viewtail.operations.status import PipelineStatus, read
from viewtail.servers.sessions import PlaceholderCursor
from viewtail.sources import read_position

CHECKOUT = Path(__file__).resolve().parents[2]
DATABASE = "viewtail"
STOP_WITHIN_S = 15.0
_GUARD = CHECKOUT / "stack" / "guard.py"
_VARIABLES = {
    "mysql": "VIEWTAIL_SOURCE__URL",
    "redis": "VIEWTAIL_REDIS__URL",
    "elasticsearch": "VIEWTAIL_ELASTICSEARCH__URL",
}
_SAMPLE = re.compile(r'^(viewtail_\w+)\{pipeline="(\w+)"\} (\S+)$', re.MULTILINE)


class DemoError(Exception):
    """The demo cannot go on; the message says why and where to look."""


def command(*arguments: str) -> list[str]:
    """The argv of a viewtail command: the installed one, or the checkout's where none is installed."""
    installed = Path(sys.executable).with_name("viewtail")
    if installed.exists():
        return [str(installed), *arguments]
    return [sys.executable, "-c", "from viewtail.main import main; main()", *arguments]


def settings(servers: Sequence[Server], views: str) -> dict[str, str]:
    """The environment variables that viewtail is set up with."""
    addresses = {_VARIABLES[server.name]: server.url for server in servers}
    return {"VIEWTAIL_VIEWS": views, **addresses, "VIEWTAIL_METRICS__PORT": str(free_port())}


def environment(chosen: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with these settings, and none that came with it from outside."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("VIEWTAIL_") or name.startswith("VIEWTAIL_STACK_")
    }
    return {**inherited, **chosen}


def output_of(arguments: Sequence[str], chosen: Mapping[str, str]) -> str:
    """What a viewtail command prints on stdout; raises DemoError when it fails."""
    done = subprocess.run(
        command(*arguments), env=environment(chosen), cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
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


class Run:
    """`viewtail run`. With `stays` it outlives the demo."""

    def __init__(self, directory: Path, chosen: Mapping[str, str], stays: bool, arguments: Sequence[str] = ()) -> None:
        self._chosen = chosen
        self.log = directory / "viewtail.log"
        self.pid_file = directory / "viewtail.pid"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command("run", *arguments),
                env=environment(chosen),
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is the demo's business: it ends viewtail before the servers
            )
        self.pid_file.write_text(str(self.process.pid))
        self._guard: subprocess.Popen[bytes] | None = None
        if not stays:  # when the demo is killed outright, viewtail goes too
            argv = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), str(self.process.pid)]
            self._guard = subprocess.Popen(argv, start_new_session=True)

    def require_running(self) -> None:
        if self.process.poll() is not None:
            raise DemoError(f"viewtail run ended with code {self.process.returncode}.\n{self.log_tail()}")

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-15:]
        return "\n".join([f"The end of {self.log}:", *lines])

    def kill(self) -> None:
        """SIGKILL to all of its processes, as when a machine is lost."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, as an operator would; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            code = self.process.wait()
        if self._guard is not None:
            self._guard.wait(STOP_WITHIN_S)
        return code

    def metrics(self) -> dict[str, dict[str, float]]:
        """pipeline -> metric -> value, from its Prometheus page; {} while it does not answer."""
        url = f"http://127.0.0.1:{self._chosen['VIEWTAIL_METRICS__PORT']}/metrics"
        try:
            with build_opener(ProxyHandler({})).open(url, timeout=2) as response:
                text = response.read().decode()
        except (URLError, OSError):
            return {}
        found: dict[str, dict[str, float]] = {}
        for name, pipeline, value in _SAMPLE.findall(text):
            found.setdefault(pipeline, {})[name] = float(value)
        return found


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


def wait_caught_up(run: Run, connection: pymysql.Connection[Any], timeout_s: float) -> None:
    """Until every pipeline's offset is past everything committed so far.

    A row is touched in a column that no view shows: something for each pipeline to read behind the rest.
    """
    with connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        file, end = (cursor.fetchone() or ("", 0))[:2]
        for table in ("city", "country"):
            cursor.execute(f"UPDATE geo.{table} SET touched_at = CURRENT_TIMESTAMP(6) LIMIT 1")
    connection.commit()
    deadline = time.monotonic() + timeout_s
    while True:
        run.require_running()
        behind = [one.name for one in read(connection, DATABASE, read_position) if _place(one) < (file, end)]
        if not behind:
            return
        if time.monotonic() > deadline:
            raise DemoError(f"still behind after {timeout_s:.0f} s: {', '.join(behind)}.\n{run.log_tail()}")
        time.sleep(0.1)


def _place(status: PipelineStatus) -> tuple[str, int]:
    file, _, end = (status.position or ":0").rpartition(":")
    return file, int(end)
