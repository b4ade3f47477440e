"""The sources there are, and their settings: a kind of source is a folder in ingest/ and its place here."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from changes.positions import Position
from ingest import SourceKind
from ingest.binlog.kind import BinlogKind, BinlogSettings
from ingest.kafka.kind import KafkaKind
from ingest.kafka.settings import KafkaSourceSettings
from servers.addresses import parse
from servers.login import Server
from servers.sessions import MySQLAddress

__all__ = ["KINDS", "SourceSettings", "kind_of", "read_position"]

KINDS: tuple[SourceKind, ...] = (BinlogKind(), KafkaKind())  # the first is that of an address that is not set
_EXAMPLES = " or ".join(kind.address.example for kind in KINDS)


def kind_of(url: SecretStr | None) -> SourceKind:
    """The kind of source that is at an address: its scheme says so. Raises ValueError."""
    scheme = KINDS[0].address.schemes[0] if url is None else url.get_secret_value().strip().partition(":")[0]
    for kind in KINDS:
        if scheme in kind.address.schemes:
            return kind
    raise ValueError(f"is not the address of a source: write {_EXAMPLES}")


def read_position(text: str | bytes) -> Position:
    """A position of whichever source from its text; raises ValueError."""
    for kind in KINDS[:-1]:
        try:
            return kind.read_position(text)
        except ValueError:
            continue
    return KINDS[-1].read_position(text)


def _is_address(given: object) -> object:
    if isinstance(given, str):
        parse(given, kind_of(SecretStr(given)).address)
    return given


class SourceSettings(KafkaSourceSettings, BinlogSettings):
    """Where changes are read."""

    url: Annotated[SecretStr, BeforeValidator(_is_address)] | None = Field(
        None, description="mysql://USER:PASSWORD@HOST:PORT[/SCHEMA] of the tailed server, or kafka://HOST:PORT"
    )

    @property
    def kind(self) -> SourceKind:
        return kind_of(self.url)

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        allowed = self.kind.section.model_fields
        for other in KINDS:
            if wrong := sorted((other.section.model_fields.keys() - allowed.keys()) & self.model_fields_set):
                ours, theirs = (f"{kind.address.schemes[0]}://" for kind in (self.kind, other))
                raise ValueError(f"{', '.join(wrong)}: for a source at {theirs} alone, and the address is {ours}")
        return self

    def canonical_address(self, own: Server, own_url: SecretStr | None) -> MySQLAddress | None:
        """The MySQL server whose rows the changes are of; None where no setting says it.

        `own`, at `own_url`, is that of viewtail's own tables.
        """
        if self.kind.has_rows:
            return None if self.url is None else self.mysql_address(self.url, None)
        if self.canonical_url is None:
            return None if own_url is None else own.mysql_address(own_url, None)
        return _tls_of(own).mysql_address(self.canonical_url, None)

    def primary_address(self, own: Server) -> MySQLAddress | None:
        """Where watermarks are written; None where it is the same server."""
        if self.primary_url is None:
            return None
        return (self if self.kind.has_rows else _tls_of(own)).mysql_address(self.primary_url, None)


def _tls_of(server: Server) -> Server:
    """How another server of its kind is spoken to; who logs in there its address says."""
    names = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_verify")
    return Server(**{name: getattr(server, name) for name in names})
