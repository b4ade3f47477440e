"""`viewtail schema`: the JSON Schema of the messages that a view publishes."""

from __future__ import annotations

from projectors.stores.registry import store_of
from viewtail import declarations
from viewtail.changes.errors import MisuseError
from viewtail.commands.output import print_json
from viewtail.composition import deployed_to_ask
from viewtail.settings import Settings


def schema(loaded: Settings, view: str, *, of_key: bool) -> int:
    """Print the schema of the values, or of the keys; returns the exit code."""
    chosen = declarations.chosen(loaded, view)
    catalog = deployed_to_ask(loaded, [chosen])
    store = store_of(chosen)
    schemas = store.schemas(catalog.access(store), catalog.views[0])
    if not schemas:
        raise MisuseError(f"view {chosen.id} has no messages: only topics have a schema")
    print_json(schemas["key" if of_key else "value"])
    return 0
