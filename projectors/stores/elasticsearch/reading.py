"""Reads a SearchIndex view: documents by key, all documents in pages, and search results.

`rows` sees each acknowledged write at once (realtime). `search` sees it after the index's refresh interval: a second,
or for an index that nobody searched for 30 s, at the search that follows. Both go through the alias; the filter that
hides tombstones does not apply to a get by id, so `rows` checks the flag.

Getting many documents by id takes Elasticsearch 3 to 5 times as long as searching for the same ids (measured with 9.2).
So `unequal` searches first, in an index that was just refreshed, and gets only the documents that differ."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from math import inf
from typing import Any
from urllib.parse import quote

import orjson
from elasticsearch import Elasticsearch

from projectors.stores import (
    MOST_FOREIGN,
    NOTHING_HELD,
    UNREADABLE,
    Held,
    Hit,
    SearchPage,
    StoredRow,
    Unfit,
    ViewReader,
    slices,
)
from projectors.stores.elasticsearch.documents import document_in, encoder, id_of, key_of
from projectors.stores.elasticsearch.index import DELETED, SOURCE, VERSIONS, IndexNames, mapping_of, path
from projectors.stores.elasticsearch.requests import INDEX_GONE, Refused, ask
from projectors.stores.elasticsearch.unique import as_own, present_of
from projectors.views import BoundView
from viewtail.changes.errors import RETRIES, MisuseError, StoreError, StoreUnavailableError, ViewtailError
from viewtail.changes.writes import Key, Write

MAX_HITS = 10_000  # index.max_result_window, which viewtail does not change
LONGEST_QUERY = 10_000  # characters
KEYS_A_PAGE = 1_000
IDS_A_PAGE = 3_000  # in a sweep that reads no documents
SEARCHED_FROM = 500  # keys; fewer are fetched by id, without a search
KEYS_A_SEARCH = 3_000
REFRESHED_FOR_S = 5.0
_KEEP_ALIVE = "5m"  # between two pages of keys
Found = tuple[Key, dict[str, Any] | None]  # a document as _mget and _search return it
_NESTED = (
    "is mapped as nested, which Elasticsearch searches with a nested query alone. Ask Elasticsearch, or map it as an "
    'object: {"properties": {...}}'
)
_TEXTUAL = ("text", "match_only_text", "keyword", "constant_keyword", "wildcard", "search_as_you_type")


class DocumentReader(ViewReader):
    """Reads one view, over a client of its own."""

    def __init__(self, client: Elasticsearch, view: BoundView) -> None:
        self.view, self.foreign = view, []
        self._client = client
        self._names = IndexNames(view)
        self._id_of = id_of(view)
        self._encode = encoder(view)
        self._refreshed_at = -inf

    def rows(self, keys: Sequence[Key]) -> list[StoredRow]:
        return [row for key in keys if (row := self._row(key)) is not None]

    def held(self, keys: Sequence[Key]) -> dict[Key, Held]:
        return {key: self._held(doc) for page in self._documents(keys) for key, doc in page if doc is not None}

    def unequal(self, wanted: Mapping[Key, Write]) -> list[Key]:
        """Compare byte by byte first; a document that is the same that way is compared no further."""
        if len(wanted) >= SEARCHED_FROM:
            self._refresh()
            pages = self._ahead(list(wanted), KEYS_A_SEARCH, self._searched_page)
            wanted = {key: wanted[key] for page in pages for key, _ in self._otherwise(page, wanted)}
        return [
            key
            for page in self._documents(list(wanted))
            for key, doc in self._otherwise(page, wanted)
            if self.is_unequal(key, wanted[key], NOTHING_HELD if doc is None else self._held(doc))
        ]

    def _held(self, doc: dict[str, Any]) -> Held:
        return held_of(doc)

    def _otherwise(self, page: list[Found], wanted: Mapping[Key, Write]) -> list[Found]:
        """The documents of a page that differ byte by byte from what would be written, or are newer."""
        writes = [wanted[key] for key, _ in page]
        try:
            lines = self._encode([(key, write) for (key, _), write in zip(page, writes, strict=True)])
        except (Unfit, ValueError, TypeError):  # one document cannot be written
            return page
        three = zip(page, writes, lines, strict=True)
        return [pair for pair, write, line in three if not _is_same(pair[1], write, document_in(line))]

    def _documents(self, keys: Sequence[Key]) -> Iterator[list[Found]]:
        """The document of each key, tombstones too; None if the store has none."""
        return self._ahead(keys, KEYS_A_PAGE, self._page)

    @staticmethod
    def _ahead(
        keys: Sequence[Key], count: int, ask_for: Callable[[Sequence[Key]], list[Found]]
    ) -> Iterator[list[Found]]:
        """Request each page in a thread while the caller handles the one before it; a single page needs no thread."""
        pages = list(slices(keys, count))
        if len(pages) <= 1:
            yield from map(ask_for, pages)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="documents") as ahead:
            asked = ahead.submit(ask_for, pages[0])
            for following in pages[1:]:
                page = asked.result()
                asked = ahead.submit(ask_for, following)
                yield page
            yield asked.result()

    def _refresh(self) -> None:
        """Make everything written so far searchable, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self._refreshed_at > REFRESHED_FOR_S:
            self._asked("refreshing", f"{path(self._names.reads)}/_refresh", None)
            self._refreshed_at = now

    def _searched_page(self, keys: Sequence[Key]) -> list[Found]:
        """The document of each key as a search shows it; None for what a search hides, such as tombstones."""
        ids = [self._id_of(key) for key in keys]
        body = {"query": {"ids": {"values": ids}}, "size": len(ids), "sort": ["_doc"]}
        body |= {"version": True, "track_total_hits": False}
        answer = self._asked("reading", f"{path(self._names.reads)}/_search", body)
        hits = {hit["_id"]: hit for hit in answer["hits"]["hits"]}
        return [(key, hits.get(id_)) for key, id_ in zip(keys, ids, strict=True)]

    def _asked(self, doing: str, target: str, body: dict[str, Any] | None) -> Any:
        try:
            return ask(self._client, doing, "POST", target, body)
        except Refused as refused:
            raise self._not_there(refused) from None

    def _page(self, keys: Sequence[Key]) -> list[Found]:
        ids = {"ids": [self._id_of(key) for key in keys]}
        docs = self._asked("reading", f"{path(self._names.reads)}/_mget", ids)["docs"]
        for doc in docs:
            if "error" in doc:
                raise StoreUnavailableError(
                    f"{self._names.label}: its index does not answer ({doc['error'].get('type')}). Try again"
                )
        return [(key, doc if doc.get("found") else None) for key, doc in zip(keys, docs, strict=True)]

    def form_of(self, key: Key, values: tuple[Any, ...] | bytes) -> Any:
        (lines,) = self._encode([(key, Write(1, values))])
        return _form(orjson.loads(document_in(lines)))

    def pages(self, after: Key | None = None) -> Iterator[list[StoredRow]]:
        """Pages as of the first page, in no particular order."""
        for page in present_documents(self._client, self.view, self._names.reads, has_source=True):
            yield [StoredRow(key, hit["_version"], hit["_source"]) for key, hit in page]

    def shown_keys(self) -> Iterator[list[Key]]:
        for page in present_documents(
            self._client, self.view, self._names.reads, has_source=False, foreign=self.foreign
        ):
            yield [key for key, _ in page]

    def search(self, query: str, *, fields: Sequence[str] | None, page: int, size: int) -> SearchPage:
        """The documents that match `query`, a simple_query_string: words, "phrases", prefix*, -without, this | that.

        Every word must be found, each in any of `fields` (name or name^boost; by default all text and keyword fields).
        Those of an object are named in full (customer.name); the object's name means all of them. Pages count from 1.
        Raises MisuseError too, for a query of more than LONGEST_QUERY characters without asking: a node may be busy for
        a minute before it refuses a hundred thousand words."""
        _check_page(page, size)
        if len(query) > LONGEST_QUERY:
            raise MisuseError(f"a query of {len(query):,} characters; the longest may have {LONGEST_QUERY:,}")
        searched = self._searched(fields)
        words = {"query": query, "fields": searched, "lenient": True, "default_operator": "and"}
        wanted = {"from": (page - 1) * size, "size": size, "version": True, "track_total_hits": True}
        body = {"query": {"simple_query_string": words}, **wanted}
        try:
            answer = ask(self._client, "searching", "POST", f"{path(self._names.reads)}/_search", body)
        except Refused as refused:
            if refused.status == 400:
                why = f"Elasticsearch cannot search for that: {refused.reason[:300]}"
                raise MisuseError(f"{why}. Change the query") from None
            raise self._not_there(refused) from None
        hits = [
            Hit(id=hit["_id"], score=hit["_score"], version=int(hit["_version"]), document=hit["_source"])
            for hit in answer["hits"]["hits"]
        ]
        total, took_ms = int(answer["hits"]["total"]["value"]), int(answer["took"])
        return SearchPage(total=total, took_ms=took_ms, hits=hits, searched=tuple(searched))

    def close(self) -> None:
        self._client.close()

    def _row(self, key: Key) -> StoredRow | None:
        target = f"{path(self._names.reads)}/_doc/{quote(self._id_of(key), safe='')}"
        try:
            hit = ask(self._client, "reading", "GET", target)
        except Refused as refused:
            if refused.status == 404 and not refused.kind:
                return None
            raise self._not_there(refused) from None
        document = hit["_source"]
        return None if document.get(DELETED) else StoredRow(key, int(hit["_version"]), document)

    def _searched(self, fields: Sequence[str] | None) -> list[str]:
        properties, _ = mapping_of(self.view)
        leaves = dict(_leaves(properties))
        textual = [name for name, kind in leaves.items() if kind in _TEXTUAL]
        if fields is None:
            return textual or list(leaves)
        if not fields:
            raise MisuseError(f"no field to search; view {self.view.id} has {', '.join(properties)}")
        return [each for field in fields for each in self._in_field(field, properties, textual)]

    def _in_field(self, field: str, properties: Mapping[str, Any], textual: Sequence[str]) -> list[str]:
        """The field, or those of an object; each with the weight that is given behind `^`."""
        name = field.partition("^")[0]
        if not (kinds := _kinds_along(properties, name)):
            beside = [leaf for leaf, _ in _leaves(properties) if leaf.startswith(f"{name.partition('.')[0]}.")]
            raise MisuseError(f"view {self.view.id} has no field {name!r}; it has {', '.join(beside or properties)}")
        if "nested" in kinds:
            raise MisuseError(f"field {name!r} of view {self.view.id} {_NESTED}")
        of_object = [below + field[len(name) :] for below in textual if below.startswith(f"{name}.")]
        return of_object or [field]

    def _not_there(self, refused: Refused) -> StoreError:
        why = f"reading failed: {refused.status} {refused.kind}: {refused.reason[:300]}"
        if refused.kind == INDEX_GONE:
            why = "Elasticsearch has no index for it yet. Start `viewtail run`, which creates it"
        return StoreError(f"{self._names.label}: {why}")


