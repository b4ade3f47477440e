"""Prints what `viewtail lint` finds: as text, JSON, SARIF 2.1.0 (OASIS), or annotations of GitHub's workflows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from viewtail.changes.counting import counted
from viewtail.commands.output import print_json
from viewtail.operations.lint.choosing import RULES
from viewtail.operations.lint.linting import UNREAD, Finding

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def _print_text(findings: Sequence[Finding]) -> None:
    for finding in findings:
        place = f"{finding.file}:{finding.line}: " if finding.file else ""
        print(f"{place}{finding.code} {finding.level}: {finding.of}: {finding.why}")
        print(f"    {finding.instead}")
    errors = sum(finding.level == "error" for finding in findings)
    warnings = len(findings) - errors
    if findings:
        print(f"\n{counted(errors, 'errors')}, {counted(warnings, 'warnings')}; docs/lint.md says why")
    else:
        print("nothing found")


def _print_json(findings: Sequence[Finding]) -> None:
    is_well = not any(finding.level == "error" for finding in findings)
    print_json({"is_well": is_well, "findings": findings})


def _print_sarif(findings: Sequence[Finding]) -> None:
    print_json(sarif(findings))


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """The findings as a SARIF log of one run."""
    driver = {
        "name": "viewtail lint",
        "version": version("viewtail"),
        "rules": [
            {
                "id": rule.code,
                "name": rule.name,
                "shortDescription": {"text": rule.what},
                "fullDescription": {"text": rule.why},
                "help": {"text": rule.instead},
                "defaultConfiguration": {"level": rule.level.value},
            }
            for rule in RULES
        ]
        + [{"id": UNREAD, "name": "unread", "shortDescription": {"text": "A statement that cannot be read."}}],
    }
    return {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [*map(_result, findings)]}],
    }


def _result(finding: Finding) -> dict[str, Any]:
    logical = {"logicalLocations": [{"fullyQualifiedName": finding.of}]}
    physical = {
        "physicalLocation": {
            "artifactLocation": {"uri": finding.file.replace("\\", "/")},
            "region": {"startLine": finding.line},
        }
    }
    return {
        "ruleId": finding.code,
        "level": finding.level,
        "message": {"text": f"{finding.of}: {finding.why}. {finding.instead}"},
        "locations": [logical | physical if finding.file else logical],
    }


def _print_github(findings: Sequence[Finding]) -> None:
    """Workflow commands (GitHub's manual, "Workflow commands for GitHub Actions")."""
    for finding in findings:
        place = f"file={_property(finding.file)},line={finding.line}," if finding.file else ""
        message = _escaped(f"{finding.of}: {finding.why}. {finding.instead}")
        print(f"::{finding.level} {place}title={finding.code} {finding.rule}::{message}")


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")


FORMS: Mapping[str, Callable[[Sequence[Finding]], None]] = {
    "text": _print_text, "json": _print_json, "sarif": _print_sarif, "github": _print_github,
}  # fmt: skip
