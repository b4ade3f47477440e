"""Loads the user's views.py, and other modules of theirs.

Whatever is wrong with it is one DeclarationError with file and line, no traceback.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

from projectors.binding import declaration_hash
from projectors.masking import with_masks
from projectors.stores.registry import STORES, store_of, with_topics
from projectors.views import View
from viewtail import own_packages
from viewtail.changes.errors import DeclarationError, MisuseError, nearest
from viewtail.changes.pipelines import DEFAULT_SOURCE
from viewtail.settings import Settings

SHARD_VARIABLE = "VIEWTAIL_SHARD"
_NO_VIEWS = "Write one with `viewtail init`, or say where the views are: VIEWTAIL_VIEWS=MODULE:ATTRIBUTE"

_texts: WeakKeyDictionary[ModuleType, bytes] = WeakKeyDictionary()  # of the modules' files as they were loaded


class NoModuleError(DeclarationError):
    """There is no module at all where the views should be."""


@runtime_checkable
class Sharded(Protocol):
    """A views.py may name this instead of a list of views: those of several deployments (viewtail/shards.py)."""

    def shards(self) -> Mapping[str, str]:
        """Return what each deployment is, in words, by its name."""
        ...

    def settings_of(self, shard: str, settings: Settings) -> Settings:
        """The settings of a deployment; `views` of them is for `views_of`. Raises SettingsError."""
        ...

    def views_of(self, shard: str) -> Sequence[View]:
        """Return the views of a deployment."""
        ...


def configured(loaded: Settings) -> list[View]:
    """The views that a command's settings name. Raises DeclarationError.

    Not those that a source like theirs feeds to nobody: what is read from Kafka is not published there again.
    """
    views = load(loaded.views)
    if loaded.source_kind.is_shared_out:
        views = [view for view in views if not store_of(view).keeps_every_change]
    return views


def declared_sources(loaded: Settings) -> dict[str, frozenset[str]] | None:
    """By the ids of all declared views the named sources that they draw on, if any.

    None when views.py cannot be loaded: `status` shows the rest all the same.
    """
    try:
        return {
            view.id: frozenset(name for name in loaded.sources if view.entity.draws_on(name))
            for view in _of_deployment(loaded)
        }
    except MisuseError:
        return None


def declared_hashes(loaded: Settings) -> dict[str, set[str]]:
    """By the ids of all declared views the hashes of their declarations, one of each source that they draw on.

    None of them when views.py cannot be loaded.
    """
    base, found = loaded.views.partition("@")[0], dict[str, set[str]]()
    try:
        is_of_sources = bool(loaded.sources) and not isinstance(declared(base), Sharded)
        names = [f"{base}@{name}" for name in (DEFAULT_SOURCE, *loaded.sources)] if is_of_sources else [loaded.views]
        for view in (view for name in names for view in load(name)):
            found.setdefault(view.id, set()).add(declaration_hash(view))
    except MisuseError:
        return {}
    return found


def has_changed(loaded: Settings) -> bool:
    """Return whether the file of views.py is another one than this process has loaded."""
    module = sys.modules.get(loaded.views.partition(":")[0])
    return module is not None and module in _texts and _text(module) != _texts[module]


def _text(module: ModuleType) -> bytes:
    try:
        return Path(module.__file__ or "").read_bytes()
    except OSError:
        return b""


def all_ids(loaded: Settings) -> set[str]:
    """The ids of all views of a deployment, whichever source they are of. Raises DeclarationError."""
    return {view.id for view in _of_deployment(loaded)}


def _of_deployment(loaded: Settings) -> list[View]:
    found, attribute, file = attribute_of(loaded.views.partition("@")[0], _NO_VIEWS)
    return load(loaded.views) if isinstance(found, Sharded) else _checked(found, attribute, file, may_be_empty=True)


def chosen(loaded: Settings, name: str) -> View:
    """Return the one of a command's `configured` views that a user names. Raises MisuseError."""
    return _chosen(loaded, configured(loaded), name)


def _chosen(loaded: Settings, views: Sequence[View], name: str) -> View:
    from viewtail.operations.reading import choose, named

    if not named(views, name) and (left_out := named(load(loaded.views), name)):
        raise MisuseError(
            f"view {left_out[0].id} is published by the tailer, and these are a projector's settings "
            f"(VIEWTAIL_SOURCE__URL={loaded.source_kind.address.schemes[0]}://...). Run this command with the "
            "tailer's: VIEWTAIL_SOURCE__URL=mysql://USER:PASSWORD@HOST:3306"
        )
    return choose(views, name)


