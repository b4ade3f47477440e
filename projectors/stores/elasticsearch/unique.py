"""Documents of views in which a key is of one source at a time: `unique_over_sources=True`.

A document says which source it is of, and which version each source has written of its key: versions of two sources are
never compared, so Elasticsearch's own cannot be the guard. A write reads what is there, decides, and is applied only if
that is still there (if_seq_no, or create); otherwise it reads again. While a key has the document of another source, a
row is refused, and a delete is noted beside that document, which stays.

Other views are written as before; their bulk requests read nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import orjson
from elasticsearch import Elasticsearch

from projectors.stores import Held, Item, lives_elsewhere, parked, takes_equal_versions
from projectors.stores.elasticsearch.bulk import WRITTEN, BulkChunk, Guard, failure_of
from projectors.stores.elasticsearch.documents import document_in, id_of
from projectors.stores.elasticsearch.index import DELETED, PRESENT, SOURCE, VERSIONS, IndexNames
from projectors.stores.elasticsearch.requests import ask
from projectors.views import BoundView
from viewtail.changes.errors import StoreError
from viewtail.changes.writes import Key, Parked

NOBODYS = "is_nobodys"  # in a document as it is read: it does not say which source it is of

_OWN = [DELETED, SOURCE, VERSIONS]  # what of a document decides


def _sent(client: Elasticsearch, chunk: BulkChunk, refused: list[Parked]) -> tuple[BulkChunk, list[bytes]]:
    """What of the chunk is to be written, by what is there now, and the lines of each item."""
    made: dict[int, bytes] = {}
    places = [*_places(chunk)]
    read = zip(chunk.views, chunk.items, places, _read(client, places), strict=True)
    for at, (view, item, place, doc) in enumerate(read):
        decided = decide(view, item, place, doc if doc.get("found") else None, document_in(chunk.lines[at]))
        if isinstance(decided, Parked):
            refused.append(decided)
        elif decided is not None:
            made[at] = decided
    return chunk.only([*made]), [*made.values()]


BY_SOURCES = Guard(sent=_sent, done=WRITTEN)  # of the bulk requests of such views


def _places(chunk: BulkChunk) -> Iterator[dict[str, Any]]:
    """The index and the _id of each item."""
    views = {view.id: view for view in chunk.views}
    made = {name: (IndexNames(view).write_alias, id_of(view)) for name, view in views.items()}
    for view, (key, _) in zip(chunk.views, chunk.items, strict=True):
        index, identity = made[view.id]
        yield {"_index": index, "_id": identity(key)}


def _read(client: Elasticsearch, places: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    docs = [{**place, "_source": _OWN} for place in places]
    found: list[dict[str, Any]] = ask(client, "reading what is there", "POST", "/_mget", {"docs": docs})["docs"]
    for doc in found:
        if "error" in doc:
            raise failure_of({"status": 503, "error": doc["error"]}) or StoreError("Elasticsearch: it does not answer")
    return found


def decide(
    view: BoundView, item: Item, place: dict[str, Any], doc: dict[str, Any] | None, row: bytes
) -> bytes | Parked | None:
    """The lines that write the item over this document, its dead letter, or None: it is superseded.

    Args:
        place: the index and the _id.
        doc: as _mget returns it; None: there is none.
        row: the item's document as JSON."""
    (own,), (_, (version, values)) = view.source, item
    if doc is None:
        return _lines({"create": place}, _document(own, {own: version}, None if values is None else row))
    place = {**place, "if_seq_no": doc["_seq_no"], "if_primary_term": doc["_primary_term"]}
    owner, versions = doc["_source"].get(SOURCE), doc["_source"].get(VERSIONS)
    if not isinstance(versions, dict):
        return parked(view, item, _not_ours(view))
    had = versions.get(own, 0)
    if version < had or (version == had and not takes_equal_versions(view)):
        return None
    if owner in (None, own):
        versions = {**versions, own: version}
        return _lines({"index": place}, _document(own, versions, None if values is None else row))
    if values is not None:
        return lives_elsewhere(view, item, owner)
    return _lines({"update": place}, orjson.dumps({"doc": {VERSIONS: {own: version}}}))


def _document(own: str, versions: dict[str, int], row: bytes | None) -> bytes:
    if row is None:
        return orjson.dumps({DELETED: True, VERSIONS: versions})
    head = orjson.dumps({SOURCE: own, VERSIONS: versions})
    rest = row.strip()[1:].lstrip()
    return head[:-1] + (rest if rest == b"}" else b"," + rest)


def _lines(action: dict[str, Any], content: bytes) -> bytes:
    return orjson.dumps(action) + b"\n" + content


def _not_ours(view: BoundView) -> str:
    return (
        "the index has a document under its id that viewtail did not write; it is left alone. Delete it, or have "
        f"viewtail do so: viewtail verify {view.id} --repair"
    )


def taking_away(view: BoundView) -> Callable[[Key, Held], bytes]:
    """The function from a key, and what a reader saw there, to the lines after which any write of the source applies.

    Its own version goes, the document stays until that write. One that viewtail did not write is its own by then."""
    (own,), index, identity = view.source, IndexNames(view).write_alias, id_of(view)

    def lines(key: Key, seen: Held) -> bytes:
        number, term = seen.mark
        place = {"_index": index, "_id": identity(key), "if_seq_no": number, "if_primary_term": term}
        return _lines({"update": place}, orjson.dumps({"doc": {VERSIONS: {own: 0}}}))

    return lines


def present_of(view: BoundView, *, has_nobodys: bool = False) -> dict[str, Any]:
    """The query for the documents that the view's source shows; also those that say no source."""
    if not view.is_unique_over_sources:
        return PRESENT
    whose: list[dict[str, Any]] = [{"term": {SOURCE: view.source[0]}}]
    if has_nobodys:
        whose.append({"bool": {"must_not": {"exists": {"field": SOURCE}}}})
    return {"bool": {**PRESENT["bool"], "filter": {"bool": {"should": whose, "minimum_should_match": 1}}}}


def as_own(doc: dict[str, Any], source: str) -> dict[str, Any] | None:
    """The document, as a search or a get returns it, as that of a view of this source alone; None if it has none.

    Of another one's key it is the source's own tombstone, if there is one. What is nobody's stays as it is."""
    content = doc["_source"]
    owner, versions = content.get(SOURCE), content.get(VERSIONS)
    version = versions.get(source) if isinstance(versions, dict) else None
    if owner == source and version is not None:
        return {**doc, "_version": version, "_source": plain(content)}
    if (owner is None and content.get(DELETED) is not True) or owner == source:
        return {**doc, NOBODYS: True}
    return None if version is None else {**doc, "_version": version, "_source": {DELETED: True}}


def plain(content: dict[str, Any]) -> dict[str, Any]:
    """A document without what viewtail has in it of sources."""
    return {name: value for name, value in content.items() if name not in (SOURCE, VERSIONS)}
