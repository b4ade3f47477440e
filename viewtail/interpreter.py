"""Sets how Python runs where many rows pass: rows make no cycles, and looking for garbage among them costs a third."""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL_S = 0.001  # two stages share one interpreter: a writer that waits 5 ms for the reader is a late one
OBJECTS_BETWEEN = 100_000  # that are made before new ones are looked at; by default 700


def tune_worker() -> None:
    """Tune for two threads that pass rows on: short turns, no looking for garbage, which the reporter does."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.disable()


def tune_command() -> None:
    """Tune for a command: garbage is looked for seldom, and all of it hardly ever; what it imports makes little."""
    gc.set_threshold(OBJECTS_BETWEEN, 50, 50)
