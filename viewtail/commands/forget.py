"""`viewtail forget VIEW`: what operations/forget.py does, and what it prints."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass

from projectors.catalog import Catalog
from projectors.stores.leaving import Found
from projectors.stores.registry import store_named
from viewtail import declarations
from viewtail.changes.errors import MisuseError
from viewtail.commands.agreeing import agreed
from viewtail.commands.output import print_json, print_remark
from viewtail.commands.progress import progress
from viewtail.composition import own_tables
from viewtail.operations import forget as operation
from viewtail.operations.forget import Chosen
from viewtail.servers.patience import COMMAND
from viewtail.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """The operator's options."""

    keeps_data: bool  # forget what viewtail's tables know, and nothing else
    drops_topic: bool
    is_sure: bool  # do not ask
    as_json: bool


def forget(loaded: Settings, name: str, wishes: Wishes) -> int:
    """Drop what a view left that is not declared any more; returns the exit code."""
    declared = declarations.all_ids(loaded)  # those of the tailer too
    catalog = own_tables(loaded, COMMAND)
    chosen = operation.choose(catalog, declared, name)
    if (why := _why_data_stays(chosen, declared, wishes)) is not None:
        return _forget_rows(catalog, chosen, why, wishes)
    with closing(operation.leftover(catalog, chosen)) as leaving:
        leftover = leaving.look()
        _say_what(chosen, leftover)
        if not agreed("Drop that?", is_yes=wishes.is_sure):
            print_remark("nothing was dropped")
            return 1
        again = operation.choose(catalog, declarations.all_ids(loaded), chosen.id)
        if (again.places, again.copies) != (chosen.places, chosen.copies):
            raise MisuseError(f"{chosen.id}: its copies changed meanwhile, and nothing was dropped. Repeat the command")
        with progress(chosen.id, "dropped") as say:
            rest = operation.drop(catalog, chosen, leaving, lambda done: say(done, leftover.count))
    _tell(chosen, leftover, rest, wishes)
    return 0


def _why_data_stays(chosen: Chosen, declared: Collection[str], wishes: Wishes) -> str | None:
    if wishes.keeps_data:
        return "you asked for that (--keep-data)"
    if chosen.is_released:
        return "it was released, so it is the application's"
    if store_named(chosen.store).keeps_every_change and not wishes.drops_topic:
        return "its consumers may still read it (--with-topic deletes it)"
    return operation.why_only_by_hand(chosen, declared)


def _forget_rows(catalog: Catalog, chosen: Chosen, why: str, wishes: Wishes) -> int:
    left = list(operation.of_others(catalog, chosen)) or [operation.by_hand(catalog, chosen)]
    print_remark(f"{chosen.id}: its dead letters and what viewtail knows of it are forgotten; its data stays: {why}")
    if not agreed("Forget it?", is_yes=wishes.is_sure or wishes.keeps_data):
        print_remark("nothing was forgotten")
        return 1
    operation.forget_rows(catalog, chosen)
    if wishes.as_json:
        print_json({"view": chosen.id, "dropped": [], "left": left, "why": why})
    else:
        print(f"{chosen.id}: forgotten, with its dead letters. What stays is {'; '.join(left)}")
    return 0


def _say_what(chosen: Chosen, leftover: Found) -> None:
    """Print on stderr what is dropped, before anything is."""
    print_remark(f"{chosen.id} is not declared any more. To drop:")
    nothing = "nothing" if leftover.left else "nothing: its store holds nothing of it"
    for line in leftover.dropped or (nothing,):
        print(f"  {line}", file=sys.stderr)
    print("  its dead letters, and what viewtail's own tables know of it, last", file=sys.stderr)
    for line in leftover.left:
        print(f"  stays: {line}", file=sys.stderr)


def _tell(chosen: Chosen, leftover: Found, rest: Found, wishes: Wishes) -> None:
    if wishes.as_json:
        print_json({"view": chosen.id, "dropped": list(leftover.dropped), "left": list(rest.left), "why": ""})
        return
    for line in leftover.dropped:
        print(f"dropped: {line}")
    for line in rest.left:
        print(f"stays: {line}")
    print(f"{chosen.id}: forgotten, with its dead letters")
