"""`viewtail` without the half second in which each process would import it: forked from a process that has it.

Each is a process of its own all the same, with its own folder, environment, output, exit code and place in /proc; so
are the workers that a `run` starts. The first call of each command in a run of the tests starts Python, as a user's
does, and the first `run` starts its workers so: what an import alone would break shows there.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE_S = 180.0  # ends what hangs, and promises nothing: a busy machine may be several times as slow as an idle one
CLEANING = {"VIEWTAIL_CLEANER__SHARE": "0.5", "VIEWTAIL_CLEANER__REST_S": "0.5"}  # for runs that want a cleaner too
_PACKAGES = ("offsets", "ingest", "projectors", "viewtail")
_ROOM = 400  # characters of a command line that stands in /proc
_SET_CHILD_SUBREAPER = 36  # of prctl(2)


def clean_environment() -> dict[str, str]:
    """Ours, less its viewtail settings, with the checkout importable. What a test damages stays so: no cleaner runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VIEWTAIL_")}
    ours = {"VIEWTAIL_CLEANER__SHARE": "0", "VIEWTAIL_CONSOLE__PORT": "0"}
    return {**kept, "PYTHONPATH": str(CHECKOUT), "PYTHONFAULTHANDLER": "1", **ours}


def command(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float = PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` of the command returns, and raises when the time is over; then it shows where it was."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = begun(arguments, folder, environment, out.fileno(), errors.fileno())
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # Python tells where each thread is
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
            for told in (out, errors):
                told.seek(0)
                print(f"-- {' '.join(arguments)}, until its time was over:", told.read().decode(errors="replace"))
            raise
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read().decode(), errors.read().decode())


def begun(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], out: int, errors: int
) -> subprocess.Popen[bytes] | Forked:
    """A process of the command, which writes into these descriptors."""
    argv = [sys.executable, "-m", "viewtail.main", *arguments]
    name = _name_of(arguments)
    if name not in _started:
        _started.add(name)
        return subprocess.Popen(
            argv, cwd=folder, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=errors
        )
    connection = _connection()
    request = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
    socket.send_fds(connection, [b"."], [out, errors])
    connection.sendall(json.dumps(request).encode())
    connection.shutdown(socket.SHUT_WR)
    return Forked(argv, connection)


def _name_of(arguments: Sequence[str]) -> str:
    return next((word for word in arguments if not word.startswith("-")), "")


class Forked:
    """A process that is no child of ours, as `subprocess.Popen` would show it."""

    def __init__(self, args: Sequence[str], connection: socket.socket) -> None:
        self.args = args
        self.returncode: int | None = None
        self._connection = connection
        self._answers = connection.makefile("r")
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        if self.returncode is None and self._has_ended(0):
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not self._has_ended(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def _has_ended(self, within_s: float | None) -> bool:
        waits = select.poll()  # a test may have more descriptors open than select() takes
        waits.register(self._connection, select.POLLIN)
        return bool(waits.poll(None if within_s is None else within_s * 1000))

    def _end(self) -> None:
        self.returncode = int(self._answers.readline())
        self._answers.close()
        self._connection.close()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Background:
    """A command that goes on by itself; what it prints waits in files."""

    def __init__(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._out = tempfile.TemporaryFile()  # noqa: SIM115
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        process = self._process = begun(arguments, folder, environment, self._out.fileno(), self._errors.fileno())
        self.pid, self.poll, self.wait = process.pid, process.poll, process.wait
        self.send_signal, self.kill, self.terminate = process.send_signal, process.kill, process.terminate

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def errors_so_far(self) -> str:
        """What it printed to standard error by now, and goes on printing behind."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it printed to both, when it has ended."""
        self.wait(timeout)
        self._out.seek(0)
        self._errors.seek(0)
        return self._out.read().decode(), self._errors.read().decode()


_started: set[str] = set()
_server: tuple[subprocess.Popen[bytes], str] | None = None


def _connection() -> socket.socket:
    global _server
    if _server is None:
        # A name of Linux's own, with no file; it listens before the process is there.
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("")
            listening.listen(16)
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forked", str(listening.fileno()), "-" * _ROOM],
                cwd=CHECKOUT,
                env=clean_environment(),
                stdin=subprocess.PIPE,  # it ends when this is closed, with us
                pass_fds=[listening.fileno()],
            )
            _server = process, listening.getsockname()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_server[1])
    return connection


# -- the process that has viewtail imported ---------------------------------------------------------------------------


def _import_all() -> None:
    for name in _PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)


def _serve(listening: socket.socket) -> None:
    """Fork for each request. Returns in the process that is to be the command, and in no other."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    waits = select.poll()  # a test may have more descriptors open than select() takes
    for descriptor in (listening, 0):
        waits.register(descriptor, select.POLLIN)
    while True:
        if any(descriptor == 0 for descriptor, _ in waits.poll()):
            os._exit(0)
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            if _becomes_the_command(connection):
                return
        connection.close()


def _becomes_the_command(connection: socket.socket) -> bool:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 2)
    with connection.makefile("rb") as asked:
        request = json.loads(asked.read())
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(BrokenPipeError):  # nobody waits for it any more
            connection.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    connection.close()
    for ours, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *descriptors]):
        os.dup2(descriptor, ours)
        os.close(descriptor)
    # As Python would have made them for what they are now.
    sys.stdout = io.TextIOWrapper(os.fdopen(1, "wb", closefd=False), line_buffering=os.isatty(1))
    sys.stderr = io.TextIOWrapper(os.fdopen(2, "wb", closefd=False), line_buffering=True, errors="backslashreplace")
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["folder"]
    sys.argv[1:] = request["arguments"]
    importlib.reload(sys.modules["projectors.failpoints"])  # it reads the environment
    return True


def _end() -> None:
    """Run the command, or the worker, and end with its exit code, without taking every imported module apart."""
    from viewtail.main import main

    code: object = 1
    faulthandler.enable()
    try:
        if _name_of(sys.argv[1:]) == "run" and not _workers_are_forked():
            from viewtail.process import main as worker

            code = worker()
        else:
            _appear_as([sys.executable, "-m", "viewtail.main", *sys.argv[1:]])
            main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    if code is not None and not isinstance(code, int):  # as Python itself ends
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # as Python itself ends: idle threads of executors are woken
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _appear_as(argv: Sequence[str]) -> None:
    """In /proc and in `ps`. The command line of the first process has room for it."""
    # proc(5): the fields behind the name, of which the 48th and 49th of all are where the command line begins and ends.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    line = b"".join(word.encode() + b"\0" for word in argv)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, line, len(line))


# -- the workers of a run ---------------------------------------------------------------------------------------------


def _workers_are_forked() -> bool:
    """Have the supervisor fork its workers. False in a process that is a worker.

    They are forked from one that has nothing of the supervisor's yet: no thread, no connection, no handler. It is a
    child of the supervisor; a worker is one as soon as the process between has ended.
    """
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _serve_workers(theirs)
        return False
    theirs.close()

    def start(argv: Sequence[str], *, pass_fds: Sequence[int], stdin: int) -> _Worker:
        socket.send_fds(ours, [json.dumps([argv, *pass_fds]).encode()], pass_fds)
        return _Worker(int(ours.recv(64)))

    supervisor: Any = importlib.import_module("viewtail.supervisor")
    supervisor.subprocess = SimpleNamespace(
        Popen=start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    return True


def _serve_workers(supervisor: socket.socket) -> None:
    """Fork for each request. Returns in the workers."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(supervisor, 65536, 1)
        if not message:
            os._exit(0)
        between = os.fork()
        if between:
            os.close(descriptors[0])
            os.waitpid(between, 0)
            continue
        if pid := os.fork():
            supervisor.send(f"{pid}".encode())
            os._exit(0)
        supervisor.close()
        argv, number = json.loads(message)
        if descriptors[0] != number:
            os.dup2(descriptors[0], number)
            os.close(descriptors[0])
        del sys.path[0]  # -P
        sys.argv[:] = argv[argv.index("viewtail.process") :]
        _appear_as(argv)
        return


class _Worker:
    """A child, as `subprocess.Popen` would show it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # not yet: the process between has not ended
                return None
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("viewtail.process", timeout or 0)
            time.sleep(0.01)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


if __name__ == "__main__":
    _import_all()
    gc.freeze()  # what is imported need not be copied to be looked at
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _end()
