"""The topic of positions: how far each pipeline has published, in the same transaction as what it published.

One record a pipeline, keyed by it; compaction keeps the newest. Its value is a JSON object:

    position    as the source writes it: everything up to here is in the topics. It is the pipeline's witness.
    newest      version of the newest change that is in the topics. It is behind the position's where that had to stay
                before a transaction that was prepared (XA) and not ended
    fills       how far the filling of each new topic has come, by view
    fan_outs    the version of the newest change by view of which a fan-out is under way: that one is kept in MySQL
    watermarks  seen up to here, and not told by a progress yet: whoever publishes next tells them
    owner       id of the deployment whose pipeline it is: two may call their databases the same
    progress    now and then: a version, and by topic the end of each partition behind all messages up to that version;
                and the watermarks that were seen up to there. A consumer of a quiet partition learns from it how far
                it has come.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

POSITIONS = "viewtail_positions"  # the topic's name
# Of stretches that are published beside the pipelines: one that is killed in a commit must not hide the others' ends.
REPLAYS = "viewtail_replays"
VERSION_HEADER = "viewtail_version"  # of each message of the topics


def version_in(headers: Iterable[tuple[str, Any]] | None) -> int | None:
    """The version in a message's headers; None where viewtail wrote none."""
    texts = [value for name, value in headers or () if name == VERSION_HEADER]
    return int(texts[0]) if texts and re.fullmatch(rb"[0-9]{1,19}", texts[0]) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """All messages up to a version lie before these offsets."""

    version: int
    ends: Mapping[str, Sequence[int]]  # by topic, of each partition
    watermarks: Mapping[str, int] = field(default_factory=dict)  # token -> version, of those seen since the last one
    silent: Sequence[str] = ()  # topics that get no changes now, so nothing is said of their ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The content of a record."""

    position: str
    newest: int = 0
    fills: Mapping[str, str] = field(default_factory=dict)
    fan_outs: Mapping[str, int] = field(default_factory=dict)  # version, by view
    progress: Progress | None = None
    watermarks: Mapping[str, int] = field(default_factory=dict)  # token -> version
    owner: str = ""  # the id of a deployment; '' where none was known

    def to_json(self) -> bytes:
        """Versions are texts: JavaScript's numbers end at 2^53."""
        record: dict[str, Any] = {"position": self.position, "newest": str(self.newest)}
        if self.owner:
            record["owner"] = self.owner
        if self.fills:
            record["fills"] = dict(self.fills)
        if self.fan_outs:
            record["fan_outs"] = _texts(self.fan_outs)
        if self.watermarks:
            record["watermarks"] = _texts(self.watermarks)
        if (progress := self.progress) is not None:
            watermarks = _texts(progress.watermarks)
            record["progress"] = {"version": str(progress.version), "ends": progress.ends, "watermarks": watermarks}
            if progress.silent:
                record["progress"]["silent"] = progress.silent
        return orjson.dumps(record)

    @classmethod
    def from_json(cls, text: bytes) -> Published:
        """Raises ValueError for what viewtail did not write."""
        try:
            record = orjson.loads(text)
            progress = record.get("progress")
            return cls(
                position=str(record["position"]),
                newest=int(record.get("newest", 0)),
                fills={str(view): str(key) for view, key in record.get("fills", {}).items()},
                fan_outs=_numbers(record.get("fan_outs", {})),
                progress=None if progress is None else _progress(progress),
                watermarks=_numbers(record.get("watermarks", {})),
                owner=str(record.get("owner", "")),
            )
        except (KeyError, TypeError, AttributeError, orjson.JSONDecodeError) as error:
            raise ValueError(f"it is no record of viewtail's ({type(error).__name__})") from None


def _progress(record: Any) -> Progress:
    return Progress(
        version=int(record["version"]),
        ends={str(topic): [int(end) for end in ends] for topic, ends in record["ends"].items()},
        watermarks=_numbers(record["watermarks"]),
        silent=tuple(map(str, record.get("silent", ()))),
    )


def _texts(versions: Mapping[str, int]) -> dict[str, str]:
    return {name: str(version) for name, version in versions.items()}


def _numbers(versions: Mapping[str, str]) -> dict[str, int]:
    return {str(name): int(version) for name, version in versions.items()}


def record_key(database: str, pipeline: str) -> bytes:
    """Return the key of a pipeline's record; deployments may share a cluster, so their database is in it."""
    return f"{database}.{pipeline}".encode()
