"""The Redis sink: a hash or a JSON document per entity, guarded by one Lua script a batch.

The script compares versions as fixed-width text, so nothing older ever replaces something newer, and a delete leaves
a tombstone (`{key}:t`) that counts as well. Tombstones have no expiry: one may be set only once every offset, running
backfill and replay window is past it, which nothing in viewtail checks yet. The witness is sent when all scripts of
a batch have answered, on their connection, so it is never ahead of the rows; and it moves only from what this sink
left there, so that a FLUSHALL under a running pipeline is not written over. One primary is supported; a Redis Cluster
is refused.

Only the pipeline's sink writes the pointers of views whose key template has `{generation}`: viewtail's own tables say
which copy is live, and a pointer that somebody else changed is corrected within LOOK_EVERY_S.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

import orjson
import structlog
from redis import Redis, exceptions

from projectors.stores import (
    GuardedSink,
    Held,
    Item,
    Meanwhile,
    OnMissing,
    Unfit,
    ignored,
    lives_elsewhere,
    nothing,
    parked,
    slices,
)
from projectors.stores.owners import LOOK_EVERY_S, NOBODY, Claimant, Claiming, taken_from_us
from projectors.stores.redis import owners
from projectors.stores.redis.checks import suitability
from projectors.stores.redis.holding import holds_keys
from projectors.stores.redis.keys import RedisKeys, leading
from projectors.stores.redis.moving import Moves, mark_of
from projectors.stores.redis.names import WrittenNames, total_of
from projectors.stores.redis.packing import Packer
from projectors.stores.redis.script import BELOW, LEAD, MOVE_WITNESS, NAMES
from projectors.stores.redis.set_packing import SetPacker
from projectors.stores.redis.unanswered import CHECK_RIGHTS, UNREACHABLE, is_denied, server_of
from projectors.stores.redis.unique_script import BELOW_OWN
from projectors.stores.redis.views import RedisJson, RedisSet
from projectors.views import BoundView
from viewtail.changes.errors import RETRIES, StoreError, StoreUnavailableError
from viewtail.changes.findings import Level
from viewtail.changes.positions import Position, ReadPosition
from viewtail.changes.versions import WIDTH
from viewtail.changes.writes import Key, Parked, ViewWrites
from viewtail.servers.certificates import why_refused

ROWS_A_SCRIPT = 100  # Redis serves nobody else meanwhile: about 0.3 ms
SCRIPTS_UNDER_WAY = 16  # sent before the first answer is read; answers are a few bytes
BYTES_A_SCRIPT = 8 << 20
ROWS_SENT_AHEAD = 100  # of more, what is packed is too long as a rule
BYTES_TOGETHER = 8 << 10  # twice as much at most is sent at once, which is what Redis reads at once
MAX_COMMAND_BYTES = 500_000_000  # a single row; Redis takes 512 MB (proto-max-bulk-len)
KEYS_A_SCAN = 1_000
KEYS_A_SWEEP_STEP = 500  # it looks at each: half a millisecond
NAMES_A_SWEEP_STEP = 1_000  # it only tells them: a millisecond
MOST_NAMES = 2_000_000  # of a view whose names are kept for a sweep, 16 MB of numbers
MOST_NAME_BYTES = 64 << 20  # of those that are there

_log = structlog.get_logger("viewtail.redis")

_TEMPORARY = re.compile(r"\b(OOM|LOADING|READONLY|MASTERDOWN|CLUSTERDOWN|NOREPLICAS|MISCONF|BUSY|TRYAGAIN|UNBLOCKED)\b")
_WAITED_FOR = (  # redis-py cuts the word off the text for those that it has a class for
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
)


_Answers: TypeAlias = Sequence[tuple[str, Sequence[Item]]]  # by command, its view and its rows


class _Sent(NamedTuple):
    """Writes whose answers were not read yet."""

    writes: Sequence[ViewWrites]
    answers: _Answers
    is_whole: bool  # all bytes were sent


class RedisSink(GuardedSink):
    """The Redis views of the pipeline `name` of the deployment whose own tables are in `database`.

    `pointers`: by key, the number of the copy that it leads readers to; none for a sink that is not the pipeline's.
    `claiming` returns the deployment that claims the views' keys. Raises as the Sink protocol says.
    """

    def __init__(
        self,
        client_factory: Callable[[], Redis],
        views: Sequence[BoundView],
        database: str,
        name: str,
        *,
        read_position: ReadPosition,
        pointers: Mapping[str, int] | None = None,
        claiming: Claiming = lambda: NOBODY,
    ) -> None:
        self._open = client_factory
        self._read_position = read_position
        self._views = {view.id: view for view in views}
        self._keys = {view.id: RedisKeys(view) for view in views}
        self._packers = {view.id: packer_of(view, self._keys[view.id], database) for view in views}
        self._moves = {view.id: Moves(view, database) for view in views if view.move is not None}
        self._database, self._name = database, name
        # Deployments may share a Redis, so their database is in it; see owners.py for those of one name.
        self._witness_key = f"viewtail:{quote(database, safe='')}:{name}:witness"
        self._claiming = claiming
        self._claimant = NOBODY
        self._claimed: list[str] = []  # views whose keys are this deployment's
        self._client: Redis | None = None
        self._connection: Any = None  # of redis-py's pool, for this sink alone
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._sent: _Sent | None = None
        self._written: dict[str, WrittenNames] = {}  # by view, since `mark_writes`
        self._mark = b""  # what the witness's key holds, as far as this sink knows
        self._all_pointers = dict(pointers or {})
        self._pointers: dict[str, int] = {}  # of the views that are not refused
        self._looked_at = self._led_at = self._asked_whose_at = 0.0

    def prepare(self, on_missing: OnMissing = ignored) -> dict[str, str]:
        """Connect again, check that Redis evicts nothing, load the scripts, claim the views' keys, lead readers."""
        self._drop()
        with self._mapped("connecting"):
            self._connect()
            self._check_server()
            self._load_scripts()
            refused = self._claim()
            self._mark = self._ask("GET", self._witness_key) or b""
            self._led_at = 0.0
            self._lead()
        if not self._mark:  # Redis is new, or lost everything
            on_missing(frozenset(self._views))
        return refused

    def _claim(self) -> dict[str, str]:
        """Claim the keys of the views; returns by id why others have no place, whose keys are another deployment's."""
        self._claimant = self._claiming()
        if self._claimant is NOBODY:
            self._pointers = self._all_pointers
            return {}
        claim = self._claim_of(self._claimant)
        of_views, self._witness_key = claim.made(self._ask)
        self._claimed = sorted(claim.views.keys() - of_views.keys())
        self._asked_whose_at = time.monotonic()
        leads = {
            keys.pointer for view in self._views.values() if view.view.id in self._claimed if (keys := leading(view))
        }
        self._pointers = {name: number for name, number in self._all_pointers.items() if name in leads}
        return {name: of_views[view.view.id] for name, view in self._views.items() if view.view.id in of_views}

    def _claim_of(self, claimant: Claimant) -> owners.Claim:
        shapes = {view.view.id: owners.shapes_of(view) for view in self._views.values()}
        return owners.Claim(
            claimant=claimant, views=shapes, database=self._database, pipeline=self._name, holds=self._holds_keys
        )

    def _holds_keys(self, view: str) -> bool:
        """Return whether keys lie in a new view's place that some viewtail wrote."""
        return bool(holds_keys(self._ask, next(bound for bound in self._views.values() if bound.view.id == view)))

    @property
    def _is_look_due(self) -> bool:
        return self._claimant is not NOBODY and time.monotonic() - self._asked_whose_at >= LOOK_EVERY_S

    def _look_whose(self) -> None:
        """Check from time to time, before a write, that all keys are still this deployment's."""
        if not self._is_look_due:
            return
        if lost := owners.lost(self._ask, self._claimant, self._claimed):
            self._drop()
            raise StoreUnavailableError(f"Redis: {taken_from_us(lost)}")
        self._asked_whose_at = time.monotonic()

    def write(
        self, writes: Sequence[ViewWrites], upto: Position | None, meanwhile: Meanwhile = nothing
    ) -> list[Parked]:
        """Apply what is newer, then move the witness; returns the keys whose place holds something foreign."""
        with self._mapped("writing"):
            self._look_whose()
            try:
                letters = self._apply(writes, meanwhile)
            except exceptions.NoScriptError:
                letters = self._again(writes)
            if upto is not None:
                self._move_witness(upto.to_text().encode())
                self._lead()
            return letters

    def sender(self, writes: Sequence[ViewWrites]) -> Callable[[], None] | None:
        """A function that sends a few rows, as many as an idle connection takes at once."""
        if self._moves or self._is_look_due or sum(len(of_view.writes) for of_view in writes) > ROWS_SENT_AHEAD:
            return None
        together, connection = self._together(writes), self._connection
        if together is None or connection is None:
            return None
        packed, answers = together

        def send() -> None:
            self._sent = _Sent(writes, answers, is_whole=False)
            connection.send_packed_command((packed,), check_health=False)
            self._sent = _Sent(writes, answers, is_whole=True)

        return send

    def _together(self, writes: Sequence[ViewWrites]) -> tuple[bytes, _Answers] | None:
        """Calls of the script that are sent as one, and their rows; None if they are too large, or some are refused."""
        letters: list[Parked] = []
        commands = [
            (of_view.view, *command)
            for of_view in writes
            for command in self._commands(of_view.view, list(of_view.writes.items()), letters)
        ]
        packed = b"".join(command for _, command, _ in commands)
        if letters or len(packed) > BYTES_TOGETHER:
            return None
        return packed, [(view, items) for view, _, items in commands]

    def push(self, writes: Sequence[ViewWrites]) -> None:
        sent, self._sent = self._sent, None
        if sent is None:
            self.write(writes, None)
            return
        with self._mapped("writing"):
            if not sent.is_whole or sent.writes is not writes:
                # redis-py would connect again by itself, to a server that may have lost what it had.
                raise exceptions.ConnectionError("the connection broke")
            try:
                for view, items in sent.answers:
                    self._settle(view, items, [])  # what is refused is the pipeline's to park
            except exceptions.NoScriptError:
                self._again(writes)

    def is_gone(self, view: str) -> bool:
        """Return whether Redis has no witness. Unlike `prepare`, it claims no keys."""
        with self._mapped("looking for the witness"):
            if self._client is None:
                self._connect()
            claimant, key = self._claiming(), self._witness_key
            if claimant is not NOBODY:
                key, _ = self._claim_of(claimant).witness(self._ask, owners.read(self._ask))
            return self._ask("GET", key) is None

    def attach(self) -> frozenset[str]:
        refused = self.prepare()
        return frozenset(self._views) - refused.keys() if self._mark else frozenset()

    def incarnation(self) -> str:
        """The id of the server's run: after a restart or a failover, acknowledged writes may be missing."""
        with self._mapped("asking for its run_id"):
            answer = as_text(self._ask("INFO", "server"))
        match = re.search(r"^run_id:(\w+)", answer, re.MULTILINE)
        return match[1] if match else ""

    def settle(self) -> None:
        """Check from time to time that what was written is still there."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        self._looked_at = now
        if self._mark and self._ask_witness() != self._mark:
            self._drop()
            raise StoreUnavailableError(_WITNESS_CHANGED)
        with self._mapped("looking at owners and pointers"):
            self._look_whose()
            self._lead()

    def _lead(self) -> None:
        """Correct the pointers from time to time, so that they lead readers to the live copies.

        Not if the witness changed: another process that took the pipeline over may have swapped copies.
        """
        now = time.monotonic()
        if not self._pointers or now - self._led_at < LOOK_EVERY_S:
            return
        names = list(self._pointers)
        keys, numbers = (self._witness_key, *names), (self._mark, *self._pointers.values())
        changed = self._ask("EVAL", LEAD, len(keys), *keys, *numbers)
        if changed is None:
            self._drop()
            raise StoreUnavailableError(_WITNESS_CHANGED)
        say = _log.warning if self._led_at else _log.info  # somebody changed it, or it is set for the first time
        self._led_at = now
        for at in changed:
            say("pointer set", key=names[at], generation=self._pointers[names[at]])

    def _move_witness(self, to: bytes) -> None:
        if not self._ask("EVAL", MOVE_WITNESS, 1, self._witness_key, self._mark, to):
            self._drop()
            raise StoreUnavailableError(_WITNESS_CHANGED)
        self._mark = to

    def witness(self, offset: Position) -> Position | None:
        """The position that was last written here; None when Redis has none (new, or it lost everything)."""
        text = self._ask_witness()
        if text is None and self._mark:  # it went since it was read, and everything with it
            self._drop()
            raise StoreUnavailableError(_WITNESS_CHANGED)
        if text is None:
            return None
        try:
            return self._read_position(text)
        except ValueError:
            raise StoreError(
                f"Redis: the key {self._witness_key} does not hold what viewtail wrote there. Delete it "
                f"(redis-cli DEL {self._witness_key}); viewtail then backfills the views again"
            ) from None

    def _ask_witness(self) -> Any:
        with self._mapped("reading the witness"):
            return self._ask("GET", self._witness_key)

    def mark_writes(self, view: str) -> int | None:
        """Begin to keep the names of the keys that this sink writes."""
        self._written[view] = WrittenNames()
        return 0

    def keys_below(self, view: str, version: int, since: int | None = None) -> Iterator[list[tuple[Key, int]]]:
        """A page of (key, version) below `version` for each SCAN: in no order, and a key may come twice."""
        written = None if since is None else self._written.get(view)
        if written is None or len(written) > MOST_NAMES:
            yield from self._all_below(view, version)
            return
        pages, size, total = list[bytes](), 0, 0
        for packed, its_total in self._pages_of_names(view):
            pages.append(packed)
            size, total = size + len(packed), total + its_total
            yield []
            if size > MOST_NAME_BYTES:  # many of other views, perhaps
                yield from self._all_below(view, version)
                return
        if total != written.total:
            for some in written.missing_from(pages):
                names = [name.encode("utf-8", "surrogateescape") for name in some]
                yield self._below(view, version, names)[1] if names else []

    def keys_of_part(self, view: str, values: Key, version: int) -> Iterator[list[tuple[Key, int]]]:
        for page in self._all_below(view, version, self._keys[view].scan_match_of(values)):
            yield [(key, stored) for key, stored in page if key[: len(values)] == values]

    def _all_below(self, view: str, version: int, match: str = "") -> Iterator[list[tuple[Key, int]]]:
        cursor, match = b"0", match or self._keys[view].scan_match
        while True:
            cursor, below = self._below(view, version, (), cursor, match, KEYS_A_SWEEP_STEP)
            yield below
            if int(cursor) == 0:
                return

    def _pages_of_names(self, view: str) -> Iterator[tuple[bytes, int]]:
        """Pages of names that look like the view's keys, packed, each with the sum of its numbers (names.py)."""
        cursor, before = b"0", None
        while True:
            with self._mapped("scanning"):
                scan = (cursor, self._keys[view].scan_match, NAMES_A_SWEEP_STEP)
                self._living().send_command("EVAL", NAMES, 0, *scan, check_health=False)
                total = 0 if before is None else total_of(before)  # while Redis makes the next page
                cursor, packed = self._living().read_response(disable_decoding=True)
            # With no answer under way: whoever sweeps may leave it here.
            if before is not None:
                yield before, total
            before = packed
            if int(cursor) == 0:
                yield packed, total_of(packed)
                return

    def _below(
        self, view: str, version: int, names: Sequence[bytes], *scan: object
    ) -> tuple[bytes, list[tuple[Key, int]]]:
        """The next cursor, and (key, version) below `version` among these names, or among those that SCAN finds."""
        bound = self._views[view]
        form = "json" if isinstance(bound.view, RedisJson) else "hash"
        script, own = (BELOW_OWN, bound.source) if bound.is_unique_over_sources else (BELOW, ())
        with self._mapped("scanning"):
            cursor, *below = self._ask("EVAL", script, len(names), *names, form, f"{version:0{WIDTH}d}", *own, *scan)
        stored = {as_text(name): int(text) for name, text in zip(below[::2], below[1::2], strict=True)}
        key_of = self._keys[view].key_of
        return cursor, [(key, of) for name, of in stored.items() if (key := key_of(name)) is not None]

    def take_away(self, view: str, held: Mapping[Key, Held]) -> None:
        packer = self._packers[view]
        with self._mapped("taking keys away"):
            for key, seen in held.items():
                if seen.mark is not None:  # else nothing is there, and Redis remembers nothing
                    self._ask("EVAL", *packer.take_away(key, seen.mark))

    def fit(self, view: BoundView) -> bool:
        """True: keys and fields are text, whatever the columns' types."""
        return True

    def close(self) -> None:
        self._drop()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @contextmanager
    def _mapped(self, doing: str) -> Iterator[None]:
        """Convert redis-py's errors to viewtail's. Redis's own texts name commands and keys, never values."""
        try:
            yield
        except (exceptions.RedisError, OSError) as error:
            place = "Redis" if self._client is None else server_of(self._client)
            self._drop()
            said = f"{place}: {doing} failed: {str(error).rstrip('.')} ({type(error).__name__})"
            if is_denied(error):
                raise StoreError(f"{said}. {CHECK_RIGHTS}") from None
            if mend := why_refused(str(error), None):  # of TLS
                raise StoreUnavailableError(f"{said}: {mend}. {RETRIES}") from None
            if isinstance(error, UNREACHABLE + _WAITED_FOR) or _TEMPORARY.search(str(error)):
                why = f"{RETRIES}; is Redis up, with memory left?"
                raise StoreUnavailableError(f"{said}. {why}") from None
            raise StoreError(f"{said}. Fix the cause in Redis and start viewtail again") from None

    def _load_scripts(self) -> None:
        for script in sorted({user.script for user in (*self._packers.values(), *self._moves.values())}):
            self._ask("SCRIPT", "LOAD", script)

    def _connect(self) -> None:
        if self._client is None:
            self._client = self._open()
        self._connection = self._client.connection_pool.get_connection()

    def _check_server(self) -> None:
        answer = as_text(self._ask("INFO"))
        info = dict(line.split(":", 1) for line in answer.splitlines() if ":" in line)
        for finding in suitability(info):
            if finding.level is Level.FAIL:
                raise StoreError(f"Redis: {finding.what}: {finding.seen}; {finding.why}. To fix it: {finding.mend}")

    def _apply(self, writes: Sequence[ViewWrites], meanwhile: Meanwhile = nothing) -> list[Parked]:
        letters: list[Parked] = []
        waiting: deque[tuple[str, Sequence[Item]]] = deque()
        moved: dict[str, set[Key]] = {}  # both copies of a view are written here
        for of_view in writes:
            items = list(of_view.writes.items())
            for some in slices(items, ROWS_A_SCRIPT):
                moves = self._moves.get(of_view.view)
                if moves is not None and (keys := _new_to(moved.setdefault(moves.mark, set()), some)):
                    self._send(b"".join(self._living().pack_command(*moves.command(keys))))
                    waiting.append((of_view.view, some))
                for command, part in self._commands(of_view.view, some, letters):
                    self._send(command)
                    waiting.append((of_view.view, part))
                    if len(waiting) >= SCRIPTS_UNDER_WAY:  # half of them, or each that follows would be sent alone
                        while len(waiting) > SCRIPTS_UNDER_WAY // 2:
                            self._settle(*waiting.popleft(), letters)
        self._send_rest()
        meanwhile()
        while waiting:
            self._settle(*waiting.popleft(), letters)
        return letters

    def _again(self, writes: Sequence[ViewWrites]) -> list[Parked]:
        """Load the scripts and write again, after SCRIPT FLUSH or a restart; rows that were applied do not change."""
        self._drop()
        self._connect()
        self._load_scripts()
        return self._apply(writes)

    def _commands(
        self, view: str, items: Sequence[Item], letters: list[Parked]
    ) -> Iterator[tuple[bytes, Sequence[Item]]]:
        """The script's calls for these items: one, or several if it is too long or an item cannot be packed."""
        try:
            written = self._written.get(view)
            # Above so many, the sweep asks for none of them.
            numbers = None if written is None or len(written) > MOST_NAMES else list[int]()
            command = self._packers[view].command(items, numbers)
            limit = BYTES_A_SCRIPT if len(items) > 1 else MAX_COMMAND_BYTES
            if len(command) <= limit:
                if written is not None and numbers is not None:
                    written.add(numbers)
                yield command, items
                return
            reason = f"its {len(command)} bytes are more than Redis takes"
        except Unfit as error:
            reason = str(error)
        except (UnicodeEncodeError, orjson.JSONEncodeError):
            reason = "Redis views cannot hold it: a text has a lone surrogate, which is no character"
        if len(items) == 1:
            letters.append(parked(self._views[view], items[0], reason))
            return
        middle = len(items) // 2
        yield from self._commands(view, items[:middle], letters)
        yield from self._commands(view, items[middle:], letters)

    def _send(self, command: bytes) -> None:
        """Send small commands together: for each send Redis wakes up, and Python's lock is given up."""
        if len(command) >= BYTES_TOGETHER:
            self._send_rest()  # a large command is not copied, to go together with small ones
        self._unsent.append(command)
        self._unsent_bytes += len(command)
        if self._unsent_bytes >= BYTES_TOGETHER:
            self._send_rest()

    def _send_rest(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if unsent:
            self._living().send_packed_command((b"".join(unsent),), check_health=False)

    def _settle(self, view: str, items: Sequence[Item], letters: list[Parked]) -> None:
        self._send_rest()
        for refused in self._living().read_response(disable_decoding=True):
            if isinstance(refused, list):
                at, owner = refused
                letters.append(lives_elsewhere(self._views[view], items[at], as_text(owner)))
                continue
            at = refused
            places = self._packers[view].places_of(items[at])
            reason = (
                f"the Redis {places} holds something that viewtail did not write; it is left alone. Delete "
                f"or rename it, then run: viewtail replay {view}. Where another tool keeps the view's keys, they are "
                f"taken over instead: viewtail adopt {view}"
            )
            letters.append(parked(self._views[view], items[at], reason))

    def _ask(self, *command: object) -> Any:
        connection = self._living()
        connection.send_command(*command, check_health=False)
        return connection.read_response(disable_decoding=True)

    def _living(self) -> Any:
        if self._connection is None:
            raise exceptions.ConnectionError("the connection broke")
        return self._connection

    def _drop(self) -> None:
        """Close the connection: answers that were not read must not be taken for later ones."""
        connection, self._connection = self._connection, None
        self._unsent, self._unsent_bytes = [], 0
        self._sent = None
        if connection is not None and self._client is not None:
            connection.disconnect()
            self._client.connection_pool.release(connection)


def _new_to(seen: set[Key], items: Sequence[Item]) -> list[Key]:
    """The keys that are not in `seen`; adds them to it."""
    new = [key for key, _ in items if key not in seen]
    seen.update(new)
    return new


def packer_of(view: BoundView, keys: RedisKeys, database: str) -> Packer | SetPacker:
    """The packer of a view's commands, by what it keeps of an entity."""
    stays_out = mark_of(view.view.id, keys.shape, database) if view.is_pushed else ""
    return (SetPacker if isinstance(view.view, RedisSet) else Packer)(view, keys, unless=stays_out)


def as_text(answer: Any) -> str:
    """An answer of Redis as text; bytes that are not UTF-8 become lone surrogates."""
    return answer.decode("utf-8", "surrogateescape") if isinstance(answer, bytes) else str(answer)


_WITNESS_CHANGED = (
    "Redis: the witness is not what viewtail left there: Redis was flushed or restored, or another process writes "
    "these views as well; viewtail checks again what Redis holds"
)