def all_chosen(loaded: Settings, names: Iterable[str]) -> list[View]:
    """Return the `configured` views that a user names, each once. Raises MisuseError.

    Of several names those of other sources' views are left to these, where one is of this source.
    """
    wanted = list(names)
    here = [name for name in wanted if not _is_of_others(loaded, name)] if len(wanted) > 1 else wanted
    # By id: a mapping in a declaration has no hash.
    return list({view.id: view for view in (chosen(loaded, name) for name in here or wanted)}.values())


def _is_of_others(loaded: Settings, name: str) -> bool:
    """Return whether only other sources of the deployment have a view of that name. Raises DeclarationError."""
    from viewtail.operations.reading import named

    return not named(load(loaded.views), name) and bool(named(_of_deployment(loaded), name))


def chosen_of_all(loaded: Settings, names: Iterable[str]) -> list[View]:
    """`all_chosen` among the views of all sources, those of others as they are written."""
    own = {view.id for view in load(loaded.views)}
    views = configured(loaded) + [view for view in _of_deployment(loaded) if view.id not in own]
    return list({view.id: view for view in (_chosen(loaded, views, name) for name in names)}.values())


def load(name: str) -> list[View]:
    """The views that `module:attribute` names, the working directory first on the module path.

    `module:attribute@SHARD` names those of one deployment, where there are several; or what one source has of them.
    """
    name, _, shard = name.partition("@")
    found, attribute, file = attribute_of(name, _NO_VIEWS)
    if not isinstance(found, Sharded):
        return with_topics(_of_source(shard, with_masks(_checked(found, attribute, file))))
    if not shard:
        first = next(iter(found.shards()))
        raise MisuseError(
            "the views are kept in several deployments, and views.py names the servers that are read: unset url of "
            f"[source] (VIEWTAIL_SOURCE__URL) where it is set, and choose one: {SHARD_VARIABLE}={first}"
        )
    return with_topics(with_masks(_checked(found.views_of(shard), attribute, file)))


def _of_source(source: str, views: Sequence[View]) -> list[View]:
    """The views as that source has them. Raises DeclarationError."""
    if source not in ("", DEFAULT_SOURCE):
        return [view.of_source(source) for view in views if view.entity.draws_on(source)]
    if not source:
        _require_no_sources(views)
    return [view for view in views if not view.entity.sources]


def _require_no_sources(views: Sequence[View]) -> None:
    """Raise DeclarationError for a view with sources= where the settings name none."""
    for view in views:
        for name in view.entity.sources:
            name = name.replace("*", "1")
            raise DeclarationError(
                f"view {view.id} draws on sources={[*view.entity.sources]!r}: name them in viewtail.toml, "
                f'[sources.{name}] with url = "mysql://USER:PASSWORD@HOST:3306", or set '
                f"VIEWTAIL_SOURCES__{name.upper()}__URL. A program reads as one of them has it: "
                f"settings=viewtail.settings.load(None).of_source({name!r})"
            )


def of_all_sources(loaded: Settings) -> list[View]:
    """The views as they are written. Raises DeclarationError."""
    return _checked(*attribute_of(loaded.views, _NO_VIEWS))


def sources_of(loaded: Settings, views: Sequence[View]) -> list[str]:
    """The names of the sources that these draw on; DEFAULT_SOURCE is that of [source]. Raises DeclarationError."""
    for view in views:
        for name in view.entity.sources:
            if not fnmatch.filter(loaded.sources, name):
                near = nearest(name, loaded.sources) or f"; there are {', '.join(loaded.sources)}"
                raise DeclarationError(
                    f"view {view.id}: sources: the settings have no source {name}{near}. Add [sources.{name}] with its "
                    "url to viewtail.toml, or take it out"
                )
    named = [name for name in loaded.sources if any(view.entity.draws_on(name) for view in views)]
    return named if all(view.entity.sources for view in views) else [DEFAULT_SOURCE, *named]


def declared(name: str) -> object:
    """Return what `module:attribute` names for views, whatever it is. Raises DeclarationError."""
    return attribute_of(name, _NO_VIEWS)[0]


def attribute_of(name: str, mend: str) -> tuple[Any, str, str]:
    """Return what `module:attribute` names, the attribute's name and the module's file. Raises DeclarationError."""
    module_name, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    _refuse_our_names(module_name)
    module = _module(module_name, name, mend)
    file = _shown(module.__file__ or module_name)
    if not hasattr(module, attribute):
        near = nearest(attribute, [known for known in vars(module) if not known.startswith("_")])
        raise DeclarationError(f"{file}: there is no {attribute!r} in it" + (near or f"; write {attribute} = [...]"))
    return getattr(module, attribute), attribute, file


