"""Sends bulk requests, and checks the result of each item.

A bulk request answers 200 whatever happened to its items. 409 is a superseded write, which is fine; items with 429 and
5xx are sent again; 400 is a document that the index refuses, which becomes a dead letter; if a whole request is
refused, it is halved until the document at fault is found. So is one that the node's memory for writes never holds,
however little else is under way: its 429 says how much it needs, and what the limit is."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from elasticsearch import Elasticsearch

from projectors.stores import Item, parked
from projectors.stores.elasticsearch.index import mapping_of
from projectors.stores.elasticsearch.limits import limit_met, memory_exceeded
from projectors.stores.elasticsearch.requests import INDEX_GONE, NDJSON, OverloadedError, Refused, send, trouble
from projectors.views import BoundView
from viewtail.changes.errors import RETRIES, StoreError, StoreUnavailableError, ViewtailError
from viewtail.changes.writes import Parked

# Without require_alias a bulk request would create a deleted index again, without mapping and filter.
_ERROR = "items.*.error"
_TARGET = f"/_bulk?require_alias=true&filter_path=items.*.status,{_ERROR}.type,{_ERROR}.reason,{_ERROR}.caused_by"
_DOING = "writing"
WRITTEN = frozenset({200, 201})
_FINE = WRITTEN | {409}
_HALVED = (400, 413, 429)  # of a refused request
_ADDED_BYTES = 1024  # at most, to an item, as a node counts it; 156 were measured
_PAUSES_S = (0.05, 0.2, 0.8, 2.0)  # between tries while the server is too busy

_FIELD = re.compile(r'field(?:=| )["\[]([^"\]]{1,200})["\]]')
_INTRODUCED = re.compile(r"introduction of \[([\w.\- ]{1,100})\]")


@dataclass(slots=True)
class BulkChunk:
    """The items of one bulk request, as parallel lists."""

    views: list[BoundView]
    items: list[Item]
    lines: list[bytes]  # each holds an item's two lines

    def __len__(self) -> int:
        return len(self.items)

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.lines)) + len(self.lines)

    def only(self, places: Sequence[int]) -> BulkChunk:
        lines = [self.lines[at] for at in places]
        return BulkChunk([self.views[at] for at in places], [self.items[at] for at in places], lines)

    def halves(self) -> tuple[BulkChunk, BulkChunk]:
        middle = len(self) // 2
        return self.only(range(middle)), self.only(range(middle, len(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """How a chunk is kept from what is newer."""

    sent: Callable[[Elasticsearch, BulkChunk, list[Parked]], tuple[BulkChunk, list[bytes]]]
    """Which of its items are sent, each with its lines; adds those that are refused."""
    done: frozenset[int]  # the statuses of items that are done; those with 409 are otherwise sent again


BY_VERSIONS = Guard(sent=lambda _, chunk, __: (chunk, chunk.lines), done=_FINE)  # the server compares them


@dataclass(frozen=True, slots=True)
class Replacement:
    """The delete of a document and its new write, in one request, so that readers do not miss it for a moment.

    One of the two may be missing."""

    delete: Sequence[bytes]  # none, or one line
    write: Sequence[bytes]  # none, or an item's two lines in one

    @property
    def count(self) -> int:
        """The number of items of a bulk request that it takes."""
        return bool(self.delete) + bool(self.write)

    @property
    def byte_count(self) -> int:
        return sum(map(len, self.delete)) + sum(map(len, self.write))


def deliver(
    client: Elasticsearch,
    chunk: BulkChunk,
    pause: Callable[[float], Any] = time.sleep,
    guard: Guard = BY_VERSIONS,
) -> list[Parked]:
    """Send until each item is acknowledged or refused for good; returns the refused ones.

    Raises StoreUnavailableError, StoreError."""
    refused: list[Parked] = []

    def attempt() -> ViewtailError | None:
        nonlocal chunk
        chunk, lines = guard.sent(client, chunk, refused)
        if not lines:
            return None
        answers = ask_bulk(client, _TARGET, body_of(lines), len(lines))
        waiting, busy = _sort(chunk, answers, refused, guard.done)
        chunk = chunk.only(waiting)
        return busy

    try:
        _insist(attempt, pause)
    except Refused as answer:
        return refused + _narrow(client, chunk, answer, pause, guard)
    return refused


def replace(
    client: Elasticsearch, replacements: Sequence[Replacement], pause: Callable[[float], Any] = time.sleep
) -> None:
    """Send until each replacement is done, or its document is no longer the one to delete.

    It does not report documents that an index or a proxy refuses: `deliver` must follow, and reports them. Raises
    StoreUnavailableError, StoreError; and Refused if even a single delete is refused."""

    def attempt() -> ViewtailError | None:
        nonlocal replacements
        replacements, busy = _ask_replaced(client, replacements)
        return busy

    try:
        _insist(attempt, pause)
    except Refused as refused:
        if refused.status not in _HALVED:
            raise
        if len(replacements) > 1:
            middle = len(replacements) // 2
            replace(client, replacements[:middle], pause)
            replace(client, replacements[middle:], pause)
        elif replacements[0].write:
            replace(
                client,
                [Replacement(replacement.delete, ()) for replacement in replacements if replacement.delete],
                pause,
            )
        else:
            raise


def _ask_replaced(
    client: Elasticsearch, replacements: Sequence[Replacement]
) -> tuple[list[Replacement], ViewtailError | None]:
    """The replacements to send again, and the error that says why. Repeating a delete is safe: it names a version."""
    waiting: list[Replacement] = []
    busy: ViewtailError | None = None
    lines = list(chain.from_iterable((*replacement.delete, *replacement.write) for replacement in replacements))
    if not lines:
        return waiting, busy
    count = sum(replacement.count for replacement in replacements)
    answers = iter(ask_bulk(client, _TARGET, body_of(lines), count))
    for replacement in replacements:
        if (error := _why_again(islice(answers, replacement.count))) is not None:
            waiting.append(replacement)
            busy = error
    return waiting, busy


def _why_again(answers: Iterable[dict[str, Any]]) -> ViewtailError | None:
    """The error behind answers to repeat the request for; None if there is none. Raises any other error."""
    busy: ViewtailError | None = None
    for answer in answers:
        if answer["status"] in _FINE or answer["status"] in (400, 404):  # `deliver` reports what is refused
            continue
        error = failure_of(answer)
        if error is not None and not _is_busy(answer):
            raise error
        busy = error or busy
    return busy


def _insist(attempt: Callable[[], ViewtailError | None], pause: Callable[[float], Any]) -> None:
    """Repeat while the server is too busy, which an attempt returns or raises; after a few tries raise that error."""
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


def body_of(lines: Iterable[bytes]) -> bytes:
    """The body of a bulk request."""
    return b"\n".join(lines) + b"\n"


def ask_bulk(client: Elasticsearch, target: str, body: bytes, count: int) -> list[dict[str, Any]]:
    """The answers for the `count` items, each with 'status', and 'error' if there is one.

    Raises Refused also if some of them were refused since all together never fit: what was taken may be sent again."""
    answer = send(client, _DOING, "POST", target, body, NDJSON)
    try:
        answers = [next(iter(item.values())) for item in answer["items"]]
        is_whole = len(answers) == count and all(isinstance(item["status"], int) for item in answers)
    except (KeyError, TypeError, AttributeError, StopIteration):
        is_whole = False
    if not is_whole:
        raise StoreUnavailableError(
            f"Elasticsearch: the answer to a bulk request does not say what became of each of its {count} items. "
            f"{RETRIES}; does a proxy between them cut answers short?"
        )
    for answer in answers:
        if answer["status"] == 429 and memory_exceeded(_error(answer)[1], len(body) + count * _ADDED_BYTES):
            raise Refused(429, *_error(answer))
    return answers


def failure_of(answer: dict[str, Any]) -> ViewtailError | None:
    """The error behind an item's answer; None if the answer is about the document."""
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


