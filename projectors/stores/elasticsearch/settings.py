"""The settings of Elasticsearch: [elasticsearch], the form of its address, and the client that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, SecretStr, model_validator

from servers.addresses import AddressForm, Parsed, parse
from servers.login import Server, is_address, readable, secret_of

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

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
        """The API key, if one is given."""
        if self.api_key_file is not None:
            return secret_of(self.api_key_file)
        return None if self.api_key is None else self.api_key.get_secret_value()

    def client(self) -> Elasticsearch:
        """A client that does not retry by itself: the sink does, and looks at each item's answer."""
        from elasticsearch import Elasticsearch

        assert self.url is not None
        parsed = parse(self.url.get_secret_value(), ELASTICSEARCH)
        options = self._login(parsed)
        context = self.context(parsed)
        if context is not None:
            options |= {"ssl_context": context, "ssl_show_warn": False}
        scheme = "https" if context is not None else "http"
        host = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
        return Elasticsearch(
            f"{scheme}://{host}:{parsed.port or ELASTICSEARCH.default_port}{parsed.path or ''}",
            request_timeout=30,
            max_retries=0,
            retry_on_timeout=False,
            http_compress=False,
            connections_per_node=10,
            **options,
        )

    def _login(self, parsed: Parsed) -> dict[str, Any]:
        user, password, key = self.user or parsed.user, self.secret(), self.key()
        if key is not None:
            return {"api_key": key}
        if user is None:
            return {}
        return {"basic_auth": (user, (parsed.password or "") if password is None else password)}