def _refuse_our_names(module: str) -> None:
    """A user's module that is called like a package of viewtail's cannot be imported; others may lie there unused."""
    here = Path.cwd()
    taken = {
        name: path
        for name in own_packages.NAMES
        for path in (here / f"{name}.py", here / name)
        if path.exists() and here != own_packages.ROOT
    }
    for name in (_imported_by(module, here) if taken else set()) & taken.keys():
        path = taken[name]
        kind = "module" if path.suffix else "package"
        raise DeclarationError(
            f"{_shown(str(path))}: {module} imports it, but viewtail has a package called {name} itself, and a "
            f"process can have one of that name. Rename the {kind}, e.g. to my_{name}"
        )


def _imported_by(module: str, folder: Path) -> set[str]:
    """Names of modules that a module in a folder imports, and what those import that are in the folder too."""
    found = {module}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = folder / name.replace(".", "/")
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                package = name if file.name == "__init__.py" else name.rpartition(".")[0]
                new = _imports(file, package) - found
                found |= new
                waiting += new
    return found


def _imports(file: Path, package: str) -> set[str]:
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return set()  # importing it says what is wrong
    found = {name for node in ast.walk(tree) for name in _named(node, package)}
    return found | {name.partition(".")[0] for name in found}


def _named(node: ast.AST, package: str) -> list[str]:
    """The modules that a statement may import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    module = ".".join(part for part in (package if node.level else "", node.module) if part)
    return [module, *(f"{module}.{alias.name}" for alias in node.names)]


def _module(module: str, name: str, mend: str) -> ModuleType:
    try:
        found = importlib.import_module(module)
        if found not in _texts:
            _texts[found] = _text(found)
        return found
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(error.name + ".")):
            raise NoModuleError(
                f"there is no module {module}, where {name} should be: {Path.cwd()} has no "
                f"{module.replace('.', '/')}.py. {mend}"
            ) from None
        raise _at(error, module) from None
    except SyntaxError as error:
        where = f"{_shown(error.filename or module)}:{error.lineno or 1}"
        raise DeclarationError(f"{where}: {error.msg}") from None
    except (Exception, SystemExit) as error:
        raise _at(error, module) from None


def _at(error: BaseException, module: str) -> DeclarationError:
    """The user's own line that led to the error; what is below it (viewtail's, a library's) says less."""
    source = f"{module.replace('.', '/')}.py"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith(source) or frame.filename.startswith(str(Path.cwd()) + os.sep)
    ]
    own = [frame for frame in frames if not _is_installed(frame.filename)]
    where = f"{_shown(own[-1].filename)}:{own[-1].lineno}" if own else source
    said = str(error) if isinstance(error, DeclarationError) else f"{type(error).__name__}: {error}"
    return DeclarationError(f"{where}: {said}")


def _is_installed(file: str) -> bool:
    ours = tuple(str(own_packages.ROOT / name) + os.sep for name in (*own_packages.NAMES, "viewtail"))
    return file.startswith(ours) or f"{os.sep}site-packages{os.sep}" in file


def _shown(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except ValueError:
        return file


def _checked(found: Any, attribute: str, file: str, *, may_be_empty: bool = False) -> list[View]:
    if not isinstance(found, list | tuple):
        raise DeclarationError(
            f"{file}: {attribute} must be a list of views, not {kind_of(found)}; write {attribute} = [...]"
        )
    if not found and not may_be_empty:  # where every view was taken out, they can be forgotten
        raise DeclarationError(
            f"{file}: {attribute} is empty; declare at least one view, e.g. "
            "IndexTable('user_by_email', Entity('shop.user'), value='email')"
        )
    wrong = [
        f"{file}: {attribute}[{at}] is {kind_of(one)}, not a view ({_kinds()})"
        for at, one in enumerate(found)
        if not isinstance(one, View) or type(one) is View
    ] or _twice(found, file)
    if wrong:
        raise DeclarationError("\n".join(wrong))
    return list(found)


def _twice(views: Sequence[View], file: str) -> list[str]:
    twice = [name for name, count in Counter(view.id for view in views).items() if count > 1]
    return [f"{file}: two views are called {name}; give one of them another name" for name in twice]


def _kinds() -> str:
    *names, last = (kind.__name__ for store in STORES for kind in store.view_classes)
    return f"{', '.join(names)} or {last}"


def kind_of(thing: Any) -> str:
    """Return what something is, for a message that says so."""
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"a value of type {type(thing).__name__}"
