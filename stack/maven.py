"""What Maven fetches: single files, and jars with all that they need, checked against a digest pinned here.

The digest is in the code because not every mirror of the repository serves checksums. Which repository is asked is
the machine's own setting of Maven; its local copies lie in the cache, not in the user's home.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from . import java
from .errors import ServerUnavailable
from .places import cache_directory, locked, progress

_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"


def file(name: str, artifact: str) -> Path:
    """One file without what it depends on: `artifact` is 'group:name:version:type'. It lies in the local repository.

    `name` is what errors call it. Raises ServerUnavailable where Maven cannot get it.
    """
    _run(name, artifact, [f"{_PLUGIN}:get", f"-Dartifact={artifact}", "-Dtransitive=false"])
    group, short, version, kind = artifact.split(":")
    return _repository() / Path(*group.split(".")) / short / version / f"{short}-{version}.{kind}"


def jars(name: str, artifacts: Sequence[str], into: Path, digest: str, without: Sequence[str] = ()) -> None:
    """Put the jars of `artifacts` ('group:name:version') and of all that they need at run time into a folder.

    `without` leaves dependencies out ('group:name', the name may be `*`). `digest` is what `digest_of` says of the
    folder. Raises ServerUnavailable where Maven cannot get them, or got others.
    """
    progress(f"{name}: downloading with Maven ...")
    with tempfile.TemporaryDirectory() as folder:
        pom = Path(folder, "pom.xml")
        pom.write_text(_pom(artifacts, without))
        goal = [f"--file={pom}", f"{_PLUGIN}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={into}"]
        _run(name, ", ".join(artifacts), goal)
    found = digest_of(into)
    if found != digest:
        raise ServerUnavailable(
            f"{name}: the jars that Maven fetched have the digest {found}, expected {digest}; they were removed. "
            f"Remove {_repository()} and try again; look at the repository that Maven is set up to use if it happens "
            "again."
        )


def digest_of(folder: Path) -> str:
    """One SHA-256 over the names and digests of a folder's files: that of what `sha256sum *` prints in it."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir(), key=lambda path: path.name)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _run(name: str, wanted: str, arguments: Sequence[str]) -> None:
    argv = [str(java.maven()), "--batch-mode", "--quiet", f"-Dmaven.repo.local={_repository()}", *arguments]
    environment = {**os.environ, "JAVA_HOME": str(java.home())}
    # Maven 3 does not share its local repository with another process that writes to it.
    with locked(_repository().with_name(".maven-repository.lock")):
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ServerUnavailable(
            f"{name}: Maven could not fetch {wanted} (exit code {done.returncode}):\n"
            f"{done.stdout[-2000:]}{done.stderr[-2000:]}\nCheck that Maven reaches its repository, then try again."
        )


def _repository() -> Path:
    return cache_directory() / "maven-repository"


def _pom(artifacts: Sequence[str], without: Sequence[str]) -> str:
    excluded = "".join(f"<exclusion>{_coordinates(one)}</exclusion>" for one in without)
    dependencies = "".join(
        f"<dependency>{_coordinates(one)}<exclusions>{excluded}</exclusions></dependency>" for one in artifacts
    )
    return (
        f"<project><modelVersion>4.0.0</modelVersion>{_coordinates('viewtail:stack:1')}"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def _coordinates(artifact: str) -> str:
    names = ("groupId", "artifactId", "version")
    return "".join(f"<{name}>{escape(value)}</{name}>" for name, value in zip(names, artifact.split(":"), strict=False))
