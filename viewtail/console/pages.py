"""What each page shows: from the fleet and the servers to the words of its template. Nothing here knows HTTP."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from offsets.views import State
from projectors.stores.registry import store_named
from projectors.views import View
from viewtail.changes.console_paths import pipeline_path, view_path
from viewtail.changes.copy_ids import is_copy, view_of
from viewtail.changes.errors import MisuseError, UnknownNameError, ViewtailError, nearest, once
from viewtail.changes.rendering import in_a_line
from viewtail.commands.output import shown
from viewtail.commands.preview import changed
from viewtail.commands.status_page import shown_age, shown_rate
from viewtail.console import actions, asking, declared
from viewtail.console.jobs import Commands, Job
from viewtail.console.looking import STALE, Deployment, Fleet
from viewtail.operations.incidents import lasting
from viewtail.operations.status import PipelineStatus, ViewStatus
from viewtail.settings import Settings

MOST_LISTED = 300  # pipelines, or views, of one table: a page shows the next ones
ROWS, MOST_ROWS = 5, 50
SAMPLE, MOST_SAMPLE = 100, 1000
MOST_VALUE = 500  # characters of a value that are shown, or of a line of a diff
PREVIEW_WITHIN_S = 60.0
TRIAL_WITHIN_S = 20.0
_T = TypeVar("_T")
_GOOD = frozenset({"running", "filled", "done", "current", "rightly absent", "kept out by where"})
_BAD = frozenset({"down", "halted", "silent", "behind", "failed", "wrong", "parked", "error"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One page: its template and what that is given; an HTTP status."""

    template: str
    title: str
    given: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200
    is_live: bool = False  # it is sent again when it changes


