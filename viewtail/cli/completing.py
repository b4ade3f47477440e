"""Completes the name of a view in a shell, from those that views.py declares."""

from __future__ import annotations

import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import typer

from viewtail.changes.errors import ViewtailError


def view_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return None where views.py cannot be loaded: a command says why. What it prints would be taken for names."""
    from viewtail import declarations
    from viewtail.shards import targets

    config = context.find_root().params.get("config")
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            views = [view for target in targets(config) for view in declarations.configured(target.load())]
        except ViewtailError:
            return []
    return sorted({view.name for view in views if view.name.startswith(incomplete)})
