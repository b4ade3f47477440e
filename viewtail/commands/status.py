"""`viewtail status`: how each pipeline and view is doing, and what to do where something is not well."""

from __future__ import annotations

from dataclasses import asdict, replace

from viewtail import declarations, settings
from viewtail.commands.output import print_json
from viewtail.commands.status_page import print_page
from viewtail.operations.collecting import collected
from viewtail.operations.findings import compared
from viewtail.operations.incidents import incidents
from viewtail.operations.remarks import remarks
from viewtail.servers.patience import QUESTION


def status(loaded: settings.Settings, *, as_json: bool) -> int:
    """Print every pipeline and view; the exit code is 1 when one is down, behind, halted or has parked keys."""
    # Who asks wants to know now; a server that hangs is an answer.
    servers, declared = loaded.asked_with(QUESTION.once()).servers(), declarations.declared_sources(loaded)
    named = sorted({name for names in (declared or {}).values() for name in names} - {servers.source_name})
    seen = collected(servers, [loaded.of_source(name).asked_with(QUESTION.once()).servers() for name in named])
    findings = compared(seen, declared, servers.database, is_shared_out=servers.kind.is_shared_out)
    if as_json:
        print_json({**findings.as_json(), "incidents": [asdict(incident) for incident in incidents(findings)]})
    elif not seen.pipelines and not seen.fleet.members:
        where = f"the database {servers.database} at {replace(servers.own(), database=None)}"
        print(f"viewtail has not run yet with {where}. Start it with: viewtail run")
    else:
        print_page(findings.pipelines, findings.fleet, remarks(findings))
    return 0 if findings.is_well else 1
