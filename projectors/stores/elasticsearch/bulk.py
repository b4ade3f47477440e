"""Bulk requests: sending them, and looking at what became of each item.

A bulk answers 200 whatever happened to its items. 409 is a superseded write, which is fine; 429 and 5xx are sent
again, just those; 400 is a document that the index refuses, for the dead letters; a whole request that is refused is
halved until the document is found that it is about.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from elasticsearch import Elasticsearch

from projectors.stores import Item, parked
from projectors.stores.elasticsearch.index import mapping_of
from projectors.stores.elasticsearch.limits import limit_met
from projectors.stores.elasticsearch.requests import INDEX_GONE, NDJSON, OverloadedError, Refused, send, trouble
from projectors.views import BoundView
from viewtail.changes.errors import RETRIES, StoreError, StoreUnavailableError, ViewtailError
from viewtail.changes.writes import Parked

# Without require_alias a bulk creates an index that is gone, and one without mapping and filter.
_ERROR = "items.*.error"
_TARGET = f"/_bulk?require_alias=true&filter_path=items.*.status,{_ERROR}.type,{_ERROR}.reason,{_ERROR}.caused_by"
_DOING = "writing"
_FINE = frozenset({200, 201, 409})
_PAUSES_S = (0.05, 0.2, 0.8, 2.0)  # between tries of what the server was too busy for

_FIELD = re.compile(r'field(?:=| )["\[]([^"\]]{1,200})["\]]')
_INTRODUCED = re.compile(r"introduction of \[([\w.\- ]{1,100})\]")


@dataclass(slots=True)
class Chunk:
    """Items of one bulk request; parallel lists."""

    views: list[BoundView]
    items: list[Item]
    lines: list[bytes]  # two in each item's

    def __len__(self) -> int:
        return len(self.items)

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.lines)) + len(self.lines)

    @property
    def body(self) -> bytes:
        return b"\n".join(self.lines) + b"\n"

    def only(self, places: Sequence[int]) -> Chunk:
        lines = [self.lines[at] for at in places]
        return Chunk([self.views[at] for at in places], [self.items[at] for at in places], lines)

    def halves(self) -> tuple[Chunk, Chunk]:
        middle = len(self) // 2
        return self.only(range(middle)), self.only(range(middle, len(self)))


@dataclass(frozen=True, slots=True)
class Replacement:
    """What deletes a document, and what is written in its place: in one request, so that readers miss it for no time.

    One of the two may be missing.
    """

    delete: Sequence[bytes]  # a line
    write: Sequence[bytes]  # its two lines in one

    @property
    def count(self) -> int:
        """Of a bulk request's items."""
        return bool(self.delete) + bool(self.write)

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.delete)) + sum(map(len, self.write))


def deliver(client: Elasticsearch, chunk: Chunk, pause: Callable[[float], Any] = time.sleep) -> list[Parked]:
    """Send until each item is acknowledged or refused for good; returns the latter.

    Raises StoreUnavailableError, StoreError.
    """
    refused: list[Parked] = []

    def attempt() -> ViewtailError | None:
        nonlocal chunk
        waiting, busy = _sort(chunk, ask_bulk(client, _TARGET, chunk.body, len(chunk)), refused)
        chunk = chunk.only(waiting)
        return busy

    try:
        _insist(attempt, pause)
    except Refused as answer:
        return refused + _narrow(client, chunk, answer, pause)
    return refused


def replace(
    client: Elasticsearch, replacements: Sequence[Replacement], pause: Callable[[float], Any] = time.sleep
) -> None:
    """Send until each is done, or is no more what it was about.

    What an index or a proxy refuses of a document is not told: `deliver`, which must follow, is told it as well.
    Raises StoreUnavailableError, StoreError; and Refused where not even a delete alone is taken.
    """

    def attempt() -> ViewtailError | None:
        nonlocal replacements
        replacements, busy = _ask_replaced(client, replacements)
        return busy

    try:
        _insist(attempt, pause)
    except Refused as refused:
        if refused.status not in (400, 413):
            raise
        if len(replacements) > 1:
            middle = len(replacements) // 2
            replace(client, replacements[:middle], pause)
            replace(client, replacements[middle:], pause)
        elif replacements[0].write:
            replace(client, [Replacement(one.delete, ()) for one in replacements if one.delete], pause)
        else:
            raise


def _ask_replaced(
    client: Elasticsearch, replacements: Sequence[Replacement]
) -> tuple[list[Replacement], ViewtailError | None]:
    """Those to be sent again, and why. A second delete does no harm: it names the document that it is about."""
    waiting: list[Replacement] = []
    busy: ViewtailError | None = None
    lines = list(chain.from_iterable((*one.delete, *one.write) for one in replacements))
    if not lines:
        return waiting, busy
    answers = iter(ask_bulk(client, _TARGET, b"\n".join(lines) + b"\n", sum(one.count for one in replacements)))
    for one in replacements:
        # 409: something else is there by now; 400: told by `deliver`
        said = [answer for answer in islice(answers, one.count) if answer["status"] not in (*_FINE, 400, 404)]
        errors = [(answer, error) for answer in said if (error := failure_of(answer)) is not None]
        for answer, error in errors:
            if not _is_busy(answer):
                raise error
            busy = error
        if errors:
            waiting.append(one)
    return waiting, busy


