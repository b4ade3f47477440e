"""Writes the list of modules into docs/architecture.md, from the first sentence of each one's docstring.

python docs/modules_table.py            # rewrite it
python docs/modules_table.py --check    # exit 1 when it is not what the modules say
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from generated import GeneratedPart

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGES = ("changes", "servers", "offsets", "ingest", "projectors", "operations", "viewtail")
PART = GeneratedPart(page=CHECKOUT / "docs/architecture.md", name="modules", command="python docs/modules_table.py")


def table() -> str:
    """One line a module, by folder."""
    lines = []
    for package in PACKAGES:
        for folder in sorted({file.parent for file in (CHECKOUT / package).rglob("*.py")}):
            lines += ["", f"**{folder.relative_to(CHECKOUT)}/**", "", "| Module | What it is |", "|---|---|"]
            lines += [f"| `{file.name}` | {first_sentence(file)} |" for file in sorted(folder.glob("*.py"))]
    return "\n".join(lines)


def first_sentence(file: Path) -> str:
    """Of the module's docstring, on one line."""
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())
    return text.split(". ")[0].rstrip(".").replace("|", "\\|")


def rewritten(page: str) -> str:
    """The page with the list between its two marks brought up to date."""
    return PART.rewritten(page, f"{table()}\n")


if __name__ == "__main__":
    sys.exit(PART.run(f"{table()}\n"))
