"""Importing this imports structlog and the settings as light_imports has it, before what else a worker imports."""

from __future__ import annotations

from viewtail import light_imports

light_imports.structlog()
light_imports.settings()
