"""`viewtail status`: how each pipeline and view is doing, and what to do where something is not well."""

from __future__ import annotations

from dataclasses import asdict, replace

from viewtail import settings
from viewtail.commands.output import print_json
from viewtail.commands.status_page import print_page
from viewtail.composition import findings_of
from viewtail.operations.incidents import incidents
from viewtail.operations.remarks import remarks


def status(loaded: settings.Settings, *, as_json: bool) -> int:
    """Print every pipeline and view; the exit code is 1 when one is down, behind, halted or has parked keys."""
    findings = findings_of(loaded)
    if as_json:
        print_json({**findings.as_json(), "incidents": [asdict(incident) for incident in incidents(findings)]})
    elif not findings.pipelines and not findings.retired and not findings.fleet.members:
        servers = loaded.servers()
        where = f"the database {servers.database} at {replace(servers.own(), database=None)}"
        print(f"viewtail has not run yet with {where}. Start it with: viewtail run")
    else:
        print_page(findings.pipelines, findings.fleet, remarks(findings))
    return 0 if findings.is_well else 1
