"""`viewtail dead-letters`: what offsets/dead_letters.py keeps, and what becomes of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import Any, TypeAlias

from offsets import dead_letters, migrations, views
from offsets.dead_letters import Letter
from offsets.mysql import OwnSession, reading
from viewtail import declarations
from viewtail.changes.counting import agreeing, counted
from viewtail.changes.errors import MisuseError, UnknownNameError, nearest
from viewtail.commands.agreeing import agreed
from viewtail.commands.output import print_json, print_remark, print_rows
from viewtail.composition import own_tables
from viewtail.operations.given import key_spellings
from viewtail.servers.patience import COMMAND
from viewtail.settings import Settings

_Own: TypeAlias = tuple[OwnSession, str]  # a session on the server of viewtail's own tables, and their database


def list_letters(loaded: Settings, name: str | None, *, limit: int, as_json: bool) -> int:
    """Print the newest letters, of one view or all; none is no error."""
    with _own_tables(loaded) as own:
        view = None if name is None else view_named(*own, name)
        letters, count = dead_letters.newest(*own, view, limit), dead_letters.count(*own, view)
    if as_json:
        print_json({"count": count, "letters": [_as_json(letter) for letter in letters]})
        return 0
    if not letters:
        print(f"no dead letters{'' if view is None else f' of view {view}'}", file=sys.stderr)
        return 0
    print_rows([_short(letter) for letter in letters])
    if count > len(letters):
        print_remark(f"the newest {len(letters):,} of {count:,}; ask for more with --limit")
    return 0


def show(loaded: Settings, name: str, key: str, *, as_json: bool) -> int:
    """Print all that is known of one key's letter; the exit code is 1 when it has none."""
    with _own_tables(loaded) as own:
        view = view_named(*own, name)
        letters = _of_chosen(loaded, dead_letters.of_keys(*own, view, key_spellings(key)))
    if not letters:
        _say_none(view, [key])
        return 1
    if as_json:
        print_json([_as_json(letter) for letter in letters])
        return 0
    for letter in letters:
        print(f"view      {letter.view}")
        print(f"key       {letter.key}")
        print(f"pipeline  {letter.pipeline}")
        print(f"version   {letter.version}")
        print(
            f"refused   {_times(letter.count)}, first {_seconds(letter.first_at)}, last {_seconds(letter.last_at)} UTC"
        )
        print(f"cause     {letter.cause}")
    return 0


def redrive(loaded: Settings, name: str | None, keys: Sequence[str], *, is_yes: bool) -> int:
    """Try parked keys of a view again, or those of every view; the exit code is 1 where one is refused again."""
    from viewtail.commands.replay_keys import redrive as of_view

    if name is not None:
        return of_view(loaded, name, keys, is_yes=is_yes)
    with _own_tables(loaded) as own:
        elsewhere = declarations.all_ids(loaded) - {view.id for view in declarations.load(loaded.views)}
        with_letters = [view for view in dead_letters.views(*own) if view not in elsewhere]  # of other sources
    if not with_letters:
        print("no dead letters", file=sys.stderr)
    return max((of_view(loaded, view, (), is_yes=is_yes) for view in with_letters), default=0)


def drop(loaded: Settings, name: str, keys: Sequence[str], *, is_yes: bool) -> int:
    """Forget letters; the exit code is 1 when a key that was named has none."""
    with _own_tables(loaded) as own:
        view = view_named(*own, name)
        spellings = [spelling for key in keys for spelling in key_spellings(key)]
        letters = _of_chosen(loaded, dead_letters.of_keys(*own, view, spellings))
        missing = _without_letter(keys, letters)
        if letters and not _forget(own, view, letters, is_yes=is_yes):
            return 1
    if missing or not letters:
        _say_none(view, missing)
    return 1 if missing else 0


def _of_chosen(loaded: Settings, letters: Sequence[Letter]) -> list[Letter]:
    """Those of the source that the environment chooses, where it does: another may have a letter of the same key."""
    if not os.environ.get(declarations.SHARD_VARIABLE):
        return list(letters)
    servers = loaded.servers()
    return [letter for letter in letters if servers.concerns(letter.pipeline)]


def view_named(session: OwnSession, database: str, name: str) -> str:
    """The id of the view of that name, declared or not. Raises MisuseError."""
    known = views.names(session, database)
    named = [view for view in known if name in (view, view.partition(":")[2])]
    if len(named) == 1:
        return named[0]
    if named:
        raise MisuseError(f"{name!r} is the name of {len(named)} views; say which: {', '.join(named)}")
    near = nearest(name, [*known, *(view.partition(":")[2] for view in known)])
    raise UnknownNameError(f"no run has seen a view {name!r}{near or '; there are ' + (', '.join(known) or 'none')}")


def _without_letter(keys: Sequence[str], letters: Sequence[Letter]) -> list[str]:
    lettered = {letter.key for letter in letters}
    return sorted(key for key in set(keys) if lettered.isdisjoint(key_spellings(key)))


def _forget(own: _Own, view: str, letters: Sequence[Letter], *, is_yes: bool) -> bool:
    """Return False where the user does not want it."""
    question = (
        f"{counted(len(letters), 'dead letters')} of {view} {agreeing(len(letters), 'are')} forgotten. The view keeps "
        "what it has there, which is not what the rows are now: `viewtail verify` will show the difference. Go on?"
    )
    if not agreed(question, is_yes=is_yes):
        print_remark("nothing was forgotten")
        return False
    dropped = dead_letters.forget(*own, letters)
    print(f"{view}: {counted(len(dropped), 'dead letters')} forgotten. What the view has there stays as it is")
    if left := len(letters) - len(dropped):
        print_remark(f"{left:,} {agreeing(left, 'were')} refused again meanwhile, and {agreeing(left, 'stay')}")
    return True


@contextmanager
def _own_tables(loaded: Settings) -> Iterator[_Own]:
    catalog = own_tables(loaded, COMMAND)
    with closing(catalog.session()) as session:
        with reading(session, "looking for viewtail's tables") as cursor:
            is_there = migrations.are_there(cursor, catalog.database)
        if not is_there:
            raise MisuseError(f"viewtail has not run yet with the database {catalog.database}. Start it: viewtail run")
        yield session, catalog.database


def _say_none(view: str, keys: Sequence[str]) -> None:
    which = f" for the key {', '.join(map(repr, keys))}" if keys else ""
    print(f"viewtail: view {view} has no dead letter{which}. To see those that there are: "
          f"viewtail dead-letters list {view}", file=sys.stderr)  # fmt: skip


def _as_json(letter: Letter) -> dict[str, Any]:
    return {**asdict(letter), "version": str(letter.version)}


def _short(letter: Letter) -> dict[str, Any]:
    return {
        "view": letter.view,
        "key": letter.key,
        "refused": _times(letter.count),
        "first (UTC)": _seconds(letter.first_at),
        "last (UTC)": _seconds(letter.last_at),
        "cause": letter.cause,
    }


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _seconds(at: str) -> str:
    return at.partition(".")[0]
