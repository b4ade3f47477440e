"""Compares a view with its table while both change.

A first look compares a chunk of the table, or some keys, and gives suspects: keys that differ, perhaps only because the
pipeline is a moment behind. A suspect is settled like this. What the store holds of it is read (1). A watermark is
passed, then the canonical row is read in a snapshot that shows the watermark, then a second watermark is passed, and
what the store holds is read again (2). If (1) and (2) are the same, the stream brought nothing for the key meanwhile,
though the pipeline has applied everything up to behind the snapshot. So the store must show that row, and where it does
not, nothing will mend it. If they are not the same, the key is looked at once more. A key that got a newer version
between all of these looks is as the stream writes it: each write replaces all that the store holds of an entity.

A version above the one that the row is written with counts too, whatever the values are: the guard would keep all that
comes later out of the view.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ingest.canonical.chunks import CanonicalRows, Chunk
from projectors.projection import Projections, writes_by_key
from projectors.stores import NOTHING_HELD, Held, Unfit, ViewReader
from projectors.views import BoundView
from viewtail.changes.batches import Row, unreadable_in
from viewtail.changes.rendering import key_renderer
from viewtail.changes.versions import MAX_VERSION
from viewtail.changes.writes import Key, Write

ROUNDS = 5  # of settling; a key that changed in each of them, and got no newer version, is told as such
KEYS_A_ROUND = 2_000


class Difference(StrEnum):
    """A view differs from its table in one entity in one of these ways."""

    MISSING = "missing"  # the table has the row, and the view shows nothing
    EXTRA = "extra"  # the view shows what the table does not have
    STALE = "stale"  # the view has an older version of the row than the table; told of version columns
    WRONG = "wrong"  # anything else


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One entity that differs. Holds no values but the key's."""

    key: Key
    name: str  # the rendered key
    difference: Difference
    version: int | None  # that the store has for it
    why: str  # in words
    is_unexplained: bool  # no history gave it the version or the form that it has: the guard may keep it for ever
    held: Held
    may_be_archiving: bool = False  # of an append-only view: a newer row may have been archived before older ones
    row_version: int | None = None  # that its row is written with; None: nothing says that it is written


@dataclass(slots=True, kw_only=True)
class Settled:
    """The outcome of settling suspects."""

    found: list[Found] = field(default_factory=list)
    parked: list[str] = field(default_factory=list)  # rendered keys: the projection or the store refuses the row
    changing: list[Key] = field(default_factory=list)  # changed at each look, and not to a newer version
    watermark: int = 0  # the version of the newest one that was passed


