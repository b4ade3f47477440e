"""`viewtail forget`: what operations/forget.py does, and what it prints."""

from __future__ import annotations

from pathlib import Path

from operations import forget as operation
from viewtail import declarations, settings
from viewtail.composition import Deployment


def forget(config: Path | None, name: str) -> int:
    """Remove what is known of a view that is not declared any more; returns the exit code."""
    loaded = settings.load(config)
    declared = {view.id for view in declarations.load(loaded.views)}  # those of the tailer too
    view, left = operation.forget(Deployment(settings=loaded), declared, name)
    print(f"{view}: forgotten, with its dead letters. What stays is {left}")
    return 0
