"""What follows from each error, and how long is waited before the next attempt."""

from __future__ import annotations

import pytest

from viewtail.changes import errors
from viewtail.changes.retrying import reaction_to

STATES = {
    "retrying": {
        "TemporaryError", "SourceUnavailableError",
        "SnapshotTooOldError", "StoreUnavailableError", "CorruptEventError", "AnotherServerError",
        "TablesChangedError", "TookTooLongError", "ReadOnlyError",
    },
    "standby": {"FencedError"},
}  # fmt: skip
CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.ViewtailError) and not issubclass(kind, errors.MisuseError)
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_has_one_reaction(kind: type[errors.ViewtailError]) -> None:
    state = next((state for state, names in STATES.items() if kind.__name__ in names), "halted")
    assert reaction_to(kind("something")).state == state


def test_pauses_grow_up_to_a_bound_and_have_jitter() -> None:
    reaction = reaction_to(errors.StoreUnavailableError("away"))
    for attempt in range(40):
        most = min(5.0, 0.1 * 2**attempt)
        pauses = [reaction.pause_s(attempt) for _ in range(50)]
        assert all(most / 2 <= pause <= most for pause in pauses) and len(set(pauses)) > 1
