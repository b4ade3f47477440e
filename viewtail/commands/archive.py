"""`viewtail archive` and `viewtail restore`: what entities/archiving.py and restoring.py do, and what they print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TypeVar

from offsets.runs import RunState
from projectors.catalog import Catalog
from projectors.throttle import LiveTrafficThrottle, RateThrottle, SourceLoadThrottle, Throttles
from projectors.views import View
from viewtail import declarations
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.errors import DeclarationError, MisuseError, StopRequested
from viewtail.commands.agreeing import agreed
from viewtail.commands.durations import seconds_of
from viewtail.commands.output import print_remark
from viewtail.commands.progress import progress
from viewtail.entities.archive_steps import ArchiveSteps
from viewtail.entities.archiving import Archiving
from viewtail.entities.event_table import EventTable
from viewtail.entities.restoring import Restoring
from viewtail.operations.runs import Run
from viewtail.servers.sessions import open_session
from viewtail.settings import Settings
from viewtail.signals import EXIT_STOPPED, on_stop

REST = 2.0  # behind each step, times as long as it took: nobody waits for it


@dataclass(frozen=True, slots=True)
class How:
    """The options of both commands, as given on the command line."""

    is_dry_run: bool
    is_yes: bool
    rows_a_second: float  # 0: no limit
    max_threads_running: int


def check_archive(name: str, older_than: str, into: str | None, into_files: Path | None) -> None:
    """Raise MisuseError for what no table can be archived by."""
    _target(into, into_files)
    seconds_of("--older-than", older_than)
    EventTable(name)


def archive(
    loaded: Settings, name: str, how: How, *, older_than: str, into: str | None, into_files: Path | None
) -> int:
    """Move old events of a table to its archive; returns the exit code."""
    where = _target(into, into_files)
    seconds = seconds_of("--older-than", older_than)
    try:
        with _opened(loaded, Archiving, name, how) as (archiving, catalog):
            cutoff = archiving.cutoff(seconds)
            count = archiving.about(cutoff) if how.is_dry_run or not how.is_yes else 0
            what = f"about {counted(count, 'events')} of {name} older than {older_than}"
            if how.is_dry_run:
                print(f"{what} would be moved to {where}")
                return 0
            if not _is_wanted(
                loaded, name, f"{what} {agreeing(count, 'are')} moved to {where}. Go on?", is_yes=how.is_yes
            ):
                return 1
            archiving.prepare(into)
            asked = f"events older than {older_than} to {where}"
            with _recorded(catalog, archiving, "archive", asked, count) as run:
                cutoff = run.progress.setdefault("cutoff", cutoff)
                if into_files is None:
                    archiving.into_table(cutoff)
                else:
                    archiving.into_files(cutoff, into_files)
                said = _said(archiving, where)
                run.end(RunState.DONE, said)
                print(f"{name}: {said}")
                return 0
    except StopRequested:
        print_remark(f"{name}: stopped. The same command goes on where it was")
        return EXIT_STOPPED


def _target(into: str | None, into_files: Path | None) -> str:
    """Return where events go, in words. Raises MisuseError where two places are named."""
    if into is not None and into_files is not None:
        raise MisuseError("--into and --into-files: give one of them")
    return f"files in {into_files.absolute()}" if into_files is not None else into or "its archive table"


def _is_wanted(loaded: Settings, name: str, question: str, *, is_yes: bool) -> bool:
    """Print which views lose what is moved, then ask; return True if the operator agrees."""
    for remark in _losers(_views_of(loaded, name)):
        print_remark(remark)
    if agreed(question, is_yes=is_yes):
        return True
    print_remark("nothing was moved")
    return False


def _said(archiving: Archiving, where: str) -> str:
    said = f"{counted(archiving.moved, 'events', 'were')} moved to {where}"
    if archiving.held:
        stay = f"{archiving.held:,} {agreeing(archiving.held, 'stay')}"
        said += f"; {stay}: an older one of their entity does, or no file can hold them"
    return said


def check_restore(name: str, *, entity: str | None, is_all: bool, from_file: Path | None) -> None:
    """Raise MisuseError."""
    if (entity is not None) + is_all + (from_file is not None) != 1:
        raise MisuseError("say which events: --entity ID, --all, or --from FILE")
    EventTable(name)


def restore(loaded: Settings, name: str, how: How, *, entity: str | None, from_file: Path | None) -> int:
    """Bring archived events back; returns the exit code."""
    what = _which(entity, from_file)
    try:
        with _opened(loaded, Restoring, name, how) as (restoring, catalog):
            restoring.open_archive()
            count = restoring.archived(entity) if from_file is None else restoring.archived_in(from_file)
            if how.is_dry_run:
                print(f"{counted(count, 'archived events')} of {name} would be brought back")
                return 0
            if not count:
                print(f"{name}: there are no such archived events")
                return 0
            what_comes = f"{counted(count, 'archived events')} of {name} {agreeing(count, 'are')} brought back"
            if not agreed(f"{what_comes}. Go on?", is_yes=how.is_yes):
                print_remark("nothing was brought back")
                return 1
            with _recorded(catalog, restoring, "restore", what, count, same=entity or "") as run:
                if from_file is None:
                    restoring.restore(entity)
                else:
                    restoring.restore_file(from_file)
                said = f"{counted(restoring.moved, 'events', 'were')} brought back"
                run.end(RunState.DONE, said)
                print(f"{name}: {said}")
                return 0
    except StopRequested:
        print_remark(f"{name}: stopped. The same command goes on")
        return EXIT_STOPPED


def _which(entity: str | None, from_file: Path | None) -> str:
    """Return what is restored, for the record. Not which entity: that is people's data, and the record outlives it."""
    if entity is not None:
        return "of one entity"
    return "all" if from_file is None else f"of {from_file.absolute()}"


