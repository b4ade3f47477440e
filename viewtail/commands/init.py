"""`viewtail init`: a first views.py and viewtail.toml, from a look at a schema. No server is written to."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from projectors.stores import Choice
from projectors.stores.registry import STORES
from viewtail import settings
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError, ViewtailError
from viewtail.operations import first_views
from viewtail.servers.addresses import MYSQL, parse
from viewtail.servers.patience import QUESTION
from viewtail.servers.sessions import asking

URL = "VIEWTAIL_SOURCE__URL"


def init(
    config: Path | None, *, source: str | None, schema: str | None, tables: Sequence[str] = (), is_forced: bool
) -> int:
    """Write both files, or neither; returns the exit code."""
    toml = config or Path(os.environ.get("VIEWTAIL_CONFIG") or settings.CONFIG_FILE)
    loaded = _settings(toml, source)
    views = Path(loaded.views.partition(":")[0].replace(".", "/") + ".py")
    if not is_forced:
        _refuse_overwriting(views, toml)
    choices, others = _look(loaded, schema, tables)
    stores = [store.name for store in STORES if store.default_address or loaded.section(store).url]
    _write(views, first_views.views_py(choices, others, stores), 0o644)
    _write(toml, _toml(loaded, source), 0o600)
    names = ", ".join(choice.table.full_name for choice in choices)
    print(f"{views}: views of {names}, as examples; edit them")
    if others:
        print(
            f"{views}: {counted(len(others), 'more tables')} can have views: see the comment there, or say --table NAME"
        )
    print(f"{toml}: settings, readable by you alone")
    print("next: viewtail check", file=sys.stderr)
    return 0


def _refuse_overwriting(*paths: Path) -> None:
    present = [str(path) for path in paths if path.exists()]
    if present:
        raise ViewtailError(
            f"{' and '.join(present)} would be overwritten, so nothing was written. Move away what is there, "
            "go to another directory, or overwrite it with --force"
        )


def _settings(toml: Path, source: str | None) -> settings.Settings:
    environ = dict(os.environ)
    environ.pop("VIEWTAIL_CONFIG", None)
    if source is not None:
        try:
            parse(source, MYSQL)
        except ValueError as error:
            raise MisuseError(f"--source {error}") from None
        environ[URL] = source
    return settings.load(toml if toml.exists() else None, environ)


def _look(loaded: settings.Settings, schema: str | None, tables: Sequence[str]) -> tuple[list[Choice], list[str]]:
    address = loaded.asked_with(QUESTION.once()).source_address()
    own = (loaded.store_database, loaded.source.database)
    named = schema or first_views.schema_of(tables) or loaded.source_schema
    with asking(address, role="source") as connection:
        chosen = first_views.schema_to_look_at(connection, named, own)
        return first_views.choose(connection, chosen, tables)


def _write(path: Path, text: str, mode: int) -> None:
    """The file never has wider rights than `mode`, not for a moment."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise ViewtailError(f"{path} cannot be written: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def _toml(loaded: settings.Settings, source: str | None) -> str:
    """The settings file: what came from the environment stays there."""
    lines = [
        "# Settings of viewtail. The environment wins over this file: VIEWTAIL_SOURCE__URL is url under [source].",
        "# docs/reference.md lists them all. A # @ / or : in a password is percent-encoded; or use password_file.",
        "",
        f"views = {_string(loaded.views)}",
    ]
    lines += ["", "[source]", *_address(loaded, "source", MYSQL.example, "", source)]
    for store in STORES:
        lines += ["", f"[{store.name}]"]
        lines += _address(loaded, store.name, store.address.example, store.default_address, None)
    return "\n".join([*lines, ""])


def _address(loaded: settings.Settings, group: str, example: str, default: str, source: str | None) -> list[str]:
    variable = settings.variable((group, "url"))
    url = getattr(loaded, group).url
    if url is not None and (variable not in os.environ or source is not None):
        return [f"url = {_string(url.get_secret_value())}"]
    if url is not None:
        return [f"# url comes from {variable}"]
    by_default = f"  # by default {default}" if default else ""
    return [f"# url = {_string(example)}{by_default}"]


def _string(text: str) -> str:
    """A basic string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
