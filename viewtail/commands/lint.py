"""`viewtail lint`: a schema, or migrations, held against the guideline."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ingest.canonical import describe
from projectors.views import View
from viewtail import declarations
from viewtail.changes.errors import MisuseError
from viewtail.commands.lint_forms import FORMS
from viewtail.commands.named_file import shown_name, text_of
from viewtail.commands.output import print_remark
from viewtail.operations.lint import live
from viewtail.operations.lint.choosing import Chosen
from viewtail.operations.lint.linting import Finding, Linter, SqlFile
from viewtail.servers.patience import QUESTION
from viewtail.servers.sessions import open_session
from viewtail.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks for."""

    files: Sequence[Path]
    dump: Path | None
    database: str | None
    select: Sequence[str]
    ignore: Sequence[str]
    is_strict: bool
    form: str


def lint(loaded: Settings, asked: Asked) -> int:
    """Print what the rules find. The exit code is 2 where a statement cannot be read, 1 for an error that was found."""
    chosen = Chosen(asked.select or loaded.lint.select, (*loaded.lint.ignore, *asked.ignore))
    views = _views(loaded)
    databases = _databases(loaded, asked, views)
    linter = Linter(chosen, databases[0] if len(databases) == 1 else "")
    files = [_file(path) for path in asked.files]
    if asked.dump is not None:
        linter.define(_file(asked.dump), is_judged=not files)
        if files:
            linter.migrate(files, views, None)
    else:
        _ask_server(loaded, linter, databases, files, views)
    findings = linter.findings()
    FORMS[asked.form](findings)
    if linter.unread:
        return 2
    return int(_is_bad(findings, is_strict=asked.is_strict or loaded.lint.strict))


def _is_bad(findings: Sequence[Finding], *, is_strict: bool) -> bool:
    return any(is_strict or finding.level == "error" for finding in findings)


def _views(loaded: Settings) -> list[View]:
    """The declared views; none where there is no views.py at all."""
    try:
        return declarations.configured(loaded)
    except declarations.NoModuleError:
        return []


def _databases(loaded: Settings, asked: Asked, views: Sequence[View]) -> list[str]:
    if asked.database is not None:
        return [asked.database]
    schemas = sorted({view.entity.schema_and_table[0] for view in views})
    return [loaded.source_schema] if loaded.source_schema else schemas


def _ask_server(
    loaded: Settings, linter: Linter, databases: Sequence[str], files: Sequence[SqlFile], views: Sequence[View]
) -> None:
    """Take the schema of the source."""
    if not databases:
        raise MisuseError(
            "no database is known: name it with --database, or name a dump with --schema. By default it is that of the "
            "source's address, or those of the views"
        )
    address = loaded.asked_with(QUESTION.once()).source_address()
    with closing(open_session(address, role="source")) as connection:
        for database in databases:
            live.define(linter, connection, database, is_judged=not files)
            for remark in live.unseen(connection, database) if not files else ():
                print_remark(remark)
        if files:
            linter.migrate(files, views, partial(describe, connection))


def _file(path: Path) -> SqlFile:
    return SqlFile(name=shown_name(path), text=text_of(path))
