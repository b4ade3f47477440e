"""`viewtail adopt`: what operations/adopt.py does, and what it prints."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from projectors import failpoints
from projectors.catalog import Catalog
from projectors.proving.comparison import Difference
from projectors.views import BoundView
from viewtail import declarations, shards
from viewtail.changes.counting import counted
from viewtail.changes.errors import StopRequested, ViewtailError
from viewtail.changes.rendering import in_a_line
from viewtail.changes.repeating import Repeats
from viewtail.commands import audit
from viewtail.commands.output import print_json, print_remark
from viewtail.commands.pace import throttle_of
from viewtail.commands.progress import progress
from viewtail.commands.rebuild import compared_copy
from viewtail.composition import deploy, greeted
from viewtail.interpreter import tune_command
from viewtail.operations.adopt import SAY_AGAIN_S, Adopt, adoption_of, check, is_adopted, still_differing
from viewtail.operations.audit import AuditReport
from viewtail.operations.verify import Report
from viewtail.shards import Target
from viewtail.signals import EXIT_STOPPED, on_stop
from viewtail.supervisor import Supervisor

END_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options, as given on the command line."""

    is_dry_run: bool
    drops_extra: bool
    again_after_s: float  # of the audit of a dry run
    max_threads_running: int
    as_json: bool


def adopt(config: Path | None, names: Sequence[str], options: Options) -> int:
    """Adopt views; the exit code is 1 where one is not the table's in the end, keys that no row is for aside."""
    tune_command()
    loaded = shards.one(config)
    catalog = deploy(greeted(loaded), declarations.all_chosen(loaded, names))
    check(catalog)
    stop = Event()
    on_stop(stop.set)
    try:
        if options.is_dry_run:
            return _would(catalog, options, stop)
        return _adopt(config, shards.targets(config)[0], catalog, options, stop)
    except StopRequested:
        print_remark("stopped. The same command goes on where it was")
        return EXIT_STOPPED


# -- for a look ---------------------------------------------------------------------------------------------------


def _would(catalog: Catalog, options: Options, stop: Event) -> int:
    told = []
    for view in catalog.views:
        with adoption_of(catalog, view, drops_extra=options.drops_extra) as adoption:
            steps, is_beside = adoption.steps(), adoption.beside() is not None
        looked = audit.Options(
            again_after_s=options.again_after_s,
            rows_a_second=0,
            max_threads_running=options.max_threads_running,
            as_json=options.as_json,
        )
        report = audit.audited(catalog, view, looked, stop)
        steps += [] if is_beside else _writes(report, drops_extra=options.drops_extra)
        told.append({**audit.as_json(report), "steps": steps})
        if not options.as_json:
            print("\n".join([*audit.page(report), "", "  viewtail adopt would"]))
            print("\n".join(f"    {number}. {step}" for number, step in enumerate(steps, 1)))
    if options.as_json:
        print_json({"views": told})
    return 0


def _writes(report: AuditReport, *, drops_extra: bool) -> Iterator[str]:
    counts = report.counts
    differing = counts.differing
    wrong = differing[Difference.WRONG] + differing[Difference.STALE]
    yield (
        f"write about {differing[Difference.MISSING]:,} missing entities, and {wrong:,} wrong ones again; give what is "
        f"right of {counted(counts.rows, 'rows')} its version, while changes are applied"
    )
    extra = counted(differing[Difference.EXTRA], "extra keys")
    yield f"drop {extra}, but no values of another type" if drops_extra else f"leave {extra} (--drop-extra: drop them)"
    yield "compare all once more"


# -- in earnest ---------------------------------------------------------------------------------------------------


def _adopt(config: Path | None, target: Target, catalog: Catalog, options: Options, stop: Event) -> int:
    catalog.create_tables()
    adopting = Adopt(catalog=catalog, stop=stop, say=print_remark, drops_extra=options.drops_extra)
    with adopting.alone():
        reports = _adopted(config, target, adopting, options)
    if options.as_json:
        print_json({"views": [_as_json(view, reports[view.id]) for view in catalog.views]})
    else:
        for view in catalog.views:
            _print(view, reports[view.id])
    return 0 if all(map(is_adopted, reports.values())) else 1


