"""The index behind a SearchIndex view: its names, its mapping, and how it is brought to agree with the declaration.

A view `city` has the index `viewtail-city` (a second copy `viewtail.2-city`, and so on) and two aliases. Readers use
`city`, which hides tombstones and leads to the live copy. viewtail writes through `viewtail.write-city`, with
require_alias: an alias is deleted with its index, so a bulk request can never create an index without mapping and
filter after somebody deleted it. viewtail leaves an index or alias of these names alone if it did not create it, or if
it belongs to another deployment: the index's mapping names the owner (`_meta.viewtail.owner`) from its creation on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote

import orjson
import structlog
from elasticsearch import Elasticsearch

from projectors.stores import PlaceRefusedError
from projectors.stores.elasticsearch.requests import Refused, ask, unrefused
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.owners import NOBODY, Claimant, PlaceOwner, refusal, why_not_dropped
from projectors.views import BoundView
from viewtail.changes.errors import RETRIES, DeclarationError, StoreUnavailableError
from viewtail.changes.rendering import OPTIONAL_FIELD_TYPES, search_mapping

_log = structlog.get_logger("viewtail.elasticsearch")

DELETED = "viewtail_deleted"
POSITION = "viewtail_position"
SOURCE = "viewtail_source"  # whose document it is, where a key is of one source at a time
VERSIONS = "viewtail_versions"  # and what each source has written of the key: its version by source

PRESENT = {"bool": {"must_not": {"term": {DELETED: True}}}}
_OWN_FIELDS: dict[str, Any] = {
    DELETED: {"type": "boolean"},
    POSITION: {"type": "keyword", "index": False, "doc_values": False},
}
_IS_UNIQUE = "unique_over_sources"  # in the mark of an index
_FIELDS_OF_SOURCES: dict[str, Any] = {
    SOURCE: {"type": "keyword"},
    VERSIONS: {"type": "object", "enabled": False},
}
_SETTINGS = {
    # One shard is one failure unit, and has one witness.
    "number_of_shards": 1,
    # No replica on a single node, where it could never be allocated and the cluster would stay yellow; otherwise one.
    "auto_expand_replicas": "0-1",
    # Acknowledged must mean on disk, whatever an index template of the cluster says.
    "translog": {"durability": "request"},
}
CLONED_SETTINGS = {  # of another tool's index: what it has of its own, such as analyzers, stays
    "index.blocks.write": None,
    "index.auto_expand_replicas": "0-1",
    "index.translog.durability": "request",
}
_LACKING = re.compile(r"(?:mapper|No handler for) type \[(\w+)\] declared on field")
_ABOUT_THE_MAPPING = frozenset(
    f"{name}_exception" for name in ("mapper_parsing", "illegal_argument", "invalid_index_name", "parse")
)


BLOCKED = "viewtail.blocked-"
REPLACED = "viewtail.replaced-"


class IndexNames:
    """The names of a view in Elasticsearch; rules.py has refused a view whose name cannot be an index's."""

    def __init__(self, view: BoundView) -> None:
        name = view.view.name
        number = "" if view.copy == 1 else f".{view.copy}"
        self.label = f"SearchIndex({name!r})"  # for messages
        self.index = f"viewtail{number}-{name}"
        self.alias = name  # readers use it; it leads to the live copy
        self.write_alias = f"viewtail.write{number}-{name}"
        self.reads = self.write_alias if view.is_beside else self.alias  # where this copy is read
        self.check = f"viewtail.check-{name}"  # an index that exists for a moment, to try a mapping
        # Aliases by which `adopt` notes, at another tool's index, what it does with that.
        self.unfinished = f"viewtail.unfinished-{name}"  # a clone of it, until readers get it
        self.blocked = f"{BLOCKED}{name}"  # refuses writes since adopt said so
        self.replaced = f"{REPLACED}{name}"  # a copy of the view may take its place


def path(name: str) -> str:
    """A name as part of a request's path."""
    return "/" + quote(name, safe="")


def mapping_of(view: BoundView) -> tuple[dict[str, Any], frozenset[str]]:
    """The mapping of a view's fields, and the fields whose mapping was derived from the column's type."""
    declared = view.view
    assert isinstance(declared, SearchIndex)
    given = declared.mapping
    derived = {column.name: search_mapping(column) for column in view.values if column.name not in given}
    properties = {name: dict(given[name]) if name in given else derived[name] for name in declared.fields}
    return properties, frozenset(derived)


