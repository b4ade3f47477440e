"""`viewtail verify`: what operations/verify.py does, and what it prints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from offsets.pipelines import positions
from projectors.catalog import Catalog
from projectors.derived import Dependents, Touched, touched_keys
from projectors.derived.postponed import keys_in
from projectors.proving.changed_keys import StreamRange, changed_keys
from projectors.proving.comparison import Found
from projectors.proving.view_access import ViewAccess
from projectors.stores.registry import store_of
from projectors.views import BoundView, View
from viewtail import declarations, settings
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.errors import DeclarationError, MisuseError, StopRequested, ViewtailError, once
from viewtail.changes.positions import Position
from viewtail.changes.rendering import in_a_line
from viewtail.changes.writes import Key
from viewtail.commands.output import print_json, print_remark
from viewtail.commands.pace import throttle_of
from viewtail.commands.progress import progress
from viewtail.composition import deploy, greeted
from viewtail.interpreter import tune_command
from viewtail.operations.runs import Run
from viewtail.operations.verify import MISLED, SAMPLED_ROWS, Counts, Report, Verify
from viewtail.operations.version_resets import VersionReset
from viewtail.signals import EXIT_STOPPED, on_stop
from viewtail.sources import read_position


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options, as given on the command line."""

    is_repair: bool
    is_dry_run: bool
    share: float  # of the rows
    rows_a_second: float  # 0: no limit
    max_threads_running: int
    as_json: bool

    @property
    def what(self) -> str:
        """Return which pass it is: two of one kind go on with each other."""
        how = "compare and repair" if self.writes else "compare"
        return how if self.share == 1.0 else f"{how} a sample of {self.share:.4%}"

    @property
    def writes(self) -> bool:
        return self.is_repair and not self.is_dry_run


def verify(loaded: settings.Settings, names: Sequence[str], options: Options) -> int:
    """Compare views with their tables; returns the exit code: 1 where one differs, or could not be compared."""
    tune_command()
    chosen = _chosen(loaded, names)
    catalog, failed = _deployed(greeted(loaded), chosen)
    catalog.create_tables()
    stop = Event()
    on_stop(stop.set)
    reports: list[Report] = []
    for name, why in failed.items():
        _say_failed(options, name, why)
    for view in catalog.views:
        try:
            reports.append(_one(catalog, view, options, stop))
        except StopRequested:
            print_remark(f"{view.id}: stopped. The same command goes on where it was")
            return EXIT_STOPPED
        except ViewtailError as error:
            failed[view.id] = once(error)
            _say_failed(options, view.id, failed[view.id])
    if options.as_json:
        print_json({"views": [_as_json(report) for report in reports], "failed": failed})
    return 0 if not failed and all(report.is_equal for report in reports) else 1


def _deployed(loaded: settings.Settings, chosen: Sequence[View]) -> tuple[Catalog, dict[str, str]]:
    """And, by view, why some do not fit their tables: one that is halted for that must not keep others from being
    compared. Raises DeclarationError when there is no other."""
    try:
        return deploy(loaded, chosen), {}
    except DeclarationError:
        asked = Catalog(servers=loaded.servers())
        failed = {view.id: why for view in chosen if (why := asked.misfit(view)) is not None}
        if not failed or len(failed) == len(chosen):
            raise
        return deploy(loaded, [view for view in chosen if view.id not in failed]), failed


def _say_failed(options: Options, view: str, why: str) -> None:
    if not options.as_json:
        print(f"{view}: could not be compared: {why}", file=sys.stderr)


def _chosen(loaded: settings.Settings, names: Sequence[str]) -> list[View]:
    """Return those that were named, or all that can be compared, each once."""
    if names:
        return declarations.all_chosen(loaded, names)
    views = declarations.configured(loaded)
    guarded = [view for view in views if not store_of(view).keeps_every_change]
    for view in views if guarded else ():
        if store_of(view).keeps_every_change:
            print_remark(f"{view.id}: a topic is not compared: it has changes, not rows")
    if not guarded:
        raise MisuseError("every declared view is a topic, which keeps every change and is not compared")
    return guarded


