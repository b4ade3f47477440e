"""The Elasticsearch sink: a document per entity, guarded by external versions.

The server applies a write only if its version is above the document's; a delete is a document as well (the flag
`viewtail_deleted`), since Elasticsearch forgets its own deletes after a minute. Requests of one `write` run side by
side: each key is in it once, and versions order the rest. A pipeline's witness is a hidden document in each index; it
moves at most once a second, with watermarks and at `close`, and the offset behind it (offsets.py): after a kill a
pipeline may read a second's changes again.

The mapping of an index names its owner (index.py): `prepare` claims and refuses, and a sink notices within LOOK_EVERY_S
that an index was taken over, before the next write.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any
from urllib.parse import quote

import orjson
from elasticsearch import Elasticsearch

from projectors.stores import (
    GuardedSink,
    Held,
    Item,
    Meanwhile,
    OnMissing,
    PlaceRefusedError,
    Unfit,
    ignored,
    nothing,
    parked,
    slices,
)
from projectors.stores.elasticsearch.bulk import (
    BY_VERSIONS,
    BulkChunk,
    Guard,
    Replacement,
    ask_bulk,
    body_of,
    deliver,
    failure_of,
    replace,
    split,
)
from projectors.stores.elasticsearch.documents import Encode, encoder, id_of, witness_id
from projectors.stores.elasticsearch.index import (
    DELETED,
    POSITION,
    IndexNames,
    make_ready,
    mapping_of,
    marks,
    owners_in,
    path,
)
from projectors.stores.elasticsearch.reading import last_sequence_number, present_documents
from projectors.stores.elasticsearch.requests import Refused, ask, unrefused
from projectors.stores.elasticsearch.unique import BY_SOURCES, taking_away
from projectors.stores.owners import LOOK_EVERY_S, NOBODY, Claiming, taken_from_us
from projectors.views import BoundView
from viewtail.changes.errors import DeclarationError, StoreError, StoreUnavailableError, ViewtailError
from viewtail.changes.positions import Position, ReadPosition
from viewtail.changes.writes import Key, Parked, ViewWrites, Write

THREADS = 4
ROWS_A_REQUEST = 500
BYTES_A_REQUEST = 5 << 20
WITNESS_EVERY_S = 1.0
SHARD_WITHIN_S = 3.0  # a new index answers by then, as a rule
SHARD_AGAIN_S = 0.1

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
        claiming: Claiming = lambda: NOBODY,
    ) -> None:
        self._open = client_factory
        self._claiming = claiming  # returns the deployment that claims the indices
        self._claimant = NOBODY
        self._looked_at = 0.0
        self._read_position = read_position
        self._witness_id = witness_id(name)
        self._views = {view.id: view for view in views}
        self._left_alone: frozenset[str] = frozenset()  # of halted views
        self._client: Elasticsearch | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._encoders: dict[str, Encode] = {}  # of the views that the store did not refuse
        self._marks: dict[str, _Mark | None] = {}
        self._taken: dict[str, dict[Key, Held]] = {}  # by view, the documents to take away
        self.unkept: Position | None = None  # durable, but not in the witness yet
        self.kept: Position | None = None  # the last one that this put into the witness
        self._kept_at = float("-inf")
        self._is_ready = False

    def prepare(self, on_missing: OnMissing = ignored) -> dict[str, str]:
        """Connect, make indices and aliases, and read the witnesses of the views that have theirs."""
        self._is_ready = False
        self._taken = {}  # the write that it was for failed, and no other brings what comes in its place
        self._keep_what_was_late()
        self.unkept = self.kept = None  # the store may be another one by now; what it has kept is for `witness` to say
        if self._client is None:
            self._client = self._open()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="bulk")
        self._claimant = self._claiming()
        refused = self._make_indices(self._client)
        of_others = self._of_others(self._client, self._left_alone)
        kept = [name for name in self._views if name not in refused and name not in of_others]
        self._encoders = {name: encoder(self._views[name]) for name in kept}
        self._looked_at = time.monotonic()
        self._read_marks(self._client)
        self._kept_at = float("-inf")
        self._is_ready = True
        # An index without a witness is new, or was deleted and created again.
        if missing := frozenset(name for name, mark in self._marks.items() if mark is None):
            on_missing(missing)
        return refused

    def _make_indices(self, client: Elasticsearch) -> dict[str, str]:
        """Make the indices of all views but halted ones; by view, why others have none."""
        refused: dict[str, str] = {}
        for name, view in self._views.items():
            try:
                if name not in self._left_alone:
                    make_ready(client, view, self._claimant)
            except (PlaceRefusedError, DeclarationError) as error:
                refused[name] = str(error)
        return refused

    def _of_others(self, client: Elasticsearch, views: Collection[str]) -> list[str]:
        """The views of these whose indices are another deployment's."""
        if self._claimant is NOBODY or not views:
            return []
        names = {IndexNames(self._views[name]).index: name for name in views}
        with _unrefused("looking whose indices are"):
            noted = marks(client, {self._views[name].view.id for name in views})
        return [
            names[index] for index, mark in noted.items() if index in names and self._claimant.others(owners_in([mark]))
        ]

    def _look_whose(self, client: Elasticsearch) -> None:
        """Check from time to time, before a write, that no index was taken over."""
        if time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return
        if lost := self._of_others(client, self._encoders):
            self._is_ready = False
            raise StoreUnavailableError(f"Elasticsearch: {taken_from_us(lost)}")
        self._looked_at = time.monotonic()

    def write(self, writes: Sequence[ViewWrites], upto: Position | None, _: Meanwhile = nothing) -> list[Parked]:
        """Apply what is newer; returns the keys whose documents the index refuses."""
        taken, self._taken = self._taken, {}  # once: a row that is still wrong is found again
        client = self._living()
        self._look_whose(client)
        letters: list[Parked] = []
        with self._taking(client, taken, writes) if taken else nullcontext():
            for is_unique, guard in ((False, BY_VERSIONS), (True, BY_SOURCES)):
                some = [of for of in writes if self._views[of.view].is_unique_over_sources is is_unique]
                letters += self._send(client, self._chunks(some, letters), guard)
        if upto is not None:
            self.unkept = upto
            if time.monotonic() - self._kept_at >= WITNESS_EVERY_S:
                self._keep(client)
        return letters

    @contextmanager
    def _taking(
        self, client: Elasticsearch, taken: dict[str, dict[Key, Held]], writes: Sequence[ViewWrites]
    ) -> Iterator[None]:
        """Take documents away, each with the write that follows; the indices do not remember them meanwhile."""
        for view in [name for name in taken if self._views[name].is_unique_over_sources]:
            self._release(client, self._views[view], taken.pop(view))
        with self._without_memory(client, taken):
            for view, held in taken.items():
                behind = {key: write for of in writes if of.view == view for key, write in of.writes.items()}
                self._replace(client, view, held, behind)
            yield

    def is_gone(self, view: str) -> bool:
        """Return whether it has no index, or one without a witness. Unlike `prepare`, it makes no index."""
        if self._client is None:
            self._client = self._open()
        target = f"{path(IndexNames(self._views[view]).index)}/_doc/{quote(self._witness_id, safe='')}"
        with _unrefused("reading the witness"):
            return not _is_there(self._client, target)

    def attach(self) -> frozenset[str]:
        self.leave_alone(self._views)
        self.prepare()
        return frozenset(name for name, mark in self._marks.items() if mark is not None)

    def settle(self) -> None:
        """Move the witnesses to what was written last, and check the owners of the indices from time to time."""
        client = self._living()
        self._look_whose(client)
        self._keep(client)

    def witness(self, offset: Position) -> Position | None:
        """The least position of the indices that have one; None when none has."""
        client = self._living()
        self._keep(client)
        self._read_marks(client)
        if not self._marks:
            return offset
        kept = [mark.position for mark in self._marks.values() if mark is not None]
        return min(kept, key=lambda position: position.order) if kept else None

    def mark_writes(self, view: str) -> int | None:
        """The largest sequence number among all shards' documents; None where other sources write the same ones."""
        if self._views[view].is_unique_over_sources:
            return None
        with _unrefused("reading sequence numbers"):
            return last_sequence_number(self._living(), IndexNames(self._views[view]).index)

    def keys_below(self, view: str, version: int, since: int | None = None) -> Iterator[list[tuple[Key, int]]]:
        """Pages of (key, version) below `version`, as they were when the first page was read."""
        bound = self._views[view]
        name = IndexNames(bound).index
        for page in present_documents(self._living(), bound, name, has_source=False, written_upto=since):
            yield [(key, hit["_version"]) for key, hit in page if hit["_version"] < version]

    def take_away(self, view: str, held: Mapping[Key, Held]) -> None:
        """Delete with the next write, in one request: a killed process leaves the former documents or the new ones."""
        self._taken = {**self._taken, view: dict(held)}

    @contextmanager
    def _without_memory(self, client: Elasticsearch, views: Collection[str]) -> Iterator[None]:
        """Have indices forget the versions of deleted documents at once, by a negative time, not after a minute."""
        indices = [path(IndexNames(self._views[view]).index) for view in views]
        with _unrefused("taking documents away"):
            try:
                for index in indices:
                    self._remember_deletes(client, index, "-1")
                yield
            finally:
                for index in indices:
                    self._remember_deletes(client, index, None)

    def _replace(self, client: Elasticsearch, view: str, held: Mapping[Key, Held], writes: Mapping[Key, Write]) -> None:
        """Delete documents that are still as a reader saw them, each with the write that follows, if it can be sent."""
        bound, encode = self._views[view], self._encoders[view]
        alias, identity = IndexNames(bound).write_alias, id_of(bound)
        waiting: list[Replacement] = []
        byte_count = 0
        for key, seen in held.items():
            delete: list[bytes] = []
            write: list[bytes] = []
            if seen.mark is not None:
                number, term = seen.mark
                place = {"_index": alias, "_id": identity(key), "if_seq_no": number, "if_primary_term": term}
                delete = [orjson.dumps({"delete": place})]
            if key in writes:
                with suppress(Unfit, ValueError, TypeError):  # the write that follows parks it
                    write = encode([(key, writes[key])])
            replacement = Replacement(delete, write)
            if waiting and byte_count + replacement.byte_count > BYTES_A_REQUEST:
                replace(client, waiting)
                waiting, byte_count = [], 0
            waiting.append(replacement)
            byte_count += replacement.byte_count
        replace(client, waiting)

    @staticmethod
    def _release(client: Elasticsearch, view: BoundView, held: Mapping[Key, Held]) -> None:
        """Take the source's own out of documents that are still as a reader saw them: what follows is written."""
        lines = taking_away(view)
        seen = [Replacement([lines(key, found)], ()) for key, found in held.items() if found.mark is not None]
        for some in slices(seen, ROWS_A_REQUEST):
            replace(client, some)

    @staticmethod
    def _remember_deletes(client: Elasticsearch, index: str, for_time: str | None) -> None:
        ask(client, "changing index.gc_deletes", "PUT", f"{index}/_settings", {"index": {"gc_deletes": for_time}})

    def leave_alone(self, views: Collection[str]) -> None:
        """Leave these indices as they are. Their witnesses move: one that stayed behind would look like a loss."""
        self._left_alone = frozenset(views)

    def fit(self, view: BoundView) -> bool:
        """False if the mapping differs: the index is created again for it, before there are changes."""
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
            pass  # the witness stays where it is: a few more changes are read again
        finally:
            self._is_ready = False
            client.close()

    def _chunks(self, writes: Sequence[ViewWrites], letters: list[Parked]) -> Iterator[BulkChunk]:
        """Bulk requests of ROWS_A_REQUEST items, over several views if those have few."""
        chunk = BulkChunk([], [], [])
        for of_view in writes:
            items = list(of_view.writes.items())
            start = 0
            while start < len(items):
                part = items[start : start + ROWS_A_REQUEST - len(chunk)]
                start += len(part)
                self._add(chunk, self._views[of_view.view], part, letters)
                if len(chunk) >= ROWS_A_REQUEST:
                    yield from split(chunk, BYTES_A_REQUEST)
                    chunk = BulkChunk([], [], [])
        if len(chunk):
            yield from split(chunk, BYTES_A_REQUEST)

    def _add(self, chunk: BulkChunk, view: BoundView, items: list[Item], letters: list[Parked]) -> None:
        """Add the items that can be written, and park the others."""
        try:
            chunk.lines += self._encoders[view.id](items)
        except (Unfit, ValueError, TypeError) as error:
            if len(items) == 1:
                why = "JSON cannot hold it: a text has a lone surrogate, or a number is too large"
                letters.append(parked(view, items[0], str(error) if isinstance(error, Unfit) else why))
            else:
                for item in items:
                    self._add(chunk, view, [item], letters)
            return
        chunk.views += [view] * len(items)
        chunk.items += items

    def _send(self, client: Elasticsearch, chunks: Iterator[BulkChunk], guard: Guard) -> list[Parked]:
        """Send all chunks: a single one from this thread, several side by side. Returns when all are answered."""
        first, second = next(chunks, None), next(chunks, None)
        if first is None:
            return []
        if second is None:
            return deliver(client, first, guard=guard)
        assert self._pool is not None
        refused: list[Parked] = []
        under_way: deque[Future[list[Parked]]] = deque()
        try:
            for chunk in chain((first, second), chunks):
                if len(under_way) >= 2 * THREADS:
                    refused += under_way.popleft().result()
                under_way.append(self._pool.submit(deliver, client, chunk, guard=guard))
            while under_way:
                refused += under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
            wait(under_way)
        return refused

    def _keep(self, client: Elasticsearch) -> None:
        """Move the witnesses to what is durable.

        A witness moves only from where this sink knows it. An index restored from a snapshot has an older one, which
        must stay as evidence of the loss: the server refuses (409), and `prepare` and `witness` look again.
        """
        upto = self.unkept
        if upto is None:
            return
        behind = [name for name, mark in self._marks.items() if mark is None or mark.position.order < upto.order]
        if behind:
            lines = list(chain.from_iterable(self._witness_lines(name, upto) for name in behind))
            with _unrefused("moving the witness"):
                answers = ask_bulk(client, _WITNESS_TARGET, body_of(lines), len(behind))
            for name, answer in zip(behind, answers, strict=True):
                self._marks[name] = _moved(answer, upto)
        self.unkept, self.kept = None, upto
        self._kept_at = time.monotonic()

    def _keep_what_was_late(self) -> None:
        """Move the witness before it is read again, or a store that has kept all would look as if it had lost rows.

        A store that lost something refuses, or has no witness to move.
        """
        if self._client is not None and self.unkept is not None and None not in self._marks.values():
            with suppress(ViewtailError):
                self._keep(self._client)

    def _witness_lines(self, view: str, upto: Position) -> tuple[bytes, bytes]:
        mark = self._marks[view]
        place: dict[str, Any] = {"_index": IndexNames(self._views[view]).write_alias, "_id": self._witness_id}
        if mark is None:
            action = {"create": place}
        else:
            action = {"index": {**place, "if_seq_no": mark.seq_no, "if_primary_term": mark.primary_term}}
        return orjson.dumps(action), orjson.dumps({DELETED: True, POSITION: upto.to_text()})

    def _read_marks(self, client: Elasticsearch) -> None:
        docs = [{"_index": IndexNames(self._views[name]).index, "_id": self._witness_id} for name in self._encoders]
        if not docs:
            self._marks = {}
            return
        deadline = time.monotonic() + SHARD_WITHIN_S
        with _unrefused("reading the witness"):
            while True:
                answers = ask(client, "reading the witness", "POST", "/_mget", {"docs": docs})["docs"]
                if time.monotonic() > deadline or not any(map(_has_no_shard, answers)):
                    break
                time.sleep(SHARD_AGAIN_S)
        self._marks = {
            name: _mark(name, doc, self._read_position)
            for name, doc in zip(self._encoders, answers, strict=True)
            if name not in self._left_alone or doc.get("found")
        }

    def _living(self) -> Elasticsearch:
        if self._client is None or not self._is_ready:
            raise StoreUnavailableError("Elasticsearch: not connected; call prepare()")
        return self._client


def _is_there(client: Elasticsearch, target: str) -> bool:
    try:
        ask(client, "looking at a document", "GET", f"{target}?_source=false")
    except Refused as refused:
        if refused.status not in (404, 409):
            raise
        return False
    return True


def _unrefused(doing: str) -> AbstractContextManager[None]:
    """Halt the pipeline if Elasticsearch refuses a request that is always in a form that it takes."""
    return unrefused(doing, ". Fix the cause in Elasticsearch and start viewtail again")


def _moved(answer: dict[str, Any], upto: Position) -> _Mark:
    if answer["status"] in (200, 201):
        return _Mark(upto, answer["_seq_no"], answer["_primary_term"])
    raise failure_of(answer) or StoreUnavailableError(
        f"Elasticsearch: moving the witness failed: {answer['status']}: the index was restored, or another process "
        "writes this view as well; viewtail checks again what the index holds"
    )


def _has_no_shard(doc: dict[str, Any]) -> bool:
    """Return whether the index was made a moment ago, or its node has just started."""
    return str(doc.get("error", {}).get("type", "")) == "no_shard_available_action_exception"


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
            "viewtail then backfills the view again"
        ) from None
    return _Mark(position, doc["_seq_no"], doc["_primary_term"])
