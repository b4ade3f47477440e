"""Debian packages unpacked into a folder of their own, beside the system and never into it.

apt gets its own state, cache and source list, so that no package of the machine is touched and no rights are
needed; the archive's signature is checked with the keyring of the machine. A program of such a folder is started
through the folder's own loader and libraries, whatever the machine's C library is (see STACK.md for the recipe).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from .errors import ServerUnavailable
from .places import cache_directory, progress

NEWEST_SUITE = "sid"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_URI_LINE = re.compile(r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+)")


@dataclass(frozen=True, slots=True)
class DebianSource:
    """One apt source of the machine."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]
    signed_by: str  # a keyring's path or an inline key; empty: apt's own trusted keys

    def stanza(self) -> str:
        """The source as a deb822 paragraph of component main."""
        signed_by = f"Signed-By: {self.signed_by}\n" if self.signed_by else ""
        return f"Types: deb\nURIs: {self.uri}\nSuites: {' '.join(self.suites)}\nComponents: main\n{signed_by}"


def unpack(
    name: str, packages: Sequence[str], into: Path, suite: str | None = None, without: Sequence[str] = ()
) -> None:
    """Download `packages` with everything they depend on and unpack them below `into`.

    `suite` is a suite of the archive that the machine itself uses (None: the machine's own release); `name` is what
    progress lines and errors call it. The packages `without` stay away, with what only they depend on. Raises
    ServerUnavailable where there is no apt or no Debian archive.
    """
    _require_tools(name)
    source = _machine_source(name)
    if suite is not None:
        source = replace(source, suites=(suite,))
    apt = _Apt(name, source, without)
    apt.update()
    for archive in apt.download(packages):
        _run(name, ["dpkg", "-x", str(archive), str(into)])


def can_unpack() -> bool:
    """Whether this machine has apt and a Debian archive to take packages from."""
    try:
        _require_tools("stack")
        _machine_source("stack")
    except ServerUnavailable:
        return False
    return True


def command(prefix: Path, program: str) -> tuple[str, ...]:
    """The argv that starts `program` (a path below `prefix`) with the C library it was built for."""
    libraries = [str(directory) for directory in library_directories(prefix)]
    return (str(_loader(prefix)), "--library-path", ":".join(libraries), str(prefix / program))


def wrap(prefix: Path, program: Path) -> None:
    """Put a script in the place of `program` that starts it as `command` does, for others who start it by path.

    The program is told the path by which it was started: a Python finds its environment by that.
    """
    original = program.rename(program.with_name(f"{program.name}.original"))
    up = "/".join([".."] * len(program.parent.relative_to(prefix).parts))
    libraries = ":".join(f"$prefix/{path.relative_to(prefix)}" for path in library_directories(prefix))
    program.write_text(
        "#!/bin/sh\n"
        'here=$(dirname "$(readlink -f "$0")")\n'
        f"prefix=$here/{up}\n"
        f'exec "$prefix/{_loader(prefix).relative_to(prefix)}" --library-path "{libraries}" '
        f'--argv0 "$0" "$here/{original.name}" "$@"\n'
    )
    program.chmod(0o755)


def relink(prefix: Path) -> None:
    """Make absolute links of the packages (/etc/java/...) point into `prefix`, wherever that is moved."""
    for folder, folders, files in os.walk(prefix):
        for link in (Path(folder, name) for name in folders + files):
            if link.is_symlink() and link.readlink().is_absolute():
                inside = prefix / link.readlink().relative_to("/")
                link.unlink()
                link.symlink_to(os.path.relpath(inside, link.parent))


def _loader(prefix: Path) -> Path:
    for directory in library_directories(prefix):
        for loader in sorted(directory.glob("ld-linux*.so.*")):
            if loader.is_file() and not loader.is_symlink():
                return loader
    raise ServerUnavailable(f"{prefix} holds no program loader; remove that folder and install again")


def library_directories(prefix: Path) -> Iterator[Path]:
    """Where the packages of `prefix` have put their libraries, for a loader's search path."""
    for parent in ("usr/lib", "lib"):
        yield from sorted((prefix / parent).glob("*-linux-gnu*"))
        if (prefix / parent).is_dir():
            yield prefix / parent


