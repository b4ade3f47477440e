"""What a worker, and a command that only looks, must not import: each module costs every process memory and time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
# Of the terminal, of HTTP, of SQL files and of a library's hobbies; clients of stores: test_stores.py.
HEAVY = ("rich", "pygments", "attr", "markdown_it", "sqlglot", "httpx", "uvicorn", "prometheus_client")
PROGRAM = ("viewtail.main", "viewtail.cli", "viewtail.commands", "viewtail.serving", "viewtail.entities")
ON_A_WORKER = (*HEAVY, "typer", *PROGRAM)
# What decodes, polls, checks, erases: a kind of source is all that every command needs, for its settings.
NO_LOOK_NEEDS = (
    *("ingest.binlog.source", "ingest.binlog.checks", "ingest.binlog.quiet_end", "pymysqlreplication"),
    *("ingest.poll.source", "ingest.poll.checks", "ingest.left_out", "viewtail.operations.erase"),
)
LOOKS = ("viewtail.commands.status", "viewtail.commands.reading", "viewtail.commands.waiting")


def imported(code: str, names: tuple[str, ...]) -> str:
    """Those of these modules that the code imports, in a process of its own."""
    asked = f"import sys\n{code}\nprint(*(name for name in {names!r} if sys.modules.get(name) is not None))"
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize("store", ["index_tables", "redis", "topics"])
def test_a_worker_imports_nothing_that_only_commands_need(store: str) -> None:
    code = f"import viewtail.process, ingest.binlog.source, projectors.stores.{store}.sink"
    assert imported(code, ON_A_WORKER) == ""


def test_the_help_of_all_commands_needs_none_of_them() -> None:
    code = "import typer\nfrom viewtail import main\ntyper.main.get_command(main.app)"
    assert imported(code, (*HEAVY, "viewtail.commands", "viewtail.settings", "pydantic", "structlog")) == ""


@pytest.mark.parametrize("command", LOOKS)
def test_a_command_that_only_looks_imports_nothing_heavy(command: str) -> None:
    code = f"from viewtail import light_imports, main\nlight_imports.structlog()\nimport {command}"
    assert imported(code, HEAVY) == ""


@pytest.mark.parametrize("command", LOOKS)
def test_a_command_that_only_looks_imports_nothing_that_reads_a_source(command: str) -> None:
    assert imported(f"import {command}", NO_LOOK_NEEDS) == ""


def test_status_imports_nothing_that_projects_or_reads_rows() -> None:
    names = ("viewtail.operations.reading", "projectors.projection", "projectors.derived.cells")
    assert imported("import viewtail.commands.status", names) == ""


def test_a_command_looks_for_no_plugins_of_pydantic() -> None:
    """It would read what every package that is installed says of itself."""
    code = (
        "from importlib import metadata\n"
        "def read(**_):\n    print('looked', end=' ')\n    return []\n"
        "metadata.entry_points = read\nfrom viewtail import main\nmain._main(['--config', '/nowhere.toml', 'status'])"
    )
    assert imported(code, ("pydantic",)) == "pydantic"


def test_a_program_that_imports_viewtail_keeps_its_structlog_and_its_plugins() -> None:
    code = (
        "import os, viewtail, structlog\n"
        "assert structlog.dev.rich is not None and 'PYDANTIC_DISABLE_PLUGINS' not in os.environ"
    )
    assert imported(code, ("structlog",)) == "structlog"
