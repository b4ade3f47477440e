"""Writes the rules of `viewtail lint` into docs/lint.md, from the data in viewtail/operations/lint/.

python docs/lint_rules.py            # rewrite them
python docs/lint_rules.py --check    # exit 1 when they are not what the rules say
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from generated import GeneratedPart

from viewtail.operations.lint.choosing import RULES
from viewtail.operations.lint.rules import Rule

PART = GeneratedPart(page=Path(__file__).with_name("lint.md"), name="rules", command="python docs/lint_rules.py")

_GROUPS = {
    "VT1": "Names",
    "VT2": "Columns",
    "VT3": "Keys and indexes",
    "VT4": "Statements of a migration",
    "VT5": "What readers of changes lose",
}


def text() -> str:
    """All rules as Markdown, a heading each."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    for group, title in _GROUPS.items():
        yield from ("", f"## {group}xx: {title}")
        for rule in RULES:
            if rule.code.startswith(group):
                yield from _rule(rule)


def _rule(rule: Rule) -> Iterator[str]:
    level = "" if rule.level.value == "error" else ", a warning"
    yield from ("", f"### {rule.code} {rule.name}{level}", "", f"{rule.what} {rule.why}", "")
    yield from ("```sql", "-- bad", rule.bad, "-- good", rule.good, "```")


if __name__ == "__main__":
    sys.exit(PART.run(text()))
