"""What stack/ promises of a server: signals reach it, its data outlives it, and it ends with its owner. On Redis,
the quickest of the three to start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stack import redis
from stack.errors import ServerFailed
from stack.places import CHECKOUT, install_once
from stack.server import Server, free_port, running_in


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = redis.start(tmp_path)
    yield started
    started.stop()


def test_data_survives_a_kill_on_the_same_port(server: Server) -> None:
    port = server.port
    assert _ask(server, "SET kept 1") == "+OK"
    server.kill()
    assert not server.is_running()
    server.start()
    assert server.port == port
    # What the kernel took of the append-only file survives the process.
    assert _ask(server, "EXISTS kept") == ":1"


def test_a_paused_server_keeps_connections_and_answers_only_after_resume(server: Server) -> None:
    server.pause()
    assert server.is_running()
    with socket.create_connection((server.host, server.port), timeout=0.2) as connection:
        connection.sendall(b"PING\r\n")
        with pytest.raises(TimeoutError):
            connection.recv(16)
        server.resume()
        connection.settimeout(10)
        assert connection.recv(16) == b"+PONG\r\n"


def test_the_pid_is_that_of_the_server_itself(server: Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    _until(lambda: not server.is_running())


def test_a_paused_server_can_be_stopped(server: Server) -> None:
    server.pause()
    server.stop()
    assert not server.is_running()


def test_a_stopped_server_has_no_pid(server: Server) -> None:
    server.stop()
    with pytest.raises(ServerFailed, match=r"call start\(\)"):
        _ = server.pid


def test_a_taken_port_is_an_error_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServerFailed, match=str(port)):
            redis.start(tmp_path, port)


def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="Bad directive"):
        redis.start(tmp_path, options=("--no-such-option", "1"))
    assert running_in(tmp_path) is None


def test_it_ends_with_its_owner_however_that_ends(tmp_path: Path) -> None:
    owner = _owner(tmp_path, "server = redis.start(directory)", "time.sleep(600)")
    _until(lambda: running_in(tmp_path) is not None)
    owner.kill()
    owner.wait()
    _until(lambda: running_in(tmp_path) is None)


def test_it_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[Server] = []
    thread = threading.Thread(target=lambda: started.append(redis.start(tmp_path)))
    thread.start()
    thread.join()
    assert _ask(started[0], "PING") == "+PONG"
    started[0].stop()


def test_a_server_told_to_stay_is_found_and_stopped_by_another_process(tmp_path: Path) -> None:
    owner = _owner(tmp_path, "redis.prepare(directory).start(stays=True)")
    assert owner.wait(60) == 0
    found = running_in(tmp_path)
    assert found is not None
    assert _ask(found, "PING") == "+PONG"
    found.stop()
    assert running_in(tmp_path) is None


def test_a_start_that_is_killed_leaves_a_server_that_can_be_stopped(tmp_path: Path) -> None:
    never = "dataclasses.replace(server.launch, is_ready=lambda: False)"
    owner = _owner(tmp_path, "server = redis.prepare(directory)", f"Server({never}).start(stays=True)")
    _until(lambda: running_in(tmp_path) is not None)
    owner.kill()
    owner.wait()
    found = running_in(tmp_path)
    assert found is not None
    found.stop()
    assert running_in(tmp_path) is None


def test_free_ports_lie_below_those_of_outgoing_connections() -> None:
    assert 20000 <= free_port() < 32768


def test_a_failed_installation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIEWTAIL_STACK_CACHE", str(tmp_path))

    def half_way(into: Path) -> None:
        (into / "part").write_text("")
        raise ServerFailed("the line broke")

    with pytest.raises(ServerFailed):
        install_once("thing", half_way)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_what_a_killed_installation_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIEWTAIL_STACK_CACHE", str(tmp_path))
    leftover = tmp_path / ".thing.unfinished.abc"
    leftover.mkdir()
    install_once("thing", lambda into: (into / "part").touch())
    assert not leftover.exists()
    assert (tmp_path / "thing/part").exists()


def test_two_who_install_at_once_get_one_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIEWTAIL_STACK_CACHE", str(tmp_path))
    built: list[Path] = []
    threads = [threading.Thread(target=install_once, args=("thing", built.append)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def _owner(directory: Path, *lines: str) -> subprocess.Popen[bytes]:
    head = (
        "import dataclasses, pathlib, time",
        "from stack import redis",
        "from stack.server import Server",
        f"directory = pathlib.Path({str(directory)!r})",
    )
    return subprocess.Popen([sys.executable, "-c", "\n".join([*head, *lines])], cwd=CHECKOUT)


def _ask(server: Server, command: str) -> str:
    with socket.create_connection((server.host, server.port), timeout=10) as connection:
        connection.sendall(f"{command}\r\n".encode())
        return connection.recv(1024).decode().strip()


def _until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)
