"""docs/lint.py finds what it is there to find, and the pages have none of it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def _lint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_lint", CHECKOUT / "docs/lint.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_lint"] = module
    spec.loader.exec_module(module)
    return module


LINT = _lint()
PAGES = LINT.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_a_page_has_no_findings(page: Path) -> None:
    assert list(LINT.findings(page)) == []


def test_all_pages_for_readers_are_checked() -> None:
    names = {str(page.relative_to(CHECKOUT)) for page in PAGES}
    assert {"README.md", "docs/operations.md", "docs/howto/repair.md", "ingest/README.md"} <= names
    assert "viewtail/operations/README.md" in names


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[there](other.md)", []),
        ("[there](other.md#a-part)", []),
        ("[here](#the-top)", []),
        ("[elsewhere](https://example.org/x#y)", []),
        ("[nowhere](none.md)", ["links to none.md, which is not there"]),
        ("[nowhere](other.md#b)", ["links to other.md#b, and other.md has no such heading"]),
        ("[nowhere](#b)", ["links to #b, and page.md has no such heading"]),
    ],
)
def test_links_lead_to_a_file_and_a_heading(text: str, found: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# The `top`\n\n{text}\n")
    (tmp_path / "other.md").write_text("## A part\n")
    assert list(LINT.findings(page)) == found


def test_files_that_a_readme_names_are_in_its_package_or_in_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/there.py").touch()
    text = "`there.py`, `inner/there.py`, `inner/`, `docs/lint.py`, `*/there.py`, the user's `views.py`, `a.name`"
    assert list(LINT.missing_files(tmp_path, text)) == []
    (found,) = LINT.missing_files(tmp_path, "`there.py`, and `inner/gone.py`")
    assert found == "names `inner/gone.py`, which is not there"
    (found,) = LINT.missing_files(tmp_path, "`inner/`, and `other/`")
    assert found == "names `other/`, which is not there"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```console\n$ viewtail replay VIEW --parked\nviewtail says this\n```", "viewtail has no command says"),
        ("    viewtail status --watch    what is kept --now\n", None),
        ("    viewtail status --wacht    what is kept\n", "viewtail status has no option --wacht"),
        ("    viewtail status\n    viewtail stauts\n", "viewtail has no command stauts"),
        ("Say `viewtail dead-letters show VIEW KEY | less`.", None),
        ("Say `viewtail dead-letters shwo VIEW KEY`.", "viewtail dead-letters has no command shwo"),
        ("Say `viewtail rebuild redis:user --within=600`.", None),
        ("Say `viewtail rebuild redis:user --whithin=600`.", "viewtail rebuild has no option --whithin=600"),
        ("viewtail keeps views, --really.", None),
    ],
)
def test_commands_and_options_in_code_exist(text: str, found: str | None) -> None:
    findings = list(LINT.wrong_commands(f"# Page\n\n{text}\n"))
    assert [finding.partition(": ")[2] for finding in findings] == ([] if found is None else [found])


def test_an_example_that_is_no_python_is_found() -> None:
    assert list(LINT.broken_examples("```python\nviews = [1]\n```\n")) == []
    (found,) = LINT.broken_examples("```python\nx = 1\nviews = [\n```\n")
    assert "at its line 2" in found


def test_a_page_that_is_too_large_is_found_and_the_reference_of_views_may_be_larger() -> None:
    text = "ä" * 15_001
    (found,) = LINT.too_large("operations.md", text)
    assert "30,002 bytes" in found
    assert list(LINT.too_large("views.md", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "The command is told why.",
        "The view is filled\nanew.",
        "The log tells of it.",
        "It stays, because nobody can tell.",
        "It asks nobody who they are.",
        "It stays halted, whatever became of its table.",
        "It stops. Of a view\nnothing is filled.",
        "- Of such tables it reads the rows.",
        "Views are kept. So is the topic.",
        "It counts as a row. That is not so elsewhere.",
    ],
)
def test_a_phrase_that_needs_a_second_reading_is_found(text: str) -> None:
    assert len(list(LINT.riddles(f"# Page\n\n{text}\n"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "The log says: `it is told anew`.",
        "    Of a view: told\n",
        "```\nSo is it told anew\n```",
        "So a large view needs time. A part of a table is enough.",
    ],
)
def test_code_and_plain_sentences_are_left_alone(text: str) -> None:
    assert list(LINT.riddles(f"# Page\n\n{text}\n\nThe end.\n")) == []
