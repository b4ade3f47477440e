"""Imports what all of viewtail's own processes need, without what the libraries would bring along for nothing.

structlog imports rich, to draw tracebacks that viewtail never draws: 6 MiB of every worker. pydantic looks through
all packages that are installed for plugins, when it makes its first model: a tenth of the time of a short command.
Whoever uses rich or plugins has them all the same. A program that imports `viewtail` does not import this.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

_TRACEBACKS, _PLUGINS = "rich", "PYDANTIC_DISABLE_PLUGINS"


@contextmanager
def _without_tracebacks() -> Iterator[None]:
    before = {name: module for name, module in sys.modules.items() if name == _TRACEBACKS}
    sys.modules[_TRACEBACKS] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[_TRACEBACKS]
        sys.modules.update(before)


@contextmanager
def without_plugins() -> Iterator[None]:
    """No model that is made meanwhile has pydantic look for any."""
    before = os.environ.get(_PLUGINS)
    os.environ[_PLUGINS] = "1"
    try:
        yield
    finally:
        del os.environ[_PLUGINS]
        if before is not None:
            os.environ[_PLUGINS] = before


def structlog() -> None:
    """Import it, before anything else does."""
    if "structlog" not in sys.modules:
        with _without_tracebacks():
            import_module("structlog")


def settings() -> None:
    """Import them: their models are all that viewtail has."""
    with without_plugins():
        import_module("viewtail.settings")