MEND = "Give the view here another name"


def _digest(properties: dict[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(properties, option=orjson.OPT_SORT_KEYS)).hexdigest()


def make_ready(client: Elasticsearch, view: BoundView, claimant: Claimant = NOBODY) -> None:
    """Create the index and its aliases, or change existing ones to match the declaration.

    Raises PlaceRefusedError or DeclarationError for this view alone, StoreError or StoreUnavailableError for what
    affects all views. It does not touch another owner's index. It claims the index for `claimant`."""
    index = _Index(client, view, claimant)
    try:
        index.make_ready()
    except Refused as refused:
        said = f"{refused.status} {refused.kind}: {refused.reason[:500]}"
        if refused.status == 404 or refused.kind == "validation_exception":
            # Somebody deleted the index meanwhile, or the cluster has no room for another shard.
            raise StoreUnavailableError(
                f"{index.names.label}: no index can be created or changed now: {said} {RETRIES}"
            ) from None
        raise PlaceRefusedError(
            f"{index.names.label}: creating or changing its index failed: {said} Fix the cause in Elasticsearch"
        ) from None


def put_mapping(client: Elasticsearch, view: BoundView, claimant: Claimant) -> None:
    """Give an index that has viewtail's name the view's fields, viewtail's own, and its owner. Raises Refused."""
    _Index(client, view, claimant).put_mapping()


def aliases_of(view: BoundView) -> dict[str, dict[str, Any]]:
    """The aliases of the view's index, with what each has."""
    names = IndexNames(view)
    for_readers = {} if view.is_beside else {names.alias: {"filter": PRESENT}}
    return {**for_readers, names.write_alias: {}}


def still_blocked(index: str, content: Mapping[str, Any]) -> str | None:
    """What is to be done about another tool's index whose writes an adopt has refused, while it has not ended.

    `content`: what the index has, its settings too."""
    notes = _notes(content, BLOCKED)
    if not notes or not refuses_writes(content):
        return None
    return (
        f"the index {index} refuses writes since a viewtail adopt, which is at work, or was cut off. Give that command "
        f'again: it finishes; or lift the block: PUT {path(index)}/_settings {{"index.blocks.write": null}}, then '
        f"{_taking_off(index, notes[0])}"
    )


def still_given_up(index: str, content: Mapping[str, Any]) -> str | None:
    """What is to be done about another tool's index whose place an adopt noted for a copy, while it has not ended."""
    notes = _notes(content, REPLACED)
    if not notes:
        return None
    return (
        f"the index {index} is noted to give its place to a copy, by a viewtail adopt, which is at work, or was cut "
        f"off. Give that command again: it finishes; or take the note off: {_taking_off(index, notes[0])}"
    )


def left_by_adopt(index: str, content: Mapping[str, Any]) -> list[str]:
    """What is to be done about the notes of an adopt that has not ended, a sentence each."""
    return [why for told in (still_blocked, still_given_up) if (why := told(index, content)) is not None]


def refuses_writes(content: Mapping[str, Any]) -> bool:
    """Return whether the index, of which this is the content, has a block on writes."""
    settings = content.get("settings", {}).get("index", {})
    return str(settings.get("blocks", {}).get("write")) == "true"


def leaving(index: str, alias: str, notes: Collection[str]) -> list[dict[str, Any]]:
    """Actions that take readers away from an index. Where somebody moved the alias meanwhile, none of them is done."""
    away = {"remove": {"index": index, "alias": alias, "must_exist": True}}
    return [away, {"remove": {"index": index, "aliases": list(notes), "must_exist": False}}]


def take_note_off(client: Elasticsearch, name: str) -> None:
    """No copy of the view of that name takes the place of another tool's index any more. Raises Refused."""
    note = f"{REPLACED}{name}"
    noted = ask(client, "looking at an alias", "GET", f"{path(note)}?ignore_unavailable=true")
    for index in sorted(noted):
        actions = [{"remove": {"index": index, "alias": note, "must_exist": False}}]
        ask(client, "taking a note off an index", "POST", "/_aliases", {"actions": actions})


def _notes(content: Mapping[str, Any], prefix: str) -> list[str]:
    return [alias for alias in content.get("aliases", {}) if alias.startswith(prefix)]


def _taking_off(index: str, note: str) -> str:
    return f"POST /_aliases {orjson.dumps({'actions': [{'remove': {'index': index, 'alias': note}}]}).decode()}"


def is_made(client: Elasticsearch, view: BoundView) -> bool:
    """Return whether there is an index where the view is read. Raises StoreError, StoreUnavailableError."""
    reads = IndexNames(view).reads
    with unrefused("looking for an index"):
        return bool(ask(client, "looking for an index", "GET", f"{path(reads)}/_mapping?ignore_unavailable=true"))


def replaced_fields(client: Elasticsearch, view: BoundView) -> list[str]:
    """The fields whose mapping cannot be changed in the view's index, so that `make_ready` would replace the index.

    Writes nothing. Raises StoreError, StoreUnavailableError."""
    index = IndexNames(view).index
    try:
        indices = ask(client, "looking at a mapping", "GET", f"{path(index)}/_mapping?ignore_unavailable=true")
    except Refused:
        return []
    mappings = indices.get(index, {}).get("mappings", {})
    wanted, derived = mapping_of(view)
    if mappings.get("_meta", {}).get("viewtail", {}).get("mapping") == _digest(wanted):
        return []
    return _fixed(wanted, derived, mappings.get("properties", {}))


def unlike_declared(view: BoundView, present: dict[str, Any]) -> list[str]:
    """The fields of an index, by its mapping, that are otherwise than declared and stay so, a sentence each."""
    wanted, derived = mapping_of(view)
    return [
        f"field {name} is {_as_text(present[name])} there, and {_as_text(wanted[name])} as declared"
        for name in _fixed(wanted, derived, present)
    ]


def _as_text(mapping: dict[str, Any]) -> str:
    settings = {name: value for name, value in mapping.items() if name in _FIXED and name != "type"}
    behind = f" {orjson.dumps(settings).decode()}" if settings else ""
    return f"{mapping.get('type', 'object')}{behind}"


def _fixed(wanted: dict[str, Any], derived: Collection[str], present: dict[str, Any]) -> list[str]:
    """The declared fields whose mapping cannot be changed in an index that has these."""
    for name in derived:  # if the server lacked a type, the index has the substitute
        instead = OPTIONAL_FIELD_TYPES.get(wanted[name].get("type", ""))
        if instead is not None and present.get(name, {}).get("type") == instead["type"]:
            wanted[name] = instead
    return [name for name in wanted if name in present and _is_fixed(present[name], wanted[name])]


_FIXED = ("type", "analyzer", "index", "doc_values", "store", "normalizer", "format", "enabled", "index_options",
          "norms", "similarity", "term_vector", "scaling_factor", "dims", "null_value")  # fmt: skip


def _is_fixed(present: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Return whether mappings of a field differ in what an index cannot change (Elasticsearch's manual, "Mapping")."""
    if "properties" in present or "properties" in wanted:
        own, new = present.get("properties", {}), wanted.get("properties", {})
        return any(name in own and _is_fixed(own[name], mapping) for name, mapping in new.items())
    return any(str(present.get(name)).lower() != str(wanted.get(name)).lower() for name in _FIXED)


class _ThereAlreadyError(StoreUnavailableError):
    """The index to be created exists already."""


class _Index:
    """The index of one view."""

    def __init__(self, client: Elasticsearch, view: BoundView, claimant: Claimant) -> None:
        self._client = client
        self._claimant = claimant
        self.names = IndexNames(view)
        self._source = view.source
        self._properties, self._derived = mapping_of(view)
        digest = _digest(self._properties)
        self._meta: dict[str, Any] = {"view": view.view.id, "fingerprint": view.fingerprint, "mapping": digest}
        self._own_fields = _OWN_FIELDS
        if view.is_unique_over_sources:
            self._meta[_IS_UNIQUE] = True
            self._own_fields = {**_OWN_FIELDS, **_FIELDS_OF_SOURCES}
        if claimant is not NOBODY:
            self._meta["owner"] = claimant.owner(view.id).as_json()
        self._aliases = aliases_of(view)

    def make_ready(self) -> None:
        if self._is_there():
            return
        try:
            self._create(self.names.index, self._aliases)
        except _ThereAlreadyError:
            # A slow server may have created it for an earlier request that timed out.
            if not self._is_there():
                raise

    def _is_there(self) -> bool:
        """Return whether the view's index exists; adapts it if so."""
        index = self.names.index
        wanted = ",".join(path(name)[1:] for name in (index, *self._aliases))
        try:
            indices = ask(self._client, "looking at indices", "GET", f"/{wanted}?ignore_unavailable=true")
        except Refused as refused:
            if refused.status != 404:
                raise
            indices = {}
        self._require_ours(indices)
        if index in indices:
            self._adapt(indices[index])
        return index in indices

    def _require_ours(self, indices: dict[str, Any]) -> None:
        for index, content in indices.items():
            meta = mark_in(content)
            if meta.get("view") == self._meta["view"]:
                self._require_owned(index, meta)
                if index == self.names.index:
                    continue
            if index == self.names.index or index in self._aliases:
                what = f"an index {index}"
            else:
                taken = next(name for name in self._aliases if name in content["aliases"])
                what = f"an alias {taken} of the index {index}"
            raise PlaceRefusedError(
                f"{self.names.label}: there is {what} that viewtail did not make; it is left alone. Rename the view, "
                f"or delete what is there if nobody needs it, or take it over: viewtail adopt {self._meta['view']}"
            )

    def _require_owned(self, index: str, meta: dict[str, Any]) -> None:
        owner, view = PlaceOwner.of_json(meta.get("owner")), self._meta["view"]
        if self._claimant is not NOBODY and (why := why_refused(self._claimant, view, {index: meta})):
            raise PlaceRefusedError(why)
        if owner is not None and (self._claimant is NOBODY or index == self.names.index):
            self._meta["owner"] = meta["owner"]  # the recorded owner stays

    def _adapt(self, content: dict[str, Any]) -> None:
        """Add new fields; if a field changed, create the index again, since its view is backfilled in any case.

        The index of several sources has what others wrote, too, and is refused."""
        index, mark = self.names.index, content["mappings"]["_meta"]["viewtail"]
        if self._source and mark.get(_IS_UNIQUE) != self._meta.get(_IS_UNIQUE):
            raise PlaceRefusedError(
                f"{self.names.label}: its index, {index}, has other keys: unique_over_sources was declared otherwise. "
                "Give the view another name"
            )
        if mark != self._meta:
            try:
                self.put_mapping()
            except Refused as refused:
                if self._source:
                    raise PlaceRefusedError(self._unlike_others(refused)) from None
                self._replace(refused)
                return
        aliases = content.get("aliases", {})
        if any(
            name not in aliases or aliases[name].get("filter") != what.get("filter")
            for name, what in self._aliases.items()
        ):
            actions = [{"add": {"index": index, "alias": name, **what}} for name, what in self._aliases.items()]
            ask(self._client, f"adding aliases to {index}", "POST", "/_aliases", {"actions": actions})

    def put_mapping(self) -> None:
        self._put("changing the mapping", f"{path(self.names.index)}/_mapping", lambda mappings: mappings)

    def _unlike_others(self, refused: Refused) -> str:
        index, said = self.names.index, refused.reason[:300].rstrip(". ")
        return (
            f"{self.names.label}: its fields in the source {self._source[0]} do not fit its index, {index}, which "
            f"another source, or an earlier declaration, made: {said}. Give the column the same type in all "
            "sources, or say the field's mapping, e.g. fields={'NAME': {'type': 'long'}}, and give the view another "
            f"name; or DELETE /{index}, which each source then fills again"
        )

    def _replace(self, refused: Refused) -> None:
        """Delete and create the index, after a trial index took the mapping: a mistake must not cost the view."""
        self._delete(self.names.check)
        try:
            self._create(self.names.check, {})
        finally:
            self._delete(self.names.check)
        why = refused.reason[:300]
        _log.warning("index deleted and created: its mapping cannot be changed", index=self.names.index, reason=why)
        self._delete(self.names.index)
        self._create(self.names.index, self._aliases)

    def _create(self, index: str, aliases: dict[str, Any]) -> None:
        content = {"settings": {"index": _SETTINGS}, "aliases": aliases}
        try:
            self._put(f"creating index {index}", path(index), lambda mappings: {**content, "mappings": mappings})
        except Refused as refused:
            if refused.kind == "resource_already_exists_exception":
                raise _ThereAlreadyError(
                    f"{self.names.label}: the index {index} came while it was being created: by an earlier request of "
                    f"viewtail's, which took Elasticsearch long, or by another program. {RETRIES}"
                ) from None
            if refused.status == 400 and refused.kind in _ABOUT_THE_MAPPING:
                raise DeclarationError(
                    f"{self.names.label}: Elasticsearch refuses its fields: {refused.reason[:500]} Change `fields` of "
                    "the view"
                ) from None
            raise

    def _put(self, doing: str, target: str, body: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Send the mapping; replaces field types that this server lacks by their substitutes."""
        mappings = {
            "dynamic": "strict",
            "_meta": {"viewtail": self._meta},
            "properties": {**self._properties, **self._own_fields},
        }
        try:
            ask(self._client, doing, "PUT", target, body(mappings))
            return
        except Refused as refused:
            match = _LACKING.search(refused.reason)
            kind = match[1] if match else ""
            lacking = [name for name in self._derived if self._properties[name].get("type") == kind]
            if kind not in OPTIONAL_FIELD_TYPES or not lacking:
                raise
        self._properties.update(dict.fromkeys(lacking, OPTIONAL_FIELD_TYPES[kind]))
        _log.warning(
            "this Elasticsearch lacks a field type: ranges and sorting of these fields go by text",
            index=self.names.index,
            fields=sorted(lacking),
            type=kind,
            instead=OPTIONAL_FIELD_TYPES[kind]["type"],
        )
        self._put(doing, target, body)

    def _delete(self, index: str) -> None:
        """Delete an index; does nothing if it is gone already."""
        ask(self._client, f"deleting index {index}", "DELETE", f"{path(index)}?ignore_unavailable=true")


def mark_in(content: dict[str, Any]) -> dict[str, Any]:
    """The mark that viewtail recorded in an index that it created; empty for other indices."""
    meta = content.get("mappings", {}).get("_meta") or {}
    mark = meta.get("viewtail")
    return mark if isinstance(mark, dict) else {}


OURS = "viewtail-*,viewtail.*"  # viewtail's index names, which it may read


def marks(client: Elasticsearch, views: Collection[str]) -> dict[str, dict[str, Any]]:
    """The indices that viewtail created for these views (ids), of all copies: by name, what it recorded in each.

    Raises Refused."""
    options = "expand_wildcards=all&filter_path=*.mappings._meta"
    indices = ask(client, "looking whose indices are", "GET", f"/{quote(OURS, safe=',')}/_mapping?{options}")
    noted = {index: mark_in(content) for index, content in indices.items()}
    return {index: mark for index, mark in noted.items() if mark.get("view") in views}


def why_refused(claimant: Claimant, view: str, noted: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The reason why the claimant does not get a view's indices, by what is recorded in each; None if it does."""
    for index, mark in noted.items():
        place = f"the Elasticsearch index {index}"
        owners, is_released = _whose(claimant, mark)
        if why := refusal(
            view, place, MEND, claimant=claimant, owners=owners, is_released=is_released, holds=lambda: True
        ):
            return why
    return None


def why_stays(claimant: Claimant, view: str, mark: Mapping[str, Any]) -> str | None:
    """The reason why an index with that mark stays when the view is forgotten; None if it is the claimant's."""
    owners, is_released = _whose(claimant, mark)
    return why_not_dropped(view, claimant=claimant, owners=owners, is_released=is_released)


def owners_in(marks: Iterable[Mapping[str, Any]]) -> list[PlaceOwner]:
    """The deployments that own indices with these marks."""
    return [owner for mark in marks if (owner := PlaceOwner.of_json(mark.get("owner"))) is not None]


def _whose(claimant: Claimant, mark: Mapping[str, Any]) -> tuple[list[PlaceOwner], bool]:
    """The recorded owner, and whether the claimant gave the index up."""
    return owners_in([mark]), mark.get("released_by") == claimant.id
