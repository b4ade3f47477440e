"""Counts, for docs/lint.md, what `viewtail lint --schema` finds in schemas that others published.

python docs/lint_verdicts.py sakila.sql employees.sql Chinook_MySql.sql

The files are not in this repository; docs/lint.md says where they are from. The table is written into that page.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from generated import GeneratedPart

from viewtail.operations.lint.choosing import RULES, Chosen
from viewtail.operations.lint.linting import UNREAD, Linter, SqlFile

PART = GeneratedPart(
    page=Path(__file__).with_name("lint.md"), name="verdicts", command="python docs/lint_verdicts.py FILE.sql ..."
)


def counts(file: Path) -> tuple[int, Counter[str]]:
    """The tables of a dump, and how often each rule finds something in it."""
    linter = Linter(Chosen(), "")
    linter.define(SqlFile(name=file.name, text=file.read_text()), is_judged=True)
    return len([*linter.schema]), Counter(finding.code for finding in linter.findings())


def table(files: Sequence[Path]) -> str:
    """The counts as a Markdown table."""
    found = [counts(file) for file in files]
    names = {rule.code: f"{rule.code} {rule.name}" for rule in RULES} | {UNREAD: f"{UNREAD}, statements not read"}
    seen = sorted({code for _, of_file in found for code in of_file})
    lines = [
        f"| Rule | {' | '.join(file.stem for file in files)} |",
        f"|---|{'---|' * len(files)}",
        f"| (tables) | {' | '.join(str(tables) for tables, _ in found)} |",
        *(f"| {names[code]} | {' | '.join(str(of_file[code]) for _, of_file in found)} |" for code in seen),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    sys.exit(PART.run(table([Path(name) for name in sys.argv[1:]])))
