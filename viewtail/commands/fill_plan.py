"""`viewtail run --plan`, and a line of `viewtail preview`: how what operations/fill_plan.py finds is printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from offsets.views import State
from projectors.catalog import Catalog
from projectors.views import View
from viewtail import declarations, shards
from viewtail.changes.counting import counted
from viewtail.changes.errors import DeclarationError
from viewtail.commands.output import print_json
from viewtail.composition import deployed_to_ask
from viewtail.operations.fill_plan import FillPlan, Known, Reading, planned
from viewtail.operations.incidents import lasting
from viewtail.roles import Role, views_of
from viewtail.servers.patience import COMMAND
from viewtail.settings import Settings

_ONE_BY_ONE = (
    "Stores are filled side by side, and so are small tables of one store; its large ones one after another. Live "
    "changes go on meanwhile, and take their share. Nothing was started"
)


def plan(config: Path | None, role: Role, *, as_json: bool) -> int:
    """Print what the next run would backfill, of every deployment; nothing is started or written. Returns 0."""
    found: list[dict[str, Any]] = []
    unfit: list[str] = []
    for target in shards.targets(config):
        loaded = target.settings
        views = views_of(role, loaded, declarations.load(loaded.views))
        loaded.check_stores(views)
        catalog, misfits = _bound(loaded, views)
        with closing(catalog.session()) as session:
            known = catalog.known_views(session)
            plans = planned(catalog, session, known)
        if as_json:
            found += [{**asdict(each), "deployment": target.shard} for each in plans]
            unfit += misfits
            continue
        if target.shard is not None:
            print(f"{target.what or target.shard}:\n")
        print("\n\n".join([*_lines(plans, has_misfits=bool(misfits)), *_left_alone(catalog, known), *misfits]))
    if as_json:
        print_json({"backfills": found, "misfits": unfit})
    return 0


def _bound(loaded: Settings, views: Sequence[View]) -> tuple[Catalog, list[str]]:
    """The views that fit their tables, and a line about each that does not. Raises DeclarationError where none does."""
    try:
        return deployed_to_ask(loaded, views, COMMAND), []
    except DeclarationError as error:
        fit, misfits = [], []
        for view in views:
            try:
                deployed_to_ask(loaded, [view], COMMAND)
                fit.append(view)
            except DeclarationError as why:
                misfits.append(f"{view.id} cannot be backfilled: {why}")
        if not fit:
            raise error from None
        return deployed_to_ask(loaded, fit, COMMAND), misfits


def _lines(plans: Sequence[FillPlan], *, has_misfits: bool) -> Iterator[str]:
    if not plans:
        which = "each other view" if has_misfits else "each view"
        yield f"nothing to backfill: {which} is filled as it is declared, or its backfill waits for an operator"
        return
    begun = [each for each in plans if not each.is_refused]
    for each in plans:
        if each.is_refused:
            yield (
                f"{each.view}: {each.why}. The next run halts it: it is filled from its topic, whose rows are as old "
                "as what the view has. Declare it under another name, which is filled anew"
            )
            continue
        where = f"a second copy in {each.store}" if each.is_beside else each.store
        yield f"{each.view}: {each.why}. The next run backfills it into {where}.\n{reading_line(each.reading)}"
    if begun:
        yield f"{counted(len(begun), 'backfills')}{_in_all(begun)}. {_ONE_BY_ONE}"


def _in_all(plans: Sequence[FillPlan]) -> str:
    """The time of the store that takes longest."""
    of_store: dict[str, float] = {}
    for each in plans:
        of_store[each.store] = of_store.get(each.store, 0.0) + (each.reading.expected_s or 0.0)
    return f", done in about {lasting(max(1.0, *of_store.values()))}" if any(of_store.values()) else ""


def reading_line(reading: Reading) -> str:
    """What a backfill reads, and the estimate with its basis."""
    size = "" if reading.byte_count is None else f" ({_size(reading.byte_count)} on disk)"
    order = ", ".join(reading.order)
    what = (
        f"It reads about {counted(reading.row_count, 'rows')} of {', '.join(reading.tables)}{size}, in order of "
        f"{order}, {reading.chunk_rows:,} a chunk at most."
    )
    if reading.is_from_topic:
        what = f"It has the rows of {', '.join(reading.tables)}."
    if reading.expected_s is None:
        return f"{what} How long that takes is not known: {reading.basis}"
    least = "at least " if reading.is_least else ""
    refused = ""
    if reading.refused_count:
        refused = (
            f". {counted(reading.refused_count, 'rows')} of the sample could not be projected, and would be parked"
        )
    return f"{what} Estimate: {least}{lasting(max(1.0, reading.expected_s))}: {reading.basis}{refused}"


def _size(count: int) -> str:
    for bytes_, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= bytes_:
            return f"{count / bytes_:.1f} {unit}"
    return f"{count} bytes"


def _left_alone(catalog: Catalog, known: Known) -> Iterator[str]:
    """Halted views that no run backfills by itself."""
    declared = {view.view.id for view in catalog.views}
    for name in sorted({name for (_, name), record in known.items() if record.state is State.HALTED}):
        if name in declared:
            yield f"{name} is halted, and stays so unless its declaration changed: viewtail replay {name}"
