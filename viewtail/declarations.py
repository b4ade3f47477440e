"""Loads views.py."""

from __future__ import annotations

import importlib
import sys

from changes.errors import DeclarationError
from projectors.views import View


def load(name: str) -> list[View]:
    """The views that `module:attribute` names."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    found = getattr(importlib.import_module(module), attribute, None)
    if not isinstance(found, list):
        raise DeclarationError(f"{name}: no list of views there")
    return found