Steps = TypeVar("Steps", bound=ArchiveSteps)


@contextmanager
def _opened(loaded: Settings, kind: type[Steps], name: str, how: How) -> Iterator[tuple[Steps, Catalog]]:
    """Open the steps on the primary, where nobody else archives or restores the table."""
    table = EventTable(name)
    catalog = Catalog(servers=loaded.servers())
    address = replace(loaded.primary_address(), database=None)
    stop = Event()
    load = SourceLoadThrottle(
        stop=stop,
        open_source=lambda: open_session(address, role="store"),
        say=lambda why: print_remark(f"{name}: waiting: {why}"),
        max_threads_running=how.max_threads_running,
    )
    throttle = Throttles(RateThrottle(how.rows_a_second, stop), load, LiveTrafficThrottle(stop=stop, rest=REST))
    with closing(throttle), closing(open_session(address, role="store")) as connection:
        steps = kind(connection=connection, table=table, throttle=throttle, stop=stop)
        steps.check()
        with steps.alone():
            yield steps, catalog


@contextmanager
def _recorded(
    catalog: Catalog, steps: ArchiveSteps, kind: str, what: str, total: int = 0, same: str = ""
) -> Iterator[Run]:
    """Run with a row among the runs, and with progress."""
    catalog.create_tables()
    on_stop(steps.stop.set)
    with closing(catalog.session()) as session, progress(steps.table.name, "events") as show:
        run = Run(session, catalog.database, kind, steps.table.name, what, same)
        run.begin()
        steps.say = lambda moved: show(moved, total)
        try:
            yield run
        except BaseException as error:
            run.fail(error)
            raise


def _views_of(loaded: Settings, name: str) -> list[View]:
    """Return those of the table, or of tables like it; none where no views are declared."""
    try:
        views = declarations.configured(loaded)
    except DeclarationError:
        return []
    return [view for view in views if view.entity.is_of(name)]


def _losers(views: Sequence[View]) -> Iterator[str]:
    """Yield what is said of views for which more counts than the newest event of an entity, which always stays."""
    at_once = [view.id for view in views if not view.entity.append_only]
    if at_once:
        yield f"these views show single events, and lose those that are moved: {', '.join(at_once)}"
    later = [
        view.id for view in views if view.entity.append_only and (view.entity.key != ("entity_id",) or view.entity.only)
    ]
    if later:
        yield (
            "these views show more than the newest event of each entity. They keep what is moved until they are "
            f"backfilled, replayed or rebuilt, and lose it then: {', '.join(later)}"
        )
