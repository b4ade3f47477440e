"""The sources there are, and their settings: a kind of source is a folder in ingest/ and its place here."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from ingest import SourceKind
from ingest.binlog.kind import BinlogKind, BinlogSettings
from ingest.kafka.kind import KafkaKind
from ingest.kafka.settings import KafkaSourceSettings
from ingest.poll.kind import PollKind, PollSettings
from viewtail.changes.positions import Position
from viewtail.servers.addresses import parse
from viewtail.servers.login import Server
from viewtail.servers.sessions import MySQLAddress

__all__ = ["KINDS", "Mode", "SourceSettings", "kind_of", "read_position"]

_BINLOG, _KAFKA, _POLL = BinlogKind(), KafkaKind(), PollKind()
KINDS: tuple[SourceKind, ...] = (_BINLOG, _KAFKA, _POLL)
Mode = Literal["binlog", "poll"]
_BY_ADDRESS: dict[Mode, tuple[SourceKind, ...]] = {"binlog": (_BINLOG, _KAFKA), "poll": (_POLL,)}


def kind_of(url: SecretStr | None, mode: Mode = "binlog") -> SourceKind:
    """The kind of source that is at an address: its scheme says so, and the mode. Raises ValueError."""
    kinds = _BY_ADDRESS[mode]
    scheme = kinds[0].address.schemes[0] if url is None else url.get_secret_value().strip().partition(":")[0]
    for kind in kinds:
        if scheme in kind.address.schemes:
            return kind
    examples = " or ".join(kind.address.example for kind in kinds)
    raise ValueError(f"is not the address of a source{' to poll' if mode == 'poll' else ''}: write {examples}")


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


class SourceSettings(KafkaSourceSettings, PollSettings, BinlogSettings):
    """The place where changes are read."""

    mode: Mode = Field(
        "binlog", description='"poll": tables whose rows are only ever added are read by their ids, without the binlog'
    )
    url: Annotated[SecretStr, BeforeValidator(_is_address)] | None = Field(
        None, description="mysql://USER:PASSWORD@HOST:PORT[/SCHEMA] of the tailed server, or kafka://HOST:PORT"
    )

    @property
    def kind(self) -> SourceKind:
        return kind_of(self.url, self.mode)

    @property
    def is_one_of_several(self) -> bool:
        """Return whether a view may draw on it and on others: it is a server whose binlog is read."""
        return self.url is not None and self.kind is _BINLOG

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        ours = self.kind
        for other in KINDS:
            if wrong := sorted((other.section.model_fields.keys() - ours.section.model_fields) & self.model_fields_set):
                names = ", ".join(wrong)
                if _POLL in (ours, other):
                    only = 'mode = "poll"' if other is _POLL else "a source that is not polled"
                    raise ValueError(f"{names}: for {only} alone")
                theirs, address = (f"{kind.address.schemes[0]}://" for kind in (other, ours))
                raise ValueError(f"{names}: for a source at {theirs} alone, and the address is {address}")
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
        """Return where watermarks are written; None where it is the same server."""
        if self.primary_url is None:
            return None
        return (self if self.kind.has_rows else _tls_of(own)).mysql_address(self.primary_url, None)


def _tls_of(server: Server) -> Server:
    """Return how another server of its kind is spoken to; who logs in there its address says."""
    names = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_verify")
    return Server(**{name: getattr(server, name) for name in names}).asked_with(server.patience)
