"""`viewtail search`: documents of a SearchIndex view, by a simple query string."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from viewtail.commands.output import print_json, print_remark, print_rows
from viewtail.reading import reader_for_command

if TYPE_CHECKING:
    from projectors.stores import SearchPage


def search(
    config: Path | None,
    view: str,
    query: str,
    *,
    fields: Sequence[str] | None,
    page: int,
    size: int,
    as_json: bool,
) -> int:
    """Print one page of hits; finding none is no error."""
    reader = reader_for_command(config, view)
    print_remark(reader.remark)
    found = reader.search(query, fields=fields or None, page=page, size=size)
    if as_json:
        _print_json(reader.view.id, found, page, size)
        return 0
    if found.hits:
        print_rows([{"key": hit.id, "score": _score(hit.score), **hit.document} for hit in found.hits])
    first = (page - 1) * size + 1
    last = first + len(found.hits) - 1
    where = f"hits {first} to {last} of {found.total}" if found.hits else f"no hits on page {page} of {found.total}"
    print(f"{where}, {found.took_ms} ms", file=sys.stderr)
    return 0


def _print_json(view: str, found: SearchPage, page: int, size: int) -> None:
    hits = [
        {"key": hit.id, "score": hit.score, "version": str(hit.version), "document": hit.document} for hit in found.hits
    ]
    print_json(
        {
            "view": view,
            "total": found.total,
            "page": page,
            "size": size,
            "took_ms": found.took_ms,
            "hits": hits,
        }
    )


def _score(score: float | None) -> str:
    return "" if score is None else f"{score:.2f}"
