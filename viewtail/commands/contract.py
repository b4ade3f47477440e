"""`viewtail contract check`: which views the statements of an SQL file would break."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from ingest.canonical import describe
from projectors.views import View
from viewtail import declarations
from viewtail.changes.counting import counted
from viewtail.changes.errors import MisuseError
from viewtail.commands.named_file import shown_name, text_of
from viewtail.commands.output import print_json
from viewtail.operations.contract import Contract, Effect, Unread
from viewtail.operations.sql_files import Statement, statements
from viewtail.servers.facts import folds_names
from viewtail.servers.patience import QUESTION
from viewtail.servers.sessions import open_session
from viewtail.settings import Settings


def check(loaded: Settings, file: Path, *, database: str | None, is_offline: bool, as_json: bool) -> int:
    """Print what each statement would do to each view.

    The exit code is 2 when a statement cannot be read, and 1 when a view breaks.
    """
    views = declarations.configured(loaded)
    name = shown_name(file)
    to_check = statements(text_of(file))
    if not to_check:
        raise MisuseError(f"{name}: there is no statement in it")
    default = database or _only_schema(views)
    with nullcontext(Contract(views, None, default)) if is_offline else _of_source(loaded, views, default) as contract:
        effects = list(contract.check(to_check))
    is_read = not any(unknown.may_break for unknown in contract.unread)
    is_well = not any(effect.breaks for effect in effects)
    if as_json:
        print_json(
            {
                "is_well": is_read and is_well, "file": name, "statements": len(to_check), "effects": effects,
                "unread": contract.unread,
            }
        )  # fmt: skip
    else:
        _print(name, to_check, effects, contract.unread)
    if not is_read:
        return 2
    return 0 if is_well else 1


@contextmanager
def _of_source(loaded: Settings, views: Sequence[View], default: str) -> Iterator[Contract]:
    """Yield the contract with the tables as the source has them now."""
    with closing(open_session(loaded.asked_with(QUESTION.once()).source_address(), role="source")) as connection:
        yield Contract(views, partial(describe, connection), default, folds_names(connection))


def _only_schema(views: Sequence[View]) -> str:
    """Return the database of statements that name none; '' where the views do not agree on one."""
    schemas = {view.entity.schema_and_table[0] for view in views}
    return schemas.pop() if len(schemas) == 1 else ""


def _print(name: str, to_check: Sequence[Statement], effects: Sequence[Effect], unread: Sequence[Unread]) -> None:
    of_lines: dict[tuple[int, str], list[str]] = {}
    for unknown in unread:
        said = "unread" if unknown.may_break else "note  "
        more = "" if unknown.may_break else "; it names no table of a view"
        of_lines.setdefault((unknown.line, unknown.statement), []).append(f"{said}  {unknown.why}{more}")
    for effect in effects:
        said = "breaks" if effect.breaks else "note  "
        of_lines.setdefault((effect.line, effect.statement), []).append(f"{said}  {effect.view}: {effect.why}")
    for line, statement in sorted(of_lines, key=lambda of_line: of_line[0]):
        print(f"{name}:{line}: {statement}")
        for said in of_lines[line, statement]:
            print(f"  {said}")
    _print_end(to_check, effects, sum(unknown.may_break for unknown in unread))


def _print_end(to_check: Sequence[Statement], effects: Sequence[Effect], unread: int) -> None:
    broken = sorted({effect.view for effect in effects if effect.breaks})
    statements = counted(len(to_check), "statements")
    if broken:
        print(f"\n{statements}, {counted(len(broken), 'views', 'break')}: {', '.join(broken)}")
        print(
            "Change the views first (or the migration), or run it and backfill them again then: "
            f"viewtail replay {' '.join(broken)}"
        )
    elif not unread:
        print(f"{statements}, no view breaks")
    if unread:
        print(
            f"\n{counted(unread, 'statements')} of {len(to_check)} could not be read, so nothing is known of what "
            "would become of the views. "
            "Correct what is misspelt; write out what a procedure, a prepared statement or another file runs."
        )
