"""The Elasticsearch sink: a document per entity, guarded by external versions.

A write is applied by the server only if its version is above the document's; a delete is a document as well (the
flag `viewtail_deleted`), since Elasticsearch forgets its own deletes after a minute. Requests of one `write` run side
by side: each key is in it once, and versions order the rest. A pipeline's witness is a hidden document in each index;
it moves at most once a second and at `close`, so after a kill a pipeline may read a second's changes again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson
from elasticsearch import Elasticsearch

from changes.errors import DeclarationError, StoreError, StoreUnavailableError, ViewtailError
from changes.positions import Position, ReadPosition
from changes.writes import Key, Parked, ViewWrites
from projectors.stores import GuardedSink, Item, PlaceRefusedError, Unfit, nothing, parked
from projectors.stores.elasticsearch.bulk import Chunk, Refusal, ask_bulk, deliver, failure_of, split
from projectors.stores.elasticsearch.documents import Encode, encoder, witness_id
from projectors.stores.elasticsearch.index import DELETED, POSITION, Names, make_ready, mapping_of
from projectors.stores.elasticsearch.reading import keys_below
from projectors.stores.elasticsearch.requests import Refused, ask
from projectors.views import BoundView

THREADS = 4
ROWS_A_REQUEST = 500
BYTES_A_REQUEST = 5 << 20
WITNESS_EVERY_S = 1.0

_WITNESS_TARGET = (
    "/_bulk?require_alias=true&filter_path=items.*.status,items.*._seq_no,items.*._primary_term,items.*.error.type,"
    "items.*.error.reason"
)


@dataclass(frozen=True, slots=True)
class _Mark:
    """The witness of one index, and its place in the index's own history."""

    position: Position
    seq_no: int
    primary_term: int


