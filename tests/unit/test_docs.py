"""What the documents say is so."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from prometheus_client import CollectorRegistry

from ingest import Margin
from projectors.binding import bind
from projectors.views import View
from viewtail import main, metrics
from viewtail.changes.tables import Column, Kind, Table

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
README = (CHECKOUT / "README.md").read_text()
REFERENCE = (CHECKOUT / "docs/reference.md").read_text()
RUNBOOKS = "".join(
    (CHECKOUT / f"docs/{name}.md").read_text() for name in ("operations", "changing-views", "deployments", "reference")
)
FAILURES = [CHECKOUT / "docs/failures.md", CHECKOUT / "docs/failures-views.md"]
MARGIN = Margin(left_s=1.0, keeps_s=2.0, limit="age")
EXAMPLE = CHECKOUT / "examples/shop/views.py"


def test_every_command_is_documented() -> None:
    commands = typer.main.get_command(main.app).commands  # type: ignore[attr-defined]
    assert {"run", "status", "replay"} <= set(commands)
    groups = {name: getattr(command, "commands", {}) for name, command in commands.items()}
    assert "redrive" in groups["dead-letters"]
    named = [*commands, *(f"{group} {name}" for group, members in groups.items() for name in members)]
    missing = [name for name in named if f"viewtail {name}" not in README + RUNBOOKS]
    assert missing == []


def test_the_settings_table_is_what_the_models_say() -> None:
    page = _script("settings_table")
    assert page.rewritten(REFERENCE) == REFERENCE, "run: python docs/settings_table.py"
    assert "`VIEWTAIL_SOURCE__URL`" in REFERENCE


def test_the_schema_of_the_helm_chart_has_the_settings_that_the_models_have() -> None:
    _script("settings_table")
    settings = importlib.import_module("chart_settings")
    schema = json.loads(settings.SCHEMA.read_text())
    assert settings.rewritten(schema) == schema, "run: python docs/settings_table.py"
    groups = schema["$defs"]["settings"]["properties"]
    assert "url" in groups["source"]["properties"] and "password" not in groups["source"]["properties"]


def test_the_page_of_lint_has_every_rule_as_its_data_says() -> None:
    page, rules = (CHECKOUT / "docs/lint.md").read_text(), _script("lint_rules")
    assert rules.PART.rewritten(page, rules.text()) == page, "run: python docs/lint_rules.py"
    assert all(f"### {rule.code} {rule.name}" in page for rule in rules.RULES)
    assert "| VT303 foreign-key | 22 | 6 | 11 |" in page, "docs/lint_verdicts.py writes what it finds elsewhere"


def test_the_metrics_table_names_every_metric_and_no_other() -> None:
    registry = CollectorRegistry()
    view = {"view": "mysql:v", "state": "filled", "filled": 1.0, "parked": 0, "proven_s": 1.0}
    told = {"state": "running", "backfills": [{"view": "mysql:v", "rows": 1}], "views": [view], "heard_at": 0.0}
    told |= {field: 1 for _, _, field, _ in metrics._FLEET}
    registry.register(metrics._Collector(lambda: {"mysql": told}, lambda: {"mysql": MARGIN}))
    served = {sample.name for metric in registry.collect() for sample in metric.samples}
    section = REFERENCE.partition("<!-- metrics -->")[2].partition("<!-- end of metrics -->")[0]
    assert set(re.findall(r"^\| `(viewtail_\w+)`", section, re.MULTILINE)) == served


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_the_readme_shows_the_example_as_it_is() -> None:
    (shown,) = re.findall(r"```python\n(from viewtail import .*?)```", README, re.DOTALL)
    assert shown == EXAMPLE.read_text()
    assert len(shown.splitlines()) <= 10


def test_the_example_runs() -> None:
    namespace: dict[str, Any] = {}
    exec(compile(EXAMPLE.read_text(), str(EXAMPLE), "exec"), namespace)
    views = namespace["views"]
    assert all(isinstance(view, View) for view in views)
    assert {view.store for view in views} == {"mysql", "redis", "elasticsearch", "kafka"}


def test_files_that_the_architecture_names_exist() -> None:
    text = (CHECKOUT / "docs/architecture.md").read_text()
    named = re.findall(r"`((?:offsets|ingest|projectors|viewtail|stack)/[\w/]*[\w.]*)`", text)
    assert len(named) > 20
    assert [name for name in named if not (CHECKOUT / name).exists()] == []


def test_each_decision_says_why_and_what_it_costs() -> None:
    decisions = (CHECKOUT / "docs/decisions.md").read_text().partition("## Dependencies")[0]
    rows = [line.strip("| ").split(" | ") for line in decisions.splitlines() if line.startswith("| ")]
    assert 15 < len(rows) <= 25  # smaller ones are in the READMEs of their packages
    assert [row for row in rows if len(row) != 3 or not all(row)] == []


def test_the_readme_leads_to_the_pages_for_users() -> None:
    pages = {page.name for page in PAGES[1:]}
    assert [name for name in sorted(pages) if f"(docs/{name})" not in README] == []


def test_the_home_page_leads_to_each_task() -> None:
    home, howto = (CHECKOUT / "docs/index.md").read_text(), CHECKOUT / "docs/howto"
    names = sorted(page.name for page in howto.glob("*.md"))
    assert len(names) >= 7
    assert [name for name in names if f"(howto/{name})" not in home] == []
    namespace: dict[str, Any] = {}
    exec(compile(re.findall(r"```python\n(.*?)```", home, re.DOTALL)[0], "docs/index.md", "exec"), namespace)
    assert all(isinstance(view, View) for view in namespace["views"])


def test_the_comparison_has_the_ratios_that_were_measured() -> None:
    page = " ".join((CHECKOUT / "docs/comparison.md").read_text().split())
    measured = (CHECKOUT / "docs/performance.md").read_text().partition("### Debezium ")[2]
    debezium, _, maxwell = measured.partition("### Maxwell ")

    def ratios(text: str, work: str, at_least_once: bool = False) -> list[float]:
        found = re.findall(rf"^\| {work}.*\| ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE)
        return [float(pair[at_least_once]) for pair in found]

    slow, fast = sorted(ratios(debezium, "drain of"))
    assert f"{slow:.1f} to {fast:.1f} times as many rows a second as Debezium" in page
    slow, fast = sorted(ratios(maxwell, "drain of"))
    assert f"{slow:.2f} to {fast:.2f} times as many as Maxwell" in page
    assert "By default viewtail's p99 is higher than Debezium's and Maxwell's" in page
    assert "viewtail's p99 is lower than both; Maxwell's p50 stays" in page
    for text in (debezium, maxwell):
        assert ratios(text, "commit to consumed, p99")[0] < 1 < ratios(text, "commit to consumed, p99", True)[0]
    assert (
        ratios(maxwell, "commit to consumed, p50", True)[0] < 1 < ratios(debezium, "commit to consumed, p50", True)[0]
    )
    assert "a quarter and two fifths of the memory" in page
    assert [round(ratios(text, "peak memory")[0], 1) for text in (debezium, maxwell)] == [4.0, 2.5]
    assert "more processor time than Maxwell, and where it delivers at least once less than either" in page
    assert ratios(maxwell, "share of a core")[0] < 1
    assert all(ratios(text, "share of a core", True)[0] > 1 for text in (debezium, maxwell))


def test_each_dependency_has_a_line_that_says_what_it_is_for() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    names = [re.split(r"[=<>~!\[ ]", wanted)[0] for wanted in project["dependencies"]]
    table = (CHECKOUT / "docs/decisions.md").read_text().partition("## Dependencies")[2]
    first_cells = " ".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))
    assert [name for name in names if name.lower() not in first_cells.lower()] == []


def test_pages_that_messages_and_alerts_name_exist_with_the_heading_that_they_name() -> None:
    packages = ("viewtail", "projectors", "ingest", "offsets", "deploy")
    files = [path for name in packages for path in (CHECKOUT / name).rglob("*") if path.suffix in (".py", ".yml")]
    named = [
        found
        for path in files
        for found in re.findall(r"docs/([\w-]+\.md)(?:, ([A-Z]\w+(?: \w+)*))?", path.read_text())
    ]
    assert len(named) > 20
    assert len([heading for _, heading in named if heading]) > 5
    for page, heading in named:
        text = (CHECKOUT / "docs" / page).read_text()
        assert not heading or re.search(rf"^#+ {heading}$", text, re.MULTILINE), (page, heading)


def _tests_by_name() -> dict[str, set[str]]:
    """The files that define each test, by its bare name."""
    files: dict[str, set[str]] = defaultdict(set)
    for path in (CHECKOUT / "tests").rglob("test_*.py"):
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE):
            files[name].add(str(path.relative_to(CHECKOUT)))
    return files


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, CHECKOUT / f"docs/{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tests_that_the_page_of_debezium_names_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (CHECKOUT / "tests/debezium-cases.md").read_text())
    assert len(named) > 20
    missing = [(file, test) for file, test in named if f"\ndef {test}(" not in (CHECKOUT / file).read_text()]
    assert missing == []


def test_the_tests_that_the_failures_name_exist() -> None:
    rows = [
        line
        for page in FAILURES
        for line in page.read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| What happens ")
    ]
    assert len(rows) > 200
    defined = _tests_by_name()
    for row in rows:
        named = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", row)
        assert named, row
        for file, test in named:
            assert len(defined[test]) == 1 or file in defined[test], (file, test, "names no test, or one of several")


@pytest.mark.parametrize("named", ["test_named", "tests/test_it.py::test_named"])
@pytest.mark.parametrize(
    ("body", "arguments", "code"),
    [
        ("assert True", [], 0),
        ("pytest.skip('not today')", [], 1),
        ("pytest.skip('not today')", ["tests"], 0),
        ("pytest.skip('not today')", ["-k", "other"], 0),
        ("assert True", ["-p", "xdist", "-n", "2"], 0),
        ("pytest.skip('not today')", ["-p", "xdist", "-n", "2"], 1),
        ("pytest.skip('not today')", ["-p", "xdist", "-n", "2", "tests"], 0),
    ],
    ids=[
        "passed",
        "skipped",
        "chosen tests",
        "chosen by name",
        *(f"{one} side by side" for one in ("passed", "skipped", "chosen")),
    ],
)
def test_a_full_run_fails_when_a_test_that_the_failures_name_was_skipped(
    body: str, arguments: list[str], code: int, named: str, tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "page.md").write_text(f"| x | y | `{named}` |\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\nfrom tests_support_promised import PromisedTests\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(PromisedTests(Path(__file__).with_name('page.md')))\n"
    )
    promised = (CHECKOUT / "tests/support/promised.py").read_text()
    (tmp_path / "tests_support_promised.py").write_text(promised)
    (tmp_path / "tests/test_it.py").write_text(
        f"import pytest\ndef test_named():\n    {body}\ndef test_other():\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert (named in done.stdout) == bool(code)


def test_the_page_on_documents_begins_with_ten_lines_that_work() -> None:
    page = (CHECKOUT / "docs/documents.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    assert len(example.splitlines()) == 10 and page.index("```python") < 250
    namespace: dict[str, Any] = {}
    exec(compile(example, "docs/documents.md", "exec"), namespace)
    names = {
        "order": "id user_id",
        "order_line": "id order_id line_no product_id amount",
        "product": "id title",
        "user": "id name",
    }

    def describe(schema: str, name: str) -> Table:
        columns = (Column(name=of, kind=Kind.INTEGER, declared="int", is_nullable=False) for of in names[name].split())
        return Table(schema=schema, name=name, columns=tuple(columns), primary_key=("id",))

    (view,) = bind(namespace["views"], describe)
    assert view.derived is not None and not [*view.derived.problems()]
    row = {"lines": [{"product": {"title": "Tea"}}], "customer": None, "total": Decimal("1.50")}
    assert view.view.document is not None
    assert view.view.document(row) == {"who": None, "titles": ["Tea"], "total": Decimal("1.50")}
