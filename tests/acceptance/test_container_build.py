"""The Dockerfile's steps, carried out with a real pip: the program that comes out of them starts.

No container engine runs here: tests/support/dockerfile.py says what that leaves out.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stack import python
from stack.places import CHECKOUT
from tests.support.dockerfile import Build, Stage, context, stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
OF_PIP = ("PIP_", "SSL_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "no_proxy", "HOME")


@pytest.fixture(scope="module")
def steps() -> list[Stage]:
    return stages((CHECKOUT / "Dockerfile").read_text())


@pytest.fixture(scope="module")
def image(steps: list[Stage], tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The last stage, built."""
    folder, built = tmp_path_factory.mktemp("container"), {}
    reaching_pypi = {name: value for name, value in os.environ.items() if name.startswith(OF_PIP)}
    for number, stage in enumerate(steps):
        assert stage.base == f"python:{python.NEWEST}-slim"  # the Python that the wheel is tried with, too
        build = Build(folder / "root", python.install(), built, context(), environment={**reaching_pypi})
        build.carry_out(stage)
        if number < len(steps) - 1:
            built[stage.name] = (folder / "root").rename(folder / stage.name)
    return build


def test_the_program_of_the_container_starts_with_every_client_and_nothing_that_built_it(
    image: Build, steps: list[Stage]
) -> None:
    (entrypoint,), (command,) = (map(json.loads, steps[-1].texts(name)) for name in ("ENTRYPOINT", "CMD"))
    said = image.command(*entrypoint, "--version")
    assert said.returncode == 0 and "viewtail 0." in said.stdout, said.stderr
    refused = image.command(*entrypoint, *command)
    assert refused.returncode == 2 and "views" in refused.stderr, refused.stderr  # no views.py is mounted
    clients = "import confluent_kafka, elasticsearch, jinja2, pymysql, redis, uvicorn, zstandard"
    assert image.command("python", "-c", clients).returncode == 0
    for builder in ("hatchling", "build", "pytest"):
        assert image.command("python", "-c", f"import {builder}").returncode == 1, builder
    at = image.command("python", "-c", "import viewtail; print(viewtail.__file__)").stdout
    assert at.startswith(f"{image.root}/opt/viewtail/lib/")
    assert image.command("pip", "check").returncode == 0


def test_the_container_is_nobody_in_particular_and_starts_where_the_views_are_mounted(image: Build) -> None:
    assert image.user == "viewtail" and image.workdir == "/views"
    assert (image.root / "opt/viewtail/bin/viewtail").stat().st_mode & 0o005 == 0o005  # that user may start it


def test_a_file_that_is_not_sent_fails_the_copy(tmp_path: Path) -> None:
    build = Build(tmp_path / "root", python.install(), {}, ["viewtail/__init__.py"])
    (stage,) = stages("FROM x\nCOPY viewtail viewtail\n# a comment\nCOPY tests \\\n  tests\n")
    with pytest.raises(AssertionError, match="'tests' is not in the build context"):
        build.carry_out(stage)
    assert (tmp_path / "root/viewtail/__init__.py").exists()
