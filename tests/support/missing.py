"""What a sink finds missing when it is prepared."""

from __future__ import annotations

from projectors.stores import Sink


def missing(sink: Sink) -> set[str]:
    """The views of which the store holds nothing; the sink is prepared then."""
    found: set[str] = set()
    sink.prepare(found.update)
    return found
