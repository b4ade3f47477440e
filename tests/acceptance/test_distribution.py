"""What users install: the wheel in an empty environment, with the clients that they ask for and no others.

Each Python that VIEWTAIL_TEST_PYTHONS names is tried, a path or a version that stack/ fetches; by default the one that
runs the tests, and the newest. `make dist` tries all that the machine has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stack import Server, python
from stack.places import CHECKOUT, cache_directory
from tests.support.asking import ask
from tests.support.running import addresses, wait_for

pytestmark = [pytest.mark.mysql, pytest.mark.slow, pytest.mark.timeout(900)]

PYTHONS = os.environ.get("VIEWTAIL_TEST_PYTHONS", f"{sys.executable} {python.NEWEST}").split()
VIEWS = """
from viewtail import Entity, IndexTable, SearchIndex, Topic

user = Entity("dist.user")
views = [IndexTable("user_by_email", user, value="email")]
searched = [SearchIndex("users", user, fields={"email": "text"})]
published = [Topic("dist.user", user)]
"""
ALL = "elasticsearch,kafka,serve"
IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
for name in ("offsets", "ingest", "projectors", "viewtail"):
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
print(len(sys.modules), "modules of Python", sys.version)
"""
NOBODY_THERE = {"VIEWTAIL_ELASTICSEARCH__URL": "http://127.0.0.1:9", "VIEWTAIL_KAFKA__URL": "kafka://127.0.0.1:9"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with wheel and sdist, as `make dist` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(CHECKOUT))
    return folder


@pytest.fixture(scope="module", params=PYTHONS)
def installed(request: pytest.FixtureRequest, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the commands of an environment that has viewtail without extras."""
    folder = tmp_path_factory.mktemp("empty")
    interpreter = str(python.install(request.param)) if request.param in python.VERSIONS else request.param
    run(interpreter, "-m", "venv", str(folder))
    if request.param in python.VERSIONS:
        assert f"Python {request.param}." in run(str(folder / "bin/python"), "-V")
    (wheel,) = dist.glob("*.whl")
    run(str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel))
    yield folder / "bin"
    shutil.rmtree(folder)


def run(*argv: str, cwd: Path | None = None, code: int = 0, **environment: str) -> str:
    given = {name: value for name, value in os.environ.items() if not name.startswith("VIEWTAIL_")}
    done = subprocess.run(
        argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={**given, **environment}
    )
    assert done.returncode == code, f"{' '.join(argv[:5])}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def commands() -> Iterator[str]:
    """Of all processes of the machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_text(errors="replace")


def test_the_demo_of_the_wheel_shows_what_it_has_clients_for_and_leaves_nothing_but_fetched_servers(
    installed: Path, tmp_path: Path
) -> None:
    """Before the next one: that installs the other clients."""
    folders = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    package = next(installed.parent.glob("lib/*/site-packages/viewtail"))
    before = {path for path in package.rglob("*") if path.suffix != ".pyc"}
    (tmp_path / "stack.py").write_text("raise AssertionError('a module of the user')\n")
    said = run(
        str(installed / "viewtail"),
        *("demo", "--yes"),
        cwd=tmp_path,
        **folders,
        VIEWTAIL_STACK_CACHE=str(cache_directory()),
    )
    assert "viewtail demo: 2 views, 600 rows: each equals its table" in said
    assert "Elasticsearch   is not shown: pip install 'viewtail[elasticsearch]'" in said
    (folder,) = re.findall(r"cd (\S+) &&", said)
    assert folder.startswith("cache/viewtail/demo-")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.name != "viewtail"] == []
    assert not (tmp_path / "home").exists()
    assert {path for path in package.rglob("*") if path.suffix != ".pyc"} - before <= {*package.rglob("__pycache__")}
    assert not [command for command in commands() if str(tmp_path) in command or str(installed) in command]


