"""What stack/ fetches beside servers: Helm, and other Pythons."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack import helm, python
from stack.errors import ServerUnavailable


def test_a_python_that_debian_does_not_have_is_refused_with_those_that_it_has() -> None:
    with pytest.raises(ServerUnavailable, match=r"has no Python 3\.9, only 3\.13 and 3\.14; name the path"):
        python.install("3.9")


@pytest.mark.parametrize("version", [None, "go1.19.8"])
def test_helm_is_built_with_the_go_of_debian_where_the_machine_has_none_that_can(
    version: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if version is not None:
        (tmp_path / "go").write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
        (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("VIEWTAIL_STACK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ServerUnavailable, match="go: this machine has no apt-get and no dpkg"):
        helm.install()
    assert not helm_folders(tmp_path / "cache")


def test_a_helm_of_other_sources_is_refused_and_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIEWTAIL_STACK_CACHE", str(tmp_path / "cache"))
    said = f"{tmp_path}/helm: go1.26.0\\n\\tpath\\tx\\n\\tmod\\t{helm.MODULE}\\t{helm.VERSION}\\th1:other=\\n"
    (tmp_path / "go").write_text(
        f'#!/bin/sh\ncase "$*" in version) echo go version go1.26.0 linux/amd64;; version*) printf "{said}";; esac\n'
    )
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ServerUnavailable, match=f"{helm.VERSION} h1:other=, expected {helm.VERSION} h1:n1if5"):
        helm.install()
    assert not helm_folders(tmp_path / "cache")


def helm_folders(cache: Path) -> list[Path]:
    return list(cache.glob("*helm*/"))