def _one(catalog: Catalog, view: BoundView, options: Options, stop: Event) -> Report:
    chunk_rows = 0 if options.share == 1.0 else SAMPLED_ROWS
    throttles = throttle_of(
        catalog,
        stop,
        view.id,
        rows_a_second=options.rows_a_second,
        max_threads_running=options.max_threads_running,
    )
    with (
        progress(view.id, "rows") as show,
        ViewAccess(catalog, view, stop, print_remark, chunk_rows=chunk_rows) as beside,
        closing(throttles) as throttle,
    ):
        run = Run(
            beside.session,
            catalog.database,
            "repair" if options.writes else "verify",
            view.id,
            options.what,
            beside.view.fingerprint,
        )

        def say(counts: Counts, estimate: int) -> None:
            differing = counts.differing.total()
            show(counts.rows + counts.passed_over, estimate, f", {differing:,} differ" if differing else "")

        report = Verify(
            beside=beside,
            run=run,
            throttle=throttle,
            is_repair=options.writes,
            share=options.share,
            say=say,
            standing=lambda: _standing(catalog, beside, stop),
        ).execute()
    if not options.as_json:
        _print(report, options)
    return report


def _standing(catalog: Catalog, beside: ViewAccess, stop: Event) -> _Standing:
    """The view as it stands. Raises ViewtailError where nobody can tell at which place."""
    why, mend = beside.standstill() or ("its pipeline stood still", "")
    with (
        catalog.servers.asking_own() as connection,
        connection.cursor() as cursor,
    ):
        position = positions(cursor, catalog.database, read_position).get(beside.first[0].pipeline.name)
    if position is None or not catalog.servers.kind.has_rows:
        raise ViewtailError(f"{why}, and where the view stands is not known. {mend}")
    print_remark(f"{beside.view.id}: {why}: the view is compared as it stands, at {position}")
    return _Standing(catalog=catalog, beside=beside, stop=stop, stands=position, mend=mend)


@dataclass(eq=False, kw_only=True)
class _Standing:
    """A view that nobody keeps, and what the binlog says changed since its place; each time read on from the last."""

    catalog: Catalog
    beside: ViewAccess
    stop: Event
    stands: Position
    mend: str  # what ends that it stands still
    _read_upto: Position | None = None  # all before was read; the batch behind it may have been read in part
    _keys: set[Key] = field(default_factory=set)

    @property
    def at(self) -> str:
        return str(self.stands)

    def changed(self) -> set[Key]:
        view = self.beside.view
        begin = self._read_upto or self.stands
        stretch = StreamRange(begin=begin, above=begin.version, token=self.beside.watermarks.writer.mark_end())
        ends = [begin]
        try:
            history = self.catalog.history_beside(f"verify {view.id}")
            say, in_snapshot = (lambda _, at: ends.append(at)), self.beside.in_snapshot
            self._keys.update(changed_keys(history, view, stretch, self.stop, say, in_snapshot))
        except ViewtailError as error:
            raise ViewtailError(
                f"what changed since {self.stands} cannot be told from what is wrong: {error} Without that, view "
                f"{view.id} is compared only while it gets changes. {self.mend}"
            ) from None
        self._read_upto = ends[-2] if len(ends) > 1 else begin
        self._keys.update(self._fanned_out())
        return self._keys

    def _fanned_out(self) -> Collection[Key]:
        """What fan-outs that nobody goes on with would bring to the view."""
        fan_outs, rows = self.beside.fan_outs(), self.beside.view.derived
        if rows is None or not fan_outs:
            return ()
        waiting = {key: fan_out.version for fan_out in fan_outs for key in keys_in(fan_out.what)}
        others = [Dependents(of.what, of.version) for of in fan_outs if not keys_in(of.what)]
        return touched_keys(rows, Touched(waiting, others), self.beside.in_snapshot)


