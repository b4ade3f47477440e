"""`viewtail replay VIEW` of some entities: what operations/replay_keys.py does, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import pymysql

from ingest import TimedSource
from ingest.canonical import select_of
from projectors.catalog import Catalog
from projectors.proving.changed_keys import StreamRange, changed_keys
from projectors.proving.view_access import ViewAccess
from projectors.views import BoundView
from viewtail import declarations
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.errors import HistoryGoneError, MisuseError, StopRequested
from viewtail.changes.positions import Position
from viewtail.changes.rendering import render_key
from viewtail.changes.writes import Key
from viewtail.commands.agreeing import agreed
from viewtail.commands.binlog_range import moment_of
from viewtail.commands.named_file import content_of
from viewtail.commands.output import print_remark
from viewtail.commands.pace import throttle_of
from viewtail.commands.progress import progress
from viewtail.composition import deployed_to_work
from viewtail.operations.given import key_of_text, key_spellings, other_reading, own_keys
from viewtail.operations.kept_conditions import kept_condition, unsaid
from viewtail.operations.parts import KeysOfPart, part_of
from viewtail.operations.replay_keys import (
    ASK_ABOVE,
    ROWS_AT_ONCE,
    Keys,
    Outcome,
    ReplayKeys,
    Selection,
    Where,
    keys_from_texts,
)
from viewtail.operations.runs import Run
from viewtail.servers.literals import where_all
from viewtail.servers.sessions import number_of, took_too_long
from viewtail.settings import Settings
from viewtail.signals import EXIT_STOPPED, on_stop

MOST_TOLD = 20
COUNT_WITHIN_S = 10.0  # what a condition selects


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """The entities that are meant, as given on the command line; exactly one way of naming them."""

    keys: Sequence[str] = ()
    keys_from: Path | None = None
    is_parked: bool = False
    since: str | None = None
    begin: str | None = None
    end: str | None = None
    where: str | None = None
    part: str | None = None

    def check(self) -> None:
        """Raise MisuseError."""
        ways = {
            "--key": bool(self.keys),
            "--keys-from": self.keys_from is not None,
            "--parked": self.is_parked,
            "--since": self.since is not None,
            "--from": self.begin is not None,
            "--where": self.where is not None,
            "--part": self.part is not None,
        }
        given = [name for name, is_given in ways.items() if is_given]
        if len(given) > 1:
            raise MisuseError(f"{' and '.join(given)}: name the entities in one way")
        if self.end is not None and self.begin is None:
            raise MisuseError("--to is for --from: write --from POSITION --to POSITION")

    @property
    def is_some(self) -> bool:
        """Return whether entities are named at all."""
        ways = (self.keys, self.is_parked, self.keys_from, self.since, self.begin, self.where, self.part)
        return any(ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """The way it is done, as given on the command line."""

    is_dry_run: bool
    is_yes: bool
    rows_a_second: float  # 0: no limit


def replay_keys(loaded: Settings, name: str, selected: Selected, how: How) -> int:
    """Write some entities of a view again; returns the exit code: 1 where one could not be written."""

    def work(catalog: Catalog, beside: ViewAccess) -> int:
        return replay(catalog, beside, _selection(catalog, beside, selected, how), how)

    return _of_view(loaded, name, work, " where it was")


def redrive(loaded: Settings, name: str, keys: Sequence[str], *, is_yes: bool) -> int:
    """Write parked entities again; the exit code is 1 where one is refused again."""
    how = How(is_dry_run=False, is_yes=is_yes, rows_a_second=0)

    def work(catalog: Catalog, beside: ViewAccess) -> int:
        view, parked = beside.view, beside.parked()
        wanted, unreadable = _readable(view, sorted(_parked_keys(view, keys, parked) or parked))
        for key in unreadable:
            print_remark(f"{view.id}: {key}: nobody can tell which row that is. Mend the row in MySQL, then drop it")
        _say_paused(beside)
        selection = _parked_ones(view, wanted)
        return max(replay(catalog, beside, selection, how, kind="redrive"), bool(unreadable))

    return _of_view(loaded, name, work, "")


def _of_view(loaded: Settings, name: str, work: Callable[[Catalog, ViewAccess], int], where: str) -> int:
    """Work on a view until a stop; returns the exit code."""
    catalog = deployed_to_work(loaded, [declarations.chosen(loaded, name)])
    (view,) = catalog.views
    stop = Event()
    on_stop(stop.set)
    try:
        with ViewAccess(catalog, view, stop, print_remark) as beside:
            beside.check()
            return work(catalog, beside)
    except StopRequested:
        print_remark(f"{view.id}: stopped. The same command goes on{where}")
        return EXIT_STOPPED


def _parked_keys(view: BoundView, keys: Sequence[str], parked: Collection[str]) -> list[str]:
    """The keys of the view's source in the form in which they are parked.

    Raises MisuseError where one is not, UnknownNameError where all are of other sources.
    """
    named = [_as_parked(key, parked) for key in keys]
    parsed = {key: key_of_text(key, view.key) for key in named if key not in parked}  # says which form it should have
    named = [key for key in named if key in parked or view.own([parsed[key]])]
    if not named:
        own_keys([*parsed.values()], view)
    if unknown := sorted(set(named).difference(parked)):
        raise MisuseError(f"{view.id}: not parked: {', '.join(unknown)}. See: viewtail dead-letters list {view.id}")
    return named


def _as_parked(key: str, parked: Collection[str]) -> str:
    return next((form for form in key_spellings(key) if form in parked), key)


def _readable(view: BoundView, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return those that are keys of the view, and those that name a key which nobody could read."""
    wanted, unreadable = [], []
    for name in names:
        try:
            key_of_text(name, view.key)
            wanted.append(name)
        except MisuseError:
            unreadable.append(name)
    return wanted, unreadable


