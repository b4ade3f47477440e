"""From settings and declarations to the catalog of a deployment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from projectors.catalog import Catalog, bound_to_tables
from projectors.views import View
from viewtail.declarations import declared_hashes, declared_sources
from viewtail.operations.collecting import collected
from viewtail.operations.findings import Findings, compared, with_declarations
from viewtail.servers.patience import COMMAND, QUESTION, Patience
from viewtail.settings import Settings


def greeted(settings: Settings, *, reads_source: bool = True) -> Settings:
    """The same settings, for a command that works long, once the MySQL servers let it in; one that hangs raises soon.

    Later it waits for them as a worker does: its work is worth more than a quick answer.
    """
    servers = settings.asked_with(COMMAND.once()).servers()
    if reads_source:
        servers.open_source().close()
    servers.open_own().close()
    return settings


def deploy(settings: Settings, views: Sequence[View]) -> Catalog:
    """The catalog with these views, bound to their tables as they are now. Raises DeclarationError."""
    return bound_to_tables(settings.servers(), views)


def deployed_to_work(settings: Settings, views: Sequence[View]) -> Catalog:
    """`deploy` for a command that works long, with viewtail's own tables made where they are missing."""
    catalog = deploy(greeted(settings), views)
    catalog.create_tables()
    return catalog


def deployed_to_ask(settings: Settings, views: Sequence[View], patience: Patience = QUESTION) -> Catalog:
    """`deploy` for a command whose user waits for an answer: each server is asked once."""
    return deploy(settings.asked_with(patience.once()), views)


def own_tables(settings: Settings, patience: Patience = QUESTION) -> Catalog:
    """The catalog without views, for a command whose user waits for an answer: each server is asked once."""
    return Catalog(servers=settings.asked_with(patience.once()).servers())


def findings_of(settings: Settings, hashes: Mapping[str, Collection[str]] | None = None) -> Findings:
    """What is known of a deployment: its own tables, each source, the declarations. Raises ViewtailError.

    Who asks wants to know now; a server that hangs is an answer.

    Args:
        hashes: `declared_hashes`, where the caller knows them.
    """
    asked = settings.asked_with(QUESTION.once())
    servers, declared = asked.servers(), declared_sources(settings)
    named = sorted({name for names in (declared or {}).values() for name in names} - {servers.source_name})
    seen = collected(servers, [asked.of_source(name).asked_with(QUESTION.once()).servers() for name in named])
    found = judged(settings, seen, declared)
    return with_declarations(found, declared_hashes(settings) if hashes is None else hashes)


def judged(settings: Settings, seen: Findings, declared: Mapping[str, Collection[str]] | None) -> Findings:
    """Add to what was seen of a deployment what its source and `declared`, of `declared_sources`, make of it."""
    return compared(seen, declared, settings.store_database, is_shared_out=settings.source_kind.is_shared_out)
