"""The same servers from docker-compose.yml, where a container engine answers."""

from __future__ import annotations

import os
import shutil
import subprocess

from .errors import StackError
from .places import CHECKOUT

_INNER_PORTS = {"mysql": 3306, "mariadb": 3306, "redis": 6379, "elasticsearch": 9200, "kafka": 9092}


def engine_answers() -> bool:
    """Whether `docker compose` is there and its engine answers within ten seconds."""
    return has_compose() and _succeeds("docker", "info")


def has_compose() -> bool:
    """Whether `docker compose` is there; it can check a file without an engine."""
    return shutil.which("docker") is not None and _succeeds("docker", "compose", "version")


def up(names: list[str]) -> None:
    """Start the services and wait until their health checks pass."""
    _require_engine()
    _compose("up", "--detach", "--wait", *names)


def down() -> None:
    """Stop the services; their volumes stay."""
    _require_engine()
    _compose("down")


def addresses(names: list[str]) -> dict[str, str]:
    """The address of each service that runs, as viewtail's settings take it."""
    _require_engine()
    running = set(_compose("ps", "--services", "--status", "running").split())
    return {name: _url(name) for name in names if name in running}


def _url(name: str) -> str:
    published = _compose("port", name, str(_INNER_PORTS[name])).strip()
    if name in ("mysql", "mariadb"):
        return f"mysql://root:{os.environ.get('VIEWTAIL_MYSQL_PASSWORD', 'viewtail')}@{published}"
    return {"redis": f"redis://{published}/0", "kafka": f"kafka://{published}"}.get(name, f"http://{published}")


def _compose(*arguments: str) -> str:
    argv = ["docker", "compose", "--file", str(CHECKOUT / "docker-compose.yml"), *arguments]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise StackError(
            f"`docker compose {arguments[0]}` failed with exit code {done.returncode}:\n{done.stderr.strip()}\n"
            "Look at `docker compose logs`, or take servers without an engine: python3 -m stack up --engine local"
        )
    return done.stdout


def _require_engine() -> None:
    if not engine_answers():
        raise StackError(
            "no container engine answers (`docker compose version`, `docker info`). Start one, or take servers "
            "without an engine: python3 -m stack up --engine local"
        )


def _succeeds(*argv: str) -> bool:
    try:
        return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=10).returncode == 0
    except subprocess.TimeoutExpired:
        return False
