"""The index behind a SearchIndex view: its names, its mapping, and making the server agree with the declaration.

A view `city` has the index `viewtail-city` and two aliases. Readers use `city`, which hides tombstones. viewtail
writes through `viewtail.write-city`, with require_alias: an alias goes with its index, so a bulk request can never
create an index anew, without mapping and filter, when somebody deleted it. An index or alias of these names that
viewtail did not make is left alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import orjson
import structlog
from elasticsearch import Elasticsearch

from changes.errors import DeclarationError, StoreUnavailableError
from changes.rendering import OPTIONAL_FIELD_TYPES, search_mapping
from projectors.bound_views import BoundView
from projectors.stores import PlaceRefusedError
from projectors.stores.elasticsearch.requests import Refused, ask
from projectors.stores.elasticsearch.views import SearchIndex

_log = structlog.get_logger("viewtail.elasticsearch")

DELETED = "viewtail_deleted"
POSITION = "viewtail_position"

PRESENT = {"bool": {"must_not": {"term": {DELETED: True}}}}
_OWN_FIELDS: dict[str, Any] = {
    DELETED: {"type": "boolean"},
    POSITION: {"type": "keyword", "index": False, "doc_values": False},
}
_SETTINGS = {
    # One shard is one failure unit, and has one witness.
    "number_of_shards": 1,
    # No copy on a single node, where one could never be placed and the cluster would stay yellow; else one.
    "auto_expand_replicas": "0-1",
    # Acknowledged means on disk, whatever an index template of the cluster says.
    "translog": {"durability": "request"},
}
_LACKING = re.compile(
    r"mapper type \[(\w+)\] declared on field|No handler for type \[(\w+)\] declared on field"
)
_ABOUT_THE_MAPPING = frozenset(
    {
        "mapper_parsing_exception",
        "illegal_argument_exception",
        "invalid_index_name_exception",
        "parse_exception",
    }
)
_TRIES = 3

Properties = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a view is called in Elasticsearch."""

    label: str  # for messages
    index: str
    alias: str  # for readers
    write_alias: str
    check: str  # an index that exists for a moment, to try a mapping

    @classmethod
    def of(cls, view: BoundView) -> Names:
        """The names; rules.py has refused a view whose name cannot be an index's."""
        name = view.view.name
        return cls(
            label=f"SearchIndex({name!r})",
            index=f"viewtail-{name}",
            alias=name,
            write_alias=f"viewtail.write-{name}",
            check=f"viewtail.check-{name}",
        )


def path(name: str) -> str:
    """A name as a part of a request's address."""
    return "/" + quote(name, safe="")


def mapping_of(view: BoundView) -> tuple[Properties, frozenset[str]]:
    """The mapping of a view's fields, and those of them whose mapping was derived from the column's type."""
    declared = view.view
    assert isinstance(declared, SearchIndex)
    given = declared.mapping
    derived = {column.name: search_mapping(column) for column in view.values if column.name not in given}
    properties = {name: dict(given[name]) if name in given else derived[name] for name in declared.fields}
    return properties, frozenset(derived)


def make_ready(client: Elasticsearch, view: BoundView) -> None:
    """Create the index and its aliases, or bring those that are there in line with the declaration.

    Raises PlaceRefusedError or DeclarationError for this view alone, StoreError or StoreUnavailableError for what
    concerns them all; somebody else's index is not touched.
    """
    try:
        _make_ready(client, view, Names.of(view))
    except Refused as refused:
        raise PlaceRefusedError(
            f"{Names.of(view).label}: making its index ready failed: {refused.status} {refused.kind}: "
            f"{refused.reason[:500]} Mend that in Elasticsearch"
        ) from None


def _make_ready(client: Elasticsearch, view: BoundView, names: Names) -> None:
    properties, derived = mapping_of(view)
    for _ in range(_TRIES):
        found = _look(client, names)
        _require_ours(found, names, view)
        if names.index in found:
            _adapt(client, view, names, found[names.index], properties, derived)
            return
        if _create(client, view, names, properties, derived):
            return
    raise StoreUnavailableError(
        f"{names.label}: the index {names.index} is made and deleted by somebody else at the same time; "
        "viewtail tries again by itself"
    )


def _look(client: Elasticsearch, names: Names) -> dict[str, Any]:
    wanted = ",".join(path(name)[1:] for name in (names.index, names.alias, names.write_alias))
    try:
        found = ask(client, "looking at indices", "GET", f"/{wanted}?ignore_unavailable=true")
    except Refused as refused:
        if refused.status == 404:
            return {}
        raise
    return dict(found)


