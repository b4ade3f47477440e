"""`viewtail get`, `find` and `search`: what a view shows of one key, rows by an indexed value, documents by a query."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from projectors.stores import SearchPage
from projectors.stores.registry import store_of
from projectors.views import View
from viewtail.changes.rendering import render_key
from viewtail.commands.output import beside, print_json, print_remark, print_rows
from viewtail.operations.given import key_of_text, other_reading, own_keys
from viewtail.operations.reading import Reader, is_found_in, is_searched
from viewtail.reading import open_reader
from viewtail.settings import Settings
from viewtail.signals import NOTHING_FOUND

MOST_FIELDS = 8  # that a line names


def get(loaded: Settings, view: str, key: str, *, as_json: bool) -> int:
    """Print the record; the exit code is NOTHING_FOUND where there is none."""
    reader = _reader(loaded, view)
    (wanted,) = own_keys([key_of_text(key, reader.view.key)], reader.view)
    record = reader.get_key(wanted)
    if record is None:
        print(f"viewtail: view {reader.view.id} has nothing under the key {key!r}", file=sys.stderr)
        print_remark(other_reading(key, reader.view.key))
        return NOTHING_FOUND
    rendered = render_key(record.key, reader.view.key)
    content = store_of(reader.view.view).printable(reader.view, record.content)
    if as_json:
        print_json({"view": record.view, "key": rendered, "version": str(record.version), "content": content})
    else:
        print_rows([beside({"key": rendered, "version": record.version}, content)])
    return 0


def find(loaded: Settings, view: str, values: Sequence[str], *, limit: int, as_json: bool) -> int:
    """Print the rows that have the values now; the exit code is NOTHING_FOUND where there are none."""
    reader = _reader(loaded, view, is_found_in)
    rows = reader.find(values, limit)
    if rows.has_more:
        print_remark(f"the index has more keys with this value than the limit, {limit}; ask for more with --limit")
    if as_json:
        print_json({"view": reader.view.id, "has_more": rows.has_more, "rows": list(rows)})
    elif rows:
        print_rows(rows)
    else:
        print("nothing found", file=sys.stderr)
        print_remark(rows.remark if rows.remark != reader.remark else None)
    return 0 if rows else NOTHING_FOUND


def search(
    loaded: Settings, view: str, query: str, *, fields: Sequence[str] | None, page: int, size: int, as_json: bool
) -> int:
    """Print one page of hits; finding none is no error."""
    reader = _reader(loaded, view, is_searched)
    result = reader.search(query, fields=fields or None, page=page, size=size)
    if as_json:
        hits = [
            {"key": hit.id, "score": hit.score, "version": str(hit.version), "document": hit.document}
            for hit in result.hits
        ]
        told = {"total": result.total, "page": page, "size": size, "took_ms": result.took_ms}
        print_json({"view": reader.view.id, **told, "searched": result.searched, "hits": hits})
        return 0
    where = f"no hits on page {page}, {result.total} in all" if result.total else f"no hits in {_in_words(result)}"
    if result.hits:
        rows = [
            beside({"key": hit.id, "score": "" if hit.score is None else f"{hit.score:.2f}"}, hit.document)
            for hit in result.hits
        ]
        print_rows(rows)
        first = (page - 1) * size + 1
        where = f"hits {first} to {first + len(result.hits) - 1} of {result.total}"
    print(f"{where}, {result.took_ms} ms", file=sys.stderr)
    return 0


def _in_words(result: SearchPage) -> str:
    """The fields that were searched; an operator may have meant another one."""
    more = len(result.searched) - MOST_FIELDS
    return ", ".join(result.searched[:MOST_FIELDS]) + (f" and {more} more fields" if more > 0 else "")


def _reader(loaded: Settings, view: str, can_answer: Callable[[View], bool] = lambda _: True) -> Reader:
    """A reader of the view, whose remark is printed."""
    reader = open_reader(view, loaded, can_answer)
    print_remark(reader.remark)
    return reader
