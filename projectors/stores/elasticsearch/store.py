"""All that is known about search views: the store called `elasticsearch`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from projectors.stores import Store, ViewReader
from projectors.stores.elasticsearch.rules import problems
from projectors.stores.elasticsearch.settings import ELASTICSEARCH, ElasticsearchSettings
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.stores.examples import Choice, Example
from projectors.views import BoundView, Entity

if TYPE_CHECKING:
    from changes.findings import Finding
    from projectors.stores.access import Access
    from projectors.stores.elasticsearch.sink import ElasticsearchSink


class ElasticsearchStore(Store):
    """A document per entity."""

    name = "elasticsearch"
    title = "Elasticsearch"
    view_classes = (SearchIndex,)
    section = ElasticsearchSettings
    address = ELASTICSEARCH
    has_search = True

    def problems(self, view: BoundView) -> Iterable[str]:
        return problems(view)

    def sink(self, access: Access, views: Sequence[BoundView], pipeline: str) -> ElasticsearchSink:
        from projectors.stores.elasticsearch.sink import ElasticsearchSink

        return ElasticsearchSink(access.section.client, views, name=pipeline, read_position=access.read_position)

    def left_behind(self, name: str, database: str) -> str:
        return f"its index. To drop it: DELETE /viewtail-{name}"

    def reader(self, access: Access, view: BoundView) -> ViewReader:
        from projectors.stores.elasticsearch.reading import DocumentReader

        return DocumentReader(access.section.client(), view)

    def checks(self, access: Access) -> Iterable[Finding]:
        from projectors.stores.elasticsearch.checks import checks

        return checks(access.section.client)

    def example(self, choice: Choice) -> Example | None:
        if not choice.searched:
            return None
        name, fields = choice.table.name.lower(), {column.name: "text" for column in choice.searched}
        return Example(
            view=SearchIndex(name, Entity(choice.table.full_name), fields=fields),
            declaration=f"SearchIndex({name!r}, entity, fields={fields!r}),",
            comment=f"Elasticsearch: full text. viewtail search {name} QUERY",
        )
