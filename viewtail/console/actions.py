"""What an operator can do from the console: each action is one command of viewtail, which the page shows before.

An action is data: its words, its options, and the command that says beforehand what it would do.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from offsets.copies import Copy
from offsets.views import State
from projectors.stores.registry import store_named
from viewtail.changes.errors import MisuseError
from viewtail.changes.rendering import in_a_line
from viewtail.declarations import SHARD_VARIABLE
from viewtail.operations.status import PipelineStatus, ViewStatus

MOST_TEXT = 1000  # characters of what is given


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One field of an action's form.

    Args:
        words: of the command, in front of the value; a flag has no value. Empty: the value stands behind the name.
    """

    name: str
    label: str
    words: str
    kind: str = "flag"  # 'flag', 'text', 'number', 'key'
    is_needed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One action on a view, or on a pipeline.

    Args:
        command: words before the options. The name of what it is about comes last, behind `--`, where `of` is a view.
        about: what it will do, in words.
        trial: the command that says so of this view, and changes nothing; empty where there is none.
        is_offered: whether the page of this view or pipeline shows it.
    """

    id: str
    title: str
    about: str
    command: tuple[str, ...]
    of: str = "view"  # or 'pipeline'
    options: tuple[Option, ...] = ()
    trial: tuple[str, ...] = ()
    is_offered: Callable[[ViewStatus | PipelineStatus], bool] = lambda _: True

    def words(self, name: str, given: Mapping[str, str]) -> list[str]:
        """The command for that view or pipeline. Raises MisuseError."""
        options, behind = list[str](), list[str]()
        for option in self.options:
            value = _checked(option, given.get(option.name, ""))
            if value and not option.words:
                behind.append(value)
            elif value:
                options.append(option.words if option.kind == "flag" else f"{option.words}={value}")
        return [*self.command, *options, *self._name(name), *behind]

    def trial_words(self, name: str, given: Mapping[str, str]) -> list[str]:
        """The command that says what it would do, of the same entity. Raises MisuseError."""
        keys = [option for option in self.options if option.words == "--key"]
        chosen = [f"--key={value}" for option in keys if (value := _checked(option, given.get(option.name, "")))]
        return [*self.trial, *chosen, *self._name(name)]

    def _name(self, name: str) -> list[str]:
        return [f"--pipeline={name}"] if self.of == "pipeline" else ["--", name]


def _checked(option: Option, value: str) -> str:
    """Raise MisuseError for what no command takes; returns the value. A key may have almost any character."""
    is_key = option.kind == "key"
    value = in_a_line(value) if is_key else value.strip()
    if is_key and "\0" in value:
        raise MisuseError(f"{option.label}: no command takes a NUL character. Do it for the whole view")
    if len(value) > MOST_TEXT or (value and not is_key and not value.isprintable()):
        raise MisuseError(f"{option.label}: one line of at most {MOST_TEXT:,} characters")
    if option.is_needed and not value.strip():
        raise MisuseError(f"{option.label}: it is needed, and empty")
    return value


def shown(words: Sequence[str], shard: str | None = None) -> str:
    """A command as one types it; `shard`: the deployment, or source, that it is about."""
    at = words.index("--") if "--" in words else len(words)
    is_needed = any(word.startswith("-") for word in words[at + 1 :])
    command = shlex.join(["viewtail", *words[:at], *words[at + (not is_needed) :]])
    return command if shard is None else f"{SHARD_VARIABLE}={shlex.quote(shard)} {command}"


def _never(_: ViewStatus | PipelineStatus) -> bool:
    return False


def _has_letters(of: ViewStatus | PipelineStatus) -> bool:
    return isinstance(of, ViewStatus) and of.parked > 0


def _is_paused(of: ViewStatus | PipelineStatus) -> bool:
    return of.paused is not None


def _is_not_paused(of: ViewStatus | PipelineStatus) -> bool:
    return of.paused is None


def _is_kept(of: ViewStatus | PipelineStatus) -> bool:
    return isinstance(of, ViewStatus) and of.state not in (State.PAUSED, State.RELEASED)


def _has_rows(of: ViewStatus | PipelineStatus) -> bool:
    """A view that gets changes, and is no topic, whose single keys nothing looks up."""
    return _is_kept(of) and not store_named(of.name.partition(":")[0]).keeps_every_change


_KEY = Option(name="key", label="Key", words="--key", kind="key", is_needed=True)
_REASON = Option(name="reason", label="Reason, which status and readers show", words="--reason", kind="text")

ACTIONS: tuple[Action, ...] = (
    Action(
        id="verify",
        title="Verify",
        about=(
            "Compares every row of the table with what the view shows, both ways, while both are written to. It writes "
            "nothing into the view, and waits while the source is busy. A whole pass without a difference proves the "
            "view through the moment at which the pass began."
        ),
        command=("verify",),
        options=(Option(name="sample", label="Only a sample, percent of the rows", words="--sample", kind="number"),),
        is_offered=_has_rows,
    ),
    Action(
        id="repair",
        title="Verify and repair",
        about=(
            "Compares every row with what the view shows, as Verify does, and writes again what is wrong, from the row "
            "as it is now. Readers read meanwhile. What is right is not written."
        ),
        command=("verify", "--repair"),
        is_offered=_has_rows,
    ),
    Action(
        id="replay",
        title="Replay",
        about=(
            "Backfills the view again, in place: every entity is written again from its row, and what no row is for is "
            "taken out. Readers read meanwhile, and changes go on. A halted view goes on after it, once the reason is "
            "mended."
        ),
        command=("replay", "--yes"),
        trial=("replay", "--dry-run"),
        is_offered=_is_kept,
    ),
    Action(
        id="replay-key",
        title="Replay one entity",
        about="Writes one entity again, as its row is now. A key without a row is taken out of the view.",
        command=("replay", "--yes"),
        trial=("replay", "--dry-run"),
        options=(_KEY,),
        is_offered=_has_rows,
    ),
    Action(
        id="redrive",
        title="Redrive dead letters",
        about=(
            "Tries the parked keys of the view again, each with its row as it is now. What goes in has its letter "
            "ended; what is refused again keeps it, with the reason."
        ),
        command=("dead-letters", "redrive", "--yes"),
        options=(Option(name="key", label="Only this key", words="", kind="key"),),
        trial=("dead-letters", "list"),
        is_offered=_has_letters,
    ),
    Action(
        id="rebuild",
        title="Rebuild",
        about=(
            "Builds a second copy of the view beside the one that readers have, compares it with its table, and swaps "
            "the two. Readers never see a half view. The former copy is kept for 24 hours, and can be swapped back."
        ),
        command=("rebuild",),
        options=(
            Option(name="hold", label="Wait before the swap", words="--hold"),
            Option(name="hurry", label="At full speed; live changes may be late meanwhile", words="--hurry"),
        ),
        is_offered=_is_kept,
    ),
    Action(
        id="rollback",
        title="Roll a rebuild back",
        about="Gives readers the former copy again. It was kept up to date, so nothing is lost.",
        command=("rebuild", "--rollback"),
        is_offered=_never,  # but where there is another copy
    ),
    Action(
        id="abort",
        title="Drop the other copy",
        about="Drops the copy of the view that readers do not see.",
        command=("rebuild", "--abort", "--yes"),
        is_offered=_never,
    ),
    Action(
        id="pause",
        title="Pause the view",
        about=(
            "The view gets no changes until it is resumed, also over restarts; its pipeline goes on with the others. "
            "Resuming it backfills it."
        ),
        command=("pause",),
        options=(_REASON,),
        is_offered=lambda of: _is_kept(of) and _is_not_paused(of),
    ),
    Action(
        id="resume",
        title="Resume the view",
        about="The view gets changes again, and is backfilled in place, since it missed what changed meanwhile.",
        command=("resume",),
        is_offered=_is_paused,
    ),
    Action(
        id="pause-pipeline",
        of="pipeline",
        title="Pause the pipeline",
        about=(
            "Within seconds the pipeline stops between two batches. It reads and writes nothing, keeps its position, "
            "and loses nothing while the source keeps its changes. It stays paused, also over restarts."
        ),
        command=("pause",),
        options=(_REASON,),
        is_offered=_is_not_paused,
    ),
    Action(
        id="resume-pipeline",
        of="pipeline",
        title="Resume the pipeline",
        about="The pipeline goes on at its position.",
        command=("resume",),
        is_offered=_is_paused,
    ),
)

BY_ID: Mapping[str, Action] = {action.id: action for action in ACTIONS}


def offered(of: ViewStatus | PipelineStatus, copy: Copy | None = None) -> list[Action]:
    """The actions on a view, or on a pipeline, as it is now; `copy`: the one beside what readers have."""
    kind = "view" if isinstance(of, ViewStatus) else "pipeline"
    found = [action for action in ACTIONS if action.of == kind and action.is_offered(of)]
    if copy is not None:
        found += [BY_ID["rollback"]] if copy.live > copy.copy else []
        found += [BY_ID["abort"]]
    return found
