"""How many sessions a deployment has on its MySQL servers, and whether they allow so many."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sessions:
    source: int
    store: int

    @property
    def at_most(self) -> int:
        return self.source + self.store


OF_A_PIPELINE = Sessions(15, 25)
