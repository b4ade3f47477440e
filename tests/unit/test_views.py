"""Loading views.py: every fault of the user's is one message with file and line."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from projectors.stores.index_tables.views import IndexTable
from projectors.views import Entity
from stack.places import CHECKOUT
from viewtail import declarations
from viewtail.changes.errors import DeclarationError
from viewtail.settings import Settings
from viewtail.shards import Target
from viewtail.supervisor import _Child

GOOD = """
from viewtail import Entity, IndexTable, RedisHash
user = Entity("shop.user")
views = [IndexTable("i", user, value="email"), RedisHash("i", user, fields=["email"])]
"""


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory, and no module `views` from another test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("views", "other"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()


def load(text: str, name: str = "views:views") -> list[str]:
    Path("views.py").write_text(text)
    importlib.invalidate_caches()
    try:
        return [view.id for view in declarations.load(name)]
    finally:
        sys.modules.pop("views", None)


def test_where_every_view_was_taken_out_they_can_be_forgotten() -> None:
    Path("emptied.py").write_text("views = []")
    assert declarations.all_ids(Settings(views="emptied:views")) == set()


def test_views_are_loaded_from_the_working_directory() -> None:
    assert load(GOOD) == ["mysql:i", "redis:i"]


def test_a_tuple_of_views_and_another_attribute_are_taken() -> None:
    assert load(GOOD.replace("views = [", "mine = (").replace("])]", "]))"), "views:mine") == [
        "mysql:i",
        "redis:i",
    ]


def test_views_can_be_in_a_package() -> None:
    Path("deep").mkdir()
    Path("deep/__init__.py").write_text("")
    Path("deep/mine.py").write_text(GOOD)
    importlib.invalidate_caches()
    assert len(declarations.load("deep.mine:views")) == 2


OUR_NAMES = ("offsets", "ingest", "projectors")


@pytest.mark.parametrize("first_on_the_path", [True, False])
def test_a_package_of_the_users_called_like_ours_never_shadows_ours(first_on_the_path: bool) -> None:
    for name in OUR_NAMES:
        Path(name).mkdir()
        Path(name, "__init__.py").write_text("raise RuntimeError('the wrong one')")
    Path("views.py").write_text(GOOD)
    program = (
        "import viewtail.process, viewtail.main; from viewtail import declarations;"
        "print([view.id for view in declarations.load('views:views')])"
    )
    path = os.pathsep.join([str(Path.cwd()), str(CHECKOUT)] if first_on_the_path else [str(CHECKOUT)])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "['mysql:i', 'redis:i']\n", done.stderr


def test_a_worker_does_not_take_the_users_folders_for_viewtail_or_for_pythons_modules() -> None:
    for name in ("viewtail", "json"):
        Path(name).mkdir()
        Path(name, "__init__.py").write_text("raise RuntimeError('the wrong one')")
    Path("viewtail.toml").write_text("[source]\nno_such_setting = 1")
    child = _Child(Target(Settings), "mysql", None)
    child.start()
    assert child.process is not None
    assert child.process.wait(30) == DeclarationError.exit_code == 2, "it came as far as the settings"


@pytest.mark.parametrize(
    ("files", "views", "path"),
    [
        ({"ingest/__init__.py": "x = 1"}, "from ingest import x", "ingest"),
        ({"projectors.py": "x = 1"}, "import projectors", "projectors.py"),
        ({"offsets/eu.py": "x = 1"}, "from offsets.eu import x", "offsets"),
        ({"offsets.py": "x = 1", "mine.py": "import offsets"}, "import mine", "offsets.py"),
        ({"offsets.py": "x = 1"}, "def f(row):\n    import offsets", "offsets.py"),
    ],
    ids=["package", "module", "folder", "through another", "in a function"],
)
def test_an_import_of_the_users_that_would_get_ours_is_refused_and_named(
    files: dict[str, str], views: str, path: str
) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    taken = path.removesuffix(".py")
    with pytest.raises(DeclarationError, match=f"^{path}: views imports it, but viewtail has .* called {taken} "):
        load(f"{views}\n{GOOD}")


MINE_FIRST = "import offsets, viewtail"
OURS_FIRST = "import viewtail; from viewtail import IndexTable; import offsets; print('OffsetStore' in vars(offsets))"


@pytest.mark.parametrize(
    ("code", "out", "told"),
    [
        (MINE_FIRST, "", "viewtail has a package called offsets itself, and this process has imported another one: "),
        (OURS_FIRST, "True", ""),
    ],
    ids=["the user's first", "viewtail's first"],
)
def test_a_program_with_a_module_of_a_name_of_ours_is_told_so_or_gets_ours(code: str, out: str, told: str) -> None:
    Path("offsets.py").write_text('"""mine"""')
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{CHECKOUT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout.strip(), bool(done.returncode)) == (out, bool(told)), done.stderr
    assert told in done.stderr


@pytest.mark.parametrize("name", ["changes", "servers", "operations"])
def test_a_program_may_have_packages_of_other_names_of_ours(name: str) -> None:
    Path(f"{name}.py").write_text("x = 'mine'")
    environment = {**os.environ, "PYTHONPATH": f"{Path.cwd()}{os.pathsep}{CHECKOUT}"}
    code = f"import viewtail.main, viewtail.{name}, {name}; print({name}.x)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "mine\n"


REFUSED = [
    ("", "views:views", "views.py: there is no 'views' in it; write views = [...]"),
    ("viewz = []", "views:views", "did you mean viewz?"),
    ("views = []", "views:views", "views.py: views is empty"),
    ("views = 3", "views:views", "must be a list of views, not a value of type int"),
    ("views = {}", "views:views", "must be a list of views, not a value of type dict"),
    ("views = ['x', 2]", "views:views", "views.py: views[0] is a value of type str, not a view"),
    ("from viewtail import IndexTable\nviews = [IndexTable]", "views:views", "[0] is the class IndexTable, not"),
    ("from viewtail import Entity\nviews = [Entity('a.b')]", "views:views", "views[0] is a value of type Entity"),
    (GOOD + "views = [views[0], views[0]]", "views:views", "two views are called mysql:i"),
    ("x = 1\nviews = [", "views:views", "views.py:2: '[' was never closed"),
    ("x = 1\n  y = 2", "views:views", "views.py:2: unexpected indent"),
    ("import nosuchmodule", "views:views", "views.py:1: ModuleNotFoundError: No module named 'nosuchmodule'"),
    ("from viewtail import Topick", "views:views", "views.py:1: ImportError: cannot import name 'Topick'"),
    ("\n\nviews = [1 / 0]", "views:views", "views.py:3: ZeroDivisionError: division by zero"),
    ("import sys\nsys.exit(3)", "views:views", "views.py:2: SystemExit: 3"),
    ("def f():\n    return x\nviews = f()", "views:views", "views.py:2: NameError: name 'x' is not defined"),
    ("from viewtail import Entity\n\nEntity('user')", "views:views", "views.py:3: Entity('user'): the table"),
    ("", "other:views", "there is no module other"),
    ("", "views.deep:views", "there is no module views.deep"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "name", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_a_views_py_that_cannot_be_loaded_is_told_with_its_place(text: str, name: str, message: str) -> None:
    with pytest.raises(DeclarationError) as refusal:
        load(text, name)
    assert message in str(refusal.value)
    assert refusal.value.__cause__ is None
    assert "Traceback" not in str(refusal.value)


def test_a_helper_module_of_the_users_is_named_with_its_line() -> None:
    Path("other.py").write_text("x = 1\ny = x + 'a'\n")
    with pytest.raises(DeclarationError, match=r"other\.py:2: TypeError"):
        load("import other")


def test_declarations_are_equal_by_value_and_frozen() -> None:
    entity = Entity("shop.user", key="id")
    assert IndexTable("i", entity, value="a") == IndexTable("i", Entity("shop.user", key=["id"]), value=["a"])
    with pytest.raises(AttributeError):
        entity.table = "x"  # type: ignore[misc]