class Pages:
    """Makes the pages of a fleet."""

    def __init__(self, fleet: Fleet, commands: Commands) -> None:
        self.fleet, self.commands = fleet, commands

    def overview(self) -> Shown:
        """All pipelines and views, and what to do."""
        found = [(deployment, deployment.seen(), _least_well(deployment)) for deployment in self.fleet.deployments]
        is_well = all(seen.is_well for _, seen, _ in found)
        besides = []
        if any(seen.has_pauses for _, seen, _ in found):
            besides.append("something is paused")
        if any(seen.is_stale or seen.kept_as_before for _, seen, _ in found):
            besides.append("views.py has changed")
        return Shown(
            template="overview.html",
            title="Overview",
            given={"found": found, "is_well": is_well, "besides": besides, "jobs": self.commands.newest()[:5]},
            is_live=True,
        )

    def view(self, of: str, name: str) -> Shown:
        """One view: how it is, how it is declared, and what can be done."""
        deployment, status = self.fleet.view(of, name)
        seen, live = deployment.seen(), view_of(name)
        copy = seen.copy_of(live)

        def declaration() -> tuple[View | None, declared.Declaration | None, str]:
            """Not of the live part, which is made each second: views.py is read for it."""
            view, why = asking.declared([loaded for _, loaded in deployment.settings_of(live)], live)
            return view, None if view is None else declared.of(view, deployment.loaded.views.partition("@")[0]), why

        given = {
            "pipelines": seen.pipelines_of(name),
            "declared": declaration,
            "is_older_kept": deployment.is_stale or live in seen.kept_as_before,
            "lines": seen.lines_of(name) or seen.lines_of(live),
            "copy": copy,
            "actions": [] if is_copy(name) else actions.offered(status, copy),
        }
        return self._of_view(deployment, status, "view.html", "", given, is_live=True)

    def rows(self, of: str, name: str, count: int, source: str) -> Shown:
        """Some entities as they stand in the table and in the store."""
        deployment, status = self.fleet.view(of, name)
        given: dict[str, Any] = {"count": count, "entities": [], "error": None}
        store = store_named(name.partition(":")[0])
        with _error_in(given):
            if store.keeps_every_change:
                raise MisuseError("a topic shows changes, not entities: there is nothing to put beside a row")
            given["entities"] = asking.rows(self._settings(deployment, status, source), view_of(name), count)
        return self._of_view(deployment, status, "rows.html", "Rows", given, source)

    def why(self, of: str, name: str, key: str, source: str) -> Shown:
        """Why the view shows what it shows of a key."""
        deployment, status = self.fleet.view(of, name)
        key = in_a_line(key)  # as a field of a form keeps it
        given: dict[str, Any] = {"key": key, "answer": None, "lines": [], "remarks": [], "error": None, "action": None}
        if key:
            source = source or _source_in(key, _sources(deployment, name))
            with _error_in(given):
                loaded = self._settings(deployment, status, source)
                answer, lines, remarks = asking.why_shown(loaded, view_of(name), key)
                remarks += [STALE] if deployment.is_stale else []
                given |= {"answer": answer, "lines": lines, "remarks": remarks, "action": as_action(answer.run_next)}
        return self._of_view(deployment, status, "why.html", "Why", given, source)

    def letters(self, of: str, name: str) -> Shown:
        """The dead letters of a view."""
        deployment, status = self.fleet.view(of, name)
        given: dict[str, Any] = {"letters": [], "count": 0, "error": None}
        with _error_in(given):
            given["letters"], given["count"] = asking.letters(deployment.loaded, name)
        return self._of_view(deployment, status, "letters.html", "Dead letters", given)

    def preview(self, of: str, name: str, sample: int, source: str, *, is_asked: bool) -> Shown:
        """What the edited views.py would change. A process of its own reads that file as it is now."""
        deployment, status = self.fleet.view(of, name)
        given: dict[str, Any] = {"sample": sample, "is_asked": is_asked, "preview": None, "error": None}
        if is_asked:
            words = ["preview", "--json", f"--sample={sample:d}", "--", view_of(name)]
            shard = _shard(deployment, name, source or _first(_sources(deployment, name)))
            answer = self.commands.answer(words, shard=shard, within_s=PREVIEW_WITHIN_S)
            given["preview"], given["error"] = asking.previewed(answer)
        return self._of_view(deployment, status, "preview.html", "Preview", given, source)

    def pipeline(self, of: str, name: str) -> Shown:
        """One pipeline and its views."""
        deployment, status = self.fleet.pipeline(of, name)
        return Shown(
            template="pipeline.html",
            title=f"Pipeline {name}",
            given={
                "deployment": deployment,
                "seen": deployment.seen(),
                "pipeline": status,
                "margin": deployment.seen().margin_of(name),
                "lines": deployment.seen().lines_of(name),
                "actions": actions.offered(status),
            },
            is_live=True,
        )

    def record(self, *, is_whole: bool) -> Shown:
        """What operators had done, and with `is_whole` the cleaner in the background."""
        runs, errors = [], list[str]()
        for deployment in self.fleet.deployments:
            try:
                runs += [(deployment, run) for run in asking.record(deployment.loaded, is_whole=is_whole)]
            except ViewtailError as error:
                errors.append(once(error))
        runs.sort(key=lambda each: each[1].started_at, reverse=True)
        given = {"runs": runs, "errors": errors, "jobs": self.commands.newest(), "is_whole": is_whole}
        return Shown(template="record.html", title="Record", given=given, is_live=True)

    def job(self, job: Job) -> Shown:
        """One command that was begun here."""
        return Shown(
            template="job.html",
            title=_command(job),
            given={"job": job, "command": _command(job), "lines": list(job.lines)},
            is_live=True,
        )

    def action(self, action: actions.Action, of: str, name: str, given: Mapping[str, str], *, can_act: bool) -> Shown:
        """What an action will do, before it does it."""
        source = given.get("source", "")
        keys = [option.name for option in action.options if option.kind == "key" and option.name in given]
        given = {**given, **{name: in_a_line(given[name]) for name in keys}}  # as a field of a form keeps it
        deployment, status, shard = self._that_it_is_of(action, of, name, source)
        trial = self._trial(action, name, given, shard) if can_act else None
        example = action.words(name, {**dict.fromkeys(_needed(action), "KEY"), **{k: v for k, v in given.items() if v}})
        return Shown(
            template="action.html",
            title=f"{action.title}: {name}",
            given={
                "action": action,
                "deployment": deployment,
                "name": name,
                "status": status,
                "chosen": given,
                "source": source,
                "shard": shard,
                "trial": trial,
                "command": actions.shown(example, shard),
            },
        )

    def _that_it_is_of(
        self, action: actions.Action, of: str, name: str, source: str
    ) -> tuple[Deployment, ViewStatus | PipelineStatus, str | None]:
        """The view or pipeline, and the shard that the command is for."""
        if action.of == "view":
            deployment, view = self.fleet.view(of, name)
            return deployment, view, _shard(deployment, name, source)
        deployment, pipeline = self.fleet.pipeline(of, name)
        return deployment, pipeline, deployment.name or None

    def _trial(
        self, action: actions.Action, name: str, given: Mapping[str, str], shard: str | None
    ) -> dict[str, str] | None:
        """What a command that changes nothing says of it; None where there is none, or an option is missing."""
        if not action.trial or _lacks(action, given):
            return None
        words = action.trial_words(name, given)
        _, out, error = self.commands.answer(words, shard=shard, within_s=TRIAL_WITHIN_S)
        return {"command": actions.shown(words, shard), "output": (out + error).strip()}

    def _of_view(
        self,
        deployment: Deployment,
        status: ViewStatus,
        template: str,
        tab: str,
        given: Mapping[str, Any],
        source: str = "",
        *,
        is_live: bool = False,
    ) -> Shown:
        sources = [] if is_live else _sources(deployment, status.name)  # whose forms name none
        about = {"deployment": deployment, "seen": deployment.seen(), "status": status, "tab": tab}
        return Shown(
            template=template,
            title=f"{tab}: {status.name}" if tab else status.name,
            given={**about, "sources": sources, "source": source or _first(sources), **given},
            is_live=is_live,
        )

    def _settings(self, deployment: Deployment, status: ViewStatus, source: str) -> Settings:
        """Raise UnknownNameError for a source that the view does not draw on."""
        found = deployment.settings_of(view_of(status.name))
        for name, loaded in found:
            if not source or name == source:
                return loaded
        raise UnknownNameError(f"view {status.name} does not draw on a source {source!r}, or is not declared any more")


