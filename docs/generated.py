"""A part of a page that a script beside this one writes, between two marks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedPart:
    """What stands between `<!-- name: command -->` and `<!-- end of name -->` on a page."""

    page: Path
    name: str
    command: str  # that writes it

    def rewritten(self, page: str, text: str) -> str:
        """The page with `text` between its two marks."""
        begin, end = f"<!-- {self.name}: {self.command} -->", f"<!-- end of {self.name} -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        return f"{before}{begin}\n{text}\n{end}{after}"

    def run(self, text: str) -> int:
        """The script's exit code: 0 when the page is right or was made so, 1 when --check found it out of date."""
        page = self.page.read_text()
        wanted = self.rewritten(page, text)
        if "--check" in sys.argv[1:]:
            if page != wanted:
                print(f"{self.page} is out of date; run: {self.command}", file=sys.stderr)
            return int(page != wanted)
        self.page.write_text(wanted)
        return 0
