"""Finds the deployments that a command is about: that of the settings, or those of a sharded declaration.

A sharded declaration (viewtail/datastore, viewtail/several.py) draws on several servers. Each pair of a server that is
read and one that keeps its views is a deployment of its own: tables of its own, pipelines of its own, and no version of
one is ever compared with one of another. `run` runs them all; another command does its work in one after another.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from viewtail import declarations, settings
from viewtail.changes.errors import DeclarationError, MisuseError, nearest
from viewtail.declarations import SHARD_VARIABLE, Sharded
from viewtail.settings import Settings


@dataclass(frozen=True)
class Target:
    """One deployment that a command is about, or that a `run` keeps."""

    load: Callable[[], Settings]  # raises SettingsError
    shard: str | None = None  # its name, where there are several
    what: str = ""  # it is then, in words

    @cached_property
    def settings(self) -> Settings:
        """Raise SettingsError."""
        return self.load()

    def names(self, pipeline: str) -> str:
        """Return how a pipeline of it is called among those of all."""
        return pipeline if self.shard is None else f"{self.shard}/{pipeline}"


def targets(config: Path | None) -> list[Target]:
    """All deployments that a command is about; the one alone that the environment names, where it does.

    Raises SettingsError, DeclarationError, MisuseError.
    """
    loaded = settings.load(config)
    if shard := os.environ.get(SHARD_VARIABLE):
        return [Target(partial(_chosen, loaded, shard))]
    if (sharded := _sharded(loaded)) is None:
        return [Target(lambda: loaded)]
    return [Target(partial(sharded.settings_of, name, loaded), name, what) for name, what in sharded.shards().items()]


def one(config: Path | None, shard: str | None = None) -> Settings:
    """The settings of one deployment: the one that is given, else that of the environment, else the only one.

    Raises SettingsError, DeclarationError, MisuseError.
    """
    loaded = settings.load(config)
    if shard := shard or os.environ.get(SHARD_VARIABLE):
        return _chosen(loaded, shard)
    if sharded := _sharded(loaded):
        first = next(iter(sharded.shards()))
        raise MisuseError(f"the views are kept in several deployments; choose one: {SHARD_VARIABLE}={first}")
    return loaded


def _chosen(loaded: Settings, shard: str) -> Settings:
    sharded = _named(loaded)
    if sharded is None:
        raise MisuseError(f"{SHARD_VARIABLE} is set, and the views of these settings are not in several deployments")
    shards = sharded.shards()
    if shard not in shards:
        near = nearest(shard, shards) or f"; there are {', '.join(shards)}"
        raise MisuseError(f"{SHARD_VARIABLE} is {shard!r}, which is no deployment{near}")
    return sharded.settings_of(shard, loaded)


def _sharded(loaded: Settings) -> Sharded | None:
    """Raise DeclarationError: a mistake in views.py, which may name the servers, is told before their absence."""
    if loaded.source.url is not None:
        return None
    try:
        return _named(loaded)
    except declarations.NoModuleError:
        return None  # whoever needs the views says so
    except DeclarationError:
        if loaded.mysql.url is None:
            raise
        return None  # viewtail's own tables are known, which is all that some commands need


def _named(loaded: Settings) -> Sharded | None:
    """Raise DeclarationError, MisuseError."""
    found = declarations.declared(loaded.views)
    if not isinstance(found, Sharded):
        return None
    if loaded.source.url is not None:
        raise MisuseError("views.py names the servers that are read: unset url of [source] (VIEWTAIL_SOURCE__URL)")
    return found
