"""`viewtail contract check`: which views the statements of an SQL file would break."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from changes.errors import MisuseError
from ingest.canonical import describe
from operations.contract import Contract, Effect
from operations.sql_files import Statement, statements
from projectors.views import View
from servers.sessions import open_session
from viewtail import declarations
from viewtail.commands.output import print_json


def check(config: Path | None, file: Path, *, database: str | None, is_offline: bool, as_json: bool) -> int:
    """Print what each statement would do to each view; the exit code is 1 when one breaks."""
    loaded, views = declarations.configured(config)
    found = statements(_text(file))
    if not found:
        raise MisuseError(f"{file}: there is no statement in it")
    default = database or _only_schema(views)
    if is_offline:
        effects = list(Contract(views, None, default).check(found))
    else:
        with closing(open_session(loaded.source_address(), role="source")) as connection:
            effects = list(Contract(views, partial(describe, connection), default).check(found))
    is_well = not any(effect.breaks for effect in effects)
    if as_json:
        print_json({"is_well": is_well, "file": str(file), "statements": len(found), "effects": effects})
    else:
        _print(file, found, effects)
    return 0 if is_well else 1


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise MisuseError(f"{file}: {error.strerror}; name a file with SQL statements") from None
    except UnicodeDecodeError:
        raise MisuseError(f"{file}: it is no text in UTF-8") from None


def _only_schema(views: Sequence[View]) -> str:
    """Of statements that name no database; '' where the views do not agree on one."""
    schemas = {view.entity.schema_and_table[0] for view in views}
    return schemas.pop() if len(schemas) == 1 else ""


def _print(file: Path, found: Sequence[Statement], effects: Sequence[Effect]) -> None:
    for line in dict.fromkeys(effect.line for effect in effects):
        of_line = [effect for effect in effects if effect.line == line]
        print(f"{file}:{line}: {of_line[0].statement}")
        for effect in of_line:
            print(f"  {'breaks' if effect.breaks else 'note  '}  {effect.view}: {effect.why}")
    broken = sorted({effect.view for effect in effects if effect.breaks})
    if broken:
        print(f"\n{len(found)} statements, {len(broken)} views break: {', '.join(broken)}")
        print(
            "Change the views first (or the migration), or run it and backfill them again then: "
            f"viewtail replay {' '.join(broken)}"
        )
    else:
        print(f"{len(found)} statements, no view breaks")
