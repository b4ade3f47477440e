"""`viewtail check`: every requirement of the source and the stores, with what mends those that are not met."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from changes.findings import Finding, Level
from operations import grants
from operations.check import Servers, is_well
from operations.check import check as look
from projectors.stores.registry import needed
from projectors.views import View
from viewtail import declarations, settings
from viewtail.commands.output import print_json

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


def print_grants(config: Path | None) -> int:
    """Print the statements that grant exactly what these settings and views need; nothing is asked of any server."""
    loaded = settings.load(config, os.environ)
    views = declarations.load(loaded.views)
    loaded.check_stores(views)
    print("\n".join(grants.statements(_servers(loaded, views), views)))
    return 0


def check(config: Path | None, *, as_json: bool) -> int:
    """Print every finding; the exit code is 1 when one is a failure."""
    loaded = settings.load(config, os.environ)
    views = declarations.load(loaded.views)
    loaded.check_stores(views)
    found = look(_servers(loaded, views), views)
    if as_json:
        print_json({"is_well": is_well(found), "findings": [_plain(one) for one in found]})
    else:
        _print(found)
    return 0 if is_well(found) else 1


def _servers(loaded: settings.Settings, views: Sequence[View]) -> Servers:
    return Servers(
        source=loaded.source_address(),
        primary=loaded.primary_address(),
        store=loaded.store_address(),
        watermark_database=loaded.watermark_database,
        store_database=loaded.store_database,
        sections={store.name: loaded.section(store) for store in needed(views)},
    )


def _plain(finding: Finding) -> dict[str, str]:
    return {
        "where": finding.where,
        "what": finding.what,
        "level": finding.level.value,
        "seen": finding.seen,
        "why": finding.why,
        "mend": finding.mend,
    }


def _print(found: Sequence[Finding]) -> None:
    if sys.stdout.isatty():
        _rich(found)
    else:
        for one in found:
            print(f"{one.level.value:<4}  {one.where:<13}  {one.what}: {one.seen}")
    for one in found:
        if one.level is not Level.OK:
            print(f"\n{one.level.value}: {one.where}, {one.what}: {one.seen}")
            print(f"  why:  {one.why}")
            print(f"  mend: {one.mend}")
    counts = {level: sum(one.level is level for one in found) for level in Level}
    print(f"\n{counts[Level.OK]} ok, {counts[Level.WARN]} warnings, {counts[Level.FAIL]} failures")


def _rich(found: Sequence[Finding]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in ("", "where", "what", "seen"):
        table.add_column(title, overflow="fold")
    for one in found:
        table.add_row(Text(one.level.value, style=_STYLES[one.level]), one.where, Text(one.what), Text(one.seen))
    Console().print(table)
