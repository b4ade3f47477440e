"""Writes what differs in a view again, through the guard, and compares it once more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from projectors.proving.comparison import Comparison, Difference, Found, Settled
from projectors.proving.reprojection import Reprojection
from projectors.proving.view_access import ViewAccess
from projectors.stores import NOTHING_HELD, is_anothers
from projectors.views import BoundView
from viewtail.changes.writes import Key
from viewtail.operations.runs import Run
from viewtail.operations.version_resets import VersionReset, lowered_by, note

ATTEMPTS = 3  # for one entity: a change may come between its row's reading and the end of what kept changes out
MOST_LISTED = 1_000  # entities that are told of one by one


def is_anothers_extra(view: BoundView, mismatch: Found) -> bool:
    """Return whether another tool left it, where the view was adopted: it is there until somebody says that it goes."""
    return mismatch.difference is Difference.EXTRA and is_anothers(view, mismatch.version)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Repair:
    """The repairs of one pass.

    Args:
        is_unasked: nobody asked for the repair. Nothing is written in the place of another program's value; its key is
            parked. No version is lowered where a newer row may have been archived.
    """

    beside: ViewAccess
    comparison: Comparison
    writer: Reprojection
    run: Run
    is_unasked: bool = False
    resets: dict[str, VersionReset] = field(default_factory=dict)  # by rendered key; no more of them than are listed

    def mend(self, mismatches: Sequence[Found]) -> set[Key]:
        """Write the entities again; return the keys of those that are equal then."""
        spared = {mismatch.key for mismatch in mismatches if self._is_spared(mismatch)}
        mended = self._mend({mismatch.key: mismatch for mismatch in mismatches if mismatch.key not in spared})
        # The store refuses another program's, which parks them, as it does the pipeline's writes; its guard the others.
        if spared:
            self.writer.of_keys(list(spared), self.beside.now())
        if mended and not self.is_unasked:  # the cleaner comes by again
            self.beside.note_behind()
        return mended

    def _is_spared(self, mismatch: Found) -> bool:
        return self.is_unasked and (mismatch.held.is_foreign or mismatch.may_be_archiving)

    def _mend(self, mismatches: Mapping[Key, Found]) -> set[Key]:
        left, unmended = dict(mismatches), set[Key]()
        for attempt in range(ATTEMPTS):
            if not left:
                break
            settled = self._write(left, is_first=not attempt)
            name_of = self.comparison.name_of
            unmended |= {key for key in left if key in settled.changing or name_of(key) in settled.parked}
            left = {mismatch.key: mismatch for mismatch in settled.found}
        return mismatches.keys() - left.keys() - unmended

    def _write(self, left: Mapping[Key, Found], *, is_first: bool) -> Settled:
        # What was written, and is not there: Elasticsearch remembers the version of a document that somebody deleted
        # for a minute, and keeps older ones out.
        unexplained = {
            key: mismatch.held
            for key, mismatch in left.items()
            if mismatch.is_unexplained or (not is_first and mismatch.held == NOTHING_HELD)
        }
        version = self.beside.now()
        if any(mismatch.is_unexplained for mismatch in left.values()):
            self.note_resets(lowered_by(self.beside.view, list(left.values()), version))
        self.writer.of_keys(list(left), version, unexplained)
        return self.comparison.settle(left)

    def note_resets(self, resets: Sequence[VersionReset]) -> None:
        """Note them in the record, before it is done; what another attempt lowers again is there."""
        if new := [reset for reset in resets if reset.name not in self.resets]:
            note(self.run.progress, new)
            self.run.save()
            self.resets.update((reset.name, reset) for reset in new[: MOST_LISTED - len(self.resets)])