class ElasticsearchSink(GuardedSink):
    """The Elasticsearch views of one pipeline, `name`. Raises as the Sink protocol says.

    `client_factory` makes a client that does not retry by itself; `GET /` need not be allowed.
    """

    def __init__(
        self,
        client_factory: Callable[[], Elasticsearch],
        views: Sequence[BoundView],
        name: str,
        *,
        read_position: ReadPosition,
    ) -> None:
        self._open = client_factory
        self._read_position = read_position
        self.meanwhile = nothing
        self._name = name
        self._witness_id = witness_id(name)
        self._views = {view.id: view for view in views}
        self._left_alone: frozenset[str] = frozenset()  # of halted views
        self._held: dict[str, BoundView] = {}  # those that the store has a place for
        self._client: Elasticsearch | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._encoders: dict[str, Encode] = {}
        self._fields: dict[str, frozenset[str]] = {}
        self._marks: dict[str, _Mark | None] = {}
        self._unkept: Position | None = None  # durable, but not in the witness yet
        self._kept_at = float("-inf")
        self._is_ready = False

    def prepare(self) -> dict[str, str]:
        """Connect, make indices and aliases, and read the witnesses of the views that have theirs."""
        self._is_ready = False
        self._unkept = None  # the store may be another one by now; what it has kept is for `witness` to say
        if self._client is None:
            self._client = self._open()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix=f"viewtail-{self._name}-bulk")
        refused: dict[str, str] = {}
        for view in self._led().values():
            try:
                make_ready(self._client, view)
            except (PlaceRefusedError, DeclarationError) as error:
                refused[view.id] = str(error)
        self._held = {name: view for name, view in self._views.items() if name not in refused}
        led = {name: view for name, view in self._led().items() if name not in refused}
        self._encoders = {name: encoder(view) for name, view in led.items()}
        self._fields = {name: frozenset(mapping_of(view)[0]) for name, view in led.items()}
        self._read_marks(self._client)
        self._kept_at = float("-inf")
        self._is_ready = True
        return refused

    def write(self, writes: Sequence[ViewWrites], upto: Position | None) -> list[Parked]:
        """Apply what is newer; returns the keys whose documents the index refuses."""
        client = self._living()
        letters: list[Parked] = []
        for refusal in self._send(client, self._chunks(writes, letters)):
            letters.append(parked(self._views[refusal.view], refusal.item, refusal.reason))
        if upto is not None:
            self._unkept = upto
            if time.monotonic() - self._kept_at >= WITNESS_EVERY_S:
                self._keep(client)
        return letters

    def missing(self) -> frozenset[str]:
        """Views whose index has no witness: it is new, or was deleted and made again."""
        self.prepare()
        return frozenset(name for name, mark in self._marks.items() if mark is None)

    def settle(self) -> None:
        """Move the witnesses to what was written last."""
        self._keep(self._living())

    def witness(self, offset: Position) -> Position | None:
        """The least position of the indices that have one; None when none has."""
        client = self._living()
        self._keep(client)
        self._read_marks(client)
        if not self._marks:
            return offset
        kept = [mark.position for mark in self._marks.values() if mark is not None]
        return min(kept, key=lambda position: position.version) if kept else None

    def keys_below(self, view: str, version: int) -> Iterator[list[tuple[Key, int]]]:
        """Pages of (key, version) below `version`, as they were when the first page was read."""
        return keys_below(self._living(), self._views[view], version)

    def leave_alone(self, views: Collection[str]) -> None:
        """Their indices stay as they are; their witnesses go on, or one would stay behind and have all read again."""
        self._left_alone = frozenset(views)

    def _led(self) -> dict[str, BoundView]:
        """The views whose indices are brought in line with their declarations."""
        return {name: view for name, view in self._views.items() if name not in self._left_alone}

    def fit(self, view: BoundView) -> bool:
        """An index is made again for other fields, before there are changes."""
        return mapping_of(self._views[view.id]) == mapping_of(view)

    def close(self) -> None:
        """Move the witness to what was written last, and give the connections up."""
        client, self._client = self._client, None
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        if client is None:
            return
        try:
            if self._is_ready:
                self._keep(client)
        except ViewtailError:
            pass  # it stays where it is: a little more is read again
        finally:
            self._is_ready = False
            client.close()

    def _chunks(self, writes: Sequence[ViewWrites], letters: list[Parked]) -> Iterator[Chunk]:
        """Bulk requests of ROWS_A_REQUEST items, over several views where they have few."""
        chunk = Chunk([], [], [])
        for of_view in writes:
            items = list(of_view.writes.items())
            start = 0
            while start < len(items):
                part = items[start : start + ROWS_A_REQUEST - len(chunk)]
                start += len(part)
                chunk = self._added(chunk, of_view.view, part, letters)
                if len(chunk) >= ROWS_A_REQUEST:
                    yield from split(chunk, BYTES_A_REQUEST)
                    chunk = Chunk([], [], [])
        if len(chunk):
            yield from split(chunk, BYTES_A_REQUEST)

    def _added(self, chunk: Chunk, view: str, items: list[Item], letters: list[Parked]) -> Chunk:
        encode = self._encoders[view]
        try:
            lines = encode(items)
        except (Unfit, ValueError, TypeError):
            items, lines = self._fit(view, items, letters)
        return Chunk(
            chunk.views + [view] * len(items),
            [*chunk.items, *items] if chunk.items else items,
            chunk.lines + lines,
        )

    def _fit(self, view: str, items: list[Item], letters: list[Parked]) -> tuple[list[Item], list[bytes]]:
        """One by one: those that can be written, with their lines; the others are parked."""
        fit: list[Item] = []
        lines: list[bytes] = []
        for item in items:
            try:
                lines += self._encoders[view]([item])
                fit.append(item)
            except Unfit as error:
                letters.append(parked(self._views[view], item, str(error)))
            except (ValueError, TypeError):
                reason = "JSON cannot hold it: a text has a lone surrogate, or a number is too large"
                letters.append(parked(self._views[view], item, reason))
        return fit, lines

    def _send(self, client: Elasticsearch, chunks: Iterator[Chunk]) -> list[Refusal]:
        """All chunks; one alone from this thread, several side by side. Returns when none is under way any more."""
        first, second = next(chunks, None), next(chunks, None)
        if first is None:
            return []
        if second is None:
            return deliver(client, first, self._fields)
        assert self._pool is not None
        refusals: list[Refusal] = []
        under_way: deque[Future[list[Refusal]]] = deque()
        try:
            for chunk in chain((first, second), chunks):
                if len(under_way) >= 2 * THREADS:
                    refusals += under_way.popleft().result()
                under_way.append(self._pool.submit(deliver, client, chunk, self._fields))
            while under_way:
                refusals += under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
            wait(under_way)
        return refusals

    def _keep(self, client: Elasticsearch) -> None:
        """Move the witnesses to what is durable.

        Each moves only from where this sink knows it: an index restored from a snapshot has an older one, which must
        stay to tell of the loss, so that the server refuses (409), and `prepare` and `witness` look again.
        """
        upto = self._unkept
        if upto is None:
            return
        behind = [name for name, mark in self._marks.items() if mark is None or mark.position.version < upto.version]
        if behind:
            lines = list(chain.from_iterable(self._witness_lines(name, upto) for name in behind))
            answers = _ask_witnesses(client, b"\n".join(lines) + b"\n", len(behind))
            for name, answer in zip(behind, answers, strict=True):
                self._marks[name] = _moved(answer, upto)
        self._unkept = None
        self._kept_at = time.monotonic()

    def _witness_lines(self, view: str, upto: Position) -> tuple[bytes, bytes]:
        mark = self._marks[view]
        place: dict[str, Any] = {"_index": Names.of(self._views[view]).write_alias, "_id": self._witness_id}
        if mark is None:
            action = {"create": place}
        else:
            action = {"index": {**place, "if_seq_no": mark.seq_no, "if_primary_term": mark.primary_term}}
        return orjson.dumps(action), orjson.dumps({DELETED: True, POSITION: upto.to_text()})

    def _read_marks(self, client: Elasticsearch) -> None:
        docs = [{"_index": Names.of(view).index, "_id": self._witness_id} for view in self._held.values()]
        if not docs:
            self._marks = {}
            return
        try:
            found = ask(client, "reading the witness", "POST", "/_mget", {"docs": docs})["docs"]
        except Refused as refused:
            raise _unmovable("reading the witness", refused) from None
        self._marks = {
            name: _mark(name, doc, self._read_position)
            for name, doc in zip(self._held, found, strict=True)
            if name not in self._left_alone or doc.get("found")
        }

    def _living(self) -> Elasticsearch:
        if self._client is None or not self._is_ready:
            raise StoreUnavailableError("Elasticsearch: not connected; call prepare()")
        return self._client


