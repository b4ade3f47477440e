"""`viewtail find`: canonical rows, by an indexed value."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from viewtail.commands.output import print_json, print_remark, print_rows
from viewtail.reading import reader_for_command


def find(config: Path | None, view: str, values: Sequence[str], *, limit: int, as_json: bool) -> int:
    """Print the rows that have the values now; finding none is no error."""
    reader = reader_for_command(config, view)
    print_remark(reader.remark)
    rows = reader.find(values, limit)
    if rows.has_more:
        print_remark(f"the index has more keys with this value than the limit, {limit}; ask for more with --limit")
    if as_json:
        print_json({"view": reader.view.id, "has_more": rows.has_more, "rows": list(rows)})
    elif rows:
        print_rows(rows)
    else:
        print("nothing found", file=sys.stderr)
    return 0
