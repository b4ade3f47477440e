"""Finds the deployments that a command is about: that of the settings, or those of a sharded declaration.

A sharded declaration (viewtail/datastore, viewtail/several.py) draws on several servers. Each pair of a server that is
read and one that keeps its views is a deployment of its own: tables of its own, pipelines of its own, and no version of
one is ever compared with one of another. `run` runs them all; another command does its work in one after another.

Where views name their `sources=`, they are one deployment, and a command works in it as each source has its views: with
the rows, keys and pipelines of that source alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from viewtail import declarations, settings
from viewtail.changes.errors import DeclarationError, MisuseError, SettingsError, nearest
from viewtail.changes.pipelines import DEFAULT_SOURCE
from viewtail.declarations import SHARD_VARIABLE, Sharded
from viewtail.settings import Settings


@dataclass(frozen=True)
class Target:
    """One deployment, or one of its sources, that a command is about, or that a `run` keeps."""

    load: Callable[[], Settings]  # raises SettingsError
    shard: str | None = None  # its name, where there are several
    what: str = ""  # it is then, in words
    is_source: bool = False  # the others are sources of the same deployment

    @cached_property
    def settings(self) -> Settings:
        """Raise SettingsError."""
        return self.load()

    def names(self, pipeline: str) -> str:
        """Return how a pipeline of it is called among those of all."""
        return pipeline if self.shard is None or self.is_source else f"{self.shard}/{pipeline}"


def targets(config: Path | None) -> list[Target]:
    """All deployments that a command is about; the one alone that the environment names, where it does.

    Raises SettingsError, DeclarationError, MisuseError.
    """
    loaded = settings.load(config)
    if shard := os.environ.get(SHARD_VARIABLE):
        return [Target(partial(_chosen, loaded, shard))]
    if (sharded := _sharded(loaded)) is None:
        return _of_sources(loaded)
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
    return _of_sources(loaded)[0].load()


def _of_sources(loaded: Settings) -> list[Target]:
    """The sources that the views draw on. Raises DeclarationError, SettingsError."""
    names = _names(loaded) if loaded.sources else [DEFAULT_SOURCE]
    if names == [DEFAULT_SOURCE]:
        return [Target(lambda: loaded)]
    if loaded.source_kind.is_shared_out:
        raise SettingsError(
            f"views with sources= read the binlogs of [sources.{names[-1]}], and VIEWTAIL_SOURCE__URL is that of "
            "topics: give those views a deployment of their own, with a database of its own (VIEWTAIL_MYSQL__URL)"
        )
    return [Target(partial(_source, loaded, name), name, _what(name), is_source=True) for name in names]


def _names(loaded: Settings) -> list[str]:
    try:
        views = declarations.of_all_sources(loaded)
    except DeclarationError:
        # Whoever needs the views says what is wrong with them.
        return [*([] if loaded.source.url is None else [DEFAULT_SOURCE]), *loaded.sources]
    return declarations.sources_of(loaded, views)


def _source(loaded: Settings, name: str) -> Settings:
    if name == DEFAULT_SOURCE:
        return loaded.model_copy(update={"views": f"{loaded.views}@{name}"})
    return loaded.of_source(name)


def _what(name: str) -> str:
    return "the source without a name, [source]" if name == DEFAULT_SOURCE else f"a source, [sources.{name}]"


def _chosen(loaded: Settings, shard: str) -> Settings:
    if (sharded := _named(loaded)) is not None:
        _require_one_of(sharded.shards(), shard)
        return sharded.settings_of(shard, loaded)
    sources = [f"{target.shard}" for target in _of_sources(loaded) if target.is_source]
    if not sources:
        raise MisuseError(f"{SHARD_VARIABLE} is set, and the views of these settings are not in several deployments")
    _require_one_of(sources, shard)
    return _source(loaded, shard)


def _require_one_of(shards: Collection[str], shard: str) -> None:
    """Raise MisuseError."""
    if shard not in shards:
        near = nearest(shard, shards) or f"; there are {', '.join(shards)}"
        raise MisuseError(f"{SHARD_VARIABLE} is {shard!r}, which is no deployment{near}")


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