def _leaves(properties: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """The fields that hold values, those of objects too, by their full names; with their types."""
    for name, mapping in properties.items():
        kind = mapping.get("type", "object")
        if kind == "object" and "properties" in mapping:
            yield from _leaves(mapping["properties"], f"{above}{name}.")
        elif kind != "nested":
            yield f"{above}{name}", kind


def _kinds_along(properties: Mapping[str, Any], name: str) -> list[str]:
    """The types of the fields that a full name leads through, from the top; none where one of them is not there."""
    first, _, rest = (name, "", "") if name in properties else name.partition(".")
    if first not in properties:
        return []
    mapping = properties[first]
    below = _kinds_along(mapping.get("properties", {}), rest)
    # An index takes no other fields than those of its mapping, unless an object of it says so.
    is_unknown = rest and not below and "properties" in mapping and "dynamic" not in mapping and "*" not in rest
    return [] if is_unknown else [mapping.get("type", "object"), *below]


def _is_same(doc: dict[str, Any] | None, write: Write, line: bytes) -> bool:
    return doc is not None and doc["_version"] <= write[0] and bool(_dumped(doc["_source"]) == line)


def held_of(doc: dict[str, Any]) -> Held:
    """What the store holds of a key, by its document as _mget returns it."""
    source, mark = doc["_source"], (doc["_seq_no"], doc["_primary_term"])
    is_tombstone = source.get(DELETED) is True
    fault = "it is neither a document nor a tombstone" if is_tombstone and len(source) > 1 else ""
    return Held(int(doc["_version"]), None if is_tombstone else _form(source), fault, mark)


def _form(document: dict[str, Any]) -> Any:
    """The document as text: 1, 1.0 and true are three values there."""
    return _dumped(document, orjson.OPT_SORT_KEYS)


def _dumped(document: dict[str, Any], option: int = 0) -> Any:
    """The document as JSON; UNREADABLE if viewtail cannot have written it, because a number has more than 64 bits."""
    try:
        return orjson.dumps(document, option=option)
    except TypeError:
        return UNREADABLE


def last_sequence_number(client: Elasticsearch, name: str) -> int:
    """The largest sequence number among the index's documents (each shard numbers its writes); -1 if it has none."""
    ask(client, "refreshing", "POST", f"{path(name)}/_refresh")
    largest = {"size": 0, "track_total_hits": False, "aggs": {"last": {"max": {"field": "_seq_no"}}}}
    answer = ask(client, "reading sequence numbers", "POST", f"{path(name)}/_search", largest)
    if answer["timed_out"] or answer["_shards"]["failed"]:
        raise StoreUnavailableError(f"Elasticsearch: a shard did not answer; {RETRIES}")
    last = answer["aggregations"]["last"]["value"]
    return -1 if last is None else int(last)


def present_documents(
    client: Elasticsearch,
    view: BoundView,
    name: str,
    *,
    has_source: bool,
    foreign: list[str] | None = None,
    written_upto: int | None = None,
    refreshes: bool = True,
) -> Iterator[list[tuple[Key, dict[str, Any]]]]:
    """Pages of (key, hit) of every document that is not a tombstone, as of the first page.

    `name` is the index, or an alias of it. The first ids that are not keys are added to `foreign`. With `written_upto`,
    documents that were written after that sequence number are left out. Unless it `refreshes` the index, which takes
    the right to, what was written in the last moments may be left out, too.

    Where a key is of one source at a time these are the own source's; with `foreign` also those that say none."""
    key, is_own_alone = key_of(view), view.is_unique_over_sources
    present = present_of(view, has_nobodys=foreign is not None)
    body = _search_for(_upto(present, written_upto), has_source=has_source, has_owner=is_own_alone)
    page_size = KEYS_A_PAGE if has_source else IDS_A_PAGE
    try:
        with closing(_sweep(client, path(name), body, page_size, refreshes=refreshes)) as pages:
            for hits in pages:
                page = [(key(hit["_id"]), hit) for hit in (_own_of(hits, view.source[0]) if is_own_alone else hits)]
                if foreign is not None:
                    _note_foreign(page, foreign)
                yield [(parsed, hit) for parsed, hit in page if parsed is not None]
    except Refused as refused:
        # The index was deleted meanwhile, or the point in time ended after a long pause or a restart.
        raise StoreUnavailableError(
            f"Elasticsearch: sweeping {view.id} failed: {refused.status} {refused.kind}. {RETRIES}"
        ) from None


def _search_for(query: dict[str, Any], *, has_source: bool, has_owner: bool) -> dict[str, Any]:
    """A search that returns versions, and documents: all of them, or the fields that say whose they are, or none."""
    fields = has_source or ([DELETED, SOURCE, VERSIONS] if has_owner else False)
    return {"query": query, "version": True, "_source": fields, "track_total_hits": False}


def _upto(query: dict[str, Any], sequence_number: int | None) -> dict[str, Any]:
    if sequence_number is None:
        return query
    return {"bool": {"filter": [query, {"range": {"_seq_no": {"lte": sequence_number}}}]}}


def _note_foreign(page: Iterable[tuple[Key | None, dict[str, Any]]], foreign: list[str]) -> None:
    foreign += [hit["_id"] for key, hit in page if key is None][: MOST_FOREIGN - len(foreign)]


def _own_of(hits: list[dict[str, Any]], source: str) -> Iterator[dict[str, Any]]:
    for hit in hits:
        if (own := as_own(hit, source)) is not None:
            yield own


def _sweep(
    client: Elasticsearch, index: str, body: dict[str, Any], size: int, *, refreshes: bool
) -> Generator[list[dict[str, Any]]]:
    """Yield all hits of a search, `size` a page, as of the first page. Raises Refused."""
    if refreshes:
        ask(client, "refreshing", "POST", f"{index}/_refresh")
    point = ask(client, "sweeping", "POST", f"{index}/_pit?keep_alive={_KEEP_ALIVE}")["id"]
    body = {**body, "sort": [{"_shard_doc": "asc"}], "size": size}
    try:
        while True:
            body["pit"] = {"id": point, "keep_alive": _KEEP_ALIVE}
            answer = ask(client, "sweeping", "POST", "/_search", body)
            point = answer.get("pit_id", point)
            if answer["timed_out"] or answer["_shards"]["failed"]:
                raise StoreUnavailableError(f"Elasticsearch: a sweep's page is not whole; {RETRIES}")
            hits = answer["hits"]["hits"]
            yield hits
            if len(hits) < size:
                return
            body["search_after"] = hits[-1]["sort"]
    finally:
        with suppress(ViewtailError, Refused):  # the point in time expires by itself after _KEEP_ALIVE
            ask(client, "ending a sweep", "DELETE", "/_pit", {"id": point})


def _check_page(page: int, size: int) -> None:
    if page < 1 or size < 1:
        raise MisuseError(f"page {page} of size {size}: both count from 1")
    if page * size > MAX_HITS:
        raise MisuseError(
            f"page {page} of size {size} ends behind the first {MAX_HITS:,} hits, which is as far as Elasticsearch "
            "pages; ask for a smaller page number, or for something more particular"
        )
