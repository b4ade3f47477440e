"""How a filling, or the run of a pipeline, ended. What runs it decides by that what comes next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Event

from viewtail.changes.errors import AnotherServerError, FencedError, StopRequested, ViewtailError, place_of


class End(Enum):
    """What there is to do next."""

    DONE = "done"
    STOPPED = "stopped"
    AGAIN = "again"  # at once; of a pipeline: with its tables as they were when it came to its end
    DESCRIBE_AGAIN = "describe again"  # the pipeline is taken again, with its tables as they are now
    FAILED = "failed"  # `error` says why; again after a pause
    FENCED = "fenced"  # another process owns the pipeline
    ANOTHER_SERVER = "another server"  # the source's address leads elsewhere: `error`


@dataclass(frozen=True, slots=True)
class Outcome:
    """How something ended, and why."""

    end: End
    why: str = ""
    error: ViewtailError | None = None
    held_back: frozenset[str] | None = None  # views that wait when the pipeline is taken next; None: those that do now

    def waiting_next(self, now: frozenset[str]) -> frozenset[str]:
        """Return the views that wait when the pipeline is taken next; `now`: those that do now."""
        return now if self.held_back is None else self.held_back


DONE, STOPPED = Outcome(End.DONE), Outcome(End.STOPPED)


class Ended(Exception):
    """Carries an outcome from where it is known to `outcome_of`, or to the pipeline's `run`."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.why)
        self.outcome = outcome


def again(why: str) -> Ended:
    """An exception that has the work begin again."""
    return Ended(Outcome(End.AGAIN, why))


def outcome_of(work: Callable[[], Outcome | None], stop: Event) -> Outcome:
    """Do the work and return how it ended; None of it means that it was done."""
    try:
        return work() or DONE
    except Ended as ended:
        return ended.outcome
    except StopRequested:
        return STOPPED if stop.is_set() else Outcome(End.AGAIN, "it is not to be filled any more")
    except FencedError as error:
        return Outcome(End.FENCED, str(error))
    except AnotherServerError as error:
        return Outcome(End.ANOTHER_SERVER, str(error), error)
    except ViewtailError as error:
        return Outcome(End.FAILED, str(error), error)
    except Exception as error:
        bug = ViewtailError(f"a backfill failed: {type(error).__name__}{place_of(error)}; please report it")
        return Outcome(End.FAILED, str(bug), bug)