def _ask_witnesses(client: Elasticsearch, body: bytes, count: int) -> list[dict[str, Any]]:
    """The answers to a bulk of witnesses."""
    try:
        return ask_bulk(client, _WITNESS_TARGET, body, count)
    except Refused as refused:
        raise _unmovable("moving the witness", refused) from None


def _unmovable(doing: str, refused: Refused) -> StoreError:
    said = f"Elasticsearch: {doing} failed: {refused.status} {refused.kind}"
    return StoreError(f"{said}. Mend that in Elasticsearch and start viewtail again")


def _moved(answer: dict[str, Any], upto: Position) -> _Mark:
    if answer["status"] in (200, 201):
        return _Mark(upto, answer["_seq_no"], answer["_primary_term"])
    raise failure_of(answer) or StoreUnavailableError(
        f"Elasticsearch: moving the witness failed: {answer['status']}: the index was restored, or another process "
        "keeps this view as well; viewtail looks again at what the index holds"
    )


def _mark(view: str, doc: dict[str, Any], read_position: ReadPosition) -> _Mark | None:
    if "error" in doc:
        raise StoreUnavailableError(
            f"Elasticsearch: the index of {view} does not answer ({doc['error'].get('type')}); viewtail tries again "
            "by itself"
        )
    if not doc.get("found"):
        return None
    try:
        position = read_position(doc["_source"][POSITION])
    except (ValueError, KeyError, TypeError):
        raise StoreError(
            f"Elasticsearch: the document {doc['_id']} of {view} does not hold what viewtail wrote there. Delete it; "
            "viewtail then fills the view again"
        ) from None
    return _Mark(position, doc["_seq_no"], doc["_primary_term"])
