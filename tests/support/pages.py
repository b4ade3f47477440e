"""What a page tells its reader to do, so that tests do it: commands with what they show, edits, files, statements."""

from __future__ import annotations

import re
import shlex
import subprocess
import textwrap
from abc import ABC, abstractmethod
from dataclasses import dataclass

from tests.support.running import Run

_FENCES = re.compile(r"^ *```(console|diff|python|sql|sh)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^\$ (.*(?:\\\n.*)*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command with what the page shows of its output, or the whole text of another block."""

    command: str = ""
    shown: tuple[str, ...] = ()
    edit: tuple[str, ...] = ()  # lines of a diff
    views: str = ""  # a views.py
    sql: str = ""
    shell: str = ""  # lines for a shell, without output


def steps_of(section: str) -> list[Step]:
    """The steps of a page or a part of it, in order; Python counts where it declares `views`."""
    found: list[Step] = []
    for kind, body in ((kind, textwrap.dedent(body)) for kind, body in _FENCES.findall(section)):
        if kind == "console":
            for command, output in _COMMANDS.findall(body):
                shown = tuple(line for line in output.splitlines() if line.strip())
                found.append(Step(command=command.replace("\\\n", " "), shown=shown))
        elif kind == "diff":
            found.append(Step(edit=tuple(body.splitlines())))
        elif kind == "sql":
            found.append(Step(sql=body))
        elif kind == "sh":
            found.append(Step(shell=body))
        elif re.search(r"^views = ", body, re.MULTILINE):
            found.append(Step(views=body))
    return found


def missing_lines(shown: tuple[str, ...], output: str) -> list[str]:
    """Lines of the page that the output does not have, in whole; how far columns are apart does not matter."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    patterns = {
        line: ".*".join(re.escape(part) for part in re.split(" ?… ?", " ".join(line.split()))) for line in shown
    }
    return [line for line, pattern in patterns.items() if not any(re.fullmatch(pattern, one) for one in lines)]


class PageReader(ABC):
    """Somebody who runs a page's commands as they are written, beside the viewtail of `run`."""

    run: Run

    @abstractmethod
    def places(self) -> dict[str, str]:
        """What a page writes, and what it is here. Everything else in a command is run as it stands."""

    def translated(self, text: str) -> str:
        for written, here in self.places().items():
            text = text.replace(written, here)
        return text

    def shows(self, step: Step) -> bool:
        """Fail where the command does not print what the page shows; where that is nothing, its exit code must be 0."""
        code, output = self.done(step.command)
        missing = missing_lines(tuple(self.translated(line) for line in step.shown), output)
        assert not missing, f"$ {step.command}\nnot there: {missing}\n{output}"
        assert step.shown or code == 0, f"$ {step.command}\n{output}"
        return True

    def done(self, command: str) -> tuple[int, str]:
        """The exit code of a command, and what it prints."""
        if command.startswith("viewtail "):
            done = self.run.command(*shlex.split(command)[1:])
        else:
            done = subprocess.run(
                ["bash", "-c", self.translated(command)],
                cwd=self.run.folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        assert "Traceback" not in done.stderr and "a fault in viewtail" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr
