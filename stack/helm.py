"""Helm, built with Go from the Go module proxy: it lints and renders the chart in deploy/helm.

Nothing of it is a server. The module's checksum is pinned here, and with it those versions of what it needs, whose
checksums Go compares with its public database.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from . import archives
from .errors import ServerUnavailable
from .places import install_once, progress

MODULE = "helm.sh/helm/v3"
VERSION = "v3.22.0"
CHECKSUM = "h1:n1if5iQgHYsujPAcO5oonH/KiSNUmqmUF0iGVjSF3AU="
_OLDEST_GO = (1, 26)  # what the module's go.mod asks for
_KUBERNETES = ("1", "37")  # that of the module's k8s.io/api; Helm's own Makefile tells it the program so, too
_LINKED = " ".join(
    f"-X {MODULE}/pkg/{package}.k8sVersion{part}={number}"
    for package in ("chartutil", "lint/rules")
    for part, number in zip(("Major", "Minor"), _KUBERNETES, strict=True)
)


def install() -> Path:
    """The program helm; built on first use (about 150 MB of sources, some 75 s on two cores)."""
    return install_once(f"helm-{VERSION}", _build) / "helm"


def _build(into: Path) -> None:
    go = _go()
    progress(f"helm: building {VERSION} with Go ...")
    sources = into / "sources"  # of the modules, and what the compiler keeps: nobody needs them again
    environment = {
        **os.environ,
        "GOBIN": str(into),
        "GOMODCACHE": str(sources / "modules"),
        "GOCACHE": str(sources / "compiled"),
        "GOFLAGS": "-mod=mod -modcacherw -trimpath",
        "CGO_ENABLED": "0",
    }
    argv = [go, "install", f"-ldflags=-s -w {_LINKED}", f"{MODULE}/cmd/helm@{VERSION}"]
    done = subprocess.run(argv, cwd=into, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ServerUnavailable(
            f"helm: `go install {argv[-1]}` failed with exit code {done.returncode}:\n{done.stderr[-2000:].strip()}\n"
            "Check that Go reaches its module proxy (`go env GOPROXY`), then try again."
        )
    _check(go, into / "helm")
    shutil.rmtree(sources)


def _check(go: str, program: Path) -> None:
    done = subprocess.run([go, "version", "-m", str(program)], capture_output=True, text=True, check=True)
    found = re.search(rf"^\s*mod\s+{re.escape(MODULE)}\s+(\S+)\s+(\S+)$", done.stdout, re.MULTILINE)
    if found is None or found.groups() != (VERSION, CHECKSUM):
        raise ServerUnavailable(
            f"helm: Go built it from {MODULE} {' '.join(found.groups()) if found else 'without a checksum'}, expected "
            f"{VERSION} {CHECKSUM}; it was removed. Look at the module proxy that Go is set up to use."
        )


def _go() -> str:
    """The machine's Go, where it is new enough, else Debian's (48 MB)."""
    go = shutil.which("go")
    said = subprocess.run([go, "version"], capture_output=True, text=True).stdout if go else ""
    version = re.search(r"go(\d+)\.(\d+)", said)
    if go is not None and version is not None and (int(version[1]), int(version[2])) >= _OLDEST_GO:
        return go
    return str(install_once("go", _unpack_go) / "usr/lib/go/bin/go")


def _unpack_go(into: Path) -> None:
    archives.unpack("go", ["golang-go"], into, archives.NEWEST_SUITE)
