"""Writes the list of modules into docs/architecture.md, from the first sentence of each one's docstring.

python docs/modules_table.py            # rewrite it
python docs/modules_table.py --check    # exit 1 when it is not what the modules say
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGES = ("changes", "servers", "offsets", "ingest", "projectors", "operations", "viewtail")
PAGE = CHECKOUT / "docs/architecture.md"
BEGIN = "<!-- modules: python docs/modules_table.py -->"
END = "<!-- end of modules -->"


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
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n\n{END}{after}"


def main() -> int:
    """0 when the page is right, or was made so."""
    page = PAGE.read_text()
    wanted = rewritten(page)
    if "--check" in sys.argv[1:]:
        if page != wanted:
            print(f"{PAGE} is out of date; run: python docs/modules_table.py", file=sys.stderr)
        return int(page != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
