"""Shell completion: what a shell is given when the user presses Tab."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

VIEWS = """
print("loading")
from viewtail import Entity, IndexTable
user = Entity("shop.user")
views = [IndexTable("by_email", user, value="email"), IndexTable("by_name", user, value="name")]
"""
PRESS_TAB = """
source ~/.bashrc
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_viewtail_completion viewtail
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "views.py").write_text(VIEWS)
    return tmp_path


def ran(home: Path, *argv: str, **environment: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith("VIEWTAIL_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**own, "PATH": path, "HOME": str(home), **environment}
    done = subprocess.run(argv, cwd=home, env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout


def test_bash_completes_commands_options_and_views_once_completion_is_installed(home: Path) -> None:
    ran(home, "bash", "-c", "viewtail --install-completion; true")  # as a child of the shell that it is for

    def offered(*words: str) -> list[str]:
        return ran(home, "bash", "--norc", "-c", PRESS_TAB, "bash", "viewtail", *words).split()

    assert offered("stat") == ["status"]
    assert offered("dead-letters", "") == ["list", "show", "redrive", "drop"]
    assert offered("status", "--ev") == ["--every"]
    assert offered("verify", "by_") == ["by_email", "by_name"]
    (home / "views.py").write_text("views = [")
    assert offered("get", "by_") == [], "the command itself says what is wrong with views.py"


@pytest.mark.parametrize(
    ("line", "offered"),
    [("viewtail pau", '"pause"'), ("viewtail status --wa", '"--watch"'), ("viewtail get by_e", '"by_email"')],
)
def test_zsh_is_offered_the_same(home: Path, line: str, offered: str) -> None:
    told = ran(home, "viewtail", _VIEWTAIL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    assert told.startswith("_arguments '*: :((") and offered in told


def test_the_script_of_a_shell_can_be_shown(home: Path) -> None:
    shown = ran(home, "bash", "-c", "viewtail --show-completion; true")
    assert "complete -o default -F _viewtail_completion viewtail" in shown


def test_an_option_that_was_typed_empty_is_no_error_while_a_shell_completes(home: Path) -> None:
    told = ran(
        home, "viewtail", _VIEWTAIL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="viewtail pause --reason '' --pip"
    )
    assert '"--pipeline"' in told
    told = ran(home, "viewtail", _VIEWTAIL_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS="viewtail --version pau")
    assert told.startswith("_arguments"), "no version is printed"
