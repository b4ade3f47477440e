"""kill -9 at each named step of a rebuild, a swap, a rollback and an abort: the same command finishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stack import Server
from tests.support.copies import LISTS, STORES, Place, Shop, kept, rebuilt
from tests.support.running import Run, wait_for

ROWS = 3_000

# What is asked for, the step at which the process that does it is killed, and the copies that are there then: the live
# one and the one beside.
STEPS = [
    (("--hold",), "after chunk", (1, 2)),
    (("--abort", "--yes"), "before dropping", (1, None)),
    ((), "before swapping", (3, 1)),
    (("--rollback",), "before returning", (1, 3)),
    ((), "after returning", (3, 1)),
    (("--rollback",), "in swapping:7", (1, 3)),
    ((), "in swapping:70", (3, 1)),
    (("--abort", "--yes"), "after dropping", (3, None)),
    ((), "after swapping", (4, 3)),
]
_IN_REDIS = "in swapping"  # the other stores, and Redis where keys have a generation, swap in one step


@pytest.fixture
def shop(mysql_server: Server) -> Shop:
    return Shop(mysql_server, ROWS)


@pytest.mark.parametrize(
    "store", [*STORES, LISTS, *(pytest.param(kind, marks=pytest.mark.redis) for kind in ("generations", "sets"))]
)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rebuild_that_was_killed_anywhere_is_finished_by_the_same_command(
    store: str, shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The process that does it is killed, and the command too."""
    with kept(request, store, shop, tmp_path) as (place, run):
        for number, (options, step, copies) in enumerate(STEPS):
            if store in ("redis", "sets") or not step.startswith(_IN_REDIS):
                _killed(run, place.store, step, options)
                assert place.shown() == shop.wanted(), f"nothing half-done shows: {step}"
                run.kill()
                run.start()
            if "--abort" in options:
                _aborted(run)
            else:
                rebuilt(run, *options)
            shop.execute(f"UPDATE shop.user SET email = 'after {number}' WHERE id = {number}")
            wait_for(f"it is kept after {step}", lambda: place.shown() == shop.wanted())
            _is_as_said(shop, place, copies)


def _killed(run: Run, store: str, step: str, options: tuple[str, ...]) -> None:
    """Return when the process of the store died at the step; the command is killed then."""
    run.kill()
    run.start(VIEWTAIL_FAILPOINT=step if ":" in step else f"{step}:1")
    first = wait_for("the pipeline's process runs", lambda: run.workers().get(store))
    command = run.background("rebuild", "people", *options)
    try:
        wait_for(f"it is killed {step}", lambda: run.workers().get(store) != first, 60)
    finally:
        command.kill()
        command.wait()


def _aborted(run: Run) -> None:
    """What was dropped already is said to be not there."""
    done = run.command("rebuild", "people", "--abort", "--yes", timeout_s=60)
    assert done.returncode == 0 or "has no copy beside it" in done.stderr, done.stderr


def _is_as_said(shop: Shop, place: Place, copies: tuple[int, int | None]) -> None:
    live, beside = copies
    others = set() if beside is None else {beside}
    wait_for("no other copy is there", lambda: place.copies() == others)
    view = f"{place.store}:people"
    names = {view: live, **{f"{view}~{number}": number for number in others}}
    assert dict(shop.rows("SELECT name, copy FROM viewtail.view")) == names
    if beside is not None:
        wait_for("the copy beside is kept", lambda: place.copy(beside) == shop.wanted())
