"""Where a demo plays: its folder, viewtail's settings there, the stores, and what its tables and views are called."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from viewtail.changes.errors import MisuseError
from viewtail.demo import process
from viewtail.demo.process import DemoError, Run
from viewtail.servers.patience import COMMAND
from viewtail.settings import Settings, load

TITLES = {"mysql": "MySQL", "redis": "Redis", "elasticsearch": "Elasticsearch", "kafka": "Kafka"}


@dataclass(frozen=True, slots=True)
class _Declared:
    """A view: its class, its name by `Names`, and the arguments behind its entity."""

    kind: str
    name: str
    arguments: str = ""


_DECLARED = {
    "mysql": _Declared("IndexTable", "{prefix}city_by_country", ', value=["country", "population"]'),
    "redis": _Declared("RedisHash", "{prefix}city", ', fields=["name", "country", "population"]'),
    "elasticsearch": _Declared(
        "SearchIndex",
        "{prefix}cities",
        ', fields={\n        "name": "text", "other_names": "text", "country": "keyword", "population": "long"}',
    ),
    "kafka": _Declared("Topic", "{rows}.city"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the demo calls its own: the rows' database, that of index tables and offsets, what views begin with."""

    rows: str
    own: str
    prefix: str

    def view(self, store: str) -> str:
        """The name of the view in a store."""
        return _DECLARED[store].name.format(rows=self.rows, prefix=self.prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Everything that viewtail is run with.

    Attributes:
        is_given: the servers are the user's.
        folder: of the declarations and the log; the demo's own, and removed with all that is in it.
        cwd: where viewtail runs: the paths that a user's settings name begin there.
        config: the settings file to hand on.
        module: of the declarations.
        stores: those that are shown.
        lacking: why the others are not, by name.
    """

    is_given: bool
    folder: Path
    cwd: Path
    config: Path | None
    environ: Mapping[str, str]
    module: str
    names: Names
    stores: tuple[str, ...]
    lacking: Mapping[str, str]

    def settings(self) -> Settings:
        """As viewtail reads them."""
        return load(self.config, self.environ).asked_with(COMMAND)

    def declare(self) -> str:
        """Write the declarations, and return their text."""
        views = {self.names.view(store): _DECLARED[store] for store in self.stores}
        names = ", ".join(sorted(["Entity", *(view.kind for view in views.values())]))
        lines = "\n".join(f'    {view.kind}("{name}", city{view.arguments}),' for name, view in views.items())
        text = f'from viewtail import {names}\n\ncity = Entity("{self.names.rows}.city")\n\nviews = [\n{lines}\n]\n'
        (self.folder / f"{self.module}.py").write_text(text)
        return text

    def start(self, *, stays: bool) -> Run:
        """`viewtail run`."""
        return Run(self.folder, self.environ, stays=stays, arguments=self._with_config("run"), cwd=self.cwd)

    def viewtail(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command beside it. Raises DemoError where it does not end."""
        return process.ran(self._with_config(*arguments), self.environ, self.cwd)

    def require(self, *arguments: str) -> str:
        """What a command prints. Raises DemoError where its exit code is not 0."""
        done = self.viewtail(*arguments)
        if done.returncode:
            words = " ".join(arguments)
            raise DemoError(f"viewtail {words} ended with code {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _with_config(self, *arguments: str) -> list[str]:
        return [*(() if self.config is None else ("--config", str(self.config))), *arguments]


def refused(names: Mapping[str, str], without: frozenset[str]) -> None:
    """Raises MisuseError where a store is left out that is none, or that the demo cannot be without."""
    for name in sorted(without):
        if name not in names:
            raise MisuseError(f"--without {name}: there is no such store; there are {', '.join(names)}")
        if name == "mysql":
            raise MisuseError("--without mysql: the rows are there, and viewtail's own tables")