def test_an_environment_without_extras_has_no_client_that_nobody_asked_for_and_says_what_lacks(
    installed: Path, dist: Path, mysql_server: Server, tmp_path: Path
) -> None:
    viewtail, settings = str(installed / "viewtail"), {**addresses(mysql_server), **NOBODY_THERE}
    (tmp_path / "views.py").write_text(VIEWS)
    assert "viewtail 0." in run(viewtail, "--version")
    assert "Usage: viewtail" in run(viewtail, "--help", cwd=tmp_path)
    names = {line.partition("==")[0].lower() for line in run(str(installed / "pip"), "freeze").splitlines()}
    assert "pymysql" in names and not names & {"elasticsearch", "confluent-kafka", "starlette", "uvicorn", "httpx"}

    ask(mysql_server, "CREATE DATABASE IF NOT EXISTS dist")
    ask(mysql_server, "CREATE TABLE IF NOT EXISTS dist.user (id INT PRIMARY KEY, email VARCHAR(40))")
    assert " 0 failures" in run(viewtail, "check", cwd=tmp_path, **settings)
    for views, extra in (("searched", "elasticsearch"), ("published", "kafka")):
        said = run(viewtail, "run", cwd=tmp_path, code=2, **settings, VIEWTAIL_VIEWS=f"views:{views}")
        assert f"is not installed. Install it: pip install 'viewtail[{extra}]'" in said, said
        said = run(viewtail, "check", cwd=tmp_path, code=1, **settings, VIEWTAIL_VIEWS=f"views:{views}")
        assert said.count(f"pip install 'viewtail[{extra}]'") == 1 and "1 failure" in said, said
    (tmp_path / "entities.py").write_text("entities = []\n")
    assert "pip install 'viewtail[serve]'" in run(viewtail, "serve", cwd=tmp_path, code=2, **settings)

    (wheel,) = dist.glob("*.whl")
    run(str(installed / "pip"), "install", "--quiet", "--disable-pip-version-check", f"{wheel}[{ALL}]")
    for views in ("searched", "published"):
        said = run(viewtail, "check", cwd=tmp_path, code=1, **settings, VIEWTAIL_VIEWS=f"views:{views}")
        assert "not installed" not in said and "127.0.0.1:9" in said


def test_on_each_python_every_module_imports_and_a_view_is_filled_and_follows(
    installed: Path, dist: Path, mysql_server: Server, tmp_path: Path
) -> None:
    (wheel,) = dist.glob("*.whl")
    run(str(installed / "pip"), "install", "--quiet", "--disable-pip-version-check", f"{wheel}[{ALL}]")
    assert " modules of Python 3." in run(str(installed / "python"), "-c", IMPORT_EVERYTHING, cwd=tmp_path)

    for database in ("dist_new", "dist_new_views"):
        ask(mysql_server, f"DROP DATABASE IF EXISTS {database}")
    ask(mysql_server, "CREATE DATABASE dist_new")
    ask(mysql_server, "CREATE TABLE dist_new.user (id INT PRIMARY KEY, email VARCHAR(40), tags JSON, born DATE)")
    ask(mysql_server, "INSERT INTO dist_new.user VALUES (1, 'ada@example.org', '[1]', '1815-12-10')")
    viewtail, settings = str(installed / "viewtail"), {"VIEWTAIL_METRICS__PORT": "0", "VIEWTAIL_CONSOLE__PORT": "0"}
    settings["VIEWTAIL_MYSQL__URL"] = f"{mysql_server.url}/dist_new_views"
    run(viewtail, "init", "--source", f"{mysql_server.url}/dist_new", cwd=tmp_path)
    assert "dist_new.user" in (tmp_path / "views.py").read_text()
    (tmp_path / "views.py").write_text(VIEWS.replace("dist.user", "dist_new.user"))
    assert " 0 failures" in run(viewtail, "check", cwd=tmp_path, **settings)
    given = {name: value for name, value in os.environ.items() if not name.startswith("VIEWTAIL_")}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [viewtail, "run"], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**given, **settings}
        )
    try:
        index = "SELECT id FROM dist_new_views.user_by_email WHERE email = 'ada@example.org'"
        wait_for("the view is filled", lambda: ask(mysql_server, index) == [(1,)])
        ask(mysql_server, "INSERT INTO dist_new.user VALUES (2, 'grace@example.org', NULL, NULL)")
        later = index.replace("ada", "grace")
        wait_for("it follows", lambda: ask(mysql_server, later) == [(2,)])
        said = run(viewtail, "find", "user_by_email", "grace@example.org", cwd=tmp_path, **settings)
        assert "grace@example.org" in said
        process.terminate()
        assert process.wait(20) == 0, (tmp_path / "log").read_text()
    finally:
        process.kill()
        process.wait()


def test_pipx_runs_it_without_an_installation(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    places = {f"PIPX_{name}": str(tmp_path / name.lower()) for name in ("HOME", "BIN_DIR", "MAN_DIR")}
    pipx = (sys.executable, "-m", "pipx")
    said = run(*pipx, "run", "--spec", str(wheel), "viewtail", "--version", cwd=tmp_path, **places)
    assert "viewtail 0." in said
    run(*pipx, "install", "--quiet", f"viewtail[{ALL}] @ {wheel.as_uri()}", cwd=tmp_path, **places)
    assert "viewtail 0." in run(str(tmp_path / "bin_dir/viewtail"), "--version", cwd=tmp_path)
    assert "Usage: viewtail serve" in run(str(tmp_path / "bin_dir/viewtail"), "serve", "--help", cwd=tmp_path)


def test_the_sdist_builds_the_same_wheel_and_has_the_license(dist: Path, tmp_path: Path) -> None:
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"} <= names
    assert not any(name.startswith(("tests/", "bench/", ".")) and name != ".gitignore" for name in names), names
    (source,) = tmp_path.iterdir()
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "again"), str(source))
    (again,) = (tmp_path / "again").iterdir()
    assert again.name == wheel.name
