"""Some entities of a view projected again from their canonical rows, in place, under a new watermark.

Which ones is a selection: keys, those that are parked, those that the binlog says changed in a stretch of it, those of
which the row meets a condition. A key that has no row any more gets its tombstone. Old events are not sent again as
they were: the guard would refuse them, rightly, since the view has newer versions.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

import pymysql

from ingest.canonical.chunks import CHUNK_ROWS, CanonicalRows, Chunk, row_order
from offsets.fill_keys import key_from_text, key_text
from offsets.runs import RunState
from projectors.proving.comparison import Found
from projectors.proving.reprojection import Piece, Written
from projectors.proving.view_access import CHUNK_WITHIN_S, ViewAccess
from projectors.throttle import Throttle
from projectors.views import BoundView
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.errors import MisuseError, SourceError, StopRequested, TookTooLongError, ViewtailError
from viewtail.changes.rendering import in_a_line, key_renderer, some_in_a_line
from viewtail.changes.writes import Key
from viewtail.operations.given import key_of_text, own_keys
from viewtail.operations.kept_conditions import unsaid
from viewtail.operations.runs import Run
from viewtail.servers.sessions import number_of

KEYS_AT_ONCE = 2_000
ROWS_AT_ONCE = CHUNK_ROWS  # with 8,000, the commit and what comes with it are a tenth of the time
PIECES = 8  # of so many rows under one lock, where no limit is set: nothing is read ahead from one lock to the next
SAVE_EVERY_S = 2.0
ASK_ABOVE = 1_000  # entities
COMPARED_UPTO = 1_000  # entities; of more of them, to read the view again would take as long as writing it


class Selection(Protocol):
    """Entities that are selected: the same each time that it is asked, or more at its end."""

    @property
    def what(self) -> str:
        """The selection in words, for the record; equal ones go on with each other."""

    def count(self) -> int | None:
        """Return how many, or about how many; None where counting them takes too long."""

    def batches(self, beside: ViewAccess, version: int, after: Any) -> Iterator[tuple[list[Key], Any]]:
        """Some of them and where that is, behind an earlier such place; None: from the beginning."""

    def written(self, beside: ViewAccess, version: int, after: Any) -> Iterator[tuple[int, Written, Any]]:
        """Writes some of them: how many, what became of them, and where that is."""


@dataclass(frozen=True, slots=True)
class Keys:
    """These, in this order."""

    keys: Sequence[Key]
    what: str

    def count(self) -> int:
        return len(self.keys)

    def batches(self, beside: ViewAccess, version: int, after: Any) -> Iterator[tuple[list[Key], Any]]:
        for at in range(after or 0, len(self.keys), KEYS_AT_ONCE):
            some = list(self.keys[at : at + KEYS_AT_ONCE])
            yield some, at + len(some)

    def written(self, beside: ViewAccess, version: int, after: Any) -> Iterator[tuple[int, Written, Any]]:
        for keys, place in self.batches(beside, version, after):
            yield len(keys), beside.reprojection.of_keys(keys, version), place


@dataclass(frozen=True, slots=True, eq=False)
class Where:
    """The entities of which the canonical row meets a condition, written in SQL by an operator.

    Args:
        kept: what is told and kept of the condition, as `kept_condition` gives it; '': all of it.
    """

    condition: str
    rows: int | None
    rows_at_once: int = ROWS_AT_ONCE
    pieces: int = PIECES  # written at once
    kept: str = ""

    @property
    def what(self) -> str:
        return f"where {self.kept or self.condition}"

    def count(self) -> int | None:
        return self.rows

    def batches(self, beside: ViewAccess, version: int, after: Any) -> Iterator[tuple[list[Key], Any]]:
        names = [column.name for column in beside.view.table.columns if column in beside.view.key]
        rows = beside.rows_where(self.condition, names, KEYS_AT_ONCE)
        order, place = row_order(beside.view.table), self._place(beside, after)
        while (piece := self._after(rows, place, version)) is not None:
            place = piece.last_key
            yield _keys(beside.view, names, piece), key_text(place, order, 0)
            if piece.is_last:
                return

    def written(self, beside: ViewAccess, version: int, after: Any) -> Iterator[tuple[int, Written, Any]]:
        entity = beside.view.view.entity
        if entity.version is not None or entity.values:  # of a key's rows only the newest counts, of a group's all do
            for keys, place in self.batches(beside, version, after):
                yield len(keys), beside.reprojection.of_keys(keys, version), place
            return
        yield from self._written(beside, version, after)

    def _written(self, beside: ViewAccess, version: int, after: Any) -> Iterator[tuple[int, Written, Any]]:
        """Write by pieces of rows, which takes a fraction of the time of reading each row by its key."""
        view, names = beside.view, beside.view.needed
        rows = beside.rows_where(self.condition, names, self.rows_at_once)
        order, place = row_order(view.table), self._place(beside, after)

        def read(behind: Any) -> Piece | None:
            piece = self._after(rows, behind, version)
            if piece is None:
                return None
            return Piece(
                keys=_keys(view, names, piece),
                projected=beside.projections.of_rows(view.id, piece.rows, version),
                rows=len(piece.rows),
                place=piece.last_key,
                is_last=piece.is_last,
            )

        is_end = False
        while not is_end:
            done = beside.reprojection.of_pieces(read, place, version, self.pieces)
            is_end = done.is_end
            if done.last is not None:
                place = done.last.place
                yield done.rows, done.written, key_text(place, order, 0)

    def _after(self, rows: CanonicalRows, place: Any, version: int) -> Chunk | None:
        try:
            return rows.after(place, version)
        except TookTooLongError:
            raise MisuseError(
                f"--where {(self.kept or self.condition)!r}: the server looks longer than {CHUNK_WITHIN_S:.0f} s for "
                "the next rows, and was told to end that. Write a condition that an index serves, or find the keys "
                "another way and name them: --keys-from FILE"
            ) from None
        except SourceError as error:
            cause = error.__context__
            if self.kept in ("", self.condition) or not isinstance(cause, pymysql.err.MySQLError):
                raise
            raise SourceError(f"the server refused to read rows {self.what}: {unsaid(number_of(cause))}") from None

    @staticmethod
    def _place(beside: ViewAccess, after: Any) -> Key | None:
        """Return the place where a run goes on; None too where the table is read in another order by now."""
        place, order, _ = key_from_text(after)
        return place if order == row_order(beside.view.table) else None


def _keys(view: BoundView, names: Sequence[str], chunk: Chunk) -> list[Key]:
    """Return the keys of its rows, which have columns of these names."""
    columns = [map(itemgetter(names.index(column.name)), chunk.rows) for column in view.key]
    return list(dict.fromkeys(zip(*columns, strict=True)))


def keys_from_texts(view: BoundView, texts: Sequence[str], source: str) -> Keys:
    """Rendered keys, as `get` takes them, without those of tables that are paused. Raises MisuseError."""
    keys = view.own(own_keys(list(dict.fromkeys(key_of_text(text, view.key) for text in texts)), view))
    if not keys:
        raise MisuseError(f"{source}: there is no key")
    render = key_renderer(view.key)
    texts = [in_a_line(render(key)) for key in keys]  # `forget ENTITY KEY` finds them so
    digest = hashlib.sha256("\n".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return Keys(keys, f"{source}: {some_in_a_line(texts)} ({digest})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one replay."""

    written: Written
    entities: int
    took_s: float
    kept: tuple[Found, ...]  # what the view shows otherwise still, as where the guard refused the row
    uncompared: str  # why it was not compared with the rows afterwards; '' where it was