def _sort(
    chunk: BulkChunk, answers: list[dict[str, Any]], refused: list[Parked], done: frozenset[int]
) -> tuple[list[int], ViewtailError | None]:
    """The positions of the items to send again, and the error that says why; refused items are added to `refused`."""
    waiting: list[int] = []
    busy: ViewtailError | None = None
    if done.issuperset([answer["status"] for answer in answers]):
        return waiting, busy
    for at, answer in enumerate(answers):
        if answer["status"] in done:
            continue
        error = _overtaken(answer) or failure_of(answer)
        if error is None:
            view = chunk.views[at]
            kind, *reasons = _error(answer) + _causes(answer)
            refused.append(parked(view, chunk.items[at], describe(kind, reasons, mapping_of(view)[0])))
        elif _is_busy(answer) or isinstance(error, OverloadedError):
            waiting.append(at)
            busy = error
        else:
            raise error
    return waiting, busy


def _overtaken(answer: dict[str, Any]) -> ViewtailError | None:
    """The error of a write over a document that is another one, or gone, by now; None for other answers."""
    if answer["status"] != 409 and _error(answer)[0] != "document_missing_exception":
        return None
    return OverloadedError(f"Elasticsearch: something else writes the same documents at the same time. {RETRIES}")


def _is_busy(answer: dict[str, Any]) -> bool:
    status: int = answer["status"]
    return (status == 429 or status >= 500) and _error(answer)[0] != "cluster_block_exception"


