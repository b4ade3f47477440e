"""Which deployment a command is about: that of the settings, or one of those that a sharded declaration stands for.

A sharded declaration (viewtail/datastore, viewtail/several.py) draws on several servers. Each pair of a server that is
read and one that keeps its views is a deployment of its own: tables of its own, pipelines of its own, and no version of
one is ever compared with one of another. `run` runs them all; the other commands are about one, and are called once for
each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from changes.errors import DeclarationError, MisuseError, nearest

if TYPE_CHECKING:
    from projectors.views import View
    from viewtail.settings import Settings

VARIABLE = "VIEWTAIL_SHARD"


@runtime_checkable
class Sharded(Protocol):
    """What a views.py may name instead of a list of views."""

    def shards(self) -> Mapping[str, str]:
        """What each deployment is, in words, by its name."""
        ...

    def settings_of(self, shard: str, settings: Settings) -> Settings:
        """The settings of a deployment; `views` of them is for `views_of`. Raises SettingsError."""
        ...

    def views_of(self, shard: str) -> Sequence[View]:
        """Of a deployment."""
        ...


class NotOneShardError(MisuseError):
    """A command was called that is about one deployment, where there are several: `shards` says of each what it is."""

    def __init__(self, shards: Mapping[str, str]) -> None:
        super().__init__(f"the views are kept in several deployments; choose one: {VARIABLE}={next(iter(shards))}")
        self.shards = shards


@dataclass(frozen=True, slots=True)
class Part:
    """One deployment of what a `run` keeps."""

    settings: Settings
    shard: str | None = None  # its name, where there are several

    def names(self, pipeline: str) -> str:
        """How a pipeline of it is called among those of all."""
        return pipeline if self.shard is None else f"{self.shard}/{pipeline}"


def load(config: Path | None, shard: str | None = None) -> Settings:
    """The settings of a command, those of one deployment: the one that is given, else that of the environment.

    Raises NotOneShardError, SettingsError, DeclarationError, MisuseError.
    """
    from viewtail import settings

    loaded = settings.load(config)
    shard = shard or os.environ.get(VARIABLE)
    sharded = _named(loaded) if shard else _sharded(loaded) if loaded.source.url is None else None
    if sharded is None:
        if shard:
            raise MisuseError(f"{VARIABLE} is set, and the views of these settings are not in several deployments")
        return loaded
    shards = sharded.shards()
    if not shard:
        raise NotOneShardError(shards)
    if shard not in shards:
        near = nearest(shard, shards) or f"; there are {', '.join(shards)}"
        raise MisuseError(f"{VARIABLE} is {shard!r}, which is no deployment{near}")
    return sharded.settings_of(shard, loaded)


def parts(config: Path | None) -> list[Part]:
    """All that a `run` with these settings keeps. Raises SettingsError, MisuseError."""
    from viewtail import settings

    try:
        return [Part(load(config))]
    except NotOneShardError as error:
        loaded = settings.load(config)
        sharded = _sharded(loaded)
        assert sharded is not None
        return [Part(sharded.settings_of(shard, loaded), shard) for shard in error.shards]


def _sharded(loaded: Settings) -> Sharded | None:
    """Raises DeclarationError: a mistake in views.py, which may name the servers, is told before their absence."""
    from viewtail import declarations

    try:
        return _named(loaded)
    except declarations.NoModuleError:
        return None  # whoever needs the views says so
    except DeclarationError:
        if loaded.mysql.url is None:
            raise
        return None  # viewtail's own tables are known, which is all that some commands need


def _named(loaded: Settings) -> Sharded | None:
    """Raises DeclarationError, MisuseError."""
    from viewtail import declarations

    found = declarations.declared(loaded.views)
    if not isinstance(found, Sharded):
        return None
    if loaded.source.url is not None:
        raise MisuseError("views.py names the servers that are read: unset url of [source] (VIEWTAIL_SOURCE__URL)")
    return found