@dataclass(slots=True)
class Expected:
    """A view must show this of some rows."""

    writes: dict[Key, Write]
    parked: set[str]  # rendered keys of rows that cannot be projected


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """Compares one view. Not thread-safe.

    Args:
        rows: canonical rows with the view's columns.
        projections: of this view alone.
        now: the version of a new watermark, once everything before it is durable in the view.
        parked: the rendered keys of its dead letters.
    """

    view: BoundView
    rows: CanonicalRows
    reader: ViewReader
    projections: Projections
    now: Callable[[], int]
    parked: Callable[[], Collection[str]]

    # -- the first look -----------------------------------------------------------------------------------------

    def look(self, after: Key | None, version: int) -> tuple[Chunk | None, list[Key]]:
        """The next chunk of the table behind a paging key, read under a watermark of that version, and its suspects."""
        chunk = self.rows.after(after, version)
        return chunk, self.suspects_in(after, chunk, version)

    def suspects_in(
        self,
        after: Key | None,
        chunk: Chunk | None,
        version: int,
        saw: Callable[[Iterable[Key]], object] = lambda _: None,
    ) -> list[Key]:
        """The suspects of the chunk behind a paging key; None: no row follows there.

        `saw` gets the keys of its rows.
        """
        rows = [] if chunk is None else chunk.rows
        expected = self.projected(rows, version) if rows else Expected({}, set())
        saw(expected.writes)
        refused = self._keys_of(rows, expected.parked) if expected.parked else []
        if self.reader.has_order:
            upto = None if chunk is None or chunk.is_last else chunk.last_key
            return self._unequal_between(after, upto, expected.writes, version) + refused
        return (self.reader.unequal(expected.writes) if expected.writes else []) + refused

    def _unequal_between(
        self, after: Key | None, upto: Key | None, wanted: dict[Key, Write], version: int
    ) -> list[Key]:
        # Where nothing is shown of a row, a version above all would keep out what it gets later.
        is_of_stream = self.view.view.entity.version is None
        shown, versions = self.reader.between(after, upto, version if is_of_stream else MAX_VERSION)
        above = [key for key, (newest, _) in wanted.items() if versions.get(key, 0) > newest]
        return self._unequal(shown, wanted) + above

    def _unequal(self, shown: Mapping[Key, Any], wanted: Mapping[Key, Write]) -> list[Key]:
        values = {key: write[1] for key, write in wanted.items()}
        if shown == values:
            return []
        differing = [
            key
            for key, value in values.items()
            if shown.get(key) != value and not (key not in shown and self._shows_nothing(key, value))
        ]
        return differing + [key for key in shown if key not in values]

    def _shows_nothing(self, key: Key, value: tuple[Any, ...] | bytes | None) -> bool:
        """Return whether the store shows nothing of such a row: an index table of one whose values are all NULL."""
        return value is None or self.reader.form_of(key, value) is None

    @property
    def sees_strangers(self) -> bool:
        """Return whether `look` sees keys that the table does not have; otherwise `orphans` does."""
        return self.reader.has_order

    def orphans(
        self, version: int, unseen: Callable[[Sequence[Key]], Sequence[Key]] = lambda keys: keys
    ) -> Iterator[tuple[int, list[Key]]]:
        """Pages of the store's keys: how many, and those of them that no row is for; then those that are twice.

        `unseen` leaves out keys that the caller saw rows of.
        """
        is_plain = self.view.view.where is None and self.view.view.document is None
        for shown in map(self.view.own, self.reader.shown_keys()):
            page = unseen(shown)
            if not page:
                absent: Iterable[Key] = ()
            elif is_plain:
                absent = self.rows.absent(self.view.key, page, version)
            else:
                absent = set(page) - self.expected(page, version).writes.keys()  # without those that are parked
            yield len(shown), list(absent)
        for page in map(self.view.own, self.reader.orphans()):
            yield 0, [*page]

    # -- settling -----------------------------------------------------------------------------------------------

    def settle(self, suspects: Collection[Key]) -> Settled:
        """Which of them differ for good. Waits until the pipeline has passed two watermarks or more."""
        settled = Settled()
        keys = list(dict.fromkeys(self.view.own([*suspects])))
        if self.view.view.entity.dropped == "keep":  # of tables that are gone the view is the archive
            keys = self.rows.of_present_tables(keys)
        for at in range(0, len(keys), KEYS_A_ROUND):
            self._settle(keys[at : at + KEYS_A_ROUND], settled)
        return settled

    def _settle(self, keys: list[Key], settled: Settled) -> None:
        before = after = self.reader.held(keys)
        for _ in range(ROUNDS):
            first = self.now()
            expected = self.expected(keys, first)
            settled.watermark = self.now()
            before, after = after, self.reader.held(keys)
            look = _Look(before, after, expected, self.parked(), first)
            keys = [key for key in keys if not self._is_settled(key, look, settled)]
            if not keys:
                return
        settled.changing += [key for key in keys if not _is_newer(after.get(key), before.get(key))]

    def _is_settled(self, key: Key, look: _Look, settled: Settled) -> bool:
        """Return whether this look decides what becomes of a key."""
        held, write = look.after.get(key, NOTHING_HELD), look.expected.writes.get(key)
        is_same = held == look.before.get(key, NOTHING_HELD)
        if self._is_parked(key, held, look.expected, look.parked):
            settled.parked.append(self.name_of(key))
        elif self.is_shown(key, held, look.expected) and not (is_same and self._is_above(held, write, look.watermark)):
            pass
        elif is_same:
            settled.found.append(self._found(key, held, write, look.watermark))
        else:
            return False
        return True

    def expected(self, keys: Sequence[Key], version: int) -> Expected:
        """Project what the view must show of these keys, by the rows of a snapshot that shows a watermark."""
        return self.projected(self._having(keys, version), version)

    def _is_parked(self, key: Key, held: Held, expected: Expected, parked: Collection[str]) -> bool:
        """Return whether its row cannot be in the view; or it can by now, and waits among the dead letters.

        One that only what the store holds there keeps out is none of them.
        """
        name = self.name_of(key)
        try:
            form = self.form(key, expected)
        except (Unfit, ValueError, TypeError):
            return True
        return name in expected.parked or (name in parked and not held.fault and held.content != form)

    def is_shown(self, key: Key, held: Held, expected: Expected) -> bool:
        """Return whether what the store holds is what is expected. Raises what `form_of` raises."""
        if held.fault:
            return False
        return self._is_archived(held, expected.writes.get(key)) or held.content == self.form(key, expected)

    def _is_archived(self, held: Held, write: Write | None) -> bool:
        """Return whether the row that the view shows may have been archived: it is in the view for good.

        Not where the rows of a key are one history and an older one is there: old rows are archived first. The newer
        one was deleted, or versions began again.
        """
        if not self.view.view.entity.append_only:
            return False
        return write is None or ((held.version or 0) > write[0] and not self._is_one_history)

    @property
    def _is_one_history(self) -> bool:
        """Return whether the rows of a key are of one entity: there is one at most, or versions are counted by key.

        That no two rows of the table have one version says nothing: they may be of many entities.
        """
        table, entity = self.view.table, self.view.view.entity
        key, only = {*(entity.key or table.primary_key)}, {*dict(entity.only)}
        of_a_version = {*key, *only, entity.version}
        return any(
            unique and (key | only >= {*unique} or key <= {*unique} <= of_a_version)
            for unique in (table.primary_key, *table.unique_keys)
        )

    def _is_above(self, held: Held, write: Write | None, watermark: int) -> bool:
        """Return whether no history explains its version. Of a version column, only its row says what it may be."""
        if held.version is None or self._is_archived(held, write):
            return False
        if self.view.view.entity.version is None:
            return held.version > watermark
        return write is not None and held.version > write[0]

    def form(self, key: Key, expected: Expected) -> Any:
        """The `content` that the view must show of a key; None: nothing. Raises what `form_of` raises."""
        write = expected.writes.get(key)
        return None if write is None or write[1] is None else self.reader.form_of(key, write[1])

    def _found(self, key: Key, held: Held, write: Write | None, watermark: int) -> Found:
        is_above = self._is_above(held, write, watermark)
        what, why = self._difference(key, held, write)
        if held.fault:
            why = held.fault
        elif is_above:
            is_of_stream = self.view.view.entity.version is None
            why += "; its version is above " + ("all that there were" if is_of_stream else "that of the newest row")
        return Found(
            key=key,
            name=self.name_of(key),
            difference=what,
            version=held.version,
            why=why,
            is_unexplained=is_above or held.fault != "",
            held=held,
            may_be_archiving=is_above and self.view.view.entity.append_only,
            row_version=None if write is None else write[0],
        )

    def _difference(self, key: Key, held: Held, write: Write | None) -> tuple[Difference, str]:
        """Its kind, and why in words."""
        if write is None or write[1] is None:
            if held.content is None:
                return Difference.WRONG, "the view shows nothing, as it must"
            if write is not None or self.view.view.where is not None:
                return Difference.EXTRA, "the view shows it, and no row of the table belongs there"
            return Difference.EXTRA, "the view shows it, and the table has no such row"
        form = self.reader.form_of(key, write[1])
        if held.content is None:
            if form is None:
                return Difference.WRONG, "the view shows nothing, as it must"
            return Difference.MISSING, "the table has the row, and the view does not show it"
        if self._is_older(held, write):
            return Difference.STALE, "the view has an older version of the row"
        if held.content == form:
            return Difference.WRONG, "the view shows the row"
        return Difference.WRONG, "the view shows other values than the row has"

    def _is_older(self, held: Held, write: Write) -> bool:
        return self.view.view.entity.version is not None and (held.version or 0) < write[0] and not held.fault

    # -- rows ---------------------------------------------------------------------------------------------------

    def name_of(self, key: Key) -> str:
        """A key as people and dead letters write it."""
        return key_renderer(self.view.key)(key)

    def _having(self, keys: Sequence[Key], version: int) -> list[Row]:
        rows: list[Row] = []
        for at in range(0, len(keys), 500):
            rows += self.rows.having(self.view.key, keys[at : at + 500], version)
        return rows

    def projected(self, rows: list[Row], version: int) -> Expected:
        """Project what the view must show of these rows."""
        projected = self.projections.of_rows(self.view.id, rows, version)
        return Expected(writes_by_key(projected), {letter.key for letter in projected.parked})

    def _keys_of(self, rows: list[Row], names: Collection[str]) -> list[Key]:
        """The keys of the rows that are called so."""
        at = [self.view.needed.index(column.name) for column in self.view.key]
        keys = (tuple([row[number] for number in at]) for row in rows)
        return [key for key in keys if unreadable_in(key) is None and self.name_of(key) in names]


@dataclass(frozen=True, slots=True)
class _Look:
    """A round of settling has seen this."""

    before: Mapping[Key, Held]  # before the watermark
    after: Mapping[Key, Held]  # behind a later one
    expected: Expected
    parked: Collection[str]
    watermark: int  # that the rows were read under


def _is_newer(held: Held | None, before: Held | None) -> bool:
    if held is None or held.version is None or held.fault:
        return False
    return before is None or before.version is None or held.version > before.version