def replay(catalog: Catalog, beside: ViewAccess, selection: Selection, how: How, kind: str = "replay") -> int:
    """Write the entities of a selection again, and print what became of them; returns the exit code."""
    count = selection.count()
    name = beside.view.id
    if count == 0:
        print(f"{name}: no entity is {selection.what}")
        return 0
    many = (
        f"entities, not counted, since that takes longer than {COUNT_WITHIN_S:.0f} s,"
        if count is None
        else f"about {counted(count, 'entities')}"
    )
    if how.is_dry_run:
        return _tell_dry(beside, selection, many)
    question = f"{name}: {many} ({selection.what}) {agreeing(count or 0, 'are')} written again. Go on?"
    if (count is None or count > ASK_ABOVE) and not agreed(question, is_yes=how.is_yes):
        print_remark("nothing was written")
        return 1
    throttle = throttle_of(catalog, beside.stop, rows_a_second=how.rows_a_second)
    run = Run(beside.session, catalog.database, kind, name, selection.what, beside.view.fingerprint)
    with progress(name, "entities") as say, closing(throttle):
        done = ReplayKeys(beside=beside, selection=selection, run=run, throttle=throttle, say=say).execute()
    _tell_left(name, done)
    return _tell(name, done, run.progress)


def _tell_left(name: str, done: Outcome) -> None:
    """Print, on stderr, the keys that were parked, and those that differ still."""
    for letter in done.written.parked[:MOST_TOLD]:
        print(f"{name}\t{letter.key}\tparked\t{letter.reason}", file=sys.stderr)
    for mismatch in done.kept[:MOST_TOLD]:
        print(f"{name}\t{mismatch.name}\t{mismatch.difference.value}\t{mismatch.why}", file=sys.stderr)


def _tell(name: str, done: Outcome, counts: Mapping[str, Any]) -> int:
    """`counts`: with those of the run that it went on with. Returns the exit code."""
    kept_out = f"{counts['kept_out']:,} kept out by where, " if counts["kept_out"] else ""
    differing = f", {len(done.kept):,} of these {agreeing(len(done.kept), 'differ')} still" if done.kept else ""
    print(
        f"{name}: {counted(done.entities, 'entities')} in {done.took_s:.1f} s: {counts['shown']:,} written, "
        f"{kept_out}{counts['gone']:,} gone from the table, {counts['parked']:,} parked"
        f"{differing}"
    )
    if done.uncompared:
        print_remark(
            f"whether the view shows them now was not looked at: {done.uncompared}. `viewtail verify {name}` does that"
        )
    if done.kept:
        print_remark(
            "what differs still is what the view has in a newer version than its row, or what somebody changed "
            f"meanwhile. To mend that, and all else that differs: viewtail verify {name} --repair"
        )
    return 1 if counts["parked"] or done.kept else 0


def _tell_dry(beside: ViewAccess, selection: Selection, many: str) -> int:
    print(f"{beside.view.id}: {many} would be written again ({selection.what}):")
    told = 0
    for keys, _ in selection.batches(beside, beside.now(), None):
        for key in keys:
            print(f"  {render_key(key, beside.view.key)}")
            told += 1
            if told == MOST_TOLD:
                print("  ...")
                return 0
    return 0


# --- Which entities ---


def _say_paused(beside: ViewAccess) -> None:
    for record in beside.paused:
        print_remark(f"{record}: its keys are left alone")


def _parked_ones(view: BoundView, names: Sequence[str]) -> Keys:
    own = [name for name in names if view.own([key_of_text(name, view.key)])]
    return keys_from_texts(view, own, "parked keys") if own else Keys([], "parked")


