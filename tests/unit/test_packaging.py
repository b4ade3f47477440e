"""The wheel holds the program and nothing else: every package imports where there is no checkout."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from stack.places import CHECKOUT

PACKAGES = ("offsets", "ingest", "projectors", "viewtail")
IMPORT_EVERYTHING = f"""
import importlib, pkgutil
for name in {PACKAGES!r}:
    package = importlib.import_module(name)
    print(name, package.__file__)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(CHECKOUT))
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_packages_and_no_others(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == set(PACKAGES)
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
        sources = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / package).rglob("*.py")}
        assert sources <= set(names)
    stack = {f"viewtail/demo/{path.relative_to(CHECKOUT)}" for path in (CHECKOUT / "stack").glob("*.py")}
    assert {*stack, "viewtail/demo/cities.csv", "viewtail/demo/docker-compose.yml"} <= set(names)
    assert wheel.stat().st_size < 2_000_000


def test_every_module_imports_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    python = _empty_environment(tmp_path / "venv")
    pip = (sys.executable, "-m", "pip", "--python", str(python))
    _run(*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel))
    _borrow_dependencies(tmp_path / "venv")
    origins = _run(str(python), "-c", IMPORT_EVERYTHING, cwd=tmp_path)
    assert len(origins.splitlines()) == len(PACKAGES)
    assert str(CHECKOUT) + "/" not in origins
    assert "Usage: viewtail" in _run(str(python.with_name("viewtail")), "--help", cwd=tmp_path)


def test_the_command_is_installed(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    assert "viewtail = viewtail.main:main" in archive.read(entry_points).decode()


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt", "requirements-build.txt"])
def test_requirements_are_pinned_with_hashes_and_name_no_address(name: str) -> None:
    text = (CHECKOUT / name).read_text()
    entries = [entry for entry in re.split(r"\n(?=\S)", text.replace("\\\n", " ")) if entry[:1] not in "#\n"]
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry
    assert "://" not in text
    assert "--index-url" not in text


def test_the_container_is_built_with_the_tools_that_build_the_wheel_here() -> None:
    entries = {name: _entries(name) for name in ("requirements-build.txt", "requirements-dev.txt")}
    assert {"build", "hatchling"} <= entries["requirements-build.txt"].keys()
    assert entries["requirements-build.txt"].items() <= entries["requirements-dev.txt"].items()


def _entries(name: str) -> dict[str, list[str]]:
    """By package: its version and hashes."""
    text = re.sub(r"^ *#.*\n", "", (CHECKOUT / name).read_text(), flags=re.MULTILINE)
    entries = [entry.split() for entry in text.replace("\\\n", " ").splitlines()]
    return {words[0].partition("==")[0]: words for words in entries if words}


def _empty_environment(directory: Path) -> Path:
    venv.create(directory)  # without pip, which would be half of the time
    return directory / "bin/python"


def _borrow_dependencies(directory: Path) -> None:
    # A line of a .pth file adds that folder alone: the .pth in it that names the checkout is not followed.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    target = directory / "lib" / version / "site-packages" / "dependencies.pth"
    target.write_text(sysconfig.get_path("purelib") + "\n")


def _run(*argv: str, cwd: Path | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(argv[:4])}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
