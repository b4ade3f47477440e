"""`viewtail audit`: what operations/audit.py does, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Any, TextIO

from projectors.catalog import Catalog
from projectors.proving.comparison import Difference
from projectors.views import BoundView
from viewtail import declarations, settings
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, StopRequested, ViewtailError, once
from viewtail.changes.rendering import in_a_line
from viewtail.commands.output import print_json, print_remark
from viewtail.commands.pace import throttle_of
from viewtail.commands.progress import progress
from viewtail.composition import deploy, greeted
from viewtail.interpreter import tune_command
from viewtail.operations.audit import Audit, AuditCounts, AuditReport
from viewtail.signals import EXIT_STOPPED, on_stop

MOST_PRINTED = 20  # keys of a kind
_MEANING = {
    Difference.MISSING: "the table has the row, and the view does not show it",
    Difference.EXTRA: "the view shows it, and no row of the table belongs there",
    Difference.STALE: "the view shows what the row was some seconds before",
    Difference.WRONG: "the view shows other values than the row has",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options, as given on the command line."""

    again_after_s: float
    rows_a_second: float  # 0: no limit
    max_threads_running: int
    as_json: bool


def audit(loaded: settings.Settings, names: Sequence[str], options: Options) -> int:
    """Audit views; the exit code is 1 where one differs, or could not be compared."""
    tune_command()
    catalog = deploy(greeted(loaded), declarations.all_chosen(loaded, names))
    stop = Event()
    on_stop(stop.set)
    reports: list[AuditReport] = []
    failed: dict[str, str] = {}
    for view in catalog.views:
        try:
            report = _tried(catalog, view, options, stop, failed)
        except StopRequested:
            print_remark(f"{view.id}: stopped")
            return EXIT_STOPPED
        reports += [] if report is None else [report]
    if options.as_json:
        print_json({"views": [as_json(report) for report in reports], "failed": failed})
    return 0 if not failed and all(report.is_equal for report in reports) else 1


def _tried(
    catalog: Catalog, view: BoundView, options: Options, stop: Event, failed: dict[str, str]
) -> AuditReport | None:
    """Print the report on one view, and return it; None where it could not be compared, and is in `failed`."""
    try:
        report = audited(catalog, view, options, stop)
    except MisuseError:
        raise
    except ViewtailError as error:
        failed[view.id] = once(error)
        _say(options, f"{view.id}: could not be compared: {failed[view.id]}", sys.stderr)
        return None
    then = f"  To take it over, and repair it: viewtail adopt {view.id} --dry-run"
    _say(options, "\n".join([*page(report), "", then]), sys.stdout)
    return report


def _say(options: Options, text: str, where: TextIO) -> None:
    if not options.as_json:
        print(text, file=where)


def audited(catalog: Catalog, view: BoundView, options: Options, stop: Event) -> AuditReport:
    """The report on one view, with progress on a terminal. Raises as `Audit.execute` does."""
    throttles = throttle_of(
        catalog,
        stop,
        view.id,
        rows_a_second=options.rows_a_second,
        max_threads_running=options.max_threads_running,
    )
    with progress(view.id, "rows") as show, closing(throttles) as throttle:

        def say(counts: AuditCounts, estimate: int) -> None:
            differing = counts.differing.total()
            show(counts.rows, estimate, f", {differing:,} differ" if differing else "")

        return Audit(
            catalog=catalog,
            view=view,
            stop=stop,
            throttle=throttle,
            again_after_s=options.again_after_s,
            say=say,
        ).execute()


def page(report: AuditReport) -> list[str]:
    """The lines of a page of text that can be sent to a colleague; it has no values but keys."""
    counts = report.counts
    looked = f"what differed was looked at again {report.again_after_s:g} s later"
    lines = [
        f"Audit of {report.view}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {verdict(report)}",
        "",
        f"  table     {report.table}, {counted(counts.rows, 'rows')}",
        f"  view      {report.place}",
        f"  compared  in {report.took_s:.1f} s, while both were in use; {looked}. Nothing was written",
        "",
    ]
    for kind, meaning in _MEANING.items():
        lines.append(f"  {kind.value:8}{counts.differing[kind.value]:>9,}  {meaning}")
    lines += [f"  {'changing':8}{report.changing:>9,}  it changed at each look"] if report.changing else []
    lines += [f"  {'refused':8}{report.refused_count:>9,}  such a view cannot have the row"] if report.refused else []
    if counts.fields:
        lines += ["", "  wrong by field"]
        lines += [f"  {count:>17,}  {name}" for name, count in counts.fields.most_common()]
    lines += _samples(report)
    if remarks := list(_remarks(report)):
        lines += ["", "  besides", *(f"    {remark}" for remark in remarks)]
    return lines


def verdict(report: AuditReport) -> str:
    """The outcome in a few words."""
    if report.is_equal:
        return "equal"
    if report.is_of_nothing:
        return "nothing was compared: the table has no row for the view, and its place no key"
    kinds = [f"{count:,} {name}" for name, count in sorted(report.counts.differing.items())]
    kinds += [f"{report.changing:,} changing"] if report.changing else []
    kinds += [f"{report.refused_count:,} refused"] if report.refused else []
    return "DIFFERENT: " + ", ".join(kinds)


def _samples(report: AuditReport) -> Iterable[str]:
    if not (report.listed or report.refused):
        return
    yield from ("", f"  keys, at most {MOST_PRINTED} of a kind (more with --json)")
    for kind in Difference:
        of_kind = [differing for differing in report.listed if differing.difference is kind]
        for differing in of_kind[:MOST_PRINTED]:
            fields = f"  {', '.join(differing.fields)}" if differing.fields else ""
            yield f"  {kind.value:8}  {in_a_line(differing.name)}{fields}"
    for name in report.refused[:MOST_PRINTED]:
        yield f"  {'refused':8}  {in_a_line(name)}"


def _remarks(report: AuditReport) -> Iterable[str]:
    if report.undeclared:
        names = ", ".join(map(in_a_line, report.undeclared))
        yield f"the declaration has not: {names}. They were not compared"
    if report.foreign:
        yield f"no keys of the view, left alone: {', '.join(map(in_a_line, report.foreign))}"
    yield from report.remarks


def as_json(report: AuditReport) -> dict[str, Any]:
    """The report for programs."""
    return {
        "view": report.view,
        "table": report.table,
        "place": report.place,
        "is_equal": report.is_equal,
        "rows": report.counts.rows,
        "differing": {kind.value: report.counts.differing[kind.value] for kind in Difference},
        "fields": dict(report.counts.fields.most_common()),
        "changing": report.changing,
        "refused": list(report.refused),
        "refused_count": report.refused_count,
        "foreign": list(report.foreign),
        "undeclared": list(report.undeclared),
        "remarks": list(report.remarks),
        "again_after_s": report.again_after_s,
        "took_s": round(report.took_s, 3),
        "entities": [
            {"key": differing.name, "difference": differing.difference.value, "fields": list(differing.fields)}
            for differing in report.listed
        ],
    }
