"""Identifies a pipeline: the source that it reads, the part of the source, and the store that it writes."""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_SOURCE = "default"

_SOURCE = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, order=True)
class PipelineId:
    """Two pipelines of one store share nothing but the store: each has an offset, a fence, a lease and a witness.

    Args:
        source: the source's name, or that of a topic: letters, digits, `.`, `_` and `-`, at most 249.
        partition: number of the part of the source, from 0.
        store: the store's name.
    """

    source: str
    partition: int
    store: str

    def __post_init__(self) -> None:
        """Raises ValueError for what would make two pipelines share a name."""
        if not _SOURCE.fullmatch(self.source) or self.partition < 0 or not self.store or "." in self.store:
            raise ValueError(f"{self.source!r}, {self.partition}, {self.store!r} name no pipeline")

    @classmethod
    def of(cls, store: str) -> PipelineId:
        """The pipeline of the default source."""
        return cls(DEFAULT_SOURCE, 0, store)

    @classmethod
    def parse(cls, name: str) -> PipelineId:
        """The inverse of `name`. Raises ValueError."""
        if "." not in name:
            return cls.of(name)
        source, partition, store = name.rsplit(".", 2)
        return cls(source, int(partition), store)

    @property
    def is_default(self) -> bool:
        """Whether its names are those that users know: the store's."""
        return self == PipelineId.of(self.store)

    @property
    def name(self) -> str:
        """The store's name for the default source, else all three: what tables, locks, witnesses and logs call it."""
        return self.store if self.is_default else f"{self.source}.{self.partition}.{self.store}"

    def __str__(self) -> str:
        return self.name