def _insist(attempt: Callable[[], ViewtailError | None], pause: Callable[[float], Any]) -> None:
    """Try until the server is no longer too busy, which an attempt returns or raises; raises that after a few tries."""
    for pause_s in (*_PAUSES_S, None):
        try:
            busy = attempt()
        except OverloadedError as error:
            busy = error
        if busy is None:
            return
        if pause_s is None:
            raise busy
        pause(pause_s)


def ask_bulk(client: Elasticsearch, target: str, body: bytes, count: int) -> list[dict[str, Any]]:
    """What is said of each of the `count` items: 'status', and 'error' where there is one."""
    answer = send(client, _DOING, "POST", target, body, NDJSON)
    try:
        found = [next(iter(item.values())) for item in answer["items"]]
        is_whole = len(found) == count and all(isinstance(item["status"], int) for item in found)
    except (KeyError, TypeError, AttributeError, StopIteration):
        is_whole = False
    if not is_whole:
        raise StoreUnavailableError(
            f"Elasticsearch: the answer to a bulk request does not say what became of each of its {count} items. "
            f"{RETRIES}; does a proxy between them cut answers short?"
        )
    return found


def failure_of(answer: dict[str, Any]) -> ViewtailError | None:
    """The error behind an item's answer; None when it is about the document."""
    kind, reason = _error(answer)
    if kind == INDEX_GONE:
        return StoreUnavailableError(
            "Elasticsearch: an index of these views is gone; viewtail creates it again and backfills its view"
        )
    if reason.startswith("no write index is defined"):
        return StoreError(
            "Elasticsearch: a write alias of viewtail (viewtail.write-VIEW) leads to several indices. Take it off all "
            "but viewtail-VIEW (POST /_aliases, action remove)"
        )
    return trouble(answer["status"], kind, reason, _DOING)


def _sort(chunk: Chunk, answers: list[dict[str, Any]], refused: list[Parked]) -> tuple[list[int], ViewtailError | None]:
    """The places of the items to be sent again, and why; the refused ones go to `refused`."""
    waiting: list[int] = []
    busy: ViewtailError | None = None
    if _FINE.issuperset([answer["status"] for answer in answers]):
        return waiting, busy
    for at, answer in enumerate(answers):
        status = answer["status"]
        if status in _FINE:
            continue
        error = failure_of(answer)
        if error is None:
            view = chunk.views[at]
            kind, *reasons = _error(answer) + _causes(answer)
            refused.append(parked(view, chunk.items[at], describe(kind, reasons, mapping_of(view)[0])))
        elif _is_busy(answer):
            waiting.append(at)
            busy = error
        else:
            raise error
    return waiting, busy


def _is_busy(answer: dict[str, Any]) -> bool:
    status: int = answer["status"]
    return (status == 429 or status >= 500) and _error(answer)[0] != "cluster_block_exception"


def _narrow(client: Elasticsearch, chunk: Chunk, refused: Refused, pause: Callable[[float], Any]) -> list[Parked]:
    """A whole request was refused: too long (413), or one of its documents makes it unreadable (400)."""
    if refused.status not in (400, 413):
        raise StoreError(
            f"Elasticsearch: {_DOING} failed: {refused.status} {refused.kind}. Is a proxy in between, or something "
            "else at this address? Check VIEWTAIL_ELASTICSEARCH__URL"
        ) from None
    if len(chunk) > 1:
        return [one for half in chunk.halves() for one in deliver(client, half, pause)]
    reason = f"Elasticsearch refused it: {refused.status} {refused.kind}".rstrip()
    if refused.status == 413:
        reason = f"its {chunk.byte_count} bytes are more than Elasticsearch takes (http.max_content_length)"
    return [parked(chunk.views[0], chunk.items[0], reason)]


def describe(kind: str, reasons: Sequence[str], fields: Container[str]) -> str:
    """Error type, field, one of `fields`, and the limit that was met.

    Elasticsearch's own words quote the value, and call it a field, too.

    Args:
        reasons: that of the error, and those of what caused it.
    """
    reason = reasons[0]
    said = f"Elasticsearch refused the document: {kind}"
    if kind == "strict_dynamic_mapping_exception":
        found = _INTRODUCED.search(reason)
        name = f" {found[1]}" if found else ""
        return f"{said}: a field{name} that the view does not declare; add it to its fields"
    name = next((name for name in _FIELD.findall(reason) if name.split(".")[0] in fields), "")
    said += f" in field {name}" if name else ""
    if limit := limit_met(reasons):
        return f"{said}: {limit}"
    return f"{said}; change the field's type in the view" if name else said


def _error(answer: dict[str, Any]) -> tuple[str, str]:
    error = answer.get("error")
    if not isinstance(error, dict):
        return "", ""
    return str(error.get("type", "")), str(error.get("reason", ""))


def _causes(answer: dict[str, Any]) -> tuple[str, ...]:
    """The reasons of what caused an item's error, the outermost first."""
    found: list[str] = []
    cause = answer.get("error")
    while isinstance(cause, dict) and isinstance(cause := cause.get("caused_by"), dict):
        found.append(str(cause.get("reason", "")))
    return tuple(found)


def split(chunk: Chunk, max_bytes: int) -> Iterator[Chunk]:
    """The chunk in pieces of at most `max_bytes`, a single item aside."""
    if len(chunk) <= 1 or chunk.byte_count <= max_bytes:
        yield chunk
        return
    for half in chunk.halves():
        yield from split(half, max_bytes)
