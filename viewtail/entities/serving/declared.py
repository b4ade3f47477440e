"""Loads the user's entities.py, as `declarations` loads views.py."""

from __future__ import annotations

from collections import Counter

from viewtail.changes.errors import DeclarationError
from viewtail.declarations import attribute_of, kind_of
from viewtail.entities import EventSourced
from viewtail.settings import Settings


def entities(loaded: Settings) -> list[EventSourced]:
    """The event-sourced entities that the settings name, for these settings. Raises DeclarationError."""
    declared, attribute, file = attribute_of(
        loaded.serve.entities,
        "Write one (docs/entities.md), or say where the entities are: VIEWTAIL_SERVE__ENTITIES=MODULE:ATTRIBUTE",
    )
    example = 'EventSourced("bank.account", {"deposit": deposit})'
    if not isinstance(declared, list | tuple) or not declared:
        raise DeclarationError(f"{file}: {attribute} must be a list of entities: {attribute} = [{example}]")
    for at, entity in enumerate(declared):
        if not isinstance(entity, EventSourced):
            raise DeclarationError(f"{file}: {attribute}[{at}] is {kind_of(entity)}, not entities, as {example}")
    for name, count in Counter(entity.table.name for entity in declared).items():
        if count > 1:
            raise DeclarationError(f"{file}: {count} of {attribute} have the table {name}; each needs one of its own")
    return [entity.with_settings(loaded) for entity in declared]