def _narrow(
    client: Elasticsearch, chunk: BulkChunk, refused: Refused, pause: Callable[[float], Any], guard: Guard
) -> list[Parked]:
    """Handle a refused request: too long (413), too large for the node's memory (429), or unreadable (400)."""
    if refused.status not in _HALVED:
        raise StoreError(
            f"Elasticsearch: {_DOING} failed: {refused.status} {refused.kind}. Is a proxy in between, or something "
            "else at this address? Check VIEWTAIL_ELASTICSEARCH__URL"
        ) from None
    if len(chunk) > 1:
        return [letter for half in chunk.halves() for letter in deliver(client, half, pause, guard)]
    return [parked(chunk.views[0], chunk.items[0], _why_alone(refused, chunk.byte_count))]


def _why_alone(refused: Refused, byte_count: int) -> str:
    """Why a document is refused that is sent alone, and what to do."""
    if refused.status == 413:
        return f"its {byte_count} bytes are more than Elasticsearch takes (http.max_content_length)"
    if refused.status == 429 and (exceeded := memory_exceeded(refused.reason, byte_count + _ADDED_BYTES)):
        needed, limit = exceeded
        return (
            f"its {byte_count:,} bytes need {needed:,} bytes of memory to be written, and Elasticsearch has {limit:,} "
            "for all writes (10 % of the heap unless indexing_pressure.memory.limit is set). Raise the heap or that "
            "limit, or show less of the row with document=FUNCTION"
        )
    return f"Elasticsearch refused it: {refused.status} {refused.kind}".rstrip()


def describe(kind: str, reasons: Sequence[str], fields: Container[str]) -> str:
    """Describe an error by its type, the field (if it is one of `fields`), and the limit that was exceeded.

    Elasticsearch's own text is left out: it quotes the value, and may call it a field.

    Args:
        reasons: those of the error and of its causes."""
    reason = reasons[0]
    said = f"Elasticsearch refused the document: {kind}"
    if kind == "strict_dynamic_mapping_exception":
        match = _INTRODUCED.search(reason)
        name = f" {match[1]}" if match else ""
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
    """The reasons of the causes of an item's error, the outermost first."""
    reasons: list[str] = []
    cause = answer.get("error")
    while isinstance(cause, dict) and isinstance(cause := cause.get("caused_by"), dict):
        reasons.append(str(cause.get("reason", "")))
    return tuple(reasons)


def split(chunk: BulkChunk, max_bytes: int) -> Iterator[BulkChunk]:
    """Split the chunk into pieces of at most `max_bytes`; a single larger item stays whole."""
    if len(chunk) <= 1 or chunk.byte_count <= max_bytes:
        yield chunk
        return
    for half in chunk.halves():
        yield from split(half, max_bytes)
