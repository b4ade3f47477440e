"""Takes over the index that another tool keeps under a search view's name.

The index is cloned to viewtail's own name for it, which links its files and copies none of them, and gets viewtail's
fields; one request then leads readers there. A former index behind an alias stays, and refuses writes; one that had the
view's name itself goes with that request, since an alias takes its name. Documents keep the versions that they have.

An index that no clone of can be the view's, since its mapping is another one, say, stays as it is until a copy of the
view, which the pipeline builds beside it as for a rebuild, takes its place (swapping.py): `take` notes that it may.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from elasticsearch import Elasticsearch

from projectors import failpoints
from projectors.stores import Adoption
from projectors.stores.elasticsearch.index import (
    CLONED_SETTINGS,
    IndexNames,
    aliases_of,
    leaving,
    left_by_adopt,
    mark_in,
    path,
    put_mapping,
    refuses_writes,
    still_blocked,
    unlike_declared,
    why_refused,
)
from projectors.stores.elasticsearch.requests import Refused, ask
from projectors.stores.owners import Claimant
from projectors.views import BoundView
from viewtail.changes.errors import StoreError, StoreUnavailableError, ViewtailError
from viewtail.changes.versions import LEAST_OF_BINLOGS

CLONED_WITHIN = "20s"  # a request; the client gives up after 30 s
CLONED_IN_ALL_S = 120.0
LOOK_EVERY_S = 1.0
_ACTING = {  # settings that a clone keeps, by which Elasticsearch itself changes or deletes documents
    "lifecycle.name": "index lifecycle management would roll the view over or delete it",
    "default_pipeline": "Elasticsearch would change what viewtail writes",
    "final_pipeline": "Elasticsearch would change what viewtail writes",
    "mode": "such an index does not keep documents as they are written",
}
_PLAIN_SOURCE = {"enabled": True, "includes": [], "excludes": [], "mode": "stored"}
_HARMLESS = ("_none", "standard", "")


def unlike_kept(content: dict[str, Any]) -> str | None:
    """What an index has by which documents do not stay as they are written, and what to do; None if nothing."""
    settings, mappings = content["settings"]["index"], content.get("mappings", {})
    for name, why in _ACTING.items():
        if (value := _setting(settings, name)) not in _HARMLESS:
            return (
                f"its setting index.{name} is {value}: {why}. With that taken off before (PUT INDEX/_settings "
                f'{{"index.{name}": null}}), it is taken over in place'
            )
    source = mappings.get("_source", {})
    if any(source.get(name) not in (None, plain) for name, plain in _PLAIN_SOURCE.items()):
        return "it does not keep the whole _source, by which viewtail compares"
    if mappings.get("_routing", {}).get("required"):
        return "it requires a routing, which viewtail gives none"
    return None


def _setting(settings: dict[str, Any], name: str) -> str:
    """A setting; Elasticsearch answers with nested ones."""
    value: Any = settings
    for part in name.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return str(value)


class IndexAdoption(Adoption):
    """Adopts the index of one view, over a client of its own."""

    def __init__(self, client: Elasticsearch, view: BoundView, claimant: Claimant) -> None:
        self._client, self._view, self._claimant = client, view, claimant
        self._names = IndexNames(view)

    def refusal(self, *, drops_extra: bool) -> str | None:
        indices = self._looked(self._names.alias)
        if self._is_ours(indices):
            return why_refused(self._claimant, self._view.view.id, {name: mark_in(of) for name, of in indices.items()})
        why = "there is neither such an index nor an alias" if not indices else self._why_not(indices)
        if why is None and not drops_extra:
            why = self._of_what_goes(indices)
        if why is None:
            return None
        left = [left for index, content in indices.items() for left in left_by_adopt(index, content)]
        return ". Besides, ".join([f"{self._names.label}: {why}", *left])

    def beside(self) -> str | None:
        indices = self._looked(self._names.alias)
        if len(indices) != 1 or self._is_ours(indices):
            return None
        ((index, content),) = indices.items()
        return self._of_index(index, content) or self._of_versions(index)

    def _of_what_goes(self, indices: dict[str, Any]) -> str | None:
        """An index with the view's name itself is nowhere any more when a copy has taken its place."""
        if self._names.alias not in indices or (why := self.beside()) is None:
            return None
        return (
            f"{why}. Else have a new index, built from the table, take its place: viewtail adopt {self._view.id} "
            f"--drop-extra. Then the index {self._names.alias} goes, with its documents that no row is for and its "
            "fields that are not declared; POST /INDEX/_clone/TARGET keeps it under another name"
        )

    def _why_not(self, indices: dict[str, Any]) -> str | None:
        """The reason why readers cannot be led away from what they have."""
        if len(indices) > 1:
            return f"the alias leads to several indices: {', '.join(sorted(indices))}. Give the view an alias of one"
        ((index, content),) = indices.items()
        alias = content.get("aliases", {}).get(self._names.alias, {})
        if mark_in(content):
            return f"the index {index} is another viewtail view's"
        if {"filter", "index_routing", "search_routing"} & alias.keys():
            return "the alias has a filter or a routing, which viewtail's has not. Give the view an alias without them"
        if "data_stream" in content:
            return f"{index} is of the data stream {content['data_stream']}, which is not taken over"
        if others := sorted(
            content.get("aliases", {}).keys() - {self._names.alias, self._names.blocked, self._names.replaced}
        ):
            return (
                f"the index {index} has other aliases too: {', '.join(others)}. Their readers would stay on the old "
                "index, where nothing changes any more. Have them use the view's alias and take these off: POST "
                '/_aliases {"actions": [{"remove": {...}}]}'
            )
        return self._of_clone()

    def _of_index(self, index: str, content: dict[str, Any]) -> str | None:
        """What an index has for good, or a clone of it would have, so that it cannot be the view's."""
        if (shards := content["settings"]["index"].get("number_of_shards")) != "1":
            return (
                f"the index {index} has {shards} shards, and a view is kept in one. Shrunk before (POST "
                f"/{index}/_shrink/TARGET, and lead the alias there), it is taken over in place"
            )
        if (why := unlike_kept(content)) is not None:
            return f"the index {index}: {why}"
        if unlike := unlike_declared(self._view, content.get("mappings", {}).get("properties", {})):
            return (
                f"the index {index} has another mapping, which an index keeps for good: {'; '.join(unlike)}. With the "
                "fields declared as they are there, it is taken over in place"
            )
        return None

    def _of_clone(self) -> str | None:
        own = self._names.index
        there = self._looked(own).get(own)
        if there is None:
            return None
        aliases = there.get("aliases", {}).keys()
        if self._names.unfinished not in aliases:
            return f"there is an index {own} that no adopt left unfinished. Delete it if nobody needs it"
        if others := sorted(aliases - {self._names.unfinished}):
            return f"{own} is in use already, by {', '.join(others)}: take these aliases off"
        return None

    def _of_versions(self, index: str) -> str | None:
        with self._told():
            ask(self._client, "refreshing", "POST", f"{path(index)}/_refresh")
            largest = {"size": 1, "version": True, "_source": False, "sort": [{"_version": "desc"}]}
            hits = ask(self._client, "reading versions", "POST", f"{path(index)}/_search", largest)["hits"]["hits"]
        if not hits or hits[0]["_version"] < LEAST_OF_BINLOGS:
            return None
        return (
            f"the document {hits[0]['_id']} has the version {hits[0]['_version']}, as large as viewtail's, so changes "
            "to it would be taken for older ones"
        )

    def steps(self) -> list[str]:
        indices = self._looked(self._names.alias)
        if not indices or self._is_ours(indices):
            return []
        ((index, content),) = indices.items()
        alias, own = self._names.alias, self._names.index
        if (why := self.beside()) is not None:
            return [
                f"build a new index from the table, beside {index}, since {why}",
                f"compare it with the table, and {self._leading(index, 'it')}; what no row is for is not in it",
            ]
        stays = "" if index == alias else f"; {index} stays, and refuses writes"
        since = ", which an adopt that was cut off had begun," if self._names.blocked in content["aliases"] else ""
        return [
            f"have the index {index} refuse writes{since} and clone it to {own}, which links its files",
            f"add viewtail's fields to the mapping of {own}",
            f"{self._leading(index, own)}{stays}",
        ]

    def _leading(self, index: str, to: str) -> str:
        alias = self._names.alias
        if index == alias:
            return f"make {alias} an alias of {to}, in one step, in which the index {alias} goes"
        return f"lead the alias {alias} from {index} to {to}, in one step"

    def take(self, *, is_beside: bool) -> None:
        indices = self._looked(self._names.alias)
        if self._is_ours(indices):
            return
        ((index, content),) = indices.items()
        with self._told():
            if (why := self._of_clone()) is not None:
                raise StoreError(f"{self._names.label}: {why}")
            ask(self._client, "deleting a clone", "DELETE", f"{path(self._names.index)}?ignore_unavailable=true")
            if is_beside:
                self._unblock(index, content)
                self._note("add", index, self._names.replaced)
                return
            with self._blocked(index, content):
                self._clone(index)
                failpoints.reach("after clone")
                put_mapping(self._client, self._view, self._claimant)
                failpoints.reach("before leading readers")
                self._lead(index)

    def _lead(self, index: str) -> None:
        leave: list[dict[str, Any]] = [{"remove_index": {"index": index}}]
        if index != self._names.alias:
            leave = leaving(index, self._names.alias, [self._names.blocked, self._names.replaced])
        own, aliases = self._names.index, aliases_of(self._view)
        done = {"remove": {"index": own, "alias": self._names.unfinished}}
        add = [{"add": {"index": own, "alias": name, **what}} for name, what in aliases.items()]
        ask(self._client, "leading readers to the clone", "POST", "/_aliases", {"actions": [*leave, done, *add]})

    @contextmanager
    def _blocked(self, index: str, content: dict[str, Any]) -> Iterator[None]:
        """Have the index refuse writes; where readers are not led away from it, it has the block that it had before.

        An alias says that the block is adopt's, for whoever comes after a command that was killed."""
        if is_ours := self._names.blocked in content["aliases"] or not refuses_writes(content):
            self._note("add", index, self._names.blocked)
            self._set_block(index, "true")
        failpoints.reach("after block")
        try:
            yield
        except BaseException as failed:
            try:
                if is_ours and not self._is_ours(self._looked(self._names.alias)):
                    self._lift(index)
            except (ViewtailError, Refused):
                blocked = {"aliases": {self._names.blocked: {}}, "settings": {"index": {"blocks": {"write": "true"}}}}
                still = still_blocked(index, blocked)
                raise StoreError(f"{self._names.label}: adopting it failed, and {still}") from failed
            raise

    def _unblock(self, index: str, content: dict[str, Any]) -> None:
        """Take a block off that an earlier command left."""
        if self._names.blocked in content["aliases"]:
            self._lift(index)

    def _lift(self, index: str) -> None:
        self._set_block(index, None)
        self._note("remove", index, self._names.blocked)

    def _set_block(self, index: str, value: str | None) -> None:
        ask(self._client, "changing settings", "PUT", f"{path(index)}/_settings", {"index.blocks.write": value})

    def _note(self, what: str, index: str, alias: str) -> None:
        actions = [{what: {"index": index, "alias": alias}}]
        ask(self._client, "noting what is done with an index", "POST", "/_aliases", {"actions": actions})

    def _clone(self, index: str) -> None:
        body = {"settings": CLONED_SETTINGS, "aliases": {self._names.unfinished: {}}}
        target = f"{path(index)}/_clone{path(self._names.index)}?wait_for_active_shards=1&timeout={CLONED_WITHIN}"
        answer = ask(self._client, "cloning an index", "PUT", target, body)
        if not answer.get("shards_acknowledged") and not self._is_allocated():
            raise StoreUnavailableError(
                f"{self._names.label}: the clone of {index} was not ready within {CLONED_IN_ALL_S:g} s. See GET "
                "/_cluster/allocation/explain, then give the same command again"
            )

    def _is_allocated(self) -> bool:
        """Wait for the clone's shard, in short requests; return whether it is there in the end."""
        end = time.monotonic() + CLONED_IN_ALL_S
        while time.monotonic() < end:
            target = f"/_cluster/health{path(self._names.index)}"
            if ask(self._client, "looking at a clone", "GET", target)["status"] != "red":
                return True
            time.sleep(LOOK_EVERY_S)
        return False

    def _is_ours(self, indices: dict[str, Any]) -> bool:
        """Return whether readers have an index of the view, of whichever copy."""
        return [mark_in(content).get("view") for content in indices.values()] == [self._view.view.id]

    def _looked(self, name: str) -> dict[str, Any]:
        with self._told():
            return ask(self._client, "looking at an index", "GET", f"{path(name)}?ignore_unavailable=true")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Refused as refused:
            said = f"{refused.status} {refused.kind}: {refused.reason[:300]}"
            raise StoreError(f"{self._names.label}: its index cannot be adopted: {said}") from None

    def close(self) -> None:
        self._client.close()
