"""What stack/ does where the machine has no Java: Debian's, made to run below a folder that can be moved."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stack import archives, elasticsearch, java, maxwell
from stack.errors import ServerUnavailable


def test_no_fit_java_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_archive() -> Path:
        raise ServerUnavailable("no archive")

    monkeypatch.setattr(java, "_homes_of_the_machine", lambda: iter([Path("/nowhere")]))
    monkeypatch.setattr(java, "_unpacked_home", no_archive)
    with pytest.raises(ServerUnavailable, match=r"Install a full JDK .* set\s+ES_JAVA_HOME(.|\n)*no archive"):
        java.home()


def test_the_java_named_in_the_environment_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin/java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho java.base@21.0.1; echo jdk.incubator.vector@21.0.1\n")
    program.chmod(0o755)
    monkeypatch.setenv("ES_JAVA_HOME", str(tmp_path))
    assert java.home() == tmp_path


@pytest.mark.parametrize("modules", ["java.base@17.0.1\njdk.incubator.vector@17.0.1", "java.base@25"])
def test_an_old_or_cut_down_java_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, modules: str) -> None:
    program = tmp_path / "bin/java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '{modules}'\n")
    program.chmod(0o755)
    fit = tmp_path / "fit"
    monkeypatch.setattr(java, "_homes_of_the_machine", lambda: iter([tmp_path]))
    monkeypatch.setattr(java, "_unpacked_home", lambda: fit)
    with pytest.raises(ServerUnavailable, match="does not run here"):
        java.home()


def test_absolute_links_of_a_package_stay_inside_the_prefix_when_it_moves(tmp_path: Path) -> None:
    prefix = tmp_path / "before"
    (prefix / "etc").mkdir(parents=True)
    (prefix / "etc/settings").write_text("kept")
    (prefix / "usr/lib").mkdir(parents=True)
    (prefix / "usr/lib/settings").symlink_to("/etc/settings")
    archives.relink(prefix)
    moved = prefix.rename(tmp_path / "after")
    assert (moved / "usr/lib/settings").read_text() == "kept"


def test_java_loads_the_class_that_maxwell_lacks(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p/Lost.class").write_bytes(maxwell._empty_class("p/Lost"))
    argv = [str(java.home() / "bin/java"), "-cp", str(tmp_path), "p.Lost"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert "Main method not found in class p.Lost" in done.stderr


def test_an_archive_that_is_not_the_pinned_one_is_refused_and_removed(tmp_path: Path) -> None:
    archive = tmp_path / "elasticsearch.zip"
    archive.write_bytes(b"something else")
    with pytest.raises(ServerUnavailable, match="SHA-256"):
        elasticsearch._require_digest(archive)
    assert not archive.exists()