def _adopted(config: Path | None, target: Target, adopting: Adopt, options: Options) -> dict[str, Report]:
    catalog, stop = adopting.catalog, adopting.stop
    adopting.require_free()
    adopting.take()
    reports: dict[str, Report] = {}
    with (
        progress("adopting", "rows") as show,
        _kept(Supervisor(config, _shown(show)), [(target, store) for store in catalog.stores()], stop),
        closing(throttle_of(catalog, stop, max_threads_running=options.max_threads_running)) as throttle,
    ):
        adopting.replace(partial(compared_copy, catalog))
        adopting.wait_until_filled()
        failpoints.reach("after filling")
        for view in catalog.views:
            reports[view.id] = adopting.prove(view, throttle)
    return reports


@contextmanager
def _kept(supervisor: Supervisor, pipelines: Sequence[tuple[Target, str]], stop: Event) -> Iterator[None]:
    """Have these pipelines run meanwhile, as `viewtail run` does, until their last batch is saved."""
    codes: list[int] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            codes.append(supervisor.run(pipelines))
        except BaseException as error:
            errors.append(error)
        finally:
            stop.set()  # where a pipeline met what only the user can change, nothing is filled any more

    thread = threading.Thread(target=run, name="pipelines", daemon=True)
    thread.start()
    try:
        yield
    except StopRequested:
        if errors:
            raise errors[0] from None
        if codes and codes[0]:
            raise ViewtailError("a pipeline ended; what it said is above. Then give the same command again") from None
        raise
    finally:
        supervisor.stop()
        thread.join(END_WITHIN_S)


def _shown(show: Callable[..., None]) -> Callable[[Sequence[Mapping[str, Any]]], None]:
    """Show how far backfills are, and once in a while what keeps a pipeline from going on."""
    repeats = Repeats(SAY_AGAIN_S)

    def shown(reports: Sequence[Mapping[str, Any]]) -> None:
        backfills = [backfill for report in reports for backfill in report.get("backfills", ())]
        if backfills:
            show(sum(each["rows"] for each in backfills), sum(max(each["rows"], each["about"]) for each in backfills))
        for report in reports:
            if report.get("error") and repeats.is_due(report["error"]):
                print_remark(f"pipeline {report['pipeline']}: {report['error']}")

    return shown


def _print(view: BoundView, report: Report) -> None:
    counts, differing = report.counts, still_differing(report)
    kinds = [f"{differing:,} differ (viewtail verify {view.id} names them)"] if differing else []
    kinds += [f"{counts.parked:,} parked"] if counts.parked else []
    kinds += [f"{counts.changing:,} changed at each look"] if counts.changing else []
    verdict = "adopted" if is_adopted(report) else f"adopted, and DIFFERENT: {', '.join(kinds)}"
    print(f"{view.id}: {verdict}, {counted(counts.rows, 'rows')} compared. To keep it up to date: viewtail run")
    for found in report.found:
        if found not in report.repaired and found.difference is not Difference.EXTRA:
            print(f"  {found.difference.value}\t{in_a_line(found.name)}\t{found.why}")
    if counts.left:
        print(
            f"  {counted(counts.left, 'extra keys')} left, that no row is for; nobody but you drops them: viewtail "
            f"verify {view.id} names them, and with --repair drops them, values of other types too"
        )
    for name in report.foreign:
        print(f"  {in_a_line(name)} is no key of the view, and was left alone")


def _as_json(view: BoundView, report: Report) -> dict[str, Any]:
    return {
        "view": view.id,
        "is_adopted": is_adopted(report),
        "is_equal": report.is_equal,
        "rows": report.counts.rows,
        "extra_left": report.counts.left,
        "parked": report.counts.parked,
        "changing": report.counts.changing,
        "foreign": list(report.foreign),
        "proven_through": report.proven_through,
        "entities": [
            {"key": found.name, "difference": found.difference.value, "is_repaired": found in report.repaired}
            for found in report.found
        ],
    }