def _selection(catalog: Catalog, beside: ViewAccess, selected: Selected, how: How) -> Selection:
    view = beside.view
    if selected.keys:
        for key in selected.keys:
            print_remark(other_reading(key, view.key))
            beside.require_not_paused(key_of_text(key, view.key))
        return keys_from_texts(view, selected.keys, "the keys")
    if selected.keys_from is not None:
        texts = _keys_of(view, selected.keys_from)
        beside.require_not_paused(*(key_of_text(text, view.key) for text in texts))
        return keys_from_texts(view, texts, f"the keys of {selected.keys_from}")
    if selected.part is not None:
        part = part_of(view.view, selected.part)
        beside.require_not_paused(part.values)
        return KeysOfPart(part, selected.part)
    _say_paused(beside)
    if selected.is_parked:
        return _parked_ones(view, sorted(beside.parked()))
    if selected.where is not None:
        # With a limit no more than it lets through in a second.
        kept = kept_condition(selected.where, view, catalog.servers.masks.secret)
        rows = _count(catalog, view, selected.where, kept)
        if how.rows_a_second:
            return Where(selected.where, rows, max(1, min(ROWS_AT_ONCE, int(how.rows_a_second))), pieces=1, kept=kept)
        return Where(selected.where, rows, kept=kept)
    return _changed(catalog, beside, selected)


def _keys_of(view: BoundView, file: Path) -> list[str]:
    """Return the lines that are not empty. Raises MisuseError with the first one that is no key of the view."""
    try:
        text = content_of(file).decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise MisuseError(f"--keys-from {file}: cannot be read: {error}") from None
    lines = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if line:
            try:
                key_of_text(line, view.key)
            except MisuseError as error:
                raise MisuseError(f"--keys-from {file}, line {number}: {error}") from None
            lines.append(line)
    return lines


def _count(catalog: Catalog, view: BoundView, condition: str, kept: str) -> int | None:
    """Count the rows that meet it; None where that takes too long. Raises MisuseError for what the server refuses.

    `kept`: what may be told of it.
    """
    with closing(catalog.servers.open_limited(COUNT_WITHIN_S)) as connection, connection.cursor() as cursor:
        try:
            count = 0
            for table in view.table.each:
                cursor.execute(select_of(table, "COUNT(*)", where_all(condition)))
                count += sum(int(of_table) for (of_table,) in cursor.fetchall())
        except pymysql.err.MySQLError as error:
            if took_too_long(error):
                return None
            if kept != condition:
                raise MisuseError(f"--where {kept!r}: {unsaid(number_of(error))}") from None
            said = error.args[1] if len(error.args) > 1 else type(error).__name__
            raise MisuseError(f"--where {condition!r}: {number_of(error)} {said}") from None
        return count


def _changed(catalog: Catalog, beside: ViewAccess, selected: Selected) -> Keys:
    """The keys that the binlog says changed."""
    view = beside.view
    history = catalog.history_beside(view.id)
    source = history.reader({}, {})
    if not isinstance(source, TimedSource):
        raise MisuseError(
            "changed entities are looked up in the binlog, and the source of these settings is another. Name the "
            "entities otherwise; or, where a tailer reads the binlog into Kafka, use its settings"
        )
    try:
        stretch, what = _stretch(beside, source, selected)
        with progress(view.id, "entities found") as say:

            def found(count: int, at: Position) -> None:
                say(count, 0, f", at {at}")

            keys: list[Key] = changed_keys(history, view, stretch, beside.stop, found, beside.in_snapshot)
    except HistoryGoneError as error:
        whole = f"viewtail replay {view.id}"
        raise HistoryGoneError(f"{once_only(str(error))} To write the whole view again: {whole}") from None
    return Keys(keys, what)


def once_only(text: str) -> str:
    """Return what is said of history that is gone, without what it says to do for a pipeline."""
    return f"{text.partition('. ')[0].rstrip('.')}."


def _stretch(beside: ViewAccess, source: TimedSource, selected: Selected) -> tuple[StreamRange, str]:
    if selected.since is not None:
        moment = moment_of(selected.since, datetime.now(UTC))
        since_us = round(moment.timestamp() * 1_000_000)
        token = beside.watermarks.writer.mark_end()
        what = f"changed since {moment:%Y-%m-%dT%H:%M:%SZ}"
        return StreamRange(begin=source.since(since_us), since_us=since_us, token=token), what
    assert selected.begin is not None
    begin, above = _place(source, "--from", selected.begin)
    if selected.end is None:
        return StreamRange(
            begin=begin, above=above, token=beside.watermarks.writer.mark_end()
        ), f"changed from {selected.begin}"
    _, upto = _place(source, "--to", selected.end)
    if upto < above:
        raise MisuseError(f"--to {selected.end} is before --from {selected.begin}")
    what = f"changed from {selected.begin} to {selected.end}"
    return StreamRange(begin=begin, above=above, upto=upto), what


def _place(source: TimedSource, option: str, text: str) -> tuple[Position, int]:
    try:
        return source.place(text)
    except ValueError as error:
        raise MisuseError(f"{option}: {error}") from None
