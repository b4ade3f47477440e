"""`viewtail lint` without a server: what it prints in each form, its exit codes, its settings, and what it refuses."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from viewtail.main import _main
from viewtail.operations.lint.choosing import RULES

DUMP = """CREATE TABLE `customer` (
  `id` int NOT NULL COMMENT 'Its number',
  `email` varchar(60) DEFAULT NULL COMMENT 'For, 100% of, invoices',
  PRIMARY KEY (`id`)
) ENGINE=InnoDB COMMENT='Who buys';
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "views", raising=False)
    (tmp_path / "dump.sql").write_text(DUMP)
    return tmp_path


def linted(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = _main(["lint", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_schema_in_which_nothing_is_found_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert linted(capsys, "--schema", "dump.sql") == (0, "nothing found\n", "")


def test_a_finding_is_printed_with_its_place_and_what_to_do(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "new.sql").write_text("\nALTER TABLE customer\n  DROP COLUMN email;\n")
    code, out, _ = linted(capsys, "--schema", "dump.sql", "--database", "shop", "new.sql")
    assert code == 1
    assert out == (
        "new.sql:2: VT404 error: shop.customer.email: the column is dropped in one step\n"
        "    rename it first: RENAME COLUMN email TO email_dropped; drop it later\n\n"
        "1 error, 0 warnings; docs/lint.md says why\n"
    )


def test_warnings_alone_exit_0_unless_they_are_to_count(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "new.sql").write_text("ALTER TABLE customer ADD COLUMN note TEXT NULL;")
    assert linted(capsys, "--schema", "dump.sql", "new.sql")[0] == 0
    assert linted(capsys, "--schema", "dump.sql", "--strict", "new.sql")[0] == 1
    (folder / "viewtail.toml").write_text("[lint]\nstrict = true\n")
    assert linted(capsys, "--schema", "dump.sql", "new.sql")[0] == 1
    (folder / "viewtail.toml").write_text('[lint]\nstrict = true\nignore = ["VT201:customer.note"]\n')
    assert linted(capsys, "--schema", "dump.sql", "new.sql") == (0, "nothing found\n", "")


def test_settings_choose_rules_and_the_command_line_goes_on_from_there(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "viewtail.toml").write_text('[lint]\nselect = ["VT1"]\nignore = ["VT102"]\n')
    (folder / "bad.sql").write_text("CREATE TABLE Users (id INT)")

    def found(*arguments: str) -> list[str]:
        _, out, _ = linted(capsys, "--schema", "bad.sql", "--json", *arguments)
        return [finding["code"] for finding in json.loads(out)["findings"]]

    assert found() == ["VT101"]
    assert found("--ignore", "VT101") == []
    assert found("--select", "VT102", "--select", "VT3") == ["VT301"]


def test_a_statement_that_cannot_be_read_exits_2_and_the_rest_is_printed(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "new.sql").write_text("ALTER TABLE customer ADD COLUM x INT;\nDELETE FROM customer;")
    code, out, _ = linted(capsys, "--schema", "dump.sql", "new.sql")
    assert code == 2
    assert "new.sql:1: VT001 error: ALTER TABLE customer ADD COLUM x INT: " in out and "new.sql:2: VT408" in out


def test_a_change_of_a_table_of_an_unknown_database_is_not_passed_over(
    capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    (folder / "dump.sql").write_text(f"USE shop;\n{DUMP}")
    (folder / "new.sql").write_text("ALTER TABLE customer MODIFY email VARCHAR(1) NOT NULL COMMENT 'X';")
    code, out, _ = linted(capsys, "--schema", "dump.sql", "new.sql")
    assert code == 1 and out.startswith("new.sql:1: VT409 error: customer: ")
    code, out, _ = linted(capsys, "--schema", "dump.sql", "--database", "shop", "new.sql")
    assert code == 1 and "VT406" in out and "VT409" not in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--schema", "missing.sql"], "missing.sql: No such file"),
        (["--schema", "dump.sql", "missing.sql"], "missing.sql: No such file"),
        (["--schema", "binary.sql"], "binary.sql: it is no text in UTF-8"),
        (["--schema", "dump.sql", "--select", "VT999"], "VT999 is no rule"),
        (["--schema", "dump.sql", "--ignore", "E501"], "E501 is no rule"),
        (["--schema", "dump.sql", "--format", "xml"], "xml"),
        ([], "--database"),
        (["--database", "shop"], "the address of the source is not set"),
        (["silent.sql", "--schema", "dump.sql"], "silent.sql:1: viewtail: ignore: VT0 is no rule"),
    ],
)
def test_what_cannot_work_is_misuse(
    capsys: pytest.CaptureFixture[str], folder: Path, arguments: list[str], said: str
) -> None:
    (folder / "binary.sql").write_bytes(b"\xff\xfe\x00")
    (folder / "silent.sql").write_text("SELECT 1; -- viewtail: ignore VT0")
    code, _, err = linted(capsys, *arguments)
    assert code == 2 and said in err


def test_a_rule_that_is_none_is_refused_in_the_settings_too(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "viewtail.toml").write_text('[lint]\nignore = ["VT77"]\n')
    code, _, err = linted(capsys, "--schema", "dump.sql")
    assert code == 2 and "VT77 is no rule" in err


def test_the_standard_input_can_be_a_migration(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"DELETE FROM customer")))
    code, out, _ = linted(capsys, "--schema", "dump.sql", "-")
    assert code == 1 and out.startswith("standard input:1: VT408 error: DELETE: ")


