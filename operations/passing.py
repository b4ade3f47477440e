"""Waits until pipelines have passed this moment of their source: what was committed before it is durable there.

A watermark is written, and each source read beside its pipelines until it comes: saved positions pass its version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Protocol

from changes.errors import ViewtailError
from changes.pipelines import PipelineId
from changes.positions import Position
from ingest import Source
from operations.status import PipelineStatus
from projectors.watermarks import Watermarks
from servers.sessions import Connection

_LOOK_EVERY_S = 0.1


class Deployment(Protocol):
    """What is asked of the composition root."""

    @property
    def database(self) -> str: ...
    @property
    def watermark_database(self) -> str: ...
    def open_primary(self) -> Connection: ...
    def pipelines_now(self) -> Mapping[str, PipelineStatus]: ...
    def positions_now(self) -> Mapping[str, Position]:
        """By pipeline, its saved position."""

    def source_beside(self, pipeline: PipelineId) -> Source:
        """A reader of what the pipeline reads, for somebody else."""


def passed_now(deployment: Deployment, pipelines: Collection[str], timeout_s: float) -> int:
    """The version of this moment, once each of these pipelines has passed it; 0 where there are none.

    Raises ViewtailError, with what keeps them from it, where one has not passed it in time.
    """
    if not pipelines:
        return 0
    deadline = time.monotonic() + timeout_s
    versions = _versions(deployment, pipelines, deadline)
    while late := [name for name, version in versions.items() if not _has_passed(deployment, name, version)]:
        if time.monotonic() > deadline:
            raise _late(deployment, late, timeout_s)
        time.sleep(_LOOK_EVERY_S)
    return max(versions.values())


def _versions(deployment: Deployment, pipelines: Collection[str], deadline: float) -> dict[str, int]:
    """By pipeline, the version of a watermark that is written now."""
    parts: dict[tuple[str, int], list[str]] = {}
    for name in pipelines:
        one = PipelineId.parse(name)
        parts.setdefault((one.source, one.partition), []).append(name)
    sources = {part: deployment.source_beside(PipelineId.parse(names[0])) for part, names in parts.items()}
    begins = {part: source.now() for part, source in sources.items()}
    name = f"{deployment.database}:forget"
    with closing(Watermarks(deployment.open_primary, deployment.watermark_database, name)) as watermarks:
        token = watermarks.write()
    found = {}
    for part, source in sources.items():
        version = _version_of(token, source, begins[part], deadline)
        if version is None:
            raise ViewtailError(
                f"a watermark that was written now did not come through source {part[0]} in time. Is the primary of "
                "the settings that of the source, and does its replication run? See viewtail check"
            )
        found.update(dict.fromkeys(parts[part], version))
    return found


def _version_of(token: str, source: Source, begin: Position, deadline: float) -> int | None:
    found = None
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), source.interrupt)
    timer.daemon = True
    timer.start()
    try:
        for batch in source.read(begin):
            versions = [mark.version for mark in batch.watermarks if mark.token == token]
            if versions:
                found = versions[0]
                source.interrupt()
    finally:
        timer.cancel()
    return found


def _has_passed(deployment: Deployment, name: str, version: int) -> bool:
    position = deployment.positions_now().get(name)
    return position is not None and position.version >= version


def _late(deployment: Deployment, late: Collection[str], timeout_s: float) -> ViewtailError:
    now = deployment.pipelines_now()
    known = [now[name] for name in late if name in now]
    said = "; ".join(f"{one.name} is {one.state}" + (f": {one.error}" if one.error else "") for one in known)
    return ViewtailError(
        f"{', '.join(late)} did not come to this moment of the source in {timeout_s:.0f} s ({said or 'not known'}). "
        "Nothing was looked at. Repeat the command when `viewtail status` says that they are well"
    )
