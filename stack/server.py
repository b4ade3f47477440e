"""One running server: a process group with a port, a data folder and a log.

It promises that signals reach the real server whatever launcher or loader stands before it, that `ready` means the
server answered its own protocol, and that the server ends with the process that started it unless it was told to
stay. It does not know which server it is: mysql.py, kafka.py and the others bring command and probe.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .errors import ServerFailed

HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0
_GUARD = Path(__file__).with_name("guard.py")
# Below the kernel's range for outgoing connections (32768 up), so that a stopped server finds its port free again.
_PORTS = range(20000, 32000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a server is started and how it is asked whether it is ready."""

    name: str
    url: str
    port: int
    directory: Path  # data, log and pid file are in here
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of the caller's own
    is_ready: Callable[[], bool]
    pid_file: Path | None = None  # where a server writes its pid that is not the process we start


class Server:
    """A server of this machine. `start` and `stop` may be called any number of times; the data stays."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._group: int | None = None

    def __repr__(self) -> str:
        return f"<{self.name} {self.url} {'running' if self.is_running() else 'stopped'}>"

    @property
    def launch(self) -> Launch:
        """How it is started."""
        return self._launch

    @property
    def name(self) -> str:
        """mysql, mariadb, redis, elasticsearch, kafka or connect."""
        return self._launch.name

    @property
    def url(self) -> str:
        """The address as viewtail's settings take it."""
        return self._launch.url

    @property
    def host(self) -> str:
        """Always 127.0.0.1."""
        return HOST

    @property
    def port(self) -> int:
        """The TCP port, the same over restarts."""
        return self._launch.port

    @property
    def directory(self) -> Path:
        """The folder with data and log; it outlives the server."""
        return self._launch.directory

    @property
    def log(self) -> Path:
        """What the server wrote to its standard output and error."""
        return self.directory / "server.log"

    @property
    def pid(self) -> int:
        """The real server's process id, not a launcher's. Raises ServerFailed when it is not running."""
        if self._group is None:
            raise ServerFailed(f"{self.name} on port {self.port} is not running; call start()")
        pid_file = self._launch.pid_file
        text = pid_file.read_text().strip() if pid_file is not None and pid_file.exists() else ""
        return int(text) if text else self._group

    def start(self, stays: bool = False) -> None:
        """Start it on its port and data and wait until it answers; nothing happens when it is running.

        With `stays` it outlives this process; otherwise it is killed when this process ends, however that ends.
        """
        if self.is_running():
            return
        self._forget()
        self._require_free_port()
        if self._launch.pid_file is not None:
            self._launch.pid_file.unlink(missing_ok=True)
        # A mysqld that was killed leaves these with its process's number, which another process may have by now.
        for lock in self.directory.rglob("*.sock.lock"):
            lock.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._launch.argv,
                cwd=self.directory,
                env={**os.environ, **self._launch.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._group = self._process.pid
        if not stays:
            self._guard = _start_guard(self._group)
        self._remember()  # before it is ready: whoever interrupts this can still find and stop it
        self.wait_ready()

    def adopt(self) -> bool:
        """Take over the server that another process left running in this directory; False when there is none."""
        state = _read_state(self.directory)
        if state is None or state.url != self.url or not state.is_alive():
            return False
        self._group = state.group
        return True

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when it answers its protocol; raises ServerFailed when it ends or does not answer in time."""
        deadline = time.monotonic() + timeout_s
        while not self._launch.is_ready():
            if not self.is_running():
                raise ServerFailed(f"{self.name} ended while starting on port {self.port}.\n{self._log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{self.name} on port {self.port} did not answer within {timeout_s:.0f} s.\n{self._log_tail()}"
                )
            time.sleep(0.02)

    def is_running(self) -> bool:
        """Whether the server's process exists (a paused one does)."""
        # Asked first: it costs nothing, and reaps what would count as a zombie for ever.
        if self._process is not None and self._process.poll() is None:
            return True
        return self._group is not None and bool(_living_members(self._group))

    def stop(self) -> None:
        """End it cleanly and wait until it is gone; killed when it takes longer than a minute."""
        if self._group is not None and self.is_running():
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            if not self._wait_gone(STOP_TIMEOUT_S):
                self.kill()
        self._forget()

    def kill(self) -> None:
        """SIGKILL, as a crash of the server would look; returns when it is gone."""
        self._signal(signal.SIGKILL)
        if not self._wait_gone(STOP_TIMEOUT_S):
            raise ServerFailed(f"{self.name} (process group {self._group}) survives SIGKILL; look at its state with ps")
        self._forget()

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers, as with a hung machine."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._group is None:
            return
        try:
            os.killpg(self._group, number)
        except ProcessLookupError:
            pass

    def _wait_gone(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.is_running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _require_free_port(self) -> None:
        if not _is_free(self.port):
            raise ServerFailed(
                f"{self.name} cannot start: something else listens on {HOST}:{self.port}. "
                "Stop it, or ask for another port."
            )

    def _remember(self) -> None:
        assert self._group is not None
        pid_file = self._launch.pid_file
        state = _State(
            name=self.name,
            url=self.url,
            port=self.port,
            group=self._group,
            started_at=_started_at(self._group),
            pid_file=None if pid_file is None else str(pid_file),
        )
        _state_file(self.directory).write_text(json.dumps(asdict(state)))

    def _forget(self) -> None:
        for child in (self._process, self._guard):
            if child is not None:
                child.wait()  # both are gone or going: the guard ends with the server
        self._process = self._guard = self._group = None

    def _log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-20:] if self.log.exists() else []
        return "\n".join([f"The end of {self.log}:", *lines])


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    for _ in range(200):
        port = random.choice(_PORTS)
        if _is_free(port):
            return port
    raise ServerFailed(f"found no free port on {HOST} between {_PORTS.start} and {_PORTS.stop}")


def remembered_port(directory: Path) -> int | None:
    """The port that a server last had in this directory, if nobody else has it now."""
    state = _read_state(directory)
    if state is None:
        return None
    return state.port if state.is_alive() or _is_free(state.port) else None


def running_in(directory: Path) -> Server | None:
    """The server that runs with its data in this directory, to look at and to stop; it cannot be started again."""
    state = _read_state(directory)
    if state is None:
        return None
    launch = Launch(
        name=state.name,
        url=state.url,
        port=state.port,
        directory=directory,
        argv=(),
        is_ready=lambda: False,
        pid_file=Path(state.pid_file) if state.pid_file else None,
    )
    server = Server(launch)
    return server if server.adopt() else None


@dataclass(frozen=True, slots=True)
class _State:
    name: str
    url: str
    port: int
    group: int
    started_at: int  # clock ticks after boot; with the pid it names a process for good
    pid_file: str | None

    def is_alive(self) -> bool:
        # A dead leader keeps its entry where nobody reaps orphans (a container without an init).
        return _started_at(self.group) == self.started_at and bool(_living_members(self.group))


def _state_file(directory: Path) -> Path:
    return directory / "server.json"


def _read_state(directory: Path) -> _State | None:
    try:
        return _State(**json.loads(_state_file(directory).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _start_guard(group: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), str(group)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _stat(pid: int) -> list[str]:
    # proc(5): the fields after the command's name, which may itself hold blanks and brackets.
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _started_at(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[19]) if fields else -1


def _living_members(group: int) -> list[int]:
    members = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            fields = _stat(int(entry))
            if fields and int(fields[2]) == group and not _is_dead(int(entry), fields[0]):
                members.append(int(entry))
    return members


def _is_dead(pid: int, state: str) -> bool:
    # A killed JVM's first thread is a zombie while others still hold its ports: dead is who has no thread left.
    if state not in "ZX":
        return False
    try:
        return len(os.listdir(f"/proc/{pid}/task")) <= 1
    except OSError:
        return True
