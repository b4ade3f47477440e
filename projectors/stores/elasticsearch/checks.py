"""Checks that the Elasticsearch cluster is fit to hold search views."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_transport import TransportError
from elasticsearch import ApiError

from projectors.stores.elasticsearch.index import BLOCKED, REPLACED, left_by_adopt, still_blocked
from projectors.stores.elasticsearch.requests import place_of, short, why_silent
from viewtail.changes.findings import Finding, expect, fail, ok, warn

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

_WHERE = "elasticsearch"


def checks(connect: Callable[[], Elasticsearch], certificate: Path | None) -> Iterator[Finding]:
    """Check the connection, the version if it can be read, health, disk flags and rights; errors become findings.

    `certificate` is the client's own."""
    with closing(connect()) as client:
        try:
            health = client.cluster.health().body
        except (ApiError, TransportError) as error:
            yield _unreachable(client, error, certificate)
            return
        yield ok(_WHERE, "reachable", health.get("cluster_name", "yes"))
        status = str(health.get("status"))
        if status in ("green", "yellow"):
            yield ok(_WHERE, "cluster health", status)
        else:
            why = "some shard has no copy at the moment; writes to it wait"
            yield warn(_WHERE, "cluster health", status, why, "GET _cluster/allocation/explain says why")
        yield from _version(client)
        yield from _disk(client)
        yield from _adopted(client)


def _version(client: Elasticsearch) -> Iterator[Finding]:
    try:
        nodes: dict[str, Any] = client.nodes.info(filter_path="nodes.*.version").body["nodes"]
    except (ApiError, TransportError):
        yield warn(_WHERE, "version", "not known", "it should be 8 or 9", "allow the user the privilege monitor")
        return
    versions = sorted({str(node.get("version", "?")) for node in nodes.values()})
    seen = ", ".join(versions)
    is_new = all(re.match(r"[89]|\d\d", version) for version in versions)
    why, mend = "viewtail's client speaks to 8 and 9", "use Elasticsearch 8 or newer"
    yield expect(is_new, _WHERE, "version", seen, why, mend)


def _disk(client: Elasticsearch) -> Iterator[Finding]:
    try:
        indices = client.indices.get_settings(name="index.blocks.*", expand_wildcards="all").body
    except (ApiError, TransportError):
        return
    flagged = [name for name, settings in indices.items() if "read_only_allow_delete" in str(settings)]
    blocked = [name for name in flagged if not name.startswith(".")]
    seen = f"write-blocked: {', '.join(blocked[:5])}" if blocked else "no index is write-blocked"
    why = "a node's disk passed the flood-stage watermark, so these indices take no writes"
    mend = 'free disk space, then: PUT INDEX/_settings {"index.blocks.read_only_allow_delete": null}'
    yield expect(not blocked, _WHERE, "disk", seen, why, mend)


def _adopted(client: Elasticsearch) -> Iterator[Finding]:
    try:
        found = client.indices.get(index=f"{BLOCKED}*,{REPLACED}*", expand_wildcards="all").body
    except (ApiError, TransportError):
        return
    for index, content in sorted(found.items()):
        for left in left_by_adopt(index, content):
            why, _, mend = left.partition(". ")
            seen = "write-blocked" if left == still_blocked(index, content) else "to give its place to a copy"
            yield warn(_WHERE, "adopt", f"{index} is {seen}", why, mend)


def _unreachable(client: Elasticsearch, error: ApiError | TransportError, certificate: Path | None) -> Finding:
    status = error.meta.status if isinstance(error, ApiError) else 0
    if status in (401, 403):
        why = "user, password or API key are not accepted, or lack the privilege monitor"
        mend = "correct VIEWTAIL_ELASTICSEARCH__URL, __USER and __PASSWORD, or __API_KEY"
        return fail(_WHERE, "reachable", f"{place_of(client)}: HTTP {status}", why, mend)
    why = "nothing can be written"
    if isinstance(error, TransportError):
        return fail(
            _WHERE, "reachable", f"{place_of(client)}: {short(error)}", why, why_silent(client, error, certificate)
        )
    mend = "what answers there is not Elasticsearch, or one that cannot work: check VIEWTAIL_ELASTICSEARCH__URL"
    return fail(_WHERE, "reachable", f"{place_of(client)}: HTTP {status}", why, mend)
