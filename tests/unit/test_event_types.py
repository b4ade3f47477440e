"""What the walk does with each type of event, and the table of docs/servers.md that says so.

`VIEWTAIL_WRITE_DOCS=1` rewrites the table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from changes.batches import Followed
from changes.errors import SourceError
from changes.positions import Position
from ingest.binlog.dispatcher import Dispatcher
from ingest.binlog.events import NAMES
from ingest.binlog.source import _watermark_table
from tests.support.events import Stream, user_table

PAGE = Path(__file__).resolve().parents[2] / "docs/servers.md"
BEGIN, END = "<!-- events: tests/unit/test_event_types.py -->\n", "<!-- end of events -->"
BOTH, MYSQL, MARIADB = "both", "MySQL", "MariaDB"
_OF_MARIADB = frozenset({23, 24, 25})  # MySQL wrote them before 5.6
_OF_BOTH = frozenset({26, 27, 38})


def server_of(kind: int) -> str:
    if kind >= 160 or kind in _OF_MARIADB:
        return MARIADB
    return BOTH if kind <= 19 or kind in _OF_BOTH else MYSQL


def done_with(kind: int) -> str:
    """An event of that type, with a body of ones and a zero, alone in a stream."""
    walker = Dispatcher(
        followed={("shop", "user"): Followed(user_table(), ("id", "name"))},
        watermark=_watermark_table("viewtail"),
        own_schemas=frozenset({"viewtail"}),
        after=Position(epoch=1, file="binlog.000012", end=4, start=4),
        has_checksums=True,
        spool_bytes=1 << 20,
        max_event_bytes=1 << 20,
    )
    stream = Stream()
    stream.event(kind, b"\1" * 79 + b"\0")
    before = vars(walker).copy()
    try:
        walker.consume(stream.data, 0, len(stream.data))
    except SourceError as error:
        return "stops" if "one viewtail cannot read" in str(error) or "encrypted" in str(error) else "read"
    except Exception:
        return "read"
    after = vars(walker)
    moved = {name for name in before if before[name] != after[name]} - {"_last_pos", "is_quiet"}
    return "read" if moved else "passed over"


def table() -> str:
    lines = ["| Number | Type | Written by | viewtail |", "|---|---|---|---|"]
    for kind, name in sorted(NAMES.items()):
        lines.append(f"| {kind} | {name.removeprefix('MARIADB_')} | {server_of(kind)} | {done_with(kind)} |")
    return "\n".join(lines) + "\n"


def test_the_matrix_of_event_types_is_what_the_walk_does() -> None:
    page = PAGE.read_text()
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    wanted = f"{head}{BEGIN}{table()}{END}{tail}"
    if os.environ.get("VIEWTAIL_WRITE_DOCS"):
        PAGE.write_text(wanted)
    assert page == wanted, "run: VIEWTAIL_WRITE_DOCS=1 pytest tests/unit/test_event_types.py"


@pytest.mark.parametrize("kind", sorted(set(range(1, 256)) - set(NAMES)))
def test_a_type_that_is_not_in_the_matrix_stops_the_stream(kind: int) -> None:
    assert done_with(kind) == "stops"
