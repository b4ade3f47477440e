"""Everything about search views as a store: it is called `elasticsearch`, and its settings are [elasticsearch]."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, SecretStr, model_validator

from projectors.stores import MIXED, Adoption, AuditedPlace, Choice, Example, Store, ViewReader
from projectors.stores.elasticsearch.rules import problems, surprises
from projectors.stores.elasticsearch.views import SearchIndex
from projectors.views import BoundView, View
from viewtail.changes.writes import Key
from viewtail.servers.addresses import AddressForm
from viewtail.servers.login import Server, is_address, readable, secret_of

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

    from offsets import OffsetStore
    from projectors.stores.access import Access
    from projectors.stores.elasticsearch.places import SearchPlaces
    from projectors.stores.elasticsearch.sink import ElasticsearchSink
    from projectors.stores.elasticsearch.swapping import AliasSwapping
    from projectors.stores.leaving import Leftover, Retired, Traces
    from viewtail.changes.findings import Finding


ELASTICSEARCH = AddressForm(
    form="http://[USER:PASSWORD@]HOST:PORT, or https://...",
    example="http://HOST:9200",
    default_port=9200,
    schemes=("http", "https"),
    tls_schemes=("https",),
    path=lambda path: f"/{path}",
)


class ElasticsearchSettings(Server):
    """The Elasticsearch cluster of the search indices."""

    url: Annotated[SecretStr, is_address(ELASTICSEARCH)] | None = Field(
        default=None, description="http(s)://[USER:PASSWORD@]HOST:PORT"
    )
    api_key: SecretStr | None = Field(default=None, description="an encoded API key, instead of user and password")
    api_key_file: Path | None = Field(default=None, description="a file that holds the API key")

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("give either api_key or api_key_file, not both")
        if (self.api_key or self.api_key_file) and (self.user or self.password or self.password_file):
            raise ValueError("give either an API key or user and password, not both")
        readable(self.api_key_file, "api_key_file")
        if self.api_key_file is not None:
            secret_of(self.api_key_file)
        return self

    def key(self) -> str | None:
        """The API key; None if none is given."""
        if self.api_key_file is not None:
            return secret_of(self.api_key_file)
        return None if self.api_key is None else self.api_key.get_secret_value()

    def client(self) -> Elasticsearch:
        """A client that does not retry by itself: the sink retries, and checks each item's answer."""
        from elasticsearch import Elasticsearch

        from projectors.stores.elasticsearch.requests import SERIALIZER

        assert self.url is not None
        parsed, key = self.parsed(self.url, ELASTICSEARCH), self.key()
        options: dict[str, Any] = {} if key is None else {"api_key": key}
        if key is None and parsed.user is not None:
            options = {"basic_auth": (parsed.user, parsed.password or "")}
        context = self.context(parsed)
        if context is not None:
            options |= {"ssl_context": context, "ssl_show_warn": False}
        scheme = "https" if context is not None else "http"
        host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
        return Elasticsearch(
            f"{scheme}://{host}:{parsed.port}{parsed.path or ''}",
            request_timeout=min(30.0, self.patience.answer_s),
            max_retries=0,
            retry_on_timeout=False,
            http_compress=False,
            connections_per_node=10,
            serializers={SERIALIZER.mimetype: SERIALIZER},
            **options,
        )


