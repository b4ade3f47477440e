"""The steps of the demo, once servers answer: a table, its views, a change, a kill, damage, every row compared."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pymysql

from viewtail.changes.counting import counted
from viewtail.changes.extras import how_to_install
from viewtail.console_beside import NEEDED
from viewtail.demo import given, screen
from viewtail.demo.hands import Hands
from viewtail.demo.load import Load
from viewtail.demo.place import Place
from viewtail.demo.process import DemoError, Run, command
from viewtail.demo.rows import Application, City, load, table
from viewtail.demo.screen import heading, line
from viewtail.demo.stores import Store, opened, title
from viewtail.operations.status import read
from viewtail.sources import read_position

PARIS = 2988507
FILLED_WITHIN_S = 120.0
SHOWN_WITHIN_S = 30.0


class Course:
    """One demo. `at_end` ends what it starts; with `stays` `viewtail run` outlives it."""

    def __init__(self, place: Place, rows: pymysql.Connection[Any], at_end: ExitStack, *, stays: bool) -> None:
        self._place, self._rows, self._step = place, rows, 1
        self._keys = self._declared()
        self._run = self._started(at_end, stays=stays)
        self._stores = opened(place)
        for store in self._stores:
            at_end.callback(store.close)
        self._until_equal()

    def play(self, hands: Hands) -> None:
        """All steps, or fewer: a person may end it before."""
        steps: list[tuple[str, Callable[[Hands], bool]]] = [
            ("change a row", self._change),
            ("kill a worker under load", self._kill),
            ("damage views by hand", self._damage),
        ]
        for name, step in steps:
            if not hands.goes_on(name) or not step(hands):
                return
        hands.goes_on("compare every row")

    def verify(self) -> int:
        """Compare every row of every view; returns how many that are. Raises DemoError where one differs."""
        self._heading("Every row of every view, against its table")
        self._until_equal()
        screen.command("viewtail verify")
        for told in self._place.require("verify").splitlines():
            line(told)
        topics = [store for store in self._stores if store.name == "kafka"]  # verify leaves them out
        for store in topics:
            line(f"kafka:{self._place.names.view(store.name)}: equal, {len(self._keys)} keys by their newest messages")
        return len(self._keys) * len(self._stores)

    def end(self) -> None:
        """Stop viewtail. Raises DemoError where it does not end as it should."""
        if (code := self._run.stop()) != 0:
            raise DemoError(f"viewtail run ended with code {code} on SIGTERM.\n{self._run.log_tail()}")

    # -- a table, its views, a run -------------------------------------------------------------------------------

    def _declared(self) -> list[int]:
        self._heading("A table and its views")
        count = load(self._rows, self._place.names.rows)
        line(f"{self._place.names.rows}.city: the {count} largest cities of GeoNames (CC BY 4.0)")
        line()
        screen.listing(f"{self._place.module}.py", self._place.declare())
        return [*table(self._rows, self._place.names.rows)]

    def _started(self, at_end: ExitStack, *, stays: bool) -> Run:
        self._heading("viewtail run")
        if self._place.is_given:
            self._place.require("check")
        began_at = time.monotonic()
        run = self._place.start(stays=stays)
        at_end.callback(run.stop)
        with closing(given.own_session(self._place)) as own:
            _until("the views are filled", lambda: self._is_filled(own, run), FILLED_WITHIN_S, run)
        screen.done(f"{counted(len(self._place.stores), 'views')} filled in {time.monotonic() - began_at:.1f} s")
        self._say_where()
        return run

    def _is_filled(self, own: pymysql.Connection[Any], run: Run) -> bool:
        views = [view for pipeline in read(own, self._place.names.own, read_position) for view in pipeline.views]
        own.rollback()
        if halted := [f"{view.name}: {view.reason}" for view in views if view.state == "halted"]:
            raise DemoError("a view halted.\n" + "\n".join(halted))
        return sum(view.state == "filled" for view in views) == len(self._place.stores)

    def _say_where(self) -> None:
        """Where a person can look beside: the console, and a second terminal."""
        console = self._place.settings().console
        if lacking := next(filter(None, map(how_to_install, NEEDED)), ""):
            line(f"a page that shows it: {lacking}", "dim")
        elif console.port:
            line(f"look beside:         http://{console.host}:{console.port}", "bold")
        if not self._place.is_given:
            line(f"in another terminal: cd {screen.short(self._place.folder)} && {called()} status", "dim")

    # -- a change ------------------------------------------------------------------------------------------------

    def _change(self, hands: Hands) -> bool:
        self._heading("Change a row: how long after the commit each store shows it")
        before = table(self._rows, self._place.names.rows)[PARIS]
        count = before.population + 1000
        self._changed(City(before.country, count), f"population = {count}")
        if not hands.goes_on("move Paris to Iceland"):
            return False
        self._changed(City("IS", count), "country = 'IS'")
        return True

    def _changed(self, city: City, assignment: str) -> None:
        statement = f"UPDATE {self._place.names.rows}.city SET {assignment} WHERE id = {PARIS}"
        screen.command(f"{statement};  -- Paris", "mysql>")
        with self._rows.cursor() as cursor, ThreadPoolExecutor(len(self._stores)) as pool:
            cursor.execute(statement)
            self._rows.commit()
            committed_at = time.monotonic()
            answers = [pool.submit(self._seconds_until, store, city, committed_at) for store in self._stores]
            for store, answer in zip(self._stores, answers, strict=True):
                screen.shown(title(store), city, answer.result(), store.question.format(key=PARIS))

    def _seconds_until(self, store: Store, city: City, committed_at: float) -> float:
        """From the commit to the first answer that shows the city so."""
        _until(
            f"{title(store)} shows the change",
            lambda: store.cities([PARIS]).get(PARIS) == city,
            SHOWN_WITHIN_S,
            self._run,
        )
        return time.monotonic() - committed_at

    # -- a kill --------------------------------------------------------------------------------------------------

    def _kill(self, hands: Hands) -> bool:
        self._heading("Kill a worker while an application writes")
        application = Application(lambda: given.rows_session(self._place), self._place.names.rows)
        try:
            goes_on = Load(application, self._run, self._stores, self._keys).watch(hands)
        finally:
            application.stop()
        self._until_equal()
        screen.done(f"{application.count:,} changes in all; every store shows each row as it is now")
        return goes_on

    # -- damage --------------------------------------------------------------------------------------------------

    def _damage(self, hands: Hands) -> bool:
        self._heading("Damage views by hand, past viewtail, and have them mended")
        for store in self._stores:
            if statement := store.damage(PARIS):
                prompt, _, rest = statement.partition(" ")
                screen.command(rest, prompt)
        screen.command("viewtail verify --repair")
        for told in self._place.viewtail("verify", "--repair").stdout.splitlines():
            line(told)
        self._until_equal()
        return True

    # -- the rest ------------------------------------------------------------------------------------------------

    def _heading(self, text: str) -> None:
        self._step += 1
        heading(self._step, text)

    def _until_equal(self) -> None:
        _until("every store shows every row", self._are_equal, SHOWN_WITHIN_S, self._run)

    def _are_equal(self) -> bool:
        rows = table(self._rows, self._place.names.rows)
        return all(store.cities(self._keys) == rows for store in self._stores)


def called() -> str:
    """How a person calls this viewtail."""
    path = command()[0]
    return "viewtail" if shutil.which("viewtail") == path else path


def _until(what: str, holds: Callable[[], bool], within_s: float, run: Run) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        run.require_running()
        if time.monotonic() > deadline:
            raise DemoError(f"{what}: not within {within_s:.0f} s.\n{run.log_tail()}")
        time.sleep(0.001)
