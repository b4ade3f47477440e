"""Where the console's pages of a view and a pipeline are: for its links, and for messages that lead there."""

from __future__ import annotations

from urllib.parse import quote, unquote


def view_path(view: str, tab: str = "") -> str:
    """The path of a view, store:name, or of one of its tabs."""
    store, _, name = view.partition(":")
    return f"/view/{_in_path(store)}/{_in_path(name)}{f'/{tab}' if tab else ''}"


def pipeline_path(name: str) -> str:
    """The path of a pipeline."""
    return f"/pipeline/{_in_path(name)}"


def name_in_path(part: str) -> str:
    """The name in a part of a path, which the server unquoted once."""
    return unquote(part)


def _in_path(name: str) -> str:
    """A name, quoted twice: a server takes %2F for the slash that ends a part."""
    return quote(quote(name, safe=""), safe="")
