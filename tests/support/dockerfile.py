"""The Dockerfile's steps without a container engine, which nobody can run inside a container.

A stage is a folder; the absolute paths of its steps are below it, and it lies in one place while it is built, so that
what a step writes down stays true. What this does not show: the base image itself, its users, and its shell's other
programs.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stack.places import CHECKOUT

_BELOW_THE_ROOT = re.compile(r"(?<![\w./-])/(?=(?:opt|build|views)\b)")


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: RUN, COPY, ... and what follows it, on one line."""

    name: str
    text: str


@dataclass(slots=True)
class Stage:
    """What stands between two FROM lines."""

    base: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def texts(self, name: str) -> list[str]:
        """What all instructions of one kind say."""
        return [step.text for step in self.steps if step.name == name]


def stages(text: str) -> list[Stage]:
    """The stages of a Dockerfile, in order."""
    found: list[Stage] = []
    uncommented = "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    for line in uncommented.replace("\\\n", " ").splitlines():
        name, _, rest = line.partition(" ")
        if name == "FROM":
            base, _, alias = rest.partition(" AS ")
            found.append(Stage(base, alias))
        else:
            found[-1].steps.append(Step(name, re.sub(r"\s+", " ", rest)))
    return found


def context() -> list[str]:
    """The files that docker sends to a build: the last pattern of .dockerignore that fits one decides."""
    patterns = [
        (line.removeprefix("!"), line.startswith("!"))
        for line in (CHECKOUT / ".dockerignore").read_text().split()
        if not line.startswith("#")
    ]
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=CHECKOUT, capture_output=True, text=True
    )
    assert files.returncode == 0, files.stderr
    return [name for name in files.stdout.splitlines() if is_sent(name, patterns) and (CHECKOUT / name).exists()]


def is_sent(name: str, patterns: list[tuple[str, bool]]) -> bool:
    """A pattern fits a path and everything below it; `*` stays within a folder, `**` does not."""
    sent = True
    for pattern, is_exception in patterns:
        if re.match(_translated(pattern) + "(/|$)", name):
            sent = is_exception
    return sent


def _translated(pattern: str) -> str:
    parts = (re.escape(part).replace(r"\*", "[^/]*") for part in pattern.strip("/").split("/"))
    return "/".join(".*" if part == "[^/]*[^/]*" else part for part in parts).replace(".*/", "(.*/)?")


@dataclass(slots=True)
class Build:
    """A stage as it is carried out: a step that fails is an AssertionError with its output."""

    root: Path
    python: Path  # that of the base image
    others: dict[str, Path]  # stages that are built already
    sent: list[str]
    workdir: str = "/"
    user: str = "root"
    environment: dict[str, str] = field(default_factory=dict)
    users: list[str] = field(default_factory=lambda: ["root"])

    def __post_init__(self) -> None:
        programs = self.root / "usr/local/bin"
        programs.mkdir(parents=True)
        (programs / "python").symlink_to(self.python)
        self.environment["PATH"] = f"{programs}:/usr/bin:/bin"

    def carry_out(self, stage: Stage) -> None:
        """All steps of the stage, in order."""
        for step in stage.steps:
            if step.name in ("ENTRYPOINT", "CMD"):
                continue
            {"WORKDIR": self._enter, "COPY": self._copy, "RUN": self._run, "ENV": self._set, "USER": self._become}[
                step.name
            ](step.text)

    def command(self, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A program of the stage, found as its PATH says, in its WORKDIR."""
        variables = {**self.environment, **environment}
        program = shutil.which(argv[0], path=variables["PATH"])
        assert program is not None, f"{argv[0]} is not in {variables['PATH']}"
        return subprocess.run(
            [program, *argv[1:]],
            cwd=self._here("."),
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    def _enter(self, path: str) -> None:
        self.workdir = path
        self._here(".").mkdir(parents=True, exist_ok=True)

    def _copy(self, text: str) -> None:
        *sources, target = text.split()
        if sources[0].startswith("--from="):
            stage, source = sources
            shutil.copytree(self.others[stage.partition("=")[2]] / source.strip("/"), self._here(target), symlinks=True)
            return
        for source in sources:
            for name in self._found(source, text):
                to = self._here(target) / (name.removeprefix(source + "/") if name != source else Path(name).name)
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(CHECKOUT / name, to)

    def _found(self, source: str, text: str) -> Iterator[str]:
        found = [name for name in self.sent if name == source or name.startswith(source + "/")]
        assert found, f"COPY {text}: {source!r} is not in the build context; .dockerignore leaves it out"
        yield from found

    def _run(self, command: str) -> None:
        if command.startswith("useradd "):  # of the base image's system, which is not here
            self.users.append(command.split()[-1])
            return
        done = subprocess.run(
            ["/bin/sh", "-ec", _BELOW_THE_ROOT.sub(f"{self.root}/", command)],
            cwd=self._here("."),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"RUN {command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"

    def _set(self, text: str) -> None:
        for name, value in (each.split("=", 1) for each in shlex.split(text)):
            said = _BELOW_THE_ROOT.sub(f"{self.root}/", value)
            self.environment[name] = said.replace("$PATH", self.environment["PATH"])

    def _become(self, user: str) -> None:
        assert user in self.users, f"USER {user}: no step makes it"
        self.user = user

    def _here(self, path: str) -> Path:
        """A path of a step, on this machine."""
        return self.root / (path if path.startswith("/") else f"{self.workdir}/{path}").lstrip("/")
