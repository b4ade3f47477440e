"""Documents of a view, as its reader gives them: a get by key, and a search."""

from __future__ import annotations

from typing import Any

from elasticsearch import Elasticsearch

from projectors.stores import SearchPage
from projectors.stores.elasticsearch.reading import DocumentReader
from projectors.views import BoundView
from viewtail.changes.writes import Key


def get(client: Elasticsearch, view: BoundView, key: Key) -> tuple[int, dict[str, Any]] | None:
    rows = DocumentReader(client, view).rows([key])
    return (rows[0].version, rows[0].content) if rows else None


def search(
    client: Elasticsearch, view: BoundView, query: str, fields: list[str] | None = None, page: int = 1, size: int = 10
) -> SearchPage:
    return DocumentReader(client, view).search(query, fields=fields, page=page, size=size)
