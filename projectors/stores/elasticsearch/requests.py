"""Sends every request to Elasticsearch, and maps its answers to viewtail's errors in one table.

A request that was understood and refused for its content (400, 404, 413) raises `Refused`, and so does one that alone
needs more memory than the node may use (429); the caller knows what that means. Everything else becomes a ViewtailError
here. Documents never get into a message: Elasticsearch quotes values in the reasons that it gives for documents, so
bulk.py cuts those."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from elastic_transport import ConnectionTimeout, TransportError
from elasticsearch import ApiError, Elasticsearch, UnsupportedProductError
from elasticsearch.serializer import CompatibilityModeJsonSerializer

from projectors.stores.elasticsearch.limits import memory_exceeded
from viewtail.changes.errors import RETRIES, StoreError, StoreUnavailableError, ViewtailError
from viewtail.servers.certificates import why_ended, why_refused

JSON = "application/vnd.elasticsearch+json; compatible-with=9"
NDJSON = "application/vnd.elasticsearch+x-ndjson; compatible-with=9"
INDEX_GONE = "index_not_found_exception"

_RETRYABLE = frozenset({408, 429, 502, 503, 504})


class Refused(Exception):
    """An answer about the content of this request: 400, 404, 409, 413 and the like, or 429 if it never fits."""

    def __init__(self, status: int, kind: str, reason: str) -> None:
        super().__init__(f"{status} {kind}")
        self.status = status
        self.kind = kind  # Elasticsearch's error type; '' if it gave none
        self.reason = reason  # its text, which may quote the request


class OverloadedError(StoreUnavailableError):
    """The server is up but accepts no more at the moment."""


class _Serializer(CompatibilityModeJsonSerializer):
    """Reads answers with orjson, in a third of the time; falls back for what orjson refuses (a lone surrogate)."""

    def json_loads(self, data: bytes) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return super().json_loads(data)


SERIALIZER = _Serializer()


@contextmanager
def unrefused(doing: str, then: str = "") -> Iterator[None]:
    """Convert Refused to StoreError, for requests that have nothing of a document in them.

    `then` ends the message with what to do."""
    try:
        yield
    except Refused as refused:
        raise StoreError(f"Elasticsearch: {doing} failed: {refused.status} {refused.kind}{then}") from None


def ask(
    client: Elasticsearch, doing: str, method: str, target: str, body: Any = None, content: str = JSON
) -> dict[str, Any]:
    """Send a request and return the parsed answer. `doing` is for messages: 'writing', 'creating index x'."""
    answer = send(client, doing, method, target, body, content)
    if not isinstance(answer, dict):
        # Elasticsearch only answers with objects: this is a proxy's page, or an answer whose head was cut off.
        raise StoreUnavailableError(
            f"Elasticsearch: {doing} failed: the answer is not a JSON object. {RETRIES}; does a "
            "proxy between them answer in its place, or cut answers short?"
        )
    return answer


def send(client: Elasticsearch, doing: str, method: str, target: str, body: Any = None, content: str = JSON) -> Any:
    """The same as `ask`, for a caller that checks itself whether the answer is complete."""
    headers = {"accept": JSON} if body is None else {"accept": JSON, "content-type": content}
    try:
        return client.perform_request(method, target, headers=headers, body=body).body
    except UnsupportedProductError:
        raise StoreError(
            "Elasticsearch: what answers at this address is not Elasticsearch. Check VIEWTAIL_ELASTICSEARCH__URL"
        ) from None
    except ApiError as error:
        refused = Refused(error.meta.status, *_cause(error.body))
        raise trouble(refused.status, refused.kind, refused.reason, doing) or refused from None
    except TransportError as error:
        raise StoreUnavailableError(
            f"{place_of(client)}: {doing} failed: {short(error)}. {RETRIES}; {why_silent(client, error)}"
        ) from None


def trouble(status: int, kind: str, reason: str, doing: str) -> ViewtailError | None:
    """The error for a refused request, or for one item of a bulk; None if it is about the document or the request."""
    said = f"Elasticsearch: {doing} failed: {status} {kind}".rstrip()
    if kind == "cluster_block_exception":
        return StoreUnavailableError(_blocked(reason))
    if kind == "index_closed_exception":
        return StoreUnavailableError(f"{said}. Open the index (POST /INDEX/_open); viewtail then goes on by itself")
    if status == 401:
        return StoreError(f"{said}. Check the user and password, or the API key, of viewtail in Elasticsearch")
    if status == 403:
        return StoreError(
            f"{said}. Give viewtail's user the privileges manage, read and write on the indices viewtail-*, "
            "viewtail.* and on the names of its views"
        )
    if status == 429 and memory_exceeded(reason):
        return None
    if status in _RETRYABLE:
        return OverloadedError(f"{said}. {RETRIES}; see GET /_cluster/health if it stays so")
    if status >= 500:
        return StoreUnavailableError(f"{said}. {RETRIES}; the server's log says what is wrong")
    return None


def _blocked(reason: str) -> str:
    # The reason is about the index and the block, never about a document.
    said = f"Elasticsearch refuses writes: {reason[:300]}"
    if "flood-stage" in reason:
        return (
            f"{said} The disk of the node is nearly full: make room or add a node. The server then lifts the block, or "
            'you do: PUT /INDEX/_settings {"index.blocks.read_only_allow_delete": null}. viewtail goes on by itself'
        )
    return (
        f"{said} Somebody set that block. Lift it: PUT /INDEX/_settings "
        '{"index.blocks.write": null, "index.blocks.read_only": null}. viewtail then goes on by itself'
    )


def _cause(body: Any) -> tuple[str, str]:
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        causes = error.get("root_cause")
        # A search says 'all shards failed', and has the cause in root_cause.
        is_sum = error.get("type") == "search_phase_execution_exception"
        cause = causes[0] if is_sum and causes else error
        return str(cause.get("type", "")), str(cause.get("reason", ""))
    return "", str(error or "")


def place_of(client: Elasticsearch) -> str:
    """The server as text: 'Elasticsearch at HOST:PORT'."""
    node = next(iter(client.transport.node_pool.all())).config
    return f"Elasticsearch at {node.host}:{node.port}"


def why_silent(client: Elasticsearch, error: TransportError, certificate: Path | None = None) -> str:
    """The client's message about the failed connection, and what to do. `certificate` is the client's own."""
    config, said = next(iter(client.transport.node_pool.all())).config, str(error.message)
    if mend := why_refused(said, certificate) or why_ended(said, certificate):
        return mend
    check = "check VIEWTAIL_ELASTICSEARCH__URL"
    if isinstance(error, ConnectionTimeout):
        return f"it hangs, a firewall drops what is sent to it, or another program listens there; {check}"
    if "BadStatusLine" in said:
        return f"what listens there does not speak HTTP; {check}"
    if config.scheme == "http" and any(words in said for words in ("closed", "aborted", "isconnected", "reset")):
        return f"it is stopping, it wants https://, or another program listens there; {check}"
    return f"is the server up? Otherwise {check}"


def short(error: TransportError) -> str:
    """The kind of failure; the text of a SerializationError is left out, because it would quote the answer."""
    said = str(error.message) if type(error).__name__ != "SerializationError" else "the answer is not JSON"
    return f"{type(error).__name__}: {said[:200]}"
