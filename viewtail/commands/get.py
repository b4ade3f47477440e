"""`viewtail get`: one record of a view, by key."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from changes.rendering import render_key
from changes.tables import Kind
from operations.reading import Record
from projectors.bound_views import BoundView
from projectors.views import RedisHash
from viewtail.commands.output import print_json, print_remark, print_rows
from viewtail.reading import reader_for_command

_RAW = (Kind.BYTES, Kind.GEOMETRY, Kind.VECTOR)


def get(config: Path | None, view: str, key: str, *, as_json: bool) -> int:
    """Print the record; the exit code is 1 when there is none."""
    reader = reader_for_command(config, view)
    print_remark(reader.remark)
    record = reader.get(key)
    if record is None:
        print(f"viewtail: view {reader.view.id} has nothing under the key {key!r}", file=sys.stderr)
        return 1
    rendered, content = render_key(record.key, reader.view.key), _content(record, reader.view)
    if as_json:
        print_json({"view": record.view, "key": rendered, "version": str(record.version), "content": content})
    else:
        print_rows([{"key": rendered, "version": record.version, **content}])
    return 0


def _content(record: Record, view: BoundView) -> dict[str, Any]:
    """Redis gives bytes: those of text columns are text again."""
    if not isinstance(view.view, RedisHash):
        return record.content
    raw = {column.name for column in view.values if column.kind in _RAW}
    return {
        name: value if name in raw else value.decode("utf-8", "replace")
        for name, value in record.content.items()
    }
