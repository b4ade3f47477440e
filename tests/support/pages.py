"""What a page tells its reader to do, so that tests do it: commands with what they show, edits, files, statements."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

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