@contextmanager
def _error_in(given: dict[str, Any]) -> Iterator[None]:
    """What cannot be asked is said on the page, which has the rest."""
    try:
        yield
    except ViewtailError as error:
        given["error"] = once(error)


def _least_well(deployment: Deployment) -> tuple[list[PipelineStatus], list[ViewStatus]]:
    """Its pipelines and views; those that are not well come first."""
    pipelines = sorted(deployment.seen().pipelines, key=lambda each: (each.is_well, each.name))
    views = sorted(deployment.views(), key=lambda each: (each.state == State.FILLED and not each.parked, each.name))
    return pipelines, views


def _sources(deployment: Deployment, view: str) -> list[str]:
    """The sources that a view draws on, where the deployment has several."""
    return [f"{name}" for name, _ in deployment.settings_of(view_of(view))] if deployment.sources else []


def _source_in(key: str, sources: list[str]) -> str:
    """The source that a key begins with, as one of a dead letter does."""
    begin = key.partition(":")[0]
    return begin if begin in sources else ""


def _first(names: list[str]) -> str:
    return names[0] if names else ""


def _shard(deployment: Deployment, view: str, source: str) -> str | None:
    """The deployment, or the source of it, that a command on a view is about; None: all of them, or the only one.

    Raises UnknownNameError.
    """
    if source in ("", deployment.name):
        return deployment.name or None
    if source not in (known := _sources(deployment, view)):
        raise UnknownNameError(f"view {view} does not draw on a source {source!r}{nearest(source, known)}")
    return source


def _command(job: Job) -> str:
    return actions.shown(job.words, job.shard)