def _print(report: Report, options: Options) -> None:
    counts = report.counts
    repaired = {mismatch.key for mismatch in report.repaired}
    for mismatch in report.found:
        done = "repaired" if mismatch.key in repaired else ("would be written again" if options.is_repair else "")
        print(_of_mismatch(report, mismatch, done))
    for name in report.parked:
        print("\t".join([report.view, in_a_line(name), "parked", _of_parked(report, name)]))
    for name in report.foreign:
        what = "viewtail did not write it, and leaves it alone; delete it"
        print("\t".join([report.view, in_a_line(name), "foreign", what]))
    if report.misled:
        print("\t".join([report.view, "", MISLED, report.misled]))
    for part in report.paused:
        print("\t".join([report.view, part.given, "left out", f"{part}. {part.to_go_on}"]))
    rows = counted(counts.rows, "rows")
    print(f"{report.view}: {_verdict(report)}, {rows} compared in {report.took_s:.1f} s{_more(report)}")


def _of_mismatch(report: Report, mismatch: Found, done: str) -> str:
    if mismatch.name in report.lowered:
        done += f", its version was lowered: {report.lowered[mismatch.name]}"
    said = (mismatch.difference.value, mismatch.why, done) if done else (mismatch.difference.value, mismatch.why)
    return "\t".join([report.view, in_a_line(mismatch.name), *said])


def _of_parked(report: Report, name: str) -> str:
    """Return what tells why; without a dead letter a replay makes one."""
    quoted = shlex.quote(in_a_line(name))
    if (letter := report.letters.get(name)) is not None:
        return letter.cause if letter.waits else f"viewtail dead-letters show {report.view} {quoted}"
    return f"its dead letter is gone; to try it again: viewtail replay {report.view} --key {quoted}"


def _verdict(report: Report) -> str:
    counts = report.counts
    if report.is_equal:
        mended = f" after {counts.repaired:,} repaired" if counts.repaired else ""
        return f"equal{mended}" if report.is_whole else f"no difference in a sample{mended}"
    kinds = [f"{count:,} {name}" for name, count in sorted(counts.differing.items())]
    kinds += [f"{counts.repaired:,} of them repaired"] if counts.repaired else []
    kinds += [f"{counts.parked:,} parked"] if counts.parked else []
    kinds += [f"{counts.changing:,} changed at each look"] if counts.changing else []
    kinds += [f"{counts.foreign:,} foreign"] if counts.foreign else []
    return "DIFFERENT: " + ", ".join(kinds)


def _more(report: Report) -> str:
    if report.stands_at is not None:
        behind = ""
        if report.behind:
            are = agreeing(report.behind, "are")
            behind = f"; {counted(report.behind, 'entities')} changed since and {are} behind, not wrong"
        return f"; the view stands at {report.stands_at}, and nothing is proven{behind}"
    if report.proven_through is not None:
        return f"; proven through {report.proven_through[:19]} UTC"
    if report.confidence:
        return f"; {report.confidence}"
    if not report.is_equal and report.counts.differing.total() > report.counts.repaired:
        return f". To write them again: viewtail verify {report.view} --repair"
    return ""


def _as_json(report: Report) -> dict[str, Any]:
    counts = report.counts
    repaired = {mismatch.key for mismatch in report.repaired}
    return {
        "view": report.view,
        "is_equal": report.is_equal,
        "is_whole": report.is_whole,
        "rows": counts.rows,
        "differing": dict(counts.differing),
        "repaired": counts.repaired,
        "parked": counts.parked,
        "changing": counts.changing,
        "foreign": list(report.foreign),
        "misled": report.misled or None,
        "behind": report.behind,
        "stands_at": report.stands_at,
        "proven_through": report.proven_through,
        "confidence": report.confidence or None,
        "took_s": round(report.took_s, 3),
        "lowered_count": report.lowered_count,
        "entities": [
            _entity(mismatch, mismatch.key in repaired, report.lowered.get(mismatch.name)) for mismatch in report.found
        ],
        "parked_keys": list(report.parked),
        "left_out": [{"part": part.given, "table": part.table, "state": part.state} for part in report.paused],
    }


def _entity(mismatch: Found, is_repaired: bool, lowered: VersionReset | None) -> dict[str, Any]:
    return {
        "key": mismatch.name,
        "difference": mismatch.difference.value,
        "why": mismatch.why,
        "version": None if mismatch.version is None else str(mismatch.version),
        "is_unexplained": mismatch.is_unexplained,
        "is_repaired": is_repaired,
        "lowered_from": None if lowered is None else str(lowered.before),
        "lowered_to": None if lowered is None or lowered.after is None else str(lowered.after),
    }
