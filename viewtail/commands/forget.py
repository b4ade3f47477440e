"""`viewtail forget`: what operations/forget.py does, and what it prints."""

from __future__ import annotations

from pathlib import Path

from operations import forget as operation
from viewtail import declarations
from viewtail.composition import Deployment


def forget(config: Path | None, name: str) -> int:
    """Remove what is known of a view that is not declared any more; returns the exit code."""
    loaded, views = declarations.configured(config)
    view, left = operation.forget(Deployment(settings=loaded), {view.id for view in views}, name)
    print(f"{view}: forgotten, with its dead letters. What stays is {left}")
    return 0
