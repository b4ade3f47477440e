"""Identifies a pipeline (its source, the part of the source that it reads, its store), and names its states."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

DEFAULT_SOURCE = "default"

_SOURCE = re.compile(r"[A-Za-z0-9._-]{1,249}")


class PipelineState(StrEnum):
    """The state that a pipeline's process reports, or the process that started it reports in its place."""

    STARTING = "starting"
    RUNNING = "running"
    RETRYING = "retrying"  # a server is away
    HALTED = "halted"  # an operator has to mend something; it is still tried from time to time
    STANDBY = "standby"  # another process holds its lease
    PAUSED = "paused"  # by an operator
    STOPPED = "stopped"
    GIVEN_UP = "given up"  # by a process that goes on, for another to run
    RESTARTING = "restarting"  # its process ended, and is started again


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
        """Return whether its names are those that users know: the store's."""
        return self == PipelineId.of(self.store)

    @property
    def name(self) -> str:
        """The store's name for the default source, else all three: what tables, locks, witnesses and logs call it."""
        return self.store if self.is_default else f"{self.source}.{self.partition}.{self.store}"

    def __str__(self) -> str:
        return self.name