class ElasticsearchStore(Store):
    """Keeps a document per entity."""

    name = "elasticsearch"
    title = "Elasticsearch"
    client = "elasticsearch"
    has_copies = True
    view_classes = (SearchIndex,)
    section = ElasticsearchSettings
    address = ELASTICSEARCH
    has_search = True
    files = (
        "documents that were written over, in Elasticsearch's segments and translog",
        "it flushes and merges: POST /INDEX/_flush, then POST /INDEX/_forcemerge?only_expunge_deletes=true",
    )

    def problems(self, view: BoundView) -> Iterable[str]:
        return problems(view)

    def surprises(self, view: BoundView) -> Iterable[tuple[str, str, str]]:
        return surprises(view)

    def no_unique_keys(self, view: View) -> str:
        return ""

    def sink(self, access: Access, views: Sequence[BoundView], pipeline: str) -> ElasticsearchSink:
        from projectors.stores.elasticsearch.sink import ElasticsearchSink

        return ElasticsearchSink(
            access.section.client,
            views,
            name=pipeline,
            read_position=access.read_position,
            claiming=access.claimant,
        )

    def with_offsets(
        self, access: Access, views: Sequence[BoundView], pipeline: str
    ) -> tuple[ElasticsearchSink, OffsetStore]:
        """Let the offset follow the sink's witness."""
        from projectors.stores.elasticsearch.offsets import FollowingOffsets

        sink = self.sink(access, views, pipeline)
        return sink, FollowingOffsets(access.background_offsets(pipeline), sink)

    def while_refilled(self, access: Access, view: BoundView) -> str:
        from projectors.stores.elasticsearch.index import replaced_fields

        with closing(access.section.client()) as client:
            fields = replaced_fields(client, view)
        if not fields:
            return MIXED
        if view.source:
            return (
                f"the mapping of {', '.join(fields)} cannot be changed in the index of several sources: it is refused"
            )
        return (
            f"the mapping of {', '.join(fields)} cannot be changed, so its index is deleted and created again: readers "
            "find it empty until that is done"
        )

    def swapping(self, access: Access) -> AliasSwapping:
        from projectors.stores.elasticsearch.swapping import AliasSwapping

        return AliasSwapping(access.section.client(), access.claimant)

    def left_behind(self, name: str, database: str) -> str:
        return f"its index. To drop it: DELETE /viewtail-{name}, and /viewtail.N-{name} where it was rebuilt"

    def leftover(self, access: Access, retired: Retired) -> Leftover:
        from projectors.stores.elasticsearch.leaving import SearchLeftover

        view = f"{self.name}:{retired.name}"
        return SearchLeftover(access.section.client(), view, retired, access.claimant())

    def places(self, access: Access, view: str) -> SearchPlaces:
        from projectors.stores.elasticsearch.places import SearchPlaces

        return SearchPlaces(access.section.client(), access.claimant())

    def traces(self, access: Access, view: BoundView) -> Traces:
        from projectors.stores.elasticsearch.leaving import SearchTraces

        return SearchTraces(access.section.client(), view)

    def connection(self, access: Access) -> Elasticsearch:
        client: Elasticsearch = access.section.client()
        return client

    def reader_over(self, connection: Elasticsearch, access: Access, view: BoundView) -> ViewReader:
        from projectors.stores.elasticsearch.reading import DocumentReader
        from projectors.stores.elasticsearch.unique_reading import UniqueReader

        return (UniqueReader if view.is_unique_over_sources else DocumentReader)(connection, view)

    def audited(self, access: Access, view: BoundView) -> AuditedPlace:
        from projectors.stores.elasticsearch.auditing import audited_index

        return audited_index(self.connection(access), view)

    def adoption(self, access: Access, view: BoundView) -> Adoption:
        from projectors.stores.elasticsearch.adopting import IndexAdoption

        return IndexAdoption(self.connection(access), view, access.claimant())

    def as_stored(self, access: Access, view: BoundView) -> BoundView | None:
        from projectors.stores.elasticsearch.index import is_made

        with closing(access.section.client()) as client:
            return view if is_made(client, view) else None

    def content(self, view: BoundView, key: Key, values: tuple[Any, ...] | bytes) -> dict[str, Any]:
        from projectors.stores.elasticsearch.documents import document_of

        return document_of(view, values)

    def checks(self, access: Access, views: Sequence[View]) -> Iterable[Finding]:
        from projectors.stores.elasticsearch.checks import checks

        return checks(access.section.client, access.section.tls_cert)

    def example(self, choice: Choice) -> Example | None:
        if not choice.searched:
            return None
        name, fields = choice.name.lower(), {column.name: "text" for column in choice.searched}
        return Example(
            view=SearchIndex(name, choice.entity, fields=fields),
            declaration=f"SearchIndex({name!r}, entity, fields={fields!r}),",
            comment=f"Elasticsearch: full text. viewtail search {name} QUERY",
        )