@dataclass(eq=False, kw_only=True)
class ReplayKeys:
    """One replay of some entities of one view.

    Args:
        say: is told how many were done, and how many there are.
    """

    beside: ViewAccess
    selection: Selection
    run: Run
    throttle: Throttle
    say: Callable[[int, int], None]
    _saved_at: float = field(default_factory=time.monotonic)

    def execute(self) -> Outcome:
        """Write them. Raises ViewtailError; StopRequested where it was stopped: another one goes on where it was."""
        began = time.monotonic()
        self.beside.check()
        self.run.begin()
        try:
            return self._execute(began)
        except StopRequested:
            self.run.end(RunState.STOPPED, self._words())
            raise
        except ViewtailError as error:
            self.run.fail(error)
            raise

    def _execute(self, began: float) -> Outcome:
        progress = self.run.progress
        progress.setdefault("entities", 0)
        progress.setdefault("shown", 0)
        progress.setdefault("kept_out", 0)
        progress.setdefault("gone", 0)
        progress.setdefault("parked", 0)
        version = self.beside.now()
        total, written = self.selection.count() or 0, Written()
        for count, some, place in self._written(version, progress.get("after")):
            written += some
            progress["entities"] += count
            progress["shown"] += some.shown
            progress["kept_out"] += some.kept_out
            progress["gone"] += some.gone
            progress["parked"] += len(some.parked)
            progress["after"] = place
            self.say(progress["entities"], total)
            if time.monotonic() - self._saved_at > SAVE_EVERY_S:
                self.run.save()
                self._saved_at = time.monotonic()
            self.throttle.after(count)
            if self.beside.stop.is_set():
                raise StopRequested
        self.beside.note_ended()
        kept, uncompared = self._kept(version)
        progress["kept"] = len(kept)
        self.run.end(RunState.DONE, self._words())
        took_s = time.monotonic() - began
        return Outcome(written=written, entities=progress["entities"], took_s=took_s, kept=kept, uncompared=uncompared)

    def _kept(self, version: int) -> tuple[tuple[Found, ...], str]:
        """Entities that the view shows otherwise than their rows are, though they were written; or why nobody looked.

        A store does not say which writes its guard refused, so what it holds is compared with the rows, as `verify`
        does. All is written by then: nothing that fails here has the replay fail.
        """
        beside = self.beside
        if self.run.progress["entities"] > COMPARED_UPTO:
            return (), f"they are more than {COMPARED_UPTO:,}"
        try:
            keys = [key for some, _ in self.selection.batches(beside, version, None) for key in some]
            mismatches = beside.comparison().settle(keys).found
            if mismatches:
                beside.require_place()
                beside.check()
            parked = beside.parked() if mismatches else ()  # these are told as such
        except StopRequested:
            return (), "the command was stopped"
        except ViewtailError as error:
            return (), str(error)
        return tuple(mismatch for mismatch in mismatches if mismatch.name not in parked), ""

    def _written(self, version: int, after: Any) -> Iterator[tuple[int, Written, Any]]:
        try:
            yield from self.selection.written(self.beside, version, after)
        except SourceError as error:
            raise SourceError(f"{self.beside.view.id}: {error}") from None

    def _words(self) -> str:
        progress = self.run.progress
        kept = f", {progress['kept']:,} {agreeing(progress['kept'], 'differ')} still" if progress.get("kept") else ""
        return (
            f"{counted(progress.get('entities', 0), 'entities')}: {progress.get('shown', 0):,} written, "
            f"{progress.get('kept_out', 0):,} kept out by where, {progress.get('gone', 0):,} gone from the table, "
            f"{progress.get('parked', 0):,} parked{kept}"
        )
