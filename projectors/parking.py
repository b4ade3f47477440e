"""Keys that a projection or a store refuses: listed as dead letters, and the view halted that does little else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from changes.writes import Parked, ViewWrites
from projectors.dead_letters import DeadLetters

_log = structlog.get_logger("viewtail.pipeline")

# So many refusals of a view without a success halt it; of a batch they count where they are more than its successes.
PARKED_IN_A_ROW = 100
_LOGGED = 10  # of one batch


class Parking:
    """Of a pipeline or a backfill. `halt` takes a view and the reason."""

    def __init__(self, dead_letters: DeadLetters, halt: Callable[[str, str], None]) -> None:
        self._dead_letters = dead_letters
        self._halt = halt
        self._in_a_row: Counter[str] = Counter()

    def park(self, writes: Sequence[ViewWrites], unprojected: Sequence[Parked], refused: Sequence[Parked]) -> None:
        """List what was refused of one batch; durable on return.

        `unprojected` never became writes; `refused` are writes that the store would not take.
        """
        parked = [*unprojected, *refused]
        if parked:
            self._dead_letters.record(parked)
            for letter in parked[:_LOGGED]:
                _log.warning("key parked", view=letter.view, version=str(letter.version), reason=letter.reason)
        if not parked and not self._in_a_row:
            return
        parked_counts = Counter(letter.view for letter in parked)
        refused_counts = Counter(letter.view for letter in refused)
        given = Counter[str]()
        for found in writes:
            given[found.view] += found.count
        for view, count in given.items():
            applied = count - refused_counts[view]
            if applied:
                del self._in_a_row[view]
            if applied >= parked_counts[view]:
                del parked_counts[view]  # in which order they came is not known
        self._in_a_row.update(parked_counts)
        for view in parked_counts:
            if self._in_a_row[view] >= PARKED_IN_A_ROW:
                last = [letter.reason for letter in parked if letter.view == view][-1]
                self._halt(
                    view,
                    f"{self._in_a_row.pop(view)} keys in a row could not be applied, the last because: {last}. Mend "
                    f"that, then backfill the view again: viewtail replay {view}",
                )
