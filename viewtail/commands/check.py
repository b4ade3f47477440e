"""`viewtail check`: prints every requirement of the source and the stores, with what mends those that are not met."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing

from rich.text import Text

from projectors.catalog import Catalog
from viewtail import declarations, settings
from viewtail.changes.counting import counted
from viewtail.changes.findings import Finding, Level
from viewtail.commands.output import print_json, print_rows, print_table
from viewtail.composition import deployed_to_ask, own_tables
from viewtail.notifying import checks as webhook
from viewtail.operations.check import grants, is_well, needed_servers
from viewtail.operations.check_deployment import check_deployment
from viewtail.operations.people import PeoplesColumn, peoples_columns

_STYLES = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}


def print_grants(loaded: settings.Settings) -> int:
    """Print the statements that grant exactly what these settings and views need; nothing is asked of any server."""
    views = declarations.configured(loaded)
    loaded.check_stores(views)
    print("\n".join(grants(needed_servers(Catalog(servers=loaded.servers()), views), views)))
    return 0


def print_people(loaded: settings.Settings, *, as_json: bool) -> int:
    """Print the columns with people's data, and where each goes."""
    views = declarations.configured(loaded)
    catalog = deployed_to_ask(loaded, views)
    with closing(catalog.session()) as session:
        known = catalog.known_views(session)
    columns = peoples_columns(catalog.views, catalog.servers.masks, known)
    if as_json:
        print_json({"columns": columns})
    elif not columns:
        tags = " or ".join(f"#{tag}" for tag in sorted(catalog.servers.masks.tags))
        print(
            "no column of the views' tables is tagged as people's data, or masked. Tag one by its comment"
            f"{f' ({tags})' if tags else ''}, or mask it with masked=: docs/masks.md"
        )
    else:
        print_rows([
            {
                "table": each.table, "column": each.column, "tags": " ".join(f"#{tag}" for tag in each.tags),
                "view": each.view or "(none)", "form": _form(each),
            }
            for each in columns
        ])  # fmt: skip
    return 0


def _form(column: PeoplesColumn) -> str:
    return f"{column.form} ({column.unmasked})" if column.unmasked else column.form or ""


def check(loaded: settings.Settings, *, as_json: bool) -> int:
    """Print every finding; the exit code is 1 when one is a failure."""
    views = declarations.configured(loaded)
    loaded.check_stores(views)
    found = check_deployment(own_tables(loaded), views, declarations.all_ids(loaded))
    return _shown([*found, *webhook.checks(loaded.notify)], as_json=as_json)


def try_webhook(loaded: settings.Settings, *, as_json: bool) -> int:
    """Send a message to try the webhook; the exit code is 1 when it was not taken."""
    return _shown([webhook.tried(loaded.notify)], as_json=as_json)


def _shown(findings: Sequence[Finding], *, as_json: bool) -> int:
    if as_json:
        print_json({"is_well": is_well(findings), "findings": findings})
    else:
        _print(findings)
    return 0 if is_well(findings) else 1


def _print(findings: Sequence[Finding]) -> None:
    if sys.stdout.isatty():
        rows = ((Text(each.level.value, _STYLES[each.level]), each.where, each.what, each.seen) for each in findings)
        print_table(("", "where", "what", "seen"), rows)
    else:
        for finding in findings:
            print(f"{finding.level.value:<4}  {finding.where:<13}  {finding.what}: {finding.seen}")
    for finding in findings:
        if finding.level is not Level.OK:
            print(f"\n{finding.level.value}: {finding.where}, {finding.what}: {finding.seen}")
            print(f"  why:  {finding.why}")
            print(f"  mend: {finding.mend}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    print(
        f"\n{counts[Level.OK]} ok, {counted(counts[Level.WARN], 'warnings')}, {counted(counts[Level.FAIL], 'failures')}"
    )