def test_an_empty_dump_is_a_schema_without_tables(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "empty.sql").write_text("")
    assert linted(capsys, "--schema", "empty.sql", "dump.sql")[0] == 0


def test_views_that_break_are_named(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "views.py").write_text(
        "from viewtail import Entity, IndexTable\n"
        "views = [IndexTable('by_email', Entity('shop.customer'), value='email')]\n"
    )
    (folder / "new.sql").write_text("ALTER TABLE customer RENAME COLUMN email TO email_dropped;")
    code, out, _ = linted(capsys, "--schema", "dump.sql", "new.sql")
    assert code == 1 and "VT501 error: mysql:by_email: column email was renamed to email_dropped" in out
    assert linted(capsys, "--schema", "dump.sql", "--ignore", "VT501", "new.sql")[0] == 0


def test_a_views_py_that_is_wrong_is_not_passed_over(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "views.py").write_text("views = [1]\n")
    assert linted(capsys, "--schema", "dump.sql")[0] == 2


def test_github_gets_annotations_with_its_escapes(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    table = "CREATE TABLE Bad (id INT NOT NULL PRIMARY KEY COMMENT 'X') COMMENT 'Y'"
    (folder / "a,b.sql").write_text(f"{table};\nDELETE FROM x")
    code, out, _ = linted(capsys, "--schema", "dump.sql", "--format", "github", "a,b.sql")
    begin = "::error file=a%2Cb.sql,line="
    first, second = out.splitlines()
    assert code == 1
    assert first == f"{begin}1,title=VT101 not-snake-case::Bad: the table's name is not in snake_case. call it bad"
    assert second.startswith(f"{begin}2,title=VT408 unbounded-change::DELETE: it has neither a WHERE")


def test_sarif_names_every_rule_and_the_place_of_each_finding(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "new.sql").write_text("SELECT 1;\nDELETE FROM customer;\nCALL x();")
    code, out, _ = linted(capsys, "--schema", "dump.sql", "--format", "sarif", "new.sql")
    log: dict[str, Any] = json.loads(out)
    assert code == 2 and log["version"] == "2.1.0" and log["$schema"].endswith("sarif-2.1.0.json")
    (run,) = log["runs"]
    known = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert known == [*(rule.code for rule in RULES), "VT001"]
    first, second = run["results"]
    assert (first["ruleId"], first["level"], second["ruleId"]) == ("VT408", "error", "VT001")
    (location,) = first["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "new.sql"},
        "region": {"startLine": 2},
    }
    assert all(result["ruleId"] in known and result["message"]["text"] for result in run["results"])
