"""kill -9 at each named step of a rebuild, a swap, a rollback and an abort: the same command finishes.

Every kind of view goes through all of them. A run of all tests, when their turn comes, kills each at a third of the
steps, other ones each time, and at every step some kind; `make rebuilds` kills each kind at every step.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from projectors.failpoints import REBUILD_STEPS, SWAP_STEP
from stack import Server
from tests.support.copies import Place, Rows, Shop, kept, rebuilt
from tests.support.running import Run, wait_for

ROWS = 1_000
DAMAGED = 500  # an entity that the first copy shows otherwise than its table

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
_IN_REDIS = SWAP_STEP  # the other stores, and Redis where keys have a generation, swap in one step
KINDS = {
    "mysql": pytest.mark.mysql,
    "redis": pytest.mark.redis,
    "elasticsearch": pytest.mark.elasticsearch,
    "list": pytest.mark.mysql,
    "generations": pytest.mark.redis,
    "sets": pytest.mark.redis,
}
_ALWAYS = {"redis": 5, "sets": 6}  # steps that no other kind has


def steps_of(kind: str, number: int = 0) -> list[int]:
    """The steps at which it is killed, by their numbers."""
    has = [at for at, (_, step, _) in enumerate(STEPS) if kind in _ALWAYS or not step.startswith(_IN_REDIS)]
    if os.environ.get("VIEWTAIL_TEST_ALL_STEPS"):
        return has
    some = range((number + [*KINDS].index(kind)) % 3, len(STEPS), 3)
    return [at for at in has if at in some or at == _ALWAYS.get(kind)]


def _case(kind: str) -> Any:
    killed = steps_of(kind)
    return pytest.param(kind, killed, id=f"{kind} killed at {','.join(map(str, killed))}", marks=KINDS[kind])


@pytest.mark.parametrize("number", range(3))
def test_every_step_kills_some_kind_in_each_part_and_every_kind_within_three(number: int) -> None:
    for at in range(len(STEPS)):
        assert any(at in steps_of(kind, number) for kind in KINDS), at
    for kind in KINDS:
        assert {at for day in range(3) for at in steps_of(kind, number + day)} >= {0, 1, 2, 3, 4, 7, 8}


def test_a_process_is_killed_at_every_step() -> None:
    assert {*REBUILD_STEPS, SWAP_STEP} <= {step.partition(":")[0] for _, step, _ in STEPS}


@pytest.fixture
def shop(mysql_server: Server) -> Shop:
    return Shop(mysql_server, ROWS)


@pytest.mark.parametrize(("store", "killed"), [_case(kind) for kind in KINDS])
@pytest.mark.slow
def test_a_rebuild_that_was_killed_anywhere_is_finished_by_the_same_command(
    store: str, killed: list[int], shop: Shop, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The process that does it is killed, and the command too. Readers read on; one entity of the first copy is wrong,
    which a rebuild heals and a rollback brings back."""
    with kept(request, store, shop, tmp_path) as (place, run), Reader(place, shop.wanted()) as reader:
        # A store that dies before it has noted how far it is filled is filled again, which would mend it.
        assert run.stop() == 0
        run.start()
        wait_for("all is well", run.is_well)
        reader.may_find(DAMAGED, "damaged", f"e{DAMAGED}")
        place.damage(DAMAGED, "damaged")
        for number, (options, step, copies) in enumerate(STEPS):
            if number in killed:
                _killed(run, place.store, step, options)
                run.kill()
                run.start()
            if "--abort" in options:
                _aborted(run)
            else:
                rebuilt(run, *options)
            reader.may_find(number, f"e{number}", f"after {number}")
            shop.execute(f"UPDATE shop.user SET email = 'after {number}' WHERE id = {number}")
            wait_for(f"it is kept after {step}", lambda live=copies[0]: _is_shown(place, held(shop, live)))
            reader.may_find(number, f"after {number}")
            _is_as_said(shop, place, copies)
    assert reader.failures == []
    assert reader.looks > 10 * len(STEPS)


def _is_shown(place: Place, wanted: Rows) -> bool:
    shown = place.shown()
    differing = {key: shown.get(key) for key in {*wanted, *shown} if shown.get(key) != wanted.get(key)}
    assert not differing, f"{len(differing)} differ: {[*differing.items()][:5]}"
    return True


def held(shop: Shop, number: int) -> Rows:
    """What the copy of that number holds."""
    return shop.wanted() | ({DAMAGED: "damaged"} if number == 1 else {})


class Reader:
    """Reads the whole view, again and again: every entity is there, with a value that it may have by then."""

    def __init__(self, place: Place, rows: Rows) -> None:
        self._place = place
        self._may_find = {key: frozenset({email}) for key, email in rows.items()}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.failures: list[str] = []
        self.looks = 0

    def may_find(self, key: int, *emails: str) -> None:
        self._may_find = {**self._may_find, key: frozenset(emails)}

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stop.wait(0.05):
            before = self._may_find
            try:
                found = self._place.shown()
            except Exception as error:
                self.failures.append(repr(error))
                continue
            self.looks += 1
            now = self._may_find
            wrong = [key for key in {*now, *found} if found.get(key) not in {*before.get(key, ()), *now.get(key, ())}]
            if wrong:
                told = [(key, found.get(key)) for key in wrong[:3]]
                self.failures.append(f"look {self.looks}: {len(found)} entities, {len(wrong)} wrong: {told}")


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
    done = run.command("rebuild", "people", "--abort", "--yes")
    assert done.returncode == 0 or "has no copy beside it" in done.stderr, done.stderr


def _is_as_said(shop: Shop, place: Place, copies: tuple[int, int | None]) -> None:
    live, beside = copies
    others = set() if beside is None else {beside}
    wait_for("no other copy is there", lambda: place.copies() == others)
    view = f"{place.store}:people"
    names = {view: live, **{f"{view}~{number}": number for number in others}}
    assert dict(shop.rows("SELECT name, copy FROM viewtail.view")) == names
    if beside is not None:
        wait_for("the copy beside is kept", lambda: place.copy(beside) == held(shop, beside))