def _lacks(action: actions.Action, given: Mapping[str, str]) -> bool:
    return any(not given.get(name) for name in _needed(action))


def _needed(action: actions.Action) -> list[str]:
    return [option.name for option in action.options if option.is_needed]


def as_action(command: str) -> tuple[str, str] | None:
    """The action that does what a message advises, and what that is on; None where it is a command for a terminal."""
    match shlex.split(command):
        case ["viewtail", "replay", view, "--key", _]:
            return "replay-key", view
        case ["viewtail", "verify", view, "--repair"]:
            return "repair", view
        case ["viewtail", "resume", "--pipeline", pipeline]:
            return "resume-pipeline", pipeline
        case ["viewtail", ("replay" | "resume" | "verify") as found, view] if not view.startswith("-"):
            return found, view
    return None


# --- Templates ---


@cache
def environment() -> Environment:
    """The templates: every value is escaped, and one that is not given is an error."""
    made = Environment(
        loader=PackageLoader("viewtail.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"view_url": view_url, "pipeline_url": pipeline_url, "action_url": action_url}
    filters: dict[str, Callable[..., Any]] = {
        "number": lambda value: f"{value:,}",
        "age": shown_age,
        "duration": _duration,
        "lasting": lasting,
        "rate": shown_rate,
        "shown": _shown,
        "tone": _tone,
        "moment": _moment,
        "command": _command,
        "differing": _differing,
        "in_a_line": in_a_line,
        "matching": _matching,
        "part_count": _part_count,
        "part": _part,
        "changed": lambda each: [_cut(line) for line in changed(each["before"] or {}, each["after"] or {})],
    }
    made.filters |= filters
    return made


def _shown(value: Any) -> str:
    if isinstance(value, bytes) and len(value) > MOST_VALUE // 2:
        return f"{shown(value[: MOST_VALUE // 2])}… (cut; {len(value):,} bytes)"
    return _cut(shown(value))


def _cut(text: str) -> str:
    """A page of a wide table stays one: a row may have a megabyte."""
    return text if len(text) <= MOST_VALUE else f"{text[:MOST_VALUE]}… (cut; {len(text):,} characters)"


def view_url(deployment: str, name: str, tab: str = "", **given: Any) -> str:
    """Where a view's page is."""
    return _with(view_path(name, tab), {"of": deployment, **given})


def pipeline_url(deployment: str, name: str) -> str:
    """Where a pipeline's page is."""
    return _with(pipeline_path(name), {"of": deployment})


def action_url(action: str, deployment: str, name: str, **given: Any) -> str:
    """Where an action's form is."""
    return _with(f"/do/{action}", {"of": deployment, "name": name, **given})


def _with(path: str, given: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in given.items() if value not in ("", None)}
    return f"{path}?{urlencode(kept)}" if kept else path


def _matching(views: Sequence[ViewStatus], word: str) -> list[ViewStatus]:
    """Those that have a word in their name or state."""
    return [view for view in views if word.lower() in f"{view.name} {view.state}".lower()]


def _part_count(count: int) -> int:
    return max(1, -(-count // MOST_LISTED))


def _part(found: Sequence[_T], number: int) -> Sequence[_T]:
    """A part of a long table, counted from 1; the last one where there are not so many."""
    begin = (max(1, min(number, _part_count(len(found)))) - 1) * MOST_LISTED
    return found[begin : begin + MOST_LISTED]


def _tone(state: str) -> str:
    """Which colour stands beside a word: it never stands alone."""
    return "good" if state in _GOOD else "bad" if state in _BAD or "code" in state else "busy"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _differing(entity: Any) -> set[str]:
    """The fields that the view does not show as it is to."""
    wanted, have = entity.wanted or {}, entity.shown or {}
    missing = object()
    return {name for name in {*wanted, *have} if wanted.get(name, missing) != have.get(name, missing)}


def clock() -> str:
    """The time of day, UTC."""
    return time.strftime("%H:%M:%S", time.gmtime())
