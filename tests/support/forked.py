"""`viewtail` commands without the half second in which each would import viewtail: forked from a process that has it.

Each is a process of its own all the same, with its own folder, environment, output and exit code. The first call of
each command in a run of the tests starts Python, as a user's does: what an import alone would break shows there.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
_PACKAGES = ("changes", "servers", "offsets", "ingest", "projectors", "operations", "viewtail")


def clean_environment() -> dict[str, str]:
    """Ours, less its viewtail settings, with the checkout importable. What a test damages stays so: no cleaner runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("VIEWTAIL_")}
    return {**kept, "PYTHONPATH": str(CHECKOUT), "VIEWTAIL_CLEANER__SHARE": "0"}


def command(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` of the command returns, and raises when the time is over."""
    argv = [sys.executable, "-m", "viewtail.main", *arguments]
    name = next((word for word in arguments if not word.startswith("-")), "")
    if name not in _started:
        _started.add(name)
        return subprocess.run(
            argv,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors, _connection() as connection:
        request = {"arguments": list(arguments), "folder": str(folder), "environment": dict(environment)}
        socket.send_fds(connection, [b"."], [out.fileno(), errors.fileno()])
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(timeout_s)
        with connection.makefile("r") as answers:
            pid = int(answers.readline())
            try:
                code = int(answers.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(argv, timeout_s) from None
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(argv, code, out.read().decode(), errors.read().decode())


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
                [sys.executable, "-m", "tests.support.forked", str(listening.fileno())],
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
    while True:
        readable, _, _ = select.select([listening, 0], [], [])
        if 0 in readable:
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
        connection.sendall(f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):  # nobody waits for it any more
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os._exit(0)
    connection.close()
    for ours, descriptor in enumerate([os.open(os.devnull, os.O_RDONLY), *descriptors]):
        os.dup2(descriptor, ours)
        os.close(descriptor)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[0] = request["folder"]
    sys.argv[1:] = request["arguments"]
    return True


def _end() -> None:
    """Run the command and end with its exit code, without taking every imported module apart."""
    from viewtail.main import main

    code: object = 1
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    _import_all()
    gc.freeze()  # what is imported need not be copied to be looked at
    _serve(socket.socket(fileno=int(sys.argv[1])))
    _end()
