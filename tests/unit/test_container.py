"""The container builds: what Dockerfile copies is in the build context that .dockerignore leaves, and it is all of the
packages. README starts what docker-compose.yml has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from stack.places import CHECKOUT
from tests.support.dockerfile import Build, context, is_sent, stages

PYPROJECT: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
PACKAGES: list[str] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
PAGES = ("README.md", "docs/deployments.md", "docs/servers.md", "docker-compose.yml")


def wheel(folder: Path, out: Path) -> set[str]:
    argv = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(folder)]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    (built,) = out.glob("*.whl")
    return {name for name in zipfile.ZipFile(built).namelist() if ".dist-info/" not in name}


def test_the_container_is_built_of_all_files_of_the_packages(tmp_path: Path) -> None:
    build = Build(tmp_path / "root", Path(sys.executable), {}, context())
    (first, _) = stages((CHECKOUT / "Dockerfile").read_text())
    build.carry_out(replace(first, steps=[step for step in first.steps if step.name != "RUN"]))
    assert wheel(tmp_path / "root/build", tmp_path / "in") == wheel(CHECKOUT, tmp_path / "of")


def test_what_is_sent_to_the_build_follows_the_rules_of_docker() -> None:
    patterns = [("*", False), ("kept", True), ("some/inner", True), ("**/__pycache__", False)]
    assert is_sent("kept/a/b.py", patterns) and is_sent("some/inner/file", patterns)
    for name in ("other.py", "keptx/a.py", "some/else", "kept/__pycache__/a.pyc", "__pycache__/a", "x/kept/a"):
        assert not is_sent(name, patterns), name


def test_no_package_that_is_imported_is_left_out_of_what_is_installed() -> None:
    folders = {path.name for path in CHECKOUT.iterdir() if (path / "__init__.py").exists()}
    imported = {name for package in PACKAGES for name in imports(CHECKOUT / package)}
    assert imported & folders == {*PACKAGES, "stack"}  # the wheel has it as viewtail/demo/stack
    tools = PYPROJECT["tool"]
    for named in (
        tools["importlinter"]["root_packages"],
        [
            one
            for one in tools["hatch"]["build"]["targets"]["sdist"]["include"]
            if (CHECKOUT / one / "__init__.py").exists() and one != "stack"
        ],
        [one for one in tools["mypy"]["packages"] if one != "stack"],
        [path.parent.name for path in (CHECKOUT / "stack/typing_markers").glob("*/py.typed")],
    ):
        assert sorted(named) == sorted(PACKAGES)


def imports(package: Path) -> set[str]:
    """The top-level names that its modules import."""
    found: set[str] = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    parsed: dict[str, Any] = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())["services"]
    return parsed


def test_every_docker_compose_command_that_is_written_names_services_and_profiles_that_there_are(
    services: dict[str, Any],
) -> None:
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    for page in PAGES:
        if not (CHECKOUT / page).exists():
            continue
        text = re.sub(r"\n#?", " ", (CHECKOUT / page).read_text())
        for command in re.findall(r"docker compose ([^`(]*)", text):
            named = re.findall(r"--profile (\S+)", command)
            assert set(named) <= profiles, (page, command)
            for service in re.findall(r"--scale (\w+)=", command):
                assert set(services[service]["profiles"]) & set(named), (page, command)


def test_readme_starts_viewtail_with_the_profile_that_it_is_under(services: dict[str, Any]) -> None:
    readme = (CHECKOUT / "README.md").read_text().replace("\n", " ")
    told = re.findall(r"`([^`]*docker compose [^`]*)`", readme)
    assert any(f"--profile {profile} up" in one for one in told for profile in services["viewtail"]["profiles"]), told
    (mount,) = services["viewtail"]["volumes"]
    assert mount.startswith("${VIEWS:-")
    assert all("VIEWS=" in one for one in told if "--profile viewtail" in one)
