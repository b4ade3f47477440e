"""What the pages ask the servers of one view, as the commands do: rows beside what the store has, why, letters.

At most a few such questions are under way at once, however many people ask: the servers have other work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TypeVar

import orjson

from offsets import dead_letters, migrations
from offsets.dead_letters import Letter
from offsets.mysql import OwnSession, reading
from offsets.runs import Past
from projectors.views import View
from viewtail import declarations
from viewtail.changes.errors import MisuseError, StoreUnavailableError, once
from viewtail.commands import why
from viewtail.commands.replay import KINDS
from viewtail.composition import deployed_to_ask, own_tables
from viewtail.operations.preview import Sampled, sampled_entities
from viewtail.operations.runs import past
from viewtail.operations.why import Answer
from viewtail.servers.patience import COMMAND
from viewtail.settings import Settings

MOST_AT_ONCE = 3
WAIT_S = 10.0  # for one's turn
MOST_LETTERS = 100
MOST_RUNS = 100

_turns = threading.BoundedSemaphore(MOST_AT_ONCE)
T = TypeVar("T")


@contextmanager
def _turn() -> Iterator[None]:
    if not _turns.acquire(timeout=WAIT_S):
        raise StoreUnavailableError("other questions of the console are still being answered. Load the page again")
    try:
        yield
    finally:
        _turns.release()


def rows(loaded: Settings, view: str, count: int) -> list[Sampled]:
    """Some entities, each with its row and what the view shows. Raises ViewtailError."""
    with _turn():
        catalog = deployed_to_ask(loaded, [declarations.chosen(loaded, view)], COMMAND)
        return sampled_entities(catalog, catalog.views[0], count).entities


def why_shown(loaded: Settings, view: str, key: str) -> tuple[Answer, list[tuple[str, str]], list[str]]:
    """Why a view shows what it shows of a key: the answer, in words, and remarks. Raises ViewtailError."""
    remarks = list[str]()
    with _turn():
        answer, remark = why.asked(loaded, view, key, remarks.append)
    return answer, why.lines(answer), [*remarks, *([remark] if remark else [])]


def letters(loaded: Settings, view: str) -> tuple[Sequence[Letter], int]:
    """The newest dead letters of a view, and how many it has. Raises ViewtailError."""

    def ask(session: OwnSession, database: str) -> tuple[Sequence[Letter], int]:
        newest = dead_letters.newest(session, database, view, MOST_LETTERS)
        return newest, dead_letters.count(session, database, view)

    none: tuple[Sequence[Letter], int] = (), 0
    return _of_own_tables(loaded, ask, none)


def record(loaded: Settings, *, is_whole: bool) -> list[Past]:
    """What operators had done, the newest first; with the rounds of the cleaner where it is whole.

    Raises ViewtailError.
    """
    kinds = [kind for kind in KINDS if is_whole or kind != "clean"]
    return _of_own_tables(loaded, lambda session, database: past(session, database, kinds, MOST_RUNS), [])


def _of_own_tables(loaded: Settings, ask: Callable[[OwnSession, str], T], nothing: T) -> T:
    """`nothing` where viewtail has not run yet."""
    catalog = own_tables(loaded)
    with _turn(), closing(catalog.session()) as session:
        with reading(session, "looking for viewtail's tables") as cursor:
            if not migrations.are_there(cursor, catalog.database):
                return nothing
        return ask(session, catalog.database)


def declared(settings: Sequence[Settings], view: str) -> tuple[View | None, str]:
    """The declaration of a view, by one of these settings; None where views.py has none, or the error of loading it."""
    why = ""
    for loaded in settings:
        try:
            found = next((each for each in declarations.load(loaded.views) if each.id == view), None)
        except MisuseError as error:
            why = once(error)
            continue
        if found is not None:
            return found, ""
    return None, why


def previewed(answer: tuple[int, str, str]) -> tuple[dict[str, object] | None, str]:
    """What `viewtail preview --json` said, or its error."""
    _, out, error = answer
    # What views.py prints, while it is loaded or asked for a row, comes before.
    _, begin, behind = f"\n{out}".rpartition("\n{\n")
    try:
        found = orjson.loads(begin + behind)
    except orjson.JSONDecodeError:
        return None, error.strip() or "it said nothing"
    return found, error.strip()