def _require_ours(found: dict[str, Any], names: Names, view: BoundView) -> None:
    for index, content in found.items():
        meta = content.get("mappings", {}).get("_meta", {})
        if (
            index == names.index
            and isinstance(meta.get("viewtail"), dict)
            and meta["viewtail"].get("view") == view.id
        ):
            continue
        ours = (names.index, names.alias, names.write_alias)
        taken = index if index in ours else next(name for name in ours if name in content["aliases"])
        what = f"an index {taken}" if taken == index else f"an alias {taken} of the index {index}"
        raise PlaceRefusedError(
            f"{names.label}: there is {what} that viewtail did not make; it is left alone. Rename the view, or delete "
            "what is there if nobody needs it"
        )


def _adapt(
    client: Elasticsearch,
    view: BoundView,
    names: Names,
    content: dict[str, Any],
    properties: Properties,
    derived: frozenset[str],
) -> None:
    """New fields are added; where a field changed, the index is made anew: the view is filled again anyway."""
    if content["mappings"]["_meta"]["viewtail"] != _meta(view, properties):
        try:
            _put(
                names,
                properties,
                derived,
                lambda fields: ask(
                    client,
                    "mapping",
                    "PUT",
                    f"{path(names.index)}/_mapping",
                    _mappings(view, properties, fields),
                ),
            )
        except Refused as refused:
            _replace(client, view, names, properties, derived, refused)
            return
    aliases = content.get("aliases", {})
    wanted = _aliases(names)
    if any(alias not in aliases for alias in wanted) or aliases[names.alias].get("filter") != PRESENT:
        actions = [{"add": {"index": names.index, "alias": name, **what}} for name, what in wanted.items()]
        ask(client, f"adding aliases to {names.index}", "POST", "/_aliases", {"actions": actions})


def _replace(
    client: Elasticsearch,
    view: BoundView,
    names: Names,
    properties: Properties,
    derived: frozenset[str],
    refused: Refused,
) -> None:
    """Delete and create; first try the mapping on an index of its own, lest a mistake in views.py cost the view."""
    _delete(client, names.check)
    try:
        _create(client, view, names, properties, derived, at=names.check)
    finally:
        _delete(client, names.check)
    _log.warning(
        "index made anew: its mapping cannot be changed", index=names.index, reason=refused.reason[:300]
    )
    _delete(client, names.index)
    _create(client, view, names, properties, derived)


def _create(
    client: Elasticsearch,
    view: BoundView,
    names: Names,
    properties: Properties,
    derived: frozenset[str],
    at: str | None = None,
) -> bool:
    """Whether it was made; False when another made it meanwhile."""
    index = at or names.index

    def put(fields: Properties) -> None:
        body: dict[str, Any] = {
            "settings": {"index": _SETTINGS},
            "mappings": _mappings(view, properties, fields),
        }
        if at is None:
            body["aliases"] = _aliases(names)
        ask(client, f"creating index {index}", "PUT", path(index), body)

    try:
        _put(names, properties, derived, put)
    except Refused as refused:
        if refused.kind == "resource_already_exists_exception":
            return False
        if refused.status == 400 and refused.kind in _ABOUT_THE_MAPPING:
            raise DeclarationError(
                f"{names.label}: Elasticsearch refuses its fields: {refused.reason[:500]} Change `fields` of the view"
            ) from None
        raise
    return True


def _put(
    names: Names, properties: Properties, derived: frozenset[str], put: Callable[[Properties], object]
) -> None:
    """`put` the mapping, with what serves instead of field types that this server lacks."""
    fields = dict(properties)
    for _ in range(1 + len(OPTIONAL_FIELD_TYPES)):
        try:
            put(fields)
            return
        except Refused as refused:
            found = _LACKING.search(refused.reason)
            kind = (found[1] or found[2]) if found else ""
            lacking = [name for name in derived if fields[name].get("type") == kind]
            if kind not in OPTIONAL_FIELD_TYPES or not lacking:
                raise
        fields.update((name, OPTIONAL_FIELD_TYPES[kind]) for name in lacking)
        _log.warning(
            "field type is not there on this Elasticsearch: ranges and sorting go by text",
            index=names.index,
            fields=sorted(lacking),
            type=kind,
            instead=OPTIONAL_FIELD_TYPES[kind]["type"],
        )


def _delete(client: Elasticsearch, index: str) -> None:
    ask(client, f"deleting index {index}", "DELETE", f"{path(index)}?ignore_unavailable=true")


def _mappings(view: BoundView, wanted: Properties, fields: Properties) -> dict[str, Any]:
    return {
        "dynamic": "strict",
        "_meta": {"viewtail": _meta(view, wanted)},
        "properties": {**fields, **_OWN_FIELDS},
    }


def _meta(view: BoundView, wanted: Properties) -> dict[str, str]:
    digest = hashlib.sha256(orjson.dumps(wanted, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return {"view": view.id, "fingerprint": view.fingerprint, "mapping": digest}


def _aliases(names: Names) -> dict[str, Any]:
    return {names.alias: {"filter": PRESENT}, names.write_alias: {}}