class _Apt:
    """apt-get with state, cache and sources of its own."""

    def __init__(self, name: str, source: DebianSource, without: Sequence[str]) -> None:
        self.name = name
        self.root = cache_directory() / "apt" / f"{name}-{source.suites[0]}"
        for part in ("state/lists/partial", "cache/archives/partial", "sources"):
            (self.root / part).mkdir(parents=True, exist_ok=True)
        (self.root / "status").write_text("".join(map(_as_installed, without)))
        (self.root / "sources" / "stack.sources").write_text(source.stanza())

    def update(self) -> None:
        progress(f"{self.name}: reading the package lists")
        self._get("update")

    def download(self, packages: Sequence[str]) -> list[Path]:
        """The archives of `packages` and their dependencies, downloaded."""
        install = ["install", "--yes", "--no-install-recommends", *packages]
        wanted = [_URI_LINE.match(line) for line in self._get("--print-uris", *install).splitlines()]
        size = sum(int(match["size"]) for match in wanted if match)
        if size:
            progress(f"{self.name}: downloading {size / 1e6:.0f} MB ...")
        self._get("--download-only", *install)
        # print-uris leaves out what is there already, so the folder is the complete list.
        return sorted((self.root / "cache" / "archives").glob("*.deb"), key=lambda path: unquote(path.name))

    def _get(self, *arguments: str) -> str:
        return _run(self.name, ["apt-get", "-q", *self._options(), *arguments])

    def _options(self) -> list[str]:
        options = {
            "Dir::State": self.root / "state",
            "Dir::State::status": self.root / "status",
            "Dir::Cache": self.root / "cache",
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": self.root / "sources",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
            # The user _apt cannot read below a private checkout; without this root's download would fail there.
            "APT::Sandbox::User": "root",
        }
        return [part for key, value in options.items() for part in ("-o", f"{key}={value}")]


def _as_installed(package: str) -> str:
    # What dpkg would note of a package that is there: apt asks for it no more, whatever version is needed.
    fields = {
        "Package": package,
        "Status": "install ok installed",
        "Version": "999999",
        "Architecture": "all",
        "Maintainer": "the machine",
        "Description": "left out",
    }
    return "".join(f"{name}: {value}\n" for name, value in fields.items()) + "\n"


def _run(name: str, argv: Sequence[str]) -> str:
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ServerUnavailable(
            f"{name}: `{argv[0]} ... {argv[-1]}` failed with exit code {done.returncode}:\n{done.stderr.strip()}\n"
            "Check that this machine reaches its Debian archive (`apt-get update`), then try again."
        )
    return done.stdout


def _require_tools(name: str) -> None:
    missing = [tool for tool in ("apt-get", "dpkg") if shutil.which(tool) is None]
    if missing:
        raise ServerUnavailable(
            f"{name}: this machine has no {' and no '.join(missing)}; stack/ takes the server from Debian packages. "
            "Use a Debian machine, or a container engine: python3 -m stack up --engine docker"
        )


def _machine_source(name: str) -> DebianSource:
    codename = _codename()
    for source in _machine_sources(Path("/etc/apt")):
        if codename in source.suites and "main" in source.components:
            keyring = str(_KEYRING) if _KEYRING.exists() else ""
            return replace(source, suites=(codename,), signed_by=source.signed_by or keyring)
    raise ServerUnavailable(
        f"{name}: no apt source below /etc/apt offers Debian {codename or '(unknown release)'} main. "
        "Add one, or use a container engine: python3 -m stack up --engine docker"
    )


def _codename() -> str:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return ""
    fields = dict(line.split("=", 1) for line in lines if "=" in line)
    return fields.get("VERSION_CODENAME", "").strip('"') if fields.get("ID", "").strip('"') == "debian" else ""


def _machine_sources(etc: Path) -> Iterator[DebianSource]:
    for path in sorted(etc.glob("sources.list.d/*.sources")):
        yield from parse_deb822(path.read_text())
    for path in (etc / "sources.list", *sorted(etc.glob("sources.list.d/*.list"))):
        if path.exists():
            yield from parse_one_line(path.read_text())


def parse_deb822(text: str) -> Iterator[DebianSource]:
    """The enabled binary sources of a `.sources` file (sources.list(5), "DEB822-STYLE FORMAT")."""
    uncommented = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for paragraph in re.split(r"\n\s*\n", uncommented):
        fields = {
            key.lower(): value.strip()
            for key, value in re.findall(r"^([A-Za-z-]+):((?:.*)(?:\n[ \t].*)*)", paragraph, re.MULTILINE)
        }
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").lower() == "no":
            continue
        suites, components = tuple(fields["suites"].split()), tuple(fields.get("components", "").split())
        signed_by = "\n" * ("\n" in fields.get("signed-by", "")) + fields.get("signed-by", "")
        for uri in fields["uris"].split():
            yield DebianSource(uri, suites, components, _indented(signed_by))


def parse_one_line(text: str) -> Iterator[DebianSource]:
    """The binary sources of a `.list` file (sources.list(5), "ONE-LINE-STYLE FORMAT")."""
    for line in text.splitlines():
        match = re.match(r"deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)(?P<rest>[^#]*)", line)
        if match:
            signed_by = re.search(r"signed-by=(\S+)", match["options"] or "")
            components = tuple(match["rest"].split())
            yield DebianSource(match["uri"], (match["suite"],), components, signed_by[1] if signed_by else "")


def _indented(field: str) -> str:
    # An inline key continues over lines, each of which must start with a blank.
    first, *others = field.split("\n")
    return "\n".join([first, *(line if line.startswith((" ", "\t")) else f" {line}" for line in others)])
