"""`viewtail get`: one record of a view, by key."""

from __future__ import annotations

import sys
from pathlib import Path

from changes.rendering import render_key
from viewtail.commands.output import print_json, print_remark, print_rows
from viewtail.reading import reader_for_command


def get(config: Path | None, view: str, key: str, *, as_json: bool) -> int:
    """Print the record; the exit code is 1 when there is none."""
    reader = reader_for_command(config, view)
    print_remark(reader.remark)
    record = reader.get(key)
    if record is None:
        print(f"viewtail: view {reader.view.id} has nothing under the key {key!r}", file=sys.stderr)
        return 1
    rendered, content = render_key(record.key, reader.view.key), reader.printable(record)
    if as_json:
        print_json({"view": record.view, "key": rendered, "version": str(record.version), "content": content})
    else:
        print_rows([{"key": rendered, "version": record.version, **content}])
    return 0
